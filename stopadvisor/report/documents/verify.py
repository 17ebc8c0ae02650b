"""What `verify --json` prints: a policy against fresh questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NotRequired, TypedDict

from stopadvisor.certification.verification import Verification
from stopadvisor.policy.frozen import Policy
from stopadvisor.report.documents.parts import SCHEMA, interval_list

__all__ = ["VerifyDocument", "verification_document"]


class _Category(TypedDict):
    category: Annotated[str | None, "Its name; null for questions without one."]
    n: Annotated[int, "Fresh questions in it."]
    losses: Annotated[int, "Lost ones."]
    ci95: Annotated[
        list[float], "Interval of the share lost; the intervals hold for all categories at once."
    ]


class _FeatureDrift(TypedDict):
    feature: Annotated[str, "Its name."]
    distance: Annotated[float, "Kolmogorov–Smirnov distance to the calibration questions."]
    p_value: Annotated[float, "Of that distance."]
    adjusted_p: Annotated[float, "The same for all features together (Holm)."]


class VerifyDocument(TypedDict):
    """`verify --json`."""

    schema: Annotated[int, "Now 1; raised when a program that reads this has to change."]
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
    conditional: Annotated[
        bool, "Whether alpha is a share of the questions that full thinking gets right."
    ]
    n_left_out: Annotated[int, "Traces left out."]
    n_met_before: Annotated[int, "Of these, questions that made the policy."]
    n_repeated: Annotated[int, "Of these, further traces of a question."]
    n: Annotated[int, "Fresh questions that were counted."]
    losses: Annotated[int, "Lost ones."]
    risk: Annotated[float, "Their share."]
    lower: Annotated[float, "Exact one-sided limit below."]
    upper: Annotated[float, "Exact one-sided limit above."]
    expected_risk: Annotated[float, "The risk that the policy expects."]
    power_to_confirm: Annotated[float, "Chance to confirm at that risk."]
    detectable_risk: Annotated[
        float | None,
        "Risk that would be contradicted four times in five; null: too few questions for any.",
    ]
    accuracy: Annotated[float, "Accuracy with stopping."]
    full_accuracy: Annotated[float, "Accuracy of full thinking."]
    accuracy_difference: Annotated[float, "Stopping minus full thinking."]
    accuracy_difference_ci95: Annotated[list[float], "Its interval."]
    serving: Annotated[str, "The serving regime in which the saving is counted."]
    unit: Annotated[str, "The unit in which it is counted."]
    total_saving_pct: Annotated[float, "Net saving."]
    total_saving_ci95: Annotated[list[float] | None, "Its bootstrap interval."]
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


class _AnswerFields(TypedDict, total=False):
    on_stop: Literal["answer"]
    answer_saving_pct: float


def verification_document(
    result: Verification,
    policy: Policy,
    *,
    policy_path: Path,
    run: Path,
    serving: str,
    unit: str,
    transfer: bool,
    test_only: bool,
    remarks: list[str],
) -> VerifyDocument:
    """Build the document.

    Parameters
    ----------
    policy_path, run : Path
        The files that were held against each other.
    serving, unit : str
        In which the saving was counted.
    transfer : bool
        Whether other conditions than the policy's were allowed.
    test_only : bool
        Whether only the test part was looked at.
    """
    outcome, fresh = result.outcome, result.fresh
    saved = outcome.answer_saving_pct
    answer: _AnswerFields = (
        {} if saved is None else {"on_stop": "answer", "answer_saving_pct": saved}
    )
    return {
        "schema": SCHEMA,
        "policy": str(policy_path),
        "digest": policy.digest,
        "run": str(run),
        "part": "test" if test_only else "all",
        "transfer": "zero-shot" if transfer else None,
        "verdict": result.verdict,
        "alpha": result.alpha,
        "delta": result.delta,
        "conditional": result.conditional,
        "n_left_out": fresh.n_seen + fresh.n_repeated,
        "n_met_before": fresh.n_seen,
        "n_repeated": fresh.n_repeated,
        "n": result.n,
        "losses": result.losses,
        "risk": result.losses / result.n,
        "lower": result.lower,
        "upper": result.upper,
        "expected_risk": result.expected_risk,
        "power_to_confirm": result.power_to_confirm,
        "detectable_risk": result.detectable_risk,
        "accuracy": outcome.accuracy,
        "full_accuracy": outcome.full_correct / outcome.n,
        "accuracy_difference": result.accuracy_difference,
        "accuracy_difference_ci95": list(result.accuracy_difference_ci95),
        "serving": serving,
        "unit": unit,
        "total_saving_pct": outcome.total_saving_pct,
        "total_saving_ci95": interval_list(outcome.saving_interval),
        "think_saving_pct": outcome.think_saving_pct,
        **answer,
        "truncated_share": result.truncated_share,
        "category_scope": "marginal",
        "categories": [
            {"category": c.category, "n": c.n, "losses": c.losses, "ci95": list(c.ci95)}
            for c in result.categories
        ],
        "drift": [
            {
                "feature": d.feature,
                "distance": d.distance,
                "p_value": d.p_value,
                "adjusted_p": d.adjusted_p,
            }
            for d in result.drift
        ],
        "remarks": remarks,
    }
