"""Recorded traces of real models, imported as runs by `stopadvisor import probes`.

Run from the repository root: ``python -m tests.benchmarks.real_runs FOLDER [--model NAME]
[--number K] [--waits]`` writes the lines and imports them.  MATH-500 alone, one trace a question.

Answers are known by their numbers only, so a number is an answer's text, and no answer is an empty
one.  Trial answers at a "Wait" have a numbering of their own: but for the right one they are other
texts than the answers on the grid, so that the two are never taken for the same wrong answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stopadvisor.cli.main import main as stopadvisor
from tests.benchmarks.real_traces import (
    MODELS,
    PASSES,
    WAIT_MODEL,
    Traces,
    Waits,
    load_traces,
    load_waits,
)

__all__ = ["CAP", "SUFFIX_TOKENS", "lines", "main", "write_run"]

CAP = 16_384
"""Thinking and answer together end here."""
SUFFIX_TOKENS = 8
"""Tokens that ask for an answer at each probe, as `tests.benchmarks.real` counts them."""


def lines(model: str, number: int, *, waits: bool = False) -> Iterator[dict[str, Any]]:
    """One pass over MATH-500 as lines for `import probes`, in the order of `load_traces`.

    Parameters
    ----------
    waits : bool
        The 400 questions that were also asked at each "Wait": at the union of the grid and the
        first "Wait"s.  Where both stand at one position the trial answer with its log-probability
        is taken.
    """
    traces = load_traces(model, number, with_waits=waits)
    found = load_waits(number) if waits else None
    for row in np.flatnonzero(traces.certified).tolist():
        checkpoints = _on_grid(traces, row)
        line = _line(traces, row)
        if found is not None:
            places = found.positions[row][found.live[row]].tolist()
            checkpoints |= _at_waits(traces, found, row)
            line["marker_positions"] = places
        line["checkpoints"] = [checkpoints[budget] for budget in sorted(checkpoints)]
        yield line


def _line(traces: Traces, row: int) -> dict[str, Any]:
    think = min(int(traces.think_tokens[row]), CAP)
    return {
        "id": traces.questions[row],
        "task": "exact",
        "prompt_tokens": int(traces.prompt_tokens[row]),
        "trace_tokens": think,
        "finish": "length" if traces.truncated[row] else "stop",
        "natural_answer": _text(int(traces.full_codes[row])) or None,
        "natural_correct": bool(traces.full_correct[row]),
        # Lengths of thinking are estimates, which may lie a little after the counted end.
        "natural_answer_tokens": max(int(traces.total_tokens[row]) - think, 0),
    }


def _text(code: int, prefix: str = "") -> str:
    if code < 1:
        return ""
    return "1" if code == 1 else f"{prefix}{code}"


def _on_grid(traces: Traces, row: int) -> dict[int, dict[str, Any]]:
    # At the cap thinking is over; `load_traces` counts an answer there as one on the way.
    places = np.flatnonzero(traces.live[row] & (traces.positions < CAP))
    return {
        int(traces.positions[j]): {
            "budget": int(traces.positions[j]),
            "answer": _text(int(traces.codes[row, j])),
            "correct": bool(traces.codes[row, j] == 1),
            "probe_tokens": int(traces.probe_tokens[row, j]),
            "markers": int(traces.markers[row, j]),
        }
        for j in places.tolist()
    }


def _at_waits(traces: Traces, waits: Waits, row: int) -> dict[int, dict[str, Any]]:
    found = {}
    for j in np.flatnonzero(waits.live[row]).tolist():
        budget = int(waits.positions[row, j])
        before = int(np.searchsorted(traces.positions, budget, side="right")) - 1
        code = int(waits.codes[row, j])
        found[budget] = {
            "budget": budget,
            "answer": _text(code, "w"),
            "correct": code == 1,
            "probe_tokens": int(waits.probe_tokens[row, j]),
            "mean_logprob": float(waits.mean_logprob[row, j]),
            # Words of doubt were counted on the grid alone.
            "markers": int(traces.markers[row, before]) if before >= 0 else 0,
        }
    return found


def write_run(folder: Path, model: str, number: int, *, waits: bool = False) -> Path:
    """Write the lines of one pass, and import them; the run directory."""
    name = f"{model}-{'waits' if waits else 'text'}-{number}"
    source = folder / f"{name}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    rows = lines(model, number, waits=waits)
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    words = ["--max-think", str(CAP), "--suffix-tokens", str(SUFFIX_TOKENS), "--quiet"]
    if stopadvisor(["import", "probes", str(source), "-o", str(folder / name), *words]):
        raise RuntimeError(f"{source} was not imported")
    return folder / name


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.real_runs")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=MODELS, default=WAIT_MODEL)
    parser.add_argument("--number", type=int, choices=range(len(PASSES)), default=0)
    parser.add_argument("--waits", action="store_true", help=f"of {WAIT_MODEL} alone")
    options = parser.parse_args()
    if options.waits and options.model != WAIT_MODEL:
        parser.error(f"--waits: {WAIT_MODEL} alone was asked at each Wait")
    write_run(options.folder, options.model, options.number, waits=options.waits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
