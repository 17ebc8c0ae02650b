"""Where probes come from: a run directory, or a published archive with a folder for its results.

A source is a table of probes with its split and origin.  It hands out fit questions with their
outcomes, and the other parts sealed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.json_text import parse_json, read_object
from stopadvisor.probes.outcomes import FitQuestions, Outcomes, SealedQuestions
from stopadvisor.probes.rungs import Rungs
from stopadvisor.probes.table import GradedBy
from stopadvisor.runs.archives import read_archive
from stopadvisor.runs.directory import (
    ARCHIVE,
    CALIBRATION,
    MANIFEST,
    PROBES,
    REPLIES,
    RunDirectory,
    archived_line,
    digest_of,
)
from stopadvisor.runs.ladder import Ladder, recorded_ladder
from stopadvisor.runs.look_log import refuse_first_release
from stopadvisor.runs.manifest import split_of
from stopadvisor.runs.storage import make_folder, replace_file, write_json_atomically
from stopadvisor.workload.questions import PARTS, assign_parts, default_split

__all__ = [
    "ARCHIVE", "ASSESSMENT", "REPORT", "Part", "Source", "considered_alpha", "keep_model_as_given",
    "model_as_given", "newest_run", "newest_source", "open_source", "read_assessment",
    "read_calibration",
]  # fmt: skip

ASSESSMENT = "assessment.json"
REPORT = "report.html"
"""Assessment and calibration as one page."""

_OPTIONS = "stopadvisor.toml"
"""The options that `assess` was given, or the model's folder alone."""

_RUNS = Path("runs")

# The data whose hash a look records, in this order.
_FINGERPRINT = (
    *("ids", "keys", "groups", "samples", "tasks", "categories", "positions", "correct"),
    *("answer_codes", "mean_logprob", "mean_entropy", "markers", "probe_tokens", "trace_tokens"),
    *("prompt_tokens", "natural_correct", "natural_tokens", "truncated", "suffix_tokens"),
    *("entropy_source", "reference", "visible_correct", "visible_tokens", "marker_positions"),
    *("by_gold", "rungs"),
)
_ANSWERS = ("natural_code", "visible_code")
"""Answer codes; hashed only if a loss compares answers, not for losses on grades."""
_LABELS = ("keys", "samples", "positions", "correct", "natural_correct", "visible_correct")
_OPTIONAL = ("visible_correct", "visible_tokens", "marker_positions", "by_gold", "rungs")
"""Not hashed where they are missing, so that hashes of earlier looks still match."""

Part = Literal["fit", "calibration", "test"]


