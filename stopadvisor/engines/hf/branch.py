"""Forced answers: branches that grow on a kept cache, all checkpoints of a batch at once.

Each branch sees its own trace up to its budget, then its own closer, cue and answer, and nothing
of its neighbours; the prefix is neither copied nor read again.  Every step appends one column per
branch slot after the prefix, and the mask says whose column it is.  Slots whose answer is over
stay until half of them are, then the rest move together.  Branches of one trace share its prefix,
but each has columns, mask and logits of its own: hundreds of them are decoded in chunks, so that
they take the memory of a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stopadvisor.engines.answer_end import AnswerStops, AnswerTokens, ForcedAnswer
from stopadvisor.engines.hf.cache import additive
from stopadvisor.engines.hf.rolling import Kept
from stopadvisor.engines.hf.runner import Runner
from stopadvisor.engines.sampling import entropy_top_k
from stopadvisor.ground.errors import EngineError

__all__ = ["MOST_AT_ONCE", "Branch", "probe_branches", "probe_in_chunks"]

MOST_AT_ONCE = 32
"""Branches of a trace that are decoded together; more than any usual grid has."""

_STATISTICS_ELEMENTS = 2**26
"""Most logits that are turned into statistics at once: 256 MB in float32."""

_USUAL_ANSWER = 16
"""Tokens of answer that room is made for at once; longer ones make the cache grow."""


@dataclass(frozen=True)
class Branch:
    """Where a forced answer leaves its trace."""

    row: int
    """Row of the kept cache."""
    tokens: int
    """Thinking tokens it sees."""


def probe_branches(
    runner: Runner,
    kept: Kept,
    branches: Sequence[Branch],
    suffix_ids: Sequence[int],
    stops: AnswerStops,
    *,
    cap: int,
    entropy: str = "full",
    consume: bool = False,
    tight: bool = False,
) -> list[ForcedAnswer]:
    """Decode a forced answer on every branch, greedily; the kept cache stays as it was.

    `suffix_ids`, closer and cue, or an open cue alone, are written after every prefix; `stops` are
    those of that cue.  `entropy` is ``full`` or ``top-k:K``.  With `consume` the cache is used up
    instead of a fork, which saves memory.  With `tight` the prefix is never copied: the kept
    cache gets room for the longest answers at once, and rows whose answers are over stay.


    Notes
    -----
    The means are over the answer's tokens without the one that ended it (EOS, newline, or the
    brace that closed the box); an answer cut by the cap has no such token.  An answer that is
    nothing but its ending token takes the means from that token, so that they stay finite.

    The entropy is that of the next-token distribution in nats.  With ``top-k:K`` it is
    ``-sum(p * log p)`` over the K likeliest tokens with their raw probabilities, not rescaled,
    as a server that returns K log-probabilities allows; ``tail_mass`` is the mean of
    ``1 - sum(p)``.
    """
    if not branches:
        return []
    grid = _Grid(runner, kept, branches, len(suffix_ids), cap, consume=consume, tight=tight)
    records = _Records(len(branches), cap, stops)
    top_k = entropy_top_k(entropy)
    logits = grid.open(suffix_ids)
    for step in range(cap):
        tokens, statistics = _statistics(logits, top_k)
        over = records.add(step, grid.slots, tokens.cpu().numpy(), statistics.cpu().numpy())
        if over.all() or step == cap - 1:
            break
        tokens = grid.compact(tokens, ~over)
        logits = grid.extend(tokens)
    return [records.forced(i, top_k is not None) for i in range(len(branches))]


def probe_in_chunks(
    runner: Runner,
    kept: Kept,
    branches: Sequence[Branch],
    suffix_ids: Sequence[int],
    stops: AnswerStops,
    *,
    cap: int,
    entropy: str = "full",
    at_once: int = MOST_AT_ONCE,
) -> list[ForcedAnswer]:
    """Do as `probe_branches`, with `at_once` branches of each row at most; uses the cache up."""
    left: dict[int, list[int]] = {}  # by row, its branches that are not decoded yet
    for number, branch in enumerate(branches):
        left.setdefault(branch.row, []).append(number)
    answers: dict[int, ForcedAnswer] = {}
    present = list(range(len(kept.pads)))  # rows of the cache, under their first numbers
    while left:
        rows = sorted(left)
        last = all(len(numbers) <= at_once for numbers in left.values())
        if not last and len(rows) < len(present):
            kept, present = _rows_of(kept, [present.index(row) for row in rows]), rows
        asked = [number for row in rows for number in left[row][:at_once]]
        found = probe_branches(
            runner,
            kept,
            [Branch(present.index(branches[n].row), branches[n].tokens) for n in asked],
            suffix_ids,
            stops,
            cap=cap,
            entropy=entropy,
            consume=last,
            tight=not last,
        )
        answers.update(zip(asked, found, strict=True))
        left = {row: numbers[at_once:] for row, numbers in left.items() if numbers[at_once:]}
    return [answers[number] for number in range(len(branches))]


def _rows_of(kept: Kept, rows: Sequence[int]) -> Kept:
    """Drop all other rows; the cache is changed in place, layer by layer."""
    index = torch.tensor(rows, device=kept.pads.device)
    kept.cache.keep(index)
    return Kept(kept.cache, kept.pads[index], kept.start)


class _Grid:
    """Branches laid out as rows of the cache by slots, with mask and positions."""

    def __init__(
        self,
        runner: Runner,
        kept: Kept,
        branches: Sequence[Branch],
        suffix: int,
        cap: int,
        *,
        consume: bool,
        tight: bool,
    ) -> None:
        self._runner = runner
        self._tight = tight
        used = sorted({branch.row for branch in branches})
        rank = {row: i for i, row in enumerate(used)}
        by_row: list[list[int]] = [[] for _ in used]
        for i, branch in enumerate(branches):
            by_row[rank[branch.row]].append(i)
        width = max(len(members) for members in by_row)
        self.slots = np.full((len(used), width), -1)  # branch in each slot, -1 for none
        for members, row in zip(by_row, self.slots, strict=True):
            row[: len(members)] = members

        # Reserved before the fork: a fork that grows by itself copies the whole prefix.
        kept.cache.reserve(width * (suffix + (cap if tight else min(cap, _USUAL_ANSWER))))
        self._cache = kept.cache if consume else kept.cache.fork()
        device = kept.pads.device
        pads = kept.pads
        if len(used) < len(pads):
            index = torch.tensor(used, device=device)
            pads = pads[index]
            self._cache.keep(index)
        # An empty slot repeats the row's first branch; what it decodes is not recorded.
        tokens = np.array([branch.tokens for branch in branches])
        filled = np.where(self.slots < 0, self.slots[:, :1], self.slots)
        seen = torch.from_numpy(kept.start + tokens[filled]).to(device)  # (rows, slots)
        self._positions = seen - pads[:, None]  # of the next token
        self._prefix = self._cache.columns
        capacity = self._prefix + width * (suffix + cap)
        places = torch.arange(capacity, device=device)
        allowed = (places >= pads[:, None, None]) & (places < seen[:, :, None])
        self._mask = additive(allowed, runner.dtype)  # (rows, slots, capacity)
        self._key_positions = places[None, :] - pads[:, None]  # (rows, capacity)

    def open(self, suffix_ids: Sequence[int]) -> Tensor:
        """Write closer and cue after every prefix; logits of shape (rows, slots, vocabulary)."""
        n_rows, n_slots, _ = self._mask.shape
        size, first = len(suffix_ids), self._prefix
        device = self._mask.device
        step = torch.arange(size, device=device)
        slot = torch.arange(n_slots, device=device)
        ids = torch.tensor(list(suffix_ids), device=device).repeat(n_rows, n_slots)
        positions = (self._positions[:, :, None] + step).reshape(n_rows, -1)
        # Within the suffix each token sees itself and those before it in its own branch.
        same = (slot[:, None] == slot[None, :])[:, None, :, None]
        own = same & (step[:, None] >= step[None, :])[None, :, None, :]
        own = own.reshape(1, n_slots * size, n_slots * size).expand(n_rows, -1, -1)
        prefix = self._mask[:, :, None, :first].expand(-1, -1, size, -1)
        prefix = prefix.reshape(n_rows, n_slots * size, first)
        mask = torch.cat([prefix, additive(own, self._mask.dtype)], dim=-1)
        stop = first + n_slots * size
        self._key_positions[:, first:stop] = positions
        logits = self._runner.forward(
            ids,
            positions,
            self._cache,
            mask,
            self._key_positions[:, :stop],
            last=slot * size + size - 1,
        )
        # From now on each branch sees its whole suffix.
        blocks = additive(same[:, 0, :, 0], self._mask.dtype).repeat_interleave(size, dim=1)
        self._mask[:, :, first:stop] = blocks
        self._positions = self._positions + size
        return logits

    def extend(self, tokens: Tensor) -> Tensor:
        """Append one token per slot; logits of shape (rows, slots, vocabulary)."""
        first = self._cache.columns
        stop = first + tokens.shape[1]
        slot = torch.arange(tokens.shape[1], device=tokens.device)
        self._mask[:, slot, first + slot] = 0.0
        self._key_positions[:, first:stop] = self._positions
        logits = self._runner.forward(
            tokens,
            self._positions,
            self._cache,
            self._mask[:, :, :stop],
            self._key_positions[:, :stop],
            last=tokens.shape[1],
        )
        self._positions = self._positions + 1
        return logits

    def compact(self, tokens: Tensor, active: NDArray[np.bool_]) -> Tensor:
        """Drop finished branches once they are half of the slots; returns the tokens moved along.

        `active`, of shape (rows, slots), are those whose branch is not finished.
        """
        rows = np.flatnonzero(active.any(axis=1))
        # Copying the cache for a few rows does not pay.
        if self._tight or 4 * len(rows) > 3 * len(active):
            rows = np.arange(len(active))
        width = int(active.sum(axis=1).max())
        if 2 * active.sum() > active.size or len(rows) * width == active.size:
            self.slots = np.where(active, self.slots, -1)
            return tokens
        # Stable, so that active slots come first in their old order and idle ones fill up.
        order = np.argsort(~active[rows], axis=1, kind="stable")[:, :width]
        self.slots = np.take_along_axis(np.where(active, self.slots, -1)[rows], order, axis=1)
        device = tokens.device
        if len(rows) < len(active):
            index = torch.from_numpy(rows).to(device)
            self._cache.keep(index)
            tokens, self._positions = tokens[index], self._positions[index]
            self._mask, self._key_positions = self._mask[index], self._key_positions[index]
        pick = torch.from_numpy(order).to(device)
        wide = pick[:, :, None].expand(-1, -1, self._mask.shape[-1])
        self._mask = self._mask.gather(1, wide)
        self._positions = self._positions.gather(1, pick)
        return tokens.gather(1, pick)


class _Records:
    """What each branch has decoded so far."""

    def __init__(self, n_branches: int, cap: int, stops: AnswerStops) -> None:
        self._answers = [AnswerTokens(stops) for _ in range(n_branches)]
        self._statistics = np.zeros((n_branches, cap, 3))  # log-probability, entropy, tail

    def add(
        self,
        step: int,
        slots: NDArray[np.int64],
        tokens: NDArray[np.int64],
        statistics: NDArray[np.float32],
    ) -> NDArray[np.bool_]:
        """Record one token per slot; returns which slots are over or empty."""
        live = slots >= 0
        branches, tokens = slots[live], tokens[live]
        values = statistics[live].astype(np.float64)  # (n_live, 3)
        if not np.isfinite(values).all():
            raise EngineError(
                "the model returned log-probabilities that are not finite; another dtype may "
                "help (--dtype float32)"
            )
        self._statistics[branches, step] = values
        over = ~live
        over[live] = [
            self._answers[branch].take(token)
            for branch, token in zip(branches.tolist(), tokens.tolist(), strict=True)
        ]
        return over

    def forced(self, branch: int, with_tail: bool) -> ForcedAnswer:
        """Return one branch's answer."""
        answer = self._answers[branch]
        means = self._statistics[branch, : answer.counted].mean(axis=0)
        logprob, entropy, tail = means.tolist()
        return answer.forced(logprob, entropy, tail if with_tail else None)


