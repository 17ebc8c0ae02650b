"""Study `rivals`: savings of simple rules and of the advised one at the same certified risk.

A run's questions are split many times: some choose a rule, some certify it, the rest measure it.
Every rival is chosen by the same code, passes the same exact test and pays the same costs; simple
ones just have fewer families to choose from.  The best of many splits is no certificate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.assessment.rated import RulesOnFit
from stopadvisor.certification.calibration import calibrate
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError, NothingToChoose, StudyError
from stopadvisor.ground.progress import tracked
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.runs.sources import Source
from stopadvisor.studies.tables import Outline, Row, StudyOptions, View, layout, views_of

__all__ = [
    "OURS", "OUTLINES", "AppliedRule", "Saving", "Split", "Trial", "certified", "draw_split",
]  # fmt: skip

OURS = "StopAdvisor"
_AT_MARKERS = "sure at markers"
_SIMPLE: Mapping[str, tuple[str, ...]] = {
    "fixed budget": (FIXED_BUDGET,),
    "equal answers": ("run-stability", "agreement"),
    _AT_MARKERS: ("deer",),
}
"""Simple rivals, and the families each chooses from."""
_FIT, _CALIBRATION = 0.32, 0.48
"""Shares of the questions, in the ratio of the default 40/60 split; the rest measure."""
_RESAMPLES = 2000

# fmt: off
_SAVINGS = layout("savings", "Net saving at equal certified risk, α = {alpha:g}, {serving}, "
    "{splits} splits", "on held-out questions; intervals resample questions; uncut: without traces "
    "cut off at the cap; stops: share of the splits in which a certified rule stops anything; "
    "ahead: StopAdvisor's saving minus this rule's, on the same questions", run="Run", rule="Rule",
    saving_pct=("Saves", "%"), saving_ci=("95 % CI", "%"), uncut_saving_pct=("Uncut", "%"),
    lost=("Lost", "share"), stops=("Stops", "share"), ahead_pp=("Ahead", "pp"),
    ahead_ci=("95 % CI", "pp"))
# fmt: on


def _rows(_: Sequence[Source], views: Sequence[View], options: StudyOptions) -> Iterator[Row | str]:
    n_splits = _OUTLINE.whole(options, "splits")
    settings = Settings(
        alpha=options.alpha,
        delta=options.delta,
        serving=options.serving,  # type: ignore[arg-type]  # Settings itself checks it
        allow_truncated=True,
    )
    for shown in views:
        bare = shown.table.graded_by == "agreement"
        if bare:
            yield f"{shown.label}: some questions have no gold: an answer that differs is lost"
        yield from _of_run(shown, replace(settings, loss="differs") if bare else settings, n_splits)


def _of_run(shown: View, settings: Settings, n_splits: int) -> Iterator[Row | str]:
    first = {group: row for row, group in reversed(list(enumerate(shown.table.groups)))}
    table = shown.table.take(np.array(sorted(first.values())))
    n = table.n_questions
    if n < shown.table.n_questions:
        yield f"{shown.label}: one question of each group, {n} of {shown.table.n_questions}"
    wanted = {OURS: settings.families, **_SIMPLE}
    if table.marker_positions is None:
        del wanted[_AT_MARKERS]
        yield f"{shown.label}: {_AT_MARKERS}: needs answers that were forced at markers"
    full = settings.costing.full(table)
    outcomes: dict[str, list[AppliedRule]] = {name: [] for name in wanted}
    reasons: dict[str, str] = {}
    n_fit, n_calibration = round(_FIT * n), round(_CALIBRATION * n)
    held_out = np.zeros((n_splits, n), dtype=bool)
    for number in tracked(f"splits of {shown.label}", range(n_splits)):
        split = draw_split(np.arange(n), n_fit, n_calibration, number)
        held_out[number, split.held_out] = True
        fit = table.take(split.fit).as_fit()
        others = table.take(np.setdiff1d(np.arange(n), split.fit)).observations
        for name, families in wanted.items():
            named = replace(settings, families=families)
            try:
                # As in `assess`, no rule may probe where another part's question was not probed.
                choice = choose(RulesOnFit.measure(fit, named, others), n_calibration, named)
                outcomes[name].append(certified(choice, table, split.calibration))
            except CalibrationError as error:
                if name == OURS and not isinstance(error, NothingToChoose):
                    raise StudyError(f"{shown.label}: {error}") from error
                reasons[name] = str(error)
                outcomes[name].append(AppliedRule(np.zeros(n, dtype=bool), full))
    trial = Trial(
        held_out,
        np.broadcast_to(table.truncated, held_out.shape),
        np.broadcast_to(full, held_out.shape),
        {name: np.stack([o.cost for o in applied]) for name, applied in outcomes.items()},
        {name: np.stack([o.lost for o in applied]) for name, applied in outcomes.items()},
    )
    for name in (*list(wanted)[1:], OURS):
        stops = trial.stopping_share(name)
        if name in reasons and not stops:
            yield f"{shown.label}: {name}: {reasons[name]}"
            continue
        saving = trial.saving(name)
        ahead = None if name == OURS else trial.saving(OURS, name)
        yield _SAVINGS.row(run=shown.label, rule=name, saving_pct=saving.mean,
            saving_ci=(saving.low, saving.high), lost=trial.lost_share(name), stops=stops,
            uncut_saving_pct=trial.saving(name, uncut=True).mean, ahead_pp=ahead and ahead.mean,
            ahead_ci=ahead and (ahead.low, ahead.high))  # fmt: skip


# --- One rule in one split ------------------------------------------------------------------------


@dataclass(frozen=True)
class AppliedRule:
    """Loss and cost of each question under a certified rule, else under full thinking."""

    lost: BoolArray  # (n_questions,)
    cost: FloatArray  # (n_questions,)


def certified(choice: Choice, table: OpenQuestions, rows: IntArray) -> AppliedRule:
    """Certify a choice on `rows` of a table, and apply the rule to all its questions.

    Rows may repeat, as when questions are drawn with replacement.
    """
    settings = choice.settings
    names = tuple(f"calibration {number}" for number in range(rows.size))
    drawn = replace(table.take(rows), ids=names, keys=names, groups=names)
    rule = calibrate(choice, drawn.as_calibration()).rule
    if rule is None:
        nothing = np.zeros(table.n_questions, dtype=bool)
        return AppliedRule(nothing, settings.costing.full(table))
    scorer = rule.scorer
    seen = scorer.view(table)
    stops, every = scorer.stops(seen, rule.threshold), np.arange(table.n_questions)
    return AppliedRule(
        settings.counted.of(seen)[every, stops] > 0,
        scorer.costs(seen, settings.costing)[every, stops],
    )


# --- Savings over many splits ---------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Rows of the questions that choose, certify and measure a rule."""

    number: int
    fit: IntArray
    calibration: IntArray
    held_out: IntArray


