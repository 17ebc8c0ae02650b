"""Forced answers at any number of positions of each trace, as many at once as memory has room for.

Branches of one trace share its prefix, but each has columns, mask and logits of its own.  So that a
trace with hundreds of probes needs no more memory than one with a few, they are decoded in chunks
over the same cache; traces that have no more probes leave it.  Knows no plan and no markers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stopadvisor.engines.answer_end import AnswerStops, ForcedAnswer
from stopadvisor.engines.hf.branch import Branch, probe_branches
from stopadvisor.engines.hf.rolling import Kept
from stopadvisor.engines.hf.runner import Runner

__all__ = ["MOST_AT_ONCE", "probe_in_chunks"]

MOST_AT_ONCE = 32
"""Branches of a trace that are decoded together; more than any usual grid has."""


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
