"""Recording a ladder: every reply once, whatever interrupts it, and what it warns of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.certification.certify import unjudged
from stopadvisor.cli.main import main
from stopadvisor.collection.model_checks import PREFLIGHT_QUESTIONS
from stopadvisor.collection.rung_recording import ASKED
from stopadvisor.engines.engine_settings import EngineSettings
from stopadvisor.engines.openai.rung_servers import open_rungs
from stopadvisor.ground.errors import ProbeError
from stopadvisor.policy.frozen import load_policy
from stopadvisor.policy.requests import RungAnswer
from stopadvisor.probes.asking import Prompt
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.ladder import Rung, read_ladder
from stopadvisor.runs.sources import open_source
from tests.engines.rung_server import RungServer, Said, ladder_toml, number_of, rung_server, say
from tests.runs.test_replies import written
from tests.schemas import check_valid

pytestmark = pytest.mark.slow

N = 80
FEW = ("--limit", "20")
"""Besides the first sixteen fit questions."""
RUNGS: list[dict[str, Any]] = [
    {"name": "small", "model": "tiny", "max_tokens": 800, "price": [1.0, 0.5, 1.0]},
    {"name": "large", "model": "big", "price": [10.0, 1.0, 10.0]},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [{"id": f"q{k}", "question": f"Say {k} aloud", "gold": str(k)} for k in range(N)]
    written(tmp_path / "work.jsonl", lines)
    return tmp_path


def ladder_at(folder: Path, url: str, rungs: list[dict[str, Any]] = RUNGS) -> None:
    ladder_toml(folder / "ladder.toml", rungs, url)


def record(*words: str, command: str = "probe", code: int = 0) -> None:
    given = [command, "work.jsonl", "--ladder", "ladder.toml", "--out", "run", "--quiet"]
    assert main([*given, *words]) == code


def asked_of(server: RungServer) -> Counter[tuple[str, int]]:
    return Counter(
        (body["model"], number_of(body["messages"][-1]["content"])) for body in server.asked
    )


def test_every_rung_is_asked_every_question_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rung_server(say) as server:
        ladder_at(folder, server.url)
        record("--json")
        found = json.loads(capsys.readouterr().out)
        record()
        asked = asked_of(server)
    check_valid("probe", found)
    # The preflight asks the reference twice, to compare it with itself.
    assert len(asked) == 2 * N == asked.total() - PREFLIGHT_QUESTIONS
    assert (found["schedule"], found["questions"], found["new"]) == ("ladder", N, N)
    assert [row["name"] for row in found["rungs"]] == ["small", "large"]
    cut = 0
    for reply in RunDirectory.load(Path("run")).replies():
        small, large = reply.rungs
        assert large.normalized == reply.gold
        assert (large.correct, large.finished, large.completion_tokens) == (True, True, 300)
        assert small.mean_logprob == pytest.approx(-0.2)
        assert small.finished == bool(small.answer)
        assert small.finished or small.completion_tokens == 800
        cut += not small.finished
        assert all(each.seconds is not None and each.seconds > 0 for each in reply.rungs)
        assert small.correct == (small.finished and small.normalized == reply.gold)
    assert found["rungs"][0]["cut"] == cut > 0
    # The task's own words stand around the question, as in probing.
    assert all(len(body["messages"][0]["content"]) > 20 for body in server.asked)


def test_what_was_asked_is_kept_when_a_server_dies(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def dies(model: str, question: str) -> Said:
        if model == "big" and len(server.asked) > 3 * N // 4:  # after the preflight
            server.faults["big"] = "500"
        return say(model, question)

    with rung_server(dies) as server:
        ladder_at(folder, server.url)
        record("--patience", "0", "--concurrency", "4", code=1)
        assert "500" in capsys.readouterr().err
        lines = (folder / "run" / ASKED).read_bytes().splitlines(keepends=True)
        assert N // 4 < len(lines) < 2 * N
        # A kill while a line was written: that reply alone is asked again, unless it is graded.
        (folder / "run" / ASKED).write_bytes(b"".join(lines)[:-20])
        kept = {(row["id"], row["column"]) for row in map(json.loads, lines[:-1])}
        kept |= {(r.id, k) for r in RunDirectory.load(Path("run")).replies() for k in (0, 1)}
        with pytest.raises(ProbeError, match=f"of {N} traces are missing"):
            open_source(Path("run")).require_whole()
        before = len(server.asked)
        server.faults.clear()
        server.say = say
        record()
    assert len(server.asked) - before == 2 * N + PREFLIGHT_QUESTIONS - len(kept)
    replies = RunDirectory.load(Path("run")).replies()
    assert sorted(reply.id for reply in replies) == sorted(f"q{k}" for k in range(N))


def test_a_question_killed_before_its_grade_is_graded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rung_server(say) as server:
        ladder_at(folder, server.url)
        record(*FEW)
        file = folder / "run" / "replies.jsonl"
        whole = file.read_bytes()
        file.write_bytes(whole[:-20])
        assert "`probe` grades its question again" in (RunDirectory.load(Path("run")).torn() or "")
        asked = len(server.asked)
        words = ["probe", "work.jsonl", "--ladder", "ladder.toml", "--out", "run", *FEW]
        assert main(words) == 0
        said = " ".join(capsys.readouterr().err.split())
        assert "half-written; moved to probes.partial, its question is graded again" in said
        assert len(server.asked) == asked
    assert sorted(file.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_replies_are_graded_by_a_function_and_again_by_gold(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    (folder / "even_alone.py").write_text(
        "def right(question, gold, answer):\n"
        "    if gold.endswith('9'):\n"
        "        return None\n"
        "    same = f'Say {gold} ' in question and answer.rstrip('.') == gold\n"
        "    return same and int(gold) % 2 == 0\n"
    )
    with rung_server(say) as server:
        ladder_at(folder, server.url)
        record("--grader", "even_alone:right")

    def right() -> set[str]:
        run = RunDirectory.load(Path("run"))
        return {record.id for record in run.replies() if record.rungs[-1].correct}

    assert right() == {f"q{k}" for k in range(0, N, 2)}
    replies = RunDirectory.load(Path("run")).replies()
    assert {r.id for r in replies if r.cannot_tell} == {f"q{k}" for k in range(9, N, 10)}
    source = open_source(Path("run"))
    mine = [name for name in source.part("calibration").ids if name.endswith("9")]
    (said,) = unjudged(source)
    assert f"even_alone:right could not judge answers to {len(mine)} of" in said
    again = ["assess", "run", "--alpha", "0.1", "--no-report", "--quiet", "--regrade"]
    assert main([*again, "--grader", "even_alone:right"]) == 0
    assert right() == {f"q{k}" for k in range(0, N, 2)}
    assert "answers are graded by even_alone:right" in (folder / "run/assessment.json").read_text()
    assert main([*again, "--grader", "gold"]) == 0
    assert right() == {f"q{k}" for k in range(N)}


def test_what_is_recorded_is_calibrated_and_climbed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rung_server(say) as server:
        ladder_at(folder, server.url)
        record("--alpha", "0.1", "--no-report", command="assess")
        words = ["--alpha", "0.1", "--despite", "advice", "--quiet"]
        assert main(["calibrate", "run", *words]) == 0
        policy = load_policy("run/policy.joblib")
        server.asked.clear()
        command = ["run", "run/policy.joblib", "work.jsonl", "--ladder", "ladder.toml"]
        assert main([*command, "--out", "out.jsonl", "--quiet"]) == 0
        sent = {body["messages"][0]["content"] for body in server.asked}
        record_of = {record.id: record for record in RunDirectory.load(Path("run")).replies()}
    assert policy.terms.prompt_template is not None
    rungs = Counter[str]()
    for line in (folder / "out.jsonl").read_text().splitlines():
        answered = json.loads(line)
        climber, replies = policy.climb(), record_of[answered["id"]].rungs
        first = climber.ask
        assert first is not None
        small = replies[0]
        most = min(first.max_tokens or 10**9, small.completion_tokens)
        served = climber.observe(
            answer=small.answer,
            finished=small.finished and small.completion_tokens == most,
            completion_tokens=most,
            mean_logprob=small.mean_logprob,
        ).serve
        assert answered["climbed"]["rung"] == ("small" if served else "large")
        rungs[answered["climbed"]["rung"]] += 1
    assert min(rungs["small"], rungs["large"]) > 0
    # As they were recorded, template and all.
    first = json.loads((folder / "work.jsonl").read_text().splitlines()[0])["question"]
    assert any(first in text and text != first for text in sent)


def preflight(folder: Path) -> dict[str, dict[str, str]]:
    found = json.loads((folder / "run" / "preflight.json").read_bytes())
    return {check["name"]: check for check in found["checks"]}


EFFORTS: list[dict[str, Any]] = [
    {"name": effort, "model": "big", "reasoning_effort": effort, "price": [1, 1, 1]}
    for effort in ("low", "high")
]


@pytest.mark.parametrize("obeyed", [False, True])
def test_an_effort_that_is_ignored_is_remarked_on(folder: Path, obeyed: bool) -> None:
    with rung_server(say) as server:

        def longer(model: str, question: str) -> Said:
            said = say(model, question)
            is_low = obeyed and server.asked[-1].get("reasoning_effort") == "low"
            return Said(said.text, said.tokens // 3 if is_low else said.tokens)

        server.say = longer
        ladder_at(folder, server.url, EFFORTS)
        record(*FEW, "--concurrency", "1")
    check = preflight(folder)["effort of low and high"]
    assert check["status"] == ("pass" if obeyed else "warn")
    assert ("300 and 300 tokens" in check["detail"]) != obeyed


@pytest.mark.parametrize("repeat", [1, 2])
def test_a_reference_that_differs_from_itself_is_remarked_on(folder: Path, repeat: int) -> None:
    large = {**RUNGS[1], "temperature": 1.0, "repeat": repeat}
    with rung_server(say) as server:

        def moody(model: str, question: str) -> Said:
            return Said(f"The answer is {len(server.asked) % 3}.", 10)

        server.say = moody
        ladder_at(folder, server.url, [RUNGS[0], large])
        record(*FEW, "--concurrency", "1")
        of_large = [n for (model, _), n in asked_of(server).items() if model == "big"]
    # Samples of the reference are compared; if it has one, another is asked for, of few questions.
    once = len(of_large) - PREFLIGHT_QUESTIONS if repeat == 1 else 0
    assert Counter(of_large) == Counter({1: once, 2: len(of_large) - once})
    assert preflight(folder)["large against itself"]["status"] == "warn"
    assert all(len(r.rungs) == 1 + repeat for r in RunDirectory.load(Path("run")).replies())


def test_preflight_alone_says_what_recording_would(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = ["preflight", "work.jsonl", "--ladder", "ladder.toml"]
    with rung_server(say) as server:
        ladder_at(folder, server.url)
        assert main([*alone, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert len(server.asked) == 3 * PREFLIGHT_QUESTIONS
        assert {path.name for path in folder.iterdir()} == {"ladder.toml", "work.jsonl"}
        record(*FEW)
        capsys.readouterr()
        assert main(alone) == 0
        said = capsys.readouterr()
        asked = len(server.asked)
        assert main([*alone, "--grader", "none_such:right"]) == 2
        assert len(server.asked) == asked
        server.faults["tiny"] = "400"
        capsys.readouterr()
        assert main([*alone, "--quiet"]) == 5
        refused = capsys.readouterr().out
        server.faults.update(tiny="500", big="500")
        assert main([*alone, "--patience", "1"]) == 1
        waited = capsys.readouterr().err
        del server.faults["big"]  # a cheap rung that is gone ends it as well
        assert main([*alone, "--quiet", "--patience", "1"]) == 1
    check_valid("preflight-ladder", found)
    assert found["checks"] == list(preflight(folder).values())
    assert [check["name"] for check in found["checks"]] == [
        "rung small", "length of small", "rung large", "length of large", "large against itself"
    ]  # fmt: skip
    assert said.out.startswith("Ready to record: every rung answers (tried on 16 questions).")
    assert "next: stopadvisor assess work.jsonl --ladder ladder.toml" in said.err
    assert refused.startswith("Not ready to record: a rung does not answer")
    assert "FAILED: 0 of 16 replies arrived" in refused
    assert waited.count("waiting for a server, for 1 s at most (--patience): http://127") == 1


def test_a_rung_that_refuses_everything_ends_the_recording(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rung_server(say, tiny="400") as server:
        ladder_at(folder, server.url)
        record(code=5)
        assert len(server.asked) < 80  # sixteen questions, and not all
    assert "rung small" in capsys.readouterr().err
    assert preflight(folder)["rung small"]["status"] == "fail"


def test_one_question_that_a_cheap_rung_refuses_climbs(folder: Path) -> None:
    def picky(model: str, question: str) -> Said:
        if model == "tiny" and number_of(question) == 7:
            raise ValueError("too long")
        return say(model, question)

    with rung_server(picky) as server:
        ladder_at(folder, server.url)
        record(*FEW)
    replies = {record.id: record for record in RunDirectory.load(Path("run")).replies()}
    assert len(replies) >= 20
    small = replies["q7"].rungs[0]
    assert (small.finished, small.completion_tokens, small.answer) == (False, 0, "")


def test_a_server_without_log_probabilities_is_asked_without(folder: Path) -> None:
    with rung_server(say, tiny="no-logprobs") as server:
        ladder_at(folder, server.url)
        record(*FEW, "--concurrency", "1")
        refused = [body for body in server.asked if body["model"] == "tiny" and "logprobs" in body]
    assert len(refused) == 1
    replies = RunDirectory.load(Path("run")).replies()
    assert all(record.rungs[0].mean_logprob is None for record in replies)
    assert all(record.rungs[0].completion_tokens > 0 for record in replies)


def test_prices_and_addresses_may_change_between_two_calls(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rung_server(say) as server:
        ladder_at(folder, server.url)
        record(*FEW)
        first = len(asked_of(server))
    with rung_server(say) as server:
        dearer = [RUNGS[0], {**RUNGS[1], "price": [20.0, 2.0, 20.0]}]
        ladder_at(folder, server.url, dearer)
        record("--limit", "40")
        assert first + len(asked_of(server)) == 2 * len(RunDirectory.load(Path("run")).replies())
        ladder = RunDirectory.load(Path("run")).ladder
        assert ladder is not None
        assert ladder.reference.price == (20.0, 2.0, 20.0)
        ladder_at(folder, server.url, [RUNGS[0], {**RUNGS[1], "temperature": 0.5}])
        record(code=2)
    assert "holds another run" in capsys.readouterr().err


def test_every_sample_of_a_model_here_is_another_draw(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server draws anew; here the number of the sample decides."""
    drawn = Counter[tuple[str, str, int]]()

    async def ask(rung: Rung, prompt: Prompt, most: int | None) -> RungAnswer:
        drawn[rung.name, prompt.key, prompt.sample] += 1
        return RungAnswer(finished=True, text="7", completion_tokens=3)

    @contextmanager
    def here(engine: EngineSettings) -> Iterator[Any]:
        assert engine.ladder is not None
        with open_rungs(read_ladder(engine.ladder), concurrency=4, climbs=False, local=ask) as them:
            yield them

    monkeypatch.setattr("stopadvisor.collection.rung_recording.open_ladder", here)
    prices = "price = [1, 1, 1]"
    (folder / "ladder.toml").write_text(
        f'[[rung]]\nname = "small"\nengine = "hf"\nmodel = "m"\nrepeat = 3\n{prices}\n'
        f'[[rung]]\nname = "large"\nengine = "hf"\nmodel = "n"\n{prices}\n'
    )
    record(*FEW)
    assert set(drawn.values()) == {1}
    n = len(RunDirectory.load(Path("run")).replies())
    samples = Counter((name, sample) for name, _, sample in drawn)
    assert samples == {
        **{("small", k): n for k in range(3)}, ("large", 0): n, ("large", 1): PREFLIGHT_QUESTIONS
    }  # fmt: skip


@pytest.mark.parametrize("words", [["--budgets", "0,8"], ["--regrade"]])
def test_what_ladder_toml_says_is_no_option(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    ladder_at(folder, "http://127.0.0.1:9/v1")
    record(*words, command="preflight" if words[1:] else "probe", code=2)
    assert f"leave out {words[0]}" in capsys.readouterr().err


def test_a_run_is_recorded_already(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run").mkdir()
    assert main(["assess", "run", "--ladder", "ladder.toml"]) == 2
    assert "is already probed: leave out --ladder" in capsys.readouterr().err
