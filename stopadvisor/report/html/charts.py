"""The report's pictures, drawn from the data of figures with matplotlib.

One function a picture; each returns a figure and knows neither the page nor its
caption.  Drawn without pyplot: no state is shared, and no screen is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from stopadvisor.ground.arrays import FloatArray, Numbers
from stopadvisor.report.figures.data import (
    AlphaFigure,
    CheckpointFigure,
    FrontierFigure,
    RiskFigure,
)
from stopadvisor.report.html.captions import CACHED_PRICES
from stopadvisor.report.html.theme import COLOURS, DASHES, SERIES, blank, framed

__all__ = [
    "draw_alphas",
    "draw_checkpoints",
    "draw_frontier",
    "draw_kinds",
    "draw_prices",
    "draw_profile",
    "draw_risk",
]

INK, MUTED, SURFACE = COLOURS["ink"], COLOURS["muted"], COLOURS["surface"]
GOOD, BAD = COLOURS["good"], COLOURS["bad"]
_WIDEST_COST = 160.0
"""Percent of full thinking up to which costs are drawn; dearer ones stand in the table."""


def _array(values: Numbers | None) -> FloatArray:
    """Numbers to draw, NaN where there is none; empty without any."""
    return np.array(values or (), float)


def _percent_axis(axes: Axes, which: str, *, whole: float = 1.0) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value / whole:.4g}%"))
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))


def _legend_below(axes: Axes, columns: int = 3) -> None:
    axes.figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=columns,
        columnspacing=1.1,
        handletextpad=0.6,
    )


def _name_rows(axes: Axes, rows: NDArray[np.int64], names: Sequence[str]) -> None:
    """Names of horizontal bars, without lines between them."""
    axes.set_yticks(rows, names, color=INK)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _beside(axes: Axes, text: str, x: float, y: float) -> None:
    """A figure right of the end of its bar."""
    axes.annotate(text, (x, y), xytext=(5, 0), textcoords="offset points", va="center")


def _ring(axes: Axes, x: float, y: float, **how: Any) -> None:
    """A point that is marked by a ring."""
    ring = {"markersize": 12, "markerfacecolor": "none", "markeredgecolor": BAD, **how}
    axes.plot([x], [y], marker="o", linestyle="none", **ring)


def draw_profile(profile: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Shares of the five kinds of trajectory with their exact intervals."""
    figure, axes = framed(2.7)
    names = list(profile)
    shares = np.array([profile[name]["share"] for name in names])
    low, high = np.array([profile[name]["ci95"] for name in names]).T
    rows = np.arange(len(names))[::-1]
    axes.barh(rows, shares, color=COLOURS["series-1"], height=0.62)
    axes.errorbar(
        shares,
        rows,
        xerr=[shares - low, high - shares],
        fmt="none",
        color=INK,
        elinewidth=1.2,
        capsize=3,
    )
    for row, share, edge in zip(rows, shares, high, strict=True):
        _beside(axes, f"{100 * share:.1f}%", edge, row)
    _name_rows(axes, rows, [name.replace("_", " ") for name in names])
    axes.set_xlim(0, max(0.2, float(high.max()) * 1.18))
    _percent_axis(axes, "x")
    axes.set_xlabel("share of questions, with 95% interval")
    return figure


