"""Runs that were not probed where a policy probes are refused, with the command that does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stopadvisor.certification.check_policy import CheckRequest, check_policy, check_probed
from stopadvisor.ground.errors import PolicyError, ProbeError
from stopadvisor.policy.frozen import Policy, load_policy
from stopadvisor.probes.table import grid_positions
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger, stride
from stopadvisor.runs.sources import Source, open_source
from tests.material import write_archive
from tests.policy_content import family_content, policy_from, trigger_content
from tests.replay import POLICIES, committed_run


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """The committed probes of the arithmetic sample."""
    return open_source(committed_run("arithmetic", tmp_path_factory.mktemp("run")))


def elsewhere(trigger: Trigger, family: str = "agreement") -> Policy:
    """The shipped policy with another rule, probing elsewhere."""
    linear = float(trigger.stop_at or 0) if family == "fixed-budget" else 1e9
    rule = family_content(family, linear) | trigger_content(trigger, family=family)
    names = ["family", "features", "mean", "scale", "coef", "intercept", "trigger", "budgets"]
    names += ["threshold", "decision_threshold"]
    content = load_policy(POLICIES / "arithmetic.joblib").content
    return policy_from(content | {name: rule.get(name) for name in names} | {"order": []})


def fixed(budget: int) -> Policy:
    return elsewhere(ListedTrigger((budget,), budget), "fixed-budget")


def test_where_probes_are_missing_a_command_makes_them(source: Source) -> None:
    late = grid_positions(source.table)[-1] + 1
    bare = replace(source, table=replace(source.table, marker_positions=None))
    seldom = MarkerTrigger(((5, 6),), 64, 9)
    for policy, run, said in (
        (elsewhere(seldom), bare, "apart: .*not searched for any: .*: `stopadvisor probe "),
        (elsewhere(seldom), source, "was probed at other markers: `"),
        (elsewhere(stride(3, 9)), source, "at 3, 6, 9 thinking tokens: question .* at 3 thinking"),
        (fixed(late), source, f"probes at {late}: question .* at {late} thinking"),
    ):
        with pytest.raises(PolicyError, match=said):
            check_probed(policy, "p.joblib", run)


def test_where_probes_are_there_nothing_is_said(source: Source) -> None:
    at = grid_positions(source.table)[2]
    for policy in (elsewhere(stride(at, at)), fixed(at)):
        check_probed(policy, "p.joblib", source)
    check_probed(load_policy(POLICIES / "arithmetic.joblib"), "p.joblib", source)


def test_an_archive_without_the_certificates_reference_is_refused_before_a_look(
    tmp_path: Path,
) -> None:
    archive = open_source(write_archive(tmp_path / "raw.npz"), folder=tmp_path / "results")
    policy = elsewhere(ListedTrigger((64, 128)))
    with pytest.raises(ProbeError, match="needs natural answers"):
        check_policy(policy, "p.joblib", archive, "raw.npz", CheckRequest(transfer=True))
    assert not (archive.folder / "looks.jsonl").exists()
