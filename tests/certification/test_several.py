"""A drop, several losses at once and categories: each by its own exact test, all at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.assessment.rated import fit_limit
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.certification.calibration import calibrate
from stopadvisor.certification.certify import refused_beforehand
from stopadvisor.certification.looks import check_categories
from stopadvisor.ground.errors import CalibrationError, PolicyError
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules.losses import DROP, LOST, Guarantee
from stopadvisor.stats.bounds import Certified, max_losses
from stopadvisor.stats.trinomial import drop_limit, most_lost
from tests.frozen import drawn_source, frozen, verified
from tests.populations import POPULATIONS, KnownPopulation, regraded, renamed

pytestmark = pytest.mark.slow

HARMED = KnownPopulation("choice", (0.833, 0.044, 0.097, 0.009, 0.017), 280, 420)
"""In the shape of the sample `choice`, as measured on the bundled model (samples/README.md): .927
of the answers are right before thinking, .894 after it."""
FAMILIES = ("confidence", "fixed-budget")
LIMITS = Settings(
    alpha=0.12, families=FAMILIES, also=(Guarantee("drop", 0.06), Guarantee("lost", 0.2, "hard"))
)


def draw(n: int, seed: int, prefix: str = "c", population: Any = POPULATIONS[0]) -> OpenQuestions:
    """Questions of two categories, every third of them hard."""
    table = renamed(population.draw(n, np.random.default_rng(seed)), prefix)
    return replace(table, categories=tuple(("hard", None, "easy")[i % 3] for i in range(n)))


@pytest.fixture(scope="module", autouse=True)
def no_forecasts() -> Iterator[None]:
    """Forecasts by number of labels take most of the time of a choice about a drop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stopadvisor.assessment.choice._LABELS", ())
        yield


@pytest.fixture(scope="module")
def several() -> Choice:
    return choose(draw(200, 0, "f").as_fit(), 300, LIMITS, categories={"hard": 100})


def passes(guarantee: Guarantee, lost: int, gained: int, n: int, delta: float = 0.05) -> bool:
    if guarantee.counted.is_binary:
        return lost <= max_losses(n, guarantee.alpha, delta)
    return bool(lost <= most_lost(n, guarantee.alpha, delta)[gained])


def test_a_threshold_passes_only_where_every_limit_does(several: Choice) -> None:
    table = draw(300, 1)
    found = calibrate(several, table.as_calibration())
    family, result = found.tested[0]
    assert len(found.tested) == 1  # a second sequence is for one plain loss
    assert isinstance(result, Certified)
    sequence = several.sequences[0]
    assert family == sequence.scorer.family
    view = sequence.scorer.view(table)
    hard = np.array([name == "hard" for name in table.categories])

    def at(index: int) -> list[tuple[Guarantee, int, int, int]]:
        stops = sequence.scorer.curve(view, sequence.thresholds).stops(index)
        rows = []
        for each in LIMITS.guarantees:
            values = each.counted.of(view)[np.arange(300), stops]
            values = values[hard] if each.category else values
            rows.append((each, int((values > 0).sum()), int((values < 0).sum()), values.size))
        return rows

    for index in range(result.index + 1):
        assert all(passes(*row) for row in at(index))
    if result.index + 1 < sequence.thresholds.size:
        assert not all(passes(*row) for row in at(result.index + 1))
    shown = [(each.alpha, each.losses, each.gained or 0, each.n) for each in result.guarantees]
    assert shown == [(g.alpha, k, m, n) for g, k, m, n in at(result.index)]
    assert all(g.upper <= g.alpha for g in result.guarantees)
    assert result == replace(result.guarantees[0], guarantees=result.guarantees)


def test_where_thinking_harms_a_drop_admits_a_bolder_rule_than_lost_answers() -> None:
    """What stopping gains makes up for what it loses, and `lost` counts the losses alone."""
    fit, table = (draw(n, s, p, HARMED) for n, s, p in ((280, 0, "f"), (420, 1, "c")))
    saved = {}
    for loss in (LOST, DROP):
        settings = Settings(alpha=0.03, loss=loss.name, families=FAMILIES)
        found = calibrate(choose(fit.as_fit(), 420, settings), table.as_calibration())
        saving = 0.0 if found.rule is None else found.rule.fit_saving_pct
        assert saving is not None
        saved[loss.name] = saving
    assert saved["drop"] > saved["lost"] + 10


def test_test_questions_may_gain_more_than_they_lose() -> None:
    settings = Settings(alpha=0.03, loss="drop", families=FAMILIES)
    expected = frozen(drawn_source(HARMED, 900, "harmed"), settings)["expected"]
    low, high = expected["test_risk_ci95"]
    assert -1 < low < expected["test_risk"] < min(0, high)


