"""The first line of results: one sentence that says what is saved, what it costs, and where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.assessment.choice import FitRule
from stopadvisor.certification.verdicts import Verdict
from stopadvisor.policy.shown import Expected
from stopadvisor.report.headline import (
    Effect,
    assessed_headline,
    calibrated_headline,
    expected_effect,
    gain_against_advice,
    questions_to_tell,
    run_headline,
    sentence,
    verified_headline,
)
from stopadvisor.report.sheets.assess import assess_sheet
from stopadvisor.report.sheets.calibrate import expectation_facts, meaning
from stopadvisor.report.words import risk_difference, why
from tests.policy_content import example_terms
from tests.report import results
from tests.report.results import ANSWERED, ASSESSED, VERIFIED

STACKS = {"kv-fork": 16.2, "prefix-cache": -5.6, "black-box": -80.0}
COSTLY = Effect(16.2, "kv-fork", 0.103, 0.845, 0.923, 565, "calibration questions", savings=STACKS)
TIMED = replace(COSTLY, unit="seconds")
GAIN = replace(COSTLY, risk=0.02, accuracy=0.957, full_accuracy=0.843)


SAVES = "Saves 16% of the tokens under kv-fork"
OVERTHINKS = "Stopping raises accuracy from 84.3 to 95.7%: this model overthinks. It"
ON_VLLM = {"saving_pct": -5.6, "serving": "prefix-cache"}
BARE = {"accuracy": None, "full_accuracy": None, "loss": "differs"}
SAID = [
    (COSTLY, {}, f"{SAVES} for 7.8 points of accuracy."),
    (COSTLY, {"accuracy": 0.913}, f"{SAVES} for 1 point of accuracy."),
    (COSTLY, {"saving_range": (-0.3, 20)}, f"{SAVES} (may be nothing) for 7.8 points of accuracy."),
    (COSTLY, {"saving_lower": -0.1}, f"{SAVES} (may be nothing) for 7.8 points of accuracy."),
    (
        COSTLY,
        {"saving_pct": 0.0, "saving_lower": 0.0},
        "Saves 0.0% of the tokens under kv-fork (may be nothing) for 7.8 points of accuracy.",
    ),
    (
        COSTLY,
        {"saving_pct": 1.0},
        "Saves 1% of the tokens under kv-fork for 7.8 points of accuracy.",
    ),
    (
        COSTLY,
        ON_VLLM,
        "Costs 6% more than full thinking on vLLM's prefix cache, and takes 7.8 points of "
        "accuracy.",
    ),
    (GAIN, {}, f"{OVERTHINKS} saves 16% of the tokens under kv-fork."),
    (GAIN, {"saving_pct": -3.0}, f"{OVERTHINKS} costs 3% more than full thinking under kv-fork."),
    (
        COSTLY,
        {"accuracy": 0.931, "n": 100},
        f"{SAVES}; accuracy rises from 92.3 to 93.1%, which may be chance.",
    ),
    (COSTLY, {"accuracy": 0.9231}, f"{SAVES}; accuracy stays at 92.3%."),
    (COSTLY, BARE, f"{SAVES} for 10.3% of replies that differ from full thinking."),
    (TIMED, {}, "Saves 16% of the capacity under kv-fork for 7.8 points of accuracy."),
    (
        TIMED,
        ON_VLLM,
        "Costs 6% more of the capacity than full thinking on vLLM's prefix cache, and takes 7.8 "
        "points of accuracy.",
    ),
    (
        COSTLY,
        {"unit": "money per million tokens"},
        "Saves 16% of the price under kv-fork for 7.8 points of accuracy.",
    ),
]


@pytest.mark.parametrize(("effect", "but", "said"), SAID, ids=[said for *_, said in SAID])
def test_one_sentence_says_what_is_saved_and_lost(
    effect: Effect, but: dict[str, Any], said: str
) -> None:
    assert sentence(replace(effect, **but)) == said


def test_a_gain_is_called_overthinking_only_where_chance_does_not_explain_it() -> None:
    # 13.4 % turn right and 2 % wrong: beyond two standard deviations from 48 questions on.
    assert "overthinks" not in sentence(replace(GAIN, n=47))
    assert "overthinks" in sentence(replace(GAIN, n=48))


CALIBRATED = results.EXPECTED
TESTED = replace(
    CALIBRATED,
    test_n=57, test_total_saving_pct=17.0, test_risk=0.14, test_accuracy=0.789,
    test_full_accuracy=0.877, test_think_saving_pct=56.6, test_total_saving_ci95=(6.0, 26.9),
    test_risk_ci95=(0.063, 0.258), test_accuracy_ci95=(0.66, 0.88), test_uncut_saving_pct=None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("expected", "saving", "whose"),
    [(TESTED, 17.0, "57 test questions"), (CALIBRATED, 19.2, "565 calibration questions")],
    ids=["test", "calibration"],
)
def test_the_figures_with_the_best_standing_are_said(
    expected: Expected, saving: float, whose: str
) -> None:
    effect = expected_effect(expected, "kv-fork")
    assert (effect.saving_pct, effect.whose) == (saving, whose)
    assert calibrated_headline(expected, "kv-fork").startswith(f"Certified. Saves {saving:.0f}%")


def test_a_stack_on_which_the_rule_costs_more_is_said_to() -> None:
    measured = replace(CALIBRATED, saving_by_serving={"kv-fork": 19.2, "black-box": -80.0})
    (said,) = [text for name, text in expectation_facts(measured, "kv-fork") if name == "elsewhere"]
    assert said == "the same rule costs 80.0% more than full thinking under black-box"


@pytest.mark.parametrize(("expected", "share"), [(TESTED, "17.1%"), (CALIBRATED, "16.3%")])
def test_what_the_promise_means_is_of_the_accuracy_shown_beside_it(
    expected: Expected, share: str
) -> None:
    certificate = example_terms().certificate
    assert certificate is not None
    assert certificate.alpha_over_full_accuracy == 0.2  # of fit questions
    found = list(meaning(certificate, expected, "kv-fork"))
    text = f"15% of all questions are {share} of those that full thinking gets right"
    assert found == [("means", text)]
    # Where it would only say alpha again there is no line.
    assert not [*meaning(certificate, replace(expected, graded_by="agreement"), "kv-fork")]
    assert not [*meaning(replace(certificate, loss="differs"), expected, "kv-fork")]


def rule(family: str, saving: float, forecast: float = 0.0, **more: Any) -> FitRule:
    more |= {"family": family, "where": family, "fit_total_saving_pct": saving}
    return replace(LEARNED, expected_saving_pct=forecast, **more)


(ROW,) = ASSESSED.matched_risk
assert ROW.learned is not None
LEARNED = ROW.learned


@pytest.mark.parametrize(
    ("learned", "agreement", "said"),
    [
        (21.24, 7.9, "Combining the signals saves 13.3 points more than any one of them, on fit"),
        (21.24, 9.9, "Combining the signals saves 11.3 points more than any one of them, on fit"),
        (7.0, 7.9, "Of the best rules of each kind, calibration is expected to certify the"),
    ],
)
def test_why_takes_differences_of_the_savings_in_the_table(
    learned: float, agreement: float, said: str
) -> None:
    row = replace(
        ROW, verdict="learned better", learned=rule("learned", learned, 22.0),
        scalar=rule("confidence", 7.94, 8.0), agreement=rule("agreement", agreement, 8.0),
        fixed_budget=None,
    )  # fmt: skip
    assert why(replace(ASSESSED, matched_risk=(row,))).startswith(said)


@pytest.mark.parametrize(
    ("learned", "scalar", "said"),
    [
        (True, True, "Combining the signals saves "),
        (True, False, "Only the signals combined may stop anything"),
        (False, True, "Only one signal may stop anything"),
        (False, False, "Neither one signal nor all combined may stop anything"),
    ],
)
def test_no_difference_is_taken_from_a_rule_that_is_not_feasible(
    learned: bool, scalar: bool, said: str
) -> None:
    sides = replace(LEARNED, feasible=learned), rule("confidence", 7.0, feasible=scalar)
    note = risk_difference(replace(ROW, learned=sides[0], scalar=sides[1]))
    assert said in note
    assert ("points" in note) == (learned and scalar)


def test_what_comes_next_asks_for_the_loss_that_was_assessed() -> None:
    settings = replace(ASSESSED.settings, loss="drop")
    result = replace(ASSESSED, settings=settings, run="my runs/sums")
    command = "stopadvisor calibrate 'my runs/sums' --alpha drop=0.15"
    assert assess_sheet(result).command == command


def full_thinking(**gain: Any) -> AssessedRun:
    """An assessment that advises full thinking, and one rule of it."""
    advice = replace(ASSESSED.recommendation, policy="full-budget", family=None, where=None)
    row = replace(ROW, learned=None, agreement=None, fixed_budget=None)
    row = replace(row, scalar=replace(LEARNED, family="confidence", **gain))
    return replace(
        ASSESSED, recommendation=advice, matched_risk=(row,), fit_full_accuracy=0.6,
        split=replace(ASSESSED.split, fit=200),
    )  # fmt: skip


def test_full_thinking_neither_saves_nor_loses() -> None:
    advised = assessed_headline(full_thinking(fit_risk=0.02, fit_accuracy=0.58))
    assert advised == "Don't stop early on vLLM: no saving shown."
    few = replace(full_thinking(fit_risk=0.02, fit_accuracy=0.58), fit_saving_lower_pct=-0.5)
    assert questions_to_tell(few) == 790
    assert assessed_headline(few) == (
        "Too few questions to tell whether stopping early on vLLM saves anything."
    )
    assert calibrated_headline(None, "kv-fork") == "Not certified. Keep full thinking."


@pytest.mark.parametrize(
    ("saving", "accuracy", "headline"),
    [
        (
            -5.0,
            0.7,
            "Stopping raises accuracy from 60.0 to 70.0%: this model overthinks. It costs 5% more "
            "of the capacity than full thinking",
        ),
        (-10.0, 0.7, "Stopping raises accuracy from 60.0 to 70.0%"),
        (-1.0, 0.65, "Stopping raises accuracy from 60.0 to 65.0%"),
        (-10.1, 0.7, "Don't stop early on vLLM"),  # costs more percent than it gains points
        (-1.0, 0.63, "Don't stop early on vLLM"),  # a small gain
    ],
)
def test_a_large_gain_is_the_headline_although_stopping_costs_more(
    saving: float, accuracy: float, headline: str
) -> None:
    run = full_thinking(fit_total_saving_pct=saving, fit_accuracy=accuracy, fit_risk=0.02)
    assert assessed_headline(run).startswith(headline)
    assert (gain_against_advice(run) is None) == headline.startswith("Don't")


@pytest.mark.parametrize(
    ("verdict", "first", "last"),
    [
        ("confirmed", "Confirmed: 11.3% of 300 fresh questions lost, promise 15%. Saves ", "."),
        ("silent", "Neither confirmed nor broken: 11.3% of 300 fresh questions lost", "accuracy."),
        ("contradicted", "Contradicted: 11.3% of 300 fresh ", "Stop using this policy."),
    ],
)
def test_a_verdict_comes_with_what_was_lost(verdict: Verdict, first: str, last: str) -> None:
    said = verified_headline(replace(VERIFIED, verdict=verdict))
    assert said.startswith(first)
    assert said.endswith(last)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"loss": "differs", "risk": 0.04}, "4.0% of 300 fresh replies differ, promise 15%."),
        ({"traces": 2, "risk": 0.04}, "4.0% of 600 fresh replies lost, promise 15%."),
        (
            {"loss": "drop", "risk": -0.05, "accuracy": 0.88},
            "accuracy +5.0 points on 300 fresh questions, promise at most -15.0 points. Saves 18% "
            "of the tokens under kv-fork; accuracy rises from 83.0 to 88.0%.",
        ),
    ],
    ids=["differs", "two traces", "drop"],
)
def test_a_verdict_says_what_its_promise_counts(more: dict[str, Any], said: str) -> None:
    assert said in verified_headline(replace(VERIFIED, **more))


def test_a_run_says_tokens_and_time_against_full_thinking_or_what_it_answered() -> None:
    assert ANSWERED.full is not None
    slower = replace(ANSWERED.full, time_saving_pct=-3.0)
    assert run_headline(replace(ANSWERED, full=slower)) == (
        "Decodes 34% fewer tokens for 8.1 points of accuracy. Time: 3.0% more for 900 questions."
    )
    more = replace(ANSWERED.full, token_saving_pct=-4.0, time_saving_pct=None)
    assert run_headline(replace(ANSWERED, full=more)) == (
        "Decodes 4% more tokens, and takes 8.1 points of accuracy."
    )
    alone = replace(ANSWERED, full=None, questions=1)
    assert run_headline(alone) == "Answered 1 question, 48.2% of them stopped early."
    never = replace(ANSWERED, kind="full-budget")
    assert run_headline(never).endswith("with full thinking: this policy never stops early.")
