"""Climb a ladder: a path of thresholds, and what each of its steps serves and costs.

Each step of the path has one threshold per reply asked for.  The first reply that ended by itself
and whose score reaches its threshold is served; if none does, the reference is.  The view of a path
has one column per step, from bold to careful, and the reference last, so a test walks the steps as
it walks the thresholds of a fixed budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.rungs import Rungs, Spent
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.features import LinearModel, log_odds_of

__all__ = ["RUNG_FEATURES", "Climb", "OnGiveUp", "rung_features", "rungs_of"]

Table = TypeVar("Table", bound=ProbeTable)
OnGiveUp = Literal["escalate", "reply"]
"""What to do when every cheap rung is expected to be wrong: skip to the reference, or serve the
reply."""

RUNG_FEATURES = ("log_tokens", "support", "answer_share", "rung", "answer_log_odds")
"""Features of a reply for learned rules: log of its tokens, number of equal answers in a row (for
samples, the leader's lead), share of samples with this answer, column number, and mean token
probability as log-odds."""


# numpy's vectorised functions may differ from the C library's in the last bit.
_log1p = np.frompyfunc(math.log1p, 1, 1)


def rung_features(
    table: ProbeTable, columns: tuple[int, ...], names: tuple[str, ...]
) -> FloatArray:
    """Features of replies, (n_questions, n_columns, n_features)."""
    rungs, at = rungs_of(table), list(columns)
    shape = (table.n_questions, len(at))
    found: dict[str, FloatArray] = {
        "log_tokens": np.asarray(_log1p(_own_tokens(rungs)[:, at]), dtype=np.float64),
        "support": _support(table, columns).astype(np.float64),
        "answer_share": rungs.share[:, at],
        "rung": np.broadcast_to(np.array(at, dtype=np.float64), shape),
    }
    if "answer_log_odds" in names:
        found["answer_log_odds"] = log_odds_of(table.mean_logprob[:, at])
    return np.stack([found[name] for name in names], axis=-1)


def _support(table: ProbeTable, columns: tuple[int, ...]) -> IntArray:
    """Equal answers in a row among the columns asked; among samples, the leader's lead."""
    rungs = rungs_of(table)
    sampled = {k for block in rungs.blocks if len(block) > 1 for k in block}
    support = rungs.support[:, list(columns)]
    run, before = np.zeros(table.n_questions, dtype=np.int64), np.full(table.n_questions, -1)
    for j, column in enumerate(columns):
        answer = table.answer_codes[:, column]
        run = np.where((answer == before) & (answer >= 0), run + 1, answer >= 0)
        if column in sampled:
            run = np.ones_like(run)  # the plurality counts as one reply
        else:
            support[:, j] = run
        before = answer
    return support


def _own_tokens(rungs: Rungs) -> FloatArray:
    """Tokens of each column's own reply, without those of earlier samples."""
    blocks = [rungs.spent.decoded[:, list(block)] for block in rungs.blocks]
    return np.hstack([np.diff(samples, axis=1, prepend=0.0) for samples in blocks])


def rungs_of(table: ProbeTable) -> Rungs:
    """The rungs of a table; ProbeError if it holds probes of one trace."""
    if table.rungs is None or not table.rungs.names:
        raise ProbeError("this rule climbs a ladder, and these are probes of one trace")
    return table.rungs


@dataclass(frozen=True)
class Climb:
    """The columns asked before the reference, and the path of thresholds."""

    family: str
    names: tuple[str, ...]
    """Rung name of each column asked, then the reference's."""
    columns: tuple[int, ...]
    """Columns of the table asked before the reference, increasing."""
    path: tuple[tuple[float, ...], ...]
    """For each step, from bold to careful, one threshold per column."""
    model: LinearModel | None = None
    on_give_up: OnGiveUp | None = None
    """What a score below the step's level does.  `escalate`: skip the rungs between this reply and
    the reference; `reply`: serve this reply.  None: the rule never gives up."""
    give_up: tuple[float, ...] = ()
    """A level for each step of the path; empty if the rule never gives up."""

    stop_at = None
    """A ladder has no position that stops everybody."""

    def __len__(self) -> int:
        return len(self.path) + 1

    def scores(self, table: ProbeTable) -> FloatArray:
        """Score of each reply asked for, (n_questions, n_asked); higher means serve sooner.

        ``rung``: always 0; ``cap``: minus the reply's tokens; ``rung-agreement``: equal answers in
        a row, or the leader's lead among samples; ``rung-confidence``: mean log-probability;
        ``rung-learned``: the model's log-odds.
        """
        rungs, at = rungs_of(table), list(self.columns)
        if self.family == "rung":
            return np.zeros((table.n_questions, len(at)))
        if self.family == "cap":
            return -_own_tokens(rungs)[:, at]
        if self.family == "rung-agreement":
            return _support(table, self.columns).astype(np.float64)
        if self.family == "rung-confidence":
            return table.mean_logprob[:, at]
        assert self.model is not None  # of rung-learned
        return self.model.scores(rung_features(table, self.columns, self.model.features))

    def view(self, table: Table) -> Table:
        """The table with one column per step, the reference last; ProbeError for other rungs."""
        rungs = rungs_of(table)
        if tuple(rungs.names[k] for k in (*self.columns, -1) if k < len(rungs.names)) != self.names:
            raise ProbeError(f"the rule asks {', '.join(self.names)}, got {', '.join(rungs.names)}")
        return self.view_of(table, self.scores(table))

    def view_of(self, table: Table, scores: FloatArray) -> Table:
        """The same view from other scores, (n_questions, n_asked), such as out-of-fold ones."""
        rungs, (served, _, spent) = rungs_of(table), self._walk(table, scores)
        view = table.at(served, range(1, len(self) + 1))
        of_reply = rungs.map(lambda values: np.take_along_axis(values, served, axis=1))
        return replace(view, rungs=replace(of_reply, names=(), rates=(), spent=spent))

    def at(self, table: ProbeTable, step: float) -> tuple[IntArray, BoolArray]:
        """Column served at a step, and whether the rule gives up; both (n_questions,)."""
        k = round(step) - 1
        one = replace(self, path=self.path[k : k + 1], give_up=self.give_up[k : k + 1])
        served, given_up, _ = one._walk(table, self.scores(table))
        return served[:, 0], given_up[:, 0]

    def _walk(self, table: ProbeTable, scores: FloatArray) -> tuple[IntArray, BoolArray, Spent]:
        """Column served, whether the rule gave up, and the cost; all (n_questions, n_steps + 1)."""
        rungs = rungs_of(table)
        n, last = table.n_questions, len(rungs.names) - 1
        path = np.array([*self.path, (math.inf,) * len(self.columns)])  # (n_steps, n_asked)
        served = np.full((n, len(path)), last)
        waiting: BoolArray = np.ones(served.shape, dtype=bool)
        given_up = np.zeros(served.shape, dtype=bool)
        low = np.array([*(self.give_up or (-math.inf,) * len(self.path)), -math.inf])
        zero = np.zeros(served.shape)
        paid = block_paid = nothing = Spent(*(zero,) * 6)
        block = range(0)
        for k, column in enumerate((*self.columns, last)):
            if column not in block:  # another rung: the cost of the last one is final
                paid, block_paid = paid.each(np.add, block_paid), nothing
                block = next(b for b in rungs.blocks if column in b)
            own = rungs.spent.each(lambda values, at=column: values[:, at, None])
            if column == last:
                asked, passes = waiting, waiting
            else:
                asked = waiting & ~given_up & (path[:, k] < math.inf)
                readable = asked & rungs.served[:, column, None]
                passes = readable & (scores[:, k, None] >= path[:, k])
                if self.on_give_up == "reply" or k + 1 < len(self.columns):
                    below = readable & ~passes & (scores[:, k, None] < low)
                    given_up |= below
                    passes = passes | below if self.on_give_up == "reply" else passes
                if self.family == "cap" and column not in rungs.whole:
                    own = _abandoned(own, -path[:, k], rungs.rates[column][2], passes)
            # Costs of samples are cumulative: the last column asked holds the sum.
            block_paid = own.each(partial(np.where, asked), block_paid)
            served = np.where(passes, column, served)
            waiting = waiting & ~passes
        return served, given_up, paid.each(np.add, block_paid)

    def describe(self, position: float | None = None) -> str:
        """The rungs in words and in order; with a step of the path, its thresholds too."""
        asked = list(dict.fromkeys(self.names[:-1]))
        if position is None or not 1 <= position <= len(self.path):
            return f"{', then '.join(asked)}, then {self.names[-1]}"
        at: dict[str, float] = dict(zip(self.names, self.path[round(position) - 1], strict=False))
        texts = {
            "rung": "{name}",
            "cap": "{name} where it ends by itself within {cap:.0f} tokens",
            "rung-agreement": "{name} where equal answers reach {level:g}",
            "rung-confidence": "{name} where its mean log-probability is at least {level:.3g}",
            "rung-learned": "{name} where its score is at least {level:.3g}",
        }
        words = [texts[self.family].format(name=n, cap=-at[n], level=at[n]) for n in asked]
        if self.give_up:
            level, last = self.give_up[round(position) - 1], self.names[-1]
            to = f"{last} at once" if self.on_give_up == "escalate" else "the same, as given up"
            words.append(f"below {level:.3g} {to}")
        return f"{', else '.join(words)}, else {self.names[-1]}"


def _abandoned(own: Spent, caps: FloatArray, rate: float, passes: BoolArray) -> Spent:
    """Cost of a reply that is cut at a cap unless it passes."""
    decoded = np.where(passes, own.decoded, np.minimum(own.decoded, caps))
    price = own.price - rate * (own.decoded - decoded)
    kept = np.where(own.decoded > 0, decoded / np.maximum(own.decoded, 1), 1.0)
    return replace(own, decoded=decoded, price=price, seconds=own.seconds * kept)