# --- What fit questions say beforehand ------------------------------------------------------------


def test_the_position_on_fit_keeps_to_every_limit(several: Choice) -> None:
    limit = fit_limit(LIMITS, several.counted)
    assert several.counted == (300, 300, 100)

    def within(sequence: ThresholdSequence, index: int) -> bool:
        lost, drop, hard = sequence.counts
        assert drop.gained is not None
        gained = round(float(drop.gained[:, index].sum()) * 300 / 200)
        return bool(
            lost.lost[:, index].sum() <= max_losses(300, 0.12, 0.05) / 300 * 200 + 1e-6
            and drop.lost[:, index].sum() <= most_lost(300, 0.06, 0.05)[gained] / 300 * 200 + 1e-6
            and hard.lost[:, index].sum()
            <= max_losses(100, 0.2, 0.05) / 100 * hard.sizes.sum() + 1e-6
        )

    for sequence in several.compared:
        index = sequence.index(limit)
        assert all(within(sequence, i) for i in range(index + 1))
        if index + 1 < sequence.thresholds.size:
            assert not within(sequence, index + 1)


# --- Refusals -------------------------------------------------------------------------------------


def test_a_category_is_held_to_the_fewest_questions_before_anything_is_opened() -> None:
    table = draw(300, 1).sealed()
    check_categories(table, LIMITS)
    few = replace(LIMITS, also=(Guarantee("lost", 0.01, "hard"),))
    with pytest.raises(CalibrationError, match=r"'hard' has 100 .* needs at least 299, none"):
        check_categories(table, few)
    unknown = replace(LIMITS, also=(Guarantee("lost", 0.1, "odd"),))
    with pytest.raises(
        CalibrationError, match=r"is in category 'odd'; the categories are 'easy', 'hard'"
    ):
        check_categories(table, unknown)


def test_what_no_answer_could_show_is_refused_beforehand() -> None:
    settings = Settings(alpha=0.2, loss="drop", families=FAMILIES)
    choice = choose(draw(200, 0, "f").as_fit(), 3, settings)
    refusal = refused_beforehand(choice, draw(3, 1).sealed())
    assert refusal is not None
    assert "3 calibration questions cannot show drop=0.2 at confidence 0.95" in refusal.reason
    assert (refusal.labels_needed, refusal.assumed_risk) == (14, 0.005)  # as on fit, no gain
    # Four could: if each of them were gained.
    assert refused_beforehand(choice, draw(4, 1).sealed()) is None


# --- Verified on fresh questions ------------------------------------------------------------------


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    """A policy that promises a small drop, and few lost answers in a category."""
    source = drawn_source(POPULATIONS[0], 500, "several")
    table = source.table.unseal()
    named = replace(table, categories=tuple(("hard", None)[i % 2] for i in range(500)))
    settings = Settings(
        alpha=0.12, loss="drop", families=("confidence",), also=(Guarantee("lost", 0.3, "hard"),)
    )
    made = frozen(replace(source, table=named.sealed()), settings)
    return made | {"calibration_features": None}  # drift is not looked at here


def test_a_drop_and_a_category_are_verified_each_by_its_own_test(content: dict[str, Any]) -> None:
    found = verified(content, draw(180, 9, "fresh"))
    drop, hard = found.limits or ()
    assert (drop.n, hard.n, hard.category) == (180, 60, "hard")
    assert (drop.lost, drop.gained) == (found.losses, found.gained)
    assert 0 < hard.lost < 30 > hard.gained == 0, "only a drop counts what is gained"
    assert found.risk == pytest.approx(-found.accuracy_difference)
    assert drop.lower == pytest.approx(-drop_limit(drop.gained, drop.lost, 180, 0.05))
    assert drop.upper == drop_limit(drop.lost, drop.gained, 180, 0.05)
    assert drop.lower < found.risk < drop.upper
    assert {drop.verdict, hard.verdict} == {"confirmed"}
    assert found.verdict == "confirmed"
    assert 0 < found.power_to_confirm < 1


def test_one_limit_that_is_broken_contradicts_the_policy(content: dict[str, Any]) -> None:
    table = draw(120, 9, "fresh")
    hard = np.array([name == "hard" for name in table.categories])
    bad = regraded(table, correct=table.correct & ~(hard & table.full_correct)[:, None])
    found = verified(content, bad)
    assert [limit.verdict for limit in found.limits or ()][1] == "contradicted"
    assert found.verdict == "contradicted"
    with pytest.raises(PolicyError, match="limits category 'hard', and no fresh question is in it"):
        verified(content, replace(table, categories=(None,) * 120))
