"""Serving costs against a server that is walked through request by request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.ground.fields import parse, plain
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.table import NO_PROBE
from stopadvisor.rules import costs
from stopadvisor.rules.costs import (
    PAPER_WEIGHTS,
    REGIMES,
    Asking,
    Serving,
    Weights,
    full_counts,
    mean_context,
    stopped_counts,
)
from stopadvisor.rules.outcomes import serving_costs
from tests.populations import make_table, with_own_positions

Counts = tuple[float, float, float]  # decoded, read from cache, prefilled
Walked = tuple[float, float, float, int, float]  # and requests, and context of decoded tokens


EVERYWHERE = Asking()
FIXED = Asking(before=False)
SECONDS_OF = Weights(0.5, 0.05, 2.0, "seconds", request=30.0, held=0.003)


def serve(
    table: OpenQuestions,
    i: int,
    stop: int,
    serving: Serving,
    block: int,
    asking: Asking,
    *,
    round_trip: float = 0.0,
) -> Walked:
    """Tokens of one question, one engine request after the other.

    `stop` is a column of the table; their number means never.  Written from the table of
    serving costs, not from the code: a server holds the keys and values of everything it has been
    sent and has decoded, but for the last decoded token; only whole blocks of a prefix are found
    again, and at least the last token of a request is computed.  A probe is `round_trip` tokens of
    thinking on its way.
    """
    prompt, suffix = int(table.prompt_tokens[i]), table.suffix_tokens
    length = int(table.trace_tokens[i])
    natural = table.reference == "natural"
    last = length if natural else min(length, int(table.positions[i, -1]))
    reuses = serving in ("prefix-cache", "vllm")
    decoded = cached = prefilled = attended = 0.0
    requests = 0

    def decode(tokens: float, context: float) -> None:
        nonlocal decoded, attended
        decoded += tokens
        attended += tokens * context + tokens**2 / 2

    def send(tokens: int, standing: int) -> None:
        nonlocal cached, prefilled, requests
        requests += 1
        found = max(0, min(standing, tokens - 1)) // block * block if reuses else 0
        cached += found
        prefilled += tokens - found

    position = 0  # thinking tokens written
    started = False  # whether the thinking request has been sent
    for column in range(table.n_checkpoints):
        budget = int(table.positions[i, column])
        if budget == NO_PROBE or budget >= length:
            break  # the trace ends by itself before this probe, or there is none
        if not asking.before and column != stop:
            continue  # thinking simply goes on
        if not is_asked(table, budget, asking):
            # Thinking is closed here, and the visible answer is written: nobody is asked.
            if not started and (serving == "kv-fork" or budget > 0):
                send(prompt, 0)
                started = True
            decode(budget - position, prompt + position)
            if serving != "kv-fork":
                send(prompt + budget, prompt + budget - 1 if started else 0)
            assert table.visible_tokens is not None
            decode(float(table.visible_tokens[i, column]), prompt + budget)
            return decoded, cached, prefilled, requests, attended
        if not started and (serving in ("kv-fork", "vllm") or budget > 0):
            send(prompt, 0)
            started = True
        decode(budget - position, prompt + position)
        position = budget
        here = prompt + budget
        answer = float(table.probe_tokens[i, column])
        if serving == "kv-fork":
            prefilled += suffix  # a fork shares everything; only closer and cue are new
        else:
            # After an open cue a second request sees what follows the answer.
            for _ in range(1 if table.closed_by_itself is None else 2):
                send(here + suffix, here - 1 if started else 0)
        decode(answer, here + suffix)
        if column == stop:
            if serving == "vllm":
                # Thinking ran on meanwhile; the context of the few on the way is not counted.
                decode(min(answer, last - budget), here)
                decoded += min(round_trip, max(0.0, last - budget - answer))
            if table.visible_tokens is not None:
                if serving != "kv-fork":
                    send(here, here - 1)
                decode(float(table.visible_tokens[i, column]), here)
            return decoded, cached, prefilled, requests, attended
        is_reply = not natural and column == table.n_checkpoints - 1
        if is_reply:
            return decoded, cached, prefilled, requests, attended
        if serving in ("prefix-cache", "black-box"):
            send(here, here - 1)
            started = True
    if not started:
        send(prompt, 0)
    decode(last - position, prompt + position)
    if natural:
        assert table.natural_tokens is not None
        decode(float(table.natural_tokens[i]), prompt + last)
    else:
        decode(float(table.probe_tokens[i, -1]), prompt + int(table.positions[i, -1]) + suffix)
    return decoded, cached, prefilled, requests, attended


def is_asked(table: OpenQuestions, position: int, asking: Asking) -> bool:
    """Whether an answer is forced where the rule may stop; a visible one makes some needless."""
    if table.on_stop == "probe":
        return True
    return asking.before and position != asking.stop_at


def with_visible(table: OpenQuestions, correct: Any, tokens: Any) -> OpenQuestions:
    """The same questions with visible answers."""
    outcomes = replace(table.outcomes, visible_correct=correct)
    return OpenQuestions.of(replace(table.observations, visible_tokens=tokens), outcomes)


def stopped_at(table: OpenQuestions, last: int) -> OpenQuestions:
    """The same probes, moved: none beyond `last`, and one at it for who still thinks there."""
    positions = np.full(table.positions.shape, NO_PROBE)
    for i, row in enumerate(table.positions.tolist()):
        kept = [p for p in row if NO_PROBE < p < last][: table.n_checkpoints - 1]
        positions[i, : len(kept) + 1] = [*kept, last]
    return replace(table, positions=positions)


def places(table: OpenQuestions, i: int, asking: Asking) -> list[int]:
    """Columns at which a question may stop; their number, never, where it may go on to its end."""
    live = np.flatnonzero(table.live[i]).tolist()
    never = asking.stop_at is None or int(table.trace_tokens[i]) <= asking.stop_at
    return [*live, table.n_checkpoints] if never else live


@st.composite
def cases(draw: st.DrawFn) -> tuple[OpenQuestions, Asking]:
    """A few questions, on a small grid or at positions of their own, with every way of ending; and
    where they are asked."""
    first = draw(st.sampled_from([0, 5]))
    budgets = np.cumsum([first, *draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))])
    n, m = draw(st.integers(1, 4)), budgets.size
    natural = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    zeros: Any = np.zeros((n, m))
    table = make_table(
        budgets,
        correct=rng.random((n, m)) < 0.5,
        codes=zeros.astype(int),
        logprob=zeros - 1,
        entropy=zeros,
        markers=zeros,
        probe_tokens=rng.integers(1, 9, (n, m)).astype(float),
        trace=rng.integers(0, int(budgets[-1]) + 12, n),
        prompt=rng.integers(0, 40, n),
        natural_correct=np.ones(n, dtype=bool) if natural else None,
        natural_tokens=rng.integers(1, 20, n).astype(float) if natural else None,
        suffix_tokens=draw(st.integers(0, 6)),
    )
    if natural and draw(st.booleans()):  # on-stop answer
        table = with_visible(
            table, rng.random((n, m)) < 0.5, rng.integers(1, 20, (n, m)).astype(float)
        )
    if draw(st.booleans()):
        table = replace(table, closed_by_itself=rng.random((n, m)) < 0.5)
    if natural and draw(st.booleans()):
        table = with_own_positions(table, rng)
    columns = draw(st.sets(st.integers(0, m - 1), min_size=1))
    if not natural:
        columns = columns | {m - 1}
    table = table.select(sorted(columns))
    if not draw(st.booleans()):
        return table, draw(st.sampled_from([EVERYWHERE, FIXED]))
    if natural:
        last = int(
            draw(st.sampled_from(sorted({*table.positions.ravel().tolist()} - {NO_PROBE}) or [9]))
        )
        if not table.is_grid or last != table.positions[0, -1]:
            table = stopped_at(table, last)
        return table, Asking(draw(st.booleans()), last)
    return table, EVERYWHERE


@settings(max_examples=120)
@given(case=cases(), block=st.sampled_from([1, 4, 16]))
def test_equals_the_server_walked_through(case: tuple[OpenQuestions, Asking], block: int) -> None:
    table, asking = case
    priced = replace(SECONDS_OF, round_trip=float(block))
    stops = [(i, stop) for i in range(table.n_questions) for stop in places(table, i, asking)]
    for serving in REGIMES:
        with mock.patch.object(costs, "CACHE_BLOCK", block):
            found = stopped_counts(table, serving, asking=asking)
        arrays = (found.decoded, found.cached, found.prefilled, found.requests, found.attended)
        weighed = found.weighed(priced)
        for at in stops:
            got = tuple(float(a[at]) for a in arrays)
            assert got == serve(table, *at, serving, block, asking), (serving, at)
            walked = serve(table, *at, serving, block, asking, round_trip=block)
            cost = float(np.dot(walked, [2.0, 0.05, 0.5, 30.0, 0.003]))
            assert weighed[at] == pytest.approx(cost), (serving, at)


def one_question(**changes: Any) -> OpenQuestions:
    """P = 100, s = 4, budgets 0/50/80, T = 120, probes of 3/5/7 tokens, natural answer of 20."""
    table = make_table(
        np.array([0, 50, 80]),
        correct=np.array([[False, True, True]]),
        codes=np.array([[0, 1, 1]]),
        logprob=np.full((1, 3), -0.1),
        entropy=np.full((1, 3), 0.1),
        markers=np.zeros((1, 3)),
        probe_tokens=np.array([[3.0, 5.0, 7.0]]),
        trace=np.array([120]),
        prompt=np.array([100]),
        natural_correct=np.array([True]),
        natural_tokens=np.array([20.0]),
        suffix_tokens=4,
    )
    return replace(table, **changes)


@pytest.mark.parametrize(
    ("serving", "stopped", "never"),
    [
        # Stopped at the second probe, and never stopped: decoded, cached, prefilled, by hand.
        ("kv-fork", (50 + 8, 0, 100 + 8), (140 + 15, 0, 100 + 12)),
        # Blocks of 16: 99 -> 96 of the prompt, 149 -> 144 and 179 -> 176 stand in the cache.
        ("prefix-cache", (58, 96 + 144, 104 + 4 + 10), (155, 96 + 288 + 352, 118 + 6 + 8 + 4)),
        ("black-box", (58, 0, 104 + 100 + 154), (155, 0, 104 + 100 + 154 + 150 + 184 + 180)),
        # Five tokens of thinking were written while the second probe decoded.
        ("vllm", (58 + 5, 96 + 144, 100 + 8 + 10), (155, 96 + 144 + 176, 100 + 8 + 10 + 8)),
    ],
)
def test_one_question_by_hand(serving: Serving, stopped: Counts, never: Counts) -> None:
    found = stopped_counts(one_question(), serving)
    arrays = (found.decoded, found.cached, found.prefilled)
    assert tuple(float(a[0, 1]) for a in arrays) == stopped
    assert tuple(float(a[0, 3]) for a in arrays) == never


def test_full_thinking_has_no_probe() -> None:
    natural = full_counts(one_question())
    assert (natural.decoded[0], natural.cached[0], natural.prefilled[0]) == (140, 0, 100)
    cut = one_question(natural_tokens=None, reference="last-checkpoint")
    paper = full_counts(cut)
    assert (paper.decoded[0], paper.prefilled[0]) == (80 + 7, 100)  # being cut off saves nothing


def test_overlap_wastes_what_is_decoded_on_the_way() -> None:
    # Stopped at 50 of 120: the answer's 5 tokens are wasted beside the round trip's 12, and where
    # thinking ends before the answer is back, no more than thinking has left.
    dear = Weights(0.0, 0.0, 1.0, "tokens", round_trip=12.0)
    found = stopped_counts(one_question(), "vllm")
    assert found.weighed(dear)[0, 1] == 58 + 5 + 12
    overlap = serving_costs(one_question(), np.array([1]), dear)["vllm"]
    assert overlap.tokens is not None
    assert overlap.tokens.decoded == 75
    assert overlap.decoded_saving_pct == pytest.approx(100 * (1 - 75 / 140))
    short = stopped_counts(one_question(trace_tokens=np.array([60])), "vllm")
    assert short.weighed(dear)[0, 1] == 58 + 10
    assert found.weighed(dear)[0, 3] == 155, "who never stops wastes nothing"
    kept = stopped_counts(one_question(), "prefix-cache")
    assert kept.weighed(dear)[0, 1] == 58, "nothing streams on"


def test_full_thinking_is_stopping_never_without_probes() -> None:
    for table in (one_question(), one_question(natural_tokens=None, reference="last-checkpoint")):
        full, found = full_counts(table), stopped_counts(table, "kv-fork", asking=FIXED)
        assert full.decoded[0] == found.decoded[0, -1]
        assert full.attended[0] == found.attended[0, -1]
    # 140 tokens after 100 of prompt.
    assert full_counts(one_question()).attended[0] == 140 * 100 + 140**2 / 2
    assert mean_context(one_question()) == 100 + 140 / 2


def test_what_only_a_profile_measures_is_written_where_it_was() -> None:
    assert list(plain(PAPER_WEIGHTS)) == ["prefilled", "cached", "decoded", "unit"]
    measured = Weights(1.0, 0.1, 2.0, "seconds", request=3.0, round_trip=4.0)
    assert parse(Weights, plain(measured)) == measured


def test_weights_are_prices() -> None:
    counts = stopped_counts(one_question(), "prefix-cache")
    money = Weights(3.0, 0.3, 15.0, "money per million tokens")
    assert counts.weighed(money)[0, 1] == pytest.approx(15 * 58 + 0.3 * 240 + 3 * 118)
    assert counts.weighed(PAPER_WEIGHTS)[0, 1] == pytest.approx(58 + 0.1 * 240 + 118)


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(CalibrationError, match="serving must be one of"):
        stopped_counts(one_question(), "telepathy")  # type: ignore[arg-type]
    for values in ((-1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (float("nan"), 0.0, 1.0)):
        with pytest.raises(CalibrationError, match="weights must be finite"):
            Weights(*values, unit="x")
    with pytest.raises(CalibrationError, match="round trip -1"):
        Weights(0.0, 0.0, 1.0, "x", round_trip=-1.0)