def draw_kinds(points: Sequence[Mapping[str, Any]], advised: str | None) -> Figure:
    """Saving of the best rule of each kind, the advised one in colour; long losses are cut."""
    figure, axes = framed(0.8 + 0.6 * len(points))
    rows = np.arange(len(points))[::-1]
    saving = [point["fit_total_saving_pct"] or 0.0 for point in points]
    uncut = [point["fit_uncut_saving_pct"] or 0.0 for point in points]
    names = [f"{point['kind']}\n{point['family']}" for point in points]
    colours = [
        COLOURS["series-1" if point["family"] == advised else "series-6"] for point in points
    ]
    axes.barh(rows + 0.18, saving, height=0.36, color=colours, label="all traces")
    axes.barh(rows - 0.18, uncut, height=0.36, color=colours, alpha=0.4, label="traces not cut off")
    for row, value in zip(rows, saving, strict=True):
        _beside(axes, f"{value:.1f} %", max(value, 0.0), row + 0.18)
    _name_rows(axes, rows, names)
    axes.axvline(0, color=INK, linewidth=0.8)
    most = max(5.0, *saving, *uncut)
    axes.set_xlim(max(min(0.0, *saving, *uncut) * 1.15, -most), most * 1.2)
    axes.set_xlabel("saving in percent; lighter: without traces that were cut off")
    return figure


def draw_prices(serving: Mapping[str, Any], cached: Mapping[float, float]) -> Figure:
    """Net saving by requests in flight, and by the price of a cached token in decoded ones."""
    loads = {row["in_flight"]: row["saving_pct"] for row in serving.get("by_load") or ()}
    figure = blank(2.9)
    panels = figure.subplots(1, bool(loads) + bool(cached), sharey=True, squeeze=False)[0]
    for axes in panels:
        axes.patch.set_visible(False)
        axes.axhline(0, color=INK, linewidth=1)
    if loads:
        axes = panels[0]
        axes.plot(list(loads), list(loads.values()), color=COLOURS[SERIES[0]], marker="o")
        axes.set_xscale("log")
        axes.set_xticks(list(loads), [str(load) for load in loads])
        axes.minorticks_off()
        axes.set_xlabel("requests in flight")
    if cached:
        axes = panels[-1]
        axes.plot(list(cached), list(cached.values()), color=COLOURS[SERIES[0]])
        here = serving["prices"]["cached"] / serving["prices"]["decoded"]
        _ring(axes, here, cached[here], label="at the prices taken")
        axes.set_xscale("symlog", linthresh=0.001)
        axes.set_xticks(CACHED_PRICES, [f"{price:g}" for price in CACHED_PRICES])
        axes.minorticks_off()
        axes.set_xlabel("price of a cached token")
        _legend_below(axes)
    panels[0].set_ylabel("net saving in percent")
    return figure


def draw_frontier(data: FrontierFigure) -> Figure:
    """Accuracy against cost of every rule, of fixed budgets, and the chosen point."""
    figure, axes = framed(4.2)
    for k, rule in enumerate(data.rules):
        order = np.argsort(rule.cost, kind="stable")
        axes.plot(
            np.take(rule.cost, order),
            np.take(rule.accuracy, order),
            color=COLOURS[SERIES[k % len(SERIES)]],
            linestyle=DASHES[k % len(DASHES)],
            linewidth=2.4 if k == 0 else 1.4,
            marker="o" if len(rule.cost) < 8 else None,
            markersize=3.5,
            label=rule.name,
            zorder=4 if k == 0 else 3,
        )
    axes.plot(
        data.fixed.cost,
        data.fixed.accuracy,
        color=MUTED,
        marker="s",
        markersize=3.5,
        linewidth=0 if data.climbs else 1.2,
        label=data.fixed.name,
    )
    full = "reference" if data.climbs else "full thinking"
    axes.plot([100], [data.full_accuracy], marker="D", color=INK, linestyle="none", label=full)
    costs = [cost for curve in (*data.rules, data.fixed) for cost in curve.cost]
    if data.chosen is not None:
        _, cost, accuracy = data.chosen
        _ring(axes, cost, accuracy, label=data.chosen_name, markeredgewidth=2.2, zorder=5)
        costs.append(cost)
    right = min(max(costs), _WIDEST_COST)
    axes.set_xlim(min(costs) - 4, max(right, 100) + 4)
    _percent_axis(axes, "x", whole=100)
    _percent_axis(axes, "y")
    axes.set_xlabel(f"{data.cost_of}, % of {'the ' if data.climbs else ''}{full}")
    axes.set_ylabel("accuracy")
    _legend_below(axes)
    return figure


