"""Verify a frozen policy: which questions count, verdicts, and how often they are wrong."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stopadvisor.assessment.choice import Settings
from stopadvisor.certification.verdicts import limit_verdicts, of_questions, of_values, verdict_on
from stopadvisor.certification.verification import (
    Fresh,
    Verification,
    fresh_questions,
    questions_seen,
    scorer_of,
    verify,
)
from stopadvisor.ground.arrays import BoolArray
from stopadvisor.ground.errors import PolicyError, ProbeError
from stopadvisor.policy.claims import GuaranteeTerms
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.trigger import ListedTrigger
from stopadvisor.rules.costs import Weights
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.losses import DROP as DROP_LOSS
from stopadvisor.rules.losses import LOST
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bounds import max_losses
from stopadvisor.stats.intervals import exact_interval, paired_difference
from stopadvisor.stats.trinomial import drop_limit, drop_power, limit_of_pairs, risk_of_pairs
from stopadvisor.workload.questions import PARTS, assign_parts
from tests.frozen import MODEL, drawn_source, frozen, verified, with_groups
from tests.policy_content import family_content, full_budget_content, terms_of, trigger_content
from tests.populations import POPULATIONS, drawn, regraded, without_gold
from tests.replay import stops

MIXED = POPULATIONS[0]
SETTINGS = Settings(alpha=0.15, families=("learned", "confidence"))


def check(
    content: Any, table: OpenQuestions, *, drift: bool = False, **changes: Any
) -> Verification:
    """Verify a policy; its permutation tests of drift take most of the time."""
    return verified(
        content if drift else content | {"calibration_features": None}, table, **changes
    )


@pytest.fixture(scope="module")
def source() -> Source:
    return drawn_source(MIXED, 400, "source")


@pytest.fixture(scope="module")
def policy(source: Source) -> dict[str, Any]:
    content = frozen(source, SETTINGS)
    assert content["kind"] == "stop"
    return content


def of_family(family: str, budgets: tuple[int, ...], threshold: float | None = None) -> Any:
    """The example's rule of a family, at some budgets, with nothing to measure drift against."""
    probed = trigger_content(ListedTrigger(budgets))
    return family_content(family, threshold) | probed | {"calibration_features": None}


def fresh_table(n: int, seed: int) -> OpenQuestions:
    return drawn(n, seed, "fresh-")


def fixed_at_640(*order: float) -> Any:
    return of_family("confidence", ()) | {
        "family": FIXED_BUDGET,
        "decision_threshold": 640.0,
        **trigger_content(ListedTrigger((640,), 640), family=FIXED_BUDGET),
        "order": list(order),
    }


# --- Which questions count ------------------------------------------------------------------------


def test_questions_that_made_the_policy_are_left_out_and_counted(
    source: Source, policy: dict[str, Any]
) -> None:
    table = source.table.unseal()
    found = check(policy, table)
    assert found.n == source.counts()["test"]
    assert found.n_met_before == source.counts()["fit"] + source.counts()["calibration"]
    assert (found.n_repeated, found.n_left_out) == (0, found.n_met_before)
    keys = {table.keys[row] for row in fresh_questions(terms_of(policy), table).rows.tolist()}
    assert keys == set(source.part("test").keys)


@pytest.mark.parametrize("part", ["fit", "calibration"])
def test_without_a_fresh_question_it_is_refused(
    source: Source, policy: dict[str, Any], part: Any
) -> None:
    with pytest.raises(PolicyError, match="fresh ones are required") as caught:
        check(policy, source.table.take(source.parts == PARTS.index(part)).unseal())
    assert caught.value.exit_code == 2


def test_labels_of_questions_left_out_change_nothing(
    source: Source, policy: dict[str, Any]
) -> None:
    table = source.table.unseal()
    closed = source.parts != 2
    flipped = regraded(
        table, correct=table.correct ^ closed[:, None], natural_correct=table.full_correct ^ closed
    )
    assert check(policy, flipped) == check(policy, table)


