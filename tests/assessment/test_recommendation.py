"""The recommendation: every branch of the decision, with its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment.choice import Choice, FitPoint, Settings
from stopadvisor.assessment.recommendation import deciding_reason, probability_words, recommend
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.paper.protocol import MatchedRisk, OperatingPoint, PaperServing
from stopadvisor.paper.recommendation import recommend_paper
from stopadvisor.probes.trajectories import Profile, profile
from stopadvisor.rules.outcomes import BlindStopping
from stopadvisor.rules.scorer import Scorer
from stopadvisor.rules.scores import LinearModel
from stopadvisor.stats.bootstrap import Interval

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


def point(family: str, *, feasible: bool = True) -> FitPoint:
    saving = 20.0 if feasible else None
    return FitPoint(feasible, family, (0, 128), 0.9, 100, 0.05, 0.8, saving, saving)


def sequence(family: str, *, learned: bool) -> ThresholdSequence:
    empty: Any = np.zeros((0, 0))
    scorer = Scorer(family, (0, 1), MODEL if learned else None)
    return ThresholdSequence(scorer, empty, None, empty, empty, empty, empty)  # type: ignore[arg-type]


def choice(
    verdict: str, advised: str | None, *, lower: float = 5.0, probability: float = 0.9
) -> Choice:
    sequences = {
        "learned": sequence("learned", learned=True),
        "scalar": sequence("entropy", learned=False),
    }
    return Choice(
        settings=Settings(alpha=0.1),
        n_fit=100,
        n_calibration=100,
        full_accuracy=0.8,
        sequences=tuple(sequences.values()),
        learned=point("learned"),
        scalar=point("entropy"),
        verdict=verdict,
        delta_saving_pp=Interval(1.0, -2.0, 4.0),
        advised=sequences[advised] if advised else None,
        advised_index=3,
        saving_lower=lower if advised else None,
        probability=probability,
        serving=(),
        fit=None,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("predicted", ["learned", "scalar", "mixed"])
@pytest.mark.parametrize(
    ("verdict", "advised", "policy", "reason"),
    [
        ("learned better", "learned", "learned", "Evidence: learned better"),
        ("scalar better", "scalar", "scalar", "Evidence: scalar better"),
        ("comparable", "scalar", "scalar", "so the simpler rule wins"),
        ("inconclusive", "learned", "learned", "only the learned side"),
        ("inconclusive", None, "full-budget", "no threshold of any family"),
    ],
)
def test_evidence_decides(
    predicted: str, verdict: str, advised: str | None, policy: str, reason: str
) -> None:
    found = recommend(shape(predicted), choice(verdict, advised))
    assert found.policy == policy
    assert found.family == {"learned": "learned", "scalar": "entropy"}.get(policy)
    assert found.reasons[0].startswith(f"Profile: {predicted}")
    assert any(reason in text for text in found.reasons)
    overruled = verdict.endswith("better") and predicted in ("learned", "scalar")
    assert any("overrules the profile" in text for text in found.reasons) == (
        overruled and predicted != policy
    )
    if policy != "full-budget":
        assert found.schedule == (0, 128)
        assert any("stopadvisor calibrate" in text for text in found.reasons)


@pytest.mark.parametrize("lower", [0.0, -3.0])
def test_a_saving_that_may_be_none_is_no_saving(lower: float) -> None:
    found = recommend(shape("scalar"), choice("comparable", "scalar", lower=lower))
    assert (found.policy, found.family, found.schedule) == ("full-budget", None, None)
    assert found.reasons[-1].startswith("Serving:")


@pytest.mark.parametrize(
    ("probability", "words"),
    [(1.0, "> 99.9 %"), (0.9995, "> 99.9 %"), (0.9994, "99.9 %"), (0.5, "50.0 %"),
     (0.0005, "0.1 %"), (0.0, "< 0.1 %")],
)  # fmt: skip
def test_no_estimated_chance_is_certain(probability: float, words: str) -> None:
    assert probability_words(probability) == words
    found = recommend(shape("scalar"), choice("comparable", "scalar", probability=probability))
    (certificate,) = (text for text in found.reasons if text.startswith("Certificate: "))
    assert f"is {words}. " in certificate


@pytest.mark.parametrize(
    ("found", "predicted", "policy"),
    [
        (choice("inconclusive", None), "scalar", "full-budget"),
        (choice("comparable", "scalar", probability=0.49), "full-budget", "full-budget"),
        (choice("comparable", "scalar", probability=0.49), "scalar", "scalar"),
    ],
    ids=["nothing advised", "the profile stands", "advised nevertheless"],
)
def test_where_a_certificate_is_unlikely_labels_are_spoken_of(
    found: Choice, predicted: str, policy: str
) -> None:
    advice = recommend(shape(predicted), found)
    assert advice.policy == policy
    assert advice.reasons[-1] == (
        "Labels: more calibration questions allow a larger share of losses; `stopadvisor plan "
        "--alpha 0.1` says what a risk takes."
    )
    assert not deciding_reason(policy, advice.reasons).startswith("Labels: ")
    few = recommend(shape(predicted), replace(found, n_calibration=20))
    # 36 without a loss exclude 0.1 at the half of 0.05 that a sequence has; 35 do not.
    assert few.reasons[-1].startswith(
        "Labels: 20 calibration questions certify nothing at alpha = 0.1, that takes 36 of which "
        "none is lost; "
    )


def test_a_likely_certificate_asks_for_no_labels() -> None:
    found = recommend(shape("scalar"), choice("comparable", "scalar", probability=0.5))
    assert not any(text.startswith("Labels: ") for text in found.reasons)


def test_the_winner_is_said_to_save_more() -> None:
    spread = Interval(-1.0, -2.0, -0.5)
    better = replace(choice("scalar better", "scalar"), delta_saving_pp=spread)
    found = recommend(shape("scalar"), better)
    evidence = next(text for text in found.reasons if text.startswith("Evidence: "))
    assert "it saves 1.0 pp more than the best learned rule (95 % [0.5, 2.0])" in evidence


@pytest.mark.parametrize(("probability", "policy"), [(0.49, "full-budget"), (0.5, "scalar")])
def test_a_saving_that_can_be_certified_overrides_a_full_budget_profile(
    probability: float, policy: str
) -> None:
    found = recommend(shape("full-budget"), choice("comparable", "scalar", probability=probability))
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
    found = recommend(shape("full-budget"), choice("comparable", "scalar"), blind)
    assert found.policy == policy
    last = found.reasons[-1]
    assert ("stopping as many at random would lose 7.7" in last) == (policy != "scalar")
    assert ("11 % of those that full thinking gets right" in last) == (policy != "scalar")


def matched(
    verdict: str, *, learned: bool = True, scalar: bool = True, saving: float = 20.0
) -> Any:
    def at(family: str, feasible: bool) -> OperatingPoint:
        return OperatingPoint(feasible, family, 0.9, 100, 0.05, 0.8, 500.0, saving, saving)

    return MatchedRisk(
        0.15, at("learned", learned), at("entropy", scalar), Interval(1.0, 0.5, 2.0), verdict
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
    serving = PaperServing(0.5, 0.1, {"kv-fork": saving})
    found = recommend_paper(shape("learned"), row, serving, "kv-fork")
    assert found.policy == policy
    assert found.family == {"learned": "learned", "scalar": "entropy"}.get(policy)
    assert any("frozen" in text for text in found.reasons)
