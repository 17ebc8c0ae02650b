"""Table and picture of the study `rivals` on recorded traces of real models.

Run from the repository root: ``python -m tests.benchmarks.real_picture samples/pictures/rivals.svg
[--splits N]``.  Runs are made as `tests.benchmarks.real_runs` makes them, one trace a question;
three minutes of CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # before numpy is imported
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from stopadvisor.cli.main import main as stopadvisor  # noqa: E402
from stopadvisor.report.html.charts import COLOURS, SERIES, style  # noqa: E402
from stopadvisor.studies.rivals import OURS  # noqa: E402
from tests.benchmarks.real_runs import write_run  # noqa: E402

ALPHAS = (0.05, 0.10)
RUNS = {
    "Qwen3-8B, text": ("qwen3-8b", False),
    "R1-Distill-7B, text": ("r1-qwen-7b", False),
    "R1-Distill-7B, “Wait”": ("r1-qwen-7b", True),
}
_MARKS = "svDo"

Rows = Sequence[Mapping[str, Any]]


def measured(folder: Path, splits: int) -> dict[str, Rows]:
    """Rows of the study's table by model and risk, as the picture names them."""
    found: dict[str, Rows] = {}
    runs = {name: write_run(folder, model, 0, waits=w) for name, (model, w) in RUNS.items()}
    for name, run in runs.items():
        for alpha in ALPHAS:
            words = ["--alpha", str(alpha), "--set", f"splits={splits}", "--open-calibration"]
            with redirect_stdout(StringIO()):
                failed = stopadvisor(["study", "rivals", str(run), *words, "--quiet"])
            if failed:
                raise RuntimeError(f"{run}: the study failed")
            document = json.loads((run / "studies" / "rivals.json").read_text(encoding="utf-8"))
            (table,) = document["tables"]
            keys = [column["name"] for column in table["columns"]]
            rows = [dict(zip(keys, row, strict=True)) for row in table["rows"]]
            found[f"{name}, α = {alpha:.2f}"] = rows
    return found


def _rules(found: Mapping[str, Rows]) -> list[str]:
    """Names of all rules, ours last."""
    names = dict.fromkeys(row["rule"] for rows in found.values() for row in rows)
    return sorted(names, key=lambda name: name == OURS)


def draw(found: Mapping[str, Rows]) -> Figure:
    """Every rule's saving with its interval, a line for each model and risk."""
    rules = _rules(found)
    figure = Figure(figsize=(7.2, 0.62 * len(found) + 1.3), layout="constrained")
    axes = figure.add_subplot()
    for number, rule in enumerate(rules):
        own = [
            (len(found) - line - 0.17 * (number - 1.5), row)
            for line, rows in enumerate(found.values())
            for row in rows
            if row["rule"] == rule
        ]
        places = [place for place, _ in own]
        mean, low, high = (
            np.array([row[f"saving_{end}"] for _, row in own]) for end in ("pct", "low", "high")
        )
        axes.errorbar(
            mean,
            places,
            xerr=[mean - low, high - mean],
            fmt=_MARKS[number],
            color=COLOURS[SERIES[0] if rule == OURS else SERIES[1 + number]],
            label=rule,
            markersize=6,
            elinewidth=1.2,
        )
    axes.set_yticks(range(len(found), 0, -1), list(found))
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("net saving on held-out questions, %, with 95 % intervals")
    figure.legend(loc="outside upper center", ncols=len(rules))
    return figure


def table(found: Mapping[str, Rows]) -> str:
    """The same in Markdown."""
    rules = _rules(found)
    lines = [
        f"| | {' | '.join(rules)} | on traces not cut off | ahead of the best simple rule, 95 % |",
        "|---" * (len(rules) + 3) + "|",
    ]
    for name, rows in found.items():
        by_rule = {row["rule"]: row for row in rows}
        simple = [row for row in rows if row["rule"] != OURS]
        best = max(simple, key=lambda row: row["saving_pct"])
        cells = [f"{by_rule[r]['saving_pct']:.1f}" if r in by_rule else "" for r in rules]
        ahead = f"{best['ahead_pp']:+.1f} [{best['ahead_low']:+.1f}, {best['ahead_high']:+.1f}]"
        uncut = f"{by_rule[OURS]['uncut_saving_pct']:.1f}"
        lines.append(f"| {name} | {' | '.join(cells)} | {uncut} | {ahead} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.real_picture")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--splits", type=int, default=30)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        found = measured(Path(folder), options.splits)
    print(table(found))
    with style("rivals"):
        draw(found).savefig(
            options.picture, format="svg", facecolor="white", metadata={"Date": None}
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
