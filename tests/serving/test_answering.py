"""Answering a workload without a command line: what is answered, kept, and said about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from stopadvisor.answers.normal_form import normalize
from stopadvisor.engines import OutOfMemory
from stopadvisor.engines.openai import open_servers
from stopadvisor.engines.openai.engine import OpenAiEngine
from stopadvisor.ground.errors import EngineError, OutputError, PolicyError
from stopadvisor.ground.progress import Progress
from stopadvisor.ground.results import from_document, to_document
from stopadvisor.policy.frozen import Policy, save_policy
from stopadvisor.policy.requests import Reply
from stopadvisor.serving import answering
from stopadvisor.serving.answer_file import AnswerFile, AnswerRecord, FullAnswer, graded_text
from stopadvisor.serving.answer_summary import AnswerSummary, MeanTokens
from stopadvisor.serving.answering import AnswerSettings, _compare, answer_workload
from stopadvisor.stats.intervals import exact_interval
from stopadvisor.workload.questions import Question
from tests.engines.fake_server import FakeServer, fake_server
from tests.engines.test_openai_engine import engine_at
from tests.engines.test_openai_online import policy_of
from tests.policy_content import family_content
from tests.schemas import check_valid
from tests.serving.gateways import FULL_BUDGET

N = 6
QUESTION = Question("a", "0" * 64, ({"role": "user", "content": "?"},), "7", "numeric")
REPLY = Reply("7 or 8", "8", 0, 4, 9, 4, 1, 0, 1, 0.1, "stopped", "")


@dataclass
class KeptProgress(Progress):
    """Keeps the remarks, and how many of how many questions are done."""

    remarks: list[str] = field(default_factory=list)
    done: int = 0
    total: int = 0

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self.total, self.done = total, done

    def advance(self, traces: int, tokens: int) -> None:
        self.done += traces

    def remark(self, text: str) -> None:
        self.remarks.append(text)


@dataclass
class Bench:
    """A workload, a policy's file, and the server that both are for."""

    folder: Path
    server: FakeServer
    engine: OpenAiEngine
    opened: list[Policy] = field(default_factory=list)
    progress: KeptProgress = field(default_factory=KeptProgress)

    @property
    def settings(self) -> AnswerSettings:
        at = self.folder
        return AnswerSettings(at / "policy.joblib", at / "sums.jsonl", at / "answers.jsonl")

    @contextmanager
    def open(self, policy: Policy) -> Iterator[OpenAiEngine]:
        self.opened.append(policy)
        yield self.engine

    def answer(self, **changes: Any) -> AnswerSummary:
        return answer_workload(replace(self.settings, **changes), self.open, self.progress)

    @property
    def lines(self) -> list[AnswerRecord]:
        """What the file of answers holds."""
        return read_lines(self.folder / "answers.jsonl")


