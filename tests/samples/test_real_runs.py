"""Recorded traces of real models, imported: the run holds what the arrays hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stopadvisor.ground.arrays import IntArray
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.table import EMPTY_ANSWER, NO_PROBE
from stopadvisor.runs.sources import open_source
from tests.benchmarks.real_runs import CAP, SUFFIX_TOKENS, write_run
from tests.benchmarks.real_traces import WAIT_MODEL, load_traces, load_waits

pytestmark = pytest.mark.slow


def same_pattern(ours: IntArray, theirs: IntArray) -> bool:
    """Whether two numberings of the same answers tell the same ones apart."""
    pairs = set(zip(ours.ravel().tolist(), theirs.ravel().tolist(), strict=True))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def opened(path: Path) -> OpenQuestions:
    return open_source(path).table.unseal()


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("text"), "qwen3-8b", 1)


def test_answers_every_64_tokens(text_run: Path) -> None:
    traces = load_traces("qwen3-8b", 1)
    n = int(traces.certified.sum())
    table = opened(text_run)
    assert table.ids == traces.questions[:n]
    live = traces.live[:n] & (traces.positions < CAP)
    width = table.n_checkpoints
    assert width == live.sum(axis=1).max()
    probed = table.positions != NO_PROBE
    np.testing.assert_array_equal(probed, live[:, :width])
    np.testing.assert_array_equal(probed, table.live)
    np.testing.assert_array_equal(
        table.positions, np.where(probed, traces.positions[:width], NO_PROBE)
    )
    codes = traces.codes[:n, :width]
    np.testing.assert_array_equal(table.correct[probed], codes[probed] == 1)
    np.testing.assert_array_equal(table.answer_codes[probed] == EMPTY_ANSWER, codes[probed] == 0)
    assert same_pattern(table.answer_codes[probed], codes[probed])
    np.testing.assert_array_equal(
        table.probe_tokens[probed], traces.probe_tokens[:n, :width][probed]
    )
    np.testing.assert_array_equal(table.markers[probed], traces.markers[:n, :width][probed])
    trace = np.minimum(traces.think_tokens, CAP)[:n]
    np.testing.assert_array_equal(table.trace_tokens, trace)
    np.testing.assert_array_equal(table.prompt_tokens, traces.prompt_tokens[:n])
    np.testing.assert_array_equal(table.truncated, traces.truncated[:n])
    np.testing.assert_array_equal(table.full_correct, traces.full_correct[:n])
    assert table.outcomes.natural_code is not None
    right = table.answer_codes[table.correct & probed][0]
    natural = table.outcomes.natural_code
    np.testing.assert_array_equal(natural == right, traces.full_codes[:n] == 1)
    np.testing.assert_array_equal(natural == -1, traces.full_codes[:n] == 0)
    assert table.natural_tokens is not None
    counted = table.trace_tokens + table.natural_tokens
    np.testing.assert_array_equal(counted, np.maximum(traces.total_tokens[:n], trace))
    assert table.suffix_tokens == SUFFIX_TOKENS
    assert (table.entropy_source, table.marker_positions) == ("none", None)


def test_a_dense_run_opens(text_run: Path) -> None:
    assert open_source(text_run).table.answer_codes.size > 100_000


def test_answers_at_each_wait_beside_the_grid(tmp_path: Path) -> None:
    traces, waits = load_traces(WAIT_MODEL, 0, with_waits=True), load_waits(0)
    source = open_source(write_run(tmp_path, WAIT_MODEL, 0, waits=True))
    assert source.manifest is not None
    assert source.manifest["plan"]["max_think"] == CAP
    assert source.manifest["plan"]["budgets"] == []
    table = source.table.unseal()
    assert table.ids == traces.questions
    assert table.marker_positions is not None
    np.testing.assert_array_equal(
        table.marker_positions, waits.positions[:, : table.marker_positions.shape[1]]
    )
    for row in range(table.n_questions):
        on_the_way = traces.live[row] & (traces.positions < CAP)
        grid = traces.positions[on_the_way]
        asked = waits.live[row]
        places = waits.positions[row][asked]
        probed = table.positions[row] != NO_PROBE
        positions = table.positions[row][probed]
        np.testing.assert_array_equal(positions, np.union1d(grid, places))
        at = np.searchsorted(positions, places)
        np.testing.assert_array_equal(table.mean_logprob[row, at], waits.mean_logprob[row][asked])
        np.testing.assert_array_equal(table.correct[row, at], waits.codes[row][asked] == 1)
        np.testing.assert_array_equal(table.probe_tokens[row, at], waits.probe_tokens[row][asked])
        if asked.any():
            assert same_pattern(table.answer_codes[row, at], waits.codes[row][asked])
        off = np.setdiff1d(np.flatnonzero(probed), at)
        assert np.isnan(table.mean_logprob[row, off]).all()
        on_grid = np.isin(grid, positions[off])
        np.testing.assert_array_equal(
            table.correct[row, off], traces.codes[row, on_the_way][on_grid] == 1
        )
    wrong = np.unique(table.answer_codes[np.isnan(table.mean_logprob) & table.live])
    tried = np.unique(table.answer_codes[~np.isnan(table.mean_logprob) & table.live])
    right = table.answer_codes[table.correct & table.live][0]
    assert {*wrong.tolist()} & {*tried.tolist()} == {right, EMPTY_ANSWER}
