"""What a call of probing, or of recording a ladder, did: `probe --json`.  Knows no outcome."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stopadvisor.workload.questions import PartCounts

__all__ = ["ProbeSummary", "RecordedRung"]


@dataclass(frozen=True)
class RecordedRung:
    """Replies of one rung in a run."""

    name: str
    """As `ladder.toml` calls it."""
    samples: int
    """Of each question."""
    cut: int
    """Replies that did not end by themselves."""
    mean_tokens: float
    """Of a reply, thinking and answer."""


@dataclass(frozen=True)
class ProbeSummary:
    """`probe --json`: what the run holds now, and what this call added."""

    run: Path
    """Where the probes are."""
    questions: int
    """In the run, earlier ones included."""
    traces: int
    """In the run: several per question with `--samples`."""
    new: int
    """Traces that this call added; of a ladder questions."""
    schedule: str
    """`grid`, `stride`, `marker`, or `ladder` where whole replies were asked for."""
    budgets: tuple[int, ...]
    """Thinking tokens at each checkpoint; of a stride or next to markers, in traces of that
    length."""
    every: int | None
    """Distance of the budgets of a stride, null if they were named."""
    markers: tuple[str, ...]
    """Words before which the run probes; empty unless `marker`."""
    max_think: int
    """Cap on thinking tokens."""
    truncated_share: float
    """Share of the traces that were cut off."""
    seconds: float
    """That this call took."""
    split: PartCounts
    """Questions in each part."""
    rungs: tuple[RecordedRung, ...] = ()
    """Of a ladder; empty where traces are probed."""
