"""The probing benchmark on a model so small that only its working is tested, not its figures."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks.probing import EXACT, SHAPES, Report, main
from tests.benchmarks.random_qwen3 import SHAPES as KNOWN

pytestmark = pytest.mark.slow


def test_the_benchmark_measures_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--shape", "tiny", "--questions", "3", "--answer-tokens", "2", "5"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == Report.__annotations__.keys()
    assert (found["questions"], found["checkpoints"], found["trace_tokens"]) == (3, 10, 60)
    assert [row["answer_tokens"] for row in found["rows"]] == [2, 5]
    for row in found["rows"]:
        assert row["packed_to_reprefill"] == row["packed_s"] / row["reprefill_s"]
        assert row["equal_answers"] == 1.0
        assert row["max_difference"] <= EXACT
    assert found["in_line"]["probes"] == 9  # the tenth budget is the end of the trace
    assert found["in_line"]["resumed_unchanged"]


def test_half_precision_has_a_row_per_length_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shape", "tiny-bf16", "--questions", "2", "--answer-tokens", "2", "3"]) == 0
    printed = capsys.readouterr().out
    assert "torch threads" in printed
    assert "| 2 tokens |" in printed
    assert "| 3 tokens |" in printed
    assert "one request, 9 probes of 2 tokens in line" in printed


def test_the_shapes_are_those_that_can_be_asked_for() -> None:
    assert sorted(KNOWN) == list(SHAPES)
    assert all(len(shape.budgets) == 10 for shape in KNOWN.values())
    large = KNOWN["qwen3-8b"]
    assert (large.questions, large.trace, large.dtype) == (32, 1443, "bfloat16")