def test_one_trace_per_question_and_group_enters(policy: dict[str, Any]) -> None:
    table = fresh_table(60, 1)
    rows = np.repeat(np.arange(60), 3)
    thrice = replace(table.take(rows), samples=np.tile([0, 2, 3], 60))
    found = check(policy, thrice)
    assert (found.n, found.n_repeated, found.n_left_out) == (60, 120, 120)
    assert found.losses == check(policy, table).losses
    assert check(policy, with_groups(table, 4)).n == 15


def test_a_group_that_was_met_is_met_whole(source: Source, policy: dict[str, Any]) -> None:
    fresh, old = fresh_table(20, 2), source.part("calibration").take(np.arange(1))
    rows = [*fresh.keys[:3], *old.keys]
    both = replace(
        fresh.take(np.array([0, 1, 2, 3])), keys=tuple(rows), groups=("a", "b", "a", "a")
    )
    found = fresh_questions(terms_of(policy), both)
    assert found.rows.tolist() == [1]
    assert (found.n_seen, found.n_repeated) == (3, 0)


def test_a_group_is_met_elsewhere_too(source: Source) -> None:
    """Other questions of a passage that calibrated the policy are not fresh."""
    table = with_groups(source.table.unseal(), 4)
    parts = assign_parts(table.groups, seed=source.seed, fractions=source.fractions)
    grouped = replace(source, table=table.sealed(), parts=parts)
    used = grouped.part("calibration").groups[0]
    fresh = fresh_table(24, 3)
    fresh = replace(fresh, groups=(*(used,) * 4, *fresh.groups[4:]))
    settings = replace(SETTINGS, families=("confidence",))
    assert fresh_questions(terms_of(frozen(grouped, settings)), fresh).n_seen == 4


def test_rows_of_archives_name_questions_of_that_archive_only(
    source: Source, policy: dict[str, Any]
) -> None:
    names = tuple(key.replace("source", "row") for key in source.table.keys)
    table, sha = replace(source.table, ids=names, keys=names, groups=names), source.workload_sha256
    named = policy | dict.fromkeys(MODEL)  # as by ids, bound to no model
    split = {
        part: [key.replace("source", "row") for key in keys] if part in PARTS else keys
        for part, keys in policy["split"].items()
    }
    archive = named | {"split": split}
    assert len(questions_seen(terms_of(archive), table)) == 400 - source.counts()["test"]
    assert questions_seen(terms_of(archive), table, workload_sha256=sha) == questions_seen(
        terms_of(archive), table
    )
    assert not questions_seen(terms_of(archive), table, workload_sha256="another")
    bound = archive | MODEL  # content hashes name a question everywhere
    assert questions_seen(terms_of(bound), table, workload_sha256="another")
    assert not questions_seen(terms_of(archive | {"split": None}), table)
    met = questions_seen(terms_of(named), source.table, workload_sha256="another")
    assert met == questions_seen(terms_of(named), source.table)
    assert met


# --- What is counted ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["learned", "confidence"])
def test_stops_are_those_of_the_stepper(family: str) -> None:
    content = of_family(family, (0, 256, 640, 1024))
    table = fresh_table(80, 3)
    scorer = scorer_of(terms_of(content), table)
    assert scorer.schedule == ListedTrigger((0, 256, 640, 1024))
    online = stops(table, scorer, content["decision_threshold"])
    columns = (0, 3, 6, 8)
    right = [
        table.full_correct[i] if j == 4 else table.correct_online[i, columns[j]]
        for i, j in enumerate(online)
    ]
    found = check(content, table)
    assert found.accuracy == sum(right) / 80
    assert found.losses == sum(table.full_correct[i] and not right[i] for i in range(80))


def test_an_intercept_of_nothing_is_none() -> None:
    content = of_family("learned", (0, 256)) | {"intercept": 0.0}
    model = scorer_of(terms_of(content), fresh_table(5, 3)).model
    assert model is not None
    assert model.intercept == 0.0


