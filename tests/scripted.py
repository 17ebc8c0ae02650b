"""A scripted engine: whole trajectories from the question's key, in microseconds and without torch.

Questions are sums, so the engine itself can tell right from wrong.  Each question has a simulated
difficulty: where in its trace the running result becomes right, and whether it wavers.  Confidence
follows correctness with noise, as a real model's does.  Faults that the preflight must find are
switched on by name.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stopadvisor.engines import OutOfMemory
from stopadvisor.engines.chat import Chat
from stopadvisor.ground.constants import CUES
from stopadvisor.probes.asking import (
    Capabilities,
    Check,
    ProbePlan,
    Prompt,
    RawProbe,
    RawTrace,
    cue_text,
    is_open_cue,
)
from stopadvisor.probes.trigger import trace_positions

__all__ = ["FAULTS", "ScriptedEngine", "write_sums"]

FAULTS = (
    "never-closes",  # the closer is never seen
    "ends-unclosed",  # every third question's trace ends without the closer
    "no-thinking",  # traces are empty
    "brittle-cue",  # forced answers are no answers
    "disagrees",  # forced answers differ from natural ones
    "brittle-words",  # only the terse cue gets the same answers as full thinking
    "rambles",  # forced answers reach the cap
    "never-waits",  # no trace contains a marker
)

_SUM = re.compile(r"(\d+) \+ (\d+)")

WAIT = 5
"""Token id of the one word that the engine uses as a marker; it begins a line."""
_PIECE = re.compile(r"\nWait|.", re.DOTALL)


def write_sums(path: Path, n: int, *, start: int = 0, gold: bool = True) -> Path:
    """Write a workload of `n` sums that `ScriptedEngine` can answer."""
    rows = [
        {"id": f"q{i}", "question": f"What is {i} + {7 * i % 90}?"}
        | ({"gold": str(i + 7 * i % 90)} if gold else {})
        for i in range(start, start + n)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@dataclass
class ScriptedEngine:
    """An `Engine`; deterministic in key, sample and seed, whatever the batch."""

    revision: str = "r1"
    faults: frozenset[str] = frozenset()
    delay_s: float = 0.0
    """Seconds per batch, for tests that interrupt it."""
    context: int | None = None
    """Tokens that prompt, thinking and visible answer may have together."""
    memory: int | None = None
    """Largest batch that fits; a larger one raises `OutOfMemory`."""
    stop_after: int | None = None
    """Batches to answer before raising KeyboardInterrupt."""
    remarks: list[str] = field(default_factory=list)
    tells_tokens: bool = True
    """Whether it reports thinking tokens before it yields a trace."""
    closed: bool = False
    chat: Chat | None = None
    """Chat whose markers and template the preflight checks; None checks neither."""
    calls: list[tuple[tuple[str, ...], ProbePlan]] = field(default_factory=list)
    """Keys and plan of every batch that was asked."""

    def __post_init__(self) -> None:
        unknown = self.faults - set(FAULTS)
        assert not unknown, f"no such fault: {sorted(unknown)}"

    def identity(self) -> dict[str, Any]:
        return {
            "engine": "scripted",
            "engine_version": "1",
            "model": "tests/scripted",
            "model_revision": self.revision,
            "tokenizer_sha256": "0" * 64,
            "template_sha256": "1" * 64,
            "dtype": "float32",
            "attention": "none",
            "device": "cpu",
            "quantization": None,
            "think_open": {"text": "<think>", "ids": [1]},
            "think_close": {"text": "</think>", "ids": [2]},
            "stop_ids": [0],
            "chat_template_kwargs": {},
        }

    def encode(self, text: str) -> list[int]:
        return [WAIT if piece == "\nWait" else 1000 + ord(piece) for piece in _PIECE.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        words = {i: chr(i - 1000) if i >= 1000 else f" w{i - 10}" for i in ids} | {WAIT: "\nWait"}
        return "".join(words[i] for i in ids)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def temperature(self, plan: ProbePlan) -> float:
        return 0.0 if plan.greedy else plan.temperature or 1.0

    def prompt_checks(self, prompts: Sequence[Prompt]) -> list[Check]:
        chat = self.chat
        return [] if chat is None else [chat.check_markers(), chat.check_template(prompts)]

    def engine_checks(self, prompt: Prompt, plan: ProbePlan) -> list[Check]:
        return []

    def close(self) -> None:
        self.closed = True

    def suffix_ids(self, cue: str) -> list[int]:
        closer = [] if is_open_cue(cue) else [2]
        return [*closer, *(3 + ord(c) % 7 for c in cue_text(cue))]

    def longest_thinking(self, prompts: Sequence[Prompt], plan: ProbePlan) -> int:
        if self.context is None:
            return plan.max_think
        room = self.context - plan.answer_cap - max(map(_prompt_tokens, prompts))
        return min(room, plan.max_think)

    def auto_batch_size(self, plan: ProbePlan) -> int:
        return 16

    def probe_each(
        self,
        prompts: Sequence[Prompt],
        plan: ProbePlan,
        on_tokens: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[int, RawTrace]]:
        for number, trace in enumerate(self.probe(prompts, plan)):
            if on_tokens is not None and self.tells_tokens:
                on_tokens(trace.trace_tokens)
            yield number, trace

    def probe(self, prompts: Sequence[Prompt], plan: ProbePlan) -> list[RawTrace]:
        if self.stop_after is not None and len(self.calls) >= self.stop_after:
            raise KeyboardInterrupt
        self.calls.append((tuple(p.key for p in prompts), plan))
        if self.memory is not None and len(prompts) > self.memory:
            raise OutOfMemory(f"scripted: {len(prompts)} questions do not fit")
        time.sleep(self.delay_s)
        return [self._trace(prompt, plan) for prompt in prompts]

    def _trace(self, prompt: Prompt, plan: ProbePlan) -> RawTrace:
        asked = _SUM.search(prompt.messages[-1]["content"])
        assert asked, "the scripted engine answers sums only"
        truth = int(asked[1]) + int(asked[2])
        seed = [int(prompt.key[:15], 16), prompt.sample, plan.seed, 0]
        rng = np.random.default_rng(seed)
        script = _Script.draw(rng, truth)
        words = script.words if "no-thinking" not in self.faults else []
        length = min(len(words), plan.max_think)
        closed = length == len(words) and "never-closes" not in self.faults
        answers = closed and not ("ends-unclosed" in self.faults and seed[0] % 3 == 0)
        natural = script.result(1.0)
        if "never-waits" in self.faults:
            words = [f"w{i}" for i in range(len(words))]
        ids = tuple(WAIT if word == "wait" else 10 + int(word[1:]) for word in words[:length])
        at = trace_positions(plan, ids)
        probes = tuple(self._probe(script, words[:length], b, closed, plan) for b in at.probed)
        return RawTrace(
            prompt_tokens=_prompt_tokens(prompt),
            suffix_tokens=len(self.suffix_ids(plan.cue)),
            trace_tokens=length,
            finish="stop" if closed else "length",
            thinking=" ".join(words[:length]),
            natural_text=f"It is so.\nFinal answer: {natural}" if answers else None,
            natural_tokens=9 if answers else 0,
            probes=probes,
            thinking_ids=ids,
            marker_positions=at.markers,
        )

    def _probe(
        self, script: _Script, words: Sequence[str], budget: int, closed: bool, plan: ProbePlan
    ) -> RawProbe:
        seen = min(budget, len(words))
        prefix = words[:seen]
        share = 1.0 if closed and seen == len(words) else seen / max(1, len(script.words))
        answer = script.result(share)
        if "disagrees" in self.faults or (
            "brittle-words" in self.faults and plan.cue != CUES["terse"]
        ):
            answer += 1
        logprob, entropy = script.confidence(share)
        tail = None if plan.entropy == "full" else 0.1
        ended = len(words) <= budget
        written = None
        if plan.on_stop == "answer" and not ended:
            # Writing out helps: this is the model's result a little later.
            written = f"It is so.\nFinal answer: {script.result(min(1.0, share + 0.15))}"
        text = "I am not sure" if "brittle-cue" in self.faults else f" {answer}"
        return RawProbe(
            budget=budget,
            think_tokens=seen,
            text=text,
            mean_logprob=logprob,
            mean_entropy=entropy,
            probe_tokens=plan.cap if "rambles" in self.faults else len(str(answer)) + 1,
            markers=prefix.count("wait"),
            ended=ended,
            tail_mass=tail,
            visible_text=written,
            visible_tokens=0 if written is None else 7 + budget % 3,
            closed_by_itself=script.right(share) and logprob > -0.2
            if is_open_cue(plan.cue)
            else None,
            characters=len(" ".join(prefix)),
        )


def _prompt_tokens(prompt: Prompt) -> int:
    return len(prompt.messages[-1]["content"].split()) + 4


@dataclass(frozen=True)
class _Script:
    """What one trace will do, before it is cut anywhere."""

    words: list[str]
    truth: int
    turns: tuple[float, ...]
    """Shares of the trace at which the running result changes between wrong and right."""
    starts_right: bool
    noise: tuple[float, ...]

    @classmethod
    def draw(cls, rng: np.random.Generator, truth: int) -> _Script:
        length = int(rng.integers(20, 120))
        words = ["wait" if rng.random() < 0.05 else f"w{i}" for i in range(length)]
        kind = rng.choice(["early", "beneficial", "harmful", "unsolved", "oscillating"],
                          p=[0.35, 0.35, 0.08, 0.1, 0.12])  # fmt: skip
        turns = {"early": 0, "beneficial": 1, "harmful": 1, "unsolved": 0, "oscillating": 3}[kind]
        return cls(
            words=words,
            truth=truth,
            turns=tuple(sorted(rng.random(turns))),
            starts_right=bool(kind in ("early", "harmful")),
            noise=tuple(rng.normal(0, 0.25, 8)),
        )

    def right(self, share: float) -> bool:
        changes = sum(turn <= share for turn in self.turns)
        return self.starts_right ^ bool(changes % 2)

    def result(self, share: float) -> int:
        wrong = self.truth + 10 + sum(turn <= share for turn in self.turns)
        return self.truth if self.right(share) else wrong

    def confidence(self, share: float) -> tuple[float, float]:
        level = 1.2 * self.right(share) + share + self.noise[round(share * 7)]
        logprob = -float(np.log1p(np.exp(-level)))
        return logprob, float(-1.5 * logprob)
