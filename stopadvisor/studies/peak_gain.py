"""Studies of the gain over fixed budgets.

`frontier`, `validation-selected`, `schedules`, `proxies`, `serving` and `map`.  A peak is searched
over the thresholds of the published scripts, on the same questions that measure it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from stopadvisor.assessment.frontier import Frontier, Interpolation, gains, grid_frontier
from stopadvisor.ground.arrays import IntArray
from stopadvisor.ground.constants import (
    PAPER_CACHED_WEIGHT,
    PAPER_SCHEDULES,
    PAPER_VALIDATION_POINTS,
    PROBE_CAP,
)
from stopadvisor.ground.errors import CalibrationError, StudyError
from stopadvisor.paper.map import PAPER_ROWS, PaperRow
from stopadvisor.paper.peaks import (
    find_peak,
    fixed_budgets,
    learned_peak,
    peak,
    peak_thresholds,
    savings_at,
)
from stopadvisor.paper.protocol import (
    PaperRule,
    PaperSetting,
    first_stops,
    paper_probability,
    paper_split,
)
from stopadvisor.paper.proxies import AUDIT_FAMILIES, audit_setting
from stopadvisor.probes.trajectories import TYPES, profile, regime, trajectory
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.sources import Source
from stopadvisor.stats.intervals import Interval, interval
from stopadvisor.studies.registry import compare_at_risk, gains_resampled, paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, View, layout, of_each

__all__ = ["OUTLINES", "nearest_columns"]


# --- frontier, validation-selected ----------------------------------------------------------------

# fmt: off
_RUNS = layout("runs", "Learned against the strongest scalar", run="Run", questions="Questions",
    full_accuracy=("Full accuracy", "share"), full_tokens=("Full tokens", "tokens"),
    learned_peak="Learned peak", best_scalar="Best scalar", scalar_peak="Scalar peak",
    difference="Difference", difference_ci="95 % CI")
_PEAKS = layout("peaks", "Peak gain over fixed budgets",
    "the best point after the fact; intervals keep its threshold", run="Run", family="Rule",
    threshold="Threshold", peak_gain="Peak gain", gain_ci="95 % CI", accuracy=("Accuracy", "share"),
    think_tokens=("Thinking", "tokens"))
_READ = layout("interpolation", "Peak gain by how fixed budgets are read", run="Run", family="Rule",
    linear="Linear", nearest="Nearest", floor="Floor", ceiling="Ceiling")
_CURVES = layout("curves", "The curves", run="Run", family="Rule", at="Threshold or budget",
    think_tokens=("Thinking", "tokens"), accuracy=("Accuracy", "share"), gain="Gain")
_SELECTED = layout("selected", "Thresholds chosen on validation questions",
    "saving in thinking and capped probe tokens", run="Run", family="Rule", threshold="Threshold",
    validation_gain="Validation gain", test_gain="Test gain", test_gain_ci="95 % CI",
    test_accuracy=("Accuracy", "share"), total_saving_pct=("Total saving", "%"),
    questions="Test questions")
# fmt: on


def _frontier(view: View, options: StudyOptions) -> Iterator[Row]:
    """Yield peak gains, their intervals, and the curves they lie on."""
    setting, run, families = paper_setting(view), view.label, ("learned", *SCALAR_FAMILIES)
    fixed = fixed_budgets(setting)
    budgets = Frontier(view.table.budgets.astype(np.float64), fixed.cost, fixed.accuracy)
    peaks = {family: find_peak(family, view.table, setting, fixed) for family in families}
    stops = {family: best.stops for family, best in peaks.items()}
    resampled = gains_resampled(stops, setting.costs.thinking, setting.correct, options)
    curves = {"fixed budget": budgets}
    for family, best in peaks.items():
        yield _PEAKS.row(run=run, family=family, threshold=best.spelled, peak_gain=best.gain,
            gain_ci=interval(resampled[family]), accuracy=best.accuracy, think_tokens=best.cost,
        )  # fmt: skip
        hows: tuple[Interpolation, ...] = get_args(Interpolation)
        read = {how: find_peak(family, view.table, setting, fixed, how).gain for how in hows}
        yield _READ.row(run=run, family=family, **read)
        scores, thinking = setting.scores[family], setting.costs.thinking
        thresholds = peak_thresholds(family, scores)
        curves[family] = grid_frontier(scores, thinking, setting.correct, thresholds)
    strongest = max(SCALAR_FAMILIES, key=lambda family: peaks[family].gain)
    learned, scalar = peaks["learned"].gain, peaks[strongest].gain
    yield _RUNS.row(run=run, questions=view.table.n_questions,
        full_accuracy=float(setting.correct[:, -1].mean()),
        full_tokens=float(view.table.trace_tokens.mean()), learned_peak=learned,
        best_scalar=strongest, scalar_peak=scalar, difference=learned - scalar,
        difference_ci=interval(resampled["learned"] - resampled[strongest]),
    )  # fmt: skip
    for family, curve in curves.items():
        columns = (curve.at, curve.cost, curve.accuracy, gains(curve, fixed))
        for cells in zip(*(column.tolist() for column in columns), strict=True):
            yield Row(_CURVES, (run, family, *cells))


def _validation_selected(view: View, options: StudyOptions) -> Iterator[Row]:
    """Choose thresholds by their gain on some questions, and measure them on the others."""
    setting = paper_setting(view)
    chosen_on, test = paper_split(view.table.n_questions)
    thinking, correct = setting.costs.thinking, setting.correct
    fixed, fixed_test = fixed_budgets(setting, chosen_on), fixed_budgets(setting, test)
    chosen, stops = {}, {}
    for family, scores in setting.scores.items():
        seen = scores[chosen_on]
        grid = np.unique(np.linspace(seen.min(), seen.max(), PAPER_VALIDATION_POINTS).round(4))
        chosen[family] = peak(seen, thinking[chosen_on], correct[chosen_on], grid, fixed)
        stops[family] = first_stops(scores[test], chosen[family].threshold)
    resampled = gains_resampled(stops, thinking[test], correct[test], options)
    every = np.arange(test.size)
    for family, best in chosen.items():
        scores, total = setting.scores[family][test], setting.costs.total[test]
        at = np.array([best.threshold])
        spent = total[every, stops[family]].mean() / setting.costs.full_total[test].mean()
        yield _SELECTED.row(run=view.label, family=family, threshold=best.threshold,
            validation_gain=best.gain,
            test_gain=peak(scores, thinking[test], correct[test], at, fixed_test).gain,
            test_gain_ci=interval(resampled[family]),
            test_accuracy=float(correct[test][every, stops[family]].mean()),
            total_saving_pct=float(100 * (1 - spent)), questions=int(test.size))  # fmt: skip


# --- schedules ------------------------------------------------------------------------------------

# fmt: off
_ASKED = layout("schedules", "Budgets asked and probed",
    run="Run", schedule="Schedule", asked="Asked", probed="Nearest probed")
_KEPT = layout("gain", "Peak gain of the learned rule", "against fixed budgets at all probed "
    "checkpoints; overhead is the paper's cap for each checkpoint",
    run="Run", schedule="Schedule", checkpoints="Checkpoints", peak_gain="Peak gain",
    retention_pct=("Retention", "%"), max_overhead=("Max overhead", "tokens"))
# fmt: on


def nearest_columns(budgets: IntArray, schedule: Sequence[int]) -> tuple[int, ...]:
    """Return the columns nearest to a schedule, scaled to the last probed budget.

    Ties go to the smaller budget, and each column counts once.
    """
    wanted = np.asarray(schedule) * (budgets[-1] / schedule[-1])
    return tuple(np.unique(np.abs(budgets - wanted[:, None]).argmin(axis=1)).tolist())


def _schedules(view: View, options: StudyOptions) -> Iterator[Row | str]:
    """Yield the peak gain of the paper's schedules, on the probed budgets nearest to theirs.

    All gains are over the same fixed budgets, those of every probed checkpoint.
    """
    setting, budgets, run = paper_setting(view), view.table.budgets, view.label
    every = tuple(range(budgets.size))
    asked = {"as probed": tuple(budgets.tolist()), **PAPER_SCHEDULES}
    laid = {name: nearest_columns(budgets, s) for name, s in PAPER_SCHEDULES.items()}
    laid = {"as probed": every, **laid}
    # Different schedules may fall on the same probed budgets.
    kept = {columns: _gain_at(view, setting, columns) for columns in set(laid.values())}
    whole = kept[every]
    for name, columns in laid.items():
        words = [" ".join(map(str, grid)) for grid in (asked[name], budgets[list(columns)])]
        yield _ASKED.row(run=run, schedule=name, asked=words[0], probed=words[1])
        gain, n = kept[columns], len(columns)
        share = None if gain is None or not whole or whole < 0 else 100 * gain / whole
        yield _KEPT.row(run=run, schedule=name, checkpoints=n, peak_gain=gain, retention_pct=share,
            max_overhead=PROBE_CAP * n)  # fmt: skip
    if missed := [n for n, s in PAPER_SCHEDULES.items() if not {*budgets.tolist()} >= {*s}]:
        nearest = "use the nearest probed budgets, scaled to the last one"
        yield f"{run}: {', '.join(missed)} {nearest} ({int(budgets[-1])})"


def _gain_at(view: View, setting: PaperSetting, columns: tuple[int, ...]) -> float | None:
    """Return the peak gain of a rule fitted and probed at `columns`; None if all labels agree."""
    index = list(columns)
    correct, thinking = setting.correct[:, index], setting.costs.thinking[:, index]
    try:
        scores = paper_probability(view.table.select(columns), correct)
    except CalibrationError:
        return None
    thresholds = peak_thresholds("learned", scores)
    return peak(scores, thinking, correct, thresholds, fixed_budgets(setting)).gain


# --- proxies --------------------------------------------------------------------------------------

# fmt: off
_PROXIES = layout("peaks", "Peak gain over fixed budgets",
    "rules of two conditions show both their numbers; intervals keep thresholds", run="Run",
    family="Rule", threshold="Threshold", peak_gain="Peak gain", gain_ci="95 % CI",
    behind="Learned minus it", behind_ci="95 % CI")
_MATCHED = layout("matched-risk", "At matched risk, α = {alpha:g}",
    "each rule alone is one candidate set of the union bound; a probe is charged the paper's cap",
    run="Run", family="Rule", group="Group", feasible="Feasible", test_risk=("Risk", "share"),
    test_accuracy=("Accuracy", "share"), think_saving_pct=("Thinking saved", "%"),
    total_saving_pct=("Total saved", "%"), difference_pp=("Learned minus it", "pp"),
    difference_ci=("95 % CI", "pp"), verdict="Verdict")
# fmt: on


def _proxies(view: View, options: StudyOptions) -> Iterator[Row | str]:
    """Compare proxies of published methods at their peaks and at equal risk."""
    run, setting = view.label, audit_setting(view.table, paper_setting(view))
    fixed, families = fixed_budgets(setting), ("learned", *AUDIT_FAMILIES)
    peaks = {family: find_peak(family, view.table, setting, fixed) for family in families}
    stops = {family: best.stops for family, best in peaks.items()}
    resampled = gains_resampled(stops, setting.costs.thinking, setting.correct, options)
    for family, best in peaks.items():
        other = family != "learned"
        yield _PROXIES.row(run=run, family=family, threshold=best.spelled,
            peak_gain=best.gain, gain_ci=interval(resampled[family]),
            behind=peaks["learned"].gain - best.gain if other else None,
            behind_ci=interval(resampled["learned"] - resampled[family]) if other else None,
        )  # fmt: skip

    def matched(point: PaperRule, family: str, group: str, spread: Interval | None = None,
            verdict: str | None = None) -> Row:  # fmt: skip
        return _MATCHED.row(run=run, family=family, group=group, feasible=point.feasible,
            test_risk=point.test_risk, test_accuracy=point.test_accuracy,
            think_saving_pct=point.think_saving_pct, total_saving_pct=point.total_saving_pct,
            difference_pp=spread.median if spread else None, difference_ci=spread, verdict=verdict,
        )  # fmt: skip

    together = compare_at_risk(setting, options)
    yield matched(together.learned, "learned", "learned")
    groups = dict.fromkeys(SCALAR_FAMILIES, "scalar") | dict.fromkeys(AUDIT_FAMILIES, "proxy")
    for family, group in (groups | {"learned-10": "audit"}).items():
        alone = compare_at_risk(setting, options, rivals=[family])
        verdict = alone.verdict.replace("scalar better", f"{family} better")
        yield matched(alone.scalar, family, group, alone.difference, verdict)
    verdict = together.verdict.replace("scalar better", "best scalar better")
    family = f"best scalar ({together.scalar.family})"
    yield matched(together.scalar, family, "scalar", together.difference, verdict)
    yield "proxies read forced answers only; they are not the systems they are named after"


# --- serving --------------------------------------------------------------------------------------

# fmt: off
_SERVED = layout("paper", "The learned rule at peak gain, capped tokens",
    "a token read again weighs 0.1 from a cache, 1 in a prompt; kv-fork reads none", run="Run",
    regime="Serving", threshold="Threshold", peak_gain="Peak gain", saving_pct=("Saving", "%"),
    reread_weight="Weight read again", break_even_weight="Ends at weight")
# fmt: on


def _serving(view: View, options: StudyOptions) -> Iterator[Row]:
    """Yield savings by serving regime, and the weight of a reread token that ends each."""
    setting = paper_setting(view)
    best = learned_peak(setting)
    saved, stops = savings_at(best, setting), best.stops
    budgets = view.table.budgets.astype(np.float64)
    stopped = np.take_along_axis(setting.costs.total, stops[:, None], axis=1)
    left = float(setting.costs.full_total.mean() - stopped.mean())
    # Tokens read again by checkpoint j: with a prefix cache the paper counts B_j for each probe so
    # far, for a black box each probe's prefix.
    read = {
        "kv-fork": (None, np.zeros_like(budgets)),
        "prefix-cache": (PAPER_CACHED_WEIGHT, budgets * np.arange(1, budgets.size + 1)),
        "black-box": (1.0, np.cumsum(budgets)),
    }
    for name, (weight, again) in read.items():
        tokens = float(again[stops].mean())
        yield _SERVED.row(run=view.label, regime=name, threshold=best.threshold,
            peak_gain=best.gain, saving_pct=saved[name], reread_weight=weight,
            break_even_weight=left / tokens if tokens > 0 and left > 0 else None)  # fmt: skip


# --- map ------------------------------------------------------------------------------------------

# fmt: off
_SUMMARY = layout("summary", "Peak gain, and savings at equal risk (alpha = {alpha:g})",
    "scalar peak: the best of four families, as in the study frontier; the paper's rows are at "
    "alpha = 0.15",
    setting="Setting", origin="From", questions="Questions", learned_peak="Learned peak",
    scalar_peak="Scalar peak", delta_peak="Difference",
    delta_saving_pp=("Saving, learned - scalar", "pp"), delta_saving_ci=("95% low", "pp"),
    verdict="Verdict")
_PROFILES = layout("profiles", "Trajectories, and the regime they predict",
    setting="Setting", origin="From", full_accuracy=("Full acc.", "share"),
    mean_think_tokens=("Mean think", "tokens"),
    **{kind: (kind.replace("_", "-"), "share") for kind in TYPES}, regime="Regime")
_BY_STACK = layout("serving", "Saving of the learned rule at peak gain", setting="Setting",
    origin="From", kv_fork_pct=("kv-fork", "%"), prefix_cache_pct=("prefix-cache", "%"),
    black_box_pct=("black-box", "%"))
# fmt: on


def _map(sources: Sequence[Source], views: Sequence[View], options: StudyOptions) -> Iterator[Row]:
    """Make the compact summary; ``1`` as ``extra["paper"]`` adds the paper's settings."""
    paper = options.extra.get("paper", "0")
    if paper not in ("0", "1"):
        raise StudyError(f"option paper must be 0 or 1, got {paper!r}")
    for source, view in zip(sources, views, strict=True):
        yield from _here(source, view, options)
    for one in PAPER_ROWS if paper == "1" else ():
        yield from _papers(one)


