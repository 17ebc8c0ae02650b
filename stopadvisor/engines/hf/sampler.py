"""Sampling the next token of each row, from one seeded random stream per question.

Each question has its own generator of uniform numbers, mapped to tokens by the inverse cumulative
distribution, so the other questions of a batch cannot change its trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stopadvisor.engines.sampling import Sampling
from stopadvisor.ground.errors import EngineError
from stopadvisor.probes.asking import Prompt

__all__ = ["Sampler", "Sampling", "uniforms"]


def uniforms(prompts: Sequence[Prompt], seed: int, length: int) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1) for each question, shape (prompts, length)."""
    streams = np.empty((len(prompts), length))
    for row, prompt in enumerate(prompts):
        name = f"{seed}:{prompt.key}:{prompt.sample}".encode()
        entropy = int.from_bytes(hashlib.sha256(name).digest(), "big")
        streams[row] = np.random.default_rng(entropy).random(length)
    return streams


class Sampler:
    """Samples tokens for the rows of a batch.

    A repetition penalty includes the prompts' tokens.  `streams`, of shape (rows, steps), are from
    `uniforms`; greedy sampling ignores them.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompts: Sequence[Sequence[int]],
        streams: NDArray[np.float64],
        vocabulary: int,
        device: torch.device,
    ) -> None:
        self.sampling = sampling
        self._streams, self._rows = streams, np.arange(len(streams))
        self._seen: Tensor | None = None
        if sampling.repetition_penalty != 1.0:
            self._seen = torch.zeros((len(prompts), vocabulary), dtype=torch.bool, device=device)
            for row, prompt in enumerate(prompts):
                self._seen[row, list(prompt)] = True

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Keep these rows, in this order."""
        self._rows = self._rows[rows]
        if self._seen is not None:
            self._seen = self._seen[torch.from_numpy(rows).to(self._seen.device)]

    def draw(self, logits: Tensor, step: int) -> Tensor:
        """Return the token of each row at this step, shape (rows,)."""
        scores = logits.float()  # (rows, vocabulary)
        if not bool(scores.amax(dim=-1).isfinite().all()):
            raise EngineError(
                "the model returned logits that are not finite; another dtype may help "
                "(--dtype float32)"
            )
        if self._seen is not None:
            penalty = self.sampling.repetition_penalty
            penalised = torch.where(scores > 0, scores / penalty, scores * penalty)
            scores = torch.where(self._seen, penalised, scores)
        if self.sampling.temperature == 0:
            tokens = scores.argmax(dim=-1)
        else:
            # MPS has no float64.
            wide = torch.float32 if scores.device.type == "mps" else torch.float64
            numbers = torch.from_numpy(self._streams[self._rows, step]).to(scores.device, wide)
            tokens = self._invert(scores / self.sampling.temperature, numbers)
        if self._seen is not None:
            self._seen.scatter_(1, tokens[:, None], True)
        return tokens

    def _invert(self, scores: Tensor, numbers: Tensor) -> Tensor:
        """Map each uniform number to the first token whose cumulative probability exceeds it."""
        settings, candidates = self.sampling, None  # tokens that may be sampled, likeliest first
        if 0 < settings.top_k < scores.shape[1]:
            candidates = scores.topk(settings.top_k, dim=-1).indices
        elif settings.top_p < 1.0 or settings.min_p > 0.0:
            candidates = scores.argsort(dim=-1, descending=True, stable=True)
        if candidates is not None:
            scores = scores.gather(1, candidates)  # (rows, n_candidates), falling
        weights = scores.to(numbers.dtype).softmax(dim=-1)
        if settings.top_p < 1.0:
            before = weights.cumsum(dim=-1) - weights
            before[:, 0] = -1.0  # rounding must not remove the likeliest
            weights = weights.masked_fill(before >= settings.top_p, 0.0)
        if settings.min_p > 0.0:
            weights = weights.masked_fill(weights < settings.min_p * weights[:, :1], 0.0)
        cumulative = weights.cumsum(dim=-1)
        # Scale by the total instead of normalising, or rounding could push a number beyond it.
        target = (numbers * cumulative[:, -1])[:, None]
        choice = torch.searchsorted(cumulative, target, right=True)
        choice = choice.clamp_max(scores.shape[1] - 1)
        return (choice if candidates is None else candidates.gather(1, choice))[:, 0]
