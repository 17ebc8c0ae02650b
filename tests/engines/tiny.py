"""A tiny random model with a byte tokenizer, and plain generation as a reference."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stopadvisor.probes.asking import Engine, ProbePlan, Prompt, RawTrace

if TYPE_CHECKING:  # torch takes seconds to import, and every worker collects this file
    from transformers import PreTrainedTokenizerFast

    from stopadvisor.engines.hf.engine import HfEngine

SPECIAL = ("<pad>", "<user>", "<bot>", "<eos>")
TEMPLATE = """\
{%- for message in messages %}
{{- '<user>' if message.role == 'user' else '<bot>' }}{{ message.content }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<bot>' }}
{%- if opens is defined and opens %}{{- '<think>\\n' }}{%- endif %}
{%- if off is defined and off %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""


def byte_tokenizer(think: bool = True, template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [*SPECIAL, *alphabet]
    backend = Tokenizer(BPE(vocab={t: i for i, t in enumerate(vocabulary)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    if think:
        markers = ("<think>", "</think>")
        backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in markers])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
        chat_template=template,
    )


def save_model(
    folder: Path, tokenizer: PreTrainedTokenizerFast, generation: dict[str, Any], **config: Any
) -> Path:
    """Save a Qwen3 with random weights, large enough that its logits differ."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=512,
            initializer_range=0.35,
            tie_word_embeddings=False,
            eos_token_id=3,
            bos_token_id=None,
            pad_token_id=0,
            **config,
        )
    )
    model.generation_config = GenerationConfig(eos_token_id=3, pad_token_id=0, **generation)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def prompt(text: str, sample: int = 0) -> Prompt:
    return Prompt(key=f"key-{text}", messages=({"role": "user", "content": text},), sample=sample)


def plan(budgets: Sequence[int] = (), **changes: Any) -> ProbePlan:
    base = ProbePlan(tuple(budgets), cue="\n\nAnswer:", cap=10, max_think=40, answer_cap=6)
    return replace(base, **changes)


def traces_of(engine: Engine, prompts: Sequence[Prompt], at: ProbePlan) -> list[RawTrace]:
    """Probe one trace per prompt; in the order of the prompts."""
    traces = dict(engine.probe_each(prompts, at))
    return [traces[number] for number in range(len(prompts))]


@dataclass(frozen=True)
class Reference:
    """A forced answer by plain generation, which reads everything again for every token."""

    ids: tuple[int, ...]
    logprobs: NDArray[np.float64]
    entropies: NDArray[np.float64]


@dataclass(frozen=True)
class Reprefill:
    """The same weights with the attention, cache and masks of transformers."""

    model: Any

    @classmethod
    def of(cls, folder: Path) -> Reprefill:
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        )
        return cls(model)

    def likeliest(self, prefix: list[int], ids: list[int]) -> list[int]:
        """The likeliest token in the place of each of `ids`, after the prefix and those before."""
        import torch

        with torch.inference_mode():
            output = self.model(input_ids=torch.tensor([[*prefix, *ids]]), use_cache=False)
        found: list[int] = output.logits[0, len(prefix) - 1 : -1].argmax(-1).tolist()
        return found

    def forced(self, prefix: list[int], n_tokens: int, ends: Collection[int] = ()) -> Reference:
        import torch

        ids, out, logprobs, entropies = list(prefix), [], [], []
        for _ in range(n_tokens):
            with torch.inference_mode():
                output = self.model(input_ids=torch.tensor([ids]), use_cache=False)
            logits = output.logits[0, -1]
            row = logits.double().log_softmax(-1)
            out.append(int(row.argmax()))
            logprobs.append(float(row.max()))
            entropies.append(float(-(row.exp() * row).sum()))
            ids.append(out[-1])
            if out[-1] in ends:
                break
        return Reference(tuple(out), np.array(logprobs), np.array(entropies))


def check_against(
    reference: Reprefill,
    engine: HfEngine,
    question: Prompt,
    trace: RawTrace,
    ids: list[int],
    at: ProbePlan,
) -> None:
    """Check that every probe of a trace with the thinking `ids` equals the reference to 5e-5."""
    start = engine.chat.prompt_ids(question.messages)
    suffix = engine.suffix_ids(at.cue)

    @cache  # budgets beyond the end ask for the same
    def plainly(after: int, n_tokens: int) -> Reference:
        return reference.forced([*start, *ids[:after], *suffix], n_tokens)

    for probe in trace.probes:
        plain = plainly(min(probe.budget, len(ids)), probe.probe_tokens)
        flags = engine.stops.flags[list(plain.ids)]
        ended = probe.probe_tokens < at.cap or bool(flags[-1] & 1) or "\n" in probe.text
        counted = max(1, probe.probe_tokens - ended)
        assert probe.text == engine.stops.text(plain.ids, ended)
        assert probe.mean_logprob == pytest.approx(plain.logprobs[:counted].mean(), abs=5e-5)
        assert probe.mean_entropy == pytest.approx(plain.entropies[:counted].mean(), abs=5e-5)


def edit_config(source: Path, target: Path, **changes: Any) -> Path:
    """Copy a model's tokenizer and its configuration with changes, without weights.

    With a new `model_type` the configuration has only the changes.
    """
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (source / name).exists():
            (target / name).write_bytes((source / name).read_bytes())
    config = {}
    if "model_type" not in changes:
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (target / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    return target
