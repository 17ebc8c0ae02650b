"""Choose on fit questions, record the look, test on calibration questions, build the policy.

In this order: the look is in the log before any calibration outcome is read.  The caller holds the
run's lock.  Only the log is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from stopadvisor.answers.grading import Grader, described
from stopadvisor.assessment.choice import Choice, Settings
from stopadvisor.assessment.fit_assessment import (
    REPLIES_CUT,
    FitAssessment,
    assess,
    cut_replies,
    remark_on_reading,
)
from stopadvisor.assessment.limits import counted_rows, most_of
from stopadvisor.assessment.recommendation import Recommendation, deciding_reason
from stopadvisor.assessment.settings import SettingsOverrides, alpha_remark, large_alpha
from stopadvisor.certification.calibration import (
    Calibration,
    calibrate,
    cannot_exclude,
    labels_to_name,
    without_figures,
)
from stopadvisor.certification.export import check_policy_terms, policy_terms
from stopadvisor.certification.labelling import LabelCounts, Labelling, LabelRun, at_worst
from stopadvisor.certification.looks import (
    PlannedLook,
    check_categories,
    check_questions,
    counted_traces,
    named_settings,
    plan_look,
    planned_labels,
    require_gold,
    show_fit,
    spent_in_fit,
    take,
)
from stopadvisor.ground.constants import MOST_TRUNCATED
from stopadvisor.ground.errors import CalibrationError, GraderError
from stopadvisor.policy.frozen import Policy, build_policy
from stopadvisor.probes.grouping import calibration_rows
from stopadvisor.probes.outcomes import CalibrationQuestions
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.families import rule_name
from stopadvisor.runs.access import unsealed_rows
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.look_log import Look, record_result
from stopadvisor.runs.prices import default_settings
from stopadvisor.runs.sources import Source, considered_alpha, read_assessment
from stopadvisor.stats.adaptive_labels import asking_order
from stopadvisor.stats.bounds import Certified, NotCertified
from stopadvisor.stats.label_sample import MOST_SAMPLED

__all__ = [
    "Certification", "CertifyRequest", "Despite", "advised_against", "certify", "check_partial",
    "check_replies", "refused_beforehand", "start_labelling", "to_choose_by", "unjudged",
]  # fmt: skip

Despite = Literal["advice", "truncated", "large-alpha"]
"""Objections that the user may override."""


@dataclass(frozen=True)
class CertifyRequest:
    """A request to certify; fields left None come from the run's assessment."""

    overrides: SettingsOverrides = field(default_factory=SettingsOverrides)
    looks: int | None = None
    """Number of looks planned at these questions, which share delta; None keeps the earlier
    plan."""
    fresh: bool = False
    """Certify only on questions that no look has used; used ones join the fit questions."""
    despite: Sequence[Despite] = ()
    """Certify although the advice is full thinking, too many traces were cut off, or alpha is a
    large share of the full-thinking accuracy."""
    labels: int | None = None
    """Number of labels planned, fixed by the first look.  None: the first look's number, else every
    label that can change a decision."""

    def settings(self, source: Source) -> Settings:
        """Complete the settings; delta still covers all planned looks together."""
        return self.overrides.settings(
            read_assessment(source.folder),
            defaults=default_settings(source),
            allow_truncated="truncated" in self.despite,
        )


@dataclass(frozen=True)
class _Plan:
    """Everything decided before a calibration outcome is read."""

    assessment: FitAssessment
    look: PlannedLook
    is_partial: bool = False
    """Whether the loss needs gold that some calibration questions lack."""
    labels: int | None = None
    """Number of labels planned."""


@dataclass(frozen=True)
class Certification:
    """What was tested, and the resulting policy."""

    settings: Settings
    """Settings under which the rule was chosen and tested."""
    calibration: Calibration
    look: Look | None
    """None if no look was taken, because nothing could have been exported."""
    policy: Policy
    """The policy; it never stops if nothing was certified."""
    remarks: tuple[str, ...]
    """What the reader should know before trusting the policy."""
    assessment: FitAssessment | None = None
    """The assessment on fit questions; None for a transferred rule."""
    labels: LabelCounts | None = None
    """Only if some calibration questions lack gold."""
    changed: str | None = None
    """Why the exported rule is not the advised one, in a sentence."""
    source: Policy | None = None
    """The policy whose rule was transferred; None if the rule was chosen here."""


