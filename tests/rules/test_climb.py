"""A path of thresholds on a ladder, against climbing it question by question."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment.candidates import candidates
from stopadvisor.assessment.sequences import FitData
from stopadvisor.assessment.settings import Settings
from stopadvisor.ground.arrays import FloatArray
from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.outcomes import FitQuestions
from stopadvisor.rules.climb import RUNG_FEATURES, Climb, OnGiveUp, rung_features
from stopadvisor.rules.costs import LADDER, MONEY, Weights, full_counts, stopped_counts
from stopadvisor.rules.families import RUNG_FAMILIES
from stopadvisor.rules.losses import DIFFERS, DROP, LOST
from stopadvisor.rules.scorer import Scorer
from stopadvisor.runs.ladder import Ladder, Rung
from tests.populations import FREE_FORM
from tests.runs.test_replies import reply, run_of

MIXED = Ladder(
    (
        Rung("small", (1.0, 0.1, 2.0)),
        Rung("vote", (1.0, 0.1, 3.0), repeat=3),
        Rung("large", (2.0, 0.2, 9.0)),
    )
)
NAMES = [rung.name for rung in MIXED.columns]


def drawn(path: Path, n: int = 120) -> tuple[FitQuestions, list[dict[str, Any]]]:
    rng = np.random.default_rng(1)
    lines = []
    for number in range(n):
        rungs = [
            reply(
                name,
                str(rng.integers(0, 3)),
                int(rng.integers(1, 60)),
                finished=bool(rng.random() < 0.85),
                prompt_tokens=5,
            )
            for name in NAMES
        ]
        lines.append({"id": f"q{number}", "gold": "1", "rungs": rungs})
    return run_of(path, lines, MIXED).part("fit"), lines


def climbed(line: dict[str, Any], cap: float) -> tuple[str, float]:
    """The answer and the price of one question: small within a cap, else large."""
    small, large = line["rungs"][0], line["rungs"][-1]
    tokens = small["completion_tokens"]
    if small["finished"] and tokens <= cap:
        return small["answer"], 5 * 1.0 + 2.0 * tokens
    paid = 5 * 1.0 + 2.0 * min(tokens, cap)
    answer = large["answer"] if large["finished"] else ""
    return answer, paid + 5 * 2.0 + 9.0 * large["completion_tokens"]


def test_a_cap_serves_within_it_and_pays_for_what_it_abandons(tmp_path: Path) -> None:
    table, lines = drawn(tmp_path)
    caps = (50, 20, 3)
    climb = Climb("cap", ("small", "large"), (0,), tuple((-float(cap),) for cap in caps))
    scorer = Scorer("cap", climb, None)
    view = scorer.view(table)
    prices = stopped_counts(view, LADDER).price
    full = full_counts(table).price
    assert prices is not None
    assert full is not None
    for position, cap in enumerate(caps, start=1):
        stops = scorer.stops(view, float(position))
        assert (stops == position - 1).all()
        want = [climbed(line, cap) for line in lines]
        np.testing.assert_allclose(prices[:, position - 1], [price for _, price in want])
        within = [
            line["rungs"][0]["finished"] and line["rungs"][0]["completion_tokens"] <= cap
            for line in lines
        ]
        served, _ = climb.at(table, position)
        assert served.tolist() == [0 if short else len(NAMES) - 1 for short in within]
        right = [answer == "1" for answer, _ in want]
        assert view.stop_correct[:, position - 1].tolist() == right
    np.testing.assert_allclose(prices[:, -1], full)
    np.testing.assert_allclose(prices[:, -2], full)  # the last column is the reference alone


def test_samples_are_paid_for_once_and_the_rungs_before_them_too(tmp_path: Path) -> None:
    table, lines = drawn(tmp_path)
    climb = Climb("rung-agreement", (*NAMES[:4], "large"), (0, 1, 2, 3), ((2.0,) * 4,))
    view = climb.view(table)
    assert view.rungs is not None
    for row, line in enumerate(lines):
        small, *samples, _ = line["rungs"]
        price = 5 + 2.0 * small["completion_tokens"]
        counts: dict[str, int] = {}
        served = False
        for sample in samples:
            price += 5 + 3.0 * sample["completion_tokens"]
            if sample["finished"]:
                counts[sample["answer"]] = counts.get(sample["answer"], 0) + 1
            top = [*sorted(counts.values(), reverse=True), 0, 0]
            served = top[0] - top[1] >= 2
            if served:
                break
        if not served:
            price += 5 * 2.0 + 9.0 * line["rungs"][-1]["completion_tokens"]
        assert view.rungs.spent.price[row, 0] == pytest.approx(price)
        assert bool(view.rungs.is_reference[row, 0]) != served


def test_the_time_of_a_climb_is_that_of_the_rungs_asked(tmp_path: Path) -> None:
    ladder = Ladder(tuple(Rung(name, (1.0, 0.1, 2.0)) for name in ("a", "b", "c")))
    timed = [
        # Served by a; abandoned at 10 of 40 tokens; cut at 5, before the cap; nothing decoded.
        [("a", 10, 2.0, True), ("b", 9, 3.0, True), ("c", 50, 20.0, True)],
        [("a", 40, 8.0, True), ("b", 20, 5.0, True), ("c", 50, 21.0, True)],
        [("a", 5, 1.0, False), ("b", 80, 16.0, True), ("c", 50, 22.0, True)],
        [("a", 0, 0.5, False), ("b", 30, 6.0, False), ("c", 50, 23.0, False)],
    ]
    lines = [
        {
            "id": str(number),
            "gold": "1",
            "rungs": [
                reply(name, "1", tokens, finished=finished, seconds=seconds)
                for name, tokens, seconds, finished in replies
            ],
        }
        for number, replies in enumerate(timed)
    ]
    table = run_of(tmp_path, lines, ladder).part("fit")
    order = [int(name) for name in table.ids]
    view = Climb("cap", ("a", "b", "c"), (0, 1), ((-10.0, -20.0),)).view(table)
    assert view.rungs is not None
    want = [2.0, 8.0 / 4 + 5.0, 1.0 + 16.0 / 4 + 22.0, 0.5 + 6.0 * 2 / 3 + 23.0]
    np.testing.assert_allclose(view.rungs.spent.seconds[:, 0], [want[k] for k in order])
    np.testing.assert_allclose(view.rungs.spent.seconds[:, 1], [20.0 + k for k in order])
    # A rung that is skipped takes no time, and one without a cap all of its own.
    skipping = Climb("rung", ("a", "c"), (0,), ((0.0,),)).view(table)
    assert skipping.rungs is not None
    want = [2.0, 8.0, 1.0 + 22.0, 0.5 + 23.0]
    np.testing.assert_allclose(skipping.rungs.spent.seconds[:, 0], [want[k] for k in order])


def test_the_reference_counts_nothing_even_where_it_was_cut(tmp_path: Path) -> None:
    table, _ = drawn(tmp_path)
    view = Climb("cap", ("small", "large"), (0,), ((-10.0,),)).view(table)
    assert view.rungs is not None
    by_reference = view.rungs.is_reference
    assert table.truncated.any()
    for loss in (LOST, DROP, DIFFERS):
        counts = loss.of(view)
        assert not counts[:, :-1][by_reference].any()
        assert not counts[:, -1].any()
    assert DIFFERS.of(view)[:, 0].any()


def test_a_score_that_no_rung_reaches_serves_the_reference(tmp_path: Path) -> None:
    table, _ = drawn(tmp_path)
    view = Climb("rung", ("small", "large"), (0,), ((math.inf,),)).view(table)
    assert view.rungs is not None
    assert view.rungs.is_reference.all()
    full = full_counts(table).price
    assert full is not None
    np.testing.assert_allclose(view.rungs.spent.price[:, 0], full)


def test_tokens_of_a_sample_are_its_own(tmp_path: Path) -> None:
    table, lines = drawn(tmp_path)
    own = -Climb("cap", (), tuple(range(5)), path=()).scores(table)
    want = [[each["completion_tokens"] for each in line["rungs"]] for line in lines]
    np.testing.assert_allclose(own, want)
    features = rung_features(table, (0, 1, 2, 3), RUNG_FEATURES[:-1])
    assert features.shape == (len(lines), 4, 4)
    np.testing.assert_allclose(features[..., 0], np.log1p(np.array(want)[:, :4]))


def test_probes_of_one_trace_are_no_ladder() -> None:
    table = FREE_FORM.draw(40, np.random.default_rng(0))
    with pytest.raises(ProbeError, match="climbs a ladder"):
        Climb("cap", ("small", "large"), (0,), ((-10.0,),)).view(table)


def test_other_rungs_are_refused(tmp_path: Path) -> None:
    table, _ = drawn(tmp_path, 10)
    with pytest.raises(ProbeError, match="the rule asks tiny, large"):
        Climb("cap", ("tiny", "large"), (0,), ((-10.0,),)).view(table)


@pytest.mark.parametrize(
    ("family", "position", "words"),
    [
        ("cap", None, "small, then vote, then large"),
        ("cap", 0, "small, then vote, then large"),
        ("cap", 3, "small, then vote, then large"),
        (
            "cap",
            1,
            "small where it ends by itself within 50 tokens, else "
            "vote where it ends by itself within 40 tokens, else large",
        ),
        ("rung", 2, "small, else vote, else large"),
        (
            "rung-agreement",
            2,
            "small where equal answers reach -20, else vote where equal answers reach -10, "
            "else large",
        ),
    ],
)
def test_a_climb_in_words(family: str, position: float | None, words: str) -> None:
    path = ((-50.0, -40.0), (-20.0, -10.0))
    climb = Climb(family, ("small", "vote", "large"), (0, 1), path)
    assert climb.describe(position) == words


def fit_data(table: FitQuestions) -> FitData:
    prices = Weights(2.0, 0.2, 9.0, MONEY)
    return FitData.build(table, Settings(serving=LADDER, weights=prices, families=RUNG_FAMILIES))


def test_the_boldest_cap_is_the_one_under_which_replies_were_recorded(tmp_path: Path) -> None:
    _, lines = drawn(tmp_path)
    lines[0]["rungs"][0] |= {"completion_tokens": 70, "finished": False}  # no other is as long
    (tmp_path / "cut").mkdir()
    table = run_of(tmp_path / "cut", lines, MIXED).part("fit")
    fit = fit_data(table)
    found = [sequence.scorer.schedule for sequence in candidates(fit, ("cap",))]
    (cap,) = (each for each in found if isinstance(each, Climb) and each.columns == (0,))
    assert cap.path[0] == (-70.0,)


def fit_of(path: Path, prices: tuple[float, ...], said: list[tuple[str, list[float]]]) -> FitData:
    """Rungs of some prices; of each question which of them are right, and their log-probability."""
    ladder = Ladder(tuple(Rung(f"r{k}", (0, 0, price)) for k, price in enumerate(prices)))
    lines = []
    for number, (right, shown) in enumerate(said):
        given = zip(ladder.rungs, right, [*shown, -0.1], strict=True)
        rungs = [reply(rung.name, "12"[r == "."], mean_logprob=p) for rung, r, p in given]
        lines.append({"id": f"q{number}", "gold": "1", "rungs": rungs})
    return fit_data(run_of(path, lines, ladder).part("fit"))


def asked_by(fit: FitData, *families: str) -> dict[str, set[tuple[int, ...]]]:
    """Columns that candidates of each family ask."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for sequence in candidates(fit, families):
        assert isinstance(sequence.scorer.schedule, Climb)
        found.setdefault(sequence.scorer.family, set()).add(sequence.scorer.schedule.columns)
    return found


