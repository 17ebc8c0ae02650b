"""Certificates: tests repeated on their counts, and the claim in words."""

from __future__ import annotations

from typing import Any

import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import parse
from stopadvisor.policy.claims import CertificateTerms, claim
from stopadvisor.policy.shown import counted, promise_of
from stopadvisor.stats.bounds import upper_limit
from stopadvisor.stats.trinomial import drop_limit, drop_passes, risk_of_pairs
from tests.policy_content import (
    built,
    certificate_content,
    certificate_in,
    example_content,
    policy_from,
)


def _with(**changes: Any) -> dict[str, Any]:
    return example_content(certificate=certificate_content(**changes))


def terms(**changes: Any) -> CertificateTerms:
    return parse(CertificateTerms, certificate_content(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"upper": 1.0}, "upper': expected at most alpha"),
        ({"upper": 0.10}, "do not give 0.1 as the exact limit"),
        ({"upper": 0.1285}, "do not give 0.1285 as the exact limit"),
        ({"losses": 12}, "12 of 80 lost do not certify alpha 0.15 at delta 0.05"),
        ({"n": 8_000}, "do not give"),
        ({"delta": 0.001, "confidence": 0.999, "chain_delta": 0.001}, "do not certify"),
        ({"chain_delta": 0.2}, "at most delta"),
        ({"chain_delta": 0.0}, "strictly between 0 and 1"),
        ({"n": 10**9}, "from 1 to 10000000"),
    ],
)
def test_numbers_that_do_not_fit_their_bound_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PolicyError, match=message):
        built(_with(**changes))


def test_a_limit_may_reach_alpha_and_rounding_a_little_more() -> None:
    upper = upper_limit(5, 80, 0.05)
    built(_with(alpha=upper, upper=upper))
    built(_with(alpha=upper / (1 + 0.9e-3), upper=upper))
    with pytest.raises(PolicyError, match="at most alpha"):
        built(_with(alpha=upper / (1 + 1.01e-3), upper=upper))
    with pytest.raises(PolicyError, match="do not certify"):
        built(_with(alpha=upper * (1 - 1.01e-3), upper=upper * (1 - 1.01e-3)))


def test_a_share_of_delta_is_held_to_its_own_limit() -> None:
    upper = upper_limit(5, 80, 0.025)
    assert built(_with(chain_delta=0.025, upper=upper))
    with pytest.raises(PolicyError, match=r"exact limit at delta 0\.025"):
        built(_with(chain_delta=0.025))


def test_the_last_planned_look_is_one_of_them() -> None:
    shared = 0.05 / 3
    looks = {"looks": 3, "planned_looks": 3, "chain_delta": shared}
    upper = upper_limit(5, 80, shared)
    built(_with(**looks, upper=upper, alpha=0.2, alpha_over_full_accuracy=0.3))


def test_no_certificate_is_left_where_its_looks_used_all_confidence_up() -> None:
    with pytest.raises(PolicyError, match=r"confidence': expected 1 - delta .*, got 0\.0"):
        built(_with(looks=20, earlier_deltas=[0.05] * 19, confidence=0.0))


DROP = {"loss": "drop", "losses": 9, "gained": 5, "n": 240, "alpha": 0.05, "upper": 0.0498}


def limit(**changes: Any) -> dict[str, Any]:
    """One of several, the certificate's own where nothing is changed."""
    own = {"loss": "lost", "alpha": 0.15, "n": 80, "lost": 5, "gained": 0, "category": None}
    own["upper"] = certificate_content()["upper"]
    return own | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"losses": 25}, "25 lost and 5 gained of 240 do not show a drop of at most 0.05"),
        ({"upper": 0.03}, "'certificate.upper': 9 lost and 5 gained .* at most 0.03 at delta 0.05"),
        ({"n": 20_001}, "expected at most 20000 with a drop"),
        ({"n": 20_000, "losses": 5_000}, "5000 lost and 5 gained of 20000 do not show"),
        ({"losses": 240, "gained": 0, "alpha": 0.9999}, "240 lost and 0 gained of 240 do not show"),
        ({"gained": 232}, "expected at most certificate.n .240., got 241"),
        ({"loss": "regret"}, "'certificate.loss': expected one of 'lost', 'differs', 'drop'"),
    ],
)
def test_a_drop_is_held_to_its_exact_test(changes: dict[str, Any], message: str) -> None:
    for gained in (5, 231):
        assert built(_with(**DROP | {"gained": gained}))
    with pytest.raises(PolicyError, match=message):
        built(_with(**DROP | changes))


