"""Early exit for one request, without any I/O.

The code that runs the model reports drawn tokens and probe answers to a `Session`, which says what
to do next.  So every way of serving stops at the same tokens: a model in this process, a server
over HTTP, or a replay of recorded probes.

Policies are calibrated on probes inside a trace, so none is made at its end.  A position is known
to be inside once as many tokens follow it as the closer has: had thinking ended there, the closer
would be complete.

Every trace that reaches the trigger's last position (`stop_at`) is stopped there, whatever its
score; an answer is forced there only if it is the reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.stepper import Decision, Stepper
from stopadvisor.probes.asking import OnStop
from stopadvisor.probes.trigger import Positions, Trigger

__all__ = ["AskProbe", "Ended", "Event", "Rule", "Session", "Show", "Stop", "Think"]


# --- Events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Think:
    """Draw more tokens and report them."""

    until: int | None
    """Draw until this many tokens exist, closer included; no new event comes before.  Drawing more
    at once is allowed.  None: think to the end."""


@dataclass(frozen=True, slots=True)
class AskProbe:
    """Force an answer after the first `position` thinking tokens, and pass it to `judge`.

    Thinking may continue meanwhile.
    """

    position: int
    index: int
    """Number of the checkpoint, from 0."""


@dataclass(frozen=True, slots=True)
class Show:
    """Thinking tokens from `start` to `stop` may be shown: the trace cannot stop before them."""

    start: int
    stop: int
    """The first token that may not be shown yet."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The policy stops the trace; the last event."""

    position: int
    """Thinking tokens before the stop."""
    index: int
    """Number of the checkpoint, from 0."""
    reply: OnStop
    """What to serve: the forced answer just judged, or a visible answer written after the
    closer."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The trace ended without a stop, and the model's own answer is served; the last event."""

    thinking: int
    """Thinking tokens of the whole trace."""
    cut: bool
    """Whether thinking was cut at a cap, not closed by the model."""


Event = Think | AskProbe | Show | Stop | Ended


# --- The session ----------------------------------------------------------------------------------


class Rule(Protocol):
    """The part of a `Policy` that a session needs."""

    @property
    def trigger(self) -> Trigger:
        """Where to probe."""

    @property
    def needs_markers(self) -> bool:
        """Whether it reads the number of markers in the thinking."""

    def start(self, task: str | None = None) -> Stepper:
        """Return a stepper for one question."""


