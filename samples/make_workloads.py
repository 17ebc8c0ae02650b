"""Write the three sample workloads: ``python samples/make_workloads.py``.

Every question comes from the held-out tenth that training never draws, and none occurs twice.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

from questions import KINDS, Question, border_distance, draw

SIZES = {"arithmetic": 600, "choice": 500, "hard": 300}
"""Questions per workload."""

SEEDS = {"arithmetic": 101, "choice": 102, "hard": 103}

OPERANDS = {"arithmetic": (3, 7), "choice": (3, 5), "hard": (6, 8)}
"""Fewest and most operands of each workload's questions."""

SMALLEST = {"arithmetic": 4, "choice": 1, "hard": 1}
"""Smallest operand: without small ones, fewer sums are solved before the first thought."""

BORDER = 6
"""Results of choice questions lie at most this far from the end of a range: others are too easy."""


def workload(kind: str, size: int | None = None) -> list[dict[str, str]]:
    """Return a workload's rows, or its first `size` rows: a longer list starts the same way."""
    rng = Random(SEEDS[kind])
    seen: set[str] = set()
    rows: list[dict[str, str]] = []
    while len(rows) < (SIZES[kind] if size is None else size):
        question = draw(kind, rng, held_out=True, operands=OPERANDS[kind], smallest=SMALLEST[kind])
        if kind == "choice" and border_distance(question.value) > BORDER:
            continue
        if question.text not in seen:
            seen.add(question.text)
            rows.append(row(question, f"{kind}-{len(rows):04d}"))
    return rows


def row(question: Question, identifier: str) -> dict[str, str]:
    """Return one workload line as an object."""
    return {
        "id": identifier,
        "question": question.text,
        "gold": question.gold,
        "task": question.task,
        "category": question.category,
    }


def main() -> None:
    """Write all three files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write")
    folder = parser.parse_args().out
    for kind in KINDS:
        path = folder / f"{kind}.jsonl"
        lines = [json.dumps(item) + "\n" for item in workload(kind)]
        path.write_text("".join(lines), encoding="utf-8")
        print(f"{path}: {len(lines)} questions")


if __name__ == "__main__":
    main()
