"""Graded probes: one record a question, a line of ``probes.jsonl``.

This module opens no file: `runs` stores the records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from stopadvisor.errors import ProbeError

__all__ = ["Checkpoint", "ProbeRecord"]


@dataclass(frozen=True)
class Checkpoint:
    """One graded forced answer: the rows of ``checkpoints`` in ``probes.jsonl``."""

    budget: int
    answer: str
    normalized: str
    correct: bool
    mean_logprob: float
    mean_entropy: float
    entropy_source: str
    probe_tokens: int
    markers: float
    ended: bool
    visible_answer: str | None = None
    """Only with on-stop ``answer``, while the trace goes on; so are the next two."""
    visible_correct: bool | None = None
    visible_tokens: int | None = None
    tail_mass: float | None = None
    """Probability outside the top k, mean over the answer; only with a ``top-k`` entropy."""


_VISIBLE = ("visible_answer", "visible_correct", "visible_tokens")


@dataclass(frozen=True)
class ProbeRecord:
    """One line of ``probes.jsonl``."""

    id: str
    key: str
    group: str | None
    sample: int
    task: str
    category: str | None
    gold: str
    prompt_tokens: int
    suffix_tokens: int
    trace_tokens: int
    finish: str
    natural_answer: str | None
    natural_correct: bool
    natural_answer_tokens: int
    checkpoints: tuple[Checkpoint, ...]

    def to_json(self) -> str:
        """One line of JSON, keys in the order of the fields."""
        data = asdict(self)
        for row in data["checkpoints"]:
            if row["visible_tokens"] is None:
                for name in _VISIBLE:
                    del row[name]
            if row["tail_mass"] is None:
                del row["tail_mass"]
        return json.dumps(data, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> ProbeRecord:
        """Read a record back; `where` names file and line for the error message."""
        names = {f.name for f in fields(cls)}
        missing = sorted(names - set(data))
        if missing:
            raise ProbeError(f"{where}: field {missing[0]!r} is missing")
        try:
            checkpoints = tuple(Checkpoint(**row) for row in data["checkpoints"])
        except TypeError as error:
            raise ProbeError(f"{where}: field 'checkpoints': {error}") from error
        return cls(
            **{name: data[name] for name in names - {"checkpoints"}}, checkpoints=checkpoints
        )
