"""What the answers of a run add up to: stops, mean tokens, accuracy.

Counts lines that are there; knows no policy and no document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stopadvisor.serving.answers import AnswerRecord

__all__ = ["AnswerTotals", "total"]


@dataclass(frozen=True)
class AnswerTotals:
    """Sums and means over answers; a mean is None where there is nothing to take it of."""

    questions: int
    stopped: int
    """Stopped early."""
    mean_think_tokens: float | None
    mean_probe_tokens: float | None
    mean_visible_tokens: float | None
    labelled: int
    """With gold."""
    accuracy: float | None
    """Share of these that are right."""

    @property
    def stopped_share(self) -> float | None:
        """Share stopped early."""
        return self.stopped / self.questions if self.questions else None


def total(lines: Sequence[AnswerRecord]) -> AnswerTotals:
    """Add up lines."""
    graded = [line.correct for line in lines if line.correct is not None]
    return AnswerTotals(
        questions=len(lines),
        stopped=sum(line.stopped for line in lines),
        mean_think_tokens=_mean([line.think_tokens for line in lines]),
        mean_probe_tokens=_mean([line.probe_tokens for line in lines]),
        mean_visible_tokens=_mean([line.visible_tokens for line in lines]),
        labelled=len(graded),
        accuracy=_mean(graded),
    )


def _mean(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) if values else None
