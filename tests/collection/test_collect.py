"""The probing loop: batches, resuming, interrupts, memory, budgets and regrading."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.answers.grading import GRADING, Grader
from stopadvisor.cli.main import main
from stopadvisor.collection.collect import ask_all, collect, make_prompts
from stopadvisor.collection.grades import (
    check_grader,
    grade_traces,
    regrade,
    regrade_run,
    remarks_on_grader,
)
from stopadvisor.engines import OutOfMemory
from stopadvisor.ground.errors import EngineError, GraderError, ProbeError
from stopadvisor.ground.progress import Progress
from stopadvisor.probes.asking import Capabilities, ProbePlan, Prompt, RawTrace
from stopadvisor.probes.table import NO_PROBE
from stopadvisor.runs.directory import RunDirectory, read_thinking
from stopadvisor.runs.manifest import build_manifest, engine_of
from stopadvisor.runs.sources import open_source
from stopadvisor.workload.questions import Workload, read_workload
from tests.scripted import WAIT, ScriptedEngine, write_sums
from tests.slow_probe import OPTIONS

PLAN = ProbePlan(budgets=(0, 16, 32, 64), cue="\n\nFinal answer:", max_think=256)
MARKED = replace(PLAN, schedule="marker", markers=((WAIT,),), max_markers=3).with_stride(20)
ROOT = Path(__file__).parent.parent.parent


class Remarks(Progress):
    """A `Progress` that records everything."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int, int]] = []
        self.traces = self.tokens = 0
        self.lines: list[str] = []

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self.stages.append((title, total, done))

    def advance(self, traces: int, tokens: int) -> None:
        self.traces += traces
        self.tokens += tokens

    def remark(self, text: str) -> None:
        self.lines.append(text)


class Bench:
    """A workload and a run on which to call `collect` repeatedly."""

    def __init__(self, folder: Path, n: int = 30, plan: ProbePlan = PLAN) -> None:
        folder.mkdir(exist_ok=True)
        self.plan = plan
        self.file = write_sums(folder / "sums.jsonl", n)
        self.path = folder / "run"
        self.progress = Remarks()

    @property
    def workload(self) -> Workload:
        return read_workload(self.file)

    @property
    def run(self) -> RunDirectory:
        self.path.mkdir(exist_ok=True)
        manifest = build_manifest(
            ScriptedEngine().identity(), self.plan, self.workload,
            fractions=(0.4, 0.4, 0.2), grading=GRADING,
        )  # fmt: skip
        return RunDirectory.resume(self.path, manifest) or RunDirectory.create(self.path, manifest)

    @property
    def probes(self) -> bytes:
        return self.run.probes_path.read_bytes()

    def collect(self, engine: Any = None, **options: Any) -> int:
        options.setdefault("batch_size", 4)
        with Grader() as grader:
            return collect(
                engine or ScriptedEngine(), self.workload, self.run,
                grader=grader, progress=self.progress, **options,
            )  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench")


@pytest.fixture
def uninterrupted(tmp_path: Path) -> Callable[[int], bytes]:
    def probes(n: int) -> bytes:
        whole = Bench(tmp_path / "whole", n)
        whole.collect()
        return whole.probes

    return probes


# --- Collecting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tells", [True, False])
def test_collect_grades_every_question_once(bench: Bench, tells: bool) -> None:
    done = bench.collect(ScriptedEngine(tells_tokens=tells))
    records = bench.run.records()
    assert done == 30
    assert [r.id for r in records] == [f"q{i}" for i in range(30)]
    assert bench.progress.stages == [("probing", 30, 0)]
    assert bench.progress.traces == 30
    assert bench.progress.tokens == sum(
        r.trace_tokens + r.natural_answer_tokens + sum(c.probe_tokens for c in r.checkpoints)
        for r in records
    )
    for r in records:
        assert r.natural_answer is not None
        assert r.natural_correct == r.natural_answer.endswith(f": {r.gold}")
        assert [c.budget for c in r.checkpoints] == [0, 16, 32, 64]
        for c in r.checkpoints:
            assert c.normalized == c.answer.strip()
            assert c.correct == (c.normalized == r.gold)
            assert c.ended == (r.trace_tokens <= c.budget)
    table = bench.run.table().unseal()
    assert table.correct.any()
    assert not table.correct.all()


