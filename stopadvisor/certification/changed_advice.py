"""Why the exported rule is another than the one that `assess` advised, in one sentence.

Two things can cause it: settings that differ from the assessment's, and the result of the test on
calibration questions.  Reads finished results and computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stopadvisor.assessment.assess import FitAssessment
from stopadvisor.certification.calibration import Calibration
from stopadvisor.rules.families import rule_name
from stopadvisor.runs.sources import considered_alpha
from stopadvisor.stats.bounds import Certified

__all__ = ["why_another_rule"]


def why_another_rule(
    assessment: FitAssessment,
    calibration: Calibration,
    content: Mapping[str, Any],
    assessed: Mapping[str, Any] | None,
) -> str | None:
    """Say what changed between the advice and the policy; None where they agree.

    Parameters
    ----------
    assessment : FitAssessment
        Of this calibration: the advice at its own settings.
    content : mapping
        Of the exported policy.
    assessed : mapping, optional
        The run's ``assessment.json``, whose advice the user has read.
    """
    if content["kind"] != "stop":
        return None
    exported, advised = content["family"], assessment.recommendation.family
    read = None if assessed is None else assessed["recommendation"]["family"]
    if assessed is not None and read != advised:
        differs = _differs(assessment, assessed)
        because = f" with {differs}" if differs else ""
        first = (
            f"assess had advised {_name(read)} at alpha = {considered_alpha(assessed):g}; at "
            f"alpha = {assessment.alpha:g}{because} the choice on fit questions is {_name(advised)}"
        )
        if exported == advised:
            return first
        return f"{first}, and {_by_the_test(exported, advised, calibration)}"
    if exported == advised:
        return None
    return (
        f"the exported rule is {_name(exported)} where {_name(advised)} was advised: "
        f"{_by_the_test(exported, advised, calibration)}"
    )


def _name(family: str | None) -> str:
    return "full thinking" if family is None else rule_name(family)


def _differs(assessment: FitAssessment, assessed: Mapping[str, Any]) -> str:
    """Settings that are not those of the assessment."""
    settings, read = assessment.choice.settings, assessed.get("settings", {})
    found = []
    if read.get("serving", settings.serving) != settings.serving:
        found.append(f"serving {settings.serving}")
    if "families" in read and tuple(read["families"]) != settings.families:
        found.append("other families")
    return " and ".join(found)


def _by_the_test(exported: str, advised: str | None, calibration: Calibration) -> str:
    """What the test on calibration questions made of the advised rule."""
    passed = {family: isinstance(result, Certified) for family, result in calibration.tested}
    if advised is None:
        return "--despite-advice asked for what can be certified all the same"
    if not passed.get(advised, False):
        return (
            f"{_name(advised)} passed no test on the calibration questions, and "
            f"{_name(exported)}, tested next, did"
        )
    return (
        "both passed on the calibration questions, and at the threshold that each was certified "
        f"for, {_name(exported)} saves more (by fit questions), or as much more simply"
    )
