"""The page of `monitor --out`: how evidence, limit and stop rate went, request by request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stopadvisor.report.html.page import page_environment, require_extra
from stopadvisor.report.sheet import Sheet
from stopadvisor.runs.storage import encode, replace_file
from stopadvisor.serving.monitored import MonitoredPromise, Watch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_monitor_page"]

_HERE = Path(__file__).parent
_LOWEST = 1e-3
"""Evidence below this is drawn here: it speaks for nothing."""


def write_monitor_page(result: MonitoredPromise, sheet: Sheet, path: Path) -> None:
    """Write the page of a result and its sheet."""
    require_extra("the page")
    from markupsafe import Markup

    from stopadvisor.report.html.theme import inline_svg, style

    pictures = []
    if result.course:
        for name, title, words, draw in (
            ("evidence", "Evidence that too many replies differ", _evidence_words, _draw_evidence),
            ("limit", "Replies that differ, and requests that stop", _limit_words, _draw_limit),
        ):
            said = words(result)
            with style(name):
                svg = inline_svg(draw(result), name, title, said)
            pictures.append({"name": name, "title": title, "said": said, "svg": Markup(svg)})
    page = (
        page_environment()
        .get_template("monitor_page.html")
        .render(
            headline=sheet.headline,
            facts=sheet.facts,
            pictures=pictures,
            digest=result.digest,
            remarks=result.remarks,
            style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        )
    )
    replace_file(path, encode(page))


def _evidence_words(result: MonitoredPromise) -> str:
    watch = _differing(result)
    name = "promise's alarm" if watch.is_promise else "early warning"
    words = (
        f"The {name} rings where evidence reaches {1 / watch.delta:g}, the alarm of change "
        f"where the detector reaches {watch.change:g}."
    )
    for alarm in result.alarms:
        if alarm.watch == "differs":
            words += f" {alarm.kind.capitalize()}: raised at request {alarm.request}."
    return words


def _limit_words(result: MonitoredPromise) -> str:
    limit = _differing(result).limit
    return (
        "Upper limit of the share of replies that differ, for a risk that does not change; the "
        f"{100 * limit:.3g} % that may differ; and the share of requests that stopped so far."
    )


def _differing(result: MonitoredPromise) -> Watch:
    return next(watch for watch in result.watched if watch.watch == "differs")


def _draw_evidence(result: MonitoredPromise) -> Figure:
    from stopadvisor.report.html.theme import COLOURS, DASHES, framed

    figure, axes = framed()
    requests, watch = [point.request for point in result.course], _differing(result)
    for name, key, limit, colour, dash in (
        ("e-value", "e_value", 1 / watch.delta, "series-1", DASHES[0]),
        ("change detector", "detector", watch.change, "series-2", DASHES[1]),
    ):
        values = [max(getattr(point, key), _LOWEST) for point in result.course]
        axes.plot(requests, values, color=COLOURS[colour], linestyle=dash, label=name)
        axes.axhline(limit, color=COLOURS[colour], linestyle=dash, linewidth=0.8)
    for alarm in result.alarms:
        if alarm.watch == "differs":
            at, name = alarm.request, alarm.kind.replace("-", " ")
            axes.axvline(at, color=COLOURS["bad"], linewidth=1.2, label=name)
    axes.set_yscale("log")
    axes.set_xlabel("requests; thin lines: where an alarm is raised")
    axes.legend(loc="upper left")
    return figure


def _draw_limit(result: MonitoredPromise) -> Figure:
    from stopadvisor.report.html.theme import COLOURS, DASHES, framed

    figure, axes = framed()
    requests = [point.request for point in result.course]
    upper = [100 * point.upper if point.upper is not None else float("nan")
             for point in result.course]  # fmt: skip
    stops = [100 * point.stop_share for point in result.course]
    axes.plot(requests, upper, color=COLOURS["series-1"], label="differ, at most")
    axes.plot(requests, stops, color=COLOURS["series-3"], linestyle=DASHES[1], label="stopped")
    axes.axhline(
        100 * _differing(result).limit, color=COLOURS["bad"], linewidth=0.8, label="may differ"
    )
    axes.set_ylim(0, 105)
    axes.set_xlabel("requests")
    axes.set_ylabel("percent")
    axes.legend(loc="upper right")
    return figure
