"""What `verify --json` prints: a policy against fresh questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NotRequired, TypedDict

from stopadvisor.certification.check_policy import CheckedPolicy, CheckRequest
from stopadvisor.policy.frozen import Policy
from stopadvisor.report.documents.fields import Document, fill
from stopadvisor.report.documents.parts import GradedByField, interval_list
from stopadvisor.report.headline import verified_headline

__all__ = ["VerifyDocument", "verification_document"]


class _Category(TypedDict):
    category: Annotated[str | None, "Its name; null for questions without one."]
    n: Annotated[int, "Fresh questions in it."]
    losses: Annotated[int, "Lost ones."]
    ci95: Annotated[
        list[float], "Interval of the share lost; the intervals hold for all categories at once."
    ]


class _LimitFields(TypedDict):
    loss: Annotated[str, "What is limited: `lost`, `differs` or `drop`."]
    alpha: Annotated[float, "To which share."]
    category: Annotated[str | None, "Of whose questions alone; null for all."]
    n: Annotated[int, "Fresh questions that were counted."]
    lost: Annotated[int, "Of these, how many count 1."]
    gained: Annotated[int, "Of these, how many count -1; only of a drop."]
    lower: Annotated[float, "One-sided limit below."]
    upper: Annotated[float, "One-sided limit above."]
    verdict: Annotated[
        str, "`confirmed`, `contradicted` (at its share of delta) or `silent`, by itself."
    ]


class _FeatureDrift(TypedDict):
    feature: Annotated[str, "Its name."]
    distance: Annotated[float, "Kolmogorov–Smirnov distance to the calibration questions."]
    p_value: Annotated[float, "Of that distance."]
    adjusted_p: Annotated[float, "The same for all features together (Holm)."]


class _PolicyCheckFields(TypedDict):
    number: Annotated[int, "Policies checked on any of these questions by now, this one included."]
    planned: Annotated[int | None, "Policies planned beforehand, which share delta."]
    spent: Annotated[float, "Error probability of all verdicts so far together, on either side."]


class _VerificationFields(Document):
    policy: Annotated[str, "Its file."]
    digest: Annotated[str, "Its digest."]
    run: Annotated[str, "Where the probes are."]
    part: Annotated[Literal["all", "test"], "Which questions."]
    transfer: Annotated[
        Literal["zero-shot"] | None, "Whether other conditions than the policy's were allowed."
    ]
    verdict: Annotated[str, "`confirmed`, `contradicted` or `silent`."]
    alpha: Annotated[float, "Of the certificate."]
    delta: Annotated[float, "Error probability of each limit."]
    check: Annotated[
        _PolicyCheckFields, "Its place among the policies held against these questions."
    ]
    conditional: Annotated[
        bool, "Whether alpha is a share of the questions that full thinking gets right."
    ]
    n_left_out: Annotated[int, "Traces left out."]
    n_met_before: Annotated[int, "Of these, questions that made the policy."]
    n_repeated: Annotated[int, "Of these, further traces of a question."]
    n: Annotated[int, "Fresh questions that were counted."]
    groups: NotRequired[
        Annotated[int, "Only where bets on groups certified the policy: groups they came in."]
    ]
    losses: Annotated[int, "Lost ones."]
    loss: NotRequired[
        Annotated[
            Literal["differs", "drop"],
            "What was counted, and is held against alpha; without it lost answers. Without gold "
            "replies that differ stand for lost ones, and for a drop.",
        ]
    ]
    gained: NotRequired[Annotated[int, "Only of a drop: questions that stopping made right."]]
    limits: NotRequired[
        Annotated[list[_LimitFields], "Only where the certificate limits several losses at once."]
    ]
    risk: Annotated[float, "Their share; of a drop less the share gained."]
    lower: Annotated[float, "One-sided limit below."]
    upper: Annotated[float, "One-sided limit above."]
    expected_risk: Annotated[float, "What calibration measured, and the policy expects."]
    power_to_confirm: Annotated[float, "Chance to confirm at that risk."]
    detectable_risk: Annotated[
        float | None,
        "Risk that would be contradicted four times in five; null: too few questions for any.",
    ]
    graded_by: GradedByField
    accuracy: Annotated[float, "Accuracy with stopping."]
    full_accuracy: Annotated[float, "Accuracy of full thinking."]
    accuracy_difference: Annotated[float, "Stopping minus full thinking."]
    accuracy_difference_ci95: Annotated[list[float], "Its interval."]
    serving: Annotated[str, "The serving regime in which the saving is counted."]
    unit: Annotated[str, "The unit in which it is counted."]
    total_saving_pct: Annotated[float, "Net saving."]
    total_saving_ci95: Annotated[
        list[float] | None, "Its bootstrap-t interval; null where none was stopped."
    ]
    think_saving_pct: Annotated[float, "Thinking tokens saved."]
    on_stop: NotRequired[Annotated[Literal["answer"], "Only with `--on-stop answer`."]]
    answer_saving_pct: NotRequired[
        Annotated[
            float, "Only with `--on-stop answer`: tokens of the visible answer that are saved."
        ]
    ]
    truncated_share: Annotated[float, "Share of the traces that were cut off."]
    category_scope: Annotated[
        Literal["marginal"], "The certificate is about all questions together."
    ]
    categories: Annotated[list[_Category], "What was lost in each category."]
    drift: Annotated[list[_FeatureDrift], "Features against the calibration questions."]
    remarks: Annotated[list[str], "What the reader should know."]


class VerifyDocument(_VerificationFields):
    """`verify --json`."""

    headline: Annotated[str, "First line of the screen."]


def verification_document(
    checked: CheckedPolicy, policy: Policy, request: CheckRequest, *, policy_path: Path, run: Path
) -> VerifyDocument:
    """Build the document of a policy that was checked against the probes of `run`."""
    result = checked.verification
    outcome, fresh = result.outcome, result.fresh
    document = fill(
        _VerificationFields,
        result,
        outcome,
        checked,
        policy=policy_path,
        digest=policy.digest,
        run=run,
        part="test" if request.test_only else "all",
        transfer="zero-shot" if request.transfer else None,
        n_left_out=fresh.n_seen + fresh.n_repeated,
        n_met_before=fresh.n_seen,
        n_repeated=fresh.n_repeated,
        total_saving_ci95=interval_list(outcome.saving_interval),
        loss=None if result.counted == "lost" else result.counted,
        limits=result.limits or None,
        on_stop=None if outcome.answer_saving_pct is None else "answer",
        category_scope="marginal",
    )
    return {**document, "headline": verified_headline(document)}
