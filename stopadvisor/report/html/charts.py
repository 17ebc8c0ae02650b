"""The report's pictures: each with its title, a sentence with its numbers, and an SVG.

Drawn without pyplot, which would share state between threads.  Text stays text, and every colour
becomes a CSS variable, so that the page decides between light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from stopadvisor.policy.shown import promised
from stopadvisor.report.saved import Figures, FrontierFigure
from stopadvisor.report.words import alpha_of, by_load, percent, share
from stopadvisor.rules.families import rule_name

__all__ = ["CACHED_PRICES", "COLOURS", "SERIES", "pictures", "saving_by_cached_price", "style"]

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
"""Light colours by CSS variable.  No two are equal, so that `_themed` can find each in an SVG."""
SERIES = ("series-1", "series-2", "series-3", "series-4", "series-5", "series-6")
_DASHES = ("solid", (0, (6, 2)), (0, (2, 2)), (0, (6, 2, 2, 2)), (0, (1, 1)), (0, (10, 3)))

_SVG = "http://www.w3.org/2000/svg"
_WIDTH = 5.0
_DPI = 72
"""Resolution of every SVG that matplotlib writes."""
_FONT = 11.0
"""Points on a picture 360 points wide: about ten pixels on a phone, sixteen on a desk."""
_FAMILY = re.compile(r"font-family:[^;]*;?\s*")
_SHORTHAND = re.compile(r"font:\s*(?:(\d+|bold)\s+)?([\d.]+)px[^;]*")
_INK, _MUTED, _BAD = COLOURS["ink"], COLOURS["muted"], COLOURS["bad"]
_WIDEST_COST = 160.0
"""Highest cost to draw, in percent of full thinking."""
CACHED_PRICES = (0.0, 0.001, 0.01, 0.1, 1.0)
"""Prices of a cached token to draw, in decoded tokens; APIs often bill 0.1."""


@dataclass(frozen=True)
class Picture:
    """A picture of the page."""

    name: str
    """Its id in the page."""
    title: str
    sentence: str
    """What it shows, with numbers; also the text alternative of the picture."""
    svg: str


def pictures(run: AssessedRun, figures: Figures) -> list[Picture]:
    """Draw the pictures for which an assessment has data."""
    drawn = []
    if figures.frontier is not None:
        drawn.append(_frontier(run, figures.frontier))
    loads, cached = by_load(run), saving_by_cached_price(run)
    if (loads or cached) and run.rungs is None:
        drawn.append(_prices(run, loads, cached))
    if figures.alpha is not None:
        drawn.append(_alphas(run, figures.alpha))
    return drawn


def _picture(name: str, title: str, sentence: str, draw: Callable[[], Figure]) -> Picture:
    with style(name):
        svg = _inline_svg(draw(), name, title, sentence.replace("`", ""))
    return Picture(name, title, sentence, svg)


# --- Accuracy against cost ------------------------------------------------------------------------


def _frontier(run: AssessedRun, data: FrontierFigure) -> Picture:
    """Accuracy against cost of every rule, of fixed budgets, and the advised point."""
    climbs = run.rungs is not None
    full, whole = share(run.fit_full_accuracy), "the reference" if climbs else "full thinking"
    sentence = f"No point is advised: {whole} is right on {full} at 100% of the cost."
    if data.chosen is not None:
        name, cost, accuracy = data.chosen
        sentence = (
            f"At the advised point ({name}) {percent(cost)} of the cost gives an accuracy of "
            f"{share(accuracy)}; {whole} gives {full}"
        )
        if climbs:
            sentence += ". Squares are one rung for everybody"
            if run.given_up_share is not None:
                sentence += f"; {share(run.given_up_share)} of the questions are given up"
        elif data.fixed_at_chosen is not None:
            sentence += f", one fixed budget at the same cost {share(data.fixed_at_chosen)}"
        sentence += "."
    sentence += " Higher and further left is better."
    return _picture(
        "frontier", "Accuracy against cost", sentence, lambda: _draw_frontier(run, data)
    )


def _draw_frontier(run: AssessedRun, data: FrontierFigure) -> Figure:
    figure, (axes,) = _panels(4.2)
    climbs = run.rungs is not None
    for k, rule in enumerate(data.rules):
        order = np.argsort(rule.cost, kind="stable")
        axes.plot(
            np.take(rule.cost, order),
            np.take(rule.accuracy, order),
            **_line(k),
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


# --- Other loads and prices -----------------------------------------------------------------------


def _prices(run: AssessedRun, loads: str, cached: dict[float, float]) -> Picture:
    """Net saving by requests in flight, and by the price of a cached token."""
    parts = []
    if loads:
        parts.append(f"The advised rule saves {loads} requests in flight")
    if cached:
        turn = min(cached, key=lambda at: abs(cached[at]))
        parts.append(f"It saves nothing once a cached token costs {turn:.2g} decoded ones")
    parts.append("At other prices another rule may save more.")
    title = "What other loads and prices would save"
    return _picture("prices", title, ". ".join(parts), lambda: _draw_prices(run, cached))


def saving_by_cached_price(run: AssessedRun) -> dict[float, float]:
    """Net saving of the rule that is priced, in percent, by the price of a cached token.

    The price is a share of a decoded token's; empty where no price would end the saving.
    """
    prices, cost = run.serving.prices, run.serving.by_stack.get(run.recommendation.serving)
    if cost is None or cost.saving_pct is None or cost.break_even_cached_price is None:
        return {}
    here, turn = (p / prices.decoded for p in (prices.cached, cost.break_even_cached_price))
    if turn <= here:
        return {}
    # Full thinking reads nothing from a cache, so the saving falls along a line.
    fall = cost.saving_pct / (turn - here)
    return {at: fall * (turn - at) for at in sorted({*CACHED_PRICES, here, turn})}


def _draw_prices(run: AssessedRun, cached: dict[float, float]) -> Figure:
    loads = {row.in_flight: row.saving_pct for row in run.serving.by_load or ()}
    figure, panels = _panels(2.9, bool(loads) + bool(cached))
    for axes in panels:
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
        here = run.serving.prices.cached / run.serving.prices.decoded
        _ring(axes, here, cached[here], label="at the prices used")
        axes.set_xscale("symlog", linthresh=0.001)
        axes.set_xticks(CACHED_PRICES, [f"{price:g}" for price in CACHED_PRICES])
        axes.minorticks_off()
        axes.set_xlabel("price of a cached token")
        _legend_below(axes)
    panels[0].set_ylabel("net saving in percent")
    return figure


# --- Stricter promises ----------------------------------------------------------------------------


def _alphas(run: AssessedRun, data: AlphaSavings) -> Picture:
    """Net saving by alpha, for each kind of rule."""
    alpha, kinds = alpha_of(run), []
    for name, savings in data.savings.items():
        by_alpha = dict(zip(data.alphas, savings, strict=True))
        here = by_alpha[alpha]
        first = next((a for a, s in by_alpha.items() if s is not None and s > 0), None)
        text = f"{rule_name(name)} saves {'nothing' if here is None else percent(here)}"
        if first is not None and first < alpha:
            text += f" (the first saving comes at {share(first)})"
        kinds.append(text)
    sentence = (
        f"Where at most {promised(alpha)} may be lost, {'; '.join(kinds)}. Each promise has the "
        "rule chosen for it, at the last threshold that the calibration questions could still "
        "certify."
    )
    title = "What a stricter promise costs"
    return _picture("alpha", title, sentence, lambda: _draw_alphas(run, data))


def _draw_alphas(run: AssessedRun, data: AlphaSavings) -> Figure:
    figure, (axes,) = _panels(3.7)
    for k, (name, savings) in enumerate(data.savings.items()):
        values = np.array([np.nan if s is None else s for s in savings])
        axes.plot(data.alphas, values, **_line(k), marker="o", markersize=4, label=name)
    asked = "proposed" if run.alpha is None else "asked for"
    axes.axvline(alpha_of(run), color=_BAD, linewidth=1.4, linestyle=_DASHES[2], label=asked)
    axes.axhline(0, color=_MUTED, linewidth=1)
    axes.set_xlim(0, max(data.alphas) * 1.04)
    _percent_axis(axes, "x")
    _percent_axis(axes, "y", whole=100)
    axes.set_xlabel("alpha: most questions that may be lost")
    axes.set_ylabel("net saving")
    _legend_below(axes)
    return figure


# --- Axes and style -------------------------------------------------------------------------------


def _line(k: int) -> dict[str, Any]:
    """Colour and dashes of line `k`; dashes tell lines apart in black and white, too."""
    return {"color": COLOURS[SERIES[k % len(SERIES)]], "linestyle": _DASHES[k % len(_DASHES)]}


def _percent_axis(axes: Axes, which: str, *, whole: float = 1.0) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value / whole:.4g}%"))
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))


def _legend_below(axes: Axes) -> None:
    axes.figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        columnspacing=1.1,
        handletextpad=0.6,
    )


def _ring(axes: Axes, x: float, y: float, **how: Any) -> None:
    """Mark a point by a ring."""
    ring = {"markersize": 12, "markerfacecolor": "none", "markeredgecolor": _BAD, **how}
    axes.plot([x], [y], marker="o", linestyle="none", **ring)


@contextmanager
def style(name: str) -> Iterator[None]:
    """Set the style for drawing and writing a picture; `name` makes its ids unique."""
    with matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": name,
            "font.family": "DejaVu Sans",
            "font.size": _FONT,
            "text.color": _INK,
            "axes.labelcolor": _INK,
            "axes.edgecolor": _MUTED,
            "axes.linewidth": 0.8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.grid": True,
            "grid.color": COLOURS["grid"],
            "grid.linewidth": 0.8,
            "xtick.color": _MUTED,
            "ytick.color": _MUTED,
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


def _panels(height: float, n: int = 1) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure, `height` inches tall, with panels side by side that share the y axis."""
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
    FigureCanvasSVG(figure)  # measures text as it will write it
    figure.patch.set_visible(False)
    panels = figure.subplots(1, n, sharey=True, squeeze=False)[0]
    for axes in panels:
        axes.patch.set_visible(False)
    return figure, panels


def _inline_svg(figure: Figure, name: str, title: str, description: str) -> str:
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
            # A style element would apply to the whole page, which has these rules.
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
    """Replace colours by CSS variables, and fonts by the page's own."""
    for name, colour in COLOURS.items():
        value = value.replace(colour, f"var(--{name})")
    value = _SHORTHAND.sub(
        lambda m: f"font-size: {m[2]}px" + (f"; font-weight: {m[1]}" if m[1] else ""), value
    )
    return _FAMILY.sub("", value)
