"""Is a certified promise still kept by the traffic?  What audits say, record by record.

One `Course` takes the records of an audit log, whether a server has just written them or
`stopadvisor monitor` reads them again: the same records give the same figures to the last digit.
Knows no files, no clock and no text of any request.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stopadvisor.errors import PolicyError
from stopadvisor.serving.watch_settings import WATCHED, WatchSettings
from stopadvisor.stats.exchangeability import ExchangeabilityTest
from stopadvisor.stats.sequential import (
    RATIOS,
    AuditProcess,
    betting_upper_limit,
    mixture_upper_limit,
)

__all__ = ["DRIFT_DELTA", "Alarm", "Course", "Point"]

DRIFT_DELTA = 0.01
"""Most probability that drift of the traffic is ever said falsely, over all features together."""

_MOST_POINTS = 1_024
"""Of the course that is kept for a picture; beyond it every second one goes."""


@dataclass(frozen=True)
class Alarm:
    """What was found, and when."""

    watch: str
    """`differs`, or the loss of the certificate."""
    kind: str
    """`e-value` or `change`; see `AuditProcess`."""
    request: int
    """Requests counted by then."""
    time: float
    """Of the record, in seconds since 1970."""


@dataclass(frozen=True)
class Point:
    """One place of the course."""

    request: int
    time: float
    e_value: float
    detector: float
    stop_share: float
    upper: float | None
    """`Course.upper_limit`; only the points that are kept to the end have it."""


class _CountsByName(dict[Any, int]):
    """Numbers by name, 0 where there is none; a Counter takes twice as long to add."""

    def __missing__(self, key: object) -> int:
        return 0


class Course:
    """Everything that the records said so far.

    Parameters
    ----------
    settings : WatchSettings
    reference : mapping of str to sequence of float
        By names of `WATCHED`: values on calibration questions.  What is missing is not watched.
    """

    def __init__(
        self, settings: WatchSettings, reference: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        self.settings = settings
        self.processes = {name: AuditProcess(test) for name, test in settings.tests().items()}
        self.drift = {
            name: ExchangeabilityTest(values)
            for name, values in (reference or {}).items()
            if name in WATCHED and len(values)
        }
        self.drifted: dict[str, int] = {}
        """By feature: the request at which its change was first seen."""
        self.alarm: Alarm | None = None
        self.counts = _CountsByName()
        self._points: list[tuple[float, float, float, _CountsByName, _CountsByName]] = []
        self._differing = _CountsByName()  # by audit share, unresolved ones included
        self._stride = 1
        self._time = 0.0

    # --- Records ----------------------------------------------------------------------------------

    def apply(self, record: Mapping[str, Any], source: str = "") -> None:
        """Take in one record of a log.

        Parameters
        ----------
        record : mapping
            As `audit_log` describes; of a kind that is unknown here nothing is made.
        source : str
            The log it stands in: request ids of several replicas are kept apart.
        """
        kind, key = record["kind"], f"{source}/{record.get('id', '')}"
        if kind == "request":
            self._request(record, key)
            counted = "share" in record
        elif kind == "result":
            counted = self._result(key, bool(record["differs"]), int(record.get("tokens") or 0))
        elif kind == "gold":
            counted = self._gold(key, served=record["served"], full=record["full"])
        elif kind == "shed":
            self.counts["shed"] += 1
            for process in self.processes.values():
                process.give_up(key)
            return
        elif kind == "reset":
            self._reset()
            return
        else:
            return
        time = record.get("t", 0.0)
        if time > self._time:
            self._time = float(time)
        self._look(marked=counted)

    def _request(self, record: Mapping[str, Any], key: str) -> None:
        counts, share, stopped = self.counts, record.get("share"), record["stop"] is not None
        counts["requests"] += 1
        counts["stopped"] += stopped
        counts["tokens"] += record.get("tokens") or 0
        if share is None:
            for process in self.processes.values():
                process.count()
        else:
            counts["audits"] += 1
            counts["audited_stops"] += stopped
            for process in self.processes.values():
                # What never stopped is full thinking itself.
                process.audit(key, share) if stopped else process.count()
            if stopped:
                self._differing[share] += 1
        if self.drift:
            self._watch_drift(record, key)

    def _watch_drift(self, record: Mapping[str, Any], key: str) -> None:
        # The same whenever the record is read, and independent of every value.
        tie = zlib.crc32(key.encode()) / 2**32
        limit = len(self.drift) / DRIFT_DELTA
        for name, test in self.drift.items():
            value = record.get(name)
            if value is None:
                if name != "stop":
                    continue
                value = -1
            if test.update(value, tie) >= limit and name not in self.drifted:
                self.drifted[name] = self.counts["requests"]

    def _result(self, key: str, differs: bool, tokens: int) -> bool:
        process = self.processes["differs"]
        share = process.share_of(key)
        if share is None:  # its request stands in a log that is gone, or before a reset
            return False
        counts = self.counts
        counts["resolved"] += 1
        counts["audit_tokens"] += tokens
        counts["differing"] += differs
        if differs:
            process.resolve(key, 1)
        else:
            self._differing[share] -= 1
            for one in self.processes.values():  # equal replies are right or wrong together
                one.give_up(key)
        return True

    def _gold(self, key: str, *, served: bool, full: bool) -> bool:
        process = self.processes[self.settings.loss]
        if not self.settings.needs_gold or process.share_of(key) is None:
            return False
        loss = int(full) - int(served)
        if self.settings.loss == "lost":
            loss = max(loss, 0)
        process.resolve(key, loss)
        self.counts["gold"] += 1
        self.counts["gold_losses"] += loss
        return True

    def _reset(self) -> None:
        """Somebody looked into the alarm: a new test begins, with a delta of its own."""
        fresh = Course(self.settings)
        self.processes, self._differing = fresh.processes, fresh._differing
        self.alarm, self.counts = None, _CountsByName({"resets": self.counts["resets"] + 1})

    def _look(self, *, marked: bool) -> None:
        counts = self.counts
        if self.alarm is None:
            for name, process in self.processes.items():
                kind = process.alarm
                if kind is not None:
                    self.alarm = Alarm(name, kind, counts["requests"], self._time)
                    marked = True
                    break
        if not marked:
            return
        counts["marks"] = marks = counts["marks"] + 1
        if marks % self._stride:
            return
        watched = self.processes["differs"]
        self._points.append(
            (
                self._time,
                watched.e_value,
                watched.detector,
                _CountsByName(self.counts),
                _CountsByName(self._differing),
            )
        )
        if len(self._points) >= _MOST_POINTS:
            self._points, self._stride = self._points[1::2], 2 * self._stride

    # --- What it comes to -------------------------------------------------------------------------

    @property
    def unresolved(self) -> int:
        """Audits of stopped requests without a result, shed ones included."""
        return self.counts["audited_stops"] - self.counts["resolved"]

    @property
    def saved_tokens(self) -> float | None:
        """What stopping saved, by what full thinking took where it was audited; None before."""
        if not self.counts["resolved"]:
            return None
        return self.counts["stopped"] * self.counts["audit_tokens"] / self.counts["resolved"]

    def upper_limit(self) -> float | None:
        """Upper limit of the share of differing replies, for a risk that does not change.

        Returns
        -------
        float or None
            None before the first audit of a stop.  Audits without a result count as differing.
            Where all were audited alike it is `mixture_upper_limit` times the share that stopped.
        """
        return self._upper(self.counts, self._differing)

    def points(self) -> tuple[Point, ...]:
        """The course, thinned out evenly; at most about a thousand places."""
        return tuple(
            Point(
                counts["requests"],
                time,
                e_value,
                detector,
                counts["stopped"] / counts["requests"],
                self._upper(counts, differing),
            )
            for time, e_value, detector, counts, differing in self._points
            if counts["requests"]
        )

    def _upper(self, counts: _CountsByName, differing: _CountsByName) -> float | None:
        audits, requests = counts["audited_stops"], counts["requests"]
        if not audits or not requests:
            return None
        delta, share = self.settings.delta, self.settings.share
        if set(differing) <= {share}:
            limit = mixture_upper_limit(audits, differing[share], delta=delta)
            return limit * counts["stopped"] / requests
        found = {one: number for one, number in differing.items() if number}
        return betting_upper_limit(requests, found, delta=delta, least_share=share)

    # --- Going on after a restart -----------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on, as JSON values."""
        return {
            "processes": {name: one.state() for name, one in self.processes.items()},
            "drift": {name: one.state() for name, one in self.drift.items()},
            "drifted": dict(self.drifted),
            "alarm": None if self.alarm is None else asdict(self.alarm),
            "counts": dict(self.counts),
            "differing": [[share, number] for share, number in self._differing.items()],
        }

    @classmethod
    def restore(cls, settings: WatchSettings, state: Mapping[str, Any]) -> Course:
        """The course that a state was taken of; its points begin anew.

        Raises
        ------
        PolicyError
            It is no such state.  Whether there is an alarm is read off the evidence too.
        """
        try:
            course = cls._restored(settings, state)
            figures = [
                *(x for one in course.processes.values() for x in (*one.logs, *one.sums)),
                *(test.capital for test in course.drift.values()),
                *course.counts.values(),
            ]
            lengths = {len(x) for one in course.processes.values() for x in (one.logs, one.sums)}
            sound = lengths == {len(RATIOS)} and all(math.isfinite(x) for x in figures)
            sound = sound and min(course.counts.values(), default=0) >= -course.counts["requests"]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise PolicyError(f"the log's header holds no state: {error!r:.80}") from error
        if not sound:
            raise PolicyError("the log's header holds no state: a number is out of range")
        if course.counts["requests"]:
            course._look(marked=False)
        return course

    @classmethod
    def _restored(cls, settings: WatchSettings, state: Mapping[str, Any]) -> Course:
        course = cls(settings)
        course.processes = {
            name: AuditProcess.restore(test, state["processes"][name])
            for name, test in settings.tests().items()
        }
        course.drift = {
            name: ExchangeabilityTest.restore(one) for name, one in state["drift"].items()
        }
        course.drifted = {**state["drifted"]}
        course.alarm = None if state["alarm"] is None else Alarm(**state["alarm"])
        course.counts = _CountsByName(state["counts"])
        course._differing = _CountsByName(dict(state["differing"]))
        return course

    @classmethod
    def join(
        cls,
        settings: WatchSettings,
        states: Sequence[Mapping[str, Any]],
        reference: Mapping[str, Sequence[float]] | None,
    ) -> Course:
        """Several replicas up to where their logs begin, as one course.

        Notes
        -----
        Products of independent bets multiply.  Sums of the change detector add up: each grows on
        average by no more than one a request, and so does their sum.  What was still open is given
        up, and drift is watched anew.
        """
        if len(states) == 1:
            return cls.restore(settings, states[0])
        course = cls(settings, reference)
        for one in (cls.restore(settings, state) for state in states):
            for name, process in course.processes.items():
                other = one.processes[name]
                process.requests += other.requests
                process.logs = [a + b for a, b in zip(process.logs, other.logs, strict=True)]
                process.sums = [a + b for a, b in zip(process.sums, other.sums, strict=True)]
            for name, number in one.counts.items():
                course.counts[name] += number
            for share, number in one._differing.items():
                course._differing[share] += number
            if one.alarm and (course.alarm is None or one.alarm.time < course.alarm.time):
                course.alarm = one.alarm
        return course
