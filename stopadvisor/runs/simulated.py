"""Simulated probes as files: a run directory, or an archive in the layout of the paper's scripts.

Both say that they are simulated and how to make them again: the run by an engine named so in its
manifest, the archive by an array of that name.  Knows the files, not how probes are drawn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopadvisor._version import __version__
from stopadvisor.answers.grading import GRADING
from stopadvisor.ground.constants import PROBE_CAP
from stopadvisor.ground.errors import OutputError
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.records import Checkpoint, ProbeRecord
from stopadvisor.probes.simulation import KINDS, Population
from stopadvisor.runs.archives import SIMULATED
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.manifest import build_manifest
from stopadvisor.runs.storage import check_free, make_folder
from stopadvisor.workload.questions import Question, Workload, content_key, default_split

__all__ = ["Simulated", "simulate", "write_archive", "write_run"]

_MAX_THINK = 8192
"""Longest trace of most simulated questions; none is cut off."""


@dataclass(frozen=True)
class Simulated:
    """`simulate --json`: what was drawn, and where it is."""

    simulated: bool
    """Always true."""
    out: Path
    """Run directory or archive."""
    full_reference: str
    """What counts as full thinking: `natural` or `last-checkpoint`."""
    n_questions: int
    """Questions drawn."""
    budgets: tuple[int, ...]
    """Thinking tokens at each checkpoint."""
    shares: Mapping[str, float]
    """Share of each kind of question, as asked for; a draw differs by chance."""
    signal: float
    """How well the confidence tells right from wrong, in log-odds."""
    seed: int
    """Seed of all random draws."""


def simulate(out: Path, population: Population, n_questions: int, seed: int) -> Simulated:
    """Draw questions into a run directory, or into an archive where the name ends in ``.npz``.

    Raises
    ------
    OutputError
        The file or folder exists already or cannot be written.
    """
    archive = out.suffix == ".npz"
    (write_archive if archive else write_run)(out, population, n_questions, seed)
    return Simulated(
        simulated=True,
        out=out,
        full_reference="last-checkpoint" if archive else "natural",
        n_questions=n_questions,
        budgets=population.budgets,
        shares={kind: population.shares.get(kind, 0.0) for kind in KINDS},
        signal=population.signal,
        seed=seed,
    )


def write_archive(path: Path, population: Population, n_questions: int, seed: int) -> None:
    """Draw questions and write them as a ``.npz`` archive; full thinking is the last checkpoint.

    Raises
    ------
    OutputError
        The file exists already or cannot be written.
    """
    check_free(path)
    table = population.draw(n_questions, np.random.default_rng(seed), reference="last-checkpoint")
    gold = _golds(n_questions)
    arrays: dict[str, NDArray[Any]] = {
        "budgets": table.budgets,
        "correct": table.correct.astype(np.int8),
        "think_lens": table.trace_tokens,
        # Single precision takes half the room, and no decision depends on the other digits.
        "conf_lp": table.mean_logprob.astype(np.float32),
        "conf_ent": table.mean_entropy.astype(np.float32),
        "mkr": (table.markers / np.maximum(table.think_tokens, 1)).astype(np.float32),
        "ans": (gold[:, None] + table.answer_codes).astype(str),
        "gold": gold.astype(str),
        SIMULATED: np.array(json.dumps(_recipe(population, n_questions, seed))),
    }
    make_folder(path.parent)
    try:
        with path.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def write_run(path: Path, population: Population, n_questions: int, seed: int) -> None:
    """Draw questions and write them as a run directory, natural answers included.

    Raises
    ------
    OutputError
        The folder exists already or cannot be written.
    """
    check_free(path)
    table = population.draw(n_questions, np.random.default_rng(seed))
    recipe = _recipe(population, n_questions, seed)
    questions = tuple(_question(i, gold, seed) for i, gold in enumerate(_golds(n_questions)))
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    engine = {"engine": SIMULATED, "engine_version": __version__, "model": None, **recipe}
    plan = ProbePlan(population.budgets, cue="", cap=PROBE_CAP, max_think=_MAX_THINK, seed=seed)
    manifest = build_manifest(
        engine,
        plan,
        Workload(path.with_suffix(".jsonl"), questions, digest, {}),
        fractions=default_split(n_questions),
        grading=GRADING,
    )
    make_folder(path)
    RunDirectory.create(path, manifest).append(_records(table, questions))


def _recipe(population: Population, n_questions: int, seed: int) -> dict[str, Any]:
    """All that `simulate` needs to draw the same again."""
    return {"law": asdict(population), "questions": n_questions, "seed": seed}


def _golds(n_questions: int) -> NDArray[np.int64]:
    """The right answer of each question, a number; wrong ones are a little larger."""
    return 100 + 7 * (np.arange(n_questions) % 100)


def _question(row: int, gold: int, seed: int) -> Question:
    text = f"Simulated question {row}, seed {seed}: there is nothing to answer."
    messages = ({"role": "user", "content": text},)
    return Question(
        f"simulated-{seed}-{row:04d}", content_key(messages), messages, str(gold), "numeric"
    )


def _records(table: OpenQuestions, questions: Sequence[Question]) -> list[ProbeRecord]:
    assert table.natural_tokens is not None  # drawn with natural answers
    golds = _golds(table.n_questions)
    assert table.outcomes.natural_code is not None
    ended, natural = table.ended, golds + table.outcomes.natural_code
    records = []
    for i, question in enumerate(questions):
        answers = [str(code + golds[i]) for code in table.answer_codes[i].tolist()]
        records.append(
            ProbeRecord(
                id=question.id,
                key=question.key,
                group=None,
                sample=0,
                task=question.task,
                category=None,
                gold=str(golds[i]),
                prompt_tokens=int(table.prompt_tokens[i]),
                suffix_tokens=table.suffix_tokens,
                trace_tokens=int(table.trace_tokens[i]),
                finish="stop",
                natural_answer=f"Final answer: {natural[i]}",
                natural_correct=bool(table.full_correct[i]),
                natural_answer_tokens=int(table.natural_tokens[i]),
                checkpoints=tuple(
                    Checkpoint(
                        budget=int(budget),
                        answer=answers[j],
                        normalized=answers[j],
                        correct=bool(table.correct[i, j]),
                        mean_logprob=float(table.mean_logprob[i, j]),
                        mean_entropy=float(table.mean_entropy[i, j]),
                        entropy_source=table.entropy_source,
                        probe_tokens=int(table.probe_tokens[i, j]),
                        markers=int(table.markers[i, j]),
                        ended=bool(ended[i, j]),
                    )
                    for j, budget in enumerate(table.budgets.tolist())
                ),
            )
        )
    return records
