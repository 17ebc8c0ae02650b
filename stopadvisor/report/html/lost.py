"""Lost questions on the page: what the model thought, its probes along it, and who stops where.

Shows saved values; takes no more of a text than a page can hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from stopadvisor.report.figures.data import QuestionExample, TrajectoryStep
from stopadvisor.report.words import listed, share
from stopadvisor.rules.families import rule_name
from stopadvisor.runs.thinking import KeptThinking

__all__ = ["LostQuestion", "lost_question"]

_CHARACTERS = 12_000
"""Of one thinking, without those of its probes."""


@dataclass(frozen=True)
class _Piece:
    """KeptThinking up to a probe, and the probe; the middle of a long piece is left out."""

    head: str
    left_out: int
    """Characters."""
    tail: str
    probe: str
    """The probe in words; empty after the last one."""
    stops: bool
    """Whether a rule stops at it."""


@dataclass(frozen=True)
class LostQuestion:
    """One question as the template writes it."""

    example: QuestionExample
    title: str
    others: str
    """Where the other compared rules stop."""
    pieces: tuple[_Piece, ...]
    """Empty where the thinking was not kept."""


def lost_question(example: QuestionExample, kept: Mapping[str, KeptThinking]) -> LostQuestion:
    """Put a lost question into words."""
    stop = example.steps[example.stop]
    answer = "" if stop.answer is None else f" with {stop.answer!r}"
    gold = "" if example.gold is None else f"; {example.gold!r} is right"
    title = (
        f"{example.id}: stopped at {stop.budget} of {example.trace_tokens} thinking tokens"
        f"{answer}{gold}"
    )
    thinking = kept.get(example.id)
    pieces = () if thinking is None else _pieces(example, thinking)
    return LostQuestion(example, title, _others(example), pieces)


def _others(example: QuestionExample) -> str:
    told = []
    for other in example.others:
        verdict = "right" if other.correct else "wrong"
        does = "thinks to the end" if other.position is None else f"stops at {other.position}"
        told.append(f"{rule_name(other.family)} {does} ({verdict})")
    return f"At the same promise {listed(told)}." if told else ""


def _pieces(example: QuestionExample, thinking: KeptThinking) -> tuple[_Piece, ...]:
    """Cut the thinking at its probes."""
    stops: dict[int, list[str]] = {}
    for other in example.others:
        if other.position is not None:
            stops.setdefault(other.position, []).append(rule_name(other.family))
    at = example.steps[example.stop].budget
    stops.setdefault(at, []).insert(0, rule_name(example.family))
    steps = {step.budget: step for step in example.steps if not step.ended}
    known = thinking.characters
    positions = sorted(at for at in {*steps, *stops} if at in known)
    cuts = [0, *(known[at] for at in positions), len(thinking.text)]
    most = _CHARACTERS // (2 * len(cuts))
    probes = [(_probe(at, steps.get(at), stops.get(at, [])), at in stops) for at in positions]
    pieces = []
    for (start, end), (probe, stopping) in zip(pairwise(cuts), [*probes, ("", False)], strict=True):
        text = thinking.text[start:end]
        out = max(0, len(text) - 2 * most)
        head, tail = (text[:most], text[-most:]) if out else (text, "")
        pieces.append(_Piece(head, out, tail, probe, stopping))
    return tuple(pieces)


def _probe(at: int, step: TrajectoryStep | None, stops: list[str]) -> str:
    words = [f"{at} tokens"]
    if step is not None:
        answer = "answer" if step.answer is None else repr(step.answer)
        words.append(f"{answer} {'right' if step.correct else 'wrong'}")
        if step.confidence is not None:
            words.append(f"confidence {share(step.confidence)}")
    return ", ".join(words) + (f" | stops: {', '.join(stops)}" if stops else "")
