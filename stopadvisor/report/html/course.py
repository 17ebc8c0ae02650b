"""The page of `monitor --report`: how evidence, limit and stop rate went, request by request.

Puts a document into words and pictures; computes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stopadvisor.report.documents.monitor import MonitorDocument
from stopadvisor.report.html.page import page_environment, require_extra
from stopadvisor.report.text.monitor import fact_rows, verdict_sentence
from stopadvisor.runs.storage import encode, replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_course"]

_HERE = Path(__file__).parent
_LOWEST = 1e-3
"""Evidence below this is drawn here: it speaks for nothing."""


def write_course(document: MonitorDocument, path: Path) -> None:
    """Write the page."""
    require_extra("the page")
    from markupsafe import Markup

    from stopadvisor.report.html.theme import inline_svg, style

    pictures = []
    if document["course"]:
        for name, title, words, draw in (
            ("evidence", "Evidence against the promise", _evidence_words, _draw_evidence),
            ("limit", "Replies that differ, and requests that stop", _limit_words, _draw_limit),
        ):
            said = words(document)
            with style(name):
                svg = inline_svg(draw(document), name, title, said)
            pictures.append({"name": name, "title": title, "said": said, "svg": Markup(svg)})
    page = (
        page_environment()
        .get_template("course.html")
        .render(
            headline=verdict_sentence(document),
            facts=fact_rows(document),
            pictures=pictures,
            digest=document["digest"],
            remarks=document["remarks"],
            style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        )
    )
    replace_file(path, encode(page))


def _evidence_words(document: MonitorDocument) -> str:
    alarm = document["alarm"]
    words = (
        f"The alarm is raised where evidence reaches {1 / document['delta']:g}, or the change "
        f"detector {document['change']:g}."
    )
    if alarm is not None and alarm["watch"] == "differs":
        words += f" It was raised at request {alarm['request']}."
    return words


def _limit_words(document: MonitorDocument) -> str:
    limit = next(w["limit"] for w in document["watched"] if w["watch"] == "differs")
    return (
        "Upper limit of the share of replies that differ, for a risk that does not change, beside "
        f"the {100 * limit:.3g} % that may; and the share of requests that stopped so far."
    )


def _draw_evidence(document: MonitorDocument) -> Figure:
    from stopadvisor.report.html.theme import COLOURS, DASHES, framed

    figure, axes = framed()
    requests = [point["request"] for point in document["course"]]
    for name, key, limit, colour, dash in (
        ("e-value", "e_value", 1 / document["delta"], "series-1", DASHES[0]),
        ("change detector", "detector", document["change"], "series-2", DASHES[1]),
    ):
        values = [max(float(point[key]), _LOWEST) for point in document["course"]]  # type: ignore[literal-required]
        axes.plot(requests, values, color=COLOURS[colour], linestyle=dash, label=name)
        axes.axhline(limit, color=COLOURS[colour], linestyle=dash, linewidth=0.8)
    alarm = document["alarm"]
    if alarm is not None:
        axes.axvline(alarm["request"], color=COLOURS["bad"], linewidth=1.2, label="alarm")
    axes.set_yscale("log")
    axes.set_xlabel("requests; thin lines: where an alarm is raised")
    axes.legend(loc="upper left")
    return figure


def _draw_limit(document: MonitorDocument) -> Figure:
    from stopadvisor.report.html.theme import COLOURS, DASHES, framed

    figure, axes = framed()
    requests = [point["request"] for point in document["course"]]
    limit = next(w["limit"] for w in document["watched"] if w["watch"] == "differs")
    upper = [100 * point["upper"] if point["upper"] is not None else float("nan")
             for point in document["course"]]  # fmt: skip
    stops = [100 * point["stop_share"] for point in document["course"]]
    axes.plot(requests, upper, color=COLOURS["series-1"], label="differ, at most")
    axes.plot(requests, stops, color=COLOURS["series-3"], linestyle=DASHES[1], label="stopped")
    axes.axhline(100 * limit, color=COLOURS["bad"], linewidth=0.8, label="may differ")
    axes.set_ylim(0, 105)
    axes.set_xlabel("requests")
    axes.set_ylabel("percent")
    axes.legend(loc="upper right")
    return figure
