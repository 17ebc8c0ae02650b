"""What the deployer wants of a certificate, complete; whatever chooses, tests or reports reads it.

Where the values come from, the command line or an assessment, is for `assessment.settings`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stopadvisor.ground.constants import DEFAULT_ALPHA, DEFAULT_DELTA
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.table import GradedBy
from stopadvisor.rules.costs import (
    DEFAULT_CACHE_BLOCK,
    LADDER,
    PAPER_WEIGHTS,
    REGIMES,
    Costing,
    Serving,
    Weights,
)
from stopadvisor.rules.families import FIXED_BUDGET, LEARNED_FAMILIES, RUNG_FAMILIES, STOP_SCALARS
from stopadvisor.rules.losses import DIFFERS, LOSSES, LOST, Guarantee, Loss, LossName

__all__ = ["Settings"]

_DEFAULT_FAMILIES = ("learned", "learned-keeps", "learned-boosted", *STOP_SCALARS, FIXED_BUDGET)


@dataclass(frozen=True)
class Settings:
    """What the deployer wants: the risk target, its certainty, and how costs are counted."""

    alpha: float = DEFAULT_ALPHA
    delta: float = DEFAULT_DELTA
    serving: Serving = "kv-fork"
    weights: Weights = PAPER_WEIGHTS
    cache_block: int = DEFAULT_CACHE_BLOCK
    """Tokens in a block of the prefix cache."""
    families: tuple[str, ...] = _DEFAULT_FAMILIES
    allow_truncated: bool = False
    seed: int = 0
    loss: LossName = "lost"
    """What `alpha` limits."""
    also: tuple[Guarantee, ...] = ()
    """Further limits that hold of the same rule, each tested at all of delta."""
    traces: int = 1
    """Of each calibration question, that a loss of 0 or 1 will count: 1 or 2."""

    def __post_init__(self) -> None:
        for name in ("alpha", "delta"):
            if not 0 < getattr(self, name) < 1:
                raise CalibrationError(f"{name} must be in (0, 1), got {getattr(self, name)!r}")
        if self.serving not in (*REGIMES, LADDER):
            raise CalibrationError(f"serving must be one of {REGIMES}, got {self.serving!r}")
        known: tuple[str, ...] = (*LEARNED_FAMILIES, *STOP_SCALARS, FIXED_BUDGET)
        if self.serving == LADDER:
            known = RUNG_FAMILIES
        unknown = [f for f in self.families if f not in known]
        if unknown or not self.families:
            raise CalibrationError(f"families must be among {known}, got {self.families!r}")

        asked = [(g.loss, g.category) for g in self.guarantees]
        if len({*asked}) < len(asked):
            said = ", ".join(map(str, self.guarantees))
            raise CalibrationError(f"each loss takes one limit, got {said}")

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """All that is to hold of the rule, what `alpha` limits first."""
        return (Guarantee(self.loss, self.alpha), *self.also)

    @property
    def counted(self) -> Loss:
        """The loss that `alpha` limits."""
        return LOSSES[self.loss]

    def counted_on(self, graded_by: GradedBy) -> Loss:
        """The loss that can be counted on questions: differing replies where gold is missing.

        Nothing is lost that does not differ, so that a choice made so errs to the careful side.
        """
        needs_more = self.counted.needs_gold and graded_by != "gold"
        return DIFFERS if needs_more else self.counted

    def guarantees_on(self, graded_by: GradedBy) -> tuple[Guarantee, ...]:
        """All that is to hold, as far as it can be counted on questions; see `counted_on`."""
        if graded_by == "gold":
            return self.guarantees
        return tuple(
            replace(each, loss=DIFFERS.name) if each.counted.needs_gold else each
            for each in self.guarantees
        )

    @property
    def costing(self) -> Costing:
        """How costs are counted."""
        return Costing(self.serving, self.weights, self.cache_block)

    @property
    def is_plain(self) -> bool:
        """Whether one loss of 0 or 1 is limited, of all questions and nothing else."""
        return not self.also and self.counted.is_binary

    @property
    def is_lost(self) -> bool:
        """Whether it is about lost answers and nothing else."""
        return self.is_plain and self.loss == LOST.name

    @property
    def is_ordinary(self) -> bool:
        """Whether `alpha` limits lost answers, as it does wherever nothing else is said."""
        return self.loss == LOST.name and self.serving != LADDER

    @property
    def limits_accuracy(self) -> bool:
        """Whether `alpha` means little where it is not far below the full-thinking accuracy."""
        return self.counted.needs_gold

    @property
    def reads_answers(self) -> bool:
        """Whether normal forms of replies decide anything, and not their grades alone."""
        return any(each.counted.reads_answers for each in self.guarantees)
