"""Make workloads from the paper's benchmarks, through the ``datasets`` library.

Sources, splits and gold are the paper's.  Questions are drawn by the hash of seed and question, so
that a larger sample contains every smaller one and a run can grow.

References
----------
Paper, Appendix "Dataset sources", Table "Benchmark sources and experimental splits".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from stopadvisor.answers.normal_form import check_gold
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.ground.printable import short_repr
from stopadvisor.workload.lines import option_lines

__all__ = ["BENCHMARKS", "Benchmark", "Converted", "convert", "load_rows"]

Row = Mapping[str, Any]
_BUILDERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}
_NOT_AN_OPTION = "N/A"
"""Filler among MMLU-Pro's options."""


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark comes from, and how to read its rows."""

    repository: str
    """On the Hugging Face hub."""
    config: str | None
    split: str
    task: str
    columns: tuple[str, ...]
    """Required columns."""
    size: int
    """Questions that the paper used."""
    read: Callable[[Row, int], dict[str, Any]]
    """Turns a row and the seed into a workload line, with None for missing fields and the data
    set's own id of the question; raises ValueError for a row without gold."""


@dataclass(frozen=True)
class Converted:
    """Workload lines drawn from a benchmark."""

    lines: tuple[dict[str, str], ...]
    available: int
    """Number of questions to draw from."""
    left_out: tuple[str, ...]
    """One sentence for each row that cannot be asked."""


# --- Rows -----------------------------------------------------------------------------------------


def _gsm8k(row: Row, seed: int) -> dict[str, Any]:
    """The answer follows ``####``, with commas between thousands."""
    _, mark, gold = row["answer"].rpartition("####")
    if not mark:
        raise ValueError("expected an answer after '####'")
    return {"question": row["question"], "gold": gold.strip().replace(",", "")}


def _math(row: Row, seed: int) -> dict[str, Any]:
    about = {"category": row.get("subject"), "id": row.get("unique_id")}
    return {"question": row["problem"], "gold": row["answer"], **about}


def _mmlu_pro(row: Row, seed: int) -> dict[str, Any]:
    gold, options = row["answer"].strip(), row["options"]
    if gold not in ascii_uppercase[: len(options)]:
        raise ValueError(f"expected the letter of one of {len(options)} options, got {gold!r}")
    if options[ascii_uppercase[: len(options)].index(gold)] == _NOT_AN_OPTION:
        raise ValueError(f"expected the letter of an option, got {gold!r}, which is a filler")
    shown = option_lines(row["question"], options, _NOT_AN_OPTION)
    about = {"category": row.get("category"), "id": row.get("question_id")}
    return {"question": shown, "gold": gold, **about}


def _gpqa(row: Row, seed: int) -> dict[str, Any]:
    """Options are ordered by a hash of the seed and their text, the same in every process."""
    question, right = row["Question"].strip(), row["Correct Answer"].strip()
    options = [right, *(row[f"Incorrect Answer {k}"].strip() for k in (1, 2, 3))]
    options.sort(key=lambda option: _hash(seed, question, option))
    gold = ascii_uppercase[: len(options)][options.index(right)]
    about = {"category": row.get("High-level domain"), "id": row.get("Record ID")}
    return {"question": option_lines(question, options), "gold": gold, **about}


_EXAM = re.compile(r"(\d{4})_AIME_(I+)_Problems")


def _aime(row: Row, seed: int) -> dict[str, Any]:
    exam = _EXAM.search(row.get("url") or "")
    about = {"category": f"{exam[1]} AIME {exam[2]}" if exam else None, "id": row.get("id")}
    return {"question": row["problem"], "gold": str(int(row["answer"])), **about}


def _hash(seed: int, *texts: str) -> str:
    return hashlib.sha256("\0".join([str(seed), *texts]).encode()).hexdigest()


BENCHMARKS = {
    "gsm8k": Benchmark(
        "openai/gsm8k", "main", "test", "numeric", ("question", "answer"), 1000, _gsm8k
    ),
    "math500": Benchmark(
        "HuggingFaceH4/MATH-500", None, "test", "math", ("problem", "answer"), 500, _math
    ),
    "mmlu-pro": Benchmark(
        *("TIGER-Lab/MMLU-Pro", None, "test", "choice"),
        ("question", "options", "answer"),
        800,
        _mmlu_pro,
    ),
    "gpqa-diamond": Benchmark(
        *("Idavidrein/gpqa", "gpqa_diamond", "train", "choice"),
        ("Question", "Correct Answer", *(f"Incorrect Answer {k}" for k in (1, 2, 3))),
        198,
        _gpqa,
    ),
    "aime": Benchmark(
        *("AI-MO/aimo-validation-aime", None, "train", "numeric"), ("problem", "answer"), 90, _aime
    ),
}
"""The paper names no source of MATH-500; this is the usual copy of Lightman et al.'s subset."""


