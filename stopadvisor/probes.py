"""Checkpoint probes: one record a question, the table over all of them, and the engine's part.

The table is what every analysis reads: read-only arrays, questions on axis 0, checkpoints on axis
1.  This module knows no model, no statistics and no command line; ``runs.py`` stores the records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from stopadvisor.constants import PROBE_CAP
from stopadvisor.errors import ProbeError

__all__ = [
    "Checkpoint",
    "Engine",
    "ProbePlan",
    "ProbeRecord",
    "ProbeTable",
    "Prompt",
    "RawProbe",
    "RawTrace",
    "read_archive",
]

Reference = Literal["natural", "last-checkpoint"]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


# --- What the engine is asked, and what it answers ------------------------------------------------


@dataclass(frozen=True)
class Prompt:
    """One question as the engine sees it."""

    key: str
    """Content hash of the question; with the plan's seed and `sample` it seeds the sampling."""
    messages: tuple[Mapping[str, str], ...]
    """Chat messages, prompt template already applied."""
    sample: int = 0
    """Number of the trace, when several are drawn per question."""


@dataclass(frozen=True)
class ProbePlan:
    """How traces are drawn and probed; part of the manifest."""

    budgets: tuple[int, ...]
    """Thinking tokens at which to probe, strictly increasing; empty to draw traces only."""
    cue: str
    """Text written after the closed thinking, before the forced answer."""
    cap: int = PROBE_CAP
    """Most tokens of a forced answer."""
    max_think: int = 8192
    """Thinking is cut here; production must use the same cap."""
    answer_cap: int = 512
    """Most tokens of the natural, visible answer."""
    greedy: bool = False
    """Take the likeliest token; otherwise the model's own generation settings rule."""
    temperature: float | None = None
    """Overrides the temperature of the model's own generation settings."""
    entropy: str = "full"
    """`full`, or `top-k:K` to measure as a server that returns K log-probabilities would."""
    seed: int = 0

    def __post_init__(self) -> None:
        if any(b < 0 for b in self.budgets) or any(
            b <= a for a, b in zip(self.budgets, self.budgets[1:], strict=False)
        ):
            raise ProbeError(
                f"budgets must be >= 0 and strictly increasing, got {list(self.budgets)!r}"
            )
        if self.cap < 1 or self.max_think < 1 or self.answer_cap < 1:
            raise ProbeError(
                "cap, max_think and answer_cap must be >= 1, "
                f"got {self.cap!r}, {self.max_think!r} and {self.answer_cap!r}"
            )
        if self.temperature is not None and not self.temperature > 0:
            raise ProbeError(
                f"temperature must be > 0 (use greedy for 0), got {self.temperature!r}"
            )


@dataclass(frozen=True)
class RawProbe:
    """One forced answer, ungraded."""

    budget: int
    think_tokens: int
    """Thinking tokens really in the prefix: min(budget, trace length)."""
    text: str
    """Decoded answer without the tokens that ended it."""
    mean_logprob: float
    """Mean log-probability (nats) of the answer's tokens, the ending token left out."""
    mean_entropy: float
    """Mean entropy (nats) of the answer's next-token distributions, the ending one left out."""
    probe_tokens: int
    """Decoded tokens, the ending one included."""
    markers: int
    """Backtracking markers in the prefix's text."""
    ended: bool
    """The trace was over before this budget (trace length <= budget)."""
    tail_mass: float | None = None
    """Mean probability outside the top k; None when the entropy is over the full vocabulary."""


@dataclass(frozen=True)
class RawTrace:
    """One trace with its probes, ungraded."""

    prompt_tokens: int
    """Prompt tokens including the thinking opener."""
    suffix_tokens: int
    """Tokens of closer + cue that each probe adds to its prefix."""
    trace_tokens: int
    """Thinking tokens up to the model's own closer, or the cap."""
    finish: Literal["stop", "length"]
    thinking: str
    """The thinking as text."""
    natural_text: str | None
    """Visible answer after the closed thinking; None when the thinking was never closed."""
    natural_tokens: int
    """Decoded tokens of the visible answer, closer and ending token included; 0 if none."""
    probes: tuple[RawProbe, ...]