def certify(source: Source, request: CertifyRequest) -> Certification:
    """Choose on fit questions, look at the calibration questions once, and certify.

    The caller holds the lock of the `source`.  If full thinking is advised, the policy never stops;
    no question is opened and no look spent.

    Raises
    ------
    CalibrationError
        Settings out of range, too few questions, or an alpha too large for the accuracy of
        full thinking.
    ProbeError
        The run's assessment or log of looks cannot be read.
    """
    plan = _settled(source, request)
    assessment, choice = plan.assessment, plan.assessment.choice
    against = None
    if "advice" not in request.despite:
        against = advised_against(choice, assessment.recommendation)
    if against is None:  # full thinking loses nothing, at any alpha
        _check_alpha(assessment, allowed="large-alpha" in request.despite)
    refusal = refused_beforehand(choice, plan.look.questions) or against
    if refusal is not None:
        nobody = np.zeros(assessment.source.table.n_questions, bool)
        nothing = unsealed_rows(assessment.source, nobody).as_calibration()
        calibration = Calibration(None, refusal, (), nothing)
        policy, remarks = _policy(assessment, calibration, None), tuple(_remarks(assessment, ()))
        return Certification(choice.settings, calibration, None, policy, remarks, assessment)
    taken = take(plan.look)  # if it refuses, nothing is shown
    show_fit(assessment.source, "calibrate")
    assert taken.look.test_delta == choice.settings.delta
    labels = None
    if plan.is_partial:
        run = _label_run(source, plan, taken.questions)
        labelling = run.labelling
        with Grader() as grader:
            known = run.known(run.file.read(), grader)
        calibration = calibrate(choice, at_worst(labelling.questions, known.grades), labelling.plan)
        labelled = sum(grade is not None for grade in known.grades.values())
        calibration = replace(calibration, labelled=labelled)
        labels = known.counts(labelling.state(known.grades))
    else:
        calibration = calibrate(choice, taken.questions)
    look = record_result(source.folder, taken.look, certified=calibration.rule is not None)
    if not look.opened:
        calibration = without_figures(calibration, choice.settings, choice)
    policy = _policy(assessment, calibration, look)
    assessed = read_assessment(source.folder)
    changed = _why_another_rule(assessment, calibration, policy.family, assessed)
    said = [*remark_on_reading(choice.fit.table, source), *taken.remarks]
    remarks = tuple(_remarks(assessment, said, policy, changed))
    return Certification(
        choice.settings, calibration, look, policy, remarks, assessment, labels, changed
    )


def start_labelling(source: Source, request: CertifyRequest) -> LabelRun:
    """Choose on fit questions and take the look whose questions will be labelled.

    `certify` will find the same look for this `request`.  The caller holds the lock.  Raises as
    `certify`, and CalibrationError if no label could change anything.
    """
    plan = _settled(source, request)
    choice = plan.assessment.choice
    if not plan.is_partial:
        raise CalibrationError(
            f"{source.folder}: every calibration question has gold: there is nothing to label"
        )
    refusal = refused_beforehand(choice, plan.look.questions)
    if refusal is None and "advice" not in request.despite:
        refusal = advised_against(choice, plan.assessment.recommendation)
    if refusal is not None:
        raise CalibrationError(f"nothing to label: {refusal.reason}")
    taken = take(plan.look)
    show_fit(plan.assessment.source, "label")
    return _label_run(source, plan, taken.questions)


def _salt(source: Source) -> str:
    """Salt of the hash that orders the questions to label."""
    return f"labels {source.seed}"


def _label_run(source: Source, plan: _Plan, questions: CalibrationQuestions) -> LabelRun:
    choice = plan.assessment.choice
    (rows,) = check_questions(choice, questions)
    labelling = Labelling(choice, questions.take(rows), _salt(source), plan.labels)
    return LabelRun.of(source, labelling)


# --- Where no look can help -----------------------------------------------------------------------


def refused_beforehand(choice: Choice, questions: ProbeTable) -> NotCertified | None:
    """Return a refusal if no look could end in an exported rule; opens nothing."""
    if choice.nothing is not None:
        return NotCertified(f"{choice.nothing}; no calibration question was opened", None, None)
    if not any(sequence.saves.any() for sequence in choice.sequences):
        why = "no rule saves anything on fit questions: no calibration question was opened"
        return NotCertified(f"{why}, and no look spent", None, None)
    settings, rows = choice.settings, counted_traces(questions, choice.settings)
    table, why = questions.take(rows[0]), ""
    for each in settings.guarantees:
        traces = len(rows) if each.counted.is_binary else 1
        # The last entry is the best case: every question gained, or lost by neither trace.
        if most_of(each, counted_rows(table, each).size, settings.delta, traces)[-1] < 0:
            asked = ", ".join(map(str, settings.guarantees))
            why = (
                f"{table.n_questions} calibration questions cannot show {asked} at confidence "
                f"{1 - settings.delta:g}, whatever their answers are"
            )
            if settings.is_plain and traces == 1:
                why = cannot_exclude(table.n_questions, settings.alpha, settings.delta)
    if not why:
        return None
    reason = f"{why}: none was opened, and no look spent"
    return NotCertified(reason, *labels_to_name(settings, choice))


