"""What the figures of an assessment do not tell its reader, in sentences.

Every remark is about fit questions and settings; none needs an outcome of a calibration
question.
"""

from __future__ import annotations

from stopadvisor.assessment.fit_assessment import (
    SIMULATED_PROBES,
    Assessment,
    FitAssessment,
    split_hint,
)
from stopadvisor.assessment.settings import alpha_remark
from stopadvisor.ground.constants import TRUNCATED_WARN
from stopadvisor.rules.losses import DIFFERS

__all__ = ["meaning_of_cut", "remarks_on_promise", "remarks_on_sample"]


def remarks_on_sample(assessment: Assessment) -> list[str]:
    """What the reader should know of the questions and traces."""
    found = [SIMULATED_PROBES] if assessment.source.simulated else []
    if assessment.source.torn is not None:
        found.append(assessment.source.torn)
    of = "all questions" if assessment.basis == "all" else "fit questions"
    if assessment.truncated_share > TRUNCATED_WARN:
        differs = isinstance(assessment, FitAssessment) and assessment.choice.fit.loss is DIFFERS
        found.append(
            f"{assessment.truncated_share:.1%} of the traces ({of}) were cut off by max-think; "
            f"{meaning_of_cut(differs)}, and calibrate refuses more than 10%"
        )
    hint = split_hint(assessment.source) if assessment.protocol == "deploy" else None
    return [*found, hint] if hint else found


def meaning_of_cut(differs: bool) -> str:
    """What a trace that was cut off means for a promise on replies that differ, or on lost ones."""
    if differs:
        return "a stop there counts as one that differs"
    return "a question cut off cannot be lost"


def remarks_on_promise(assessment: Assessment) -> list[str]:
    """What the reader should know of what is promised, and of what it rests on."""
    found = []
    source, alpha, accuracy = assessment.source, assessment.alpha, assessment.full_accuracy
    without_gold = isinstance(assessment, FitAssessment) and assessment.graded_by == "agreement"
    if without_gold:
        found.append(
            "no gold for every fit question: a reply counts as right where it is what full "
            "thinking answers, in the profile, in every risk and in what rules learn"
        )
    elif remark := alpha_remark(alpha, accuracy):
        found.append(remark)
    if source.is_archive:
        found.append(
            "the archive holds no natural answers: the full reference is last-checkpoint, and a "
            "policy from it is bound to no model"
        )
    if isinstance(assessment, FitAssessment):
        n_fit = assessment.choice.n_fit
        if n_fit < source.counts()["fit"]:
            found.append(f"the choice was made on {n_fit} of the fit questions")
    return found
