"""The page itself: one HTML file with its style, script and pictures inside.

Puts words, tables and pictures into the template; chooses and computes nothing.  The drawing and
template libraries are imported when a page is made, since they are an extra.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from stopadvisor.assessment.recommendation import PROVISIONAL
from stopadvisor.ground.errors import OutputError, StopAdvisorError
from stopadvisor.ground.printable import printable
from stopadvisor.ground.progress import tracked
from stopadvisor.ground.results import to_document
from stopadvisor.report.assessed import AssessedRun, alpha_of
from stopadvisor.report.figures.data import QuestionExample
from stopadvisor.report.html import captions
from stopadvisor.report.html.captions import Caption
from stopadvisor.report.html.lost import lost_question
from stopadvisor.report.saved import ReportData, WrittenPage, read_report
from stopadvisor.report.sheet import Sheet
from stopadvisor.report.sheets.assess import assess_sheet
from stopadvisor.report.sheets.calibrate import calibrate_sheet
from stopadvisor.report.words import cell, kind_points, share, shell_quote
from stopadvisor.runs.archives import SIMULATED
from stopadvisor.runs.sources import REPORT
from stopadvisor.runs.storage import encode, replace_file
from stopadvisor.studies.report import table_csv
from stopadvisor.studies.tables import Cell, Column, Table

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

__all__ = ["missing_packages", "refresh_report", "render", "write_report"]

_Data = TypeVar("_Data")

_HERE = Path(__file__).parent
_NEEDED = ("matplotlib", "jinja2")
_NUMBER = re.compile(r"[-+]?\d[\d.]*\s?%?")
"""A cell of a sheet that stands to the right."""
_FORECASTS = {"alpha"}
"""Pictures that are folded away: other promises than the one asked for."""
_OF_FIT = {"kinds", "frontier", "prices", "checkpoints"}
"""Pictures whose savings and accuracies are of fit questions; once calibrated, others stand."""


@dataclass(frozen=True)
class _Picture:
    caption: Caption
    svg: str


def missing_packages() -> tuple[str, ...]:
    """What of the extra `report` is not installed; imports none of it."""
    return tuple(name for name in _NEEDED if find_spec(name) is None)


def _environment() -> Environment:
    """Make what renders a template: every text in it is escaped, control characters too."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )  # fmt: skip


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
    """Write the page."""
    from markupsafe import Markup

    result, calibration, lost = data.result, data.calibration, data.figures.lost
    environment = _environment()
    environment.filters |= {"sheet": _sheet, "words": _words}
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    pictures = _pictures(data)
    folded = _FORECASTS if calibration is None else _FORECASTS | _OF_FIT
    if calibration is not None:
        advice = result.recommendation
        kept = tuple(text for text in advice.reasons if not text.startswith(PROVISIONAL))
        result = replace(result, recommendation=replace(advice, reasons=kept))
    chosen = assess_sheet(result, verbose=True)
    sheet = chosen if calibration is None else calibrate_sheet(calibration, verbose=True)
    return environment.get_template("page.html").render(
        sheet=sheet,
        state=_state(data),
        sections=() if sheet is chosen else _sections(sheet, "calibrated"),
        chosen=_sections(chosen, "assessed"),
        origin=_origin(result),
        result=result,
        provenance=_provenance(result),
        pictures=[p for p in pictures if p.caption.name not in folded],
        folded=[p for p in pictures if p.caption.name in folded],
        fold=_fold(data),
        lost=[
            (lost_question(e, data.thinking), _steps(e, f"lost-{k}"))
            for k, e in enumerate(() if lost is None else lost.shown, start=1)
        ],
        of_lost=lost,
        thinking=bool(data.thinking),
        remarks=[*result.remarks, *data.remarks],
        style=Markup(style),
        script=Markup(script),
        script_digest=digest,
    )  # fmt: skip


def _state(data: ReportData) -> tuple[str, str]:
    """How certain the first line is: a class of the style, and in words."""
    if data.calibration is not None:
        return ("good", "Certified") if data.calibration.certified else ("bad", "Not certified")
    if data.result.recommendation.policy == "full-budget":
        return "bad", "Nothing to certify"
    return "open", "Not yet certified"


@dataclass(frozen=True)
class _Part:
    """A section of a sheet; its table as the page and a CSV file hold it."""

    title: str
    texts: tuple[str, ...]
    table: Table | None


def _sections(sheet: Sheet, name: str) -> list[_Part]:
    """The sections of a sheet."""
    parts = []
    for k, section in enumerate(sheet.sections):
        table = None
        if section.rows:
            header = section.header or ("", "")
            columns = tuple(Column(f"column-{n}", title) for n, title in enumerate(header))
            table = Table(f"{name}-{k}", section.title, columns, section.rows)
        parts.append(_Part(section.title, section.texts, table))
    return parts


def _fold(data: ReportData) -> tuple[str, str]:
    """Title of what is folded away, and how its figures differ from those of the headline."""
    if data.calibration is None:
        return (
            "Forecasts and reasons",
            "What other promises and other numbers of labels would give. Figures may differ from "
            "the headline's, which are those of the advised rule at its one threshold.",
        )
    return (
        "How the rule was chosen",
        "Figures of the questions that chose it. They differ somewhat from the headline's, which "
        "are of questions that did not.",
    )


