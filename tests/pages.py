"""Report pages for tests: their data, how to read them, and questions that attack them."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from stopadvisor.answers.grading import GRADING, Grader
from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.fit_assessment import assess
from stopadvisor.collection.collect import collect
from stopadvisor.report.headline import assessed_headline
from stopadvisor.report.saved import ReportData, read_report, save_assessment
from stopadvisor.runs.directory import THINKING, RunDirectory
from stopadvisor.runs.manifest import build_manifest
from stopadvisor.runs.sources import open_source
from stopadvisor.workload.questions import read_workload
from tests.material import PLAN
from tests.scripted import ScriptedEngine, write_sums

__all__ = ["HOSTILE", "HOSTILE_THINKING", "Page", "hostile_run", "report_data", "think"]

HOSTILE = "</blockquote></svg><script>alert(1)</script><img src=x onerror=alert(2)>&\"'{{ 7*7 }}"
"""Text that a question may contain; a page must show it literally."""
HOSTILE_THINKING = f"{HOSTILE}</script></think>\u202etxet\x1b]0;title\x07\u2028{'a' * 30_000}"
"""What a model may think: the end of a script, a marker, control characters, one endless word."""


class Page(HTMLParser):
    """Ids, tags and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if found.get("id"):
            self.ids.append(str(found["id"]))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def report_data(path: Path, settings: Settings) -> ReportData:
    """What a run's page shows after an assessment with these settings."""
    assessment = assess(open_source(path), settings)
    result = assessment.result()
    result = replace(result, headline=assessed_headline(result))
    save_assessment(assessment.source, result, assessment.choice)
    return read_report(path)


def hostile_run(path: Path, n: int = 300) -> Path:
    """A run whose questions end with `HOSTILE`, with `HOSTILE_THINKING` before their thinking."""
    path.mkdir(parents=True)
    file = write_sums(path.parent / f"{path.name}-hostile.jsonl", n)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({**row, "question": f"{row['question']} {HOSTILE}"}) for row in rows]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    workload, engine = read_workload(file), ScriptedEngine()
    manifest = build_manifest(
        engine.identity(), PLAN, workload, fractions=(0.4, 0.4, 0.2), grading=GRADING
    )
    run = RunDirectory.create(path, manifest)
    with Grader() as grader:
        collect(engine, workload, run, batch_size=64, grader=grader)
    think(path, HOSTILE_THINKING)
    return path


def think(path: Path, first: str) -> None:
    """Put a text before the thinking about each question of a run."""
    file = path / THINKING
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row["thinking"] = first + row["thinking"]
        row["characters"] = {at: len(first) + n for at, n in row["characters"].items()}
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
