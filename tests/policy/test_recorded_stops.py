"""Stops of recorded probes: those of the whole-table code, and what differs from them."""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.certification.verification import scorer_of
from stopadvisor.ground.errors import PolicyError, ProbeError
from stopadvisor.policy.frozen import Policy, load_policy
from stopadvisor.policy.probed_positions import check_probed
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger, stride
from stopadvisor.rules.schedules import grid_positions
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from tests.policy_content import family_content, full_budget_content, policy_from, trigger_content
from tests.replay import recorded_index

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


def test_stops_are_those_of_the_whole_table(run: RunDirectory, policy: Policy) -> None:
    table = open_source(run.path).table
    threshold = np.array([policy.content["decision_threshold"]])
    scorer = scorer_of(policy.terms, table)
    curve = scorer.curve(scorer.view(table), threshold)
    expected = dict(zip(table.keys, curve.stops(0).tolist(), strict=True))
    found = {record.key: recorded_index(policy, record) for record in run.records()}
    never = scorer.view(table).n_checkpoints  # one place after the last probe
    assert {key: never if stop is None else stop for key, stop in found.items()} == expected
    assert len(set(found.values())) > 2


def test_a_policy_that_never_stops_has_no_recorded_index(run: RunDirectory) -> None:
    full_budget = policy_from(full_budget_content())
    assert {recorded_index(full_budget, record) for record in run.records()[:20]} == {None}


def test_probes_that_are_missing_are_named(run: RunDirectory, policy: Policy) -> None:
    with pytest.raises(ProbeError, match=r"probes at .* thinking tokens, the run did not"):
        recorded_index(policy, replace(run.records()[0], checkpoints=()))


# --- Triggers that are no grid ---


def elsewhere(
    policy: Policy, trigger: Trigger, family: str = "agreement", **changes: Any
) -> Policy:
    """The same policy with another rule, probing elsewhere."""
    linear = float(trigger.stop_at or 0) if family == "fixed-budget" else 1e9
    rule = family_content(family, linear) | trigger_content(trigger, family=family)
    names = ["family", "features", "mean", "scale", "coef", "intercept", "trigger", "budgets"]
    names += ["threshold", "decision_threshold", "trees"]
    content = dict(policy.content) | {name: rule.get(name) for name in names}
    return policy_from(content | {"order": []} | changes)


MARKERS = MarkerTrigger(((5, 6),), 4, 9)


def at_markers(record: ProbeRecord, positions: Sequence[int]) -> ProbeRecord:
    """The same trace, probed where markers stand."""
    probes = record.checkpoints
    return replace(
        record,
        trace_tokens=50,
        checkpoints=tuple(
            replace(probes[k % len(probes)], budget=position, ended=False)
            for k, position in enumerate(positions)
        ),
        marker_positions=tuple(positions),
    )


def test_a_replay_at_markers_reads_where_they_were_recorded(
    run: RunDirectory, policy: Policy
) -> None:
    record = at_markers(run.records()[0], [0, 6, 8, 12, 30])
    never = elsewhere(policy, MARKERS)
    assert recorded_index(never, record) is None
    at_last = elsewhere(policy, replace(MARKERS, stop_at=30))
    assert recorded_index(at_last, record) == 2, "6 and 12 come before, 8 stands too near"
    bare = replace(record, checkpoints=record.checkpoints[:-1])
    with pytest.raises(ProbeError, match="probes at 30 thinking tokens"):
        recorded_index(never, bare)
    with pytest.raises(ProbeError, match="looked for no markers"):
        recorded_index(never, replace(record, marker_positions=None))


@pytest.mark.parametrize("on_stop", ["probe", "answer"])
def test_a_replay_of_a_fixed_budget_stops_all_who_think_so_long(
    run: RunDirectory, policy: Policy, on_stop: str
) -> None:
    budget = 252
    fixed = elsewhere(policy, ListedTrigger((budget,), budget), "fixed-budget", on_stop=on_stop)
    records = run.records()[:80]
    stops = [recorded_index(fixed, record) for record in records]
    assert stops == [0 if record.trace_tokens > budget else None for record in records]
    assert set(stops) == {0, None}


def test_runs_that_were_probed_elsewhere_are_refused(run: RunDirectory, policy: Policy) -> None:
    source = open_source(run.path)
    probed = grid_positions(source.table)
    bare = replace(source, table=replace(source.table, marker_positions=None))
    with pytest.raises(PolicyError, match="looked for no markers: `stopadvisor probe"):
        check_probed(elsewhere(policy, MARKERS), "p.joblib", bare)
    with pytest.raises(PolicyError, match=r"probes question '.*' at .* does not at"):
        check_probed(elsewhere(policy, stride(3, 9)), "p.joblib", source)
    late = probed[-1] + 1
    beyond = elsewhere(policy, ListedTrigger((late,), late), "fixed-budget")
    with pytest.raises(PolicyError, match=rf"probes question .* at {late} thinking"):
        check_probed(beyond, "p.joblib", source)
    at = probed[2]
    check_probed(elsewhere(policy, stride(at, at)), "p.joblib", source)
    check_probed(elsewhere(policy, ListedTrigger((at,), at), "fixed-budget"), "p.joblib", source)