class Engine(Protocol):
    """What probing needs of a model, wherever it runs."""

    def identity(self) -> dict[str, Any]:
        """What decides the outcome: model, tokenizer, template, engine, dtype, markers (JSON)."""
        ...

    def probe(self, prompts: Sequence[Prompt], plan: ProbePlan) -> list[RawTrace]:
        """Draw one trace per prompt and probe it at every budget; same order as `prompts`."""
        ...


# --- Graded records -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """One graded forced answer: the rows of ``checkpoints`` in ``probes.jsonl``."""

    budget: int
    answer: str
    normalized: str
    correct: bool
    mean_logprob: float
    mean_entropy: float
    entropy_source: str
    probe_tokens: int
    markers: float
    ended: bool


@dataclass(frozen=True)
class ProbeRecord:
    """One line of ``probes.jsonl``."""

    id: str
    key: str
    group: str | None
    sample: int
    task: str
    category: str | None
    gold: str
    prompt_tokens: int
    suffix_tokens: int
    trace_tokens: int
    finish: str
    natural_answer: str | None
    natural_correct: bool
    natural_answer_tokens: int
    checkpoints: tuple[Checkpoint, ...]

    def to_json(self) -> str:
        """One line of JSON, keys in the order of the fields."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> ProbeRecord:
        """Read a record back; `where` names file and line for the error message."""
        names = {f.name for f in fields(cls)}
        missing = sorted(names - set(data))
        if missing:
            raise ProbeError(f"{where}: field {missing[0]!r} is missing")
        try:
            checkpoints = tuple(Checkpoint(**row) for row in data["checkpoints"])
        except TypeError as error:
            raise ProbeError(f"{where}: field 'checkpoints': {error}") from error
        return cls(
            **{name: data[name] for name in names - {"checkpoints"}}, checkpoints=checkpoints
        )


# --- The table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProbeTable:
    """All probes of a workload as read-only arrays.

    Shapes: ``n_questions`` rows (one per trace), ``n_checkpoints`` columns.
    """

    ids: tuple[str, ...]
    keys: tuple[str, ...]
    """Content hash of each question (archives: their row number)."""
    groups: tuple[str, ...]
    """Questions that must stay together; the key where the workload names no group."""
    samples: IntArray  # (n_questions,)
    tasks: tuple[str, ...]
    categories: tuple[str | None, ...]
    budgets: IntArray  # (n_checkpoints,)
    correct: BoolArray  # (n_questions, n_checkpoints) forced answer equals gold
    answer_codes: IntArray  # (n_questions, n_checkpoints) equal numbers = same normalised answer
    mean_logprob: FloatArray  # (n_questions, n_checkpoints)
    mean_entropy: FloatArray  # (n_questions, n_checkpoints)
    markers: FloatArray  # (n_questions, n_checkpoints) marker count in the prefix
    probe_tokens: FloatArray  # (n_questions, n_checkpoints)
    trace_tokens: IntArray  # (n_questions,)
    prompt_tokens: IntArray  # (n_questions,)
    natural_correct: BoolArray | None  # (n_questions,); None in archives
    natural_tokens: FloatArray | None  # (n_questions,); None in archives
    truncated: BoolArray  # (n_questions,) thinking was cut at max_think
    suffix_tokens: int
    entropy_source: str
    reference: Reference
    """What full-thinking correct means in this table."""

    def __post_init__(self) -> None:
        n, m = self.correct.shape
        matrix = ("answer_codes", "mean_logprob", "mean_entropy", "markers", "probe_tokens")
        vector = ("samples", "trace_tokens", "prompt_tokens", "truncated")
        shapes = dict.fromkeys(matrix, (n, m)) | dict.fromkeys(vector, (n,))
        for name, shape in shapes.items():
            found = getattr(self, name).shape
            if found != shape:
                raise ProbeError(f"{name} must have shape {shape}, got {found}")
        if self.budgets.shape != (m,) or (m > 1 and np.any(np.diff(self.budgets) <= 0)):
            raise ProbeError(
                f"budgets must be {m} strictly increasing numbers, got {self.budgets.tolist()!r}"
            )
        for name in ("mean_logprob", "mean_entropy", "markers", "probe_tokens"):
            bad = ~np.isfinite(getattr(self, name))
            if bad.any():
                row, column = (int(i) for i in np.argwhere(bad)[0])
                raise ProbeError(
                    f"{name} must be finite, got {getattr(self, name)[row, column]} "
                    f"for question {self.ids[row]!r} at checkpoint {column}"
                )
        if self.reference == "natural" and self.natural_correct is None:
            raise ProbeError("the natural reference needs natural answers; these probes hold none")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def n_questions(self) -> int:
        """Rows: traces."""
        return int(self.correct.shape[0])

    @property
    def n_checkpoints(self) -> int:
        """Columns: probed budgets."""
        return int(self.correct.shape[1])

    @property
    def ended(self) -> BoolArray:
        """The trace is over at this budget, so no probe happens here online."""
        return self.trace_tokens[:, None] <= self.budgets  # (n_questions, n_checkpoints)

    @property
    def think_tokens(self) -> IntArray:
        """Thinking tokens in each prefix."""
        return np.minimum(self.trace_tokens[:, None], self.budgets)

    @property
    def full_correct(self) -> BoolArray:
        """Whether full thinking is correct, under the table's reference."""
        if self.reference == "natural":
            assert self.natural_correct is not None  # held by __post_init__
            return self.natural_correct
        return self.correct[:, -1]

    @property
    def correct_online(self) -> BoolArray:
        """Correctness of what the caller gets when stopped at each checkpoint.

        Where the trace is over the question ends by itself with the reference's answer.
        """
        return np.where(self.ended, self.full_correct[:, None], self.correct)

    def with_reference(self, reference: Reference) -> ProbeTable:
        """The same probes under another full reference."""
        return replace(self, reference=reference)

    def take(self, rows: NDArray[Any]) -> ProbeTable:
        """The table of some questions, by boolean mask or by row numbers."""
        index = np.flatnonzero(rows) if rows.dtype == bool else rows
        changes: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray) and field.name != "budgets":
                changes[field.name] = value[index]
            elif isinstance(value, tuple):
                changes[field.name] = tuple(value[i] for i in index)
        return replace(self, **changes)

    @classmethod
    def from_records(
        cls, records: Sequence[ProbeRecord], reference: Reference = "natural"
    ) -> ProbeTable:
        """Build the table from graded records that share one budget grid.

        Raises
        ------
        ProbeError
            No record, or records whose grids or entropy sources differ.
        """
        if not records:
            raise ProbeError("no probes: the run holds no finished question")
        budgets = tuple(c.budget for c in records[0].checkpoints)
        source = records[0].checkpoints[0].entropy_source if budgets else "full"
        for record in records:
            if tuple(c.budget for c in record.checkpoints) != budgets:
                raise ProbeError(
                    f"question {record.id!r} was probed at other budgets than "
                    f"{records[0].id!r}: one grid is required"
                )
            for c in record.checkpoints:
                if c.entropy_source != source:
                    raise ProbeError(
                        f"question {record.id!r} has entropy source {c.entropy_source!r}, "
                        f"the run {source!r}"
                    )

        def matrix(name: str, kind: Any) -> NDArray[Any]:
            rows = [[getattr(c, name) for c in r.checkpoints] for r in records]
            return np.array(rows, dtype=kind).reshape(len(records), len(budgets))

        def vector(name: str, kind: Any) -> NDArray[Any]:
            return np.array([getattr(r, name) for r in records], dtype=kind)

        return cls(
            ids=tuple(r.id for r in records),
            keys=tuple(r.key for r in records),
            groups=tuple(r.group or r.key for r in records),
            samples=vector("sample", np.int64),
            tasks=tuple(r.task for r in records),
            categories=tuple(r.category for r in records),
            budgets=np.array(budgets, dtype=np.int64),
            correct=matrix("correct", np.bool_),
            answer_codes=_codes(matrix("normalized", object)),
            mean_logprob=matrix("mean_logprob", np.float64),
            mean_entropy=matrix("mean_entropy", np.float64),
            markers=matrix("markers", np.float64),
            probe_tokens=matrix("probe_tokens", np.float64),
            trace_tokens=vector("trace_tokens", np.int64),
            prompt_tokens=vector("prompt_tokens", np.int64),
            natural_correct=vector("natural_correct", np.bool_),
            natural_tokens=vector("natural_answer_tokens", np.float64),
            truncated=np.array([r.finish == "length" for r in records], dtype=np.bool_),
            suffix_tokens=max(r.suffix_tokens for r in records),
            entropy_source=source,
            reference=reference,
        )