@dataclass(frozen=True)
class Source:
    """Probes with their split and origin."""

    folder: Path
    """Where results go: the run directory, or an archive's results folder."""
    table: SealedQuestions
    """All traces, sealed: `part` opens outcomes of fit questions, `access` the others."""
    parts: NDArray[np.int8]  # (n_questions,) index into workload.PARTS
    seed: int
    fractions: tuple[float, float, float]
    manifest: Mapping[str, Any] | None
    """None for archives, which are bound to no model."""
    workload_sha256: str
    """SHA-256 of the workload file, or of the archive."""
    torn: str | None = None
    """A remark on a half-written last line of the probes; None if all lines are whole."""
    lines: Mapping[str, frozenset[str]] = field(default_factory=dict, repr=False)
    """By key: digests of the lines of probes that hold the question's first two traces."""

    @overload
    def part(self, name: Literal["fit"]) -> FitQuestions: ...

    @overload
    def part(self, name: Literal["calibration", "test"]) -> SealedQuestions: ...

    def part(self, name: Part) -> FitQuestions | SealedQuestions:
        """The questions of one part of the split: fit questions open, the others sealed."""
        table = self.table.take(self.parts == PARTS.index(name))
        return table.unseal().as_fit() if name == "fit" else table

    def fingerprint(self, *, answers: bool = False) -> str:
        """Hash of all data of fit and calibration questions; reveals no outcome.

        With `answers` it covers the answers of full thinking and of visible replies too, for losses
        that compare them.
        """
        return self._hash_of((*_FINGERPRINT, *_ANSWERS) if answers else _FINGERPRINT)

    def labels_fingerprint(self) -> str:
        """Hash of the grades of fit and calibration questions; reveals no outcome."""
        return self._hash_of(_LABELS)

    def _hash_of(self, names: Sequence[str]) -> str:
        table = self.table.take(self.parts != PARTS.index("test")).unseal()
        digest = hashlib.sha256()
        for name in names:
            where = table.outcomes if name in Outcomes.__dataclass_fields__ else table
            value = getattr(where, name)
            if value is None and name in (*_OPTIONAL, *_ANSWERS):
                continue
            if name == "positions" and table.is_grid:
                name, value = "budgets", table.budgets
            if isinstance(value, Rungs):
                value = value.canonical()
            data = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            digest.update(b"%s %d " % (name.encode(), len(data)) + data)
        return digest.hexdigest()

    def counts(self) -> dict[str, int]:
        """Number of questions in each part; several traces of a question count once."""
        parts = self.parts[self.table.samples == 0]
        return {name: int((parts == k).sum()) for k, name in enumerate(PARTS)}

    def without_repeats(self) -> Source:
        """The source without second traces, if only fit questions have them."""
        again = self.table.samples > 0
        if not again.any() or (self.parts[again] != PARTS.index("fit")).any():
            return self
        return replace(self, table=self.table.take(~again), parts=self.parts[~again])

    @property
    def ladder(self) -> Ladder | None:
        """The ladder whose replies it holds; None if it holds probes of one model."""
        return None if self.manifest is None else recorded_ladder(self.manifest, self.folder)

    def require_whole(self) -> None:
        """Refuse a run whose probing was interrupted: short traces, the easier ones, end first."""
        asked = None if self.manifest is None else self.manifest.get("asked")
        if type(asked) is int and (missing := asked - sum(map(len, self.lines.values()))) > 0:
            raise ProbeError(
                f"{self.folder}: {missing} of {asked} traces are missing, and those that end first "
                "are not like all: repeat the interrupted `probe` or `assess`"
            )

    def require_one_trace(self, what: str) -> None:
        """Refuse a ladder's run; `what` names the work that needs probes of one trace."""
        if self.ladder is not None:
            raise ProbeError(
                f"{self.folder} holds replies of a ladder, and {what} takes probes of one trace; "
                "for a ladder use `stopadvisor assess`"
            )

    @property
    def graded_by(self) -> GradedBy:
        """Whether answers to its calibration questions are graded by gold or by agreement."""
        return self.part("calibration").graded_by

    @property
    def is_archive(self) -> bool:
        """Whether it is a published archive, whose outcomes are open."""
        return self.manifest is None

    @property
    def model(self) -> str | None:
        """Name of the model; None for archives."""
        return None if self.manifest is None else self.manifest["engine"].get("model")

    @property
    def model_to_serve(self) -> str | None:
        """The model for a server to load: a name, or the local folder that `assess` was given."""
        return None if self.model is None else model_as_given(self.folder, self.model)

    @property
    def engine(self) -> str | None:
        """Name of the engine; None for archives."""
        return None if self.manifest is None else self.manifest["engine"].get("engine")


def keep_model_as_given(model: str | None, folder: Path) -> None:
    """Note a local model's folder for `model_as_given`, unless `assess` has noted its options."""
    file = folder / _OPTIONS
    if model is not None and Path(model).is_dir() and not file.exists():
        given = json.dumps(model, ensure_ascii=False)
        replace_file(file, f"[assess]\nmodel = {given}\n".encode())