def _here(source: Source, view: View, options: StudyOptions) -> Iterator[Row]:
    setting, names = paper_setting(view), {"setting": view.label, "origin": "here"}
    table, fixed = view.table, fixed_budgets(setting)
    best = find_peak("learned", table, setting, fixed)
    scalar = max(find_peak(family, table, setting, fixed).gain for family in SCALAR_FAMILIES)
    comparison = compare_at_risk(setting, options)
    spread = comparison.difference
    yield _SUMMARY.row(**names, questions=table.n_questions, learned_peak=best.gain,
        scalar_peak=scalar, delta_peak=best.gain - scalar,
        delta_saving_pp=spread.median if spread else None, delta_saving_ci=spread,
        verdict=comparison.verdict,
    )  # fmt: skip
    shape = profile(trajectory(table), rng=np.random.default_rng(source.seed))
    yield _PROFILES.row(**names, full_accuracy=float(table.full_correct.mean()),
        mean_think_tokens=float(table.trace_tokens.mean()), regime=shape.predicted,
        **{kind: shape.shares[kind].share for kind in TYPES},
    )  # fmt: skip
    yield Row(_BY_STACK, (*names.values(), *savings_at(best, setting).values()))


def _papers(one: PaperRow) -> Iterator[Row]:
    names = {"setting": f"{one.task} {one.model}", "origin": "paper"}
    yield _SUMMARY.row(**names, questions=None, learned_peak=one.learned_peak,
        scalar_peak=one.scalar_peak, delta_peak=one.delta_peak,
        delta_saving_pp=one.delta_saving_pp, delta_saving_ci=one.ci95, verdict=one.verdict,
    )  # fmt: skip
    shares = one.shares or dict.fromkeys(TYPES)
    kinds = ("early_solved", "unsolved", "oscillating")
    yield _PROFILES.row(**names, full_accuracy=one.full_accuracy, mean_think_tokens=one.mean_think,
        regime=regime(*(one.shares[kind] for kind in kinds)) if one.shares else None, **shares,
    )  # fmt: skip
    if one.saving_pct:
        yield Row(_BY_STACK, (*names.values(), *one.saving_pct.values()))


OUTLINES = (
    Outline(
        "frontier",
        'Tables "Primary Qwen3 results" and "Full in-distribution frontier summary"; Appendix '
        '"Interpolation and Failure-Case Checks"',
        (_RUNS, _PEAKS, _READ, _CURVES),
        of_each(_frontier),
    ),
    Outline(
        "validation-selected",
        'Appendix "Validation-Selected Operating Points"',
        (_SELECTED,),
        of_each(_validation_selected),
    ),
    Outline(
        "schedules", 'Appendix "Checkpoint Schedule Sweep"', (_ASKED, _KEPT), of_each(_schedules)
    ),
    Outline(
        "proxies",
        'Appendices "Extended Baselines" and "Matched-Risk Audit of Output-Level Recent-Method '
        'Proxies"',
        (_PROXIES, _MATCHED),
        of_each(_proxies),
    ),
    Outline(
        "serving",
        'Section "Deployment Cost" and Appendix "Cost and Serving Profiles"',
        (_SERVED,),
        of_each(_serving),
    ),
    Outline(
        "map", 'Appendix "Eighteen-setting Compact Summary"', (_SUMMARY, _PROFILES, _BY_STACK), _map
    ),
)