def advised_against(choice: Choice, advice: Recommendation) -> NotCertified | None:
    """Return a refusal if full thinking is advised; opens nothing."""
    if advice.policy != "full-budget":
        return None
    reason = deciding_reason(advice.policy, advice.reasons).rstrip(".")
    step, _, why = reason.partition(": ")
    needed, expected = labels_to_name(choice.settings, choice)
    # More labels raise the chance of a certificate, but make no probe cheaper and no rule better.
    helps = choice.advised is None or step == "Certificate"
    return NotCertified(
        f"the advice is full thinking ({why}), and calibrate follows it: no calibration question "
        "was opened, and no look spent; --despite advice certifies all the same",
        needed if helps else None,
        expected if helps else None,
    )


def _check_alpha(assessment: FitAssessment, *, allowed: bool) -> None:
    """Refuse an alpha that would let a large share of full thinking's right answers be lost."""
    settings, accuracy = assessment.choice.settings, assessment.choice.full_accuracy
    if not settings.limits_accuracy or (allowed and settings.alpha < accuracy):
        return
    said = large_alpha(settings, accuracy, "fit questions")
    if allowed:
        said = (
            f"alpha must be below the full-thinking accuracy ({accuracy:.3f} on fit "
            f"questions), got {settings.alpha!r}: always being wrong would meet it"
        )
    if said is not None:
        show_fit(assessment.source, "calibrate")
        raise CalibrationError(said)


def _policy(assessment: FitAssessment, calibration: Calibration, look: Look | None) -> Policy:
    source, choice, shape = assessment.source, assessment.choice, assessment.profile
    return build_policy(
        policy_terms(source, choice.settings, choice.full_accuracy, calibration, shape, look)
    )


def _settled(source: Source, request: CertifyRequest) -> _Plan:
    """Choose on fit questions what to test; opens no calibration question."""
    settings = request.settings(source)
    settings = replace(settings, traces=len(counted_traces(source.part("calibration"), settings)))
    asked = {"protocol": "deploy", **named_settings(settings)}
    takes_gold = any(each.counted.needs_gold for each in settings.guarantees)
    partial = takes_gold and source.graded_by == "agreement"
    labels = None
    if source.graded_by == "agreement":
        asked |= _label_request(source, settings) if partial else {}
        labels = planned_labels(source, asked, request.labels, fresh=request.fresh)
        n = source.part("calibration").n_questions
        if labels is not None and n > MOST_SAMPLED:
            raise CalibrationError(
                f"--labels {labels}: the exact test of planned labels takes at most {MOST_SAMPLED} "
                f"calibration questions, got {n}; without --labels any number of them counts"
            )
        asked |= {} if labels is None else {"sampled_labels": labels}
    elif request.labels is not None:
        raise CalibrationError("--labels: every calibration question has gold")
    view = spent_in_fit(source, asked) if request.fresh else source
    table = view.part("calibration")
    if not partial:
        require_gold(settings, table)
    check_categories(table.take(calibration_rows(table)), settings)
    look = plan_look(view, table, asked, delta=settings.delta, looks=request.looks)
    settings = replace(settings, delta=look.test_delta)
    chosen_by = to_choose_by(settings) if partial else settings
    assessment = assess(view, chosen_by, traces=settings.traces)
    if partial:
        assessment = replace(assessment, choice=replace(assessment.choice, settings=settings))
    check_questions(assessment.choice, table)
    check_replies(view, table, settings)
    check_policy_terms(view, settings)
    return _Plan(assessment, look, partial, labels)


def check_replies(source: Source, table: ProbeTable, settings: Settings) -> None:
    """Raise CalibrationError if too many full replies were cut at `--answer-cap`."""
    cut = cut_replies(table, source)
    if cut > MOST_TRUNCATED and not settings.allow_truncated:
        raise CalibrationError(
            f"{cut:.1%} of {REPLIES_CUT}; certification allows {MOST_TRUNCATED:.0%}: probe with a "
            "larger --answer-cap, or say --despite truncated"
        )


def check_partial(settings: Settings) -> None:
    """Refuse losses that need gold for every calibration question."""
    if settings.loss == "drop" or settings.also:
        what = "--loss drop counts what stopping gains"
        if settings.loss != "drop":
            what = "a further limit is tested with the first"
        raise CalibrationError(
            f"{what}, which needs gold for every calibration question, and some have none: "
            "--loss lost alone is certified with few labels, --loss differs without any"
        )