def draw_split(rows: IntArray, n_fit: int, n_calibration: int, number: int) -> Split:
    """Return split `number`, the same for every rule, risk and price."""
    mixed = np.random.default_rng([n_fit, n_calibration, number]).permutation(rows)
    fit, rest = np.sort(mixed[:n_fit]), mixed[n_fit:]
    return Split(number, fit, rest[:n_calibration], np.sort(rest[n_calibration:]))


@dataclass(frozen=True)
class Saving:
    """Mean saving over splits, in percent of the cost of full thinking."""

    mean: float
    low: float
    """Lower end of the 95 % interval over resampled questions."""
    high: float


@dataclass(frozen=True)
class Trial:
    """Outcomes of each certified rule in each split."""

    held_out: BoolArray  # (n_splits, n_questions)
    truncated: BoolArray  # (n_splits, n_questions)
    full_cost: FloatArray  # (n_splits, n_questions)
    cost: Mapping[str, FloatArray]  # (n_splits, n_questions) each
    lost: Mapping[str, BoolArray]  # (n_splits, n_questions) each

    def saving(self, name: str, minus: str | None = None, *, uncut: bool = False) -> Saving:
        """Return a rule's mean net saving on held-out questions, or its lead over rule `minus`.

        `uncut` leaves out traces cut off at the cap on thinking.  The interval resamples questions,
        the same for every split and both rules; each split keeps its rules and thresholds.
        """
        here = self.held_out & ~self.truncated if uncut else self.held_out
        measured = np.flatnonzero(here.any(axis=0))
        n = measured.size
        drawn = np.random.default_rng(n).multinomial(n, np.full(n, 1 / n), _RESAMPLES)
        counts = np.vstack([np.ones(n), drawn])  # (1 + n_resamples, n_measured)

        def spent(cost: FloatArray) -> FloatArray:
            return counts @ np.where(here, cost, 0.0)[:, measured].T  # (1 + n_resamples, n_splits)

        full = spent(self.full_cost)
        other = full if minus is None else spent(self.cost[minus])
        saved = (100 * (other - spent(self.cost[name])) / full).mean(axis=1)
        low, high = np.quantile(saved[1:], [0.025, 0.975]).tolist()
        return Saving(float(saved[0]), low, high)

    def lost_share(self, name: str) -> float:
        """Return the mean share of held-out questions lost, over splits."""
        lost = (self.lost[name] & self.held_out).sum(axis=1)
        return float((lost / self.held_out.sum(axis=1)).mean())

    def stopping_share(self, name: str) -> float:
        """Return the share of splits in which the certified rule stops any held-out question."""
        stopped = (self.cost[name] != self.full_cost) & self.held_out
        return float(stopped.any(axis=1).mean())


_OUTLINE = Outline("rivals", "", (_SAVINGS,), _rows, views_of, ("deploy",), {"splits": "30"})
OUTLINES = (_OUTLINE,)