# --- Pictures -------------------------------------------------------------------------------------


def _pictures(data: ReportData) -> list[_Picture]:
    from stopadvisor.report.html import charts

    document, figures = to_document(data.result), data.figures
    parts: list[tuple[Any, Callable[[Any], Caption | None], Callable[[Any], Figure]]] = [
        (
            document,
            captions.kinds_caption,
            lambda d: charts.draw_kinds(kind_points(d), d["recommendation"]["family"]),
        ),
        (document, captions.profile_caption, lambda d: charts.draw_profile(d["profile"])),
        (figures.frontier, captions.frontier_caption, charts.draw_frontier),
        (figures.risk, captions.risk_caption, charts.draw_risk),
        (
            document,
            captions.prices_caption,
            lambda d: charts.draw_prices(d["serving"], captions.saving_by_cached_price(d)),
        ),
        (figures.alpha, captions.alpha_caption, charts.draw_alphas),
        (figures.checkpoints, captions.checkpoint_caption, charts.draw_checkpoints),
    ]
    return [picture for part in tracked("drawing", parts) for picture in _drawn(*part)]


def _drawn(
    data: _Data | None, caption: Callable[[_Data], Caption | None], draw: Callable[[_Data], Figure]
) -> list[_Picture]:
    """The picture of some data, where there is something to say of them."""
    from stopadvisor.report.html.theme import inline_svg, style

    said = None if data is None else caption(data)
    if data is None or said is None:
        return []
    with style(said.name):
        svg = inline_svg(draw(data), said.name, said.title, said.sentence.replace("`", ""))
    return [_Picture(said, svg)]


def _steps(example: QuestionExample, name: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for k, step in enumerate(example.steps):
        if step.ended:
            break
        verdict = "right" if step.correct else "wrong"
        stop = "stops here" if k == example.stop else None
        rows.append((step.budget, step.answer, verdict, step.confidence, step.score, stop))
    return Table(
        name,
        "Its forced answers",
        (
            Column("budget", "thinking", "tokens"),
            Column("answer", "forced answer"),
            Column("verdict", "is"),
            Column("confidence", "confidence", "share"),
            Column("score", "score"),
            Column("stop", "rule"),
        ),
        tuple(rows),
    )


# --- Cells ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sheet:
    """A table as the template writes it: texts, and whether a column is of numbers."""

    name: str
    head: list[tuple[str, bool]]
    rows: list[list[tuple[str, bool]]]
    csv: str
    """Address that holds the table whole, values as computed."""


def _sheet(table: Table) -> _Sheet:
    columns: list[Sequence[Cell]] = [
        [row[k] for row in table.rows] for k in range(len(table.columns))
    ]
    numeric = [any(map(_is_number, column)) for column in columns]
    titles = [column.title for column in table.columns]
    return _Sheet(
        table.name,
        list(zip(titles, numeric, strict=True)),
        [
            [(_cell(v, c), n) for v, c, n in zip(row, table.columns, numeric, strict=True)]
            for row in table.rows
        ],
        "data:text/csv;charset=utf-8," + quote(table_csv(table)),
    )


def _is_number(value: Cell) -> bool:
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(text: str) -> str:
    """Our own texts, escaped: commands between backticks as code, no sign torn from its number."""
    from markupsafe import Markup, escape

    parts = [escape(part) for part in text.replace(" %", "%").replace("> ", ">\u00a0").split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(p) if k % 2 else p for k, p in enumerate(parts)
    )


def _cell(value: Cell, column: Column) -> str:
    text = cell(value, column.unit, none="–", digits=4, decimals=1)
    return text.replace(" %", "%") if column.unit == "chance" else text


def _origin(result: AssessedRun) -> str:
    """Whose probes these are, in words."""
    if result.workload.engine == SIMULATED:
        return "simulated probes"
    return result.workload.model or "published archive"


def _asked(result: AssessedRun) -> list[tuple[str, str]]:
    """Where a trace was probed, or which rungs were asked."""
    workload = result.workload
    if result.rungs is not None:
        return [("Rungs", ", ".join(dict.fromkeys(rung.name for rung in result.rungs)))]
    return [
        ("Checkpoints", ", ".join(map(str, workload.budgets)) + " thinking tokens"),
        ("Full thinking", f"{workload.full_reference} reference"),
    ]


def _provenance(result: AssessedRun) -> list[tuple[str, str]]:
    workload, split = result.workload, result.split
    weights = result.settings.weights
    return [
        ("Run", result.run),
        ("Model", workload.model or f"none: {_origin(result)}"),
        ("Engine", workload.engine or "none"),
        ("Workload", f"{workload.n_questions} questions, SHA-256 {workload.sha256[:16]}…"),
        ("Split", f"{split.fit} fit, {split.calibration} calibration, {split.test} test"),
        *_asked(result),
        ("Cut off", f"{share(workload.truncated_share)} of the traces"),
        ("Protocol", result.protocol),
        ("Promise", f"alpha {alpha_of(result):g}, delta {result.delta:g}"),
        (
            "Cost of a token",
            f"prefilled {weights.prefilled:g}, cached {weights.cached:g}, decoded "
            f"{weights.decoded:g} ({weights.unit})",
        ),
    ]
