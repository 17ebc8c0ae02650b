"""Read a published archive, ``raw.npz`` as the paper's scripts write it, into a probe table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.constants import PROBE_CAP
from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.probes.outcomes import OpenQuestions, Outcomes
from stopadvisor.probes.table import ProbeTable, agreeing, answer_codes, on_grid
from stopadvisor.workload.questions import name_key

__all__ = ["names_questions", "read_answers", "read_archive"]

_IDS = "ids"
"""Optional array (N,) of names of the questions, so that several archives can be compared."""
_ROW = "row-"
"""Key prefix of questions that are named by row number."""
_ARCHIVE_ARRAYS = ("budgets", "think_lens", "conf_lp", "conf_ent", "mkr", "ans")


def read_archive(path: str | Path) -> OpenQuestions:
    """Read a ``raw.npz`` in the layout of the paper's own scripts.

    Archives hold no natural answers, so full thinking is the last checkpoint.  Without the array
    `correct`, an answer is right if it equals the last one.  Probe lengths are not recorded: each
    probe counts ``ans_tokens`` of the ``meta.json`` next to the archive, else the paper's cap.

    Raises
    ------
    ProbeError
        The file is not an archive; an array is missing, misshapen or not finite; or two questions
        have the same id.
    """
    path = Path(path)
    arrays = _arrays(path)
    labelled = "correct" in arrays
    n, m = _check_arrays(path, arrays)
    codes = answer_codes(arrays["ans"])[0]
    correct = arrays["correct"] if labelled else agreeing(codes)
    if not np.isin(correct, (0, 1)).all():
        raise ProbeError(f"{path}: array 'correct' must hold 0 and 1 only")
    if labelled and len(np.unique(correct)) < 2:
        raise ProbeError(
            f"{path}: array 'correct' holds one class of labels only ({int(correct.flat[0])}); "
            "both right and wrong answers are required"
        )
    budgets = arrays["budgets"].astype(np.int64)
    trace_tokens = arrays["think_lens"].astype(np.int64)
    ids = _ids(path, arrays, n)
    names = tuple(f"{_ROW}{i}" for i in range(n))
    keys = names if ids is None else tuple(map(name_key, ids))
    table = ProbeTable(
        ids=ids or names,
        keys=keys,
        groups=keys,
        samples=np.zeros(n, dtype=np.int64),
        tasks=("exact",) * n,
        categories=(None,) * n,
        positions=on_grid(budgets, n),
        answer_codes=codes,
        mean_logprob=arrays["conf_lp"].astype(np.float64),
        mean_entropy=arrays["conf_ent"].astype(np.float64),
        # The scripts stored markers per token; the table holds counts, as a probe does.
        markers=arrays["mkr"].astype(np.float64) * np.minimum(trace_tokens[:, None], budgets),
        probe_tokens=np.full((n, m), _answer_tokens(path), dtype=np.float64),
        trace_tokens=trace_tokens,
        prompt_tokens=np.zeros(n, dtype=np.int64),
        natural_tokens=None,
        truncated=np.zeros(n, dtype=np.bool_),
        suffix_tokens=0,
        entropy_source="full",
        reference="last-checkpoint",
        by_gold=None if labelled else np.zeros(n, dtype=np.bool_),
    )
    return OpenQuestions.of(table, Outcomes(correct.astype(np.bool_), None))


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # Opened here, because np.load leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            return {name: data[name] for name in data.files}
    except OSError as error:
        raise ProbeError(f"{path}: cannot read the archive: {error}") from error
    except Exception as error:  # np.load raises several kinds for damaged zip members
        raise ProbeError(f"{path}: not a readable .npz archive: {error}") from error


def _check_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> tuple[int, int]:
    """Check that all arrays fit together; returns (n_questions, n_checkpoints)."""
    for name in _ARCHIVE_ARRAYS:
        if name not in arrays:
            raise ProbeError(f"{path}: array {name!r} is missing, found {sorted(arrays)}")
    first = "correct" if "correct" in arrays else "ans"
    if arrays[first].ndim != 2 or not arrays[first].size:
        shape = arrays[first].shape
        raise ProbeError(f"{path}: array {first!r} must have shape (N, m), got {shape}")
    n, m = arrays[first].shape
    for name in _ARCHIVE_ARRAYS:
        expected = {"budgets": (m,), "think_lens": (n,)}.get(name, (n, m))
        if (shape := arrays[name].shape) != expected:
            raise ProbeError(f"{path}: array {name!r} must have shape {expected}, got {shape}")
    for name in (array for array in (first, *_ARCHIVE_ARRAYS) if array != "ans"):
        try:
            finite = bool(np.isfinite(arrays[name].astype(np.float64)).all())
        except (TypeError, ValueError):
            finite = False
        if not finite:
            raise ProbeError(f"{path}: array {name!r} must hold finite numbers only")
    return n, m


def _ids(path: Path, arrays: Mapping[str, NDArray[Any]], n: int) -> tuple[str, ...] | None:
    """Names of the questions; None if the archive has none."""
    ids = arrays.get(_IDS)
    if ids is None:
        return None
    if ids.shape != (n,) or ids.dtype.kind not in "UiuS":
        raise ProbeError(
            f"{path}: array {_IDS!r} must hold {n} names or whole numbers, got shape "
            f"{ids.shape} of type {ids.dtype}"
        )
    first: dict[str, int] = {}
    for row, name in enumerate(names := tuple(map(str, ids.astype(str)))):
        if not name.strip():
            raise ProbeError(
                f"{path}: array {_IDS!r} must name every question, got {name!r} in row {row}"
            )
        if first.setdefault(name, row) != row:
            raise ProbeError(
                f"{path}: array {_IDS!r} must name every question once, got {name!r} in rows "
                f"{first[name]} and {row}"
            )
    return names


def names_questions(keys: Iterable[str]) -> bool:
    """Whether keys mean the same in other archives, because none is a row number."""
    return not any(key.startswith(_ROW) for key in keys)


def read_answers(path: Path) -> list[list[str]]:
    """Forced answers as text, a list for each question, from a file that `read_archive` checked."""
    texts: list[list[str]] = _arrays(path)["ans"].astype(str).tolist()
    return texts


def _answer_tokens(path: Path) -> float:
    meta = path.with_name("meta.json")
    if not meta.exists():
        return float(PROBE_CAP)
    try:
        content = parse_json(meta.read_text(encoding="utf-8"))
        value = float(content.get("ans_tokens", PROBE_CAP))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ProbeError(f"{meta}: cannot read 'ans_tokens': {error}") from error
    if not (math.isfinite(value) and value > 0):
        raise ProbeError(f"{meta}: field 'ans_tokens' must be a positive number, got {value!r}")
    return value
