"""Which outcomes may be opened, and what a look at them may still claim.

Outcomes of calibration questions stay closed until the log holds a look at them.  Every look at the
same questions spends error probability, and its settings must not depend on figures that an earlier
look showed.  Policies checked on the same questions are recorded too: the best of several may be
best by luck.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.probes.outcomes import (
    CalibrationQuestions,
    GradedTable,
    OpenQuestions,
    SealedQuestions,
)
from stopadvisor.runs.directory import ARCHIVE, PROBES, REPLIES, archived_line, digest_of
from stopadvisor.runs.look_log import Look, digests_of, read_log, timestamp, write_look, write_row
from stopadvisor.runs.sources import Source
from stopadvisor.runs.storage import finished_lines

__all__ = [
    "NeighbourLooks", "PolicyCheck", "closed_questions", "hand_out", "neighbour_looks",
    "open_all", "open_test", "record_check", "take_look", "unsealed_rows", "unshown_questions",
]  # fmt: skip


def closed_questions(source: Source) -> set[str]:
    """Keys of calibration questions whose outcomes are still closed; an archive has none."""
    return set() if source.is_archive else unshown_questions(source)


def unshown_questions(source: Source) -> set[str]:
    """Keys of calibration questions whose outcomes no recorded look has shown.

    A failed look shows only that it failed, so its questions stay closed.
    """
    log = read_log(source.folder)
    shown = log.shown.union(*(look.questions for look in log.looks if look.opened))
    return {key for key in source.part("calibration").keys if digest_of(key) not in shown}


def hand_out(sealed: SealedQuestions, look: Look) -> CalibrationQuestions:
    """Open the outcomes of questions that a look covers.

    Raises
    ------
    CalibrationError
        The look does not cover some of them.
    """
    covered = set(look.questions)
    if closed := [key for key in sealed.keys if digest_of(key) not in covered]:
        raise CalibrationError(
            f"look {look.number} does not cover {len(closed)} of these questions, e.g. "
            f"{min(closed)!r}: their outcomes stay closed"
        )
    return sealed.unseal().as_calibration()


def unsealed_rows(source: Source, rows: NDArray[Any]) -> OpenQuestions:
    """Open the outcomes of some rows.

    Raises
    ------
    CalibrationError
        Some are calibration questions that are still closed.
    """
    table = source.table.take(rows)
    if closed_questions(source) & set(table.keys):
        raise CalibrationError(
            f"{source.folder}: its calibration questions are still closed; a certificate by "
            "`stopadvisor calibrate` opens them"
        )
    return table.unseal()


def open_all(source: Source) -> OpenQuestions:
    """Open the outcomes of all questions; raises as `unsealed_rows`."""
    return unsealed_rows(source, np.arange(source.table.n_questions))


def open_test(source: Source) -> GradedTable:
    """Open the test questions, to measure a rule that was chosen without them."""
    test = source.part("test")
    return GradedTable.of(test, test.unseal().outcomes)


# --- What a look may claim ------------------------------------------------------------------------


@dataclass(frozen=True)
class NeighbourLooks:
    """Looks recorded in the folders next to a run."""

    same: Mapping[str, tuple[Look, ...]] = field(default_factory=dict)
    """By folder: looks at the same probes, which count as this run's own."""
    shown: frozenset[str] = frozenset()
    """Digests of these questions that were shown there as fit questions, with the same probes."""
    elsewhere: int = 0
    """Number of looks at the same questions with other probes, or answered by another model."""
    remarks: tuple[str, ...] = ()
    """One for each log that cannot be read and does not matter here."""


