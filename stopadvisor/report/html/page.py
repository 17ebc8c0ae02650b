"""The page itself: one HTML file with its style and pictures inside, and no script.

Puts words, sheets and pictures into the template; chooses and computes nothing.  The drawing and
template libraries are imported when a page is made, since they are an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.assessment.recommendation import PROVISIONAL
from stopadvisor.certification.issue import CalibratedRun
from stopadvisor.ground.errors import OutputError, StopAdvisorError
from stopadvisor.ground.printable import printable
from stopadvisor.policy.shown import promised
from stopadvisor.report.html.captions import (
    Caption,
    alpha_caption,
    frontier_caption,
    prices_caption,
)
from stopadvisor.report.html.fragment import section_html, words_html
from stopadvisor.report.html.lost import lost_question
from stopadvisor.report.saved import ReportData, WrittenPage, read_report
from stopadvisor.report.sheet import Fact
from stopadvisor.report.sheets.assess import assess_sheet
from stopadvisor.report.sheets.calibrate import calibrate_sheet
from stopadvisor.report.words import alpha_of, share, shell_quote
from stopadvisor.runs.sources import REPORT
from stopadvisor.runs.storage import encode, replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["missing_packages", "refresh_report", "render", "write_report"]

_HERE = Path(__file__).parent


def missing_packages() -> tuple[str, ...]:
    """What of the extra `report` is not installed; imports none of it."""
    return tuple(name for name in ("matplotlib", "jinja2") if find_spec(name) is None)


def write_report(folder: Path, target: Path | None = None) -> WrittenPage:
    """Write the report on an assessed run, ``report.html`` in it or `target`.

    Raises
    ------
    OutputError
        The extra `report` is not installed, or the file cannot be written.
    ProbeError
        The run was not assessed, or what `assess` or `calibrate` left is damaged.
    """
    if missing := missing_packages():
        raise OutputError(
            f"the report needs {' and '.join(missing)}, not installed here: "
            "pip install 'stopadvisor[report]'"
        )
    path = target or folder / REPORT
    data = read_report(folder)
    page = encode(render(data))
    replace_file(path, page)
    calibration = data.calibration
    return WrittenPage(
        run=folder,
        report=path,
        bytes=len(page),
        protocol=data.result.protocol,
        certified=None if calibration is None else calibration.certified,
        remarks=tuple(data.remarks),
    )


def refresh_report(folder: Path) -> list[str]:
    """Write a run's page again, if it has one, after what it shows has changed.

    Returns
    -------
    list of str
        What there is to say of it; empty where there is no page.
    """
    page = folder / REPORT
    if not page.exists():
        return []
    try:
        write_report(folder)
    except StopAdvisorError as error:
        return [
            f"{page} is from before, and could not be written again: {error}; "
            f"`stopadvisor report {shell_quote(folder)}` does so later"
        ]
    return [f"wrote {page} again"]


def render(data: ReportData) -> str:
    """Write the page; every text in it is escaped, control characters too."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )  # fmt: skip
    environment.filters |= {
        "section": lambda section: Markup(section_html(section)),
        "words": lambda text: Markup(words_html(text)),
    }
    result, calibration, lost = data.result, data.calibration, data.figures.lost
    examples = () if lost is None else lost.shown
    chosen = assess_sheet(result, verbose=True)
    sheet, state, chosen_at = chosen, ("open", "Not yet certified"), ""
    if calibration is not None:
        advice = result.recommendation
        kept = tuple(text for text in advice.reasons if not text.startswith(PROVISIONAL))
        result = replace(result, recommendation=replace(advice, reasons=kept))
        chosen = assess_sheet(result, verbose=True)
        sheet = calibrate_sheet(calibration, verbose=True)
        state = ("good", "Certified") if calibration.certified else ("bad", "Not certified")
        if calibration.alpha != alpha_of(result):
            chosen_at = promised(alpha_of(result))
    elif result.recommendation.policy == "full-budget":
        state = ("bad", "Nothing to certify")
    return environment.get_template("page.html").render(
        sheet=sheet,
        state=state,
        chosen=() if sheet is chosen else chosen.sections,
        chosen_at=chosen_at,
        result=result,
        provenance=_provenance(result, calibration),
        pictures=_pictures(data),
        lost=[lost_question(example, data.thinking.get(example.id)) for example in examples],
        of_lost=0 if lost is None else lost.n,
        thinking=bool(data.thinking),
        remarks=[*result.remarks, *data.remarks],
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
    )


def _pictures(data: ReportData) -> list[tuple[Caption, str]]:
    """The pictures that there is something to say of, each with its words."""
    from stopadvisor.report.html import charts
    from stopadvisor.report.html.theme import inline_svg, style

    run, frontier, alpha = data.result, data.figures.frontier, data.figures.alpha
    found: list[tuple[Caption | None, Callable[[], Figure]]] = [
        (prices_caption(run), lambda: charts.draw_prices(run))
    ]
    if frontier is not None:
        drawn = (frontier_caption(run, frontier), lambda: charts.draw_frontier(run, frontier))
        found.insert(0, drawn)
    if alpha is not None:
        found.append((alpha_caption(run, alpha), lambda: charts.draw_alphas(run, alpha)))
    pictures = []
    for said, draw in found:
        if said is not None:
            with style(said.name):
                told = said.sentence.replace("`", "")
                pictures.append((said, inline_svg(draw(), said.name, said.title, told)))
    return pictures


def _provenance(result: AssessedRun, calibration: CalibratedRun | None) -> list[Fact]:
    alpha, delta = alpha_of(result), result.delta
    if calibration is not None:
        alpha, delta = calibration.alpha, calibration.delta
    workload, split, weights = result.workload, result.split, result.settings.weights
    if result.rungs is not None:
        asked = [("Rungs", ", ".join(dict.fromkeys(rung.name for rung in result.rungs)))]
    else:
        asked = [
            ("Checkpoints", ", ".join(map(str, workload.budgets)) + " thinking tokens"),
            ("Full thinking", f"{workload.full_reference} reference"),
        ]
    return [
        ("Run", result.run),
        ("Model", workload.model or "none: published archive"),
        ("Engine", workload.engine or "none"),
        ("Workload", f"{workload.n_questions} questions, SHA-256 {workload.sha256[:16]}…"),
        ("Split", f"{split.fit} fit, {split.calibration} calibration, {split.test} test"),
        *asked,
        ("Cut off", f"{share(workload.truncated_share)} of the traces"),
        ("Protocol", result.protocol),
        ("Promise", f"alpha {alpha:g}, delta {delta:g}"),
        (
            "Cost of a token",
            f"prefilled {weights.prefilled:g}, cached {weights.cached:g}, decoded "
            f"{weights.decoded:g} ({weights.unit})",
        ),
    ]
