"""Colours and sizes of the pictures, and the way from a matplotlib figure to SVG inside a page.

Text stays text, and every colour becomes a CSS variable, so that the page decides between light
and dark.  Knows nothing of what is drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["COLOURS", "DASHES", "SERIES", "blank", "framed", "inline_svg", "style"]

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