class Session:
    """One request, from its first thinking token to its stop or end.

    Report what was drawn (`receive`, and `end` once thinking is over), then call `next_event` and
    do what it says.  Do not share one between requests or threads.

    Parameters
    ----------
    rule : Rule or None
        The policy; None thinks to the end without a probe.
    closer_tokens : int
        Number of tokens in the sequence that closes the thinking.
    on_stop : {"probe", "answer"}
        What a stopped request is served; `Stop.reply` repeats it.
    task : str, optional
        The question's task; required if the policy's own is ``mixed``.
    streams : bool
        Also return `Show` events, for callers that show thinking while it is drawn.
    at_once : int
        Tokens to ask for per `Think` when a marker may fire at any token; never beyond `stop_at`.
        Raise it where a request is expensive; tokens past a stop are wasted.

    Examples
    --------
    ::

        session = Session(policy, closer_tokens=2)
        while True:
            match session.next_event():
                case Think(until):
                    ids = draw(until)  # yours
                    session.receive(ids)
                    if closed:
                        session.end(thinking, cut=False)
                case AskProbe(position):
                    probe = force_answer(position)  # yours
                    session.judge(answer=probe.text, mean_logprob=probe.mean_logprob)
                case Stop() | Ended() as last:
                    break
    """

    def __init__(
        self,
        rule: Rule | None,
        *,
        closer_tokens: int,
        on_stop: OnStop = "probe",
        task: str | None = None,
        streams: bool = False,
        at_once: int = 1,
    ) -> None:
        if min(closer_tokens, at_once) < 1:
            raise PolicyError(
                f"closer_tokens and at_once must be at least 1, got {closer_tokens} and {at_once}"
            )
        self._at_once = at_once
        self._closer_tokens = closer_tokens
        self._on_stop: OnStop = on_stop
        self._streams = streams
        self.drawn = 0
        """Tokens received so far."""
        self.probes = 0
        """Forced answers judged so far."""
        self.thinking: int | None = None
        """Thinking tokens of the whole trace; None while it thinks."""
        self._cut = False
        self._fed = 0  # tokens known to be thinking, which the trigger has read
        self._ids: list[int] | None = None  # drawn but not fed yet
        self._shown = 0
        self._asked: AskProbe | Stop | None = None
        """The event for the trigger's next position, until it is judged or returned."""
        self._last: Stop | Ended | None = None
        self._positions: Positions | None = None
        self._stepper: Stepper | None = None
        self._stop_at: int | None = None
        if rule is not None and rule.trigger.most_probes:
            self._positions, self._stepper = rule.trigger.start(), rule.start(task)
            self._stop_at = rule.trigger.stop_at
            if rule.trigger.needs_ids:
                self._ids = []

    @property
    def needs_ids(self) -> bool:
        """Whether `receive` needs token ids, not just their number."""
        return self._ids is not None

    def receive(self, ids: Sequence[int] | int) -> None:
        """Report the tokens drawn next: ids, or just their number if ids are not needed.

        Tokens after the end of thinking may be reported too; they have no effect.
        """
        if self._ids is not None and self.thinking is None:
            if isinstance(ids, int):
                raise PolicyError(f"this policy's trigger needs token ids, got a count of {ids}")
            self._ids.extend(ids)
        self.drawn += ids if isinstance(ids, int) else len(ids)

    def end(self, thinking: int, *, cut: bool) -> None:
        """Report that thinking is over.

        Call it right after the `receive` whose tokens show the end, before `next_event`.

        `thinking` is its number of tokens without the closer; `cut` says that it reached its cap
        and was not closed by the model.

        Raises
        ------
        PolicyError
            The end was reported before, or `thinking` contradicts the tokens reported so far.
        """
        if self.thinking is not None:
            raise PolicyError(f"thinking has ended at {self.thinking} tokens already")
        if not self._fed <= thinking <= self.drawn:
            raise PolicyError(
                f"thinking must end between {self._fed} tokens, known to be thinking, and "
                f"{self.drawn}, drawn so far; got {thinking}"
            )
        self.thinking, self._cut = thinking, cut

    def judge(
        self,
        *,
        answer: str | None = None,
        mean_logprob: float | None = None,
        mean_entropy: float | None = None,
        markers: float | None = None,
        normalized: str | None = None,
        closed_by_itself: bool | None = None,
        entropy_slack: float = 0.0,
    ) -> Decision:
        """Decide on the forced answer that the last `AskProbe` asked for.

        Raises
        ------
        PolicyError
            No answer was asked for, or the stepper refuses this one.  The answer may then be judged
            again, for example with a more precise entropy.
        """
        asked = self._asked
        if not isinstance(asked, AskProbe) or self._stepper is None or self._positions is None:
            raise PolicyError("no forced answer was asked for")
        decision = self._stepper.observe(
            think_tokens=asked.position,
            answer=answer,
            mean_logprob=mean_logprob,
            mean_entropy=mean_entropy,
            markers=markers,
            normalized=normalized,
            closed_by_itself=closed_by_itself,
            entropy_slack=entropy_slack,
        )
        self._asked = None
        self.probes += 1
        self._positions.advance()
        if decision.stop or asked.position == self._stop_at:
            self._last = Stop(asked.position, asked.index, self._on_stop)
        elif decision.natural_end:
            self._positions = None
        return decision

    def give_up_probing(self) -> None:
        """Stop probing and think to the end, because a probe failed.

        Later checkpoints are skipped too: calibration never judged one with an earlier answer
        missing.
        """
        self._asked = self._positions = None

    def next_event(self) -> Event:
        """Return what to do next; without a new report, the same again (but each `Show` once)."""
        if self._last is not None:
            return self._last
        self._feed()
        if self._asked is None and self._positions is not None:
            position = self._positions.next()
            if position is not None and position == self._stop_at and self._on_stop == "answer":
                self._asked = Stop(position, self.probes, "answer")  # needs no forced answer
            elif position is not None:
                self._asked = AskProbe(position, self.probes)
        if self._streams:
            limit = self._fed  # unless the trace may still stop before
            if self._asked is not None:
                limit = min(limit, self._asked.position)
            elif self._positions is not None and self._positions.earliest is not None:
                limit = min(limit, self._positions.earliest)
            if limit > self._shown:
                start, self._shown = self._shown, limit
                return Show(start, limit)
        if isinstance(self._asked, Stop):
            self._last = self._asked
        if self._asked is not None:
            return self._asked
        if self.thinking is not None:
            self._last = Ended(self.thinking, self._cut)
            return self._last
        return Think(self._until())

    def _until(self) -> int | None:
        """Total number of tokens to draw; None for all of them."""
        wanted = None if self._positions is None else self._positions.wanted
        if wanted is None:
            return None
        until = wanted + self._closer_tokens - 1
        if self._ids is not None:
            until = max(until, self.drawn + self._at_once)
            if self._stop_at is not None:
                until = min(until, self._stop_at + self._closer_tokens)
        return until

    def _feed(self) -> None:
        """Feed the trigger the tokens now known to be thinking."""
        known = self.thinking
        if known is None:
            # A closer that began at or before such a token would be complete by now.
            known = max(0, self.drawn - self._closer_tokens + 1)
        new = known - self._fed
        self._fed = known
        if self._positions is None:
            return
        if self._ids is None:
            self._positions.feed(new)
        else:
            self._positions.feed(self._ids[:new])
            del self._ids[:new]
        if self.thinking is not None:
            self._positions.finish()
