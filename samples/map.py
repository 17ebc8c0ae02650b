"""Draw the map of the three workloads: ``python samples/map.py``.

Runs `assess` and `calibrate` on each workload, and the paper's protocol on a grid.  The results are
written between the markers of ``samples/README.md``; with ``--policies`` the policies and the
probes behind them go to ``policies/``, and so does the table there.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from signals import aurocs
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.probes.trajectories import TYPES, classify, trajectory
from stopadvisor.rules.scorer import grid_view
from stopadvisor.runs.directory import MANIFEST, PROBES, RunDirectory

SAMPLES = Path(__file__).resolve().parent
POLICIES = SAMPLES.parent / "policies"
WORKLOADS = ("arithmetic", "choice", "hard")
RECOMMENDED = {"arithmetic": "scalar", "choice": "scalar", "hard": "full-budget"}
"""What `assess` advises at the default alpha, as ``samples/README.md`` says."""
ALPHA = 0.05
MOST_POSITIONS = 10
"""Columns of the table of accuracies, up to where one in twenty still thinks."""

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Mapped:
    """Results for one workload."""

    name: str
    run: Path
    advice: Document
    """The assessment."""
    calibration: Document
    paper: Document


# --- Measuring ------------------------------------------------------------------------------------


def stopadvisor(*words: str | Path) -> Document:
    """Run one command; exit code 3 says that nothing was certified, which is a result."""
    command = [sys.executable, "-m", "stopadvisor", *map(str, words), "--json"]
    done = subprocess.run(command, cwd=SAMPLES.parent, stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}")
    found: Document = json.loads(done.stdout)
    return found


def map_workload(name: str, runs: Path) -> Mapped:
    """Probe, assess, calibrate, and assess as the paper did."""
    run = runs / name
    file, model = SAMPLES / f"{name}.jsonl", SAMPLES / "tiny-reasoner"
    last = ("--alpha", str(ALPHA), "--no-report")
    advice = stopadvisor("assess", file, "--model", model, "--out", run, *last)
    calibration = stopadvisor("calibrate", run, "--alpha", str(ALPHA), "--quiet")
    opened = ("--protocol", "paper", "--open-calibration", "--out", runs / f"{name}-grid")
    paper = stopadvisor("assess", file, "--model", model, *opened, *last)
    return Mapped(name, run, advice, calibration, paper)


@dataclass
class Recorded:
    """A record in the form that `signals` reads."""

    gold: str
    natural: str
    trace: range
    answers: list[str]
    logprobs: list[float]
    entropies: list[float]
    probe_tokens: list[int]
    markers: list[int]

    @classmethod
    def of(cls, record: ProbeRecord, budgets: Sequence[int]) -> Recorded:
        """Forced answers at these budgets; answers count as right as they were graded.

        Budgets that thinking did not reach are ignored, so that anything may stand there.
        """
        gold = record.gold
        assert gold is not None  # the samples have it
        made = {c.budget: c for c in record.checkpoints}
        forced = [made.get(budget, record.checkpoints[-1]) for budget in budgets]
        return cls(
            gold,
            gold if record.natural_correct else "",
            range(record.trace_tokens),
            [gold if c.correct else f"not {c.normalized}" for c in forced],
            [c.mean_logprob or 0.0 for c in forced],
            [c.mean_entropy or 0.0 for c in forced],
            [c.probe_tokens for c in forced],
            [int(c.markers) for c in forced],
        )


# --- Tables ---------------------------------------------------------------------------------------


def share(value: float) -> str:
    """A share as in the paper: .253."""
    return f"{value:.3f}".replace("0.", ".", 1)


def percent(value: float) -> str:
    """A percentage that is one already."""
    return f"{value:.1f} %"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def common(run: Path) -> GradedTable:
    """The probes of a run at the positions that all of its questions share."""
    return grid_view(RunDirectory.load(run).table().unseal())


def profiles(runs: Sequence[Path]) -> str:
    """Profile and accuracy of each workload, over all of its questions."""
    rows = []
    for path in runs:
        probes = common(path)
        kinds = classify(trajectory(probes))
        shares = np.bincount(kinds, minlength=len(TYPES)) / probes.n_questions
        rows.append(
            [
                path.name,
                str(probes.n_questions),
                *map(share, shares.tolist()),
                share(float(probes.correct[:, 0].mean())),
                share(float(probes.full_correct.mean())),
                f"{probes.trace_tokens.mean():.1f}",
                share(float(probes.truncated.mean())),
            ]
        )
    kinds_shown = [name.replace("_", " ") for name in TYPES]
    last = ("right at the first probe", "after all thinking", "mean trace", "cut off")
    return table(["workload", "n", *kinds_shown, *last], rows)


def accuracies(runs: Sequence[Path]) -> str:
    """Accuracy of the forced answer at each checkpoint, and how many still think there."""
    rows = []
    for path in runs:
        probes = common(path)
        n = int(((~probes.ended).mean(axis=0) >= 0.05).sum())
        shown = np.linspace(0, n - 1, min(n, MOST_POSITIONS)).round().astype(int)
        probes = probes.select(shown.tolist())
        right = probes.correct_online.mean(axis=0)
        live = (~probes.ended).mean(axis=0)
        budgets = probes.budgets.tolist()
        rows.append([path.name, "thinking tokens", *map(str, budgets)])
        rows.append(["", "right if stopped here", *map(share, right.tolist())])
        rows.append(["", "still thinking", *map(share, live.tolist())])
    width = max(map(len, rows))
    rows = [[*row, *[""] * (width - len(row))] for row in rows]
    return table(["workload", "", *map(str, range(1, width - 1))], rows)


def signals(runs: Sequence[Path]) -> str:
    """AUROC of each signal at the positions that all questions share."""
    rows = []
    names: list[str] = []
    for path in runs:
        run, budgets = RunDirectory.load(path), common(path).budgets.tolist()
        ranked = aurocs([Recorded.of(record, budgets) for record in run.records()], budgets)
        names = list(ranked)
        rows.append([path.name, *(share(ranked[name]) for name in names)])
    words = {"learned": "logistic", "boosted": "boosted trees", "run-stability": "run length"}
    return table(["workload", *(words.get(name, name) for name in names)], rows)


def rule(policy: str | None, family: str | None, where: str | None) -> str:
    """A recommendation in a few words."""
    if policy == "full-budget" or family is None:
        return "full budget"
    kind = f" ({policy})" if policy in ("learned", "scalar") and family != policy else ""
    return f"**{family}**{kind}{f', {where}' if where else ''}"


def verdict(row: Document) -> str:
    """Which side saves more at equal risk."""
    spread = row["delta_saving_pp"]
    if spread is None:
        return str(row["verdict"])
    feasible = [side for side in ("learned", "scalar") if row[side]["feasible"]]
    if len(feasible) < 2:  # a rule that is not feasible never stops: no difference to take
        found = f"only {feasible[0]} is feasible" if feasible else "neither is feasible"
        return f"{row['verdict']}: {found}"
    low, high = spread["ci95"]
    return f"{row['verdict']}: {spread['median']:+.1f} pp [{low:+.1f}, {high:+.1f}]"


def side_by_side(found: Sequence[Mapped]) -> str:
    """Both protocols, row by row."""
    rows = []
    for mapped in found:
        deploy, paper, kept = mapped.advice, mapped.paper, mapped.calibration
        for name, ours, theirs in (
            ("profile says", deploy["regime"]["predicted"], paper["regime"]["predicted"]),
            (
                "learned minus scalar, saving",
                verdict(deploy["matched_risk"][0]),
                verdict(_row(paper)),
            ),
            ("certified at α = 5 %", _certified(kept), _feasible(paper)),
            ("net saving", _saving(kept), _paper_saving(paper)),
            ("lost", _lost(kept), _paper_lost(paper)),
            ("advice", _advice(deploy), _advice(paper)),
        ):
            rows.append([mapped.name if name == "profile says" else "", name, theirs, ours])
    return table(["workload", "", "paper protocol", "deploy protocol"], rows)


def _advice(document: Document) -> str:
    advice = document["recommendation"]
    return rule(advice["policy"], advice["family"], advice.get("where"))


def _row(paper: Document) -> Document:
    found: Document = next(row for row in paper["matched_risk"] if row["alpha"] == ALPHA)
    return found


def _best(paper: Document) -> Document | None:
    """The feasible side that saves more."""
    sides = [side for side in (_row(paper)["learned"], _row(paper)["scalar"]) if side["feasible"]]
    return max(sides, key=lambda side: side["total_saving_pct"], default=None)


def _certified(kept: Document) -> str:
    certificate = kept["certificate"]
    if certificate is None:
        return "nothing"
    return f"{kept['family']}: {certificate['losses']} of {certificate['n']} lost"


def _feasible(paper: Document) -> str:
    sides = [_row(paper)[side] for side in ("learned", "scalar")]
    return " and ".join(side["family"] for side in sides if side["feasible"]) or "nothing"


def _saving(kept: Document) -> str:
    expected = kept["expected"]
    if expected is None:
        return "0"
    low, high = expected["calibration_total_saving_band95"]
    return f"{percent(expected['calibration_total_saving_pct'])} [{low:.1f}, {high:.1f}]"


def _paper_saving(paper: Document) -> str:
    best = _best(paper)
    return "0" if best is None else f"{percent(best['total_saving_pct'])} ({best['family']})"


def _lost(kept: Document) -> str:
    expected = kept["expected"]
    if expected is None:
        return "0"
    return percent(100 * expected["calibration_risk"])


def _paper_lost(paper: Document) -> str:
    best = _best(paper)
    return "0" if best is None else percent(100 * best["test_risk"])


def policies(found: Sequence[Mapped]) -> str:
    """Table of the exported policies, one row per workload."""
    rows = []
    for mapped in found:
        kept, expected = mapped.calibration, mapped.calibration["expected"]
        at = kept["where"] or "nowhere"
        accuracy = (
            "as full thinking"
            if expected is None
            else f"{share(expected['calibration_full_accuracy'])} → "
            f"{share(expected['calibration_accuracy'])}"
        )
        lost = kept["certificate"] and f"{kept['certificate']['losses']} of {_n(kept)}"
        rows.append(
            [
                f"`{mapped.name}.joblib`",
                kept["family"] or "full budget",
                at,
                lost or "not certified",
                _saving(kept),
                accuracy,
            ]
        )
    header = (
        *("policy", "rule", "asks", "calibration questions lost"),
        *("net saving on them, vLLM", "accuracy on them, full → stopped"),
    )
    return table(header, rows)


def _n(kept: Document) -> int:
    return int(kept["certificate"]["n"])


# --- Files ----------------------------------------------------------------------------------------


def _parts(path: Path, name: str) -> tuple[str, str, str]:
    """The text before, between and after ``<!-- name -->`` and ``<!-- /name -->``."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    inside, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{path} has no markers for {name!r}")
    return before + begin, inside, end + after


