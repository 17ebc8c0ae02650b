"""From questions without gold to a certificate: ``python samples/few_labels.py FOLDER``.

Probes new questions of a sample workload, of which StopAdvisor sees no gold; labels those that it
asks for, from the gold that it does not see; and certifies lost answers.  A copy of the run with a
label for every calibration question says what all of them would have certified.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from make_workloads import workload
from map import SAMPLES, stopadvisor

N_QUESTIONS = 2000
ALPHA = 0.05
PLANNED = 60
"""Labels; a third more may be worth asking for."""
A_SHEET = 40
"""Questions on one: what is asked next depends on the answers."""
SHEETS = 2


def write_lines(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write a JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def cpu_minutes() -> float:
    """CPU time of the commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60


def label(run: Path, golds: Mapping[str, str]) -> int:
    """Fill in two sheets, or fewer where no more labels are worth asking for; how many."""
    ask = ("label", run, "--alpha", str(ALPHA), "--quiet")
    for number in range(1, SHEETS + 1):
        sheet = run.parent / f"sheet-{number}.jsonl"
        if not sheet.exists():  # else the script was stopped after writing it
            to_fill = ("--labels", str(PLANNED), "--export", sheet, "--limit", str(A_SHEET))
            stopadvisor(*ask, *to_fill)
        rows = [json.loads(line) for line in sheet.read_text(encoding="utf-8").splitlines()]
        if not rows:
            return number - 1
        typed = [{"id": row["id"], "gold": golds[row["id"]]} for row in rows]
        filled = write_lines(run.parent / f"filled-{number}.jsonl", typed)
        stopadvisor(*ask, "--import", filled)
    return SHEETS


def main() -> None:
    """Run the example and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where everything goes; the same one goes on")
    parser.add_argument("--kind", choices=("arithmetic", "choice"), default="arithmetic")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()
    started = time.monotonic()

    rows = workload(options.kind, N_QUESTIONS)
    golds = {row["id"]: row["gold"] for row in rows}
    asked = [{name: row[name] for name in ("id", "question", "task")} for row in rows]
    questions, run = write_lines(folder / "questions.jsonl", asked), folder / "run"
    stopadvisor("probe", questions, "--model", SAMPLES / "tiny-reasoner", "--out", run)
    probed = cpu_minutes()
    whole = folder / "apart" / "run"
    if not whole.exists():
        shutil.copytree(run, whole)

    n_sheets = label(run, golds)
    calibrate = ("--alpha", str(ALPHA), "--loss", "lost", "--quiet")
    few = stopadvisor("calibrate", run, *calibrate)
    spent, minutes = cpu_minutes(), (time.monotonic() - started) / 60

    all_gold = write_lines(folder / "all.jsonl", [{"id": i, "gold": g} for i, g in golds.items()])
    stopadvisor("label", whole, "--alpha", str(ALPHA), "--quiet", "--import", all_gold)
    full = stopadvisor("calibrate", whole, *calibrate)
    for name, document in (("few labels", few), ("all labels", full)):
        if not document["certified"]:
            raise SystemExit(f"{name}: {document['refusal']['reason']}")
        expected, certificate = document["expected"], document["certificate"]
        print(
            f"{name}: {document['labels']['used']} used of {certificate['n']} calibration "
            f"questions; {certificate['losses']} lost; saves "
            f"{expected['calibration_total_saving_pct']:.1f} % by {document['family']} at "
            f"{document['threshold']:.6g}"
        )
    print(
        f"{n_sheets} sheets; {spent:.1f} min of CPU time, {probed:.1f} of them for probing; "
        f"{minutes:.1f} min by the clock"
    )


if __name__ == "__main__":
    main()
