"""Certifying a rule that is chosen here: choose, take the look, test, make the policy.

In this order: everything is chosen on fit questions, the look at the calibration questions is
entered in the ledger, and only then is one of their outcomes computed.  Whoever calls holds the
run's lock.  This module writes no policy, and nothing but the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from stopadvisor._version import __version__
from stopadvisor.assessment.assess import FitAssessment, assess
from stopadvisor.assessment.choice import Choice, Settings
from stopadvisor.assessment.settings import SettingsOverrides, alpha_remark
from stopadvisor.certification.calibration import Calibration, calibrate, check_questions
from stopadvisor.certification.export import policy_content
from stopadvisor.errors import CalibrationError
from stopadvisor.policy.frozen import build_policy
from stopadvisor.probes.outcomes import SealedQuestions
from stopadvisor.runs.ledger import Look, LookRequest, hand_out, looks_at, read_ledger, take_looks
from stopadvisor.runs.results import read_assessment
from stopadvisor.runs.sources import Part, Source, looks_elsewhere
from stopadvisor.workload.questions import PARTS

__all__ = ["Certification", "CertifyRequest", "Plan", "certify", "look_remarks", "plan_choice"]


@dataclass(frozen=True)
class CertifyRequest:
    """What to certify; what is left open comes from the run's assessment."""

    overrides: SettingsOverrides = field(default_factory=SettingsOverrides)
    conditional: bool = False
    allow_truncated: bool = False
    looks: int | None = None
    """Looks planned at these questions, which share delta; None for as many as before."""
    fresh: bool = False
    """Only questions that no look has used."""

    def on(self, source: Source) -> Source:
        """The source of calibration questions that may be used."""
        return without_used(source, ("calibration",)) if self.fresh else source

    def settings(self, source: Source) -> Settings:
        """Complete settings, before planned looks share delta."""
        return self.overrides.settings(
            read_assessment(source.folder),
            conditional=self.conditional,
            allow_truncated=self.allow_truncated,
        )

    def planned(self, earlier: Sequence[Look]) -> int | None:
        """Looks planned, as the first of them recorded it."""
        return self.looks or (earlier[0].planned if earlier else None)


@dataclass(frozen=True)
class Plan:
    """All that is settled before a calibration outcome is opened."""

    table: SealedQuestions
    """Calibration questions."""
    assessment: FitAssessment
    choice: Choice
    look: LookRequest
    n_earlier: int
    """Looks that were taken at these questions before."""


@dataclass(frozen=True)
class Certification:
    """What was tested, and the policy that follows from it."""

    assessment: FitAssessment
    calibration: Calibration
    look: Look
    content: Mapping[str, Any]
    """Of the policy; one that never stops where nothing was certified."""
    remarks: tuple[str, ...]
    """What the reader should know before trusting the policy."""


def certify(source: Source, request: CertifyRequest) -> Certification:
    """Choose on fit questions, look at the calibration questions once, and certify.

    Parameters
    ----------
    source : Source
        Run or archive; locked by the caller.
    request : CertifyRequest

    Raises
    ------
    CalibrationError
        Settings out of range, or too few questions.
    ProbeError
        The run's assessment or ledger cannot be read.
    """
    plan = plan_choice(source, request)
    assessment, choice = plan.assessment, plan.choice
    (look,) = take_looks(source.folder, [plan.look])
    assert look.test_delta == choice.settings.delta
    calibration = calibrate(choice, hand_out(plan.table, look))
    content = build_policy(
        policy_content(
            source, choice, calibration, assessment.profile, look, alpha=choice.settings.alpha
        )
    )
    remarks = _remarks(assessment, content, plan.n_earlier, look)
    return Certification(assessment, calibration, look, content, tuple(remarks))


def plan_choice(source: Source, request: CertifyRequest) -> Plan:
    """Choose on fit questions what is to be tested; opens nothing."""
    view = request.on(source)
    table = view.part("calibration")
    earlier = looks_at(source.folder, table.keys)
    settings, planned = request.settings(source), request.planned(earlier)
    assessment = assess(view, replace(settings, delta=settings.delta / (planned or 1)))
    choice = assessment.choice
    check_questions(choice, table)
    entry = {
        "protocol": "deploy",
        **{name: value for name, value in asdict(settings).items() if name != "delta"},
        "families": list(settings.families),
        "data": view.fingerprint(),
        "version": __version__,
    }
    elsewhere = looks_elsewhere(source, table.keys)
    look = LookRequest(table.keys, entry, settings.delta, planned, elsewhere)
    return Plan(table, assessment, choice, look, len(earlier))


def without_used(source: Source, names: Sequence[Part]) -> Source:
    """The source without the questions of these parts that a look has used, or their groups.

    Raises
    ------
    CalibrationError
        Nothing is left.
    """
    table = source.table
    used = {key for look in read_ledger(source.folder) for key in look.questions}
    groups = {g for g, k in zip(table.groups, table.keys, strict=True) if k in used}
    mine = np.isin(source.parts, [PARTS.index(name) for name in names])
    spent = np.array([g in groups for g in table.groups]) & mine
    left = int(mine.sum() - spent.sum())
    if used and not left:
        raise CalibrationError(
            f"--fresh: all {int(spent.sum())} calibration questions were looked at already; add "
            "labelled questions and probe them into the same run"
        )
    return replace(source, table=table.take(~spent), parts=source.parts[~spent])


# --- Remarks --------------------------------------------------------------------------------------


def look_remarks(look: Look, n_earlier: int) -> list[str]:
    """What looks before this one mean for its certificate."""
    found = []
    if n_earlier:
        found.append(
            f"these calibration questions were looked at before ({n_earlier} recorded); every "
            "further look leaves a certificate less confidence"
        )
    if look.elsewhere:
        found.append(
            f"{look.elsewhere} further look(s) are on record, at other questions of this run or at "
            "these questions in runs beside it: each certificate holds by itself, but the best of "
            "several tries does not"
        )
    return found


def _remarks(
    assessment: FitAssessment, content: Mapping[str, Any], n_earlier: int, look: Look
) -> list[str]:
    found, choice = [], assessment.choice
    alpha, accuracy = choice.settings.alpha, choice.full_accuracy
    if not choice.settings.conditional and (remark := alpha_remark(alpha, accuracy)):
        found.append(remark)
    if content["kind"] == "stop" and content["family"] != assessment.recommendation.family:
        advised = assessment.recommendation.family or "the full budget"
        found.append(
            f"the exported rule is {content['family']}, while assess advised {advised}: "
            "calibration decides among the rules chosen on fit questions"
        )
    spread = (content["expected"] or {}).get("test_total_saving_ci95")
    if spread is not None and spread[1] < 0:
        found.append(
            f"on the test questions this policy costs more than full thinking under "
            f"{content['serving']}: the certificate is about lost answers, so look at the saving "
            "before serving it"
        )
    found += look_remarks(look, n_earlier)
    if assessment.source.is_archive:
        found.append(
            "the archive holds no natural answers: the full reference is last-checkpoint, and "
            "the policy is bound to no model"
        )
    return found
