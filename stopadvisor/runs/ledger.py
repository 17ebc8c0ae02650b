"""The ledger of looks: who looked at calibration outcomes, how often, and what that costs.

Every look at the same calibration questions spends error probability.  The ledger is written
before a result is shown, so that a look cannot be taken and forgotten, and is a hash chain, so
that none can be taken out again.  Calibration outcomes are handed out here, for a look.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stopadvisor.errors import CalibrationError, ProbeError
from stopadvisor.json_text import parse_json
from stopadvisor.probes.outcomes import CalibrationQuestions, SealedQuestions
from stopadvisor.runs.chain import (
    Entry,
    extend,
    head_of,
    noted_head,
    read_chain,
    timestamp,
    write_chain,
)

__all__ = [
    "CALIBRATION",
    "LEDGER",
    "Ledger",
    "Look",
    "LookRequest",
    "as_recorded",
    "hand_out",
    "looks_at",
    "read_ledger",
    "record_refusal",
    "record_result",
    "record_shown",
    "take_looks",
]

LEDGER = "ledger.json"
CALIBRATION = "calibration.json"
"""What `calibrate` found, which it could not without an entry in the ledger beside it."""

_NOT_IN_FILE = ("head", "certified")
"""Fields of a look that other parts of the chain say."""
_PUT_BACK = (
    "put back the ledger that belongs to this run (where the run was copied: that of the run "
    "it was copied from)"
)


@dataclass(frozen=True)
class Look:
    """One look at calibration outcomes."""

    number: int
    """Looks so far at any of these calibration questions, this one included; in runs beside this
    one too, where they hold the same probes."""
    planned: int | None
    """Looks declared beforehand; None: one at a time."""
    delta: float
    """Error probability that the certificate was to have."""
    spent: float
    """Error probability of all looks so far: k·delta, or delta if they were planned."""
    request: Mapping[str, Any]
    """Settings of the look: alpha, serving, families, bound …"""
    questions: tuple[str, ...]
    """Keys of the calibration questions looked at."""
    created: str
    elsewhere: int = 0
    """Looks by then at other questions of this run, or at other probes of these in runs beside."""
    shows: bool = False
    """Whether its figures were to be shown whatever came of it."""
    later: tuple[Mapping[str, Any], ...] = ()
    """Settings that later looks may take, declared with this one."""
    probes: tuple[str, ...] = ()
    """Digests of the probes looked at, by which runs beside this one find their own."""
    head: str = ""
    """Digest of its entry: the head of the ledger's chain when it was taken."""
    certified: bool | None = None
    """Whether it ended in a certificate; None where that was never recorded."""

    @property
    def test_delta(self) -> float:
        """Error probability that this look may use up."""
        return self.delta if self.planned is None else self.delta / self.planned

    @property
    def opened(self) -> bool:
        """Whether figures of its questions were shown; else at most that it failed."""
        return self.shows or self.certified is True

    @property
    def confidence(self) -> float:
        """Confidence of this look's certificate, by the union bound over looks."""
        return 1 - self.spent


# --- Reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ledger:
    """What a run's ledger holds."""

    entries: tuple[Entry, ...]
    """The chain, oldest first."""
    looks: tuple[Look, ...]
    shown: frozenset[str] = frozenset()
    """Keys of questions whose outcomes were shown as those of fit questions."""
    taken_over: int = 0
    """Looks in a file from before the chain, which the next entry will take over."""

    @classmethod
    def read(cls, folder: Path) -> Ledger:
        """Read and check the ledger of a run directory; empty where nobody has looked.

        Raises
        ------
        ProbeError
            It is damaged, was changed, was taken away or was put back to an earlier state; a
            certificate cannot be trusted without it.
        """
        path = folder / LEDGER
        noted, shown = noted_head(folder), _calibrated_head(folder)
        if not path.exists():
            if noted is None and shown is None:
                return cls((), ())
            where = CALIBRATION if noted is None else "the run's own note of it"
            raise ProbeError(
                f"{path}: the ledger of looks is missing, and {where} shows that there was one: "
                f"{_PUT_BACK}, or probe into another --out"
            )
        try:
            data = path.read_bytes()
            content = parse_json(data)
            is_old = content["schema"] == 1 and "looks" in content
            entries = _take_over(data, content["looks"]) if is_old else read_chain(path, content)
            looks = _looks_of(entries)
        except ProbeError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProbeError(
                f"{path}: the ledger of looks is damaged: {error}; {_PUT_BACK}"
            ) from error
        heads = {entry["digest"] for entry in entries}
        for head, where in ((noted, "the run"), (shown or None, CALIBRATION)):
            if head is not None and head not in heads:
                raise ProbeError(
                    f"{path}: the ledger of looks is an older or another one than {where} notes: "
                    f"it does not hold the entry {head[:8]}; {_PUT_BACK}"
                )
        return cls(tuple(entries), looks, _shown_in(entries), len(looks) if is_old else 0)

    @property
    def head(self) -> str | None:
        """Digest of the last entry; None where there is none."""
        return head_of(self.entries)

    def write(self, folder: Path, bodies: Iterable[Entry]) -> Ledger:
        """Put further entries at the end; an old file becomes a chain by the way."""
        entries = extend(self.entries, bodies)
        write_chain(folder / LEDGER, entries)
        return Ledger(tuple(entries), _looks_of(entries), _shown_in(entries))