def _statistics(logits: Tensor, top_k: int | None) -> tuple[Tensor, Tensor]:
    """Return the likeliest tokens, and their log-probability, entropy and tail mass.

    Logits of shape (rows, slots, vocabulary), in any number format, give tokens of shape (rows,
    slots) and figures of shape (rows, slots, 3), reckoned in float32.
    """
    rows = max(1, _STATISTICS_ELEMENTS // (logits.shape[1] * logits.shape[2]))
    parts = [_chunk_statistics(part, top_k) for part in torch.split(logits, rows)]
    tokens, statistics = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(statistics)


def _chunk_statistics(logits: Tensor, top_k: int | None) -> tuple[Tensor, Tensor]:
    logprobs = logits.float().log_softmax(dim=-1)
    best = logprobs.max(dim=-1)
    if top_k is None:
        entropy = _entropy(logprobs)
        tail = torch.zeros_like(entropy)
    else:
        top = logprobs.topk(min(top_k, logprobs.shape[-1]), dim=-1).values
        entropy = _entropy(top)
        tail = 1.0 - top.exp().sum(dim=-1)
    return best.indices, torch.stack([best.values, entropy, tail], dim=-1)


def _entropy(logprobs: Tensor) -> Tensor:
    # A token that cannot occur has log-probability -inf and contributes nothing.
    return -(logprobs.exp() * logprobs.clamp_min(-1e4)).sum(dim=-1)
