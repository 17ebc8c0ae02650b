"""The result of `probe`, of a model or a ladder.  Knows no outcome."""

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
    """Replies of this rung to each question."""
    cut: int
    """Replies that did not end by themselves."""
    mean_tokens: float
    """Tokens of a reply, thinking and answer, on average."""


@dataclass(frozen=True)
class ProbeSummary:
    """`probe --json`: what the run holds now, and what this call added."""

    run: Path
    """Where the probes are."""
    questions: int
    """Questions in the run, earlier ones included."""
    traces: int
    """Traces in the run, several per question with `--samples`; of a ladder, replies."""
    new: int
    """Traces that this call added; of a ladder, questions."""
    schedule: str
    """`grid`, `stride`, `marker`, or `ladder` where whole replies were asked for."""
    budgets: tuple[int, ...]
    """Thinking tokens at each checkpoint; with a stride or markers, only in traces that long."""
    every: int | None
    """Distance of the budgets of a stride, null if they were named."""
    markers: tuple[str, ...]
    """Words before which the run probes; empty unless `marker`."""
    max_think: int
    """Cap on thinking tokens."""
    truncated_share: float
    """Share of the traces that were cut off."""
    seconds: float
    """Time that this call took."""
    split: PartCounts
    """Questions in each part."""
    rungs: tuple[RecordedRung, ...] = ()
    """Rungs of a ladder; empty if a model was probed."""
