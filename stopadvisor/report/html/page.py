"""The report's page, one HTML file without scripts, and sheets as HTML for notebooks.

matplotlib and jinja2, of the extra `report`, are imported when a page is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from pathlib import Path

from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.assessment.recommendation import PROVISIONAL
from stopadvisor.certification.issue import CalibratedRun
from stopadvisor.engines.errors import require_packages
from stopadvisor.ground.errors import OutputError, StopAdvisorError
from stopadvisor.ground.printable import printable
from stopadvisor.policy.shown import promised
from stopadvisor.report.headline import questions_to_tell
from stopadvisor.report.saved import (
    QuestionExample,
    ReportData,
    TrajectoryStep,
    WrittenPage,
    read_report,
)
from stopadvisor.report.sheet import Fact, Section, Sheet
from stopadvisor.report.sheets.assess import assess_sheet
from stopadvisor.report.sheets.calibrate import calibrate_sheet
from stopadvisor.report.words import alpha_of, listed, share, shell_quote
from stopadvisor.rules.families import rule_name
from stopadvisor.runs.directory import KeptThinking
from stopadvisor.runs.sources import REPORT
from stopadvisor.runs.storage import encode, replace_file

__all__ = [
    "lost_question", "refresh_report", "render", "sheet_html", "write_report",
]  # fmt: skip

_HERE = Path(__file__).parent
_NUMBER = ' class="number"'
_CHARACTERS = 12_000
"""Most characters to show of one question's thinking."""


def write_report(folder: Path, target: Path | None = None) -> WrittenPage:
    """Write the report of an assessed run to ``report.html`` in it, or to `target`.

    Raises
    ------
    OutputError
        The extra `report` is not installed, or the file cannot be written.
    ProbeError
        The run was not assessed, or a file of `assess` or `calibrate` is damaged.
    """
    require_packages("report", "matplotlib", "jinja2", what="the report", error=OutputError)
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
        remarks=data.remarks,
    )


def refresh_report(folder: Path, *, begin: bool = False) -> list[str]:
    """Write a run's page again, or with `begin` its first one, and return what to tell the user.

    A failure is told, too: the results stand without their page.
    """
    page = folder / REPORT
    existed = page.exists()
    if not (existed or begin):
        return []
    try:
        write_report(folder)
    except StopAdvisorError as error:
        if not existed:
            return [f"no {page.name}: {error}"]
        return [
            f"{page} is out of date and could not be written again: {error}; "
            f"`stopadvisor report {shell_quote(folder)}` does so later"
        ]
    return [f"wrote {page}{' again' * existed}"]


