"""Certifying a rule that is chosen here: choose, take the look, test, make the policy.

In this order: everything is chosen on fit questions, the look at the calibration questions is
entered in the ledger, and only then is one of their outcomes read.  Whoever calls holds the run's
lock.  Writes the ledger and nothing else; the policy is returned as a mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from stopadvisor.assessment.assess import FitAssessment, assess
from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.settings import SettingsOverrides, alpha_remark
from stopadvisor.certification.calibration import Calibration, calibrate, check_questions
from stopadvisor.certification.export import policy_content
from stopadvisor.certification.looks import PlannedLook, TakenLook, plan_look, take, without_used
from stopadvisor.policy.frozen import build_policy
from stopadvisor.runs.ledger import Look, record_result
from stopadvisor.runs.results import read_assessment
from stopadvisor.runs.sources import Source

__all__ = ["Certification", "CertifyRequest", "Plan", "certify", "plan_choice"]


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

    def settings(self, source: Source) -> Settings:
        """Complete settings, before planned looks share delta."""
        return self.overrides.settings(
            read_assessment(source.folder),
            conditional=self.conditional,
            allow_truncated=self.allow_truncated,
        )


@dataclass(frozen=True)
class Plan:
    """All that is settled before a calibration outcome is read."""

    assessment: FitAssessment
    look: PlannedLook


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

    Raises
    ------
    CalibrationError
        Settings out of range, or too few questions.
    ProbeError
        The run's assessment or ledger cannot be read.
    """
    plan = plan_choice(source, request)
    assessment, choice = plan.assessment, plan.assessment.choice
    (taken,) = take(plan.look)
    look = taken.look
    assert look.test_delta == choice.settings.delta
    calibration = calibrate(choice, taken.questions)
    record_result(source.folder, look, certified=calibration.rule is not None)
    content = build_policy(
        policy_content(
            source, choice, calibration, assessment.profile, look, alpha=choice.settings.alpha
        )
    )
    remarks = _remarks(assessment, content, taken)
    return Certification(assessment, calibration, look, content, tuple(remarks))


def plan_choice(source: Source, request: CertifyRequest) -> Plan:
    """Choose on fit questions what is to be tested; opens nothing."""
    view = without_used(source, ("calibration",)) if request.fresh else source
    table, settings = view.part("calibration"), request.settings(source)
    asked = {"protocol": "deploy", **asdict(settings)}
    del asked["delta"]
    look = plan_look(view, table, asked, delta=settings.delta, looks=request.looks)
    assessment = assess(view, replace(settings, delta=look.test_delta))
    check_questions(assessment.choice, table)
    return Plan(assessment, look)


def _remarks(assessment: FitAssessment, content: Mapping[str, Any], taken: TakenLook) -> list[str]:
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
    found += taken.remarks
    if assessment.source.is_archive:
        found.append(
            "the archive holds no natural answers: the full reference is last-checkpoint, and "
            "the policy is bound to no model"
        )
    return found
