"""The events of early-exit sessions, on scripted and on recorded traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.certification.verification import scorer_of
from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import Policy, load_policy
from stopadvisor.policy.session import AskProbe, Ended, Session, Show, Stop, Think
from stopadvisor.policy.stepper import Decision, Stepper
from stopadvisor.probes.asking import OnStop
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger, stride
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from tests.policy_content import family_content, full_budget_content, policy_from
from tests.probes.test_trigger import MARKERS, TRIGGERS, walked
from tests.replay import POLICIES, committed_run, recorded_stop

CLOSER = (8, 9)
VISIBLE = (1, 1, 2, 3)
"""Tokens after the closer; markers among them are no positions."""


@dataclass
class Scripted:
    """A rule that stops at one checkpoint, or at none."""

    trigger: Trigger
    stops_at: int | None = None
    seen: list[int] = field(default_factory=list)
    needs_markers: bool = False

    def start(self, task: str | None = None) -> Stepper:
        return cast("Stepper", self)

    def observe(self, *, think_tokens: int, **answer: object) -> Decision:
        self.seen.append(think_tokens)
        return Decision(len(self.seen) - 1 == self.stops_at, 0.0, len(self.seen) - 1, False)


TRACES = st.lists(st.integers(0, 4), max_size=50)


def told(session: Session, drawn: Sequence[int], upto: int, thinking: int, *, cut: bool) -> None:
    """Report to a session all tokens drawn so far."""
    piece = drawn[session.drawn : upto]
    session.receive(piece if session.needs_ids else len(piece))
    whole = len(drawn) if cut else thinking + len(CLOSER)
    if session.thinking is None and upto >= whole:
        session.end(thinking, cut=cut)


@given(
    trigger=TRIGGERS,
    thinking=TRACES,
    pieces=st.lists(st.integers(1, 9), max_size=60),
    stops_at=st.none() | st.integers(0, 4),
    cut=st.booleans(),
    on_stop=st.sampled_from(["probe", "answer"]),
)
def test_pieces_change_neither_positions_nor_the_end(
    trigger: Trigger,
    thinking: list[int],
    pieces: list[int],
    stops_at: int | None,
    cut: bool,
    on_stop: OnStop,
) -> None:
    """The trigger's positions are probed, and thinking is shown up to the stop."""
    drawn = [*thinking, *(CLOSER[:1] if cut else (*CLOSER, *VISIBLE))]
    rule = Scripted(trigger, stops_at)
    session = Session(rule, closer_tokens=len(CLOSER), on_stop=on_stop, streams=True)
    positions = walked(trigger, thinking, [])
    last = len(positions) - 1  # every trace stops there if it is the trigger's `stop_at`
    at_last = bool(positions) and positions[-1] == trigger.stop_at
    stop = last if at_last and (stops_at is None or stops_at > last) else stops_at
    sizes, upto, shown, waited = iter(pieces), 0, 0, Think(None)
    while True:
        event = session.next_event()
        if isinstance(event, Show):
            assert event.start == shown < event.stop <= len(thinking)
            shown = event.stop
        elif isinstance(event, AskProbe):
            assert session.next_event() == event, "the same again until it is answered"
            assert event.index == session.probes
            assert shown == event.position, "nothing after a checkpoint before it is judged"
            if session.thinking is None:
                assert waited.until is not None
                assert waited.until <= upto, "no event before the tokens asked for"
            session.judge(answer="7")
        elif isinstance(event, Think):
            waited = event
            assert event.until is None or event.until > upto
            upto = min(upto + next(sizes, len(drawn)), len(drawn))
            told(session, drawn, upto, len(thinking), cut=cut)
        else:
            break
    if stop is not None and stop < len(positions):
        assert event == Stop(positions[stop], stop, on_stop)
        assert shown == event.position
        unasked = at_last and stop == last and on_stop == "answer"
        assert rule.seen == positions[: stop if unasked else stop + 1]
        assert session.probes == len(rule.seen)
    else:
        assert event == Ended(len(thinking), cut)
        assert shown == len(thinking)
        assert rule.seen == positions
    assert session.next_event() == event


def test_a_position_is_probed_once_the_closer_could_be_complete_after_it() -> None:
    session = Session(Scripted(ListedTrigger((4,))), closer_tokens=2)
    assert session.next_event() == Think(6)
    session.receive(5)
    assert session.next_event() == Think(6)
    session.receive(1)
    assert session.next_event() == AskProbe(4, 0)


def test_without_a_rule_it_thinks_to_the_end() -> None:
    full_budget = policy_from(full_budget_content())
    for rule in (None, full_budget, Scripted(stride(9, 8))):
        session = Session(rule, closer_tokens=1)
        assert session.next_event() == Think(None)
        session.receive(30)
        session.end(29, cut=True)
        assert session.next_event() == Ended(29, True)


