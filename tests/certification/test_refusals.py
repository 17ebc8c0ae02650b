"""Refusals: their numbers, recomputed by hand, which reason leads, and when there is none."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment.choice import Choice, FitComparison, Settings, choose
from stopadvisor.assessment.recommendation import Recommendation
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.certification.calibration import Counts, calibrate, certify_counts, without_figures
from stopadvisor.certification.certify import advised_against, refused_beforehand
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules.losses import Guarantee
from stopadvisor.stats.bounds import Certified, NotCertified, labels_needed
from tests.populations import POPULATIONS, drawn, fit_data, regraded

MIXED = POPULATIONS[0]
SETTINGS = Settings(alpha=0.15, families=("confidence", "entropy", "learned"))
FEWEST = math.ceil(math.log(0.05) / math.log(0.85))
"""Questions without a loss that exclude a risk of 15 % at 5 %: 19."""


@pytest.fixture(scope="module")
def choice() -> Choice:
    return choose(drawn(160, 0, "f").as_fit(), 160, SETTINGS)


def losing(choice: Choice, *losses: int) -> Choice:
    """The choice with a number of fit questions lost by each sequence."""
    found = []
    for lost, sequence in zip(losses, choice.sequences, strict=True):
        found.append(replace(sequence, losses=np.full_like(sequence.losses, lost)))
        assert (sequence.costs < choice.fit.full_cost.sum()).any()
    return replace(choice, sequences=tuple(found))


def cut(sequence: ThresholdSequence, thresholds: slice) -> ThresholdSequence:
    return replace(
        sequence,
        thresholds=sequence.thresholds[thresholds],
        losses=sequence.losses[thresholds],
        costs=sequence.costs[thresholds],
    )


def bold(choice: Choice) -> Choice:
    """With the last threshold of each sequence alone, which stops the most."""
    return replace(choice, sequences=tuple(cut(s, slice(-1, None)) for s in choice.sequences))


def one_in_eight_lost(table: OpenQuestions) -> OpenQuestions:
    """Wherever it is stopped; the others are right everywhere."""
    right = np.ones(table.n_questions, dtype=bool)
    correct = np.broadcast_to(np.arange(table.n_questions)[:, None] % 8 > 0, table.correct.shape)
    longer = replace(table, trace_tokens=np.full(table.n_questions, 4000))
    return regraded(longer, correct=correct, natural_correct=right)


def dear(choice: Choice, sequence: ThresholdSequence) -> ThresholdSequence:
    return replace(sequence, costs=np.full_like(sequence.costs, choice.fit.full_cost.sum()))


# --- Before a look --------------------------------------------------------------------------------


def test_the_fewest_that_could_do_are_named(choice: Choice) -> None:
    found = refused_beforehand(choice, drawn(FEWEST - 1, 1))
    assert found is not None
    assert (found.labels_needed, found.assumed_risk) == (FEWEST, 0.0)
    assert found.reason == (
        "18 calibration questions cannot exclude a risk above 0.15 at confidence 0.95 by the exact "
        "test, not even with no loss: none was opened, and no look spent"
    )
    assert refused_beforehand(choice, drawn(FEWEST, 1)) is None


def test_what_saves_nothing_comes_before_what_is_too_few(choice: Choice) -> None:
    first, *others = choice.sequences
    asked = replace(choice, sequences=tuple(dear(choice, each) for each in choice.sequences))
    found = refused_beforehand(asked, drawn(4, 1))
    assert found is not None
    assert found.reason.startswith("no rule saves anything on fit questions: ")
    assert found.labels_needed is None
    one = replace(choice, sequences=(dear(choice, first), *others))
    assert refused_beforehand(one, drawn(100, 1)) is None, "the other one may be certified"


def test_where_there_is_no_rule_its_reason_is_all(choice: Choice) -> None:
    fit, empty = fit_data(drawn(160, 0, "f"), SETTINGS), FitComparison.empty(0.15)
    none = Choice(SETTINGS, fit, 160, empty, "all answers are wrong")
    found = refused_beforehand(none, drawn(4, 1))
    assert found == NotCertified(
        "all answers are wrong; no calibration question was opened", None, None
    )


# --- Advice against it ----------------------------------------------------------------------------


def advice(*reasons: str, policy: Any = "full-budget") -> Recommendation:
    return Recommendation(policy, None, None, None, "kv-fork", reasons)


@pytest.mark.parametrize(
    ("reasons", "advised", "why", "helps"),
    [
        (("Profile: x.", "Certificate: it is a gamble."), True, "it is a gamble", True),
        (("Profile: x.", "Serving: probes are dear."), True, "probes are dear", False),
        (("Profile: x.", "Evidence: no threshold."), False, "no threshold", True),
        (("Profile: x.", "Evidence: it gives up."), True, "it gives up", False),
    ],
    ids=["chance", "serving", "none expected", "no better than chance"],
)
def test_advice_of_full_thinking_says_whether_labels_help(
    choice: Choice, reasons: tuple[str, ...], advised: bool, why: str, helps: bool
) -> None:
    """They raise a chance; they make no probe cheaper, and no rule wiser."""
    asked = losing(choice, 8, 2)
    asked = asked if advised else replace(asked, advised=None)
    found = advised_against(asked, advice(*reasons, "Labels: more of them."))
    assert found is not None
    assert found.reason.startswith(f"the advice is full thinking ({why}), and calibrate follows it")
    risk = 8 / choice.n_fit  # of the first: the second is tested at what it leaves of delta
    needed = labels_needed(0.15, 0.05, expected_risk=risk)
    assert needed is not None
    if helps:
        assert found.assumed_risk == pytest.approx(risk)
        assert found.labels_needed == needed
    else:
        assert (found.labels_needed, found.assumed_risk) == (None, None)


def test_where_every_answer_is_lost_on_fit_no_number_of_labels_would_do(choice: Choice) -> None:
    lost = losing(choice, *(choice.n_fit,) * len(choice.sequences))
    found = advised_against(lost, advice("Profile: x.", "Certificate: it is a gamble."))
    assert found is not None
    assert (found.labels_needed, found.assumed_risk) == (None, 0.999)


def test_a_rule_that_never_saves_names_no_labels(choice: Choice) -> None:
    one, two = losing(choice, 8, 2).sequences
    never = [replace(each, costs=np.full_like(each.costs, each.full_cost)) for each in (one, two)]
    assert replace(choice, sequences=(never[0], two)).risk_to_expect == 2 / choice.n_fit
    nothing = replace(choice, sequences=tuple(never))
    found = advised_against(nothing, advice("Profile: x.", "Certificate: it is a gamble."))
    assert found is not None
    assert (found.labels_needed, found.assumed_risk) == (None, None)


def test_advice_of_a_rule_is_no_refusal(choice: Choice) -> None:
    assert advised_against(choice, advice("Evidence: x.", policy="scalar")) is None


@pytest.mark.parametrize(
    ("losses", "n", "reason"),
    [
        ([1], 58, "58 calibration questions cannot exclude a risk above 0.05 at confidence"),
        ([1], 59, "already loses 1 of 59 calibration questions; at most 0 are allowed"),
        ([9, 0], 100, "the most careful threshold already loses 9 of 100"),
    ],
)
def test_a_test_that_fails_says_why(losses: list[int], n: int, reason: str) -> None:
    lost = np.array(losses)
    found = certify_counts([Counts(Guarantee("lost", 0.05), n, lost, 0 * lost)], 0.05)
    assert isinstance(found, NotCertified)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("loss", "traces", "said"),
    [
        ("drop", 1, "9 of 100 calibration questions lost and 3 gained: that does not exclude more"),
        ("lost", 2, "9 of 100 calibration questions lost with both replies and 88 with one: "),
        ("differs", 2, "9 of 100 calibration questions differ with both replies and 88 with one"),
    ],
)
def test_a_test_that_fails_says_what_it_counted(loss: Any, traces: int, said: str) -> None:
    lost, gained = np.array([9, 0]), np.array([3, 0])
    found = certify_counts([Counts(Guarantee(loss, 0.05), 100, lost, gained, traces)], 0.05)
    assert isinstance(found, NotCertified)
    assert said in found.reason


def test_the_most_careful_threshold_may_be_all_that_passes() -> None:
    lost = np.array([0, 9])
    counts = [Counts(Guarantee("lost", alpha), 100, lost, 0 * lost) for alpha in (0.05, 0.06)]
    for n_limits in (1, 2):
        found = certify_counts(counts[:n_limits], 0.05)
        assert isinstance(found, Certified)
        assert found.index == 0
        assert len(found.guarantees) == (0 if n_limits == 1 else 2)


# --- After a look ---------------------------------------------------------------------------------


def test_a_failed_look_names_what_fit_questions_knew(choice: Choice) -> None:
    worse = one_in_eight_lost(drawn(60, 3))
    found = calibrate(bold(choice), worse.as_calibration())
    assert found.refusal is not None
    hidden = without_figures(found, SETTINGS, losing(choice, *(8,) * len(choice.sequences)))
    needed = labels_needed(0.15, 0.05, expected_risk=8 / choice.n_fit)
    assert hidden.refusal is not None
    assert (hidden.refusal.labels_needed, hidden.refusal.assumed_risk) == (needed, 8 / choice.n_fit)
    assert "A failed look shows no figure" in hidden.refusal.reason
    assert [result for _, result in hidden.tested] == [NotCertified("it failed", None, None)] * len(
        found.tested
    )
    assert hidden.first.n_questions == 60
    elsewhere = without_figures(found, SETTINGS).refusal  # nothing is known of its risk
    assert elsewhere is not None
    assert (elsewhere.labels_needed, elsewhere.assumed_risk) == (FEWEST, 0.0)


def test_where_every_answer_was_lost_on_fit_a_failed_test_names_no_number(choice: Choice) -> None:
    asked = bold(losing(choice, *(choice.n_fit,) * len(choice.sequences)))
    found = calibrate(asked, one_in_eight_lost(drawn(160, 4)).as_calibration())
    for _, result in found.tested:
        assert isinstance(result, NotCertified)
        assert (result.labels_needed, result.assumed_risk) == (None, 0.999)
    assert found.refusal is not None
    assert (found.refusal.labels_needed, found.refusal.assumed_risk) == (None, None)


def test_of_two_refusals_the_advised_one_s_reason_and_the_fewest_labels_are_given(
    choice: Choice,
) -> None:
    """What either would take is enough, whichever was tested first."""
    asked = bold(losing(choice, 4, 22))  # of the calibration questions 20 of 160 are lost
    for sequences in (asked.sequences, asked.sequences[::-1]):
        found = calibrate(
            replace(asked, sequences=sequences), one_in_eight_lost(drawn(160, 4)).as_calibration()
        )
        refused = [result for _, result in found.tested if isinstance(result, NotCertified)]
        assert len(refused) == 2
        known = [result.labels_needed for result in refused if result.labels_needed is not None]
        assert len(known) == 2
        assert (known[0] < known[1]) is (sequences == asked.sequences)
        assert found.refusal is not None
        assert found.refusal.reason == refused[0].reason != refused[1].reason
        assert found.refusal.labels_needed == min(known)
