"""Answers decoded on branches of a kept KV cache, many checkpoints at once.

A branch attends to its trace up to its budget and to its own closer, cue and answer, not to other
branches; the prefix is neither copied nor recomputed.  Each step appends one column per branch slot
after the prefix, and the mask assigns columns to slots.  Slots are compacted once half of the
answers are finished.  Hundreds of branches of one trace are decoded in chunks to limit memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stopadvisor.engines.answer_end import AnswerStops, AnswerTokens, ForcedAnswer
from stopadvisor.engines.hf.cache import KeptCache, Runner, additive
from stopadvisor.engines.sampling import entropy_top_k
from stopadvisor.ground.errors import EngineError, ModelError
from stopadvisor.probes.asking import ProbePlan, is_open_cue

__all__ = ["MOST_AT_ONCE", "Branch", "Grid", "check_branches", "probe_branches", "probe_in_chunks"]

MOST_AT_ONCE = 32
"""Branches of one trace decoded together; a usual grid has fewer."""

_STATISTICS_ELEMENTS = 2**26
"""Logits processed at once by `_statistics`: 256 MB in float32."""


@dataclass(frozen=True)
class Branch:
    """Where an answer leaves its trace."""

    row: int
    """Row of the kept cache."""
    tokens: int
    """Thinking tokens before it."""


def probe_branches(
    runner: Runner,
    kept: KeptCache,
    branches: Sequence[Branch],
    stops: AnswerStops,
    plan: ProbePlan,
    *,
    consume: bool = False,
) -> list[ForcedAnswer]:
    """Decode a forced answer on every branch, greedily, and leave the kept cache unchanged.

    With `consume` the cache may be destroyed, and finished rows free their memory.  Means are over
    the answer's tokens without the one that ended it (EOS, newline, or the brace that closed the
    box), unless it is the only one.

    The entropy is that of the next-token distribution in nats.  With ``top-k:K`` it is
    ``-sum(p * log p)`` over the raw probabilities of the K likeliest tokens, as from a server that
    returns K log-probabilities; ``tail_mass`` is the mean of ``1 - sum(p)``.
    """
    if not branches:
        return []
    suffix_ids, cap = stops.chat.suffix_ids(plan.cue), plan.cap
    grid = Grid(runner, kept, branches, len(suffix_ids), cap, consume=consume)
    answers = [AnswerTokens(stops, is_open=is_open_cue(plan.cue)) for _ in branches]
    measured = np.zeros((len(branches), cap, 3))  # log-probability, entropy, tail mass
    top_k = entropy_top_k(plan.entropy)
    logits = grid.open(suffix_ids)
    for step in range(cap):
        tokens, figures = _statistics(logits, top_k)
        over = grid.slots < 0
        live = ~over
        measured[grid.slots[live], step] = figures.cpu().numpy()[live]
        if not np.isfinite(measured[grid.slots[live], step]).all():
            raise EngineError(
                "the model returned log-probabilities that are not finite; another dtype may "
                "help (--dtype float32)"
            )
        drawn = zip(grid.slots[live].tolist(), tokens.cpu().numpy()[live].tolist(), strict=True)
        over[live] = [answers[branch].take(token) for branch, token in drawn]
        if over.all() or step == cap - 1:
            break
        logits = grid.extend(grid.compact(tokens, ~over))
    forced = []
    for answer, rows in zip(answers, measured, strict=True):
        logprob, spread, tail = rows[: answer.counted].mean(axis=0).tolist()
        forced.append(answer.forced(logprob, spread, None if top_k is None else tail))
    return forced


def probe_in_chunks(
    runner: Runner,
    kept: KeptCache,
    branches: Sequence[Branch],
    stops: AnswerStops,
    plan: ProbePlan,
    *,
    at_once: int = MOST_AT_ONCE,
) -> list[ForcedAnswer]:
    """Call `probe_branches` on chunks of `at_once` branches per row; destroys the cache."""
    left: dict[int, list[int]] = {}  # by row, the branches still to decode
    for number, branch in enumerate(branches):
        left.setdefault(branch.row, []).append(number)
    answers: dict[int, ForcedAnswer] = {}
    present = list(range(len(kept.pads)))  # original number of each row still in the cache
    while left:
        rows = sorted(left)
        last = all(len(numbers) <= at_once for numbers in left.values())
        if not last and len(rows) < len(present):
            places = np.array([present.index(row) for row in rows])
            (kept,), present = kept.split((places, kept.columns)), rows
        chunk = [number for row in rows for number in left[row][:at_once]]
        forced = probe_branches(
            runner,
            kept,
            [Branch(present.index(branches[n].row), branches[n].tokens) for n in chunk],
            stops,
            plan,
            consume=last,
        )
        answers.update(zip(chunk, forced, strict=True))
        left = {row: numbers[at_once:] for row, numbers in left.items() if numbers[at_once:]}
    return [answers[number] for number in range(len(branches))]


class Grid:
    """Branches laid out as cache rows by slots, with their mask and positions."""

    def __init__(
        self,
        runner: Runner,
        kept: KeptCache,
        branches: Sequence[Branch],
        suffix: int,
        cap: int,
        *,
        consume: bool,
    ) -> None:
        self._runner = runner
        self._consume = consume
        by_row: dict[int, list[int]] = {}
        for i, branch in enumerate(branches):
            by_row.setdefault(branch.row, []).append(i)
        used = sorted(by_row)
        width = max(map(len, by_row.values()))
        self.slots = np.full((len(used), width), -1)  # branch in each slot, -1 if empty
        for slots, row in zip(self.slots, used, strict=True):
            slots[: len(by_row[row])] = by_row[row]

        room, is_whole = width * (suffix + cap), len(used) == len(kept.pads)
        if is_whole:  # before the fork: growing a fork copies the whole prefix
            kept.reserve(room)
        if not consume:
            kept = kept.fork()
        if not is_whole:
            (kept,) = kept.split((np.array(used), kept.columns))
            kept.reserve(room)
        self._cache, pads = kept, kept.pads
        # An empty slot repeats the row's first branch; its tokens are ignored.
        tokens = np.array([branch.tokens for branch in branches])
        filled = np.where(self.slots < 0, self.slots[:, :1], self.slots)
        seen = torch.from_numpy(kept.start + tokens[filled]).to(pads.device)  # (rows, slots)
        self._positions = seen - pads[:, None]  # of the next token
        places = torch.arange(self._cache.columns + room, device=pads.device)
        allowed = (places >= pads[:, None, None]) & (places < seen[:, :, None])
        self._mask = additive(allowed, runner.dtype)  # (rows, slots, capacity)
        self._key_positions = places[None, :] - pads[:, None]  # (rows, capacity)

    def open(self, suffix_ids: Sequence[int]) -> Tensor:
        """Append closer and cue to every prefix; logits of shape (rows, slots, vocabulary)."""
        n_rows, n_slots, _ = self._mask.shape
        size, first = len(suffix_ids), self._cache.columns
        device = self._mask.device
        step = torch.arange(size, device=device)
        slot = torch.arange(n_slots, device=device)
        ids = torch.tensor(list(suffix_ids), device=device).repeat(n_rows, n_slots)
        positions = (self._positions[:, :, None] + step).reshape(n_rows, -1)
        # Within the suffix, attention is causal and inside the same branch.
        same = (slot[:, None] == slot[None, :])[:, None, :, None]
        causal = same & (step[:, None] >= step[None, :])[None, :, None, :]
        causal = causal.reshape(1, n_slots * size, n_slots * size).expand(n_rows, -1, -1)
        prefix = self._mask[:, :, None, :first].expand(-1, -1, size, -1)
        prefix = prefix.reshape(n_rows, n_slots * size, first)
        mask = torch.cat([prefix, additive(causal, self._mask.dtype)], dim=-1)
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
        # From now on each branch attends to its whole suffix.
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
        """Drop finished branches once they fill half of the slots; returns the tokens reordered.

        `active`, of shape (rows, slots), marks slots whose branch is not finished.
        """
        self.slots = np.where(active, self.slots, -1)
        rows = np.flatnonzero(active.any(axis=1))
        # Dropping rows copies the cache: not worth it for a fork, or for a few rows.
        if not self._consume or 4 * len(rows) > 3 * len(active):
            rows = np.arange(len(active))
        width = int(active.sum(axis=1).max())
        if 2 * active.sum() > active.size or len(rows) * width == active.size:
            return tokens
        # A stable sort moves active slots to the front and keeps their order.
        order = np.argsort(~active[rows], axis=1, kind="stable")[:, :width]
        self.slots = np.take_along_axis(self.slots[rows], order, axis=1)
        device = tokens.device
        if len(rows) < len(active):
            (self._cache,) = self._cache.split((rows, self._cache.columns), trimmed=False)
            index = torch.from_numpy(rows).to(device)
            tokens, self._positions = tokens[index], self._positions[index]
            self._mask, self._key_positions = self._mask[index], self._key_positions[index]
        pick = torch.from_numpy(order).to(device)
        wide = pick[:, :, None].expand(-1, -1, self._mask.shape[-1])
        self._mask = self._mask.gather(1, wide)
        self._positions = self._positions.gather(1, pick)
        return tokens.gather(1, pick)


def _statistics(logits: Tensor, top_k: int | None) -> tuple[Tensor, Tensor]:
    """Return the likeliest tokens, with log-probability, entropy and tail mass in float32.

    Logits have shape (rows, slots, vocabulary), tokens (rows, slots), figures (rows, slots, 3).
    """
    rows = max(1, _STATISTICS_ELEMENTS // (logits.shape[1] * logits.shape[2]))
    tokens, figures = [], []
    for part in torch.split(logits, rows):
        logprobs = part.float().log_softmax(dim=-1)
        best = logprobs.max(dim=-1)
        if top_k is not None:
            logprobs = logprobs.topk(min(top_k, logprobs.shape[-1]), dim=-1).values
        # An impossible token has log-probability -inf and adds nothing.
        entropy = -(logprobs.exp() * logprobs.clamp_min(-1e4)).sum(dim=-1)
        tail = torch.zeros_like(entropy) if top_k is None else 1.0 - logprobs.exp().sum(dim=-1)
        tokens.append(best.indices)
        figures.append(torch.stack([best.values, entropy, tail], dim=-1))
    return torch.cat(tokens), torch.cat(figures)


def check_branches(runner: Runner, vocabulary: int) -> None:
    """Refuse a model whose branches do not reproduce a plain forward pass.

    Uses two traces after prompts of different lengths, with two branches each.  Compares every
    branch's last logits with those of the same tokens read alone, without cache or mask.
    """
    ids = [(7 * i + 3) % vocabulary for i in range(14)]
    prompts, thinking, tail = [ids[:3], ids[4:6]], [ids[3:9], ids[6:10]], ids[10:12]
    kept, _ = runner.prefill(prompts, pad_id=0, texts=thinking)
    branches = [Branch(row, seen) for row in range(2) for seen in (1, 4)]
    grid = Grid(runner, kept, branches, len(tail), 1, consume=True)
    logits = grid.open(tail).float()
    errors = []
    for at, branch in zip(np.ndindex(2, 2), branches, strict=True):
        alone = [*prompts[branch.row], *thinking[branch.row][: branch.tokens], *tail]
        plain = (
            runner.model(
                input_ids=torch.tensor([alone], device=runner.device),
                use_cache=False,
                logits_to_keep=1,
            )
            .logits[0, -1]
            .float()
        )
        spread = max(float((plain - plain.mean()).norm()), 1e-12)
        errors.append(float((logits[at] - plain).norm()) / spread)
    # In half precision a correct branch may be far off, if another expert was chosen.
    exact = runner.dtype == torch.float32
    error, limit = (max(errors), 1e-3) if exact else (statistics.median(errors), 0.3)
    if not error <= limit:  # also when NaN
        raise ModelError(
            f"{type(runner.model).__name__} does not follow masks and positions: a branch over "
            f"the kept cache must reproduce a plain forward pass, got a relative difference of "
            f"{error:.2g}; use another model"
        )
