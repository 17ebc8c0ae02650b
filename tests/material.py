"""Probed runs and archives, made in milliseconds, for tests of the steps after probing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.answers.grading import GRADING, Grader
from stopadvisor.cli.main import main
from stopadvisor.collection.collect import collect
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.look_log import Look, read_log
from stopadvisor.runs.manifest import build_manifest
from stopadvisor.studies.registry import STUDIES
from stopadvisor.workload.questions import PARTS, Question, assign_parts, read_workload
from tests.scripted import ScriptedEngine, write_sums

WORKLOAD = Path(__file__).resolve().parent.parent / "samples" / "arithmetic.jsonl"
"""The bundled questions."""
ARCHIVES = Path(__file__).resolve().parent / "testdata" / "paper"
"""The archives of the paper's protocol, with the published scripts' results for them."""
BUDGETS = (0, 8, 16, 24, 32, 48, 64, 96)
PLAN = ProbePlan(budgets=BUDGETS, cue="\n\nFinal answer:", max_think=256)
CERTIFY = ("--alpha", "0.15", "--despite", "advice", "--despite", "large-alpha")
"""For `calibrate`: one usual alpha, and a look whatever the advice is."""


class Call:
    """The command line as a function of words that returns exit code, stdout and stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str], command: str | None = None) -> None:
        """`command` is the default command."""
        self._capsys, self._command = capsys, command

    def of(self, command: str) -> Call:
        """The same for one command."""
        return Call(self._capsys, command)

    def __call__(self, *words: object, command: str | None = None) -> tuple[int, str, str]:
        command = command or self._command
        self._capsys.readouterr()  # drop what fixtures printed
        code = main([*([command] if command else []), *map(str, words)])
        text = self._capsys.readouterr()
        return code, text.out, text.err

    def json(self, *words: object, code: int = 0, command: str | None = None) -> Any:
        """The document that a call prints."""
        found, out, err = self(*words, "--json", command=command)
        assert found == code, out + err
        return json.loads(out)

    def screen(self, *words: object, code: int = 0, command: str | None = None) -> str:
        """What a call prints, on one line."""
        found, out, err = self(*words, command=command)
        assert found == code, out + err
        return " ".join(out.split())

    def refused(self, *words: object, command: str | None = None) -> str:
        """The one line of a refusal with exit code 2."""
        code, out, err = self(*words, command=command)
        assert (code, out) == (2, ""), out + err
        assert "Traceback" not in err
        starts = ("stopadvisor: ", "Error: ")
        (line,) = [line for line in err.splitlines() if line.startswith(starts)]
        return line


def easiest(count: int) -> tuple[Question, ...]:
    """The bundled questions with the fewest operands, about which a model thinks the least."""
    questions = read_workload(WORKLOAD).questions
    return tuple(sorted(questions, key=lambda question: question.category or "")[:count])


def write_easiest(path: Path, count: int) -> Path:
    """Write the same as a workload of their own."""
    lines = WORKLOAD.read_text(encoding="utf-8").splitlines(keepends=True)
    lines.sort(key=lambda line: str(json.loads(line)["category"]))
    path.write_text("".join(lines[:count]), encoding="utf-8")
    return path


def keep_studies(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Leave out all other studies until the test is over."""
    kept = {name: STUDIES[name] for name in names}
    # Undone in reverse, which restores their order.
    for name in reversed(list(STUDIES)):
        monkeypatch.delitem(STUDIES, name)
    for name, study in kept.items():
        monkeypatch.setitem(STUDIES, name, study)


def make_run(
    path: Path,
    n: int = 400,
    *,
    plan: ProbePlan = PLAN,
    fractions: tuple[float, float, float] = (0.4, 0.4, 0.2),
    gold: bool = True,
    repeated: int = 0,
    samples: int = 1,
) -> Path:
    """Probe `n` sums into a run, the first `repeated` fit ones twice; a larger `n` extends it."""
    path.mkdir(parents=True, exist_ok=True)
    file = write_sums(path.parent / f"{path.name}-sums.jsonl", n, gold=gold)
    workload = read_workload(file, assumed="numeric")
    engine = ScriptedEngine()
    manifest = build_manifest(
        engine.identity(), plan, workload, fractions=fractions, grading=GRADING
    )
    run = RunDirectory.resume(path, manifest) or RunDirectory.create(path, manifest)
    with Grader() as grader:
        keys = [question.group_key for question in workload.questions]
        is_fit = assign_parts(keys, seed=plan.seed, fractions=fractions) == 0
        twice = [q for q, fit in zip(workload.questions, is_fit, strict=True) if fit][:repeated]
        collect(
            engine, workload, run, batch_size=64, grader=grader, repeated=twice, samples=samples
        )
    return path


def keep_records(run: RunDirectory, kept: Sequence[ProbeRecord]) -> None:
    """Make a run one of these records alone."""
    run.rewrite(kept)
    run.annotate(asked=len(kept))


def edit_records(path: Path, edit: Callable[[dict[str, Any], str], None]) -> None:
    """Change records of a run in place; `edit` gets each one and its part of the split."""
    run = RunDirectory.load(path)
    parts = run.parts(run.table().groups)
    lines = run.probes_path.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    for row, part in zip(rows, parts.tolist(), strict=True):
        edit(row, PARTS[part])
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    run.probes_path.write_text(text, encoding="utf-8")


def flip_calibration(row: dict[str, Any], part: str) -> None:
    """For `edit_records`: flip every label of the calibration questions."""
    if part == "calibration":
        row["natural_correct"] = not row["natural_correct"]
        for checkpoint in row["checkpoints"]:
            checkpoint["correct"] = not checkpoint["correct"]


def looks_of(path: Path) -> list[Look]:
    """Looks recorded in a run, oldest first."""
    return list(read_log(path).looks)


def forget_looks(path: Path) -> None:
    """Restore a run to before its first look, and drop its own note of looks."""
    (path / "looks.jsonl").unlink(missing_ok=True)
    file = path / "manifest.json"
    manifest = json.loads(file.read_bytes())
    manifest.pop("looks", None)
    file.write_text(json.dumps(manifest), encoding="utf-8")


def archive_arrays(n: int = 200, m: int = 6, *, seed: int = 0) -> dict[str, Any]:
    """Made-up arrays of a published archive: confidence follows correctness with noise."""
    rng = np.random.default_rng(seed)
    budgets = 64 * np.arange(m)
    solved_at = rng.choice([0, 1, 2, 3, 99], size=n, p=[0.4, 0.2, 0.15, 0.1, 0.15])
    correct = (np.arange(m) >= solved_at[:, None]) ^ (rng.random((n, m)) < 0.04)
    level = 1.6 * correct + 0.15 * np.arange(m) + rng.normal(0, 0.5, (n, m))
    # Rounded, it is the same on every processor: last digits of exp and log1p differ.
    logprob = np.round(-np.log1p(np.exp(-level)), 9)
    answers = np.where(correct, "7", rng.integers(10, 13, (n, m)).astype(str))
    return {
        "budgets": budgets,
        "correct": correct.astype(np.int64),
        "think_lens": rng.integers(40, 64 * m + 200, n),
        "conf_lp": logprob,
        "conf_ent": np.round(-1.4 * logprob, 9),
        "mkr": rng.random((n, m)) * 0.1,
        "ans": answers,
        "gold": np.full(n, "7"),
    }


def write_archive(path: Path, **changes: Any) -> Path:
    """Write a made-up archive; arrays given as None are left out."""
    arrays = {**archive_arrays(), **changes}
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path