def test_limits_power_and_accuracy_by_hand(policy: dict[str, Any]) -> None:
    found = check(policy, fresh_table(150, 4))
    n, k = found.n, found.losses
    assert n == 150
    assert 0 < k < n
    assert found.risk == k / n
    assert stats.binom.sf(k - 1, n, found.lower) == pytest.approx(0.05)
    assert stats.binom.cdf(k, n, found.upper) == pytest.approx(0.05)
    confirming = max(j for j in range(n) if stats.binom.cdf(j, n, 0.15) <= 0.05)
    certificate = policy["certificate"]
    assert policy["expected"]["fit_risk"] != certificate["losses"] / certificate["n"]
    assert found.expected_risk == certificate["losses"] / certificate["n"], "no figure of fit"
    assert found.power_to_confirm == pytest.approx(
        stats.binom.cdf(confirming, n, found.expected_risk)
    )
    contradicting = min(j for j in range(n) if stats.binom.sf(j - 1, n, 0.15) < 0.05)
    assert found.detectable_risk is not None
    assert stats.binom.sf(contradicting - 1, n, found.detectable_risk) == pytest.approx(0.8)
    gains = round(n * (found.accuracy - found.full_accuracy)) + k
    assert found.accuracy_difference == pytest.approx(found.accuracy - found.full_accuracy)
    assert found.accuracy_difference_ci95 == paired_difference(gains, k, n)
    surer = check(policy, fresh_table(150, 4), delta=0.01)
    assert stats.binom.cdf(k, n, surer.upper) == pytest.approx(0.01)


def test_a_drop_expects_what_calibration_lost_and_gained(policy: dict[str, Any]) -> None:
    certificate = policy["certificate"] | {"loss": "drop", "gained": 1}
    found = check(policy | {"certificate": certificate}, fresh_table(40, 14))
    assert found.expected_risk == (certificate["losses"] - 1) / certificate["n"]


@pytest.mark.parametrize("traces", [1, 2])
def test_differing_replies_are_expected_as_often_as_calibration_does_not_exclude(
    policy: dict[str, Any], traces: int
) -> None:
    """Not as often as it lost replies: a rise of accuracy is a risk below 0."""
    certificate = policy["certificate"]
    certificate |= {"loss": "drop", "gained": certificate["losses"] + 9, "differs_upper": 0.3}
    table = fresh_table(80, 14)
    if traces == 2:
        names = table.ids[:40] * 2
        table = replace(table, ids=names, keys=names, groups=names)
        table = replace(table, samples=np.repeat([0, 1], 40))
    found = check(policy | {"certificate": certificate}, without_gold(table))
    assert (found.loss, found.expected_risk, found.detectable_risk) == ("differs", 0.3, None)
    n, alpha = 80 // traces, certificate["alpha"]
    power = stats.binom.cdf(max_losses(n, alpha, 0.05), n, 0.3)
    if traces == 2:
        power = drop_power(n, 2 * alpha - 1, 0.05, 0.3, 0.7)
    assert found.power_to_confirm == pytest.approx(power)


def test_visible_answers_are_verified_by_visible_answers(policy: dict[str, Any]) -> None:
    table = fresh_table(10, 15)
    assert table.on_stop == "probe"
    with pytest.raises(PolicyError, match="these probes hold none"):
        fresh_questions(terms_of(policy | {"on_stop": "answer"}), table)


def test_few_questions_can_contradict_nothing(policy: dict[str, Any]) -> None:
    found = check(policy, fresh_table(1, 5))
    assert (found.verdict, found.detectable_risk, found.power_to_confirm) == ("silent", None, 0.0)


def test_saving_follows_serving_and_weights(policy: dict[str, Any]) -> None:
    table = fresh_table(100, 6)
    usual = check(policy, table)
    assert usual == check(policy, table, serving="kv-fork")
    dear = check(policy, table, serving="black-box")
    assert dear.total_saving_pct < usual.total_saving_pct
    assert dear.losses == usual.losses
    decoded = check(policy, table, weights=Weights(0.0, 0.0, 1.0, "decoded tokens"))
    assert decoded.total_saving_pct > usual.total_saving_pct
    told = policy["expected"] | {"weights": asdict(Weights(0.0, 0.0, 1.0, "decoded tokens"))}
    assert check(policy | {"expected": told}, table) == decoded
    assert usual.total_saving_ci95 is not None
    low, high = usual.total_saving_ci95
    assert low < usual.total_saving_pct < high


