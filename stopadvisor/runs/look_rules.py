"""What may follow what was looked at before, and what it may claim.

Every look at the same calibration questions spends error probability, and none may depend on
figures that an earlier one showed.  Of several policies held against the same questions the best
one may be best by luck, so each is entered in the log too.  Knows the log, and no rule and no
bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.runs.directory import ARCHIVE, RunDirectory, digest_of
from stopadvisor.runs.look_log import (
    Look,
    LookLog,
    as_recorded,
    digests_of,
    has_looks,
    read_log,
    timestamp,
    write_look,
    write_rows,
)

__all__ = [
    "LookRequest",
    "LooksBeside",
    "PolicyCheck",
    "archived_line",
    "looks_beside",
    "record_check",
    "take_look",
]


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


@dataclass(frozen=True)
class LookRequest:
    """A look that is about to be taken."""

    questions: tuple[str, ...]
    """Digests of the questions that it will open."""
    asked: Mapping[str, Any]
    """Everything that may change the outcome, as JSON values.

    ``standing`` are the settings with which a certificate may still follow a look that shows
    outcomes.
    """
    delta: float
    planned: int | None = None
    """Looks declared beforehand, to share delta; must come with the first look."""
    lines: tuple[str, ...] = ()
    """Digests of the lines of probes that it will open."""
    beside: LooksBeside = field(default_factory=LooksBeside)
    """What is on record in the folders next to the run."""


def take_look(folder: Path, ask: LookRequest) -> Look:
    """Record a look and return what it may claim.

    The same request on the same questions is the same look: its outcome is known already.  The
    union bound over looks is sound where no request depends on calibration figures.  So a look for
    a certificate comes after failures alone, of which nothing was shown; or with settings that
    stood, or were tested, before any figure was shown.

    Raises
    ------
    CalibrationError
        Figures of these questions were shown before; planned looks are used up or declared too
        late; or no confidence is left.
    ProbeError
        As `read_log`.
    """
    log = read_log(folder)
    look = _next_look(log, ask)
    if look in log.looks:
        return look
    return write_look(folder, look)


def _next_look(log: LookLog, ask: LookRequest) -> Look:
    """The look that was taken already, or the next one, which has no line yet."""
    keys = tuple(sorted(set(ask.questions)))
    own = log.at(keys)
    tried = [_what(look) for look in own]
    beside = {
        name: [look for look in theirs if _what(look) not in tried]  # a copy's are the same looks
        for name, theirs in ask.beside.same.items()
    }
    earlier = [*own, *(look for theirs in beside.values() for look in theirs)]
    asked, delta, planned = as_recorded(ask.asked), ask.delta, ask.planned
    for look in earlier:
        same = _what(look) == (keys, asked, delta)
        if same and planned in (None, look.planned):
            return look
    certifies = "standing" not in asked
    if certifies and (spoilt := log.shown & set(keys)):
        raise CalibrationError(
            f"{len(spoilt)} of these questions served as fit questions, which shows their "
            "outcomes: they can certify nothing; say --fresh"
        )
    if planned is None and earlier:
        planned = earlier[0].planned
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
            f"all {planned} planned looks at these calibration questions are used up; add labels "
            "and calibrate on the new ones with --fresh"
        )
    if certifies:
        _check_unseen(own, asked)
        for name, theirs in beside.items():
            _check_unseen(theirs, asked, f" in {name}, which holds the same probes")
    before = () if planned is not None else tuple(look.delta for look in earlier)
    if delta + sum(before) >= 1:
        raise CalibrationError(
            f"look {number} at delta = {delta:g} leaves no confidence; add labels and calibrate "
            "on the new ones with --fresh"
        )
    elsewhere = ask.beside.elsewhere + len(log.looks) - len(own)
    lines = tuple(sorted(set(ask.lines)))
    return Look(number, planned, delta, before, asked, keys, lines, timestamp(), elsewhere)


def _what(look: Look) -> tuple[Any, ...]:
    """What makes a look the same one, wherever it is recorded."""
    return look.questions, dict(look.asked), look.delta


def _check_unseen(earlier: Sequence[Look], asked: Mapping[str, Any], where: str = "") -> None:
    """Refuse settings that may have been chosen by figures of these calibration questions."""
    for place, look in enumerate(earlier):
        known = earlier[: place + 1]
        if look.opened and not any(_allows(past, asked, own=not where) for past in known):
            what = (
                "ended in a certificate"
                if look.certified
                else f"showed their outcomes ({', '.join(_who(look))})"
            )
            raise CalibrationError(
                f"look {look.number} at these calibration questions{where}, of "
                f"{look.created[:10]}, "
                f"{what}: other settings could have been chosen by what it showed, and a "
                "certificate of theirs would promise more than it holds. Add labelled questions "
                "and say --fresh"
            )


def _allows(look: Look, asked: Mapping[str, Any], *, own: bool) -> bool:
    """Whether a look of this run had these settings, or left them standing.

    Next door the split may be another, which nobody settled beforehand.
    """
    had = {key: value for key, value in look.asked.items() if key != "data"}
    if "asking" in asked and had.get("loss") == "differs":
        # Lost answers are among those that differ: whoever certified these may label for those.
        del had["loss"]
    standing = had.pop("standing", None)
    rows = [had] if own and standing is None else []
    rows += [] if standing is None else [standing]
    # Which labels count is settled before any figure of these questions is shown.
    return any(
        all(key in asked and asked[key] == value for key, value in row.items())
        and row.get("sampled_labels") == asked.get("sampled_labels")
        for row in rows
    )


def _who(look: Look) -> list[str]:
    """Who looked, as the log names it."""
    return [str(look.asked[name]) for name in ("protocol", "study") if name in look.asked]


# --- Policies that are held against questions -----------------------------------------------------


@dataclass(frozen=True)
class PolicyCheck:
    """One policy that was held against a run's questions."""

    number: int
    """Policies checked on any of these questions so far, this one included."""
    planned: int | None
    """Policies declared beforehand, which share the error probability of each; None: undeclared."""
    spent: float
    """Error probability of all verdicts so far together, each limit by itself."""

    def share_of(self, delta: float) -> float:
        """Return the error probability of each limit of this verdict, out of the policy's."""
        return delta / (self.planned or 1)