def model_as_given(folder: Path, model: str) -> str:
    """A local model's folder as it was given for probing; the manifest holds only its name."""
    try:
        options = tomllib.loads((folder / _OPTIONS).read_text(encoding="utf-8"))
        given = options["assess"]["model"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return model  # a hub's model, or the file was edited
    return given if isinstance(given, str) and Path(given).name == model else model


def open_source(
    path: Path,
    *,
    seed: int | None = None,
    fractions: tuple[float, float, float] | None = None,
    folder: Path | None = None,
    keep: bool = True,
) -> Source:
    """Open a run directory, a published ``.npz`` archive, or the results folder of one.

    A run's split was drawn when it began.  An archive's is drawn when it is first opened, by `seed`
    (default 0) and `fractions` (default `default_split`); its results folder is `folder`, or one
    under ``runs/``.  Callers that write nothing pass ``keep=False``, and none is made.

    Raises
    ------
    ProbeError
        `path` is none of the three, or damaged, or an archive that was split differently before.
    OutputError
        The results folder of an archive cannot be made.
    """
    if path.is_dir():
        if (path / MANIFEST).exists():
            return _of_run(RunDirectory.load(path))
        if (path / ARCHIVE).exists():
            return _of_results_folder(path)
        raise ProbeError(f"{path}: not a run directory: it holds no {MANIFEST}")
    if not path.exists():
        raise ProbeError(f"{path}: no such file or directory")
    if path.suffix != ".npz":
        raise ProbeError(
            f"{path}: expected a run directory or a raw.npz archive; `stopadvisor probe` makes a "
            "run from a workload"
        )
    digest = _sha256(path)
    folder = folder or _RUNS / f"{path.stem}-archive-{digest[:8]}"
    note = folder / ARCHIVE
    if note.exists():
        source = _of_results_folder(folder)
        if source.workload_sha256 != digest:
            raise ProbeError(
                f"{folder}: holds the results of another archive; choose another --out"
            )
        if seed not in (None, source.seed) or fractions not in (None, source.fractions):
            shares = "/".join(f"{100 * f:g}" for f in source.fractions)
            raise ProbeError(
                f"{folder}: its split was drawn as {shares} with seed {source.seed} and is never "
                "drawn again"
            )
        return source
    table = read_archive(path).sealed()
    split = fractions or default_split(table.n_questions)
    content = {
        "schema": 1,
        "path": str(path.resolve()),
        "sha256": digest,
        "split": {"seed": seed or 0, "fractions": list(split)},
    }
    if keep:
        make_folder(folder)
        write_json_atomically(note, content)
    return _of_archive(folder, table, content)


def newest_source() -> Source:
    """The run or archive under ``runs/`` that was assessed last."""
    return open_source(_newest("assess", "assessed", (ASSESSMENT,)))


def newest_run() -> Path:
    """The folder under ``runs/`` that was probed last."""
    return _newest("probe", "probed", (PROBES, REPLIES, ARCHIVE))


def _newest(command: str, done: str, names: Sequence[str]) -> Path:
    files = [file for name in names for file in _RUNS.glob(f"*/{name}")]
    if not files:
        raise ProbeError(
            f"no {done} run under {_RUNS}/: run `stopadvisor {command} WORKLOAD` first, or "
            "name a run directory"
        )
    return max(files, key=lambda file: (file.stat().st_mtime_ns, str(file))).parent


def considered_alpha(document: Mapping[str, Any]) -> float:
    """The alpha of an assessment's figures: the requested one, else the proposed one."""
    alpha = document["alpha"]
    return float(document["matched_risk"][0]["alpha"] if alpha is None else alpha)


def read_assessment(folder: Path) -> dict[str, Any] | None:
    """Read a run's ``assessment.json``; None if it has none yet."""
    return _written_by("assess", folder / ASSESSMENT)


def read_calibration(folder: Path) -> dict[str, Any] | None:
    """Read a run's ``calibration.json``; None if it has none yet."""
    return _written_by("calibrate", folder / CALIBRATION)


def _written_by(command: str, file: Path) -> dict[str, Any] | None:
    refuse_first_release(file.parent)
    if not os.path.exists(file):
        return None
    return read_object(file, ProbeError, f"; {command} again")


def _of_run(run: RunDirectory) -> Source:
    table = run.table()
    lines: dict[str, set[str]] = {}
    # strict=False: another process may have appended lines in the meantime.
    rows = zip(table.keys, table.samples.tolist(), run.line_digests(), strict=False)
    for key, sample, digest in rows:
        if sample < 2:
            lines.setdefault(key, set()).add(digest)
    return Source(
        run.path,
        table,
        run.parts(table.groups),
        *split_of(run.manifest),
        run.manifest,
        run.manifest["workload"]["sha256"],
        torn=run.torn(),
        lines={key: frozenset(digests) for key, digests in lines.items()},
    )


def _of_results_folder(folder: Path) -> Source:
    note = folder / ARCHIVE
    try:
        content = parse_json(note.read_text(encoding="utf-8"))
        path, digest = Path(content["path"]), content["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProbeError(f"{note}: not readable as the note of an archive: {error}") from error
    if not path.exists() or _sha256(path) != digest:
        raise ProbeError(f"{path}: the archive of {folder} is gone or has changed")
    return _of_archive(folder, read_archive(path).sealed(), content)


def _of_archive(folder: Path, table: SealedQuestions, content: Mapping[str, Any]) -> Source:
    (seed, fractions), digest = split_of(content), content["sha256"]
    parts = assign_parts(table.groups, seed=seed, fractions=fractions)
    lines = {key: frozenset({archived_line(digest, digest_of(key))}) for key in table.keys}
    return Source(folder, table, parts, seed, fractions, None, digest, lines=lines)


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ProbeError(f"{path}: cannot read: {error.strerror or error}") from error
