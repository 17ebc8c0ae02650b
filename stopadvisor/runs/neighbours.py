"""Looks that runs in the same folder took at the same probes.

Another split or seed of one archive, or a copy of a run, holds outcomes that somebody may have
looked at already.  Such a look counts as if it were the run's own.  Reads ledgers, writes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stopadvisor.errors import ProbeError
from stopadvisor.json_text import parse_json
from stopadvisor.probes.table import NO_PROBE, ProbeTable
from stopadvisor.runs.chain import ARCHIVE, noted_head
from stopadvisor.runs.directory import MANIFEST
from stopadvisor.runs.ledger import LEDGER, Look, read_ledger
from stopadvisor.runs.sources import Source, open_source

__all__ = ["LooksBeside", "looks_beside", "probe_digests"]


@dataclass(frozen=True)
class LooksBeside:
    """What is on record in the folders beside a run."""

    same: Mapping[str, tuple[Look, ...]]
    """By folder: looks at the same probes, which count as this run's."""
    elsewhere: int
    """Looks at the same questions as other models or other probes answered them."""
    remarks: tuple[str, ...]
    """Ledgers that cannot be read."""


def probe_digests(table: ProbeTable) -> tuple[str, ...]:
    """What tells the probes of a question from those of any other, without an outcome, by row.

    Returns
    -------
    tuple of str
        16 hex digits over the question's key, its trace's length and the figures of its probes.
        More questions in the table, or another split, leave them alone.
    """
    found = []
    for row, key in enumerate(table.keys):
        probed = table.positions[row] != NO_PROBE
        digest = hashlib.sha256(f"{key} {table.trace_tokens[row]} ".encode())
        for values in (table.positions, table.mean_logprob, table.markers, table.probe_tokens):
            digest.update(values[row][probed].tobytes())
        found.append(digest.hexdigest()[:16])
    return tuple(found)


def looks_beside(source: Source, questions: ProbeTable) -> LooksBeside:
    """Looks at these questions that are on record in the folders beside a run.

    Raises
    ------
    ProbeError
        A ledger beside the run cannot be trusted, and its run holds the same probes.
    """
    mine, keys = set(probe_digests(questions)), set(questions.keys)
    origin, archive = _origin(source.folder), source.is_archive
    same: dict[str, tuple[Look, ...]] = {}
    elsewhere, remarks = 0, []
    for folder in _runs_beside(source.folder):
        try:
            looks = read_ledger(folder)
        except ProbeError as error:
            if mine & _digests_of(folder):
                raise ProbeError(
                    f"{error} (its probes are those of {source.folder}, so that its looks count)"
                ) from error
            remarks.append(f"{error}; its looks are not counted here")
            continue
        # Looks from before the chain name no probes: a copy of the run has its identity.
        at_same = [
            look
            for look in looks
            if mine & set(look.probes)
            or (not look.probes and keys & set(look.questions) and _origin(folder) == origin)
        ]
        if at_same:
            same[folder.name] = tuple(at_same)
        # Archives name their questions by row, which says nothing about another archive.
        if not archive and not (folder / ARCHIVE).exists():
            elsewhere += sum(
                bool(keys & set(look.questions)) for look in looks if look not in at_same
            )
    return LooksBeside(same, elsewhere, tuple(remarks))


def _runs_beside(folder: Path) -> Iterator[Path]:
    """Folders beside this one where somebody looked, or notes that somebody did."""
    here = folder.resolve()
    for path in sorted(here.parent.iterdir()):
        if path == here or not path.is_dir():
            continue
        try:
            looked = (path / LEDGER).exists() or noted_head(path) is not None
        except ProbeError:
            continue  # a manifest that cannot be read, and no ledger: nothing is known of looks
        if looked:
            yield path


def _origin(folder: Path) -> str | None:
    """The archive's hash, or the identity of the run."""
    for name, field in ((ARCHIVE, "sha256"), (MANIFEST, "id")):
        try:
            return str(parse_json((folder / name).read_bytes())[field])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _digests_of(folder: Path) -> set[str]:
    try:
        return set(probe_digests(open_source(folder).table))
    except ProbeError:
        return set()
