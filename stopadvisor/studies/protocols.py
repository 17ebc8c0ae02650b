"""The two sides that most studies show: questions as the paper reads them, fit questions as served.

Prepares; computes no figure of a study, and knows none by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stopadvisor.assessment.assess import calibration_size
from stopadvisor.assessment.choice import Settings, fit_limit
from stopadvisor.assessment.sequences import (
    FitData,
    ThresholdSequence,
    build_chain,
    candidate_schedules,
)
from stopadvisor.errors import CalibrationError, StudyError
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.access import View, labels, paper_view
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bootstrap import Interval
from stopadvisor.studies.study import Cell, Column, StudyOptions

__all__ = [
    "EXPECTED",
    "FitSide",
    "fit_data",
    "fit_side",
    "fit_sides",
    "interval_cells",
    "paper_setting",
    "paper_views",
    "study_settings",
]

EXPECTED = (
    Column("family", "Rule"),
    Column("checkpoints", "Checkpoints"),
    Column("fit_risk", "Risk (fit)", "share"),
    Column("fit_saving_pct", "Saves (fit)", "%"),
)
"""What the deploy protocol expects on fit questions."""

_FAMILIES = ("learned", *SCALAR_FAMILIES)
_MOST_BLOCKS = 1000


def interval_cells(spread: Interval | None) -> tuple[Cell, Cell, Cell]:
    """Median and both ends of an interval; empty where there is none."""
    return (None, None, None) if spread is None else (spread.median, spread.low, spread.high)


def paper_views(sources: Sequence[Source]) -> list[View]:
    """What may be shown of each source, as the paper reads it."""
    return [paper_view(s, name) for s, name in zip(sources, labels(sources), strict=True)]


def paper_setting(view: View) -> PaperSetting:
    """Scores and costs of a view under the paper's protocol.

    Raises
    ------
    StudyError
        Too few questions, or labels of one class only; the message names the run.
    """
    try:
        return PaperSetting.build(view.table)
    except CalibrationError as error:
        raise StudyError(f"{view.label}: {error}") from error


def study_settings(options: StudyOptions, *, boosted: bool = False) -> Settings:
    """What the deploy protocol is asked for in studies.

    Parameters
    ----------
    options : StudyOptions
    boosted : bool
        With boosted trees, as `assess` and `calibrate` have them; their fits take most of the
        time.

    Raises
    ------
    CalibrationError
        A level outside 0–1, or a serving regime that does not exist.
    """
    settings = Settings(
        alpha=options.alpha,
        delta=options.delta,
        serving=options.serving,  # type: ignore[arg-type]  # Settings itself checks it
    )
    return settings if boosted else replace(settings, families=_FAMILIES)


@dataclass(frozen=True)
class FitSide:
    """Fit questions of a source, ready for chains, under the deploy protocol."""

    label: str
    settings: Settings
    fit: FitData
    limit: float
    """Most fit losses that calibration could still certify; negative if nothing."""

    def chains(self, schedule: tuple[int, ...]) -> list[ThresholdSequence]:
        """One chain a family over a schedule, the learned one first."""
        built = (build_chain(self.fit, family, schedule) for family in self.settings.families)
        return [chain for chain in built if chain is not None]

    def all_chains(self) -> list[ThresholdSequence]:
        """Every family over every schedule that `assess` tries."""
        return [c for s in candidate_schedules(self.fit.table) for c in self.chains(s)]

    def cheapest(
        self, chains: Sequence[ThresholdSequence], limit: float | None = None
    ) -> ThresholdSequence | None:
        """The chain that saves most within the limit; None if none may stop."""
        most = self.limit if limit is None else limit
        feasible = [c for c in chains if c.position(most) >= 0]
        return min(feasible, key=lambda c: float(c.costs[c.position(most)]), default=None)

    def expected(
        self, chains: Sequence[ThresholdSequence], limit: float | None = None
    ) -> tuple[Cell, ...]:
        """Cells of `EXPECTED` for the cheapest chain; empty where none may stop."""
        most = self.limit if limit is None else limit
        chain = self.cheapest(chains, most)
        if chain is None:
            return (None,) * len(EXPECTED)
        risk = float(chain.losses[chain.position(most)]) / self.fit.table.n_questions
        schedule = chain.scorer.schedule
        return (chain.scorer.family, len(schedule), risk, self.saving(chain, most))

    def saving(self, chain: ThresholdSequence, limit: float | None = None) -> float:
        """Net saving on fit questions at the limit (percent), out of fold."""
        cost = float(chain.costs[chain.position(self.limit if limit is None else limit)])
        return 100 * (1 - cost / float(self.fit.full_cost.sum()))


def fit_data(source: Source, settings: Settings) -> FitData:
    """Fit questions of a source with what chains need of them.

    Raises
    ------
    CalibrationError
        Too few of them.
    """
    table = source.part("fit")
    if not table.n_questions:
        raise CalibrationError("no fit questions: nothing can be chosen")
    return FitData.build(
        table,
        serving=settings.serving,
        weights=settings.weights,
        cache_block=settings.cache_block,
        most_blocks=_MOST_BLOCKS,
    )


def fit_side(source: Source, label: str, settings: Settings) -> FitSide:
    """Prepare a source's fit questions for the risk that is asked for.

    Raises
    ------
    CalibrationError
        Too few of them, or full thinking cannot miss alpha.
    """
    fit = fit_data(source, settings)
    accuracy = float(fit.table.full_correct.mean())
    if settings.alpha >= accuracy:
        raise CalibrationError(
            f"alpha must be below the full-thinking accuracy ({accuracy:.3f} on fit questions), "
            f"got {settings.alpha!r}"
        )
    n_calibration = calibration_size(source.part("calibration"))
    limit = fit_limit(fit.table.n_questions, n_calibration, settings, accuracy)
    return FitSide(label, settings, fit, limit)


def fit_sides(
    sources: Sequence[Source], settings: Settings
) -> tuple[list[FitSide], tuple[str, ...]]:
    """The deploy side of each source that has one, and why the others have none."""
    sides, reasons = [], []
    for source, name in zip(sources, labels(sources), strict=True):
        try:
            sides.append(fit_side(source, name, settings))
        except CalibrationError as error:
            reasons.append(f"{name}: no deploy side: {error}")
    return sides, tuple(reasons)
