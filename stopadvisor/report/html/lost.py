"""Lost questions on the page: what the model thought, its probes along it, and who stops where.

Shows saved values; takes no more of a text than a page can hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from stopadvisor.report.figures import QuestionExample, TrajectoryStep
from stopadvisor.report.words import listed, share
from stopadvisor.rules.families import rule_name
from stopadvisor.runs.directory import KeptThinking

__all__ = ["LostQuestion", "lost_question"]

_CHARACTERS = 12_000
"""Of one thinking, without those of its probes."""


@dataclass(frozen=True)
class _Piece:
    """The thinking up to a probe, and the probe; the middle of a long piece is left out."""

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

    id: str
    title: str
    question: str | None
    others: str
    """Where the other compared rules stop."""
    pieces: tuple[_Piece, ...]


def lost_question(example: QuestionExample, kept: KeptThinking | None) -> LostQuestion:
    """Put a lost question into words; without its thinking the probes alone."""
    stop = example.steps[example.stop]
    answer = "" if stop.answer is None else f" with {stop.answer!r}"
    gold = "" if example.gold is None else f"; {example.gold!r} is right"
    title = (
        f"{example.id}: stopped at {stop.budget} of {example.trace_tokens} thinking tokens"
        f"{answer}{gold}"
    )
    told = []
    for other in example.others:
        verdict = "right" if other.correct else "wrong"
        does = "thinks to the end" if other.position is None else f"stops at {other.position}"
        told.append(f"{rule_name(other.family)} {does} ({verdict})")
    others = f"At the same promise {listed(told)}." if told else ""
    return LostQuestion(example.id, title, example.question, others, _pieces(example, kept))


def _pieces(example: QuestionExample, kept: KeptThinking | None) -> tuple[_Piece, ...]:
    """Cut the thinking at its probes, and where a rule stops without one."""
    stops = {example.steps[example.stop].budget: [rule_name(example.family)]}
    for other in example.others:
        if other.position is not None:
            stops.setdefault(other.position, []).append(rule_name(other.family))
    steps = {step.budget: step for step in example.steps}
    positions = sorted({*steps, *stops})
    text, known = "", dict.fromkeys(positions, 0)
    if kept is not None:
        text, known = kept.text, dict(kept.characters)
        positions = [at for at in positions if at in known]
    cuts = [0, *(known[at] for at in positions), len(text)]
    most = _CHARACTERS // (2 * len(cuts))
    probes = [(_probe(at, steps.get(at), stops.get(at, [])), at in stops) for at in positions]
    pieces = []
    for (start, end), (probe, stopping) in zip(pairwise(cuts), [*probes, ("", False)], strict=True):
        thought = text[start:end]
        out = max(0, len(thought) - 2 * most)
        head, tail = (thought[:most], thought[-most:]) if out else (thought, "")
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