def test_a_stop_names_the_reply_that_was_asked_for() -> None:
    policy = policy_from(family_content("confidence"))
    session = Session(policy, closer_tokens=1, on_stop="answer")
    session.receive(1)
    assert session.next_event() == AskProbe(0, 0)
    assert session.judge(answer=" 7", mean_logprob=0.0).stop
    assert session.next_event() == Stop(0, 0, "answer")


def test_where_ids_decide_many_tokens_may_be_asked_for_at_once() -> None:
    for stop_at, asked in ((None, [34, 66, 98]), (40, [34, 42])):
        trigger = MarkerTrigger(((7,),), 1, 9, stop_at=stop_at)
        session = Session(Scripted(trigger), closer_tokens=2, on_stop="answer", at_once=32)
        session.receive([0, 0])
        found: list[int] = []
        while len(found) < 3 and isinstance(event := session.next_event(), Think):
            assert event.until is not None
            found.append(event.until)
            session.receive([0] * (event.until - session.drawn))
        assert found == asked
    listed = Session(Scripted(ListedTrigger((4, 9))), closer_tokens=2, at_once=32)
    assert listed.next_event() == Think(6), "known beforehand: no token is drawn in vain"


def test_a_refused_answer_may_be_given_again() -> None:
    policy = policy_from(family_content("confidence"))
    session = Session(policy, closer_tokens=1)
    session.receive(1)
    assert session.next_event() == AskProbe(0, 0)
    with pytest.raises(PolicyError, match="needs mean_logprob"):
        session.judge(answer=" 7")
    assert session.next_event() == AskProbe(0, 0)
    assert session.judge(mean_logprob=0.0).stop


def test_a_probe_that_fails_means_think_on() -> None:
    rule = Scripted(ListedTrigger((0, 4)), stops_at=0)
    session = Session(rule, closer_tokens=2, streams=True)
    session.receive(9)
    assert session.next_event() == AskProbe(0, 0)
    session.give_up_probing()
    assert session.next_event() == Show(0, 8)
    assert session.next_event() == Think(None)
    session.receive(3)
    session.end(10, cut=False)
    assert session.next_event() == Show(8, 10)
    assert session.next_event() == Ended(10, False)
    assert rule.seen == []


def test_calls_out_of_order_are_refused() -> None:
    session = Session(Scripted(ListedTrigger((0, 4))), closer_tokens=2)
    with pytest.raises(PolicyError, match="no forced answer was asked for"):
        session.judge(answer="7")
    session.receive(6)
    assert session.next_event() == AskProbe(0, 0)
    for thinking in (4, 7):
        with pytest.raises(PolicyError, match=f"between 5 tokens.* got {thinking}"):
            session.end(thinking, cut=False)
    whole = Session(Scripted(ListedTrigger((0, 4))), closer_tokens=2)
    whole.receive(6)
    whole.end(6, cut=True)  # the cap comes before any closer
    session.end(5, cut=False)
    with pytest.raises(PolicyError, match="has ended at 5 tokens already"):
        session.end(5, cut=False)
    with pytest.raises(PolicyError, match="must be at least 1, got 0 and 1"):
        Session(None, closer_tokens=0)
    with pytest.raises(PolicyError, match="must be at least 1, got 1 and 0"):
        Session(None, closer_tokens=1, at_once=0)
    with pytest.raises(PolicyError, match="needs token ids"):
        Session(Scripted(MarkerTrigger(MARKERS, 1, 1)), closer_tokens=1).receive(3)


# --- Recorded probes ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["arithmetic", "choice", "hard"])
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Policy, Path]:
    """A shipped policy and its committed probes as a run."""
    run = committed_run(request.param, tmp_path_factory.mktemp("run"))
    return load_policy(POLICIES / f"{request.param}.joblib"), run


@pytest.mark.parametrize(("piece", "closer"), [(8, 1), (10_000, 3)])
def test_recorded_probes_stop_where_calibration_says(
    recorded: tuple[Policy, Path], piece: int, closer: int
) -> None:
    """Every committed trace, against the stops that the whole-table code gives."""
    policy, run = recorded
    table = open_source(run).table
    by_key: dict[str, int | None] = dict.fromkeys(table.keys)
    if policy.kind == "stop":
        scorer = scorer_of(policy.terms, table)
        view = scorer.view(table)
        threshold = np.array([policy.content["decision_threshold"]])
        for key, stop in zip(table.keys, scorer.curve(view, threshold).stops(0), strict=True):
            by_key[key] = int(stop) if stop < view.n_checkpoints else None
    stops = set()
    for record in RunDirectory.load(run).records():
        stop = recorded_stop(policy, record, piece=piece, closer=closer)
        stops.add(None if stop is None else stop.index)
        assert by_key[record.key] == (None if stop is None else stop.index), record.id
    if policy.kind == "stop":
        assert {None, 0, 1} <= stops
    else:
        assert stops == {None}