def between(path: Path, name: str) -> str:
    """The text between two markers."""
    return _parts(path, name)[1].strip()


def write_between(path: Path, name: str, text: str) -> None:
    """Put a text between two markers."""
    before, _, after = _parts(path, name)
    path.write_text(f"{before}\n{text}\n\n{after}", encoding="utf-8")


def keep_policy(mapped: Mapped) -> None:
    """Put a policy and what it was made from into ``policies/``."""
    shutil.copyfile(mapped.run / "policy.joblib", POLICIES / f"{mapped.name}.joblib")
    folder = POLICIES / "probes"
    folder.mkdir(exist_ok=True)
    manifest = json.loads((mapped.run / MANIFEST).read_bytes())
    # The probes are to be calibrated again, and where the file lay is of no use elsewhere.
    manifest.pop("looks", None)
    manifest["workload"]["path"] = f"samples/{mapped.name}.jsonl"
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    (folder / f"{mapped.name}.{MANIFEST}").write_text(text, encoding="utf-8")
    probes = lzma.compress((mapped.run / PROBES).read_bytes(), preset=9 | lzma.PRESET_EXTREME)
    (folder / f"{mapped.name}.{PROBES}.xz").write_bytes(probes)


def main() -> None:
    """Measure the three workloads and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="new folder to keep the runs in")
    parser.add_argument("--policies", action="store_true", help="write policies/ as well")
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        runs = (options.runs or Path(scratch)).resolve()
        found = [map_workload(name, runs) for name in WORKLOADS]
        readme = SAMPLES / "README.md"
        for measure in (profiles, accuracies, signals):
            write_between(readme, measure.__name__, measure([mapped.run for mapped in found]))
        write_between(readme, "side_by_side", side_by_side(found))
        if options.policies:
            write_between(POLICIES / "README.md", "policies", policies(found))
            for mapped in found:
                keep_policy(mapped)
    print(f"{readme}: written after {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
