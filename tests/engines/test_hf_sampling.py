"""Sampling, with the logits processors of transformers as the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stopadvisor.engines.sampling import Sampling
from stopadvisor.ground.errors import ModelError
from tests.engines.tiny import plan, prompt

if TYPE_CHECKING:  # torch takes seconds to import, and every worker collects this file
    import torch

    from stopadvisor.engines.hf.sampler import Sampler

pytestmark = pytest.mark.slow

VOCABULARY = 40

SETTINGS = [
    pytest.param(Sampling(1.0), id="plain"),
    pytest.param(Sampling(0.6, top_k=20, top_p=0.95), id="Qwen3"),
    pytest.param(Sampling(0.6, top_p=0.95), id="R1"),
    pytest.param(Sampling(1.3, min_p=0.1), id="min-p"),
    pytest.param(Sampling(0.8, top_k=9, top_p=0.7, min_p=0.05), id="all"),
    pytest.param(Sampling(0.8, top_p=0.0), id="top-p of nothing keeps one"),
    pytest.param(Sampling(0.9, repetition_penalty=1.5), id="repetition"),
]


def sampler_of(
    sampling: Sampling, prompts: Sequence[Sequence[int]], streams: np.ndarray | None = None
) -> Sampler:
    import torch

    from stopadvisor.engines.hf.sampler import Sampler

    streams = np.empty((len(prompts), 0)) if streams is None else streams
    return Sampler(sampling, prompts, streams, VOCABULARY, torch.device("cpu"))


def reference(sampling: Sampling, logits: torch.Tensor, seen: list[int]) -> torch.Tensor:
    import torch
    from transformers.generation import logits_process as processors

    steps = processors.LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        steps.append(processors.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    steps.append(processors.TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        steps.append(processors.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(processors.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        steps.append(processors.MinPLogitsWarper(sampling.min_p))
    scores: torch.Tensor = steps(torch.tensor([seen]), logits[None].double())
    return scores[0].softmax(-1)


@pytest.mark.parametrize("sampling", SETTINGS)
def test_draws_follow_the_processors_of_transformers(sampling: Sampling) -> None:
    import torch

    n, seen = 4000, [1, 2, 5, 5, 7]
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(3)) * 2
    # Evenly spaced numbers give every token its share of them, up to one at either end.
    streams = ((np.arange(n) + 0.5) / n)[:, None]
    sampler = sampler_of(sampling, [seen] * n, streams)
    drawn = torch.bincount(sampler.draw(logits.expand(n, -1), 0), minlength=VOCABULARY)
    expected = reference(sampling, logits, seen)
    assert torch.allclose(drawn.double(), expected * n, atol=1.01)
    assert (drawn[expected == 0] == 0).all()


def test_a_repetition_penalty_counts_what_was_drawn() -> None:
    import torch

    sampler = sampler_of(Sampling(0.0, repetition_penalty=2.0), [[], []])
    logits = torch.zeros(2, VOCABULARY)
    logits[:, 4], logits[:, 6], logits[:, 8] = 3.0, 2.0, 1.75
    drawn = [sampler.draw(logits, step).tolist() for step in range(3)]
    assert drawn == [[4, 4], [6, 6], [8, 8]]
    sampler.keep(np.array([1]))
    assert sampler.draw(logits[:1], 3).tolist() == [4]


def test_streams_belong_to_the_question() -> None:
    from stopadvisor.engines.hf.sampler import uniforms

    a, b = prompt("a"), prompt("b")
    both = uniforms([a, b], seed=7, length=5)
    np.testing.assert_array_equal(uniforms([b], seed=7, length=9)[0, :5], both[1])
    assert not np.array_equal(both[0], both[1])
    assert not np.array_equal(both[0], uniforms([a], seed=8, length=5)[0])


@pytest.mark.parametrize(
    ("settings", "changes", "expected"),
    [
        pytest.param({}, {}, Sampling(0.0), id="nothing given"),
        pytest.param({"do_sample": True}, {}, Sampling(1.0), id="sampled"),
        pytest.param(
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
            {},
            Sampling(0.6, 20, 0.95),
            id="Qwen3",
        ),
        pytest.param(
            {"do_sample": True, "temperature": 0.6, "typical_p": 0.5},
            {"greedy": True},
            Sampling(0.0),
            id="greedy overrides all",
        ),
        pytest.param(
            {"top_k": 20}, {"temperature": 0.9}, Sampling(0.9, 20), id="temperature overrides"
        ),
    ],
)
def test_settings_are_the_models_own(
    settings: dict[str, Any], changes: dict[str, Any], expected: Sampling
) -> None:
    from transformers import GenerationConfig

    assert Sampling.of(GenerationConfig(**settings), plan(**changes)) == expected


def test_a_setting_that_is_not_applied_is_named() -> None:
    from transformers import GenerationConfig

    settings = GenerationConfig(do_sample=True, no_repeat_ngram_size=3)
    with pytest.raises(ModelError, match="no_repeat_ngram_size=3"):
        Sampling.of(settings, plan())