def _looks_of(entries: Sequence[Entry]) -> tuple[Look, ...]:
    results = {e["look"]: e["certified"] for e in entries if e["kind"] == "result"}
    found = []
    for entry in entries:
        if entry["kind"] == "look":
            values = {k: v for k, v in entry.items() if k not in ("kind", "previous", "digest")}
            for name in ("questions", "later", "probes"):
                values[name] = tuple(values.get(name, ()))
            head = entry["digest"]
            found.append(Look(**values, head=head, certified=results.get(head)))
    return tuple(found)


def _shown_in(entries: Sequence[Entry]) -> frozenset[str]:
    return frozenset(
        key for entry in entries if entry["kind"] == "shown" for key in entry["questions"]
    )


def _take_over(data: bytes, rows: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """Make a chain of a ledger from before there was one; its first entry says so.

    Every look showed its figures then, whatever came of it.
    """
    first = {
        "kind": "taken over",
        "sha256": hashlib.sha256(data).hexdigest(),
        "looks": len(rows),
        "created": timestamp(),
    }
    return extend([], [first, *({"kind": "look", "shows": True, **row} for row in rows)])


def _calibrated_head(folder: Path) -> str | None:
    """Head that a calibration of this run notes; empty where it is from before the chain.

    None where there is no calibration, or one that took no look.
    """
    try:
        content = parse_json((folder / CALIBRATION).read_bytes())
        # Another run's calibration may have been written into this folder by --out.
        if Path(content.get("run", folder)).name not in ("", folder.resolve().name):
            return None
        look = content.get("look", {})
        return None if look is None else str(look.get("head", ""))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, TypeError):
        return ""  # there was a calibration, whatever became of its file


def read_ledger(folder: Path) -> list[Look]:
    """Looks recorded in a run directory, oldest first."""
    return list(Ledger.read(folder).looks)


def looks_at(folder: Path, questions: Sequence[str]) -> list[Look]:
    """Looks at any of these questions, oldest first."""
    return _at(read_ledger(folder), questions)


# --- Writing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LookRequest:
    """A look that is about to be taken."""

    questions: Sequence[str]
    """Keys of the calibration questions that will be looked at."""
    request: Mapping[str, Any]
    """Everything that may change the outcome, JSON values."""
    delta: float
    planned: int | None = None
    """Looks declared beforehand, to share delta; must come with the first look."""
    elsewhere: int = 0
    """Looks at these questions, but at other probes, that runs beside this one recorded."""
    beside: Mapping[str, Sequence[Look]] = field(default_factory=dict)
    """Looks at the same probes that runs beside this one recorded, by folder."""
    probes: Sequence[str] = ()
    """Digests of the probes."""
    shows: bool = False
    """Whether outcomes will be shown, instead of tested for a certificate."""
    later: Sequence[Mapping[str, Any]] = ()
    """Settings of later looks that are declared with this one; a part of a request each."""


def take_looks(folder: Path, asks: Sequence[LookRequest]) -> list[Look]:
    """Record looks, all of them or none, and return what each may claim.

    The same request on the same questions is the same look: its outcome is known already.  The
    union bound over looks is sound where no request depends on calibration figures.  So a look for
    a certificate comes after failures alone, of which nothing was shown; or with settings that
    were declared, or tested, before any figure was shown.

    Raises
    ------
    CalibrationError
        Figures of these questions were shown before; planned looks are used up or declared too
        late; or no confidence is left.
    ProbeError
        As `Ledger.read`.
    """
    ledger = Ledger.read(folder)
    looks, found = list(ledger.looks), []
    for ask in asks:
        look = _next_look(looks, ask, ledger.shown)
        if look not in looks:
            looks.append(look)
        found.append(looks.index(look))
    new = looks[len(ledger.looks) :]
    if new:
        ledger = ledger.write(folder, map(_body, new))
    return [ledger.looks[index] for index in found]


def record_result(folder: Path, look: Look, *, certified: bool) -> Look:
    """Record whether a look ended in a certificate, before the result is shown; return it so.

    One that failed may end in one yet: where labels were added for it.
    """
    ledger = Ledger.read(folder)
    place = [found.head for found in ledger.looks].index(look.head)
    known = ledger.looks[place].certified
    if known is None or (certified and not known):
        body = {"kind": "result", "look": look.head, "certified": certified}
        ledger = ledger.write(folder, [body])
    return ledger.looks[place]


