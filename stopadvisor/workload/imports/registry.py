"""The formats that can be imported, by the name that the command line knows them by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stopadvisor.workload.imports.inspect_log import read_inspect
from stopadvisor.workload.imports.lm_eval import read_lm_eval
from stopadvisor.workload.imports.logged import LogContent, LogOptions
from stopadvisor.workload.imports.tables import read_csv, read_parquet_table

__all__ = ["FORMATS", "LogFormat"]


@dataclass(frozen=True)
class LogFormat:
    """One format."""

    read: Callable[[Sequence[Path], LogOptions], LogContent]
    files: str
    """What its files are."""
    columns: Literal["none", "some", "question"] = "none"
    """Whether the user names columns: never, where needed, or at least the question's."""


FORMATS = {
    "inspect": LogFormat(read_inspect, "logs of inspect_ai, .eval or .json"),
    "lm-eval": LogFormat(read_lm_eval, "samples_*.jsonl of lm-eval --log_samples", "some"),
    "csv": LogFormat(read_csv, "CSV with a header", "question"),
    "parquet": LogFormat(read_parquet_table, "Parquet", "question"),
}
