"""Replies of a ladder: its configuration, recorded lines, the run that they become, its table."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stopadvisor.answers.grading import open_graders
from stopadvisor.ground.constants import KNOWN_MARKERS
from stopadvisor.ground.errors import GraderError, ProbeError, WorkloadError
from stopadvisor.ground.fields import plain
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.imported import write_replies
from stopadvisor.runs.ladder import Ladder, Rung, ladder_of, read_ladder
from stopadvisor.runs.prices import default_settings
from stopadvisor.runs.recording import LABELS_AS_RECORDED, Recorded
from stopadvisor.runs.replies import ReplyRecord, read_replies, read_reply_logs, replies_by_rung
from stopadvisor.runs.sources import Source, open_source
from stopadvisor.runs.verdicts import grade_records, ungraded
from stopadvisor.workload.inspect_log import read_inspect
from stopadvisor.workload.logged import LogContent

SMALL = Rung("small", (1.0, 0.5, 2.0), model="tiny")
LARGE = Rung("large", (3.0, 1.0, 4.0), reasoning_effort="high")
TWO = Ladder((SMALL, LARGE))
THREE = Ladder((SMALL, Rung("middle", (2.0, 0.5, 3.0)), LARGE))
VOTE = Ladder((Rung("vote", (1.0, 0.0, 1.0), repeat=5),))


def reply(name: str, answer: Any, tokens: int = 10, **more: Any) -> dict[str, Any]:
    given = {"name": name, "answer": answer, "finished": True, "completion_tokens": tokens}
    return {**given, **more}


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def recorded(path: Path, lines: list[dict[str, Any]], ladder: Ladder) -> Recorded[ReplyRecord]:
    with open_graders(None) as graders:
        return read_replies(written(path, lines), ladder, graders.right)


def run_of(path: Path, lines: list[dict[str, Any]], ladder: Ladder, *, fit: float = 1.0) -> Source:
    found = recorded(path / "lines.jsonl", lines, ladder)
    write_replies(path / "run", found, ladder, seed=0, fractions=(fit, 1.0 - fit, 0.0))
    return open_source(path / "run")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rung", "expected TOML"),
        ("[other]\nx = 1", "field 'other'"),
        ("", "field 'rung': expected two [[rung]] tables or more"),
        ("[[rung]]\n" * 17, "field 'rung': expected at most 16 entries, got 17"),
        ('[[rung]]\nname = "a"\nprice = [1, 1, 1]', "or one with repeat, got 1"),
        ('[[rung]]\nname = "a"', "field 'rung[0].price' is missing"),
        ('[[rung]]\nname = "a"\nprice = [1, 1]', "three prices"),
        ('[[rung]]\nname = "a"\nprice = [1, 1, 0]', "the last above 0"),
        (
            '[[rung]]\nname = ""\nprice = [1, 1, 1]',
            "field 'rung[0].name': expected text on one line",
        ),
        ('[[rung]]\nname = "a"\nprice = [1, 1, 1]\nprize = 1', "field 'rung[0].prize' is unknown"),
        ('[[rung]]\nname = "a"\nprice = [-1, 1, 1]', "three prices"),
        ('[[rung]]\nname = "a"\nprice = [1, 1, 1, 1]', "three prices"),
        ('[[rung]]\nname = "a\\u0007"\nprice = [1, 1, 1]', "expected text on one line"),
        ('[[rung]]\nname = "a"\nprice = [1, 1, 1]\nrepeat = 129', "from 1 to 128, got 129"),
        ('[[rung]]\nname = "a"\nprice = [1, 1, 1]\ntemperature = -1', "a number >= 0"),
        ('[[rung]]\nname = "a"\nprice = [1, 1, 1]\ntemperature = "0"', "a number >= 0"),
        ('[[rung]]\nname = "a"\nprice = [1, 1, 1]\nrepeat = 0', "from 1 to 128, got 0"),
        ('[[rung]]\nname = "a"\nprice = [1, 1, 1]\nrepeat = true', "from 1 to 128, got True"),
        (
            '[[rung]]\nname = "a"\nprice = [1, 1, 1]\ntemperature = nan',
            "temperature': expected a finite float",
        ),
        ('[[rung]]\nname = "a"\nprice = [1, 1, 1]\nrepeat = 2\n' * 2, "each name once"),
        (
            '[[rung]]\nname = "a"\nprice = [1, 1, 1]\nengine = "hf"',
            "rung[0].model': expected a folder",
        ),
        (
            '[[rung]]\nname = "a"\nprice = [1, 1, 1]\nengine = "hf"\nmodel = "m"\nbase_url = "u"',
            "rung[0].base_url': expected nothing with engine 'hf'",
        ),
        ("a = " + "9" * 5000, "expected TOML, got: Exceeds the limit (4300 digits)"),
        ("a = " + "[" * 3000, "expected TOML, got: maximum recursion depth exceeded"),
    ],
    ids=lambda value: value[:40],
)
def test_a_ladder_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "ladder.toml"
    file.write_text(text)
    with pytest.raises(WorkloadError) as error:
        read_ladder(file)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("correct", "false"), ("finished", "false"), ("completion_tokens", "7"), ("seconds", "1")],
)
def test_no_value_of_a_reply_is_converted_to_another(tmp_path: Path, name: str, value: str) -> None:
    """Numpy would take the text "false" for true: a wrong reply for right, a cut one for whole."""
    rungs = [reply("small", "2"), reply("large", "1")]
    source = run_of(tmp_path, [{"id": "a", "gold": "1", "rungs": rungs}], TWO)
    file = source.folder / "replies.jsonl"
    line = json.loads(file.read_text())
    line["rungs"][0][name] = value
    file.write_text(json.dumps(line) + "\n")
    with pytest.raises(ProbeError, match=rf"replies\.jsonl: .*'{name}' cannot be of type str"):
        open_source(source.folder)


@pytest.mark.parametrize("answer", [None, " ", "\\boxed{}"])
def test_a_right_reply_without_an_answer_is_refused(tmp_path: Path, answer: str | None) -> None:
    """It would count as wrong: of a reference, whatever a cheaper rung says could not be lost."""
    right = reply("large", answer, correct=True)
    line = {"id": "a", "task": "math", "rungs": [reply("small", "2", correct=False), right]}
    with pytest.raises(WorkloadError, match=r"'rungs\[1\]\.correct': expected an answer where"):
        recorded(tmp_path / "lines.jsonl", [line], TWO)
    right["correct"] = False
    recorded(tmp_path / "lines.jsonl", [line], TWO)


def test_an_answer_that_was_not_recorded_is_not_taken_for_a_wrong_one(tmp_path: Path) -> None:
    """Of a reference, it would hide that a cheaper reply loses the right answer."""
    missing = reply("large", "7")
    del missing["answer"]
    line = {"id": "a", "gold": "7", "rungs": [reply("small", "2"), missing]}
    with pytest.raises(WorkloadError, match=r"'rungs\[1\]\.answer': expected the reply's, or null"):
        recorded(tmp_path / "lines.jsonl", [line], TWO)
    missing["answer"] = None
    (found,) = recorded(tmp_path / "lines.jsonl", [line], TWO).records
    assert found.rungs[1].correct is False


@pytest.mark.parametrize(("name", "other"), [("group", "h"), ("gold", "8"), ("task", "math")])
def test_lines_that_disagree_on_a_question_are_refused(
    tmp_path: Path, name: str, other: str
) -> None:
    """In two groups, one question would count as two independent ones."""
    first = {"question": "3 + 4?", "gold": "7", "task": "numeric", "group": "g"}
    lines = [
        {**first, "id": "a", "rungs": [reply("small", "7"), reply("large", "7")]},
        {**first, "id": "b", "rungs": [reply("small", "7"), reply("large", "7")]},
    ]
    assert len(recorded(tmp_path / "lines.jsonl", lines, TWO).records) == 2
    lines[1][name] = other
    with pytest.raises(WorkloadError, match=rf":2: field '{name}': .* same question in .*:1, got"):
        recorded(tmp_path / "lines.jsonl", lines, TWO)


def test_what_a_manifest_holds_of_a_ladder_gives_it_back() -> None:
    for ladder in (TWO, VOTE):
        assert ladder_of({"rung": [plain(rung) for rung in ladder.rungs]}, "m") == ladder
    assert VOTE.blocks == (range(5),)
    asked = [plain(rung) | {"temperature": 0} for rung in TWO.rungs]
    # 0.0 would give the run another name.
    assert repr([plain(rung) for rung in ladder_of({"rung": asked}, "m").rungs]) == repr(asked)


def test_every_rung_but_the_last_may_follow_a_policy_of_its_own() -> None:
    rungs = [plain(rung) | {"reasoning_effort": None} for rung in THREE.rungs]
    for k in range(2):
        policies = [row | ({"policy": "p.json"} if j == k else {}) for j, row in enumerate(rungs)]
        assert ladder_of({"rung": policies}, "m").rungs[k].policy == "p.json"
    with pytest.raises(WorkloadError, match=r"'rung\[2\]\.policy': expected none on the reference"):
        ladder_of({"rung": [*rungs[:2], rungs[2] | {"policy": "p.json"}]}, "m")


def test_a_ladder_may_be_as_long_as_is_said_and_free_but_for_what_is_decoded() -> None:
    few = {"price": [0.0, 0.0, 0.5]}
    for most in (1, 128):
        rungs = [few | {"name": f"r{k}", "repeat": most} for k in range(16)]
        ladder = ladder_of({"rung": rungs}, "ladder")
        assert (len(ladder.rungs), len(ladder.columns)) == (16, 16 * most)


@pytest.mark.parametrize(
    ("rungs", "message"),
    [
        ([reply("large", "1"), reply("small", "1")], "in the ladder's order"),
        ([reply("small", "1")], "in the ladder's order"),
        (None, "in the ladder's order"),
        (["small", "large"], "in the ladder's order"),
        (2, "in the ladder's order"),
        ([reply("small", "1", finished=None), reply("large", "1")], "rungs[0].finished"),
        ([reply("small", "1", -1), reply("large", "1")], "rungs[0].completion_tokens"),
        ([reply("small", "1", cached_tokens=2), reply("large", "1")], "at most prompt_tokens (0)"),
        ([reply("small", "1", mean_logprob=1), reply("large", "1")], "a number <= 0"),
        ([reply("small", "1", seconds=-1), reply("large", "1")], "rungs[0].seconds"),
        ([reply("small", "1", correct=True), reply("large", "1")], "rungs[1].correct"),
    ],
)
def test_a_line_is_refused_with_its_place(tmp_path: Path, rungs: Any, message: str) -> None:
    with pytest.raises(WorkloadError) as error:
        recorded(tmp_path / "r.jsonl", [{"id": "q", "rungs": rungs}], TWO)
    assert message in str(error.value)
    assert "r.jsonl:1" in str(error.value)


def test_a_question_stands_once(tmp_path: Path) -> None:
    line = {"id": "q", "rungs": [reply("small", "1"), reply("large", "1")]}
    with pytest.raises(WorkloadError, match=r"it is in .*:1 too"):
        recorded(tmp_path / "r.jsonl", [line, line], TWO)
    run = RunDirectory.load(run_of(tmp_path, [line], TWO).folder)
    run.append(run.replies())
    with pytest.raises(ProbeError, match=r"replies\.jsonl:2: question 'q' .* already on line 1"):
        run.replies()
    run.probes_path.write_bytes(b'{"id')
    assert (run.torn() or "").endswith("repeating `probe` grades its question again")
    assert (run.repair() or "").endswith("its question is graded again")


def test_the_cap_of_a_ladders_run_is_its_longest_reply(tmp_path: Path) -> None:
    for tokens, cap in ((0, 1), (1, 1), (7, 7)):
        (tmp_path / f"{tokens}").mkdir()
        line = {"id": "q", "rungs": [reply("small", "1", 0), reply("large", "1", tokens)]}
        source = run_of(tmp_path / f"{tokens}", [line], TWO)
        assert RunDirectory.load(source.folder).plan.max_think == cap


def test_costs_are_those_of_each_rung_at_its_own_price(tmp_path: Path) -> None:
    small = reply("small", "1", 10, prompt_tokens=4, cached_tokens=1)
    source = run_of(
        tmp_path, [{"id": "q", "gold": "2", "rungs": [small, reply("large", "2", 20)]}], TWO
    )
    table = source.part("fit")
    assert table.rungs is not None
    assert table.rungs.spent.price.tolist() == [[3 * 1.0 + 1 * 0.5 + 10 * 2.0, 20 * 4.0]]
    assert table.rungs.spent.prefilled.tolist() == [[3, 0]]
    assert table.correct.tolist() == [[False, True]]
    assert table.full_correct.tolist() == [True]
    assert default_settings(source)["loss"] == "drop"
    assert (tmp_path / "run" / "replies.jsonl").exists()


def test_times_count_where_every_reply_has_one_and_no_requests_overlap(tmp_path: Path) -> None:
    def seconds(name: str, rungs: list[dict[str, Any]], ladder: Ladder) -> list[list[float]]:
        (tmp_path / name).mkdir()
        source = run_of(tmp_path / name, [{"id": "q", "gold": "2", "rungs": rungs}], ladder)
        prints.append(source.fingerprint())
        spent = source.part("fit").rungs
        assert spent is not None
        found: list[list[float]] = spent.spent.seconds.tolist()
        return found

    prints: list[str] = []
    small, large = reply("small", "1", seconds=1.5), reply("large", "2", seconds=3)
    assert seconds("both", [small, large], TWO) == [[1.5, 3.0]]
    assert np.isnan(seconds("one", [small, reply("large", "2")], TWO)).all()
    assert prints[0] == prints[1]  # no promise depends on the time
    samples = [reply("vote", "2", seconds=1.0)] * 5
    assert np.isnan(seconds("samples", samples, VOTE)).all()


def test_samples_vote_ties_go_to_the_earlier_and_costs_add_up(tmp_path: Path) -> None:
    answers = ["1", "2", "2", "1", ""]
    line = {"id": "q", "gold": "2", "rungs": [reply("vote", a, 10) for a in answers]}
    source = run_of(tmp_path, [line], VOTE)
    table = source.part("fit")
    assert table.rungs is not None
    assert table.correct.tolist() == [[False, False, True, False, False]]
    assert table.rungs.support.tolist() == [[1, 0, 1, 0, 0]]
    np.testing.assert_allclose(table.rungs.share, [[1, 1 / 2, 2 / 3, 1 / 2, 2 / 5]])
    assert table.rungs.spent.decoded.tolist() == [[10, 20, 30, 40, 50]]
    assert "loss" not in default_settings(source)  # the reference contains the samples before it


def test_a_reply_that_was_cut_is_never_served(tmp_path: Path) -> None:
    rungs = [reply("small", "1", finished=False), reply("large", "1")]
    source = run_of(tmp_path, [{"id": "q", "gold": "1", "rungs": rungs}], TWO)
    table = source.part("fit")
    assert table.rungs is not None
    assert table.rungs.served.tolist() == [[False, True]]
    assert table.correct.tolist() == [[False, True]]


def test_without_gold_agreement_with_the_reference_counts(tmp_path: Path) -> None:
    lines = [
        {"id": "a", "rungs": [reply("small", "1"), reply("large", "1")]},
        {"id": "b", "rungs": [reply("small", "1"), reply("large", "2")]},
    ]
    source = run_of(tmp_path, lines, TWO)
    assert source.part("fit").correct.tolist() == [[True, True], [False, True]]


@pytest.mark.parametrize("grouped", [False, True])
def test_only_the_part_of_a_question_without_gold_is_graded_by_agreement(
    tmp_path: Path, grouped: bool
) -> None:
    def lines(ungraded: int | None) -> list[dict[str, Any]]:
        rungs = [reply("small", "1"), reply("large", "1")]
        found = [{"id": f"q{k}", "gold": "1", "rungs": rungs} for k in range(20)]
        if grouped:
            found = [line | {"group": f"g{k // 2}"} for k, line in enumerate(found)]
        return [line | ({"gold": None} if k == ungraded else {}) for k, line in enumerate(found)]

    def split(name: str, ungraded: int | None) -> Source:
        (tmp_path / name).mkdir()
        return run_of(tmp_path / name, lines(ungraded), TWO, fit=0.5)

    parts = split("whole", None).parts.tolist()
    assert (parts[::2] == parts[1::2]) == grouped
    source = split("one", parts.index(1))
    assert source.parts.tolist() == parts
    assert (source.part("fit").graded_by, source.graded_by) == ("gold", "agreement")


def of_three(name: str, answers: str, **more: Any) -> dict[str, Any]:
    rungs = [
        reply(rung.name, answer, 10 * (k + 1), prompt_tokens=k + 4)
        for k, (rung, answer) in enumerate(zip(THREE.rungs, answers, strict=True))
    ]
    rungs[-1] |= more
    return {"id": name, "rungs": rungs}


def test_the_last_of_several_rungs_is_the_reference(tmp_path: Path) -> None:
    lines = [of_three("a", "122"), of_three("b", "211"), of_three("c", "121")]
    source = run_of(tmp_path, [*lines, of_three("d", "211", finished=False)], THREE)
    defaults, table = default_settings(source), source.part("fit")
    prices = defaults["weights"]
    assert (prices.prefilled, prices.cached, prices.decoded) == LARGE.price
    assert defaults["loss"] == "differs"
    assert table.correct.tolist() == [
        [False, True, True],
        [False, True, True],
        [True, False, True],
        [False, False, True],  # nothing agrees with a reply that was cut
    ]
    assert table.truncated.tolist() == [False, False, False, True]
    assert table.rungs is not None
    assert table.rungs.is_reference.tolist() == [[False, False, True]] * 4
    assert table.prompt_tokens is not None
    assert table.prompt_tokens.tolist() == [4] * 4
    assert table.natural_tokens is not None
    assert table.natural_tokens.tolist() == [30] * 4


def test_every_rung_is_graded_by_gold(tmp_path: Path) -> None:
    table = run_of(tmp_path, [of_three("a", "121") | {"gold": "1"}], THREE).part("fit")
    assert table.correct.tolist() == [[True, False, True]]
    assert table.rungs is not None
    assert table.rungs.served.tolist() == [[True] * 3]


def test_a_rung_has_an_accuracy_only_if_all_its_replies_are_graded(tmp_path: Path) -> None:
    lines = [
        {"id": "a", "gold": "1", "rungs": [reply("small", "1"), reply("large", "1")]},
        {"id": "b", "gold": "2", "rungs": [reply("small", "1"), reply("large", "2", 40)]},
        {"id": "c", "rungs": [reply("small", "3", finished=False), reply("large", "3")]},
    ]
    records = recorded(tmp_path / "lines.jsonl", lines, TWO).records
    figures = [(row.replies, row.cut, row.mean_tokens) for row in replies_by_rung(records, TWO)]
    assert figures == [(1, 1, 10.0), (1, 0, 20.0)]
    graded = [row.accuracy for row in replies_by_rung(records[:2], TWO, graded=True)]
    assert graded == [0.5, 1.0]
    for rows in (replies_by_rung(records, TWO, graded=True), replies_by_rung(records[:2], TWO)):
        assert [row.accuracy for row in rows] == [None, None]


@pytest.mark.parametrize("labels", [{}, {"correct": True}])
def test_labels_that_lines_bring_are_told_from_our_grades(
    tmp_path: Path, labels: dict[str, bool]
) -> None:
    rungs = [reply(rung.name, "1", **labels) for rung in TWO.rungs]
    found = recorded(tmp_path / "r.jsonl", [{"id": "q", "gold": "1", "rungs": rungs}], TWO)
    assert (found.grading == LABELS_AS_RECORDED) == bool(labels)


def test_a_grader_that_reads_questions_gets_their_texts(tmp_path: Path) -> None:
    line = {"id": "q", "gold": "1", "rungs": [reply("small", "1"), reply("large", "2")]}
    (record,) = recorded(tmp_path / "r.jsonl", [line], TWO).records
    asked: list[str] = []

    def grade(items: list[Any], questions: list[str]) -> list[bool]:
        asked.extend(questions)
        return [answer == "1" for _, _, answer in items]

    grader: Any = SimpleNamespace(
        reads_questions=True, identity={"grader": "mine:grade"}, grade_many=grade
    )
    (found,), graded = grade_records([ungraded(record)], grader, {record.key: "1 or 2?"})
    assert (asked, graded) == (["1 or 2?"] * 2, 2)
    assert [each.correct for each in found.rungs] == [True, False]
    with pytest.raises(GraderError, match="mine:grade reads the question, and 'q' is not"):
        grade_records([ungraded(record)], grader)


def test_of_two_samples_that_differ_the_first_is_served(tmp_path: Path) -> None:
    pair = Ladder((Rung("pair", (1.0, 0.0, 1.0), repeat=2),))
    rungs = [reply("pair", answer, seconds=0) for answer in "12"]
    (record,) = recorded(tmp_path / "r.jsonl", [{"id": "q", "rungs": rungs}], pair).records
    assert [each and each.answer for each in record.answered()] == ["1", "1"]


def test_the_fingerprint_covers_what_replies_cost(tmp_path: Path) -> None:
    found = []
    for tokens in (10, 11):
        folder = tmp_path / str(tokens)
        folder.mkdir()
        rungs = [reply("small", "1", tokens), reply("large", "1", 20)]
        found.append(run_of(folder, [{"id": "q", "gold": "1", "rungs": rungs}], TWO).fingerprint())
    assert found[0] != found[1]


# --- Logs of a program, one of each rung ----------------------------------------------------------


def sample(number: int, text: str, tokens: int = 20, **changes: Any) -> dict[str, Any]:
    """What inspect_ai logs of one reply."""
    question = f"{number} + 1?"
    asked, said = {"role": "user", "content": question}, {"role": "assistant", "content": text}
    usage = {"input_tokens": 9, "output_tokens": tokens, "input_tokens_cache_read": 3}
    output = {"choices": [{"stop_reason": "stop"}], "usage": usage}
    own = {"id": number, "epoch": 1, "input": question, "target": str(number + 1)}
    return {**own, "messages": [asked, said], "output": output, **changes}


def logs_of(folder: Path, ladder: Ladder, **samples: list[dict[str, Any]]) -> Recorded[ReplyRecord]:
    logs = {name: folder / f"{name}.json" for name in samples}
    for name, file in logs.items():
        file.write_text(json.dumps({"samples": samples[name]}))

    def read(rung: Rung, file: Path) -> LogContent:
        return read_inspect([file], KNOWN_MARKERS)

    with open_graders(None) as graders:
        return read_reply_logs(logs, ladder, graders.right, read, None)


def small_ones(**changes: Any) -> list[dict[str, Any]]:
    return [sample(1, "<think>1, 2</think>It is 2."), sample(2, "It is 4.", **changes)]


def large_ones() -> list[dict[str, Any]]:
    return [sample(2, "The answer is 3.", 50), sample(1, "The answer is 2.", 50)]


def test_logs_of_rungs_are_joined_by_question(tmp_path: Path) -> None:
    cut = {"choices": [{"stop_reason": "max_tokens"}], "usage": sample(0, "")["output"]["usage"]}
    found = logs_of(tmp_path, TWO, small=small_ones(output=cut), large=large_ones())
    rows = {record.id: record for record in found.records}
    first, second = rows["1"].rungs
    assert (rows["1"].gold, rows["1"].task, first.answer) == ("2", "numeric", "2")
    assert (first.correct, first.finished, first.completion_tokens) == (True, True, 20)
    assert (first.prompt_tokens, first.cached_tokens) == (12, 3)
    assert (second.name, second.correct, second.completion_tokens) == ("large", True, 50)
    assert [reply.correct for reply in rows["2"].rungs] == [False, True]
    assert not rows["2"].rungs[0].finished
    assert found.n_graded == 4


def test_logs_in_which_a_question_has_two_golds_are_refused(tmp_path: Path) -> None:
    logs = {
        name: [sample(1, "It is 2."), sample(1, "It is 2.", id=2, target="3")]
        for name in ("small", "large")
    }
    with pytest.raises(WorkloadError, match=r"'gold': expected '2' as .* in .*: samples\[0\], got"):
        logs_of(tmp_path, TWO, **logs)


@pytest.mark.parametrize(
    ("cached", "written", "total", "prompt"),
    [
        (3, 0, 32, 12),  # the input is what no cache held
        (3, 2, 34, 14),
        (3, 0, 29, 9),  # the input is the whole prompt
        (3, 2, 29, 9),
        (3, 2, 32, 12),  # what was written is in it, what was read is not
        (3, 0, None, 12),  # nothing tells
        (3, 0, 0, 12),
        (9, 0, 29, 9),  # the caches held all of it
        (12, 0, 29, 21),  # more than the input could hold
        (None, 0, 29, 9),
    ],
)
def test_cached_tokens_of_a_log_are_counted_once(
    tmp_path: Path, cached: int | None, written: int, total: int | None, prompt: int
) -> None:
    usage = {"input_tokens": 9, "output_tokens": 20, "total_tokens": total}
    usage |= {"input_tokens_cache_read": cached, "input_tokens_cache_write": written}
    output = {"choices": [{"stop_reason": "stop"}], "usage": usage}
    small = [sample(number, "It is 2.", output=output) for number in (1, 2)]
    found = logs_of(tmp_path, TWO, small=small, large=large_ones())
    replies = [record.rungs[0] for record in found.records]
    assert {(r.prompt_tokens, r.cached_tokens, r.completion_tokens) for r in replies} == {
        (prompt, cached or 0, 20)
    }


def test_epochs_are_the_samples_of_a_repeated_rung(tmp_path: Path) -> None:
    given = [sample(1, f"It is {k}.", epoch=k) for k in (5, 2, 4, 1, 3)]
    (record,) = logs_of(tmp_path, VOTE, vote=given).records
    assert [reply.answer for reply in record.rungs] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("small", "large", "message"),
    [
        (small_ones()[:1], large_ones(), "small.json: replies to question '2': expected 1 of rung"),
        (small_ones(), large_ones()[:1], "question '1': expected 1 of rung 'large', got 0"),
        ([*small_ones(), *small_ones()], large_ones(), "expected 1 of rung 'small', got 2"),
        (small_ones(id=None), large_ones(), "small.json: samples[1]: field 'id'"),
        (small_ones(target="9"), large_ones(), "large.json: samples[0]: field 'gold'"),
        (small_ones(output={}), large_ones(), "'output.usage.input_tokens': expected a whole"),
        (small_ones(messages=[]), large_ones(), "small.json: samples[1]: reply: expected one"),
        (small_ones(target=["3", "4"]), large_ones(), "target holds 2 right answers, expected one"),
    ],
)
def test_logs_that_do_not_go_together_are_refused(
    tmp_path: Path, small: list[dict[str, Any]], large: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(WorkloadError) as error:
        logs_of(tmp_path, TWO, small=small, large=large)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_each_rung_has_its_log(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="a log of each rung: small, large, got small"):
        logs_of(tmp_path, TWO, small=small_ones())
