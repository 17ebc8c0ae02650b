"""The probing benchmark on a model so small that only its working is tested, not its figures."""

from __future__ import annotations

import pytest

from tests.benchmarks.probing import SHAPES, main

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shape", ["tiny", "tiny-bf16"])
def test_the_benchmark_measures_what_it_says(
    shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--shape", shape, "--questions", "3", "--answer-tokens", "2", "5"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "3 questions x 10 checkpoints packed, traces of 60 tokens" in printed
    for tokens in (2, 5):
        assert f"answers of {tokens} tokens: packed " in printed
    assert "one request, 9 probes of 2 tokens in line" in printed  # the tenth is the trace's end
    if shape == "tiny":  # in half precision answers may differ
        assert printed.count("equal answers 100.0%") == 2
        assert "the same, token by token" in printed


def test_the_shapes_are_those_that_can_be_asked_for() -> None:
    from tests.benchmarks.random_qwen3 import SHAPES as KNOWN  # imports torch

    assert sorted(KNOWN) == list(SHAPES)
    assert all(len(shape.budgets) == 10 for shape in KNOWN.values())
    large = KNOWN["qwen3-8b"]
    assert (large.questions, large.trace, large.dtype) == (32, 1443, "bfloat16")
