"""One forward pass over the kept cache: masks in, logits out.

The one place that calls the model.  It also holds the check, made once when a model is loaded,
that branches over the kept cache give what a plain forward pass gives.  Knows tokens, positions
and masks; not what a trace or a probe is.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stopadvisor.engines.hf.cache import KeptCache, additive, fold
from stopadvisor.ground.errors import ModelError

__all__ = ["Runner", "check_branches"]

_CHUNK = 512
"""Prompt tokens per forward pass, so that the mask of a long prompt stays small."""


@dataclass(frozen=True)
class Runner:
    """A model that reads and writes a `KeptCache`."""

    model: Any = field(repr=False)
    groups: int
    """Query heads per key/value head."""
    window: int | None = None
    """Length of the model's sliding window, where any layer has one."""
    windowed: bool = False
    """All layers have that window; otherwise some see everything."""

    @property
    def device(self) -> torch.device:
        """Where the model takes its input."""
        device = self.model.device
        assert isinstance(device, torch.device)
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The model's number format, which is the masks' as well."""
        dtype = self.model.dtype
        assert isinstance(dtype, torch.dtype)
        return dtype

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: KeptCache,
        mask: Tensor | None,
        key_positions: Tensor | None = None,
        *,
        last: Tensor | int = 1,
        folded: bool = True,
    ) -> Tensor:
        """Run the model over new tokens and extend the cache by them.

        Returns logits of shape (rows, wanted, vocabulary), in the model's number format.

        Parameters
        ----------
        ids, positions : shape (rows, queries)
            New tokens, and each one's place in its own sequence.
        cache
            Gains `queries` columns.
        mask : shape (rows, queries, columns)
            Additive mask over all columns, the new ones included; None when all is seen.
        key_positions : shape (rows, columns)
            Each column's place in its sequence; needed where layers have a sliding window.
        last
            Queries whose logits are wanted: their indices, or how many from the end.
        folded
            Lay query heads that share keys out as further queries; wasteful for prompts only.
        """
        masks: Any = self._shaped(mask, folded)
        if self.window is not None:
            assert mask is not None
            assert key_positions is not None
            far = positions[:, :, None] - key_positions[:, None, :] >= self.window
            near = mask.masked_fill(far, torch.finfo(mask.dtype).min)
            near_masks = self._shaped(near, folded)
            # Two kinds of layers take a mask each, under transformers' names for the kinds.
            masks = (
                near_masks
                if self.windowed
                else {"full_attention": masks, "sliding_attention": near_masks}
            )
        logits = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=masks,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=last,
        ).logits
        assert isinstance(logits, Tensor)
        return logits

    def _shaped(self, mask: Tensor | None, folded: bool) -> Tensor | None:
        if mask is None:
            return None
        return fold(mask, self.groups) if folded else mask[:, None]

    def prefill(
        self, prompts: list[list[int]], pad_id: int, texts: Sequence[list[int]] | None = None
    ) -> tuple[KeptCache, Tensor, Tensor]:
        """Read prompts of any length, padded on the left.

        `texts` that follow them all begin in one column, and are padded on the right.

        Returns the cache, with as many columns as the longest prompt has tokens, and the longest
        text after one; the columns of padding before each prompt, of shape (rows,); and the logits
        of the last column, of shape (rows, vocabulary).
        """
        texts = texts or [[]] * len(prompts)
        begun, longest = max(map(len, prompts)), max(map(len, texts))
        columns = begun + longest
        padded = [
            [pad_id] * (begun - len(prompt)) + prompt + text + [pad_id] * (longest - len(text))
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        ids = torch.tensor(padded, device=self.device)  # (rows, columns)
        pads = torch.tensor([begun - len(p) for p in prompts], device=self.device)
        places = torch.arange(columns, device=self.device)
        positions = (places[None, :] - pads[:, None]).clamp_min(0)
        cache = KeptCache()
        logits = None
        for start in range(0, columns, _CHUNK):
            stop = min(start + _CHUNK, columns)
            causal = places[start:stop, None] >= places[None, :stop]  # (queries, columns)
            allowed = causal[None] & (places[None, None, :stop] >= pads[:, None, None])
            logits = self.forward(
                ids[:, start:stop],
                positions[:, start:stop],
                cache,
                additive(allowed, self.dtype),
                places[None, :stop] - pads[:, None],
                folded=False,
            )
        assert logits is not None
        return cache, pads, logits[:, -1]


def check_branches(runner: Runner, vocabulary: int) -> None:
    """Check that branches over the kept cache reproduce a plain forward pass.

    Two prompts of different lengths, two branches each; every branch's last logits are compared
    with those of the same tokens read alone, without cache or mask.
    """
    ids = [(7 * i + 3) % vocabulary for i in range(14)]
    prompts = [ids[:9], ids[4:10]]
    ends, tail = (3, 6), ids[10:12]  # tokens of its prompt that each branch sees before `tail`
    device, size = runner.device, len(tail)
    cache, pads, _ = runner.prefill(prompts, pad_id=0)
    columns = cache.columns

    places = torch.arange(columns, device=device)
    lengths = torch.tensor(ends, device=device)
    branch = torch.arange(len(ends), device=device).repeat_interleave(size)
    step = torch.arange(size, device=device).repeat(len(ends))
    real = places[None, :] >= pads[:, None]
    seen = places[None, None, :] < pads[:, None, None] + lengths[branch][None, :, None]
    own = (branch[:, None] == branch[None, :]) & (step[:, None] >= step[None, :])
    allowed = torch.cat([real[:, None] & seen, own.expand(len(prompts), *own.shape)], dim=-1)
    positions = (lengths[branch] + step).expand(len(prompts), -1)
    packed = runner.forward(
        torch.tensor([tail * len(ends)] * len(prompts), device=device),
        positions,
        cache,
        additive(allowed, runner.dtype),
        torch.cat([places[None, :] - pads[:, None], positions], dim=1),
        last=torch.arange(size - 1, size * len(ends), size, device=device),
    ).float()
    errors = []
    for row, prompt in enumerate(prompts):
        for column, end in enumerate(ends):
            alone = torch.tensor([prompt[:end] + tail], device=device)
            plain = runner.model(input_ids=alone, use_cache=False, logits_to_keep=1).logits
            errors.append(_difference(packed[row, column], plain[0, -1].float()))
    # In half precision one of them may be far off for no fault: an expert chosen the other way.
    exact = runner.dtype == torch.float32
    error, limit = (max(errors), 1e-3) if exact else (statistics.median(errors), 0.3)
    if not error <= limit:  # also when NaN
        raise ModelError(
            f"{type(runner.model).__name__} does not follow masks and positions: a branch over "
            f"the kept cache must reproduce a plain forward pass, got a relative difference of "
            f"{error:.2g}; use another model"
        )


def _difference(branch: Tensor, plain: Tensor) -> float:
    """Return the distance of two rows of logits, relative to their spread."""
    spread = float((plain - plain.mean()).norm())
    return float((branch - plain).norm()) / max(spread, 1e-12)
