"""The report's pictures: drawn with matplotlib, written as SVG for the inside of a page.

One function a picture; each returns a figure and knows neither the page nor its caption.  Drawn
without pyplot: no state is shared, and no screen is needed.  Text stays text, and every colour
becomes a CSS variable, so that the page decides between light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.assessment.frontier import AlphaSavings
from stopadvisor.report.html.captions import CACHED_PRICES, saving_by_cached_price
from stopadvisor.report.saved import FrontierFigure
from stopadvisor.report.words import alpha_of

__all__ = [
    "COLOURS", "SERIES", "draw_alphas", "draw_frontier", "draw_prices", "inline_svg", "style",
]  # fmt: skip

COLOURS = {
    "ink": "#1b2430",
    "muted": "#56616f",
    "grid": "#dde2e8",
    "surface": "#fefefe",
    "series-1": "#0b62c4",
    "series-2": "#b4530a",
    "series-3": "#0e7568",
    "series-4": "#7b39ec",
    "series-5": "#bd185c",
    "series-6": "#6a7079",
    "good": "#0d7a4e",
    "bad": "#c0341d",
}
"""Light colours by the name of their CSS variable; each is written once, so it can be found."""
SERIES = ("series-1", "series-2", "series-3", "series-4", "series-5", "series-6")
DASHES = ("solid", (0, (6, 2)), (0, (2, 2)), (0, (6, 2, 2, 2)), (0, (1, 1)), (0, (10, 3)))
"""Lines differ in their dashes too: not everyone sees the colours, and not every printer."""

_SVG = "http://www.w3.org/2000/svg"
_WIDTH = 5.0
_DPI = 72
"""Of every SVG that matplotlib writes."""
_FONT = 11.0
"""Points on a picture 360 points wide: about ten pixels on a phone, sixteen on a desk."""
_FAMILY = re.compile(r"font-family:[^;]*;?\s*")
_SHORTHAND = re.compile(r"font:\s*(?:(\d+|bold)\s+)?([\d.]+)px[^;]*")
_INK, _MUTED, _BAD = COLOURS["ink"], COLOURS["muted"], COLOURS["bad"]
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
    ring = {"markersize": 12, "markerfacecolor": "none", "markeredgecolor": _BAD, **how}
    axes.plot([x], [y], marker="o", linestyle="none", **ring)


def draw_prices(run: AssessedRun) -> Figure:
    """Net saving by requests in flight, and by the price of a cached token in decoded ones."""
    loads = {row.in_flight: row.saving_pct for row in run.serving.by_load or ()}
    cached, prices = saving_by_cached_price(run), run.serving.prices
    figure = blank(2.9)
    panels = figure.subplots(1, bool(loads) + bool(cached), sharey=True, squeeze=False)[0]
    for axes in panels:
        axes.patch.set_visible(False)
        axes.axhline(0, color=_INK, linewidth=1)
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
        color=_MUTED,
        marker="s",
        markersize=3.5,
        linewidth=0 if climbs else 1.2,
        label=data.fixed.name,
    )
    full = "reference" if climbs else "full thinking"
    axes.plot([100], [run.fit_full_accuracy], marker="D", color=_INK, linestyle="none", label=full)
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
    axes.axvline(alpha_of(run), color=_BAD, linewidth=1.4, linestyle=DASHES[2], label=asked)
    axes.axhline(0, color=_MUTED, linewidth=1)
    axes.set_xlim(0, max(data.alphas) * 1.04)
    _percent_axis(axes, "x")
    _percent_axis(axes, "y", whole=100)
    axes.set_xlabel("alpha: most questions that may be lost")
    axes.set_ylabel("net saving")
    _legend_below(axes)
    return figure


# --- How they look -------------------------------------------------------------------------------


@contextmanager
def style(name: str) -> Iterator[None]:
    """Settings under which a picture is drawn and written; its `name` makes ids in it its own."""
    ink, muted = COLOURS["ink"], COLOURS["muted"]
    with matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": name,
            "font.family": "DejaVu Sans",
            "font.size": _FONT,
            "text.color": ink,
            "axes.labelcolor": ink,
            "axes.edgecolor": muted,
            "axes.linewidth": 0.8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.grid": True,
            "grid.color": COLOURS["grid"],
            "grid.linewidth": 0.8,
            "xtick.color": muted,
            "ytick.color": muted,
            "xtick.labelsize": _FONT - 0.5,
            "ytick.labelsize": _FONT - 0.5,
            "axes.labelsize": _FONT,
            "legend.fontsize": _FONT - 0.5,
            "legend.frameon": False,
            "legend.handlelength": 2.4,
            "lines.linewidth": 1.8,
            "text.parse_math": False,
        }
    ):
        yield


def blank(height: float) -> Figure:
    """An empty picture, `height` inches tall and as wide as all of them."""
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
    FigureCanvasSVG(figure)  # which measures texts as it will write them
    figure.patch.set_visible(False)
    return figure


def framed(height: float = 3.5) -> tuple[Figure, Axes]:
    """A picture with one pair of axes."""
    figure = blank(height)
    axes = figure.subplots()
    axes.patch.set_visible(False)
    return figure, axes


def inline_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """Write a figure as an SVG element for a page.

    One ``svg`` element with ``role="img"``; no ids but those it refers to itself.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            # A style would be the whole page's, which has these rules.
            if child.tag.endswith("metadata") or child.tag == f"{{{_SVG}}}style":
                parent.remove(child)
    for element in root.iter():
        if element.tag == f"{{{_SVG}}}g":
            element.attrib.pop("id", None)  # nothing refers to a group
        for key, value in element.items():
            element.set(key, _themed(value))
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        note = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": f"{name}-{tag}"})
        note.text = text
        root.insert(place, note)
    named = {"aria-labelledby": f"{name}-title", "aria-describedby": f"{name}-desc"}
    root.attrib |= {"role": "img", **named}
    return ElementTree.tostring(root, encoding="unicode")


def _themed(value: str) -> str:
    """An attribute whose colours are variables, and whose texts are in the page's font."""
    for name, colour in COLOURS.items():
        value = value.replace(colour, f"var(--{name})")
    weight = _SHORTHAND.sub(
        lambda m: f"font-size: {m[2]}px" + (f"; font-weight: {m[1]}" if m[1] else ""), value
    )
    return _FAMILY.sub("", weight)