def neighbour_looks(
    folder: Path, questions: Collection[str], lines: Collection[str]
) -> NeighbourLooks:
    """Find looks at these questions in the folders next to a run.

    `folder` is a run, or the results folder of an archive; `questions` and `lines` are the digests
    of the questions and of their lines in ``probes.jsonl``.

    Raises
    ------
    ProbeError
        The log of a neighbour with the same probes cannot be trusted.
    """
    same: dict[str, tuple[Look, ...]] = {}
    shown: frozenset[str] = frozenset()
    elsewhere, remarks, here = 0, [], folder.resolve()
    for other in sorted(path for path in here.parent.iterdir() if path.is_dir() and path != here):
        try:
            log = read_log(other)
        except ProbeError as error:
            if _holds(other, questions, lines):
                raise ProbeError(
                    f"{error} (it holds the same probes as {folder}, so its looks count here)"
                ) from error
            remarks.append(f"{error}; its looks are not counted here")
            continue
        looks = log.at(questions)
        if (fit := log.shown.intersection(questions)) and _holds(other, questions, lines):
            shown |= fit
        at_same = [look for look in looks if not set(look.lines).isdisjoint(lines)]
        if at_same:
            same[other.name] = tuple(at_same)
        # Archives name questions by row number, which means nothing in another archive.
        if not any((place / ARCHIVE).exists() for place in (folder, other)):
            elsewhere += len(looks) - len(at_same)
    return NeighbourLooks(same, shown, elsewhere, tuple(remarks))