def _codes(answers: NDArray[Any]) -> IntArray:
    """Number the distinct answers, so that "same answer" is an integer comparison."""
    _, codes = np.unique(answers.astype(str), return_inverse=True)
    return codes.reshape(answers.shape).astype(np.int64)


_ARCHIVE_ARRAYS = ("budgets", "correct", "think_lens", "conf_lp", "conf_ent", "mkr", "ans")


def read_archive(path: Path) -> ProbeTable:
    """Read a ``raw.npz`` in the layout of the paper's own scripts.

    Such archives hold no natural answers, so the full reference is the last checkpoint; they log
    no probe lengths, so each probe counts ``ans_tokens`` of the ``meta.json`` beside it, or the
    paper's cap.

    Raises
    ------
    ProbeError
        The file is not such an archive, or an array is missing, mis-shaped or not finite.
    """
    try:
        # Opened here, because np.load leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files}
    except OSError as error:
        raise ProbeError(f"{path}: cannot read the archive: {error}") from error
    except Exception as error:  # np.load raises several kinds for damaged zip members
        raise ProbeError(f"{path}: not a readable .npz archive: {error}") from error
    for name in _ARCHIVE_ARRAYS:
        if name not in arrays:
            raise ProbeError(f"{path}: array {name!r} is missing, found {sorted(arrays)}")
    correct = arrays["correct"]
    if correct.ndim != 2 or not correct.size:
        raise ProbeError(f"{path}: array 'correct' must have shape (N, m), got {correct.shape}")
    n, m = correct.shape
    shapes: dict[str, tuple[int, ...]] = {"budgets": (m,), "think_lens": (n,)}
    shapes |= dict.fromkeys(("conf_lp", "conf_ent", "mkr", "ans"), (n, m))
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ProbeError(
                f"{path}: array {name!r} must have shape {shape}, got {arrays[name].shape}"
            )
    for name in ("budgets", "correct", "think_lens", "conf_lp", "conf_ent", "mkr"):
        try:
            finite = bool(np.isfinite(arrays[name].astype(np.float64)).all())
        except (TypeError, ValueError):
            finite = False
        if not finite:
            raise ProbeError(f"{path}: array {name!r} must hold finite numbers only")
    if not np.isin(correct, (0, 1)).all():
        raise ProbeError(f"{path}: array 'correct' must hold 0 and 1 only")
    if len(np.unique(correct)) < 2:
        raise ProbeError(
            f"{path}: array 'correct' holds one class of labels only ({int(correct.flat[0])}); "
            "both right and wrong answers are required"
        )
    budgets = arrays["budgets"].astype(np.int64)
    trace_tokens = arrays["think_lens"].astype(np.int64)
    keys = tuple(f"row-{i}" for i in range(n))
    prefix = np.minimum(trace_tokens[:, None], budgets)
    return ProbeTable(
        ids=keys,
        keys=keys,
        groups=keys,
        samples=np.zeros(n, dtype=np.int64),
        tasks=("exact",) * n,
        categories=(None,) * n,
        budgets=budgets,
        correct=correct.astype(np.bool_),
        answer_codes=_codes(arrays["ans"]),
        mean_logprob=arrays["conf_lp"].astype(np.float64),
        mean_entropy=arrays["conf_ent"].astype(np.float64),
        # The scripts stored the density; the table holds the count, as a probe does.
        markers=arrays["mkr"].astype(np.float64) * prefix,
        probe_tokens=np.full((n, m), _answer_tokens(path), dtype=np.float64),
        trace_tokens=trace_tokens,
        prompt_tokens=np.zeros(n, dtype=np.int64),
        natural_correct=None,
        natural_tokens=None,
        truncated=np.zeros(n, dtype=np.bool_),
        suffix_tokens=0,
        entropy_source="full",
        reference="last-checkpoint",
    )


def _answer_tokens(path: Path) -> float:
    meta = path.with_name("meta.json")
    if not meta.exists():
        return float(PROBE_CAP)
    try:
        content = json.loads(meta.read_text(encoding="utf-8"))
        value = float(content.get("ans_tokens", PROBE_CAP))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ProbeError(f"{meta}: cannot read 'ans_tokens': {error}") from error
    if not (math.isfinite(value) and value > 0):
        raise ProbeError(f"{meta}: field 'ans_tokens' must be a positive number, got {value!r}")
    return value
