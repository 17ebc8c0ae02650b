"""The two protocols that most studies show: the paper's, and the one that `assess` deploys by.

The paper's reads all questions that may be shown; the deploy protocol reads fit questions alone,
out of fold, at the cost of serving.  Computes no figure of a study, and knows none by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.assess import calibration_size
from stopadvisor.assessment.candidates import candidates
from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.limits import FitLimits
from stopadvisor.assessment.probabilities import fit_limit
from stopadvisor.assessment.sequences import FitData, ThresholdSequence, score, sequence_of
from stopadvisor.errors import CalibrationError, StudyError
from stopadvisor.paper.protocol import MatchedRisk, PaperSetting, match_risk, paper_split
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.rules import outcomes
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.rules.schedules import GridSchedule, Schedule, grid_positions
from stopadvisor.rules.scorer import Scorer
from stopadvisor.runs.access import View, basis_remarks, labels, paper_view, view
from stopadvisor.runs.sources import Source
from stopadvisor.studies.rows import Outline, Row, column
from stopadvisor.studies.study import StudyOptions, StudyResult

__all__ = [
    "DeployProtocol",
    "Expected",
    "Limit",
    "archive_remarks",
    "compare_at_risk",
    "deploy_protocol",
    "deploy_protocols",
    "fit_data",
    "fit_scores",
    "measure_on_test",
    "paper_setting",
    "paper_views",
    "study_both",
    "study_settings",
    "with_gold",
]

_FAMILIES = ("learned", *SCALAR_FAMILIES)
_MOST_BLOCKS = 1000
_NEEDS_GOLD = "{}: the paper's analysis takes gold for every question, and not all of these have it"


class Expected(Row):
    """What the deploy protocol expects on fit questions."""

    family: str = column("Rule")
    checkpoints: int = column("Checkpoints")
    fit_risk: float = column("Risk (fit)", "share")
    fit_saving_pct: float = column("Saves (fit)", "%")


def paper_views(sources: Sequence[Source]) -> list[View]:
    """What may be shown of each source, as the paper reads it."""
    for source, name in zip(sources, labels(sources), strict=True):
        if not _has_gold(source):
            raise StudyError(_NEEDS_GOLD.format(name))
    return [paper_view(s, name) for s, name in zip(sources, labels(sources), strict=True)]


def with_gold(sources: Sequence[Source]) -> list[Source]:
    """The sources of which everything that may be shown has gold."""
    return [source for source in sources if _has_gold(source)]


def _has_gold(source: Source) -> bool:
    return view(source).table.graded_by == "gold"


def paper_setting(view: View) -> PaperSetting:
    """Scores and costs of a view under the paper's protocol."""
    try:
        return PaperSetting.build(view.table)
    except CalibrationError as error:
        raise StudyError(f"{view.label}: {error}") from error


def compare_at_risk(
    setting: PaperSetting, options: StudyOptions, *, rivals: Sequence[str] = SCALAR_FAMILIES
) -> MatchedRisk:
    """The learned rule against others at the risk asked for, on the paper's 40/60 split."""
    (found,) = match_risk(
        setting,
        *paper_split(len(setting.correct)),
        alphas=[options.alpha],
        delta=options.delta,
        rivals=rivals,
        n_resamples=options.resamples,
    )
    return found


def study_settings(options: StudyOptions, *, boosted: bool = False) -> Settings:
    """What the deploy protocol is asked for in studies."""
    settings = Settings(
        alpha=options.alpha,
        delta=options.delta,
        serving=options.serving,  # type: ignore[arg-type]  # Settings itself checks it
    )
    return settings if boosted else replace(settings, families=_FAMILIES)


@dataclass(frozen=True)
class Limit:
    """The last threshold of a sequence that calibration is expected to certify."""

    index: int
    threshold: float
    """Linear scale."""
    risk: float
    """Share of fit questions lost there, out of fold."""
    saving_pct: float
    """Net saving on fit questions, out of fold."""