def _holds(folder: Path, questions: Collection[str], lines: Collection[str]) -> bool:
    """Whether a folder holds any of these lines of probes."""
    try:
        archive = parse_json((folder / ARCHIVE).read_bytes())["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        held = (finished_lines(folder / name)[0] for name in (PROBES, REPLIES))
        its_lines: Iterable[str] = (digest_of(line) for each in held for line in each)
    else:
        its_lines = (archived_line(archive, question) for question in questions)
    return not set(lines).isdisjoint(its_lines)


def take_look(
    folder: Path,
    questions: Sequence[str],
    asked: Mapping[str, Any],
    *,
    delta: float,
    planned: int | None = None,
    lines: Collection[str] = (),
    neighbours: NeighbourLooks | None = None,
) -> Look:
    """Record a look, and return it with what it may claim.

    The same request on the same questions is the same look: its result is known already.  The union
    bound over looks is sound as long as no request depends on calibration figures.  So a look for a
    certificate may follow only failures, which show nothing, unless its settings were fixed or
    tested before any figure was shown.

    Parameters
    ----------
    questions, lines : collection of str
        Digests of the questions it opens, and of their lines in ``probes.jsonl``.
    asked : mapping
        Everything that may change the result, as JSON values.  In a look that shows outcomes,
        ``standing`` holds the only settings that a later certificate may have.
    planned : int, optional
        Number of looks that share `delta`; the same for all of them.

    Raises
    ------
    CalibrationError
        Figures of these questions were shown before; planned looks are used up or declared too
        late; or no confidence is left.
    ProbeError
        As `read_log`.
    """
    log, neighbours = read_log(folder), neighbours or NeighbourLooks()
    keys = tuple(sorted(set(questions)))
    own = log.at(keys)
    tried = [_request(look) for look in own]
    next_door = {  # a copied log repeats looks of this run
        name: [look for look in looks if _request(look) not in tried]
        for name, looks in neighbours.same.items()
    }
    earlier = [*own, *(look for looks in next_door.values() for look in looks)]
    for look in earlier:
        if (*_request(look), look.planned) == (keys, asked, delta, planned):
            return look if look in own else write_look(folder, look)
    certifies = "standing" not in asked
    if certifies and (shown := (log.shown | neighbours.shown) & set(keys)):
        raise CalibrationError(
            f"{len(shown)} of these questions served as fit questions, here or in a run next to "
            "this one that holds the same probes: their outcomes are known, so they can certify "
            "nothing; use --fresh, or probe other questions into another --out"
        )
    if any(look.planned != planned for look in earlier):
        raise CalibrationError(
            f"looks must be declared with the first look, got --looks {planned} after "
            f"{len(earlier)} look(s) without that plan"
        )
    if earlier and planned is not None and delta != earlier[0].delta:
        raise CalibrationError(
            f"planned looks share one delta ({earlier[0].delta:g}), got {delta!r}"
        )
    number = len(earlier) + 1
    if planned is not None and number > planned:
        raise CalibrationError(
            f"all {planned} planned looks at these calibration questions are used up; add labelled "
            "questions and use --fresh"
        )
    if certifies:
        wanted = {**asked, "delta": delta}
        _check_unseen(own, wanted)
        for name, looks in next_door.items():
            _check_unseen(looks, wanted, f" in {name}, which holds the same probes")
    before = () if planned is not None else tuple(look.delta for look in earlier)
    if delta + sum(before) >= 1:
        raise CalibrationError(
            f"look {number} at delta = {delta:g} leaves no confidence; add labelled questions and "
            "use --fresh"
        )
    opens = tuple(sorted(set(lines)))
    elsewhere = neighbours.elsewhere + len(log.looks) - len(own)
    look = Look(number, planned, delta, before, asked, keys, opens, timestamp(), elsewhere)
    return write_look(folder, look)


def _request(look: Look) -> tuple[Any, ...]:
    """The fields that identify a look in any log."""
    return look.questions, dict(look.asked), look.delta


def _check_unseen(earlier: Sequence[Look], asked: Mapping[str, Any], where: str = "") -> None:
    """Refuse settings that somebody may have chosen after seeing figures of these questions."""
    for place, look in enumerate(earlier):
        until_then = earlier[: place + 1]
        if look.opened and not any(_allows(past, asked, own=not where) for past in until_then):
            names = [look.asked[name] for name in ("protocol", "study") if name in look.asked]
            showed = f"showed their outcomes ({', '.join(map(str, names))})"
            raise CalibrationError(
                f"look {look.number} at these calibration questions{where}, on "
                f"{look.created[:10]}, {'ended in a certificate' if look.certified else showed}: "
                "settings chosen by what it showed would promise more than they keep. Add "
                "labelled questions and use --fresh"
            )


def _allows(look: Look, asked: Mapping[str, Any], *, own: bool) -> bool:
    """Whether a look tested these settings, or left them standing.

    Only a look of the run's `own` counts as a test: a neighbour may have another split.
    """
    had = {"delta": look.delta, **look.asked}
    had.pop("data", None)
    if "asking" in asked and had.get("loss") == "differs":
        # Lost answers differ too, so a certificate on lost ones may follow one on differing ones.
        del had["loss"]
    settled = had.pop("standing", had if own else None)
    if settled is None:
        return False
    # A look leaves out defaults, so a further setting is another choice (a loss, a limit, a number
    # of labels), unless it follows from the questions.
    new = asked.keys() - settled.keys() - {"data", "delta", "asking", "traces"}
    return not new and all(key in asked and asked[key] == value for key, value in settled.items())


# --- Policies checked on a run's questions --------------------------------------------------------


@dataclass(frozen=True)
class PolicyCheck:
    """One policy checked on a run's questions."""

    number: int
    """Checks on any of these questions so far, this one included; a policy counts again when other
    questions are added."""
    planned: int | None
    """Number of checks declared beforehand, which share delta; None if none was declared."""
    spent: float
    """Probability that any verdict so far is wrong, for each limit separately."""

    def share_of(self, delta: float) -> float:
        """Error probability of each limit of this verdict, given the policy's delta."""
        return delta / (self.planned or 1)


def record_check(
    folder: Path, policy: str, questions: Iterable[str], *, delta: float, planned: int | None
) -> PolicyCheck:
    """Record that a policy is checked on questions, before an outcome is read.

    The same policy on the same questions is the same check.

    Raises
    ------
    CalibrationError
        Planned checks are used up, or declared too late.
    """
    keys = list(digests_of(questions))
    earlier: list[Mapping[str, Any]] = []
    for row in read_log(folder).checks:
        is_same = (row["policy"], row["questions_sha256"]) == (policy, keys)
        if is_same and planned in (None, row["planned"]):
            return _policy_check([*earlier, row])
        if set(keys) & set(row["questions_sha256"]):
            earlier.append(row)
    first = earlier[0]["planned"] if earlier else planned
    planned = first if planned is None else planned
    if planned != first or any(row["planned"] != planned for row in earlier):
        raise CalibrationError(
            f"checks must be declared with the first one, got --looks {planned} after "
            f"{len(earlier)} without that plan"
        )
    if planned is not None and len(earlier) >= planned:
        raise CalibrationError(
            f"all {planned} planned checks on these questions are used up; another one needs fresh "
            "questions"
        )
    about = {"policy": policy, "questions_sha256": keys}
    row = {**about, "delta": delta, "planned": planned, "time": timestamp()}
    write_row(folder, row)
    return _policy_check([*earlier, row])


def _policy_check(rows: Sequence[Mapping[str, Any]]) -> PolicyCheck:
    planned = rows[-1]["planned"]
    spent = sum(row["delta"] / (planned or 1) for row in rows)
    return PolicyCheck(len(rows), planned, min(spent, 1.0))
