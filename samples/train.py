"""Train the tiny reasoner from scratch: ``python samples/train.py``.

Needs torch, transformers and this repository's package.  The seed fixes the first weights, every
question, every cut and their order; nothing depends on the clock.  Learned numbers may still
differ in the last digits between machines, because sums of floating-point numbers do.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from packing import Batch, Example, Packer, collate
from questions import OPERANDS, draw, is_held_out
from vocabulary import END, PAD, build_tokenizer, save_tokenizer

STEPS, SMALL_STEPS = 3000, 1000
BATCH = 8
GROUP = 8
"""Batches drawn at once, so that rows of like length can share a batch."""

CHECKPOINT_EVERY = 100
"""Steps after which all is written to OUT.checkpoint; the same command goes on from there."""

HIDDEN, SMALL_HIDDEN = 128, 64
"""Hidden sizes of the reasoner and of a smaller one."""

LEARNING_RATE = 4e-3
DECAY_FROM = 0.6
"""Share of the steps after which the learning rate falls along a cosine."""

MIX = {"arithmetic": 0.52, "choice": 0.24, "hard": 0.24}
"""Share of each kind of question once all are in play."""


def curriculum(progress: float) -> dict[str, tuple[float, tuple[int, int]]]:
    """Return, per kind, its weight and operand range at this share of the training."""
    cap = 3 if progress < 0.10 else 6 if progress < 0.22 else 9
    kinds = MIX if progress >= 0.22 else {k: MIX[k] for k in ("arithmetic", "choice")}
    ranges = {}
    for kind, weight in kinds.items():
        low, high = OPERANDS[kind]
        ranges[kind] = (weight, (min(low, cap), min(high, cap)))
    return ranges


def batches(
    packer: Packer, seed: int, n_steps: int, pad: int, begin: int = 0
) -> Iterator[tuple[int, Batch]]:
    """Yield steps from `begin` on, each with its batch, of questions not held out.

    A batch depends on the seed and its step alone, so that training goes on where it stopped.
    """
    for first in range(begin - begin % GROUP, n_steps, GROUP):
        rng = Random(f"{seed} {first}")
        kinds = curriculum(first / n_steps)
        weights = [weight for weight, _ in kinds.values()]
        examples: list[Example] = []
        for _ in range(GROUP * BATCH):
            [kind] = rng.choices(list(kinds), weights)
            question = draw(kind, rng, held_out=False, operands=kinds[kind][1])
            assert not is_held_out(question.text)
            examples.append(packer.pack(question, rng))
        examples.sort(key=lambda example: len(example.ids))
        group = [examples[i : i + BATCH] for i in range(0, len(examples), BATCH)]
        rng.shuffle(group)
        for step, rows in enumerate(group[: n_steps - first], first):
            if step >= begin:
                yield step, collate(rows, pad)


def build_model(vocab_size: int, pad: int, end: int, hidden: int) -> Qwen3ForCausalLM:
    """Return the untrained model."""
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=4,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        head_dim=32,
        max_position_embeddings=1536,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=end, pad_token_id=pad, max_new_tokens=940
    )
    return model


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return Muon for the hidden matrices and AdamW for the rest."""
    hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(
            hidden, lr=LEARNING_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(rest, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def loss_of(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """Return the mean loss over the targets; the vocabulary is read out only where one stands."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(
            input_ids=batch.ids,
            position_ids=batch.positions,
            attention_mask={"full_attention": batch.mask},
            use_cache=False,
        ).last_hidden_state
        wanted = batch.labels >= 0
        logits = model.lm_head(hidden[wanted])
    return functional.cross_entropy(logits.float(), batch.labels[wanted])


def schedule(step: int, n_steps: int) -> float:
    """Return the factor on the learning rate: a short rise, a plateau, a cosine."""
    warm = min(1.0, (step + 1) / 50)
    progress = step / n_steps
    if progress < DECAY_FROM:
        return warm
    tail = (progress - DECAY_FROM) / (1 - DECAY_FROM)
    return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * tail)))


def save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Write the model in bfloat16, with its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    copy = build_model(
        config.vocab_size, config.pad_token_id, config.eos_token_id, config.hidden_size
    )
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)
    save_tokenizer(folder)


@dataclass
class Training:
    """The state that a checkpoint saves."""

    model: Qwen3ForCausalLM
    optims: list[torch.optim.Optimizer]
    step: int = 0
    """Steps taken."""
    n_tokens: int = 0
    """Tokens seen, padding included."""
    seconds: float = 0.0
    """Time spent on the steps taken."""

    def keep(self, path: Path) -> None:
        """Write a checkpoint, whole or not at all."""
        state = {
            "model": self.model.state_dict(),
            "optims": [optim.state_dict() for optim in self.optims],
            "counts": (self.step, self.n_tokens, self.seconds),
        }
        partial = path.with_name(f"{path.name}.partial")
        torch.save(state, partial)
        partial.replace(path)

    def go_on_from(self, path: Path) -> None:
        """Take over a checkpoint."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optim, kept in zip(self.optims, state["optims"], strict=True):
            optim.load_state_dict(kept)
        self.step, self.n_tokens, self.seconds = state["counts"]


def train(n_steps: int, seed: int, out: Path, hidden: int) -> None:
    """Train and save; progress goes to the terminal."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    pad, end = tokenizer.convert_tokens_to_ids([PAD, END])
    model = build_model(len(tokenizer), pad, end, hidden)
    model.train()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    training = Training(model, optimizers(model))
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    if checkpoint.exists():
        training.go_on_from(checkpoint)
        print(f"going on after step {training.step} of {checkpoint}", flush=True)
    began = time.perf_counter() - training.seconds
    recent = 0.0
    for step, batch in batches(Packer(tokenizer), seed, n_steps, pad, training.step):
        for optim in training.optims:
            for group in optim.param_groups:
                group["lr"] = LEARNING_RATE * schedule(step, n_steps)
        loss = loss_of(model, batch)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim in training.optims:
            optim.step()
            optim.zero_grad(set_to_none=True)
        training.step, training.seconds = step + 1, time.perf_counter() - began
        training.n_tokens += batch.ids.numel()
        recent = 0.98 * recent + 0.02 * loss.item() if recent else loss.item()
        if step % 50 == 0 or training.step == n_steps:
            print(
                f"step {step} loss {recent:.4f} tokens {training.n_tokens:,} "
                f"{training.seconds / 60:.1f} min",
                flush=True,
            )
        if training.step % CHECKPOINT_EVERY == 0:
            training.keep(checkpoint)
    save(model, out)
    checkpoint.unlink(missing_ok=True)
    print(f"saved {out}", flush=True)


def main() -> None:
    """Parse the options and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--steps", type=int, help=f"training steps; by default {STEPS}, with --small {SMALL_STEPS}"
    )
    parser.add_argument("--seed", type=int, default=0, help="fixes weights and data")
    parser.add_argument("--out", type=Path, default=Path("my-reasoner"), help="folder to make")
    parser.add_argument(
        "--small", action="store_true", help="train a smaller one, of 233,600 parameters"
    )
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"--out {options.out} is there already: name another folder, or remove it")
    steps = options.steps or (SMALL_STEPS if options.small else STEPS)
    train(steps, options.seed, options.out, SMALL_HIDDEN if options.small else HIDDEN)


if __name__ == "__main__":
    main()
