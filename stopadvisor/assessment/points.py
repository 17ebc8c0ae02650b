"""What fit questions expect of a rule: at its threshold, and by the number of labels.

Values that others show; computes and chooses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from stopadvisor.rules.climb import Climb
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.schedules import GridSchedule, Schedule, at_budget

__all__ = ["FitPoint", "LabelSaving"]


@dataclass(frozen=True)
class FitPoint:
    """A sequence at the threshold that fit data expect calibration to certify; out of fold."""

    feasible: bool
    family: str
    probes: Schedule
    threshold: float | None
    """As people know it (probability, confidence, tokens); None where infeasible."""
    candidates: int
    expected_saving_pct: float
    """What a calibration is expected to certify: mean over imitated ones."""
    fit_risk: float | None
    fit_accuracy: float | None
    fit_think_saving_pct: float | None
    fit_total_saving_pct: float | None
    fit_uncut_saving_pct: float | None = None
    """Net saving on traces that were not cut off; None also where all were, or none."""
    fit_answer_saving_pct: float | None = None
    """None also where a stop gives the forced answer."""

    @property
    def schedule(self) -> tuple[int, ...] | None:
        """Where it asks, in thinking tokens; None where each trace has positions of its own."""
        if self.family == FIXED_BUDGET:
            return () if self.threshold is None else (int(self.threshold),)
        return self.probes.positions if isinstance(self.probes, GridSchedule) else None

    @property
    def where(self) -> str:
        """Where it asks, in words."""
        if self.family == FIXED_BUDGET and self.threshold is not None:
            return at_budget(int(self.threshold))
        if isinstance(self.probes, Climb):
            return self.probes.describe(self.threshold)
        return self.probes.describe()


@dataclass(frozen=True)
class LabelSaving:
    """What a calibration on so many questions is expected to save."""

    calibration: int
    saving_pct: float