@dataclass(frozen=True)
class DeployProtocol:
    """The deploy protocol on one source: its fit questions, and the risk they must keep to."""

    label: str
    settings: Settings
    fit: FitData
    most_losses: float | FitLimits
    """Most fit losses that calibration could still certify; negative if nothing."""

    @property
    def every_checkpoint(self) -> GridSchedule:
        """The schedule that probes wherever all questions were probed."""
        return GridSchedule(grid_positions(self.fit.table))

    def sequences(self, schedule: Schedule) -> list[ThresholdSequence]:
        """One threshold sequence a family over a schedule, the learned one first."""
        rules = (score(self.fit, family, schedule) for family in self.settings.families)
        return [sequence_of(self.fit, rule) for rule in rules if rule is not None]

    def all_sequences(self) -> list[ThresholdSequence]:
        """Every family over every schedule that `assess` tries."""
        return list(candidates(self.fit, self.settings.families))

    def limit(self, sequence: ThresholdSequence) -> Limit | None:
        """Where a sequence reaches `most_losses`; None if no threshold keeps to them."""
        index = sequence.index(self.most_losses)
        if index < 0:
            return None
        return Limit(
            index,
            float(sequence.thresholds[index]),
            float(sequence.losses[index]) / self.fit.table.n_questions,
            100 * (1 - float(sequence.costs[index]) / float(self.fit.full_cost.sum())),
        )

    def cheapest(
        self, sequences: Sequence[ThresholdSequence]
    ) -> tuple[ThresholdSequence, Limit] | None:
        """The sequence that costs least at its limit; None if none may stop."""
        limits = [(each, self.limit(each)) for each in sequences]
        allowed = [(each, limit) for each, limit in limits if limit is not None]
        return min(allowed, key=lambda pair: float(pair[0].costs[pair[1].index]), default=None)

    def expected(self, sequences: Sequence[ThresholdSequence]) -> Expected | None:
        """What the cheapest sequence is expected to do; None if none may stop."""
        found = self.cheapest(sequences)
        if found is None:
            return None
        sequence, limit = found
        schedule = sequence.scorer.schedule
        return Expected(sequence.scorer.family, len(schedule), limit.risk, limit.saving_pct)


def fit_data(source: Source, settings: Settings) -> FitData:
    """Fit questions of a source, prepared for threshold sequences."""
    table = source.part("fit")
    if not table.n_questions:
        raise CalibrationError("no fit questions: nothing can be chosen")
    limits = settings.guarantees_on(table.graded_by)
    return FitData.build(table, settings.costing, guarantees=limits)


def fit_scores(fit: FitData, family: str, schedule: Schedule) -> FloatArray | None:
    """Out-of-fold scores as people know them: probabilities and confidences, not their logarithms.

    Shape (n_questions, n_scheduled); None where the family cannot be fitted on these questions.
    """
    rule = score(fit, family, schedule)
    if rule is None:
        return None
    if rule.scorer.is_learned:
        return np.asarray(expit(rule.scores))
    return np.asarray(np.exp(rule.scores) if family == "confidence" else rule.scores)


def measure_on_test(
    scorer: Scorer, threshold: float, test: GradedTable, settings: Settings, *, seed: int
) -> outcomes.Outcome:
    """Measure a finished rule on test questions, which had no part in it."""
    return outcomes.measure_rule(
        scorer,
        threshold,
        test.take(test.samples == 0),
        settings.costing,
        loss=settings.counted_on(test.graded_by),
        rng=np.random.default_rng(seed),
    )


def deploy_protocol(source: Source, label: str, settings: Settings) -> DeployProtocol:
    """Prepare a source's fit questions for the risk that is asked for.

    Raises
    ------
    CalibrationError
        Too few of them, or even full thinking is right less often than alpha allows to lose.
    """
    fit = fit_data(source, settings)
    accuracy = float(fit.table.full_correct.mean())
    if settings.alpha >= accuracy:
        raise CalibrationError(
            f"alpha must be below the full-thinking accuracy ({accuracy:.3f} on fit questions), "
            f"got {settings.alpha!r}"
        )
    n_calibration = calibration_size(source.part("calibration"))
    most_losses = fit_limit(fit.table.n_questions, n_calibration, settings, accuracy)
    return DeployProtocol(label, settings, fit, most_losses)


def deploy_protocols(
    sources: Sequence[Source], settings: Settings
) -> tuple[list[DeployProtocol], tuple[str, ...]]:
    """The deploy protocol on each source that allows it, and why the others do not."""
    found, reasons = [], []
    for source, name in zip(sources, labels(sources), strict=True):
        try:
            found.append(deploy_protocol(source, name, settings))
        except CalibrationError as error:
            reasons.append(f"{name}: no rows of the deploy protocol: {error}")
    return found, tuple(reasons)


def archive_remarks(sources: Sequence[Source], what: str) -> tuple[str, ...]:
    """One remark about what archives lack, naming them; none where there is no archive."""
    names = [name for name, s in zip(labels(sources), sources, strict=True) if s.is_archive]
    return (f"{', '.join(names)}: {what}",) if names else ()


def study_both(
    outline: Outline,
    sources: Sequence[Source],
    options: StudyOptions,
    paper: Callable[[View, StudyOptions], Iterable[Row | str]],
    deploy: Callable[[DeployProtocol, StudyOptions], Iterable[Row | str]],
) -> StudyResult:
    """Run a study that treats each source under the paper's and under the deploy protocol.

    Without gold a source has rows of the deploy protocol alone: differing replies count as lost.
    """
    views = paper_views(with_gold(sources))
    found = [each for one in views for each in paper(one, options)]
    protocols, reasons = deploy_protocols(sources, study_settings(options))
    found += [each for protocol in protocols for each in deploy(protocol, options)]
    bare = [
        f"{_NEEDS_GOLD.format(name)}: rows of the deploy protocol alone, where risk is of replies "
        "that differ"
        for source, name in zip(sources, labels(sources), strict=True)
        if not _has_gold(source)
    ]
    return outline.result(found, options, (*bare, *basis_remarks(views), *reasons))