def test_continuing_with_another_version_of_the_engine_is_remarked_on(bench: Bench) -> None:
    class Newer(ScriptedEngine):
        def identity(self) -> dict[str, Any]:
            return {**super().identity(), "engine_version": "2"}

    bench.collect(limit=10)
    bench.collect(Newer(), limit=10)  # nothing is left to probe
    assert "further_versions" not in bench.run.manifest
    bench.collect(Newer())
    assert engine_of(bench.run.manifest)["engine_version"] == "1, 2"
    assert any("continues with 2" in remark for remark in bench.progress.lines)


def test_samples_are_distinct_traces_of_the_same_question(bench: Bench) -> None:
    bench.collect(samples=2, limit=5)
    records = bench.run.records()
    assert [(r.id, r.sample) for r in records] == [(f"q{i}", s) for s in (0, 1) for i in range(5)]
    assert [r.trace_tokens for r in records[:5]] != [r.trace_tokens for r in records[5:]]


@pytest.mark.parametrize("stop_after", [0, 5])
def test_an_interrupt_keeps_what_was_finished(
    bench: Bench, uninterrupted: Callable[[int], bytes], stop_after: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        bench.collect(ScriptedEngine(stop_after=stop_after))
    assert len(bench.run.records()) == 4 * stop_after
    if stop_after:  # a run without a trace is refused anyway
        with pytest.raises(ProbeError, match="10 of 30 traces are missing"):
            open_source(bench.path).require_whole()
    assert bench.collect() == 30 - 4 * stop_after
    open_source(bench.path).require_whole()
    assert bench.probes == uninterrupted(30)


def test_thinking_is_kept_for_people_to_read(bench: Bench) -> None:
    bench.collect(limit=10)
    file = bench.run.path / "thinking.jsonl"
    with open(file, "ab") as torn:
        torn.write(b'{"id": "q1", "thin')
    bench.collect()
    wanted = {question.id for question in bench.workload.questions}
    kept = read_thinking(bench.run.path, wanted)
    assert set(kept) == wanted
    for record in bench.run.records():
        thought = kept[record.id]
        assert len(thought.text.split()) == record.trace_tokens
        live = [c.budget for c in record.checkpoints if not c.ended]
        assert sorted(thought.characters) == live
        assert [len(thought.text[: thought.characters[at]].split()) for at in live] == live


def test_more_questions_and_a_higher_limit_continue_the_run(
    bench: Bench, uninterrupted: Callable[[int], bytes]
) -> None:
    bench.collect(limit=10)
    bench.collect(limit=22)
    bench.collect()
    write_sums(bench.file, 50)
    assert bench.collect() == 20
    engine = ScriptedEngine()
    assert bench.collect(engine) == len(engine.calls) == 0
    assert bench.probes == uninterrupted(50)
    assert bench.run.manifest["workload"]["n_questions"] == 50


def test_a_batch_with_finished_members_is_asked_again_whole(
    bench: Bench, uninterrupted: Callable[[int], bytes]
) -> None:
    bench.collect()
    lines = bench.probes.splitlines(keepends=True)
    bench.run.probes_path.write_bytes(b"".join(lines[:9]) + lines[9][:20])
    engine = ScriptedEngine()
    bench.collect(engine)
    keys = [q.key for q in bench.workload.questions]
    assert engine.calls[0][0] == tuple(keys[8:12])
    assert bench.probes == uninterrupted(30)
    assert any("half-written" in line for line in bench.progress.lines)


@pytest.mark.integration
def test_a_killed_process_resumes_byte_for_byte(
    tmp_path: Path, uninterrupted: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = write_sums(tmp_path / "sums.jsonl", 60), tmp_path / "killed"
    command = [sys.executable, "-m", "tests.slow_probe", str(file), str(out), "0.1"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while _lines(out) < 20:
        assert time.monotonic() < deadline, "the run never got that far"
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert _lines(out) < 60
    started = "stopadvisor.engines.engine_settings.start_engine"
    monkeypatch.setattr(started, lambda options: ScriptedEngine())
    assert main(["probe", str(file), "--out", str(out), *OPTIONS]) == 0
    assert (out / "probes.jsonl").read_bytes() == uninterrupted(60)


def _lines(out: Path) -> int:
    file = out / "probes.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


# --- Refusals -------------------------------------------------------------------------------------


def test_probes_of_another_workload_are_refused(bench: Bench) -> None:
    bench.collect(limit=4)
    write_sums(bench.file, 30, start=100)
    with pytest.raises(ProbeError, match="no question in common"):
        bench.collect()


def test_an_id_that_changed_its_question_is_refused(bench: Bench) -> None:
    bench.collect()
    text = bench.file.read_text()
    bench.file.write_text(text.replace("What is 3 +", "What is 4 +"))
    with pytest.raises(ProbeError, match="another question under the id 'q3'"):
        bench.collect()


def test_a_group_that_came_later_is_refused(bench: Bench) -> None:
    """The split was drawn without it, so the group may be on both sides already."""
    bench.collect()
    rows = [json.loads(line) for line in bench.file.read_text().splitlines()]
    bench.file.write_text("".join(json.dumps(row | {"group": "g"}) + "\n" for row in rows))
    with pytest.raises(ProbeError, match="a split is never drawn again"):
        bench.collect()


def test_questions_dropped_from_the_workload_are_kept_with_a_remark(bench: Bench) -> None:
    bench.collect()
    write_sums(bench.file, 25)
    assert bench.collect() == 0
    assert len(bench.run.records()) == 30
    assert any("5 questions of the run are not in" in line for line in bench.progress.lines)


class Faulty(ScriptedEngine):
    """Changes what the scripted engine answers."""

    def __init__(self, change: Callable[[list[RawTrace]], list[RawTrace]]) -> None:
        super().__init__()
        self.change = change

    def probe(self, prompts: Any, plan: ProbePlan) -> list[RawTrace]:
        return self.change(super().probe(prompts, plan))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda t: t[:-1], "must answer 4 prompts, got 3", id="too few"),
        pytest.param(
            lambda t: [replace(x, probes=x.probes[1:]) for x in t],
            r"must probe at budgets \[0, 16, 32, 64\], got \[16, 32, 64\]",
            id="other budgets",
        ),
    ],
)
def test_an_engine_that_breaks_its_contract_is_refused(
    bench: Bench, change: Callable[[list[RawTrace]], list[RawTrace]], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        bench.collect(Faulty(change))
    assert bench.run.records() == []


# --- All questions at once ------------------------------------------------------------------------


class Streaming(ScriptedEngine):
    """Answers all questions before the first answer is read."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(batched=False)

    def probe_each(
        self, prompts: Any, plan: ProbePlan, on_tokens: Callable[[int], None] | None = None
    ) -> Iterator[tuple[int, RawTrace]]:
        yield from reversed(list(enumerate(super().probe(prompts, plan))))


# --- Positions of each trace's own ----------------------------------------------------------------


def test_each_trace_has_its_own_positions(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "marked", plan=MARKED)
    bench.collect()
    for record in bench.run.records():
        markers = record.marker_positions
        assert markers is not None
        stride = range(20, record.trace_tokens, 20)
        assert {c.budget for c in record.checkpoints} == {*stride, *markers[:3]} - {0}
        assert not any(c.ended for c in record.checkpoints)
    table = bench.run.table().unseal()
    assert not table.is_grid
    assert table.marker_positions is not None
    assert (table.marker_positions != NO_PROBE).sum(axis=1).max() > 3
    assert table.live.sum() == sum(len(r.checkpoints) for r in bench.run.records())


def test_ragged_records_resume_byte_for_byte(tmp_path: Path) -> None:
    whole, broken = (Bench(tmp_path / name, plan=MARKED) for name in ("whole", "broken"))
    whole.collect()
    with pytest.raises(KeyboardInterrupt):
        broken.collect(ScriptedEngine(stop_after=3))
    assert 0 < broken.run.table().unseal().n_questions < 30
    broken.collect()
    assert broken.probes == whole.probes
    assert len({len(r.checkpoints) for r in whole.run.records()}) > 2


def test_a_run_of_a_grid_keeps_its_id(bench: Bench) -> None:
    """Existing runs keep their names and records."""
    assert bench.run.manifest["id"] == "04bde2e3"
    bench.collect()
    assert b"marker_positions" not in bench.probes


def test_what_is_graded_is_kept_when_grading_is_interrupted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def impatient(questions: Any, *rest: Any, **options: Any) -> Any:
        asked.extend(q.id for q in questions)
        if len(asked) > 3:
            raise KeyboardInterrupt
        return grade_traces(questions, *rest, **options)

    monkeypatch.setattr("stopadvisor.collection.collect.grade_traces", impatient)
    with pytest.raises(KeyboardInterrupt):
        bench.collect(Streaming())
    assert [r.id for r in bench.run.records()] == ["q29", "q28", "q27"]
    monkeypatch.undo()
    assert bench.collect(Streaming()) == 27
    assert sorted(r.id for r in bench.run.records()) == sorted(f"q{i}" for i in range(30))


# --- Memory ---------------------------------------------------------------------------------------


def test_the_batch_halves_until_it_fits_and_the_run_remembers(
    bench: Bench, uninterrupted: Callable[[int], bytes]
) -> None:
    engine = ScriptedEngine(memory=3)
    bench.collect(engine, batch_size=13)
    assert bench.run.manifest["batch_size"] == 3
    assert bench.progress.lines[0] == "out of memory with 13 questions at once; going on with 6"
    assert bench.probes == uninterrupted(30)


def test_halving_in_the_middle_asks_every_question_once(bench: Bench) -> None:
    bench.collect(batch_size=5, limit=10)
    bench.collect(ScriptedEngine(memory=2), batch_size=5)
    assert [r.id for r in bench.run.records()] == [f"q{i}" for i in range(30)]


class Trickling(ScriptedEngine):
    """Hands traces out one by one, the last first, and finds out late that they do not fit."""

    def __init__(self, progress: Remarks, fits: int) -> None:
        super().__init__()
        self.progress, self.fits = progress, fits
        self.seen: list[int] = []

    def probe_each(
        self, prompts: Sequence[Prompt], plan: ProbePlan, *_: Any
    ) -> Iterator[tuple[int, RawTrace]]:
        traces, before = self.probe(prompts, plan), self.progress.traces
        for number in reversed(range(len(prompts))):
            if len(prompts) > self.fits and number == 0:
                raise OutOfMemory("scripted: the last does not fit")
            yield number, traces[number]
            self.seen.append(self.progress.traces - before)


def test_traces_are_counted_as_they_come_and_each_once(
    bench: Bench, uninterrupted: Callable[[int], bytes]
) -> None:
    engine = Trickling(bench.progress, fits=4)
    bench.collect(engine, batch_size=8)
    assert engine.seen[:11] == [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4]  # 8 do not fit, 4 do
    assert bench.progress.traces == 30
    assert bench.probes == uninterrupted(30)
    # Of a batch that is asked again because half of it is missing, half is counted.
    lines = bench.probes.splitlines(keepends=True)
    bench.run.probes_path.write_bytes(b"".join(lines[:-4]))
    bench.collect(Trickling(bench.progress, fits=8), batch_size=8)
    assert bench.progress.stages[-1] == ("probing", 30, 26)
    assert bench.progress.traces == 30 + 4
    assert bench.probes == uninterrupted(30)


def test_a_pilot_keeps_its_order_where_memory_runs_out(bench: Bench) -> None:
    questions, plan = bench.workload.questions[:6], bench.run.plan
    prompts, late = make_prompts(questions, None), Trickling(bench.progress, fits=3)
    asked = ask_all(late, prompts, plan, batch_size=6, progress=bench.progress)
    assert asked == ScriptedEngine().probe(prompts, plan)
    assert bench.progress.traces == 6


def test_a_question_that_does_not_fit_alone_is_an_error(bench: Bench) -> None:
    with pytest.raises(OutOfMemory):
        bench.collect(ScriptedEngine(memory=0))


# --- Graded by a function ---


def test_natural_answers_are_compared_with_gold_too(bench: Bench) -> None:
    bench.collect()
    run = bench.run
    run.annotate(grading=GRADING | {"grader": "m:f", "grader_sha256": "0" * 64})
    lines = run.probes_path.read_text().replace(
        '"natural_correct": true', '"natural_correct": false'
    )
    run.probes_path.write_text(lines)
    (remark,) = remarks_on_grader(run)
    assert re.search(r"differs from comparison with gold on [1-9]\d* of \d+ distinct", remark)


# --- Without gold -------------------------------------------------------------------------------


def test_questions_without_gold_are_recorded_without_grades(bench: Bench) -> None:
    lines = bench.file.read_text().splitlines(keepends=True)
    write_sums(bench.file, 30, gold=False)
    bare = bench.file.read_text().splitlines(keepends=True)
    bench.file.write_text("".join(lines[:3] + bare[3:]))
    bench.collect()
    records = bench.run.records()
    assert [r.is_graded for r in records] == [True] * 3 + [False] * 27
    for r in records[3:]:
        assert (r.gold, r.natural_correct, {c.correct for c in r.checkpoints}) == (
            None,
            None,
            {None},
        )
    table = bench.run.table().unseal()
    assert table.graded_by == "agreement"
    assert table.full_correct.all()
    # Gold that is added later grades the recorded answers.
    bench.file.write_text("".join(lines))
    assert bench.collect() == 0
    assert any("gold of 27 questions has changed" in s for s in bench.progress.lines)
    with Grader() as grader:
        assert regrade(bench.run, grader, bench.workload) == 27
    graded = Bench(bench.path.parent / "graded")
    graded.collect()
    assert graded.probes == bench.probes


def test_only_repeated_questions_get_a_second_trace(bench: Bench) -> None:
    chosen = bench.workload.questions[3:6]
    assert bench.collect(repeated=chosen) == 33
    second = [r for r in bench.run.records() if r.sample == 1]
    assert [r.id for r in second] == ["q3", "q4", "q5"]
    assert bench.collect(repeated=chosen, samples=2) == 27
    assert bench.collect(repeated=chosen) == 0


# --- Grading again --------------------------------------------------------------------------------


def test_regrading_takes_new_gold_and_keeps_the_raw_texts(bench: Bench) -> None:
    bench.collect()
    before = bench.run.records()
    bench.file.write_text(bench.file.read_text().replace('"gold": "0"', '"gold": "999"'))
    assert bench.collect() == 0  # relabelling moves no question to another run
    assert any("gold of 1 questions has changed" in s for s in bench.progress.lines)
    with Grader() as grader:
        assert regrade(bench.run, grader) == 0
        assert bench.run.records() == before
        assert regrade(bench.run, grader, bench.workload) == 1
    after = bench.run.records()
    assert after[1:] == before[1:]
    assert after[0].gold == "999"
    assert not any(c.correct for c in after[0].checkpoints)
    assert [c.answer for c in after[0].checkpoints] == [c.answer for c in before[0].checkpoints]


def test_without_its_workload_a_run_keeps_its_gold(bench: Bench) -> None:
    bench.collect(limit=8)
    before = bench.run.records()
    bench.run.annotate(workload={**bench.run.manifest["workload"], "path": "gone.jsonl"})
    regrade_run(bench.path, bench.progress)
    assert "graded against the recorded gold" in bench.progress.lines[-2]
    assert bench.run.records() == before


def test_two_ways_of_grading_never_mix(bench: Bench) -> None:
    bench.collect(limit=8)
    bench.run.annotate(grading={"normalizer": "0", "grader": "old"})
    with pytest.raises(ProbeError, match=r"graded with grader old, normalizer 0.*use --regrade"):
        bench.collect()
    assert bench.collect(limit=8) == 0
    with Grader() as grader:
        regrade(bench.run, grader)
    assert bench.collect() == 22


def test_a_run_that_a_function_graded_is_compared_with_gold_where_gold_is_named(
    bench: Bench,
) -> None:
    bench.collect(limit=8)
    check_grader(bench.run, None)
    bench.run.annotate(grading={"grader": "mine:same", "grader_sha256": "ab" * 32})
    with pytest.raises(GraderError, match="was graded by mine:same: name it with --grader"):
        check_grader(bench.run, None)
    for named in ("gold", "mine:same"):
        check_grader(bench.run, named)
