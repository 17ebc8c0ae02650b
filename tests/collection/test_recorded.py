"""Recorded traces: their cap, and probing with them from the command line to the manifest."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.collection.pilot import recorded_cap
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.policy.frozen import load_policy
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.workload.questions import Question, RecordedTrace
from tests.collection.test_collect import Remarks
from tests.material import CERTIFY, Call
from tests.scripted import ScriptedEngine, write_sums

PLAN = ProbePlan((), cue="\n\nFinal answer:", max_think=100, answer_cap=8)


def cap(*traces: tuple[str, str | None], auto: bool = True) -> tuple[int, list[str]]:
    progress = Remarks()
    recorded = [RecordedTrace(f"t.jsonl:{n}", *trace) for n, trace in enumerate(traces, start=1)]
    questions = [Question("q", "k", (), None, "exact", traces=tuple(recorded))]
    found = recorded_cap(ScriptedEngine(), questions, PLAN, auto=auto, progress=progress)
    return found, progress.lines


def test_the_cap_is_where_recorded_thinking_was_cut() -> None:
    assert cap(("x" * 200, "7"), ("x" * 120, None)) == (100, [])
    found, said = cap(("x" * 200, "7"), ("x" * 60, None), ("x" * 50, None))
    assert found == 50
    assert said == ["max-think: 50 tokens, at which recorded thinking was cut (t.jsonl:3)"]
    ended = Question("q", "k", (), None, "exact", traces=(RecordedTrace("t:1", "x", None, True),))
    assert recorded_cap(ScriptedEngine(), [ended], PLAN, auto=True, progress=Remarks()) == 100
    with pytest.raises(WorkloadError, match=r"t.jsonl:2: .* at --max-think 100, got 60 tokens"):
        cap(("x", "7"), ("x" * 60, None), auto=False)
    with pytest.raises(WorkloadError, match=r"t.jsonl:1: .* at least one token, got 0 tokens"):
        cap(("", None))


def test_thinking_that_continues_after_a_closer_is_refused() -> None:
    closer = ScriptedEngine().identity()["think_close"]["text"]
    with pytest.raises(WorkloadError, match=r"t.jsonl:1: .* closer, got '</think>' inside it"):
        cap((f"a{closer}b", "7"))


# --- From the command line ------------------------------------------------------------------------


class Reader(ScriptedEngine):
    """Records the traces that it was given."""

    read: list[RecordedTrace] = []  # noqa: RUF012

    def probe_each(self, prompts: Sequence[Any], *rest: Any) -> Any:
        self.read += [prompt.recorded for prompt in prompts if prompt.recorded]
        return super().probe_each(prompts, *rest)


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """The command line in a folder with sums and traces of them."""
    monkeypatch.chdir(tmp_path)
    Reader.read.clear()
    monkeypatch.setattr(
        "stopadvisor.engines.engine_settings.start_engine", lambda options: Reader()
    )
    traces(write_sums(Path("sums.jsonl"), 300))
    return Call(capsys)


def traces(workload: Path, **fields: Any) -> None:
    """Write traces of a workload's questions, in another order."""
    rows = [json.loads(line) for line in workload.read_text().splitlines()]
    recorded = [{"thinking": f"So {row['gold']}.", "reply": row["gold"], **fields} for row in rows]
    lines = [
        json.dumps({"question": row["question"], "traces": [trace, trace][: 1 + number % 2]})
        for number, (row, trace) in enumerate(zip(rows, recorded, strict=True))
    ]
    Path("traces.jsonl").write_text("\n".join(reversed(lines)) + "\n", encoding="utf-8")


PROBE = ("probe", "sums.jsonl", "--traces", "traces.jsonl", "--budgets", "0,16,64")


def test_recorded_traces_are_used_and_noted_in_the_manifest(call: Call) -> None:
    code, out, err = call(*PROBE, "--json")
    assert code == 0
    run = RunDirectory.load(Path(json.loads(out)["run"]))
    assert run.manifest["traces"]["path"] == "traces.jsonl"
    assert len({trace.thinking for trace in Reader.read}) > 100
    assert "left out" not in err
    # The same command continues the run; another file of traces, or none, is another run.
    assert json.loads(call(*PROBE, "--json")[1])["new"] == 0
    words = (*PROBE, "--out", str(run.path))
    traces(Path("sums.jsonl"), thinking="Other.")
    code, _, err = call(*words)
    assert code == 2
    assert re.search(r"holds another run: recorded: .* there, .* now", err)
    assert call("probe", "sums.jsonl", *words[4:])[0] == 2


def test_what_is_missing_is_named(call: Call) -> None:
    code, _, err = call(*PROBE, "--samples", "2")
    assert (code, err) == (
        2,
        "stopadvisor: sums.jsonl:1: question 'q0': expected 2 recorded traces in traces.jsonl, "
        "got 1\n",
    )


def test_traces_of_other_questions_are_counted(call: Call) -> None:
    write_sums(Path("sums.jsonl"), 200)
    assert "left out 150 recorded traces, of questions that sums.jsonl lacks" in call(*PROBE)[2]


@pytest.mark.slow
def test_a_policy_knows_that_its_thinking_was_recorded(call: Call) -> None:
    assert call(*PROBE, "--out", "run")[0] == 0
    code, out, _ = call("calibrate", *CERTIFY, "run", "--alpha", "0.15", "--json")
    assert code in (0, 3)
    policy = load_policy(json.loads(out)["policy"])
    sha256 = RunDirectory.load(Path("run")).manifest["traces"]["sha256"]
    assert policy.content["sampling"]["recorded"] == sha256
    identity = ScriptedEngine().identity()
    drawn = {"greedy": True, "temperature": None}
    remarks = policy.check_source(identity, "full", sampling=drawn)
    assert "thinking was drawn here, recorded at calibration: nothing shows that" in remarks[0]
    name = json.loads(out)["policy"]
    assert re.search(rf"Made from.* thinking +{sha256[:16]}", call("inspect", name)[1], re.DOTALL)
    write_sums(Path("fresh.jsonl"), 100, start=300)
    _, _, err = call("probe", "fresh.jsonl", "--like", name)
    assert "the policy's thinking was recorded, here it is drawn: nothing shows" in err
    traces(Path("fresh.jsonl"))
    _, _, err = call("probe", "fresh.jsonl", "--like", name, "--traces", "traces.jsonl")
    assert "nothing shows" not in err
