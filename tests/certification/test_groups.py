"""Certificates where groups hold several questions: of all questions, or of all groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.certification.calibration import (
    Calibration,
    calibrate,
    check_questions,
    transfer_test,
)
from stopadvisor.certification.limit_verdicts import FreshGroups
from stopadvisor.certification.looks import deploy_request
from stopadvisor.certification.refusals import refused_beforehand, without_figures
from stopadvisor.certification.verification import fresh_questions, scorer_of, verify
from stopadvisor.errors import CalibrationError, PolicyError
from stopadvisor.policy.frozen import Policy, load_policy, save_policy
from stopadvisor.probes.grouping import calibration_rows, group_numbers, group_sizes, question_rows
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bounds import NotCertified
from stopadvisor.stats.group_betting import group_lower_limit, group_passes, group_upper_limit
from tests.frozen import frozen, source_of
from tests.populations import POPULATIONS, regraded, renamed

pytestmark = pytest.mark.slow

MIXED = POPULATIONS[0]
SETTINGS = Settings(alpha=0.15, families=("confidence",))
OF_GROUPS = replace(SETTINGS, group_claim="groups")


def drawn(n_groups: int, seed: int, prefix: str = "c") -> OpenQuestions:
    """Groups of which 30 % hold five questions; a lone one has little that could be lost."""
    rng = np.random.default_rng(seed)
    sizes = np.where(rng.random(n_groups) < 0.3, 5, 1)
    table = renamed(MIXED.draw(int(sizes.sum()), rng), prefix)
    lone = np.repeat(sizes == 1, sizes)
    unsolved = lone & (rng.random(lone.size) < 0.8)
    groups = tuple(f"group {prefix}{i}" for i in np.repeat(np.arange(n_groups), sizes))
    return regraded(replace(table, groups=groups), natural_correct=table.full_correct & ~unsolved)


@pytest.fixture(scope="module")
def choice() -> Choice:
    return chosen(SETTINGS)


def chosen(settings: Settings) -> Choice:
    return choose(drawn(150, 0, "f").as_fit(), 330, settings, n_groups=150)


def by_group(table: OpenQuestions, found: Calibration) -> tuple[Any, Any]:
    """Losses of the exported rule in each group, and questions, one question after the other."""
    assert found.rule is not None
    scorer = found.rule.scorer
    view = scorer.view(table)
    stops = scorer.curve(view, np.array([found.rule.threshold])).stops(0)
    lost: dict[str, int] = {}
    size: dict[str, int] = {}
    for i, group in enumerate(table.groups):
        lost[group] = lost.get(group, 0) + int(scorer.losses(view)[i, stops[i]])
        size[group] = size.get(group, 0) + 1
    return np.array(list(lost.values())), np.array(list(size.values()))


# --- What enters ----------------------------------------------------------------------------------


def test_each_question_enters_with_one_trace() -> None:
    table = drawn(6, 1)
    n = table.n_questions
    twice = table.take(np.repeat(np.arange(n), 2))
    twice = replace(
        twice,
        samples=np.tile([1, 0], n),
        ids=tuple(f"{name}-{k}" for name in table.ids for k in (1, 0)),
    )
    assert question_rows(twice).tolist() == list(range(1, 2 * n, 2))
    assert group_sizes(twice).tolist() == group_sizes(table).tolist()
    assert group_sizes(table).max() == 5
    # Of a question that stands there twice, the first by its name.
    again = replace(table.take(np.array([0, 0, 1])), ids=("b", "a", "c"))
    assert question_rows(again).tolist() == [1, 2]


def test_questions_are_certified_by_bets_on_all_of_a_group(choice: Choice) -> None:
    table = drawn(400, 2)
    found = calibrate(choice, table.as_calibration())
    assert found.rule is not None
    certificate = found.rule.certificate
    losses, sizes = by_group(table, found)
    assert (certificate.bound, certificate.groups, certificate.group_cap) == ("betting", 400, 5)
    assert (certificate.n, certificate.losses) == (sizes.sum(), losses.sum())
    assert found.entered.n_questions == found.n_counted == sizes.sum()
    assert certificate.upper == group_upper_limit(losses, sizes, delta=0.05, most=5)
    assert certificate.upper < 0.15
    # The next threshold fails.
    order, scorer = found.rule.order, found.rule.scorer
    view = scorer.view(table)
    lost = scorer.curve(view, order).totals(
        scorer.losses(view), np.repeat(np.arange(400), sizes), 400
    )
    passed = group_passes(lost.round().astype(int), sizes, alpha=0.15, delta=0.05, most=5)
    assert certificate.index == int(passed.argmin()) - 1


def test_a_second_rule_is_not_tested_by_bets() -> None:
    both = chosen(Settings(alpha=0.15, families=("confidence", "fixed-budget")))
    assert len(both.sequences) == 2
    found = calibrate(both, drawn(400, 3).as_calibration())
    assert len(found.tested) == 1
    assert sum(both.deltas(880)) == 0.05


@pytest.mark.parametrize("cap", [None, 1], ids=["default", "declared"])
def test_where_each_question_is_its_own_group_nothing_changes(cap: int | None) -> None:
    fit = renamed(MIXED.draw(160, np.random.default_rng(4)), "f").as_fit()
    table = renamed(MIXED.draw(160, np.random.default_rng(5)), "c").as_calibration()
    plain = choose(fit, 160, Settings(alpha=0.15))
    other = choose(fit, 160, Settings(alpha=0.15, group_claim="groups", group_cap=cap), n_groups=7)
    assert plain.groups is None
    assert plain.label_savings == other.label_savings
    one, two = calibrate(plain, table), calibrate(other, table)
    assert one.rule is not None
    assert two.rule is not None
    assert one.rule.certificate == two.rule.certificate
    assert one.rule.certificate.groups is None
    assert one.rule.certificate.bound == "exact"
    assert not {"group_claim", "group_cap"} & deploy_request(plain.settings).keys()


def test_a_look_names_what_was_said_of_groups() -> None:
    named = deploy_request(replace(OF_GROUPS, group_cap=7))
    assert (named["group_claim"], named["group_cap"]) == ("groups", 7)


# --- What it promises -----------------------------------------------------------------------------


def test_false_certificates_of_questions_and_what_one_of_each_group_would_give() -> None:
    """All thresholds are bad for questions, the first only just: each certificate is false."""
    families = ("confidence",)
    chosen_once = chosen(Settings(alpha=0.15, families=families))
    sequence = chosen_once.sequences[0]
    truth = drawn(20_000, 6)
    curve = sequence.scorer.curve(sequence.scorer.view(truth), sequence.thresholds)
    losses = sequence.scorer.losses(sequence.scorer.view(truth))
    risk = curve.totals(losses)[0] / truth.n_questions
    first = int(np.flatnonzero(risk > 0.15)[0])
    assert risk[first] < 0.16
    bad = replace(
        sequence,
        thresholds=sequence.thresholds[first:],
        losses=sequence.losses[first:],
        costs=np.full(risk.size - first, 1.0),  # as cheap as can be, so that it is exported
    )
    tempted = replace(chosen_once, sequences=(bad,))
    single = replace(tempted, groups=None, settings=OF_GROUPS)
    runs, by_bets, by_one = 250, 0, 0
    for run in range(runs):
        fresh = drawn(150, 100 + run).as_calibration()
        by_bets += calibrate(tempted, fresh).rule is not None
        by_one += calibrate(single, fresh).rule is not None
    assert by_bets <= stats.binom.ppf(0.999, runs, 0.05)
    assert by_one > 0.3 * runs  # true of groups, and false of questions


# --- What is refused ------------------------------------------------------------------------------


def test_a_group_larger_than_settled_is_refused(choice: Choice) -> None:
    table = drawn(40, 7)
    six = replace(table, groups=("six",) * 6 + table.groups[6:])
    for ask in (calibrate, check_questions):
        with pytest.raises(CalibrationError, match="holds 6 questions, and at most 5 were to be"):
            ask(choice, six.as_calibration())
    check_questions(chosen(replace(SETTINGS, group_cap=6)), six)
    check_questions(chosen(OF_GROUPS), six)
    alone = choose(MIXED.draw(99, np.random.default_rng(0)).as_fit(), 40, SETTINGS)
    with pytest.raises(CalibrationError, match="and at most 1 were to be expected"):
        check_questions(alone, six)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_cap": 4}, "--group-cap must be at least the largest fit group, 5 questions"),
        ({"conditional": True}, "--conditional counts single questions, and a group here holds"),
        ({"bound": "hoeffding"}, "--bound hoeffding counts single questions"),
        ({"group_cap": 0}, "group_cap must be at least 1, got 0"),
        ({"group_claim": "all"}, "group_claim must be one of"),
    ],
)
def test_settings_that_do_not_suit_groups_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        chosen(replace(SETTINGS, **change))
    if "conditional" in change:
        assert chosen(replace(OF_GROUPS, **change)).groups is None


def test_a_rule_from_elsewhere_needs_the_cap_declared() -> None:
    table = drawn(40, 8)
    with pytest.raises(CalibrationError, match="declare with --group-cap"):
        transfer_test(table, SETTINGS)
    found = transfer_test(table, replace(SETTINGS, group_cap=5))
    assert found is not None
    assert found.most == 5
    assert transfer_test(table, OF_GROUPS) is None
    with pytest.raises(CalibrationError, match="--conditional counts single questions"):
        transfer_test(table, replace(SETTINGS, group_cap=5, conditional=True))


def test_too_few_groups_are_refused_before_a_look(choice: Choice) -> None:
    few = drawn(15, 9)
    refusal = refused_beforehand(choice, few)
    assert refusal is not None
    assert f"{few.n_questions} calibration questions in 15 groups cannot exclude" in refusal.reason
    needed = refusal.labels_needed
    assert needed is not None
    # Planned as if groups were equally large, which takes a little less.
    sizes = np.resize(group_sizes(drawn(150, 10)), round(1.1 * needed / 2.2))
    none = np.zeros((sizes.size, 1), dtype=int)
    assert group_passes(none, sizes, alpha=0.15, delta=0.05, most=5)[0]
    assert refused_beforehand(choice, drawn(400, 11)) is None


def test_a_refusal_says_what_was_lost_and_what_would_do(choice: Choice) -> None:
    table = drawn(100, 12)
    longer = replace(table, trace_tokens=np.full(table.n_questions, 4000))
    every = np.ones(table.n_questions, dtype=bool)
    worse = regraded(longer, correct=np.zeros_like(table.correct), natural_correct=every)
    sequence = choice.sequences[0]
    bold = replace(
        sequence,
        thresholds=sequence.thresholds[-1:],
        losses=sequence.losses[-1:],
        costs=sequence.costs[-1:],
    )
    found = calibrate(replace(choice, sequences=(bold,)), worse.as_calibration())
    assert found.rule is None
    ((_, refused),) = found.tested
    assert isinstance(refused, NotCertified)
    n = table.n_questions
    assert f"already loses {n} of {n} calibration questions in 100 groups" in refused.reason
    hidden = without_figures(found, SETTINGS, choice).refusal
    assert hidden is not None
    assert hidden.labels_needed is not None


# --- Planning -------------------------------------------------------------------------------------


def test_what_is_expected_is_what_bets_certify(choice: Choice) -> None:
    assert choice.groups is not None
    assert choice.groups.most == 5
    assert choice.groups.size == pytest.approx(2.2)
    assert 1 <= choice.groups.lost_together <= 5
    assert choice.advised_point is not None
    found = []
    for seed in range(40):
        rule = calibrate(choice, drawn(150, 500 + seed).as_calibration()).rule
        found.append(0.0 if rule is None else rule.fit_saving_pct or 0.0)
    assert choice.advised_point.expected_saving_pct == pytest.approx(np.mean(found), abs=8)
    assert choice.probability == pytest.approx(np.mean(np.array(found) > 0), abs=0.2)


# --- Policies -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source() -> Source:
    return source_of(drawn(1000, 13, "s"), "grouped")


@pytest.fixture(scope="module")
def policy(source: Source) -> dict[str, Any]:
    content = frozen(source, SETTINGS)
    assert content["kind"] == "stop"
    return content


def test_a_policy_says_which_claim_it_makes(policy: dict[str, Any], source: Source) -> None:
    certificate = Policy(policy).summary()["certificate"]
    assert certificate["bound"] == "betting"
    assert certificate["group_cap"] == 5
    assert certificate["groups"] == len(set(source.part("calibration").groups))
    assert "at most 15 % of all questions become wrong" in certificate["claim"]
    assert "for independent groups of at most 5 questions" in certificate["claim"]
    other = Policy(frozen(source, OF_GROUPS)).summary()["certificate"]
    assert other["n"] == certificate["groups"]
    assert (other["bound"], other["group_claim"]) == ("exact", "groups")
    assert "in at most 15 % of all groups the question drawn of it" in other["claim"]
    assert not {"groups", "group_cap"} & other.keys()


def test_the_test_part_counts_what_calibration_counted(
    policy: dict[str, Any], source: Source
) -> None:
    expected, test = policy["expected"], source.part("test")
    assert expected["test_n"] == test.n_questions
    for name in ("risk", "accuracy"):
        low, high = expected[f"test_{name}_ci95"]
        assert 0 <= low < expected[f"test_{name}"] < high <= 1
    other = frozen(source, OF_GROUPS)["expected"]
    assert other["test_n"] == len(set(test.groups))


def test_a_policy_comes_back_from_its_file(policy: dict[str, Any], tmp_path: Path) -> None:
    save_policy(policy, tmp_path / "policy.json", format="json")
    again = load_policy(tmp_path / "policy.json")
    assert again.content["certificate"] == policy["certificate"]
    assert again.summary() == Policy(policy).summary()


def check(content: dict[str, Any], table: OpenQuestions) -> Any:
    fresh = fresh_questions(content, table)
    return verify(content, fresh, table.take(fresh.rows), rng=np.random.default_rng(0))


def test_verify_bets_on_fresh_groups(policy: dict[str, Any], source: Source) -> None:
    table = drawn(500, 14, "v")
    found = check(policy, table)
    assert (found.n, found.groups, found.fresh.n_repeated) == (table.n_questions, 500, 0)
    assert found.lower < found.losses / found.n < found.upper < 0.15
    assert found.verdict == "confirmed"
    assert found.power_to_confirm > 0.5
    assert found.detectable_risk is not None
    assert 0.15 < found.detectable_risk < 0.4
    # Where all that is stopped goes wrong.
    worse = regraded(
        table,
        correct=np.zeros_like(table.correct),
        natural_correct=np.ones(table.n_questions, dtype=bool),
    )
    assert check(policy, worse).verdict == "contradicted"
    few = check(policy, drawn(8, 15, "w"))
    assert few.verdict == "silent"
    with pytest.raises(PolicyError, match="holds 6, and the certificate is about groups of at"):
        check(policy, replace(table, groups=("six",) * 6 + table.groups[6:]))
    # What a stop makes wrong less what it makes right, by the same bets on whole groups.
    scorer = scorer_of(policy, table)
    view = scorer.view(table)
    stops = scorer.curve(view, np.array([policy["decision_threshold"]])).stops(0)
    right = np.column_stack([view.correct_online, view.full_correct])
    right_stopped = right[np.arange(table.n_questions), stops]
    worse_by = (1.0 * table.full_correct - right_stopped + 1) / 2
    groups = FreshGroups(group_numbers(table), 5)
    least, most = groups.interval(worse_by, 0.95)
    difference = right_stopped.mean() - table.full_correct.mean()
    assert found.accuracy_difference == pytest.approx(difference)
    assert found.accuracy_difference_ci95 == (1 - 2 * most, 1 - 2 * least)
    assert -0.2 < 1 - 2 * most < found.accuracy_difference < 1 - 2 * least < 0.2
    # The risk that is contradicted four times in five: so many groups lose what lies together.
    lost = groups.sums(table.full_correct & ~right_stopped)
    together = np.minimum(groups.sizes, round(lost[lost > 0].mean()))

    def contradicts(unlucky: int) -> bool:
        losses = np.where(np.arange(500) < unlucky, together, 0)
        return group_lower_limit(losses, groups.sizes, delta=0.05, most=5) > 0.15

    fewest = next(k for k in range(500) if contradicts(k))
    share = found.detectable_risk / (together.mean() / groups.sizes.mean())
    assert stats.binom.sf(fewest - 1, 500, share) == pytest.approx(0.8)
    names = tuple("ab"[i % 3 == 0] for i in range(table.n_questions))
    parts = check(policy, replace(table, categories=names)).categories
    assert sum(row.losses for row in parts) == found.losses
    for row in parts:
        chosen = np.array([name == row.category for name in names])
        expected = groups.take(chosen).interval(
            (table.full_correct & ~right_stopped)[chosen], 0.975
        )
        assert row.ci95 == expected
        assert row.ci95[0] < row.losses / row.n < row.ci95[1] < 0.5
    # The other claim takes one question of each.
    other = check(frozen(source, OF_GROUPS), table)
    assert (other.n, other.groups) == (calibration_rows(table).size, None)
