"""The recorded traces of `samples/recorded/real` as arrays, one trace for each question.

The README next to the files says what was recorded, by whom, and how it may be used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray

__all__ = [
    "HALVES",
    "MODELS",
    "PASSES",
    "RECORDED",
    "WAIT_MODEL",
    "Traces",
    "Waits",
    "half_of",
    "load_traces",
    "load_waits",
]

RECORDED = Path(__file__).resolve().parents[2] / "samples" / "recorded" / "real"
MODELS = ("qwen3-8b", "r1-qwen-7b")
WAIT_MODEL = "r1-qwen-7b"
"""The model that was also asked, with log-probabilities, at each "Wait"."""
PASSES = ((42, 45), (43, 46), (44, 47))
"""Seeds that together hold one trace of every question."""
HALVES = ("develop", "report")
_CALIBRATED = "math500"
_SHIFTED = ("amc23", "aime24")


def half_of(question: str) -> str:
    """The half that a question belongs to: ``develop`` where sha256 of its name begins even.

    Rules are worked out on one half; what is reported comes from the other, and from all.
    """
    return HALVES[hashlib.sha256(question.encode()).digest()[0] % 2]


@dataclass(frozen=True)
class Traces:
    """One trace for each question, with its forced answers."""

    questions: tuple[str, ...]
    certified: BoolArray  # (n_questions,)
    """MATH-500.  The others are harder, and too few to be certified on: AMC23 and AIME24."""
    positions: IntArray  # (n_positions,)
    """Thinking tokens before each forced answer."""
    codes: IntArray  # (n_questions, n_positions)
    """0 none, 1 right, 2… other answers; -1 where thinking is over."""
    probe_tokens: IntArray  # (n_questions, n_positions)
    markers: IntArray  # (n_questions, n_positions)
    think_tokens: IntArray  # (n_questions,)
    total_tokens: IntArray  # (n_questions,)
    prompt_tokens: IntArray  # (n_questions,)
    truncated: BoolArray  # (n_questions,)
    full_correct: BoolArray  # (n_questions,)
    full_codes: IntArray  # (n_questions,)
    """The model's own answer after all its thinking, numbered as `codes`; 0 for none."""

    @property
    def live(self) -> BoolArray:
        """Where the model is still thinking; shape (n_questions, n_positions)."""
        return self.codes >= 0

    def full_cost(self, prefill: float) -> FloatArray:
        """Cost of full thinking, a decoded token counting 1; shape (n_questions,)."""
        return self.total_tokens + prefill * self.prompt_tokens

    def rows_of(self, half: str) -> IntArray:
        """Rows of MATH-500 in a half; ``all`` for every one."""
        wanted = [half in ("all", half_of(question)) for question in self.questions]
        return np.flatnonzero(self.certified & np.array(wanted))


@dataclass(frozen=True)
class Waits:
    """Trial answers at the first places where a trace says "Wait"."""

    positions: IntArray  # (n_questions, n_waits)
    """Thinking tokens before each; -1 beyond the last."""
    codes: IntArray  # (n_questions, n_waits)
    mean_logprob: FloatArray  # (n_questions, n_waits)
    probe_tokens: IntArray  # (n_questions, n_waits)

    @property
    def live(self) -> BoolArray:
        """Where there is a "Wait"; shape (n_questions, n_waits)."""
        return self.positions >= 0


_VECTORS = (
    "think_tokens",
    "total_tokens",
    "prompt_tokens",
    "truncated",
    "full_correct",
    "full_code",
)


@cache
def load_traces(model: str, number: int, *, with_waits: bool = False) -> Traces:
    """One pass over the questions.

    Parameters
    ----------
    model : str
        One of `MODELS`.
    number : int
        Which of `PASSES`.
    with_waits : bool
        Only the 400 questions that `load_waits` holds, in its order; none of AMC23 and AIME24.
    """
    datasets = (_CALIBRATED,) if with_waits else (_CALIBRATED, *_SHIFTED)
    seeds = PASSES[number][:1] if with_waits else PASSES[number]
    parts = [_read(f"{model}__{name}__seed{seed}") for name in datasets for seed in seeds]
    longest = max(parts, key=lambda part: part["positions"].size)["positions"]

    def matrix(name: str, beyond: int) -> IntArray:
        rows = [
            np.pad(
                part[name].astype(np.int64),
                ((0, 0), (0, longest.size - part[name].shape[1])),
                constant_values=beyond,
            )
            for part in parts
        ]
        return np.concatenate(rows)

    def vector(name: str) -> IntArray:
        return np.concatenate([part[name] for part in parts]).astype(np.int64)

    vectors = {name: vector(name) for name in _VECTORS}
    codes = matrix("code", -1)
    questions = tuple(str(name) for part in parts for name in part["question"])
    return Traces(
        questions,
        np.array([name.startswith(_CALIBRATED) for name in questions]),
        longest.astype(np.int64),
        codes,
        matrix("probe_tokens", 0),
        matrix("markers", 0),
        _ends(vectors["think_tokens"], codes, longest.astype(np.int64)),
        vectors["total_tokens"],
        vectors["prompt_tokens"],
        vectors["truncated"].astype(bool),
        vectors["full_correct"].astype(bool),
        vectors["full_code"],
    )


@cache
def load_waits(number: int) -> Waits:
    """Trial answers at "Wait" of `WAIT_MODEL`, in the rows of `load_traces` with `with_waits`."""
    part = _read(f"deer__{WAIT_MODEL}__{_CALIBRATED}__seed{PASSES[number][0]}")
    questions = load_traces(WAIT_MODEL, number, with_waits=True).questions
    if tuple(str(name) for name in part["question"]) != questions:
        raise ValueError(f"pass {number}: trial answers and traces name different questions")
    return Waits(
        part["position"].astype(np.int64),
        part["code"].astype(np.int64),
        part["mean_logprob"].astype(np.float64),
        part["out_tokens"].astype(np.int64),
    )


def _ends(think_tokens: IntArray, codes: IntArray, positions: IntArray) -> IntArray:
    """Lengths of thinking that agree with where an answer could be forced.

    The recorded lengths are estimates; a few lie on the wrong side of a position.
    """
    live = (codes >= 0).sum(axis=1)
    last = np.where(live > 0, positions[np.maximum(live - 1, 0)], 0)
    over = np.append(positions, np.iinfo(np.int64).max)[live]
    return np.clip(think_tokens, last + 1, over)


def _read(name: str) -> Mapping[str, np.ndarray]:
    with np.load(RECORDED / f"{name}.npz", allow_pickle=False) as file:
        return {array: file[array] for array in file.files}
