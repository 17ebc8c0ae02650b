"""Stops of recorded probes: those of the whole-table code, and what differs from them."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stopadvisor.certification.verification import scorer_of
from stopadvisor.errors import ProbeError
from stopadvisor.policy.frozen import Policy, build_policy, load_policy
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from stopadvisor.serving.answer_file import AnswerRecord
from stopadvisor.serving.recorded_stops import compare_stops, recorded_stop
from tests.policy_content import full_budget_content

POLICIES = Path(__file__).parents[2] / "policies"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The committed probes of the arithmetic sample."""
    folder, probes = tmp_path_factory.mktemp("run"), POLICIES / "probes"
    (folder / "manifest.json").write_bytes((probes / "arithmetic.manifest.json").read_bytes())
    packed = (probes / "arithmetic.probes.jsonl.xz").read_bytes()
    (folder / "probes.jsonl").write_bytes(lzma.decompress(packed))
    return RunDirectory.load(folder)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(POLICIES / "arithmetic.joblib")


def answered(policy: Policy, record: ProbeRecord) -> AnswerRecord:
    """The line that serving writes where it stops as recorded."""
    stop = recorded_stop(policy, record)
    budget = None if stop is None else policy.budgets[stop]
    probe = next((c for c in record.checkpoints if c.budget == budget), None)
    return AnswerRecord(
        id=record.id,
        key=record.key,
        setting="",
        answer=record.natural_answer if probe is None else probe.answer,
        normalized="" if probe is None else probe.normalized,
        stopped=stop is not None,
        checkpoint=stop,
        budget=budget,
        finish="stop" if stop is None else "stopped",
        think_tokens=0,
        probe_tokens=0,
        visible_tokens=0,
        escaped_tokens=0,
        prompt_tokens=0,
        seconds=0.0,
        correct=None,
    )


def test_stops_are_those_of_the_whole_table(run: RunDirectory, policy: Policy) -> None:
    table = open_source(run.path).table
    threshold = np.array([policy.content["decision_threshold"]])
    curve = scorer_of(policy.content, table).curve(table, threshold)
    expected = dict(zip(table.keys, curve.stops(0).tolist(), strict=True))
    found = {record.key: recorded_stop(policy, record) for record in run.records()}
    never = len(policy.budgets)
    assert {key: never if stop is None else stop for key, stop in found.items()} == expected
    assert len(set(found.values())) > 2


def test_a_policy_that_never_stops_has_no_recorded_stop(run: RunDirectory) -> None:
    full_budget = Policy(build_policy(full_budget_content()))
    assert {recorded_stop(full_budget, record) for record in run.records()[:20]} == {None}


def test_answers_as_recorded_agree(run: RunDirectory, policy: Policy) -> None:
    lines = [answered(policy, record) for record in run.records()[:60]]
    found = compare_stops(policy, lines, run)
    assert (found.questions, found.differing_stops, found.differing_answers) == (60, 0, 0)
    assert found.differing_stops_share == 0


def test_other_stops_and_other_answers_are_counted(run: RunDirectory, policy: Policy) -> None:
    lines = [answered(policy, record) for record in run.records()[:60]]
    at = [i for i, line in enumerate(lines) if line.stopped][:3]
    lines[at[0]] = replace(lines[at[0]], normalized="elsewhere")
    lines[at[1]] = replace(lines[at[1]], stopped=False, checkpoint=None, budget=None)
    lines[at[2]] = replace(lines[at[2]], key="of no question here")
    found = compare_stops(policy, lines, run)
    assert (found.questions, found.differing_stops, found.differing_answers) == (59, 1, 2)
    assert found.examples == (lines[at[1]].id,)


def test_what_cannot_be_compared_is_refused(run: RunDirectory, policy: Policy) -> None:
    record = run.records()[0]
    with pytest.raises(ProbeError, match=r"probes at .* thinking tokens, the run did not"):
        recorded_stop(policy, replace(record, checkpoints=()))
    strange = replace(answered(policy, record), key="of no question here")
    with pytest.raises(ProbeError, match="nothing to compare with"):
        compare_stops(policy, [strange], run)