def record_check(
    folder: Path, policy: str, questions: Iterable[str], *, delta: float, planned: int | None
) -> PolicyCheck:
    """Record that a policy is held against questions, before an outcome is read.

    The same policy on the same questions is the same check.

    Raises
    ------
    CalibrationError
        Planned policies are used up, or declared too late.
    """
    keys = list(digests_of(questions))
    earlier: list[Mapping[str, Any]] = []
    for row in read_log(folder).checks:
        if (row["policy"], row["questions_sha256"]) == (policy, keys):
            if planned not in (None, row["planned"]):
                break
            return _policy_check(earlier, row)
        if set(keys) & set(row["questions_sha256"]):
            earlier.append(row)
    first = earlier[0]["planned"] if earlier else planned
    planned = first if planned is None else planned
    if planned != first or any(row["planned"] != planned for row in earlier):
        raise CalibrationError(
            f"policies must be declared with the first one, got --looks {planned} after "
            f"{len(earlier)} without that plan"
        )
    if planned is not None and len({row["policy"] for row in earlier} - {policy}) >= planned:
        raise CalibrationError(
            f"all {planned} planned policies were checked on these questions; a further one needs "
            "fresh questions"
        )
    row = {
        "policy": policy,
        "questions_sha256": keys,
        "delta": delta,
        "planned": planned,
        "time": timestamp(),
    }
    write_rows(folder, [row])
    return _policy_check(earlier, row)


def _policy_check(earlier: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> PolicyCheck:
    deltas = {each["policy"]: each["delta"] for each in (*earlier, row)}
    planned = row["planned"]
    spent = sum(delta / (planned or 1) for delta in deltas.values())
    return PolicyCheck(len(deltas), planned, min(spent, 1.0))