def read_lines(path: Path) -> list[AnswerRecord]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [from_document(AnswerRecord, json.loads(line), path) for line in lines]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    golds = ["5", "7"] * (N // 2)  # every stopped answer is 5, every full one 7
    lines = [json.dumps({"question": f"{i}+4", "gold": gold}) for i, gold in enumerate(golds)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with fake_server() as server, engine_at(server) as engine:
        save_policy(policy_of(engine), tmp_path / "policy.joblib")
        yield Bench(tmp_path, server, engine)


def test_every_question_is_answered_and_kept(bench: Bench) -> None:
    found = bench.answer()
    assert [policy.digest for policy in bench.opened] == [found.digest]
    assert (found.new, len(bench.lines), found.questions) == (N, N, N)
    assert {(e.budget, e.answer, e.normalized, e.setting) for e in bench.lines} == {
        (4, " 5", "5", found.setting)
    }
    assert len(found.setting) == 8
    assert (found.stopped, found.stopped_share, found.accuracy) == (N, 1.0, 0.5)
    (tokens,) = {(e.think_tokens, e.probe_tokens, e.visible_tokens) for e in bench.lines}
    assert found.mean_tokens == MeanTokens(*tokens)
    assert (found.on_stop, found.serving) == ("probe", "resume")
    assert (found.certified, found.alpha) == (True, 0.15)
    assert found.full is None
    assert found.seconds > 0
    assert found.out == str(bench.settings.out)
    assert found.remarks == ()
    (remark,) = bench.progress.remarks
    assert remark.startswith("the server (version")


def test_what_was_answered_is_not_asked_again(bench: Bench) -> None:
    (bench.folder / "answers.jsonl").write_text('{"id": "half')  # killed while writing
    first = bench.answer(limit=2)
    kept = bench.lines
    bench.server.asked.clear()
    again = bench.answer(limit=2)
    assert (first.new, again.new, again.questions) == (2, 0, 2)
    assert bench.lines == kept
    assert not bench.server.asked
    assert again.seconds == 0
    assert (bench.progress.done, bench.progress.total) == (2, 2)
    with (bench.folder / "answers.jsonl").open("a") as file:
        file.write('{"id": "half')
    whole = bench.answer()
    assert (whole.new, bench.lines[:2]) == (N - 2, kept)
    assert (bench.progress.done, bench.progress.total) == (N, N)


def test_a_comparison_with_full_thinking_says_what_stopping_saves_and_loses(bench: Bench) -> None:
    found = bench.answer(compare_full=True)
    check_valid("run", to_document(found))
    full = found.full
    assert full is not None
    assert (full.questions, full.correct, full.full_correct, full.lost) == (N, 3, 3, 3)
    thought = [(e.think_tokens, e.full.think_tokens) for e in bench.lines if e.full]
    decoded = [(e.decoded_tokens, e.full.decoded_tokens) for e in bench.lines if e.full]
    for saving, pairs in ((full.think_saving_pct, thought), (full.token_saving_pct, decoded)):
        spent, whole = (sum(column) for column in zip(*pairs, strict=True))
        assert saving == pytest.approx(100 * (1 - spent / whole))
        assert spent < whole
    assert (full.decoded_tokens, full.full_decoded_tokens) == (spent, whole)
    assert (full.risk, full.risk_ci95) == (0.5, exact_interval(3, N))
    assert (full.differing, full.differing_share) == (N, 1.0)
    assert full.timed_questions == N
    assert full.time_saving_pct is not None
    # None of these questions made the policy.
    assert {name: getattr(full, name) for name in vars(full.unmet)} == vars(full.unmet)
    for again in (bench.answer(compare_full=True).full, bench.answer().full):
        assert again is not None
        assert (again.timed_questions, again.seconds, again.time_saving_pct) == (0, None, None)


@pytest.mark.parametrize("temperature", [None, 0.6])
def test_a_comparison_says_where_full_thinking_is_another_draw(
    bench: Bench, temperature: float | None
) -> None:
    sampling = {"greedy": temperature is None, "temperature": temperature, "seed": 0}
    policy = policy_of(bench.engine, sampling=sampling)
    save_policy(policy, bench.folder / "policy.joblib")
    assert bench.answer(limit=1, out=bench.folder / "alone.jsonl").remarks == ()
    remarks = bench.answer(limit=1, compare_full=True).remarks
    assert any("full thinking is drawn again" in each for each in remarks) == bool(temperature)


@pytest.mark.parametrize("repeat", [1, 3])
def test_a_vote_is_compared_with_another_vote(repeat: int) -> None:
    """Elsewhere on a ladder two rungs are two draws at calibration too."""
    policy: Any = SimpleNamespace(ladder=[SimpleNamespace(repeat=repeat)])
    engine: Any = SimpleNamespace(identity=lambda: {"engine": "ladder"})
    remarks = list(answering._on_comparison(policy, engine, answering._WHOLE_REPLIES, [QUESTION]))
    assert len(remarks) == (repeat > 1)


@pytest.mark.parametrize(("lines", "said"), [(6, False), (7, True)], ids=["alone", "a copy"])
def test_a_comparison_says_that_its_intervals_take_copies_as_independent(
    bench: Bench, lines: int, said: bool
) -> None:
    file = bench.folder / "sums.jsonl"
    rows = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([*rows, rows[0]][:lines]) + "\n", encoding="utf-8")
    remarks = bench.answer(compare_full=True).remarks
    assert any(each.startswith("7 questions are of 6 groups") for each in remarks) == said


def test_questions_that_made_the_policy_are_told_from_others(bench: Bench) -> None:
    bench.answer(limit=2)
    fit, calibration = (line.key for line in bench.lines)
    split = family_content("run-stability")["split"]
    split |= {"fit": [fit], "calibration": [calibration, *split["calibration"]]}
    save_policy(policy_of(bench.engine, split=split), bench.folder / "policy.joblib")
    full = bench.answer(compare_full=True, out=bench.folder / "other.jsonl").full
    assert full is not None
    assert (full.questions, full.unmet.questions) == (N, N - 2)


def test_the_time_of_an_answer_is_the_engines_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a reply and the wait for the next, it is graded and written."""
    ticks = (k * k / 3 for k in count())
    monkeypatch.setattr(answering, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    found = bench.answer(compare_full=True)
    full = found.full
    assert full is not None
    # Each pass waits for 6 replies and for its end: of 28 ticks, from each even one to the next.
    assert (found.seconds, full.seconds, full.full_seconds) == (30.333, 30.333, 95.667)
    assert full.time_saving_pct == pytest.approx(100 * (1 - 91 / 287))


def test_full_thinking_is_not_certified(bench: Bench) -> None:
    save_policy(policy_of(bench.engine, **FULL_BUDGET), bench.folder / "policy.joblib")
    found = bench.answer(limit=1, on_stop="answer")
    assert (found.kind, found.stopped, found.stopped_share) == ("full-budget", 0, 0.0)
    assert (found.certified, found.alpha, found.loss) == (False, None, None)
    assert found.remarks == ()


def test_what_a_server_saves_is_said_of_a_policy_for_another_stack(bench: Bench) -> None:
    saving = {"saving_by_serving": {"prefix-cache": -5.7}}
    expected = family_content("run-stability")["expected"] | saving
    found = []
    for serving in ("kv-fork", "prefix-cache"):
        policy = policy_of(bench.engine, serving=serving, expected=expected)
        save_policy(policy, bench.folder / "policy.joblib")
        answered = bench.answer(limit=1, out=bench.folder / f"{serving}.jsonl")
        found.append(answered.server_saving_pct)
    assert found == [-5.7, None]


def test_a_comparison_takes_turns_so_that_other_load_slows_both_alike(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve, stopping = OpenAiEngine.serve, list[bool]()

    def noted(engine: OpenAiEngine, requests: Any, plan: Any, rule: Any, **options: Any) -> Any:
        stopping.append(rule is not None)
        return serve(engine, requests, plan, rule, **options)

    monkeypatch.setattr(OpenAiEngine, "serve", noted)
    monkeypatch.setattr(answering, "_GROUP_BATCHES", 2)
    bench.answer(compare_full=True, batch_size=1)
    assert stopping == [True, False, False, True, True, False]


def test_an_interrupt_keeps_what_was_answered_both_ways(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third group was answered with stopping only, and is asked again."""
    serve, calls = OpenAiEngine.serve, iter(range(6))

    def interrupted(engine: OpenAiEngine, *words: Any, **options: Any) -> Any:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return serve(engine, *words, **options)

    monkeypatch.setattr(OpenAiEngine, "serve", interrupted)
    monkeypatch.setattr(answering, "_GROUP_BATCHES", 1)
    with pytest.raises(KeyboardInterrupt):
        bench.answer(compare_full=True, batch_size=1)
    assert len(bench.lines) == 2
    assert "interrupted: what was answered both ways is kept in" in bench.progress.remarks[-1]


def test_answers_without_full_thinking_are_left_out_of_the_comparison(bench: Bench) -> None:
    bench.answer(limit=2)
    found = bench.answer(compare_full=True)
    assert found.full is not None
    assert found.full.questions == N - 2
    assert found.remarks[0].startswith("2 questions were answered before, without full thinking")


def test_another_reply_is_not_certified_and_not_mixed(bench: Bench) -> None:
    bench.answer()
    with pytest.raises(OutputError, match="answers under other settings"):
        bench.answer(on_stop="answer")
    found = bench.answer(on_stop="answer", out=bench.folder / "other.jsonl")
    assert {line.answer for line in read_lines(Path(found.out))} == {"Final answer: 7"}
    assert not found.certified
    assert "the certificate does not cover these answers" in found.remarks[-1]
    Path(found.out).write_text('{"id": "a"}\n')
    with pytest.raises(OutputError, match=r"other\.jsonl:1: not a line that `run` wrote: not"):
        bench.answer(on_stop="answer", out=Path(found.out))


def test_answers_of_another_question_are_not_mixed_in(bench: Bench) -> None:
    file = bench.folder / "sums.jsonl"
    file.write_text('{"id": "a", "question": "1+4", "gold": "5"}\n')
    bench.answer()
    file.write_text('{"id": "a", "question": "2+4", "gold": "6"}\n')
    with pytest.raises(OutputError, match="ids must keep their questions"):
        bench.answer()


def test_a_server_that_fails_in_between_costs_no_answer(bench: Bench) -> None:
    out = bench.folder / "answers.jsonl"
    bench.answer(limit=2)
    first, sound = out.read_bytes(), bench.engine
    bench.engine = open_servers(
        "tiny-reasoner", [bench.server.url], concurrency=1, retry_timeout=0.2
    )
    bench.server.faults = [""] * 5 + ["500"] * 50  # the next question is four requests
    try:
        with pytest.raises(EngineError, match="500 broken"):
            bench.answer()
    finally:
        bench.engine.close()
    assert f"what was answered is kept in {out}" in bench.progress.remarks[-1]
    assert "the same command goes on from there" in bench.progress.remarks[-1]
    kept = out.read_bytes()
    assert kept.startswith(first)
    assert kept.count(b"\n") == 3
    bench.engine, bench.server.faults = sound, []
    found = bench.answer()
    assert (found.questions, found.new) == (N, N - 3)
    assert out.read_bytes().startswith(kept)
    assert {line.budget for line in bench.lines} == {4}


@pytest.mark.parametrize(
    ("room", "asked_for", "sizes"), [(2, None, [4, 2]), (0, None, [4, 2, 1]), (2, 4, [4])]
)
def test_batches_halve_until_they_fit_unless_their_size_was_asked_for(
    room: int,
    asked_for: int | None,
    sizes: list[int],
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve, tried = OpenAiEngine.serve, list[int]()

    def tight(*args: Any, **options: Any) -> Iterator[tuple[int, Reply]]:
        tried.append(options["batch_size"])
        replies = serve(*args, **options)
        if tried[-1] > room:
            yield next(replies)
            raise OutOfMemory("no more")
        yield from replies

    monkeypatch.setattr(OpenAiEngine, "serve", tight)
    with nullcontext() if sizes[-1] == room else pytest.raises(OutOfMemory):
        bench.answer(batch_size=asked_for)
    assert tried == sizes
    said = [line for line in bench.progress.remarks if line.startswith("out of memory")]
    assert said == [f"out of memory; going on with {n} questions at once" for n in sizes[1:]]
    assert len({line.id for line in bench.lines}) == len(bench.lines)
    assert len(bench.lines) == (N if sizes[-1] == room else len(sizes))


STRICT = {"name": "mine:strict", "sha256": "ab" * 32}


@pytest.mark.parametrize(
    ("function", "gold", "warns"),
    [(STRICT, True, True), (STRICT, False, False), (None, True, False)],
)
def test_grades_of_another_function_are_said_where_there_is_gold(
    function: dict[str, str] | None, gold: bool, warns: bool, bench: Bench
) -> None:
    certificate = family_content("run-stability")["certificate"] | {"grader": function}
    name = "another version" if function is None else function["name"]
    policy = policy_of(bench.engine, certificate=certificate, grader=name)
    save_policy(policy, bench.folder / "policy.joblib")
    if not gold:
        (bench.folder / "sums.jsonl").write_text('{"question": "1+4"}\n')
    found = bench.answer(limit=1)
    assert (
        any("the calibration questions were by mine:strict" in it for it in found.remarks) == warns
    )
    assert (found.new, found.labelled, bool(found.remarks)) == (1, int(gold), warns)


def test_what_cannot_be_answered_is_refused_before_a_model_is_opened(bench: Bench) -> None:
    policy = policy_of(bench.engine, model=None, engine=None)
    save_policy(policy, bench.folder / "policy.joblib")
    with pytest.raises(PolicyError, match="bound to no model"):
        bench.answer()
    assert bench.opened == []


def test_another_model_answers_nothing(bench: Bench) -> None:
    other = policy_of(bench.engine).content["model"] | {"tokenizer_sha256": "0" * 64}
    save_policy(policy_of(bench.engine, model=other), bench.folder / "policy.joblib")
    with pytest.raises(PolicyError, match="calibrated with tokenizer hash"):
        bench.answer()
    assert not (bench.folder / "answers.jsonl").exists()
    assert not bench.server.asked


@pytest.mark.parametrize(
    ("finish", "visible", "seen"), [("stopped", 0, "7 or 8"), ("stopped", 3, "8"), ("stop", 0, "8")]
)
def test_a_forced_answer_is_graded_whole(
    finish: Literal["stopped", "stop"], visible: int, seen: str
) -> None:
    reply = replace(REPLY, finish=finish, visible_tokens=visible)
    assert graded_text(reply) == seen
    assert FullAnswer.of(QUESTION, reply, None).normalized == normalize("numeric", seen)
    nothing = replace(reply, text=None, answer=None)
    assert graded_text(nothing) is None
    assert FullAnswer.of(QUESTION, nothing, None).normalized == ""


def test_a_line_holds_what_a_reply_took_and_has_one_writer(tmp_path: Path) -> None:
    path, reply = tmp_path / "new" / "er" / "answers.jsonl", replace(REPLY, seconds=0.1234567)
    full = FullAnswer.of(QUESTION, reply, True)
    with AnswerFile.open(path, "setting") as file:
        file.add(QUESTION, reply, False, full)
        file.add(replace(QUESTION, id="b"), replace(reply, stopped_at=None), None, None)
        with pytest.raises(OutputError, match="another process is writing it"):
            AnswerFile.open(path, "setting").__enter__()
        assert file.done([QUESTION]) == {"a"}
    first, second = read_lines(path)
    assert (first.stopped, first.correct, first.seconds, first.full) == (
        True,
        False,
        0.123457,
        full,
    )
    assert (first.decoded_tokens, full.decoded_tokens, full.seconds) == (5, 4, 0.123457)
    assert (second.stopped, second.correct, second.full) == (False, None, None)


def both(
    stopped: bool, said: str, full: str, right: bool | None, full_right: bool | None, end: str
) -> AnswerRecord:
    """A line with its full answer, which thought for 10 tokens instead of 4."""
    whole = FullAnswer(full, full, end, 10, 2, 1.0, full_right)
    tokens = (4, 1, 2, 9)
    return AnswerRecord(
        "a", "k", "s", said, said, stopped, None, None, "stop", *tokens, 1.0, right, whole
    )


def test_a_comparison_counts_what_was_stopped_and_what_has_two_grades() -> None:
    lines = [
        both(True, "7", "7", True, True, "stop"),
        both(True, "5", "7", False, True, "stop"),
        both(False, "5", "7", None, True, "stop"),  # drawn twice, and not stopped
        both(True, "", "", None, None, "stop"),
        both(True, "7", "7", True, None, "length"),
    ]
    found = _compare([*lines, replace(lines[1], full=None)])
    unstopped = both(False, "5", "7", False, True, "stop")
    assert (_compare([unstopped]).lost, _compare([unstopped]).correct) == (0, 0)
    assert (found.questions, found.differing, found.differing_share) == (5, 3, 0.6)
    assert (found.labelled, found.correct, found.full_correct, found.lost) == (2, 1, 2, 1)
    assert (found.accuracy, found.full_accuracy, found.risk) == (0.5, 1.0, 0.5)
    assert (found.think_tokens, found.full_think_tokens) == (20, 50)
    assert (found.decoded_tokens, found.full_decoded_tokens) == (35, 60)
    assert found.think_saving_pct == pytest.approx(60.0)
    assert lines[0].full is not None
    nothing = replace(lines[0], think_tokens=0, full=replace(lines[0].full, think_tokens=0))
    assert _compare([nothing]).think_saving_pct == 0.0
