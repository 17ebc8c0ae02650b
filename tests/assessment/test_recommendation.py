"""The recommendation: every branch of the decision, with its reason."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment.choice import Choice, FitComparison, FitRule, Settings, _asked_at
from stopadvisor.assessment.recommendation import (
    deciding_reason,
    fit_questions_to_tell,
    probability_words,
    recommend,
    standing,
)
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.paper.analysis import recommend_paper
from stopadvisor.paper.protocol import MatchedRisk, PaperRule
from stopadvisor.probes.trajectories import Profile, profile
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.features import LinearModel
from stopadvisor.rules.outcomes import BlindStopping
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.intervals import Interval

MODEL = LinearModel(("run_length",), (0.0,), (1.0,), (1.0,), 0.0)


def shape(predicted: str) -> Profile:
    kinds = {
        "learned": [("1111", 30), ("0011", 50), ("0101", 20)],
        "scalar": [("1111", 60), ("0011", 30), ("0000", 10)],
        "full-budget": [("1111", 10), ("0011", 20), ("0000", 70)],
        "mixed": [("1111", 20), ("0011", 70), ("0000", 10)],
    }[predicted]
    rows = [[c == "1" for c in row] for row, count in kinds for _ in range(count)]
    found = profile(np.array(rows), rng=np.random.default_rng(0))
    assert found.predicted == predicted
    return found


GRID = ListedTrigger((0, 128))
FIT: Any = SimpleNamespace(
    table=SimpleNamespace(
        n_questions=100, full_correct=np.arange(100) < 80, samples=np.zeros(100, np.int64)
    )
)


def point(family: str, expected: float = 20.0) -> FitRule:
    threshold = 512.0 if family == FIXED_BUDGET else 0.9
    schedule, where = _asked_at(Scorer(family, GRID, None), threshold)
    return FitRule(
        feasible=True,
        family=family,
        threshold=threshold,
        candidates=100,
        schedule=schedule,
        where=where,
        expected_saving_pct=expected,
        fit_risk=0.05,
        fit_accuracy=0.8,
        fit_think_saving_pct=20.0,
        fit_total_saving_pct=20.0,
        fit_uncut_saving_pct=None,
    )


def sequence(family: str) -> ThresholdSequence:
    empty: Any = np.zeros((0, 0))
    scorer = Scorer(family, GRID, MODEL if family == "learned" else None)
    nothing: Any = None
    return ThresholdSequence(
        scorer, nothing, empty, empty, nothing, empty, empty, empty, counts=(), full_cost=0.0
    )


def choice(
    advised: str | None,
    *,
    lower: float = 5.0,
    probability: float = 0.9,
    learned: float | None = 20.0,
    scalar: float | None = 20.0,
    fixed: float | None = None,
) -> Choice:
    """A finished choice; savings that are expected of the best of each kind, None for no such."""
    points = {
        family: None if expected is None else point(family, expected)
        for family, expected in (("learned", learned), ("entropy", scalar), (FIXED_BUDGET, fixed))
    }
    family = {"learned": "learned", "scalar": "entropy", FIXED_BUDGET: FIXED_BUDGET, None: None}
    taken = family[advised]
    return Choice(
        settings=Settings(alpha=0.1),
        fit=FIT,
        n_calibration=100,
        comparison=replace(
            FitComparison.empty(0.1),
            learned=points["learned"],
            scalar=points["entropy"],
            fixed_budget=points[FIXED_BUDGET],
        ),
        sequences=(sequence(taken or "entropy"),),
        advised=sequence(taken) if taken else None,
        advised_index=3,
        advised_point=points[taken] if taken else None,
        saving_lower=lower if taken else None,
        probability=probability,
    )


def with_kind(found: Choice, **kinds: FitRule | None) -> Choice:
    """The same choice with other best rules of some kinds."""
    return replace(found, comparison=replace(found.comparison, **kinds))  # type: ignore[arg-type]


@pytest.mark.parametrize("predicted", ["learned", "scalar", "mixed"])
@pytest.mark.parametrize(
    ("found", "policy", "reason"),
    [
        (
            choice("learned", learned=24.0),
            "learned",
            "certify savings of 24.0 % by the learned rule, 20.0 % by entropy alone; the learned "
            "rule is taken",
        ),
        (choice("scalar", scalar=24.0), "scalar", "; entropy alone is taken"),
        (
            choice("scalar", learned=20.5),
            "scalar",
            "entropy alone is taken, the simplest within about 1 point of the best",
        ),
        (choice("learned", scalar=None), "learned", "savings of 20.0 % by the learned rule; the"),
        (
            choice(FIXED_BUDGET, fixed=19.5),
            "fixed-budget",
            "a fixed budget is taken, the simplest within about 1 point of the best",
        ),
        (choice(None), "full-budget", "no rule can be expected to be certified"),
    ],
    ids=["learned", "scalar", "simpler", "alone", "fixed", "nothing"],
)
def test_evidence_decides(predicted: str, found: Choice, policy: str, reason: str) -> None:
    advice = recommend(shape(predicted), found)
    assert advice.policy == policy
    families = {"learned": "learned", "scalar": "entropy", "fixed-budget": FIXED_BUDGET}
    assert advice.family == families.get(policy)
    favoured = {"learned": "a combined signal", "scalar": "a single signal", "mixed": "no kind"}
    words = f"Profile: the mix of questions favours {favoured[predicted]}"
    assert advice.reasons[0].startswith(words)
    assert any(reason in text for text in advice.reasons)
    overruled = policy != "full-budget" and predicted in ("learned", "scalar")
    assert any("whatever the mix of questions favours" in text for text in advice.reasons) == (
        overruled and predicted != policy
    )
    if policy == "full-budget":
        assert (advice.schedule, advice.where) == (None, None)
    elif policy == "fixed-budget":
        assert advice.schedule == (512,)
        assert advice.where == "at 512 thinking tokens, without a probe before"
    else:
        assert advice.schedule == (0, 128)
        assert advice.where == "at 0, 128 thinking tokens"
    if policy != "full-budget":
        assert any("stopadvisor calibrate" in text for text in advice.reasons)


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        (18.04, "and saves 18.0 %, 2.0 points less."),
        (20.4, "0.4 points more on fit questions; calibration is expected to certify less of it."),
        (20.04, "20.0 %, as much on fit questions; calibration is expected to certify less of it."),
        (17.9, None),
        (None, None),
    ],
)
def test_a_fixed_budget_that_comes_near_is_named(fixed: float | None, words: str | None) -> None:
    """By what fit questions measure, as every figure beside it; not by the forecast."""
    found = choice("scalar", fixed=19.0)
    measured = None if fixed is None else replace(point(FIXED_BUDGET), fit_total_saving_pct=fixed)
    found = with_kind(found, fixed_budget=measured)
    advice = recommend(shape("scalar"), found)
    named = [text for text in advice.reasons if text.startswith("Fixed budget: ")]
    if words is None:
        assert named == []
        return
    (text,) = named
    assert "stopping everybody at 512 thinking tokens needs no probe at all" in text
    assert text.endswith(words)
    assert deciding_reason("scalar", advice.reasons).startswith("Evidence: ")
    # Where nothing is recommended after all, it is not what decided.
    refused = recommend(shape("scalar"), replace(found, saving_lower=-1.0))
    assert deciding_reason("full-budget", refused.reasons).startswith("Serving: ")
    assert "may save nothing" in refused.reasons[-1]


@pytest.mark.parametrize(
    ("saving", "lower", "enough"),
    # Sample size of a one-sided z-test with power 0.9: n ((z.95 + z.9) se / saving)^2.
    [(50.0, -2.1, 172), (6.7, 0.0, 159), (6.7, 0.1, None), (0.04, -0.1, None), (2.0, -9.0, None)],
)
def test_too_few_questions_say_how_many_would_tell(
    saving: float, lower: float, enough: int | None
) -> None:
    assert fit_questions_to_tell(saving, lower, 50) == enough
    found = choice("learned", fixed=None, lower=lower)
    measured = replace(point("learned"), fit_total_saving_pct=saving)
    advice = recommend(shape("mixed"), replace(found, advised_point=measured))
    assert (advice.policy == "full-budget") == (advice.family is None) == (lower <= 0)
    assert lower > 0 or advice.reasons[-1].startswith("Serving: ")
    assert ("too few to tell" in advice.reasons[-1]) == (enough is not None)


def test_questions_that_are_too_few_are_counted_once_whatever_their_traces() -> None:
    twice: Any = SimpleNamespace(table=SimpleNamespace(**vars(FIT.table)))
    twice.table.samples = np.arange(100) % 2
    found = replace(choice("learned", fixed=None, lower=-2.1), fit=twice)
    measured = replace(point("learned"), fit_total_saving_pct=50.0)
    advice = recommend(shape("mixed"), replace(found, advised_point=measured))
    assert "50 fit questions are too few to tell, about 180 would" in advice.reasons[-1]


def test_no_saving_is_not_called_a_cost() -> None:
    nothing = replace(point("learned"), fit_total_saving_pct=-0.04)
    found = replace(choice("learned", fixed=15.3, lower=-1.0), advised_point=nothing)
    reasons = recommend(shape("mixed"), found).reasons
    assert reasons[-1].endswith("stopping would save nothing: probing is not worth it.")
    fixed = replace(point(FIXED_BUDGET), fit_total_saving_pct=-0.04)
    reasons = recommend(shape("mixed"), with_kind(found, fixed_budget=fixed)).reasons
    assert not [text for text in reasons if text.startswith("Fixed budget: ")]
    small = choice("scalar")
    points = [replace(point(each), fit_total_saving_pct=0.4) for each in ("entropy", FIXED_BUDGET)]
    small = with_kind(replace(small, advised_point=points[0]), fixed_budget=points[1])
    (text,) = [t for t in recommend(shape("mixed"), small).reasons if t.startswith("Fixed budget")]
    assert " and saves 0.4 %, as much" in text


def test_a_fixed_budget_that_is_not_worth_it_probes_nothing() -> None:
    nothing = replace(point(FIXED_BUDGET), fit_total_saving_pct=-0.04)
    chosen = replace(choice(FIXED_BUDGET, fixed=15.3, lower=-1.0), advised_point=nothing)
    refused = recommend(shape("mixed"), chosen)
    assert refused.reasons[-1].endswith("stopping would save nothing: it is not worth it.")


@pytest.mark.parametrize(
    ("savings", "advised", "found"),
    [
        ({"learned": 28.2, "confidence": 29.4, FIXED_BUDGET: 30.3}, "learned", "overall"),
        ({"learned": 30.3, "confidence": 29.4}, "learned", "most"),
        ({"learned": 29.9, "deer": 30.3}, "learned", "overall"),  # near, and not the simplest
        ({"learned": 30.3, "confidence": 29.4, FIXED_BUDGET: 20.0}, "confidence", "simplest"),
        ({"learned": 30.3, "confidence": 29.2}, "confidence", "surer"),
        ({"confidence": 29.2, FIXED_BUDGET: 28.0}, FIXED_BUDGET, "overall"),
    ],
)
def test_why_a_rule_is_taken_is_said_as_it_is(
    savings: dict[str, float], advised: str, found: str
) -> None:
    assert standing(savings, advised) == found


def test_a_rule_at_markers_has_no_budgets() -> None:
    found = choice("scalar")
    schedule, where = _asked_at(Scorer("deer", MarkerTrigger((), 64, 32), None), 0.9)
    at_markers = replace(point("deer"), schedule=schedule, where=where)
    advice = recommend(
        shape("scalar"),
        with_kind(
            replace(found, advised=sequence("deer"), advised_point=at_markers), scalar=at_markers
        ),
    )
    assert (advice.family, advice.schedule) == ("deer", None)
    assert advice.where == "at markers at least 64 thinking tokens apart"


@pytest.mark.parametrize(
    ("probability", "words"),
    [(1.0, "> 99.9 %"), (0.9995, "> 99.9 %"), (0.9994, "99.9 %"), (0.5, "50.0 %"),
     (0.0005, "0.1 %"), (0.0, "< 0.1 %")],
)  # fmt: skip
def test_no_estimated_chance_is_certain(probability: float, words: str) -> None:
    assert probability_words(probability) == words
    found = recommend(shape("scalar"), choice("scalar", probability=probability))
    (certificate,) = (text for text in found.reasons if text.startswith("Certificate: "))
    assert f"is {words}. " in certificate


@pytest.mark.parametrize(
    ("found", "predicted", "policy"),
    [
        (choice(None), "scalar", "full-budget"),
        (choice("scalar", probability=0.49), "full-budget", "full-budget"),
        (choice("scalar", probability=0.49), "scalar", "scalar"),
    ],
    ids=["nothing advised", "the profile stands", "advised nevertheless"],
)
def test_where_a_certificate_is_unlikely_labels_are_spoken_of(
    found: Choice, predicted: str, policy: str
) -> None:
    advice = recommend(shape(predicted), found)
    assert advice.policy == policy
    assert advice.reasons[-1] == (
        "Labels: with more calibration questions a larger share may be lost; `stopadvisor plan "
        "--alpha 0.1` says how many it takes."
    )
    assert not deciding_reason(policy, advice.reasons).startswith("Labels: ")
    few = recommend(shape(predicted), replace(found, n_calibration=20))
    # 29 without a loss exclude 0.1 at 0.05; 28 do not.
    assert few.reasons[-1].startswith(
        "Labels: 20 calibration questions cannot certify a loss of at most 10.0 %: that takes 29, "
        "none of them lost; "
    )


def test_a_likely_certificate_asks_for_no_labels() -> None:
    found = recommend(shape("scalar"), choice("scalar", probability=0.5))
    assert not any(text.startswith("Labels: ") for text in found.reasons)


@pytest.mark.parametrize(("probability", "policy"), [(0.49, "full-budget"), (0.5, "scalar")])
def test_a_saving_that_can_be_certified_overrides_a_full_budget_profile(
    probability: float, policy: str
) -> None:
    found = recommend(shape("full-budget"), choice("scalar", probability=probability))
    assert found.policy == policy
    assert any("overrides it" in text for text in found.reasons) == (policy == "scalar")


@pytest.mark.parametrize(
    ("losses", "p_value", "policy"),
    [(9, 0.01, "scalar"), (9, 0.05, "scalar"), (9, 0.06, "full-budget"), (8, 0.06, "scalar")],
)
def test_a_rule_that_stops_blindly_overrides_nothing(
    losses: int, p_value: float, policy: str
) -> None:
    """Unless it loses few: 8 are a tenth of the 80 that full thinking gets right."""
    blind = BlindStopping(losses, blind_losses=7.7, p_value=p_value)
    found = recommend(shape("full-budget"), choice("scalar"), blind)
    assert found.policy == policy
    last = found.reasons[-1]
    assert ("stopping as many at random would lose 7.7" in last) == (policy != "scalar")
    assert ("11 % of those that full thinking gets right" in last) == (policy != "scalar")


def matched(
    verdict: str, *, learned: bool = True, scalar: bool = True, saving: float = 20.0
) -> Any:
    def at(family: str, feasible: bool) -> PaperRule:
        return PaperRule(feasible, family, 0.9, 100, 0.05, 0.8, saving, saving)

    return MatchedRisk(
        0.15, at("learned", learned), at("entropy", scalar), Interval(1.0, (0.5, 2.0)), verdict
    )


@pytest.mark.parametrize(
    ("row", "saving", "policy"),
    [
        (matched("learned better"), 20.0, "learned"),
        (matched("comparable"), 20.0, "scalar"),
        (matched("scalar better"), 20.0, "scalar"),
        (matched("inconclusive", scalar=False), 20.0, "learned"),
        (matched("inconclusive", learned=False), 20.0, "scalar"),
        (matched("inconclusive", learned=False, scalar=False), 20.0, "full-budget"),
        (matched("learned better"), -121.0, "full-budget"),
        (matched("learned better", saving=-1.0), 20.0, "full-budget"),
    ],
)
def test_the_papers_own_recommendation(row: MatchedRisk, saving: float, policy: str) -> None:
    found = recommend_paper(shape("learned"), row, "kv-fork", saving)
    assert found.policy == policy
    assert found.family == {"learned": "learned", "scalar": "entropy"}.get(policy)
    assert any("treat thresholds as fixed" in text for text in found.reasons)