def test_each_family_asks_the_selections_of_rungs_that_suit_it(tmp_path: Path) -> None:
    table, _ = drawn(tmp_path)  # small, vote three times, large; without log-probabilities
    votes = {(1, 2, 3), (0, 1, 2, 3)}
    expected = {"cap": {(0,)}, "rung-agreement": votes, "rung-learned": votes}
    assert asked_by(fit_data(table), *RUNG_FAMILIES) == expected
    assert asked_by(fit_data(table), "rung") == {"rung": {(0,)}}
    # Of a vote that is the reference all samples but the last can be asked before.
    for samples, selections in ((3, {(1, 2), (0, 1, 2)}), (2, {(0, 1)})):
        folder = tmp_path / f"vote-{samples}"
        folder.mkdir()
        ladder = Ladder((MIXED.rungs[0], replace(MIXED.rungs[1], repeat=samples)))
        names = NAMES[: 1 + samples]
        lines = [
            {"id": f"q{k}", "gold": "1", "rungs": [reply(name, "1", 9) for name in names]}
            for k in range(20)
        ]
        alone = fit_data(run_of(folder, lines, ladder).part("fit"))
        assert asked_by(alone, "rung-agreement") == {"rung-agreement": selections}


@pytest.mark.parametrize(
    ("rungs", "selections"),
    [
        (2, {(0,), (1,), (0, 1)}),
        (3, {(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)}),
        (4, {(0,), (1,), (2,), (3,), (0, 1, 2, 3)}),
    ],
)
def test_of_many_rungs_one_or_all_are_asked(
    rungs: int, selections: set[tuple[int, ...]], tmp_path: Path
) -> None:
    said = [("." * (rungs + 1), [-0.1 * (k + 1)] * rungs) for k in range(20)]
    fit = fit_of(tmp_path, tuple(map(float, range(1, rungs + 2))), said)
    assert asked_by(fit, "cap") == {"cap": selections}


