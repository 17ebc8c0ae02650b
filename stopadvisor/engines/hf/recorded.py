"""Recorded traces read into a kept cache, where probes branch off as from drawn ones.

A trace costs a pass over its tokens, many at a time, and no step for each.  Knows no probes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stopadvisor.engines.hf.runner import Runner
from stopadvisor.engines.hf.traces import Finished, Kept
from stopadvisor.engines.recorded import RecordedIds

__all__ = ["read_traces"]


def read_traces(
    runner: Runner, prompts: list[list[int]], traces: Sequence[RecordedIds], pad_id: int
) -> Finished:
    """Read prompts with their traces; all rows are finished."""
    thinking = [list(trace.ids[: trace.thinking]) for trace in traces]
    cache, pads, _ = runner.prefill(prompts, pad_id, behind=thinking)
    n_rows, longest = len(traces), max(len(trace.ids) for trace in traces)
    ids = np.zeros((n_rows, longest), dtype=np.int64)
    for row, trace in zip(ids, traces, strict=True):
        row[: len(trace.ids)] = trace.ids
    return Finished(
        rows=np.arange(n_rows),
        ids=ids,
        trace_tokens=np.array([trace.thinking for trace in traces]),
        closed=np.array([trace.closed for trace in traces]),
        cut=np.array([trace.cut for trace in traces]),
        total_tokens=np.array([len(trace.ids) for trace in traces]),
        kept=Kept(cache, pads, max(map(len, prompts))),
    )
