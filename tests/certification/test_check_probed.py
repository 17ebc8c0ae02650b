"""What a policy is checked against: runs probed, graded and looked at as it was made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stopadvisor.certification.check_policy import (
    CheckRequest,
    _graded_alike,
    _not_on_record,
    check_policy,
    check_probed,
)
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
        (elsewhere(seldom), bare, "apart: .*not searched for any: `stopadvisor probe .* --like p"),
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


BY_MATH = {"normalizer": "1", "grader": "math 3"}
BY_MINE = BY_MATH | {"grader": "mine:same", "grader_sha256": "a" * 64}


@pytest.mark.parametrize(
    ("ours", "theirs", "remarks", "refused"),
    [
        (BY_MATH, BY_MATH, 0, None),
        (BY_MATH, {}, 0, None),
        (BY_MINE, BY_MINE, 0, None),
        (BY_MATH, BY_MATH | {"grader": "math 2"}, 1, None),
        (BY_MINE, BY_MINE | {"grader_sha256": "b" * 64}, 1, None),
        (BY_MATH, BY_MATH | {"normalizer": "0"}, 0, "compares answers by normaliser '1', the run"),
        (BY_MINE, BY_MATH, 0, "graded by mine:same .* by math 3: .* --grader mine:same`"),
        (BY_MATH, BY_MINE, 0, "graded by math 3, the run by mine:same .* --grader gold`"),
    ],
)
def test_answers_are_graded_alike_or_the_difference_is_named(
    ours: dict[str, str], theirs: dict[str, str], remarks: int, refused: str | None
) -> None:
    if refused is not None:
        with pytest.raises(PolicyError, match=refused):
            _graded_alike(ours, theirs)
        return
    assert len(_graded_alike(ours, theirs)) == remarks


@pytest.mark.parametrize(
    ("head", "calibration", "remarks"),
    [("a" * 64, ("p", "q"), 1), ("a" * 64, ("p",), 1), ("a" * 64, ("p", "r"), 0), ("", ("p",), 0)],
)
def test_a_look_that_the_log_of_its_questions_does_not_hold_is_remarked_on(
    head: str, calibration: tuple[str, ...], remarks: int, tmp_path: Path
) -> None:
    """Not where other questions calibrated the policy, or it names no look."""
    run: Any = SimpleNamespace(folder=tmp_path, table=SimpleNamespace(keys=("p", "q")))
    split: Any = SimpleNamespace(calibration=calibration)
    assert len(_not_on_record(head, split, run)) == remarks
    assert _not_on_record(head, None, run) == []