@pytest.mark.parametrize(("n", "steps"), [(200, 200), (260, 200)])
def test_long_paths_are_thinned_evenly(n: int, steps: int, tmp_path: Path) -> None:
    fit = fit_of(tmp_path, (1.0, 5.0), [("..", [-k / 1000]) for k in range(n)])
    (climb,) = climbs_of(fit, "escalate")
    levels = [level for (level,) in climb.path]
    assert len(levels) == steps
    assert (levels[0], levels[-1]) == (-(n - 1) / 1000, 0.0)
    assert max(np.diff(levels)) < 0.0025


def climbs_of(fit: FitData, on_give_up: OnGiveUp) -> list[Climb]:
    found = candidates(fit, ("rung-confidence",), on_give_up)
    return [each.scorer.schedule for each in found if isinstance(each.scorer.schedule, Climb)]


def priced(fit: FitData, climb: Climb) -> FloatArray:
    view = climb.view(fit.table)
    assert view.rungs is not None
    total: FloatArray = view.rungs.spent.price.sum(axis=0)
    return total


@pytest.mark.parametrize("on_give_up", ["escalate", "reply"])
def test_hopeless_questions_are_given_up_where_that_is_cheaper(
    tmp_path: Path, on_give_up: OnGiveUp
) -> None:
    """Half of the questions none but the reference can answer, and the first rung is unsure of."""
    rng, said = np.random.default_rng(3), []
    for number in range(120):
        hopeless, unsure = number % 2 == 1, number % 4 == 0
        logprob = -0.9 if hopeless else -0.5 if unsure else -0.1
        right = "xx." if hopeless else "x.." if unsure else "..."
        said.append((right, [logprob - 0.05 * rng.random(), -0.1 - hopeless]))
    fit = fit_of(tmp_path, (1.0, 4.0, 5.0), said)
    climbs = climbs_of(fit, on_give_up)
    gives_up = [climb for climb in climbs if climb.give_up]
    assert {climb.on_give_up for climb in gives_up} == {on_give_up}
    if on_give_up == "reply":  # every selection, and never more than a quarter of the replies
        assert len(gives_up) == len(climbs) - len(gives_up)
        for climb in gives_up:
            assert list(climb.give_up) == sorted(climb.give_up, reverse=True)
        return
    (climb,) = gives_up  # only where a rung lies between, and in place of the plain rule
    assert [each.columns for each in climbs].count(climb.columns) == 1
    plain = replace(climb, on_give_up=None, give_up=())
    step = next(k for k, levels in enumerate(plain.path, start=1) if levels[0] > -0.5)
    assert -0.9 <= climb.give_up[step - 1] < -0.5
    spent = [priced(fit, each)[step - 1] for each in (climb, plain)]
    assert spent[0] == spent[1] - 60 * 10 * 4.0  # tokens and price of what lies between
    assert (priced(fit, climb) <= priced(fit, plain)).all()
    served, given_up = climb.at(fit.table, step)
    assert (served == plain.at(fit.table, step)[0]).all()
    assert given_up.sum() == 60
    assert climb.describe(step).endswith(" r2 at once, else r2")


