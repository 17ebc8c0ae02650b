"""What a model draws, here or at a server: traces and their ends, and figures of log-probabilities.

Knows ids and numbers; no server and no tokenizer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from stopadvisor.ground.errors import EngineError
from stopadvisor.policy.session import Session
from stopadvisor.probes.asking import ProbePlan, Prompt

__all__ = ["Trace", "TraceEnd", "mean_figures", "report_drawn", "token_figures"]


@dataclass
class TraceEnd:
    """When thinking, and then the natural answer, are over."""

    closer: tuple[int, ...]
    stop_ids: tuple[int, ...]
    max_think: int
    answer_cap: int
    thinking: int = -1
    """Thinking tokens; -1 while the trace thinks."""
    closed: bool = False
    cut: bool = False
    over: bool = False
    limit: int | None = None
    """Most tokens of all, where that alone cuts the trace."""

    @classmethod
    def unbounded(cls, closer: tuple[int, ...], stop_ids: tuple[int, ...], limit: int) -> TraceEnd:
        """Let thinking and answer share `limit` tokens as they like, as without a policy."""
        return cls(closer, stop_ids, limit, limit, limit=limit)

    @property
    def most(self) -> int:
        """Most tokens that can be needed."""
        if self.limit is not None:
            return self.limit
        return self.max_think + len(self.closer) + self.answer_cap

    def see(self, ids: Sequence[int]) -> None:
        """Take note of the last token of `ids`, which are all so far."""
        token, steps = ids[-1], len(ids)
        begun = steps - len(self.closer)  # thinking tokens, if the closer is complete now
        if self.thinking >= 0:
            self.over = token in self.stop_ids or begun - self.thinking >= self.answer_cap
            return
        if 0 <= begun <= self.max_think and tuple(ids[begun:]) == self.closer:
            self.thinking, self.closed = begun, True
        elif token in self.stop_ids and token not in self.closer:
            self.thinking = min(steps - 1, self.max_think)
            self.cut, self.over = steps - 1 > self.max_think, True
        elif begun >= self.max_think:
            # The closer may begin right after the last token that is allowed, so it is awaited.
            self.thinking, self.cut, self.over = self.max_think, True, True

    def give_up(self, ids: Sequence[int]) -> None:
        """Take note that the server draws no more after `ids`, if the trace is not over yet."""
        if self.over:
            return
        if self.thinking < 0:
            self.thinking, self.cut = min(len(ids), self.max_think), True
        self.over = True


@dataclass(eq=False)
class Trace:
    """A trace on its way, and then a whole one."""

    prompt_ids: Sequence[int]
    """Thinking opened."""
    prompt: Prompt
    """Seeds the sampling."""
    plan: ProbePlan
    replica: int | None
    """The server that has its prefix in the cache."""
    end: TraceEnd
    ids: list[int] = field(default_factory=list)
    """Drawn after the prompt."""
    cached_tokens: int | None = None
    """Of the prompt; None where the engine does not say."""
    probe_tokens: int = 0
    """Decoded by its forced answers, those that were given up included."""
    surplus: int = 0
    """Tokens that the engine drew after the trace was over."""

    @property
    def visible(self) -> list[int]:
        """The natural answer after the closer, with the token that ends it; empty if not closed."""
        begin = self.end.thinking + len(self.end.closer)
        return self.ids[begin:] if self.end.closed else []

    def take(self, new: Sequence[int]) -> None:
        """Append new tokens until the trace is over, and count those after that as surplus."""
        for taken, token in enumerate(new):
            if self.end.over:
                self.surplus += len(new) - taken
                return
            self.ids.append(token)
            self.end.see(self.ids)


def report_drawn(session: Session, trace: Trace) -> None:
    """Report to a session what was drawn since the last report."""
    if session.needs_ids:
        session.receive(trace.ids[session.drawn :])
    else:
        session.receive(len(trace.ids) - session.drawn)
    if session.thinking is None and trace.end.thinking >= 0:
        session.end(trace.end.thinking, cut=trace.end.cut)


def token_figures(logprob: float, likeliest: Sequence[float]) -> tuple[float, float, float]:
    """Return log-probability, entropy and tail mass of a token, of the likeliest in its place.

    Raises
    ------
    EngineError
        They are no numbers.
    """
    entropy = -sum(math.exp(x) * max(x, -1e4) for x in likeliest)
    tail = 1.0 - sum(math.exp(x) for x in likeliest)
    if not math.isfinite(logprob + entropy + tail):
        raise EngineError("the server returned log-probabilities that are not finite")
    return logprob, entropy, tail


def mean_figures(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Return the mean of each figure over some tokens, at least one."""
    sums = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    return sums[0], sums[1], sums[2]