def test_the_reference_is_the_certificates(policy: dict[str, Any]) -> None:
    """Under last-checkpoint, the last one that was probed, wherever the policy ends."""
    content = of_family("confidence", (0, 256, 640))
    content["certificate"] = {**content["certificate"], "reference": "last-checkpoint"}
    table = fresh_table(50, 8)
    found = check(content, table)
    assert found.full_accuracy == table.correct[:, -1].mean()
    archive = replace(table, natural_tokens=None, reference="last-checkpoint")
    with pytest.raises(ProbeError, match="needs natural answers"):
        check(policy, archive)


@pytest.mark.parametrize("family", ["confidence", FIXED_BUDGET])
def test_positions_after_the_last_checkpoint_leave_the_reference_alone(family: str) -> None:
    """No question thinks that long, so no probe is missing; full thinking answers before."""
    table = fresh_table(300, 8)
    short = np.minimum(table.trace_tokens, 2000)
    probes = replace(table.with_reference("last-checkpoint"), trace_tokens=short)
    budgets = (256, 640, 1024)

    def content(*later: int) -> Any:
        if family == FIXED_BUDGET:
            return fixed_at_640(*reversed(later), 1024.0, 640.0, 256.0)
        return of_family(family, (*budgets, *later))

    for at in (content(), content(2048), content(int(table.budgets[-1]))):
        scorer = scorer_of(terms_of(at), probes, along_order=family == FIXED_BUDGET)
        view = scorer.view(probes)
        assert view.budgets.tolist() == [*budgets, int(table.budgets[-1])]
        assert (view.full_correct == table.correct[:, -1]).all()
    with pytest.raises(PolicyError, match="was not probed at 1999 thinking tokens"):
        scorer_of(terms_of(content(1999)), probes, along_order=family == FIXED_BUDGET)


def test_category_risks_are_simultaneous_and_complete(policy: dict[str, Any]) -> None:
    table = fresh_table(120, 9)
    assert check(policy, table).categories == ()
    names = tuple(["words", "algebra", None, "algebra"][i % 4] for i in range(120))
    found = check(policy, replace(table, categories=names))
    assert [c.category for c in found.categories] == ["algebra", "words", None]
    assert [c.n for c in found.categories] == [60, 30, 30]
    assert sum(c.losses for c in found.categories) == found.losses
    for row in found.categories:
        assert row.ci95 == exact_interval(row.losses, row.n, 1 - 0.05 / 3)


def test_drift_is_measured_where_features_are_stored(
    source: Source, policy: dict[str, Any]
) -> None:
    features = policy["calibration_features"]
    assert len(features) == source.counts()["calibration"]
    policy = policy | {"calibration_features": features[:60]}  # fewer take less time
    same = check(policy, fresh_table(60, 10), drift=True)
    assert min(row.adjusted_p for row in same.drift) > 0.05
    table = fresh_table(60, 11)
    higher = replace(table, mean_entropy=table.mean_entropy + 1.0)
    moved = check(policy, higher, drift=True)
    assert {row.feature for row in moved.drift if row.adjusted_p < 0.05} == {"answer_entropy"}
    assert check(policy | {"calibration_features": None}, table).drift == ()