def draw_risk(data: RiskFigure) -> Figure:
    """Share lost along the thresholds, careful ones to the left."""
    figure, axes = framed(4.0)
    x = _array(data.thresholds)
    expected, observed, upper = map(_array, (data.expected, data.observed, data.upper))
    if data.expected is not None:
        axes.step(
            x,
            expected,
            where="post",
            color=COLOURS["series-1"],
            linestyle="solid" if data.observed is None else DASHES[2],
            label="fit questions",
        )
    if data.observed is not None:
        axes.step(x, observed, where="post", color=COLOURS["series-1"], label="calibration")
    if data.upper is not None and data.observed is not None:
        axes.fill_between(
            x,
            observed,
            upper,
            step="post",
            color=COLOURS["series-1"],
            alpha=0.16,
            linewidth=0,
            label="up to its upper limit",
        )
    axes.axhline(data.alpha, color=BAD, linewidth=1.6, label=f"alpha = {data.alpha:g}")
    if data.limit is not None:
        axes.axhline(
            data.limit, color=BAD, linewidth=1.4, linestyle=DASHES[1], label="passes the test"
        )
    shown = expected if data.observed is None else observed
    if data.marked is not None and shown.size:
        _ring(
            axes, float(x[data.marked]), float(shown[data.marked]), markersize=10,
            markerfacecolor=SURFACE, markeredgecolor=INK, markeredgewidth=2,
            label=f"{data.marked_name} threshold", zorder=5,
        )  # fmt: skip
    top = max(float(v.max()) for v in (expected, observed, upper) if v.size)
    axes.set_ylim(0, min(max(2.2 * data.alpha, 0.02), max(top, data.alpha) * 1.1))
    axes.margins(x=0.03)
    axes.invert_xaxis()
    axes.set_xlabel(f"{data.family} threshold: careful to aggressive")
    axes.set_ylabel("share of questions lost")
    _percent_axis(axes, "y")
    _legend_below(axes, 2)
    return figure


def draw_alphas(data: AlphaFigure) -> Figure:
    """Net saving by risk target, for each kind of rule."""
    figure, axes = framed(3.7)
    for k, (name, savings) in enumerate(data.savings.items()):
        values = np.array([np.nan if s is None else s for s in savings])
        axes.plot(
            data.alphas,
            values,
            color=COLOURS[SERIES[k % len(SERIES)]],
            linestyle=DASHES[k % len(DASHES)],
            marker="o",
            markersize=4,
            label=name,
        )
    axes.axvline(data.alpha, color=BAD, linewidth=1.4, linestyle=DASHES[2], label="asked for")
    axes.axhline(0, color=MUTED, linewidth=1)
    axes.set_xlim(0, max(data.alphas) * 1.04)
    _percent_axis(axes, "x")
    _percent_axis(axes, "y", whole=100)
    axes.set_xlabel("alpha: most questions that may be lost")
    axes.set_ylabel("net saving")
    _legend_below(axes)
    return figure


def draw_checkpoints(shown: CheckpointFigure) -> Figure:
    """Accuracy of stopping everything at each checkpoint, and the share still thinking."""
    figure, axes = framed(3.5)
    data = shown.data
    x = np.arange(len(data.budgets))
    axes.bar(x, data.thinking, color=COLOURS["grid"], width=0.72, label="still thinking", zorder=1)
    axes.plot(x, data.accuracy, color=COLOURS["series-1"], marker="o", label="right if stopped")
    axes.axhline(
        data.full_accuracy, color=INK, linewidth=1.4, linestyle=DASHES[1], label="full thinking"
    )
    axes.set_xticks(x, [str(b) for b in data.budgets])
    axes.set_ylim(0, 1.02)
    _percent_axis(axes, "y")
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("thinking tokens at the checkpoint")
    axes.set_ylabel("share of questions")
    _legend_below(axes)
    return figure