def test_a_drop_without_gains_gained_nothing() -> None:
    none = {name: value for name, value in DROP.items() if name != "gained"} | {"losses": 1}
    assert built(_with(**none))
    upper = drop_limit(1, 0, 240, 0.05)
    built(_with(**none | {"upper": upper}))
    with pytest.raises(PolicyError, match="1 lost and 0 gained of 240"):
        built(_with(**none | {"upper": drop_limit(1, 1, 240, 0.05)}))


def test_the_limit_of_a_drop_may_be_off_by_what_halving_and_rounding_leave() -> None:
    fails, passes = 0.0, 0.05
    while passes - fails > 1e-9:
        middle = (fails + passes) / 2
        if drop_passes(9, 5, 240, middle, 0.05, quick=True):
            passes = middle
        else:
            fails = middle
    least = (passes - 4e-4) / (1 + 1e-3)
    assert built(_with(**DROP | {"upper": least + 1e-8}))
    with pytest.raises(PolicyError, match="do not show a drop"):
        built(_with(**DROP | {"upper": least - 1e-8}))


def test_of_two_traces_a_count_may_be_zero() -> None:
    """One reply of every question was lost."""
    pairs: dict[str, Any] = {"traces": 2, "both": 0, "one": 80, "none": 0, "losses": 80}
    pairs |= {"alpha": 0.9, "alpha_over_full_accuracy": 0.9}
    built(_with(**pairs, upper=risk_of_pairs(0, 0, 80, 0.05)) | {"expected": None})
    with pytest.raises(PolicyError, match="0 with both replies lost and 0 with none of 80"):
        built(_with(**pairs, upper=risk_of_pairs(0, 1, 80, 0.05)))


@pytest.mark.parametrize(
    ("several", "message"),
    [
        ([limit()], "expected two limits or more, got 1"),
        ([limit(lost=4), limit(loss="drop")], "expected the certificate's own limit first"),
        ([limit(), limit(loss="differs", lost=12)], "12 of 80 lost do not certify alpha 0.15"),
        ([limit(), limit(loss="drop", lost=12)], "12 lost and 0 gained of 80 do not show a drop"),
        ([limit(), limit(category="")], "'certificate.guarantees.1..category': expected"),
        ([limit(), limit(lost=70, gained=20)], "expected at most certificate.n .80., got 90"),
    ],
)
def test_each_of_several_limits_is_held_to_its_own_counts(several: Any, message: str) -> None:
    assert built(_with(guarantees=[limit(), limit(loss="differs")]))
    with pytest.raises(PolicyError, match=message):
        built(_with(guarantees=several))


def test_several_limits_are_one_claim() -> None:
    several = [limit(), limit(loss="drop", alpha=0.02), limit(alpha=0.08, category="algebra")]
    said = claim(terms(guarantees=several))
    assert (
        "all of this holds at once: stopping early turns at most 15 % of all questions from right "
        "to wrong; accuracy falls by at most 2 points; in category 'algebra' stopping early turns "
        "at most 8 % of all"
    ) in said