def test_what_is_measured_otherwise_and_not_read_has_no_drift(policy: dict[str, Any]) -> None:
    policy = policy | {"calibration_features": policy["calibration_features"][:40]}
    reads_none = of_family("agreement", tuple(policy["budgets"]))
    for name in ("calibration_features", "schema", "entropy_source"):
        reads_none[name] = policy[name]
    other = replace(fresh_table(40, 13), entropy_source="top-k")
    same = replace(other, entropy_source=policy["entropy_source"])
    every, also, unchanged, unread = (
        {row.feature for row in check(content, table, drift=True).drift}
        for table in (same, other)
        for content in (policy, reads_none)
    )
    assert every == also == unchanged
    assert every - unread == {"answer_logprob", "answer_entropy"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (full_budget_content(), "full-budget policy has no certificate"),
        (family_content("entropy") | {"certificate": None}, "no certificate to verify"),
        (
            family_content("entropy"),
            r"policy probes at 0, 16, .*: question 'fresh-\d+' was not probed at 16 ",
        ),
    ],
    ids=["full-budget", "not certified", "budgets"],
)
def test_policies_that_cannot_be_verified(content: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        check(content, fresh_table(10, 12))


def test_a_rule_without_a_certificate_promises_nothing_to_verify() -> None:
    table, terms = fresh_table(10, 12), terms_of(family_content("entropy") | {"certificate": None})
    with pytest.raises(PolicyError, match="no certificate to verify"):
        verify(terms, Fresh(np.arange(10), 0, 0), table, rng=np.random.default_rng(0))


DROP = {"loss": "drop", "alpha": 0.1, "n": 80, "lost": 1, "gained": 0, "upper": 0.1} | {
    "category": None
}


def test_what_is_counted_by_what_is_right_takes_gold() -> None:
    content = of_family("confidence", (128, 1024))
    content["certificate"] = {**content["certificate"], "guarantees": [DROP]}
    table = fresh_table(10, 12)
    assert fresh_questions(terms_of(content), table).rows.size == 10
    with pytest.raises(PolicyError, match="some fresh questions have no gold"):
        fresh_questions(terms_of(content), without_gold(table))


def test_a_fixed_budget_stops_at_its_threshold_and_is_looked_at_along_its_order() -> None:
    content = fixed_at_640(1024.0, 640.0, 256.0)
    table = fresh_table(80, 16)
    column = table.budgets.tolist().index(640)
    found = check(content, table)
    assert found.accuracy == table.correct_online[:, column].mean()
    assert scorer_of(terms_of(content), table).schedule == ListedTrigger((640,), 640)
    along = scorer_of(terms_of(content), table, along_order=True)
    assert along.schedule == ListedTrigger((256, 640, 1024))
    stopped = along.curve(along.view(table), np.array(content["order"]))
    for index, budget in enumerate((1024, 640, 256)):
        goes_on = table.trace_tokens > budget
        assert (stopped.stops(index)[goes_on] == 2 - index).all()
        assert (stopped.stops(index)[~goes_on] == 3).all()


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "run"])
def test_a_fixed_budget_loses_against_the_last_checkpoint_of_the_probes(archive: bool) -> None:
    """Not against its own stop, where it would lose nothing and save nothing."""
    content = fixed_at_640(640.0)
    content["certificate"] = {**content["certificate"], "reference": "last-checkpoint"}
    table = fresh_table(300, 8)
    probes = table.with_reference("last-checkpoint") if archive else table
    found = check(content, probes)
    at_640 = table.correct[:, table.budgets.tolist().index(640)]
    stops = table.trace_tokens > 640
    assert found.full_accuracy == table.correct[:, -1].mean()
    assert found.losses == int((stops & table.correct[:, -1] & ~at_640).sum()) > 0
    full = np.minimum(table.trace_tokens, table.budgets[-1])
    assert found.think_saving_pct == pytest.approx(
        100 * (1 - np.minimum(full, 640).sum() / full.sum())
    )


# --- How often it is wrong ------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=50)
@given(
    st.integers(1, 120),
    st.floats(0.01, 0.5),
    st.sampled_from([0.01, 0.05, 0.1]),
    st.integers(0, 1000),
)
def test_either_verdict_is_wrong_with_at_most_delta(
    n: int, alpha: float, delta: float, thousandths: int
) -> None:
    """Exactly, over all outcomes, at and on the right side of alpha."""
    place = thousandths / 1000
    losses = np.arange(n + 1)
    verdicts = np.array([verdict_on(int(k), n, alpha, delta) for k in losses])
    at_most = stats.binom.pmf(losses, n, alpha * place)
    at_least = stats.binom.pmf(losses, n, alpha + (1 - alpha) * place)
    for p in (at_most, stats.binom.pmf(losses, n, alpha)):
        assert p[verdicts == "contradicted"].sum() <= delta + 1e-9
    for p in (at_least, stats.binom.pmf(losses, n, alpha)):
        assert p[verdicts == "confirmed"].sum() <= delta + 1e-9
    order = ["confirmed", "silent", "contradicted"]
    assert (np.diff([order.index(v) for v in verdicts]) >= 0).all()