def render(data: ReportData) -> str:
    """Return the page; every text in it is escaped, control characters too."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from stopadvisor.report.html.charts import pictures

    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )  # fmt: skip
    environment.filters |= {
        "section": lambda section: Markup(_section_html(section)),
        "words": lambda text: Markup(_words_html(text)),
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
        few = questions_to_tell(result) is not None
        state = ("bad", "Too few questions" if few else "Nothing to certify")
    return environment.get_template("page.html").render(
        sheet=sheet,
        state=state,
        chosen=() if sheet is chosen else chosen.sections,
        chosen_at=chosen_at,
        result=result,
        provenance=_provenance(result, calibration),
        pictures=pictures(data.result, data.figures),
        lost=[lost_question(example, data.thinking.get(example.id)) for example in examples],
        n_lost=0 if lost is None else lost.n,
        thinking=bool(data.thinking),
        remarks=[*result.remarks, *data.remarks],
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
    )


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


# --- Lost questions ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """The thinking up to a probe, and the probe.  The middle of a long piece is left out."""

    head: str
    left_out: int
    """Number of characters."""
    tail: str
    probe: str
    """The probe in words; empty after the last one."""
    stops: bool
    """Whether a rule stops at it."""


@dataclass(frozen=True)
class LostQuestion:
    """One question as the template writes it."""

    id: str
    title: str
    question: str | None
    others: str
    """Where the other compared rules stop, in words."""
    pieces: tuple[_Piece, ...]


def lost_question(example: QuestionExample, kept: KeptThinking | None) -> LostQuestion:
    """Put a lost question into words; `kept` is None if the run keeps no thinking."""
    stop = example.steps[example.stop]
    answer = "" if stop.answer is None else f" with {stop.answer!r}"
    gold = "" if example.gold is None else f"; {example.gold!r} is right"
    title = (
        f"{example.id}: stopped at {stop.budget} of {example.trace_tokens} thinking tokens"
        f"{answer}{gold}"
    )
    endings = []
    for other in example.others:
        verdict = "right" if other.correct else "wrong"
        does = "thinks to the end" if other.position is None else f"stops at {other.position}"
        endings.append(f"{rule_name(other.family)} {does} ({verdict})")
    others = f"At the same promise {listed(endings)}." if endings else ""
    return LostQuestion(example.id, title, example.question, others, _pieces(example, kept))


def _pieces(example: QuestionExample, kept: KeptThinking | None) -> tuple[_Piece, ...]:
    """Cut the thinking at its probes, and where a rule stops without a probe."""
    stops = {example.steps[example.stop].budget: [rule_name(example.family)]}
    for other in example.others:
        if other.position is not None:
            stops.setdefault(other.position, []).append(rule_name(other.family))
    steps = {step.budget: step for step in example.steps}
    positions = sorted({*steps, *stops})
    text, known = "", dict.fromkeys(positions, 0)
    if kept is not None:
        text, known = kept.text, dict(kept.characters)
        positions = [at for at in positions if at in known]
    cuts = [0, *(known[at] for at in positions), len(text)]
    most = _CHARACTERS // (2 * len(cuts))
    probes = [(_probe(at, steps.get(at), stops.get(at, [])), at in stops) for at in positions]
    pieces = []
    for (start, end), (probe, stopping) in zip(pairwise(cuts), [*probes, ("", False)], strict=True):
        thought = text[start:end]
        out = max(0, len(thought) - 2 * most)
        head, tail = (thought[:most], thought[-most:]) if out else (thought, "")
        pieces.append(_Piece(head, out, tail, probe, stopping))
    return tuple(pieces)


def _probe(at: int, step: TrajectoryStep | None, stops: list[str]) -> str:
    words = [f"{at} tokens"]
    if step is not None:
        answer = "answer" if step.answer is None else repr(step.answer)
        words.append(f"{answer} {'right' if step.correct else 'wrong'}")
        if step.confidence is not None:
            words.append(f"confidence {share(step.confidence)}")
    return ", ".join(words) + (f" | stops: {', '.join(stops)}" if stops else "")


# --- Sheets ---------------------------------------------------------------------------------------


def sheet_html(sheet: Sheet) -> str:
    """Return a sheet: headline, facts, next command, sections, footnote."""
    parts = [f"<p><strong>{_text(sheet.headline)}</strong></p>", *_facts(sheet.facts)]
    if sheet.command is not None:
        name, command = _text(sheet.command_name), _text(sheet.command)
        parts.append(f"<p>{name}: <code>{command}</code></p>")
    for section in sheet.sections:
        if section.title:
            parts.append(f"<p><strong>{_text(section.title)}</strong></p>")
        parts.append(_section_html(section))
    if sheet.footnote:
        parts.append(f"<p><small>{_text(sheet.footnote)}</small></p>")
    return f"<div>{''.join(parts)}</div>"


def _section_html(section: Section) -> str:
    """Return a section without its title: a table or facts, then paragraphs."""
    return "".join((*_rows(section), *(f"<p>{_words_html(text)}</p>" for text in section.texts)))


def _words_html(text: str) -> str:
    """Mark commands between backticks as code, and keep signs next to their numbers."""
    parts = _text(text.replace(" %", "%")).replace("&gt; ", "&gt;\u00a0").split("`")
    return "".join(f"<code>{p}</code>" if k % 2 else p for k, p in enumerate(parts))


def _rows(section: Section) -> Iterator[str]:
    if not section.header:
        yield from _facts([(name, value) for name, value in section.rows])
        return
    # As on the screen: the first columns are aligned left, and so is a last one without a name.
    numeric = [k >= section.left and bool(name) for k, name in enumerate(section.header)]
    head = _cells(section.header, numeric, 'th scope="col"')
    rows = "".join(f"<tr>{_cells(row, numeric)}</tr>" for row in section.rows)
    yield f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(row: Sequence[str], numeric: Sequence[bool], tag: str = "td") -> str:
    return "".join(
        f"<{tag}{_NUMBER * n}>{_words_html(value)}</{tag[:2]}>"
        for value, n in zip(row, numeric, strict=True)
    )


def _facts(facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    if facts:
        rows = "".join(
            f'<tr><th scope="row">{_text(name)}</th><td>{_words_html(value)}</td></tr>'
            for name, value in facts
        )
        yield f"<table><tbody>{rows}</tbody></table>"


def _text(text: str) -> str:
    return escape(printable(text))