def test_of_two_traces_a_drop_counts_the_first_and_the_claim_says_so() -> None:
    first = "For the fall of accuracy the first reply alone counted."
    pairs = {"lost": 10, "both": 1, "one": 8, "none": 71}
    assert "all of this" not in claim(terms())
    found = terms(traces=2, guarantees=[limit(**pairs), limit(loss="drop")])
    assert claim(found).endswith(f"both replies counted. {first}")
    assert ", all of this holds at once: " in claim(found)
    assert first not in claim(terms(traces=2, guarantees=[limit(**pairs)]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"group_claim": "groups"},
            "in at most 15 % of all groups, stopping early turns the question drawn from the group "
            "from right to wrong; for independent groups from",
        ),
        (
            {"group_claim": "groups", "loss": "differs"},
            "at most 15 % of replies differ from what full thinking would have said, counting one "
            "question of each group; for independent groups from",
        ),
        ({}, "stopping early turns at most 15 % of all questions from right to wrong"),
        ({"loss": "differs"}, "at most 15 % of replies differ"),
        ({"loss": "drop"}, "accuracy falls by at most 15 points"),
    ],
)
def test_the_claim_is_worded_from_the_fields(changes: dict[str, Any], words: str) -> None:
    text = claim(terms(**changes))
    assert text.startswith("With confidence 95 % over the draw")
    charged = claim(terms(confidence=0.9))
    assert charged.startswith("With confidence 90 %"), "a second look that was not planned"
    assert words in text


def test_few_labels_and_other_graders_are_said_where_they_are() -> None:
    grader = {"name": "judge:grade", "sha256": "0123456789abcdef" * 4}
    few, judged = "Few questions were labelled", "graded by judge:grade (SHA-256 0123456789ab),"
    assert few in claim(terms(labelled=40))
    assert judged in claim(terms(grader=grader))
    assert judged in claim(terms(grader=grader, loss="drop"))
    for text in (claim(terms()), claim(terms(grader=grader, loss="differs"))):
        assert few not in text
        assert "were graded by" not in text


SAMPLE = {"differing": 12, "planned_labels": 12, "labelled": 12, "losses": 1, "alpha": 0.15}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 20_001}, "certificate.n': expected at most 20000 with a sample, got 20001"),
        ({"n": 20_000, "planned_labels": 20_000}, r"less than certificate.n \(20000\), got 20000"),
        ({"planned_labels": 80}, r"less than certificate.n \(80\), got 80"),
        ({"differing": 80}, "1 of 12 labelled of 80 that differ among 80 do not show a share"),
        ({"differing": 81}, r"differing': expected at most certificate.n \(80\), got 81"),
        ({"losses": 13}, "losses': expected at most the labelled of 12 that differ, got 13"),
        ({"differing": 3, "losses": 4}, "at most the labelled of 3 that differ, got 4"),
        ({"losses": 12}, "12 of 12 labelled of 12 that differ among 80 do not show a share"),
        *(
            ({name: None}, "differing, planned_labels and labelled together")
            for name in ("differing", "planned_labels", "labelled")
        ),
        ({"gained": 0}, "lost answers alone, of one trace"),
        ({"loss": "differs"}, "lost answers alone, of one trace"),
        ({"traces": 2}, "lost answers alone, of one trace"),
        ({"guarantees": [limit(lost=1), limit(lost=1)]}, "lost answers alone, of one trace"),
    ],
)
def test_a_sample_of_labels_is_held_to_its_exact_test(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PolicyError, match=message):
        built(_with(**SAMPLE | changes))


SEVERAL = [limit(), limit(loss="drop", alpha=0.02, gained=2, category="algebra")]


def test_a_promise_is_each_limit_with_its_category() -> None:
    said = promise_of(terms(guarantees=SEVERAL).limits)
    assert said == "at most 15% lost; category algebra: accuracy falls by at most 2%"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "5 of 80 questions lost"),
        (
            {"guarantees": SEVERAL},
            "5 of 80 questions lost; category algebra: 5 of 80 questions lost and 2 gained",
        ),
        ({"labelled": 40}, "5 of 80 questions lost, or differ without a label"),
        (
            {"labelled": 40, "differing": 31, "planned_labels": 12},
            "5 of 12 labelled of 31 that differ among 80 questions",
        ),
        (
            {"traces": 2, "both": 2, "one": 1, "none": 77},
            "of 80 questions 2 lost with both replies and 1 with one",
        ),
    ],
)
def test_what_was_counted_is_shown(changes: dict[str, Any], words: str) -> None:
    assert counted(terms(**changes), "questions") == words


def test_the_claim_that_people_read_is_made_from_the_fields() -> None:
    policy = policy_from(example_content())
    assert policy.terms.certificate is not None
    assert certificate_in(policy)["claim"] == claim(policy.terms.certificate)
