"""Training examples as token ids: a full trace and forced answers at cuts of it, in one sequence.

The forced branches share the trace's prefix.  They follow it in the same row, each with the
position ids it would have right after its cut, and a mask lets each see the prompt, the trace up
to its cut, and itself.  So one forward pass trains the trace and every probe of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from questions import Question
from stopadvisor.ground.constants import DEFAULT_CUE, PROMPT_TEMPLATES
from traces import Line, think
from vocabulary import END, END_THINK, THINK

__all__ = ["Batch", "Example", "Packer", "collate"]

IGNORE = -100

N_BRANCHES = 5
"""Forced answers trained per trace: one before the first thought, two at random cuts, the others
right after a claim, where the model may stop."""

DOUBT = 0.5
"""Share of forced answers after a wrong claim in doubt that give the right one instead."""

CROPPED = 190
"""Thinking tokens that most examples of long traces keep: what follows only repeats."""

WHOLE_SHARE = 0.3
"""Share of the examples whose thinking is kept whole, however long."""

NO_THINKING_SHARE = 0.2
"""Share of first branches with an empty thinking block, as with `enable_thinking=False`."""

OTHER_TEMPLATE_SHARE = 0.1
"""Share of numeric questions asked with the prompt of a neighbouring task."""


@dataclass(frozen=True)
class Example:
    """One packed row."""

    ids: list[int]
    """The prompt, the trace and the natural answer, then the branches."""
    positions: list[int]
    """Position id of each token."""
    labels: list[int]
    """Each token as a target for its predecessor, or `IGNORE`."""
    trunk: int
    """Tokens before the first branch."""
    branches: list[tuple[int, int, int]]
    """First token, token after the last, and cut in the trunk, of each branch."""


@dataclass(frozen=True)
class Batch:
    """Rows of one width."""

    ids: Tensor  # (n_rows, width)
    positions: Tensor  # (n_rows, width)
    labels: Tensor  # (n_rows, width), shifted: the target of each position
    mask: Tensor  # (n_rows, 1, width, width), true where a query may look


class Packer:
    """Turns questions into examples with one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._tokenizer = tokenizer
        self._think, self._end_think, self._end = tokenizer.convert_tokens_to_ids(
            [THINK, END_THINK, END]
        )
        self._cue = self._encode(DEFAULT_CUE)
        self._gap = self._encode("\n\n")
        self._prompts: dict[str, tuple[list[int], list[int]]] = {}
        for task, template in PROMPT_TEMPLATES.items():
            # The question is the only part that changes, so the rest is rendered once.
            rendered = tokenizer.apply_chat_template(
                [{"role": "user", "content": template}], tokenize=False, add_generation_prompt=True
            )
            before, after = str(rendered).split("{question}")
            self._prompts[task] = (self._encode(before), self._encode(after))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def prompt(self, question: Question, task: str) -> list[int]:
        """Return the prompt's ids, up to where thinking is opened."""
        before, after = self._prompts[task]
        return [*before, *self._encode(question.text), *after]

    def pack(self, question: Question, rng: Random) -> Example:
        """Write a trace for a question and pack it with forced answers at random cuts."""
        task = question.task
        if task == "numeric" and rng.random() < OTHER_TEMPLATE_SHARE:
            task = rng.choice(("math", "exact"))
        prompt = self.prompt(question, task)
        thinking, claims = self._thinking(think(question, rng))
        if len(thinking) > CROPPED and rng.random() >= WHOLE_SHARE:
            thinking, closing = thinking[:CROPPED], []
        else:
            closing = [self._end_think, *self._answer(claims[-1][1].claim)]
        ids = [*prompt, self._think, *thinking, *closing]
        first = len(prompt) + 1
        labels = [IGNORE] * first + ids[first:]
        positions = list(range(len(ids)))
        trunk = len(ids)
        branches: list[tuple[int, int, int]] = []
        ends = [at + 1 for at, _ in claims if at < len(thinking)]
        for index in range(N_BRANCHES):
            if index == 0 and rng.random() < NO_THINKING_SHARE:
                cut = len(prompt)
                closed = [self._think, *self._gap, self._end_think, *self._gap]
                target = self._answer(question.gold)[len(self._gap) :]
            else:
                t = 0 if index == 0 else rng.randint(1, len(thinking))
                if index > 2 and ends:
                    t = rng.choice(ends)
                cut = first + t
                closed = [self._end_think, *self._cue]
                forced = self._forced(question.gold, [c for at, c in claims if at <= t], rng)
                target = self._answer(forced)[len(self._cue) :]
            branch = [*closed, *target]
            branches.append((len(ids), len(ids) + len(branch), cut))
            ids += branch
            labels += [IGNORE] * len(closed) + target
            positions += range(cut, cut + len(branch))
        return Example(ids, positions, labels, trunk, branches)

    def _forced(self, gold: str, seen: Sequence[Line], rng: Random) -> str:
        """Return what the trace claimed last, right or not; the right answer if nothing yet.

        Where a question mark casts doubt on the claim it is the right one half of the time, so that
        the model learns to be unsure there.
        """
        if not seen or (seen[-1].doubt and rng.random() < DOUBT):
            return gold
        return seen[-1].claim

    def _answer(self, answer: str) -> list[int]:
        return [*self._cue, *self._encode(f" {answer}"), self._end]

    def _thinking(self, lines: Sequence[Line]) -> tuple[list[int], list[tuple[int, Line]]]:
        """Return the trace's ids, and its claims with the prefix length that shows each."""
        ids: list[int] = []
        claims = []
        for line in lines:
            ids += self._encode(line.text)
            if line.claim:
                claims.append((len(ids) - 1, line))  # All of the line but its newline.
        return ids, claims


def collate(examples: Sequence[Example], pad: int) -> Batch:
    """Pad examples to one width and build the mask that keeps branches apart."""
    n_rows, width = len(examples), max(len(e.ids) for e in examples)
    ids = torch.full((n_rows, width), pad)
    positions = torch.zeros((n_rows, width), dtype=torch.long)
    labels = torch.full((n_rows, width), IGNORE)
    mask = torch.ones(width, width, dtype=torch.bool).tril().repeat(n_rows, 1, 1)
    for row, example in enumerate(examples):
        n = len(example.ids)
        ids[row, :n] = torch.tensor(example.ids)
        positions[row, :n] = torch.tensor(example.positions)
        labels[row, : n - 1] = torch.tensor(example.labels[1:])
        for begin, end, cut in example.branches:
            mask[row, begin:end, cut:begin] = False
    return Batch(ids, positions, labels, mask[:, None])
