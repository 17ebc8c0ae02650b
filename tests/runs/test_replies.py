"""Replies of a ladder: its configuration, recorded lines, the run that they become, its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.answers.function_grader import open_graders
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.runs.imported import write_replies
from stopadvisor.runs.ladder import Ladder, Rung, ladder_of, read_ladder
from stopadvisor.runs.prices import default_settings
from stopadvisor.runs.recording import Recorded
from stopadvisor.runs.replies import ReplyRecord, read_replies
from stopadvisor.runs.sources import Source, open_source

SMALL = Rung("small", (1.0, 0.5, 2.0), model="tiny")
LARGE = Rung("large", (3.0, 1.0, 4.0), reasoning_effort="high")
TWO = Ladder((SMALL, LARGE))
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
    ],
)
def test_a_ladder_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "ladder.toml"
    file.write_text(text)
    with pytest.raises(WorkloadError) as error:
        read_ladder(file)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)


def test_what_a_manifest_holds_of_a_ladder_gives_it_back() -> None:
    assert ladder_of([rung.to_dict() for rung in TWO.rungs], "m") == TWO
    assert ladder_of([rung.to_dict() for rung in VOTE.rungs], "m") == VOTE
    assert VOTE.blocks == (range(5),)
    asked = [rung.to_dict() | {"temperature": 0} for rung in TWO.rungs]
    # 0.0 would give the run another name.
    assert repr([rung.to_dict() for rung in ladder_of(asked, "m").rungs]) == repr(asked)


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
    with pytest.raises(WorkloadError, match=r"stands in .*:1 too"):
        recorded(tmp_path / "r.jsonl", [line, line], TWO)


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


def test_the_fingerprint_covers_what_replies_cost(tmp_path: Path) -> None:
    found = []
    for tokens in (10, 11):
        folder = tmp_path / str(tokens)
        folder.mkdir()
        rungs = [reply("small", "1", tokens), reply("large", "1", 20)]
        found.append(run_of(folder, [{"id": "q", "gold": "1", "rungs": rungs}], TWO).fingerprint())
    assert found[0] != found[1]
