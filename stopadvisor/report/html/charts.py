"""The report's pictures, drawn from an assessment and its figures with matplotlib.

One function a picture; each returns a figure and knows neither the page nor its caption.  Drawn
without pyplot: no state is shared, and no screen is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.assessment.diagnostics import AlphaSavings
from stopadvisor.report.figures import FrontierFigure
from stopadvisor.report.html.captions import CACHED_PRICES, saving_by_cached_price
from stopadvisor.report.html.theme import COLOURS, DASHES, SERIES, blank, framed
from stopadvisor.report.words import alpha_of

__all__ = ["draw_alphas", "draw_frontier", "draw_prices"]

INK, MUTED, BAD = COLOURS["ink"], COLOURS["muted"], COLOURS["bad"]
_WIDEST_COST = 160.0
"""Percent of full thinking up to which costs are drawn; dearer ones are left out."""


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


def _ring(axes: Axes, x: float, y: float, **how: Any) -> None:
    """A point that is marked by a ring."""
    ring = {"markersize": 12, "markerfacecolor": "none", "markeredgecolor": BAD, **how}
    axes.plot([x], [y], marker="o", linestyle="none", **ring)


def draw_prices(run: AssessedRun) -> Figure:
    """Net saving by requests in flight, and by the price of a cached token in decoded ones."""
    loads = {row.in_flight: row.saving_pct for row in run.serving.by_load or ()}
    cached, prices = saving_by_cached_price(run), run.serving.prices
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
        here = prices.cached / prices.decoded
        _ring(axes, here, cached[here], label="at the prices taken")
        axes.set_xscale("symlog", linthresh=0.001)
        axes.set_xticks(CACHED_PRICES, [f"{price:g}" for price in CACHED_PRICES])
        axes.minorticks_off()
        axes.set_xlabel("price of a cached token")
        _legend_below(axes)
    panels[0].set_ylabel("net saving in percent")
    return figure


def draw_frontier(run: AssessedRun, data: FrontierFigure) -> Figure:
    """Accuracy against cost of every rule, of fixed budgets, and the advised point."""
    figure, axes = framed(4.2)
    climbs = run.rungs is not None
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
        linewidth=0 if climbs else 1.2,
        label=data.fixed.name,
    )
    full = "reference" if climbs else "full thinking"
    axes.plot([100], [run.fit_full_accuracy], marker="D", color=INK, linestyle="none", label=full)
    costs = [cost for curve in (*data.rules, data.fixed) for cost in curve.cost]
    if data.chosen is not None:
        _, cost, accuracy = data.chosen
        _ring(axes, cost, accuracy, label="advised point", markeredgewidth=2.2, zorder=5)
        costs.append(cost)
    right = min(max(costs), _WIDEST_COST)
    axes.set_xlim(min(costs) - 4, max(right, 100) + 4)
    _percent_axis(axes, "x", whole=100)
    _percent_axis(axes, "y")
    whole = f"{'the ' if climbs else ''}{full}"
    axes.set_xlabel(f"cost per question under {run.recommendation.serving}, % of {whole}")
    axes.set_ylabel("accuracy")
    _legend_below(axes)
    return figure


def draw_alphas(run: AssessedRun, data: AlphaSavings) -> Figure:
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
    asked = "proposed" if run.alpha is None else "asked for"
    axes.axvline(alpha_of(run), color=BAD, linewidth=1.4, linestyle=DASHES[2], label=asked)
    axes.axhline(0, color=MUTED, linewidth=1)
    axes.set_xlim(0, max(data.alphas) * 1.04)
    _percent_axis(axes, "x")
    _percent_axis(axes, "y", whole=100)
    axes.set_xlabel("alpha: most questions that may be lost")
    axes.set_ylabel("net saving")
    _legend_below(axes)
    return figure