# --- Reading and drawing --------------------------------------------------------------------------


def load_rows(name: str, source: Path | None = None, *, quiet: bool = False) -> list[Row]:
    """Read all rows of a benchmark's split.

    `name` is one of `BENCHMARKS`; `source` is a JSON, JSONL, Parquet or CSV file with the data
    set's own columns, a folder downloaded from the hub, or None for the hub itself.

    Raises
    ------
    WorkloadError
        The library is not installed; hub, file or folder cannot be read; or a column is missing.
    """
    benchmark = BENCHMARKS[name]
    try:
        import datasets
    except ImportError as error:
        raise WorkloadError(
            "benchmarks are read by the datasets library: pip install 'stopadvisor[datasets]'"
        ) from error
    if quiet or source is not None:
        datasets.disable_progress_bars()
    where = benchmark.repository if source is None else str(source)
    try:
        if source is not None and source.is_file():
            kind = _BUILDERS.get(source.suffix.lower())
            if kind is None:
                raise WorkloadError(
                    f"{source}: expected a file named {', '.join(_BUILDERS)} or a folder"
                )
            # Makes the file the wanted split, whatever its name.
            files = {benchmark.split: str(source)}
            rows = datasets.load_dataset(kind, data_files=files, split=benchmark.split)
        elif source is not None and not source.exists():
            raise WorkloadError(f"{source}: no such file or folder")
        else:
            # A folder from the hub lists its configurations in a README; others have none.
            named = source is None or (source / "README.md").exists()
            config = benchmark.config if named else None
            rows = datasets.load_dataset(where, config, split=benchmark.split)
    except WorkloadError:
        raise
    except Exception as error:  # the library raises a dozen kinds of its own
        reason = " ".join(f"{error}".split())[:300]
        hint = "; with a copy of the data: --from FILE|FOLDER" if source is None else ""
        raise WorkloadError(f"cannot load {where}: {reason}{hint}") from error
    missing = [column for column in benchmark.columns if column not in rows.column_names]
    if missing:
        raise WorkloadError(f"{where}: no column {missing[0]!r} in {short_repr(rows.column_names)}")
    return list(rows)


def convert(name: str, rows: Iterable[Row], n: int, *, seed: int) -> Converted:
    """Draw questions from a benchmark, as workload lines.

    `rows` are all its rows, with the data set's own columns.  At most `n` questions are drawn by
    `seed`, which also orders GPQA's options.  Lines keep the data set's order.

    Raises
    ------
    WorkloadError
        No row holds a usable question.

    Notes
    -----
    The paper does not say how its subsets of GSM8K and MMLU-Pro were drawn.  Rows without gold and
    repeated questions are left out, with a sentence each in `Converted.left_out`.
    """
    benchmark = BENCHMARKS[name]
    read: dict[str, tuple[str, dict[str, str]]] = {}
    left_out = []
    for index, row in enumerate(rows):
        label = f"row {index}"
        try:
            line = benchmark.read(row, seed)
            question = line["question"]
            if not (question or "").strip():  # cells of files may be empty
                raise ValueError(f"expected a question, got {question!r}")
            check_gold(benchmark.task, line["gold"])
        except (AttributeError, TypeError, ValueError) as error:
            left_out.append(f"{label} cannot be asked: {error}")
            continue
        if question in read:
            left_out.append(f"{label} repeats the question of {read[question][0]}")
            continue
        given = line.get("id")
        given = index if given in (None, "") else given
        line |= {"id": f"{name}-{given}", "task": benchmark.task}
        names = ("id", "question", "gold", "task", "category")
        read[question] = label, {key: line[key] for key in names if line.get(key) is not None}
    if not read:
        reason = left_out[0] if left_out else "it holds no row"
        raise WorkloadError(f"{name}: no question can be asked: {reason}")
    drawn = set(sorted(read, key=lambda question: _hash(seed, question))[:n])
    lines = tuple(line for question, (_, line) in read.items() if question in drawn)
    return Converted(lines, len(read), tuple(left_out))