MOST = max_losses(500, 0.05, 0.05)


@pytest.mark.parametrize(
    ("losses", "n", "verdict"),
    [
        (0, 10, "silent"),
        (0, 500, "confirmed"),
        (MOST, 500, "confirmed"),
        (MOST + 1, 500, "silent"),
        (2, 2, "contradicted"),
    ],
)
def test_verdicts_on_few_losses(losses: int, n: int, verdict: str) -> None:
    assert verdict_on(losses, n, 0.05, 0.05) == verdict


def test_the_risk_that_can_be_detected() -> None:
    detectable = of_questions(0, 2, 0.05, 0.05, 0.0).detectable_risk
    assert detectable == pytest.approx(0.8**0.5)
    assert of_questions(0, 1, 0.049, 0.05, 0.0).detectable_risk == pytest.approx(0.8)
    assert of_questions(0, 1, 0.06, 0.05, 0.0).detectable_risk is None


LIMIT = GuaranteeTerms("lost", 0.15, 80, 12, 2, 0.15, None)
"""Of a certificate: 12 lost replies and, for a drop, 2 gained."""


@pytest.mark.parametrize(
    ("both", "one", "verdict"), [(0, 4, "confirmed"), (3, 6, "silent"), (22, 8, "contradicted")]
)
def test_pairs_of_replies_are_a_drop_at_twice_the_limit_less_one(
    both: int, one: int, verdict: str
) -> None:
    n, none, alpha = 60, 60 - both - one, limit_of_pairs(0.15)
    values = np.array([np.arange(n) < both + one, np.arange(n) < both], dtype=np.int64)
    paired = replace(LIMIT, both=2, one=8, none=70)
    found, alone = (of_values(LOST, values, 0.05, limit, 0.1) for limit in (paired, LIMIT))
    assert found.verdict == alone.verdict == verdict
    assert found.upper == alone.upper == risk_of_pairs(both, none, n, 0.05)
    assert found.lower == pytest.approx(1 - risk_of_pairs(none, both, n, 0.05))
    assert found.lower < (both + one / 2) / n < found.upper
    assert found.power_to_confirm == drop_power(n, alpha, 0.05, 2 / 80, 70 / 80)
    # Calibrated on one trace, all that is lost may be lost twice.
    assert alone.power_to_confirm == drop_power(n, alpha, 0.05, 0.1, 0.9)
    for limit in (replace(LIMIT, both=2), replace(LIMIT, none=70)):
        assert of_values(LOST, values, 0.05, limit, 0.1) == alone


@pytest.mark.parametrize(
    ("lost", "gained", "verdict"), [(3, 5, "confirmed"), (9, 2, "silent"), (26, 2, "contradicted")]
)
def test_evidence_of_a_drop_swaps_what_is_lost_and_gained(
    lost: int, gained: int, verdict: str
) -> None:
    n, k = 60, np.arange(60)
    values = (1 * (k < lost) - 1 * (k >= n - gained))[None]
    found = of_values(DROP_LOSS, values, 0.05, LIMIT, 0.1)
    assert found.verdict == verdict
    limits = -drop_limit(gained, lost, n, 0.05), drop_limit(lost, gained, n, 0.05)
    assert (found.lower, found.upper) == limits
    assert found.power_to_confirm == drop_power(n, 0.15, 0.05, 12 / 80, 2 / 80)
    plain = of_values(LOST, values, 0.05, LIMIT, 0.1)
    assert plain == of_questions(lost, n, 0.15, 0.05, 0.1)


def lost_at_the_first_checkpoint(lost: BoolArray) -> OpenQuestions:
    table = replace(fresh_table(lost.size, 14), trace_tokens=np.full(lost.size, 4000))
    correct = np.repeat(~lost[:, None], table.correct.shape[1], axis=1)
    return regraded(table, natural_correct=np.ones(lost.size, dtype=bool), correct=correct)