def test_a_later_rung_may_be_the_one_that_gives_up(tmp_path: Path) -> None:
    """The first rung is unsure of every hard question, and the second tells the hopeless ones."""
    rng, said = np.random.default_rng(3), []
    for number in range(120):
        hopeless, hard = number % 4 == 1, number % 2 == 1
        right = "xxx." if hopeless else "xx.." if hard else "...."
        shown = [-0.5 if hard else -0.1, -0.9 if hopeless else -0.4 if hard else -0.1]
        said.append((right, [*(p - 0.05 * rng.random() for p in shown), -0.1 - hopeless]))
    fit = fit_of(tmp_path, (1.0, 0.5, 6.0, 8.0), said)
    climb = next(each for each in climbs_of(fit, "escalate") if each.columns == (0, 1, 2))
    plain = replace(climb, on_give_up=None, give_up=())
    step = next(k for k, levels in enumerate(climb.path, start=1) if levels[0] > -0.3)
    saved = priced(fit, plain)[step - 1] - priced(fit, climb)[step - 1]
    # The third rung's price for the 30 hopeless ones, as near as even quantiles come to them.
    assert 0.9 * 30 * 10 * 6.0 < saved <= 30 * 10 * 6.0
    assert 27 < climb.at(fit.table, step)[1].sum() < 40  # of 60 that the first rung is unsure of


def test_giving_up_needs_more_than_luck(tmp_path: Path) -> None:
    """Scores that tell nothing: of many levels the best saves something, and is not taken."""
    rng = np.random.default_rng(4)
    said = [
        ("..." if right else "xx.", (-rng.random(2)).tolist()) for right in rng.random(160) < 0.6
    ]
    fit = fit_of(tmp_path, (1.0, 0.5, 5.0), said)
    bold = [climb.give_up[: len(climb.path) // 2] for climb in climbs_of(fit, "escalate")]
    assert all(len({*levels}) < 2 for levels in bold)  # the lowest score, if any


def test_the_last_cheap_rung_skips_nothing_and_gives_nothing_up(tmp_path: Path) -> None:
    fit = fit_of(tmp_path, (1.0, 2.0, 5.0), [("xx.", [-0.3, -0.9])] * 40)
    climb = Climb(
        "rung-confidence", ("r0", "r1", "r2"), (0, 1), ((-0.1,) * 2,), None, "escalate", (-0.5,)
    )
    served, given_up = climb.at(fit.table, 1)
    assert (served == 2).all()
    assert not given_up.any()
    assert replace(climb, on_give_up="reply").at(fit.table, 1)[1].all()
