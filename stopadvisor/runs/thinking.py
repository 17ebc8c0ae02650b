"""What the model thought, for people to read: ``thinking.jsonl``, next to a run's probes.

No figure is computed from it.  Imported probes have none, nor have runs of early versions.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.asking import RawTrace
from stopadvisor.runs.directory import THINKING
from stopadvisor.runs.storage import append, encode, finished_objects
from stopadvisor.workload.questions import Question

__all__ = ["KeptThinking", "keep_thinking", "read_thinking"]


@dataclass(frozen=True)
class KeptThinking:
    """The thinking of a question's first trace."""

    text: str
    characters: Mapping[int, int]
    """Characters before each probe, by its position in thinking tokens."""


def keep_thinking(folder: Path, questions: Sequence[Question], traces: Sequence[RawTrace]) -> None:
    """Append the thinking of some questions; of a question that is asked again, the last counts."""
    lines = []
    for question, trace in zip(questions, traces, strict=True):
        at = {p.budget: p.characters for p in trace.probes if not p.ended}
        line = {"id": question.id, "thinking": trace.thinking, "characters": at}
        lines.append(encode(json.dumps(line, ensure_ascii=False)) + b"\n")
    append(folder / THINKING, b"".join(lines))


def read_thinking(folder: Path, wanted: Container[str]) -> dict[str, KeptThinking]:
    """Read the thinking of the wanted questions, by id; those without any are left out.

    Raises
    ------
    ProbeError
        A whole line is not a line of thinking.
    """
    kept = {}
    for where, row in finished_objects(folder / THINKING):
        try:
            name, text, at = row["id"], str(row["thinking"]), row["characters"]
            if name in wanted:
                characters = {int(k): int(v) for k, v in at.items() if v is not None}
                kept[name] = KeptThinking(text, characters)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ProbeError(f"{where}: not a line of thinking") from error
    return kept