@pytest.mark.parametrize(
    ("lost", "verdict"), [(0, "confirmed"), (11, "silent"), (13, "contradicted")]
)
def test_several_limits_are_contradicted_at_their_share_of_delta_alone(
    lost: int, verdict: str
) -> None:
    assert stats.binom.sf(10, 120, 0.05) < 0.05 < 2 * stats.binom.sf(10, 120, 0.05)
    table = lost_at_the_first_checkpoint(np.arange(120) < lost)
    several: Any = SimpleNamespace(guarantees=(replace(LIMIT, alpha=0.05),) * 2)
    for found in limit_verdicts(several, table, np.zeros(120, dtype=np.int64), 0.05):
        assert (found.verdict, found.n, found.lost, found.gained) == (verdict, 120, lost, 0)
        alone = of_questions(lost, 120, 0.05, 0.05, 0.1)
        assert (found.lower, found.upper) == (alone.lower, alone.upper)


def test_of_several_limits_a_drop_counts_first_traces_and_the_others_both() -> None:
    table = lost_at_the_first_checkpoint(np.isin(np.arange(120), [*range(9), *range(60, 65)]))
    several: Any = SimpleNamespace(guarantees=(replace(LIMIT, loss="drop"), LIMIT))
    drop, lost = limit_verdicts(several, table, np.zeros(120, dtype=np.int64), 0.05, 2)
    assert (drop.n, drop.lost, lost.n, lost.lost) == (60, 9, 60, 14)
    assert drop.upper == drop_limit(9, 0, 60, 0.05)
    assert lost.upper == risk_of_pairs(5, 51, 60, 0.05)
    # Imported lines may name another category in the second trace: the first counts, as it did in
    # calibration.
    table = replace(table, categories=("hard",) * 12 + (None,) * 63 + ("hard",) * 45)
    several.guarantees = tuple(replace(each, category="hard") for each in several.guarantees)
    drop, lost = limit_verdicts(several, table, np.zeros(120, dtype=np.int64), 0.05, 2)
    assert (drop.n, drop.lost, lost.n, lost.lost) == (12, 9, 12, 14)


@pytest.mark.parametrize(("full", "verdict"), [(0, "confirmed"), (1, "silent")])
def test_without_gold_replies_confirm_that_nothing_is_lost_and_contradict_nothing(
    full: int, verdict: str
) -> None:
    """Replies that do not differ lose nothing; one that differs may be the right one."""
    table, ones = fresh_table(120, 16), np.ones(120, dtype=np.int64)
    table = replace(table, answer_codes=0 * table.answer_codes, truncated=ones < 0)
    table = without_gold(regraded(table, natural_code=full * ones))
    found = check(of_family("confidence", (128, 1024)), table)
    assert (found.loss, found.verdict) == ("differs", verdict)


@pytest.mark.parametrize(
    ("risk", "said"),
    [
        (0.15, {"contradicted": (0.0, 0.05), "confirmed": (0.0, 0.05)}),
        (0.30, {"contradicted": (0.9, 1.0)}),
        (0.05, {"confirmed": (0.85, 1.0)}),
    ],
)
def test_verdicts_by_simulation(
    risk: float, said: dict[str, tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole of `verify` but its bootstrap, on 80 samples of 120 questions of known risk."""
    monkeypatch.setattr("stopadvisor.rules.outcomes.saving_interval", lambda *_, rng: None)
    repeats = 80
    rng = np.random.default_rng(13)
    content = of_family("confidence", (128, 1024), -40.0)
    table = replace(fresh_table(120, 14), trace_tokens=np.full(120, 4000))
    table = regraded(table, natural_correct=np.ones(120, dtype=bool))
    verdicts = []
    for _ in range(repeats):
        wrong = rng.random(120) < risk  # everything stops at the first checkpoint
        labelled = regraded(table, correct=np.repeat(~wrong[:, None], 10, axis=1))
        verdicts.append(check(content, labelled).verdict)
    room = 3 * np.sqrt(0.05 * 0.95 / repeats)
    for verdict, (low, high) in said.items():
        assert low - room <= verdicts.count(verdict) / repeats <= high + room  # type: ignore[arg-type]
