"""Looks that runs in the same folder took at the same probes.

Another split or seed of one archive, or a copy of a run, holds outcomes that somebody may have
looked at already.  Such a look counts as if it were the run's own.  Reads logs, writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.runs.directory import ARCHIVE, RunDirectory, digest_of
from stopadvisor.runs.look_log import Look, has_looks, read_log

__all__ = ["LooksBeside", "archived_line", "looks_beside"]


@dataclass(frozen=True)
class LooksBeside:
    """What is on record in the folders next to a run."""

    same: Mapping[str, tuple[Look, ...]] = field(default_factory=dict)
    """By folder: looks at the same probes, which count as this run's."""
    elsewhere: int = 0
    """Looks at the same questions as other models or other probes answered them."""
    remarks: tuple[str, ...] = ()
    """Logs that cannot be read."""


def archived_line(archive_sha256: str, question: str) -> str:
    """What stands for a question's line of probes where they come from an archive."""
    return digest_of(f"{archive_sha256} {question}")


def looks_beside(folder: Path, questions: Set[str], lines: Set[str]) -> LooksBeside:
    """Looks at these questions that are on record in the folders next to a run.

    Parameters
    ----------
    folder : Path
        The run, or the results folder of an archive.
    questions, lines : set of str
        Digests of the questions and of their lines of probes.

    Raises
    ------
    ProbeError
        A log next to the run cannot be trusted, and its run holds the same probes.
    """
    same: dict[str, tuple[Look, ...]] = {}
    elsewhere, remarks = 0, []
    for other in _runs_beside(folder):
        try:
            looks = read_log(other).at(questions)
        except ProbeError as error:
            if _holds(other, questions, lines):
                raise ProbeError(
                    f"{error} (its probes are those of {folder}, so that its looks count)"
                ) from error
            remarks.append(f"{error}; its looks are not counted here")
            continue
        at_same = [look for look in looks if lines & set(look.lines)]
        if at_same:
            same[other.name] = tuple(at_same)
        # Archives name their questions by row, which says nothing about another archive.
        if not any((place / ARCHIVE).exists() for place in (folder, other)):
            elsewhere += len(looks) - len(at_same)
    return LooksBeside(same, elsewhere, tuple(remarks))


def _runs_beside(folder: Path) -> Iterator[Path]:
    """Folders next to this one where somebody looked, or notes that somebody did."""
    here = folder.resolve()
    for path in sorted(here.parent.iterdir()):
        try:
            looked = path != here and path.is_dir() and has_looks(path)
        except ProbeError:
            continue  # a manifest that cannot be read, and no log: nothing is known of looks
        if looked:
            yield path


def _holds(folder: Path, questions: Set[str], lines: Set[str]) -> bool:
    """Whether a folder holds any of these lines of probes."""
    try:
        archive = parse_json((folder / ARCHIVE).read_bytes())["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return bool(lines & set(RunDirectory(folder, {}).line_digests()))
    return bool(lines & {archived_line(archive, question) for question in questions})
