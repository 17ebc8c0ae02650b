"""What `calibrate --json` prints and ``calibration.json`` holds, however the rule was found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from stopadvisor.certification.certify import Certification
from stopadvisor.certification.certify_transfer import TransferCertification
from stopadvisor.certification.issue import PolicyFiles
from stopadvisor.policy.claims import shown_certificate
from stopadvisor.policy.promises import asked
from stopadvisor.policy.triggers import listed_positions, trigger_of
from stopadvisor.report.documents.fields import Document, fill
from stopadvisor.report.documents.parts import (
    CertificateFields,
    ExpectedFields,
    GradedByField,
    LabelFields,
    ProfileFields,
    RepeatFields,
)
from stopadvisor.report.documents.transfer import TransferFields, transfer_fields
from stopadvisor.report.headline import calibrated_headline
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.schedules import at_budget, schedule_of
from stopadvisor.stats.bounds import Certified, NotCertified

__all__ = ["CalibrateDocument", "calibration_document", "transfer_calibration_document"]


class _LookFields(TypedDict):
    number: Annotated[int, "Of this look at the calibration questions."]
    planned: Annotated[int | None, "Looks planned beforehand."]
    spent: Annotated[float, "Error probability spent by all looks so far."]
    elsewhere: Annotated[
        int,
        "Looks on record at other questions of the run, or at other probes of these in runs "
        "beside it.",
    ]
    head: Annotated[str, "Digest of its line in the run's looks.jsonl."]
    opened: Annotated[
        bool,
        "Whether its figures are shown: those of a certificate, of labelling and of the last "
        "planned one. Of any other look it is said that it failed, and no more.",
    ]


class _RefusalFields(TypedDict):
    reason: Annotated[str, "Why nothing was certified."]
    labels_needed: Annotated[
        int | None, "Calibration labels that would do; null where no number would."
    ]
    assumed_risk: Annotated[
        float | None, "The risk at which they would; 0: fewer could not even certify no loss."
    ]


class _TestedRule(TypedDict):
    family: Annotated[str, "The rule."]
    certified: Annotated[bool, "Whether a threshold passed."]
    position: Annotated[int | None, "Of its last passed threshold, in the order fixed on fit."]
    n: Annotated[
        int, "Calibration questions that were counted; where a look showed no figure, all of them."
    ]
    losses: Annotated[int | None, "Lost questions at that threshold."]
    gained: NotRequired[Annotated[int, "Only of a drop: questions that stopping made right."]]
    upper: Annotated[float | None, "Exact upper limit there."]
    reason: Annotated[str | None, "Why none passed."]
    labels_needed: Annotated[int | None, "Labels that would do."]


class _CertificationFields(Document):
    protocol: Annotated[Literal["deploy"], "Only this one certifies."]
    run: Annotated[str, "Where the probes are."]
    alpha: Annotated[float, "The risk asked for."]
    loss: NotRequired[
        Annotated[Literal["differs", "drop"], "What it limits; without it lost answers."]
    ]
    asked: NotRequired[
        Annotated[str, "All limits asked for in words, where they are not one on lost answers."]
    ]
    delta: Annotated[float, "Error probability of this look."]
    conditional: Annotated[
        bool, "Whether alpha is a share of the questions that full thinking gets right."
    ]
    confidence: Annotated[
        float | None, "Of a certificate of this look; null where none was taken, as the next."
    ]
    look: Annotated[_LookFields | None, "This look at the calibration questions."]
    certified: Annotated[bool, "Whether a rule was certified."]
    policy: Annotated[str, "The file that was written; no other policy is ever written there."]
    digest: Annotated[str, "Digest of that policy: so the calibration names what it is about."]
    promoted: Annotated[
        str | None,
        "Its copy, the policy in use; null where another stays in use, and with `--out`.",
    ]
    kind: Annotated[str, "`stop` or `full-budget`."]
    family: Annotated[str | None, "The exported rule; null for `full-budget`, as the next three."]
    schedule: Annotated[list[int] | None, "Thinking tokens at which it probes."]
    where: Annotated[str | None, "The same in words."]
    threshold: Annotated[float | None, "It stops when the score reaches this."]
    serving: Annotated[str, "The serving regime for which it was chosen."]
    on_stop: NotRequired[Annotated[Literal["answer"], "Only with `--on-stop answer`."]]
    certificate: Annotated[CertificateFields | None, "What was shown; null where nothing was."]
    refusal: Annotated[_RefusalFields | None, "Why not, where nothing was."]
    tested: Annotated[list[_TestedRule], "Each rule that was tested."]
    expected: Annotated[ExpectedFields | None, "What the policy is expected to do."]
    graded_by: GradedByField


class _AdvisedFields(TypedDict):
    advised_family: Annotated[
        str | None, "The rule that `assess` advised; null for the full budget, as the next three."
    ]
    advised_schedule: Annotated[list[int] | None, "Where it probes."]
    advised_where: Annotated[str | None, "The same in words."]
    advised_fit_total_saving_pct: Annotated[float | None, "Its net saving on fit questions."]
    changed: Annotated[
        str | None, "Why another rule than the advised one was exported; null where it was not."
    ]
    profile: Annotated[
        ProfileFields | None, "Of the fit questions; with `--from` of the calibration questions."
    ]
    remarks: Annotated[list[str], "What the reader should know."]
    headline: Annotated[str, "First line of the screen and of the report."]


class _OptionalFields(TypedDict, total=False):
    repeats: Annotated[
        RepeatFields, "Only where fit questions thought twice: full thinking beside itself."
    ]
    transfer: Annotated[TransferFields, "Only with `--from`."]
    labels: Annotated[
        LabelFields, "Only where few calibration questions have gold: what labels there are."
    ]


class CalibrateDocument(_AdvisedFields, _CertificationFields, _OptionalFields):
    """`calibrate --json` and `calibration.json`."""


def calibration_document(
    found: Certification, files: PolicyFiles, measured: str | None = None
) -> CalibrateDocument:
    """Build the document of a rule that was chosen on this run."""
    assessment = found.assessment
    choice, advice = assessment.choice, assessment.recommendation
    point = choice.advised_point
    common = _certification(found, assessment.source.folder, files)
    return {
        **common,
        "advised_family": advice.family,
        "advised_schedule": None if advice.schedule is None else list(advice.schedule),
        "advised_where": advice.where,
        "advised_fit_total_saving_pct": None
        if advice.family is None or point is None
        else point.fit_total_saving_pct,
        "changed": found.changed,
        "profile": fill(ProfileFields, assessment.profile.shares),
        "remarks": [*found.remarks, *files.remarks],
        "headline": calibrated_headline(common, measured),
        **fill(_OptionalFields, repeats=assessment.repeats, labels=found.labels),
    }


def transfer_calibration_document(
    folder: Path,
    found: TransferCertification,
    source_path: Path,
    files: PolicyFiles,
    measured: str | None = None,
) -> CalibrateDocument:
    """Build the document of a rule that came from another policy."""
    common = _certification(found, folder, files)
    return {
        **common,
        # Nothing is chosen on fit questions here, so nothing was advised.
        "advised_family": None,
        "advised_schedule": None,
        "advised_where": None,
        "advised_fit_total_saving_pct": None,
        "changed": None,
        "profile": found.content["profile"],
        "remarks": [*found.remarks, *files.remarks],
        "headline": calibrated_headline(common, measured),
        **_OptionalFields(transfer=transfer_fields(source_path, found)),
    }


def _certification(
    found: Certification | TransferCertification, folder: Path, files: PolicyFiles
) -> _CertificationFields:
    """Certificate or refusal, and the policy written."""
    settings, content = found.settings, found.content
    calibration, look = found.calibration, found.look
    return fill(
        _CertificationFields,
        content,
        settings,  # a refusal, which has no certificate to say so, is worded by `conditional`
        protocol="deploy",
        run=folder,
        loss=None if settings.loss == LOST.name else settings.loss,
        asked=None if settings.is_lost else asked(settings.guarantees),
        delta=settings.delta if look is None else look.delta,
        confidence=None if look is None else look.confidence,
        look=look,
        certified=calibration.rule is not None,
        policy=files.policy,
        promoted=files.promoted,
        schedule=_positions(content),
        where=where_of(content),
        certificate=shown_certificate(content),
        on_stop="answer" if content["on_stop"] == "answer" else None,
        refusal=calibration.refusal,
        graded_by=calibration.entered.graded_by,
        tested=[
            _tested_rule(family, result, calibration.n_counted)
            for family, result in calibration.tested
        ],
    )


def _positions(content: Mapping[str, Any]) -> list[int] | None:
    """Where a policy asks; None where it asks nothing, or each trace has positions of its own."""
    positions = None if content["kind"] != "stop" else listed_positions(trigger_of(content))
    return None if positions is None else list(positions)


def where_of(content: Mapping[str, Any]) -> str | None:
    """Where a policy asks, in words; None for one that never stops."""
    if content["kind"] != "stop":
        return None
    if content["family"] == FIXED_BUDGET:
        return at_budget(int(content["decision_threshold"]))
    return schedule_of(trigger_of(content)).describe()


def _tested_rule(family: str, result: Certified | NotCertified, n: int) -> _TestedRule:
    return fill(
        _TestedRule,
        result,
        {"n": n, "losses": None, "upper": None, "reason": None, "labels_needed": None},
        family=family,
        certified=isinstance(result, Certified),
        position=result.index if isinstance(result, Certified) else None,
    )