def _label_request(source: Source, settings: Settings) -> dict[str, Any]:
    """What the log of looks records in addition: a digest of the order of asking."""
    check_partial(settings)
    grading = (source.manifest or {}).get("grading", {})
    if "grader_sha256" in grading:
        raise GraderError(
            f"{source.folder} was graded by {described(grading)}, and typed labels are compared as "
            "gold: grade it again with `stopadvisor assess RUN --regrade --grader gold`"
        )
    table = source.part("calibration")
    keys = [table.keys[row] for row in asking_order(table.keys, _salt(source))]
    return {"asking": hashlib.sha256("\n".join(keys).encode()).hexdigest()}


def to_choose_by(settings: Settings) -> Settings:
    """Settings for choosing rules before any label is known.

    Without labels one only sees whether a reply differs.  About half of the differing replies are
    lost, so the choice uses twice the limit.  That affects how good the choice is, not whether the
    certificate holds.
    """
    return replace(
        settings, loss="differs", alpha=min(2 * settings.alpha, (1 + settings.alpha) / 2)
    )


# --- Remarks --------------------------------------------------------------------------------------


def _remarks(
    assessment: FitAssessment,
    on_looks: Sequence[str],
    policy: Policy | None = None,
    changed: str | None = None,
) -> list[str]:
    """Collect remarks; `policy` is None if no calibration question was opened."""
    found, choice = [], assessment.choice
    alpha, accuracy = choice.settings.alpha, choice.full_accuracy
    if choice.settings.limits_accuracy and (remark := alpha_remark(alpha, accuracy)):
        found.append(remark)
    if changed is not None:
        found.append(changed)
    expected = None if policy is None else policy.terms.expected
    spread = None if expected is None else expected.test_total_saving_ci95
    if policy is not None and spread is not None and spread[1] < 0:
        found.append(
            f"on the test questions this policy costs more than full thinking under "
            f"{policy.terms.serving}: the certificate is about lost answers, so look at the saving "
            "before serving it"
        )
    found += on_looks
    if policy is not None:
        found += unjudged(assessment.source)
    if assessment.source.torn is not None:
        found.append(assessment.source.torn)
    if assessment.source.is_archive:
        found.append(
            "the archive holds no natural answers: the full reference is last-checkpoint, and "
            "the policy is bound to no model"
        )
    return found


def unjudged(source: Source, counted: Sequence[str] | None = None) -> list[str]:
    """Tell what the user's grader could not judge: counted as wrong, no answer can be lost."""
    grading = {} if source.manifest is None else source.manifest["grading"]
    if "grader_sha256" not in grading:
        return []
    keys = set(source.part("calibration").keys if counted is None else counted)
    records = RunDirectory.load(source.folder).all_records()
    untold = {record.key for record in records if record.cannot_tell} & keys
    if not untold:
        return []
    return [
        f"{grading['grader']} could not judge answers to {len(untold)} of {len(keys)} "
        "questions: they count as wrong, and where full thinking is wrong no answer "
        "can be lost"
    ]


def _why_another_rule(
    assessment: FitAssessment,
    calibration: Calibration,
    exported: str | None,
    assessed: Mapping[str, Any] | None,
) -> str | None:
    """Explain why the exported rule is not the advised one; None if it is.

    `assessment` has the settings of this calibration; `assessed` is the run's ``assessment.json``,
    which the user has read.
    """
    if exported is None:
        return None
    advised, by_test = assessment.recommendation.family, None
    if exported != advised:
        passed = {family: isinstance(result, Certified) for family, result in calibration.tested}
        if advised is None:
            by_test = "--despite advice asked for whatever can be certified"
        elif not passed.get(advised, False):
            by_test = (
                f"{_name(advised)} passed no test on the calibration questions, and "
                f"{_name(exported)}, tested next, did"
            )
        else:
            by_test = (
                f"{_name(advised)} and {_name(exported)} both passed the test; at their certified "
                "thresholds the latter saves more on fit questions, or as much and is simpler"
            )
    read = None if assessed is None else assessed["recommendation"]["family"]
    if assessed is None or read == advised:
        return by_test and (
            f"the exported rule is {_name(exported)} where {_name(advised)} was advised: {by_test}"
        )
    first = (
        f"assess had advised {_name(read)} at alpha = {considered_alpha(assessed):g}; at alpha = "
        f"{assessment.choice.settings.alpha:g} and these settings the fit questions choose "
        f"{_name(advised)}"
    )
    return first if by_test is None else f"{first}; {by_test}"


def _name(family: str | None) -> str:
    return "full thinking" if family is None else rule_name(family)