def record_shown(folder: Path, questions: Iterable[str], by: str) -> None:
    """Record that outcomes of questions are shown as fit questions, in so far as it is new."""
    ledger = Ledger.read(folder)
    new = sorted(set(questions) - ledger.shown)
    if new:
        body = {"kind": "shown", "by": by, "questions": new, "created": timestamp()}
        ledger.write(folder, [body])


def record_refusal(folder: Path, request: Mapping[str, Any]) -> str:
    """Record that a request was refused without a look, once; return when that was."""
    ledger = Ledger.read(folder)
    plain = as_recorded(request)
    for entry in ledger.entries:
        if entry["kind"] == "refused" and entry["request"] == plain:
            return str(entry["created"])
    body = {"kind": "refused", "request": plain, "created": timestamp()}
    return str(ledger.write(folder, [body]).entries[-1]["created"])


def as_recorded(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request as it will be read back: tuples become lists."""
    return dict(parse_json(json.dumps(dict(request))))


def _body(look: Look) -> Entry:
    return {"kind": "look"} | {k: v for k, v in asdict(look).items() if k not in _NOT_IN_FILE}


def hand_out(sealed: SealedQuestions, look: Look) -> CalibrationQuestions:
    """The questions of a look with their outcomes.

    Raises
    ------
    CalibrationError
        Some of them are not among those looked at.
    """
    missing = set(sealed.keys) - set(look.questions)
    if missing:
        raise CalibrationError(
            f"look {look.number} is not about {len(missing)} of these questions, e.g. "
            f"{min(missing)!r}: their outcomes stay closed"
        )
    return sealed.unseal().as_calibration()


def _next_look(looks: Sequence[Look], ask: LookRequest, shown: Set[str]) -> Look:
    """The look that was taken already, or the next one."""
    keys = tuple(sorted(set(ask.questions)))
    own = _at(looks, keys)
    tried = [_what(look) for look in own]
    beside = {
        name: [look for look in found if _what(look) not in tried]  # a copy's are the same looks
        for name, found in ask.beside.items()
    }
    earlier = [*own, *(look for found in beside.values() for look in found)]
    request, later = as_recorded(ask.request), tuple(map(as_recorded, ask.later))
    delta, planned = ask.delta, ask.planned
    for look in earlier:
        same = (look.questions, dict(look.request), look.delta) == (keys, request, delta)
        if same and planned in (None, look.planned):
            return look
    spoilt = shown & set(keys)
    if spoilt and not ask.shows:
        raise CalibrationError(
            f"{len(spoilt)} of these questions served as fit questions, which shows their "
            f"outcomes, e.g. {min(spoilt)!r}: they can certify nothing; say --fresh"
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
    if not ask.shows:
        _check_unseen(own, request)
        for name, found in beside.items():
            _check_unseen(found, request, f" in {name}, which holds the same probes")
    spent = delta if planned is not None else delta + sum(look.delta for look in earlier)
    if spent >= 1:
        raise CalibrationError(
            f"look {number} at delta = {delta:g} leaves no confidence; add labels and calibrate "
            "on the new ones with --fresh"
        )
    elsewhere = ask.elsewhere + len(looks) - len(own)
    # The last planned look may show its figures, because no other can come after it.
    shows = ask.shows or bool(later) or number == planned
    probes = tuple(sorted(set(ask.probes)))
    now = timestamp()
    return Look(number, planned, delta, spent, request, keys, now, elsewhere, shows, later, probes)


def _what(look: Look) -> tuple[Any, ...]:
    """What makes a look the same one, wherever it is recorded."""
    return look.questions, look.request, look.delta


_DATA = ("data", "version")
"""What of a request is no setting: the probes, and the package."""


def _check_unseen(earlier: Sequence[Look], request: Mapping[str, Any], where: str = "") -> None:
    """Refuse settings that may have been chosen by figures of these calibration questions."""
    for place, look in enumerate(earlier):
        known = earlier[: place + 1]
        if look.opened and not any(_allows(past, request, own=not where) for past in known):
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
                "and say --fresh, or declare further settings with the first look (--later-alpha)"
            )


def _allows(look: Look, request: Mapping[str, Any], *, own: bool) -> bool:
    """Whether a look of this run had these settings, or a look declared them.

    Next door the split may be another, which nobody settled beforehand.
    """
    had = {key: value for key, value in look.request.items() if key not in _DATA}
    if "asking" in request and had.get("loss") == "differs":
        # Lost answers are among those that differ: whoever certified these may label for those.
        del had["loss"]
    return any(
        all(key in request and request[key] == value for key, value in row.items())
        for row in (*((had,) if own else ()), *look.later)
    )


def _who(look: Look) -> list[str]:
    """Who looked, as the ledger names it."""
    names = ("protocol", "study")
    return [str(look.request[name]) for name in names if name in look.request] or ["older ledger"]


def _at(looks: Sequence[Look], questions: Sequence[str]) -> list[Look]:
    mine = set(questions)
    return [look for look in looks if mine & set(look.questions)]
