"""Is a certified promise still kept by the traffic?  What audits say, record by record.

There are three alarms.  *Promise*: the loss that the certificate limits is above its limit.  *Early
warning*: more replies differ from full thinking than calibration saw, which the promise may
survive.  *Change*: a loss has lately risen above its limit, as far as a detector can tell that also
errs now and then.

One `Course` takes the records of an audit log, whether a server has just written them or
`stopadvisor monitor` reads them again: the same records give the same figures to the last digit.
Knows no files, no clock and no text of any request.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import Policy
from stopadvisor.stats.exchangeability import ExchangeabilityTest
from stopadvisor.stats.sequential import AuditProcess, AuditTest

__all__ = [
    "ALARMS", "DRIFT_DELTA", "MEANINGS", "Alarm", "AlarmKind", "Course", "WatchSettings",
    "drift_reference", "exit_code", "watch_settings",
]  # fmt: skip

AlarmKind = Literal["promise", "early-warning", "change"]
ALARMS: tuple[AlarmKind, ...] = get_args(AlarmKind)
"""The gravest first."""
MEANINGS: Mapping[AlarmKind, str] = {
    "promise": "the promise is broken",
    "early-warning": "more replies differ from full thinking than calibration saw; "
    "the promise may still hold",
    "change": "a loss seems to have risen above its limit lately",
}
"""What each alarm says."""

DRIFT_DELTA = 0.01
"""Largest probability of ever reporting drift where there is none, over all features together."""
CHANGE = 1e6
"""Mean requests until a false alarm of change, at least, for each server."""
WATCHED: tuple[str, ...] = ("stop", "prompt_tokens", "first_logprob")
"""Features of a request that are compared with those of calibration, as records name them."""


@dataclass(frozen=True)
class WatchSettings:
    """What is watched; settled before the first request, and written into each log."""

    digest: str
    """Of the policy."""
    loss: str
    """Of the certificate: `lost`, `differs` or `drop`."""
    alpha: float
    """What the certificate promises of this loss."""
    differs_limit: float
    """Share of replies that may differ before there is an early warning: what calibration saw of
    this rule.  Alpha itself where the loss is `differs`."""
    delta: float
    """Largest probability of ever raising a false alarm of the promise or a false early warning,
    the two together."""
    share: float
    """Of requests that are audited."""
    change: float
    """Mean requests until a false alarm of change, at least; `CHANGE`."""

    @property
    def needs_gold(self) -> bool:
        """Whether only gold shows a broken promise, and differing replies are an early warning."""
        return self.loss != "differs"

    def tests(self) -> dict[str, AuditTest]:
        """By what they watch: `differs`, and the loss of the certificate where it needs gold.

        Two tests share delta, and each of two change detectors takes twice as long to a false
        alarm, so that delta holds for the policy however many tests it has.
        """
        losses = ("differs", self.loss) if self.needs_gold else ("differs",)
        limits = {"differs": self.differs_limit, self.loss: self.alpha}
        return {
            loss: AuditTest(
                limits[loss],
                self.delta / len(losses),
                self.share,
                self.change * len(losses),
                gains=loss == "drop",
            )
            for loss in losses
        }


def watch_settings(policy: Policy, *, share: float) -> WatchSettings:
    """What to watch for a policy.

    Raises
    ------
    PolicyError
        The policy promises nothing, or does not say how many replies may differ.
    CalibrationError
        A number is out of range.
    """
    certificate = policy.terms.certificate
    if certificate is None:
        raise PolicyError("the policy never stops and promises nothing: there is nothing to watch")
    limit = certificate.alpha if certificate.loss == "differs" else certificate.differs_upper
    if limit is None:
        raise PolicyError(
            f"the policy promises {certificate.loss!r} and does not say how many replies may "
            "differ from full thinking: calibrate it again"
        )
    settings = WatchSettings(
        policy.digest, certificate.loss, certificate.alpha, limit, certificate.delta, share, CHANGE
    )
    settings.tests()  # refuses numbers out of range
    return settings


def drift_reference(policy: Policy) -> Mapping[str, Sequence[float]]:
    """What calibration questions were like, by names of `WATCHED`; empty where it is not held."""
    served = policy.terms.served
    held = {name: getattr(served, name, None) for name in WATCHED}
    return {name: values for name, values in held.items() if values}


# --- The course -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alarm:
    """What rang, and when."""

    watch: str
    """`differs`, or the loss of the certificate."""
    kind: AlarmKind
    """The promise, an early warning, or a change."""
    request: int
    """Requests counted by then."""
    time: float
    """Of the record, in seconds since 1970."""


def exit_code(alarms: Mapping[AlarmKind, Alarm]) -> int:
    """How `monitor` and a server end: 6 for the promise's alarm, 8 for the others, 0 for none."""
    return 6 if "promise" in alarms else 8 if alarms else 0


_COUNTS = (
    *("requests", "stopped", "tokens", "audits", "audited_stops", "resolved", "differing", "shed"),
    *("audit_tokens", "gold", "gold_losses", "resets"),
)
"""What a course counts."""


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
        self.alarms: dict[AlarmKind, Alarm] = {}
        """The first of each kind; they stay until a reset."""
        self.counts = dict.fromkeys(_COUNTS, 0)
        self._time = 0.0

    # --- Records ----------------------------------------------------------------------------------

    def apply(self, record: Mapping[str, Any], source: str = "") -> None:
        """Take in one record, as `audit_log` reads it.

        A `source`, in which there is no slash, keeps ids of several servers apart.
        """
        kind, key = record["kind"], f"{source}/{record.get('id', '')}"
        if kind == "shed":
            self.counts["shed"] += 1
            for process in self.processes.values():
                process.give_up(key)
            return
        if kind == "reset":  # somebody looked into an alarm: new tests, with a delta of their own
            self.processes = Course(self.settings).processes
            self.alarms, resets = {}, self.counts["resets"] + 1
            self.counts = {**dict.fromkeys(_COUNTS, 0), "resets": resets}
            return
        if kind == "request":
            self._request(record, key)
        else:
            self._result(key, bool(record["differs"]), int(record.get("tokens") or 0))
        time = record.get("t", 0.0)
        if time > self._time:
            self._time = float(time)
        self._look()

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

    def _result(self, key: str, differs: bool, tokens: int) -> None:
        if not self.processes["differs"].is_open(key):
            return  # its request stands in a log that is gone, or before a reset
        counts = self.counts
        counts["resolved"] += 1
        counts["audit_tokens"] += tokens
        counts["differing"] += differs
        if differs:
            self.processes["differs"].resolve(key, 1)
        else:
            for process in self.processes.values():  # equal replies are right or wrong together
                if process.is_open(key):
                    process.resolve(key, 0)

    def settle(self, gold: Mapping[str, tuple[bool, bool]]) -> None:
        """Take in gold that came later, all of it, and then look once: its order plays no part.

        By the request's id: whether the reply is right, and whether full thinking is.  Nothing is
        made of it where the promise needs none.
        """
        process = self.processes[self.settings.loss]
        for key in process.open_keys() if self.settings.needs_gold else ():
            grades = gold.get(str(key).partition("/")[2])
            if grades is not None:
                served, full = grades
                loss = int(full) - int(served)
                loss = max(loss, 0) if self.settings.loss == "lost" else loss
                process.resolve(key, loss)
                self.counts["gold"] += 1
                self.counts["gold_losses"] += loss
        self._look()

    def _look(self) -> None:
        for name, process in self.processes.items():
            kind: AlarmKind = "promise" if name == self.settings.loss else "early-warning"
            for rings, of_kind in ((process.is_broken, kind), (process.has_changed, "change")):
                if rings and of_kind not in self.alarms:
                    requests = self.counts["requests"]
                    self.alarms[of_kind] = Alarm(name, of_kind, requests, self._time)

    # --- Results ----------------------------------------------------------------------------------

    @property
    def dropped_share(self) -> float:
        """Share of the audits of stops that were given up, among those that have ended."""
        ended = self.counts["resolved"] + self.counts["shed"]
        return self.counts["shed"] / ended if ended else 0.0

    def upper_limit(self, watch: str = "differs") -> float | None:
        """Upper limit of the share of replies that count as `watch`, for a risk that is constant.

        Audits without a result, and differing ones without gold where the loss needs it, count as
        losses; None before the first audit of a stop.
        """
        if not self.counts["audited_stops"]:
            return None
        return self.processes[watch].upper_limit(self.settings.delta)

    # --- Going on after a restart -----------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on, as JSON values."""
        return {
            "processes": {name: one.state() for name, one in self.processes.items()},
            "drift": {name: one.state() for name, one in self.drift.items()},
            "drifted": dict(self.drifted),
            "alarms": {kind: asdict(alarm) for kind, alarm in self.alarms.items()},
            "counts": dict(self.counts),
        }

    @classmethod
    def restore(cls, settings: WatchSettings, state: Mapping[str, Any]) -> Course:
        """Rebuild the course saved by `state`.

        Raises
        ------
        PolicyError
            It is no such state.  Whether there is an alarm is read off the evidence too.
        """
        course = cls(settings)
        try:
            course.processes = {
                name: AuditProcess.restore(test, state["processes"][name])
                for name, test in settings.tests().items()
            }
            course.drift = {
                name: ExchangeabilityTest.restore(one) for name, one in state["drift"].items()
            }
            course.drifted = {**state["drifted"]}
            course.alarms = {kind: Alarm(**state["alarms"][kind]) for kind in state["alarms"]}
            course.counts = {name: state["counts"].get(name, 0) for name in _COUNTS}
            figures = [
                *(x for one in course.processes.values() for x in (*one.logs, *one.sums)),
                *(test.capital for test in course.drift.values()),
                *(number for one in course.processes.values() for number in one.losses.values()),
                *course.counts.values(),
                *(x for alarm in course.alarms.values() for x in (alarm.request, alarm.time)),
            ]
            sound = all(math.isfinite(x) for x in figures) and set(course.alarms) <= set(ALARMS)
            for one in course.processes.values():
                sound = sound and len(one.logs) == len(one.sums) == len(one.test.stakes)
                sound = sound and all(abs(x) <= 1 / settings.share for x in one.losses)
                sound = sound and sum(map(abs, one.losses.values())) <= one.requests
            sound = sound and min(course.counts.values(), default=0) >= -course.counts["requests"]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise PolicyError(f"the log's header holds no state: {error!r:.80}") from error
        if not sound:
            raise PolicyError("the log's header holds no state: a number is out of range")
        if course.counts["requests"]:
            course._look()
        return course

    @classmethod
    def join(
        cls,
        settings: WatchSettings,
        states: Sequence[Mapping[str, Any]],
        reference: Mapping[str, Sequence[float]] | None,
    ) -> Course:
        """Several replicas up to where their logs begin, as one course.

        What was open there is given up, drift is watched from there on, and an alarm of one replica
        is one of them all.
        """
        if len(states) == 1:
            return cls.restore(settings, states[0])
        course = cls(settings, reference)
        for one in (cls.restore(settings, state) for state in states):
            for name, process in course.processes.items():
                process.join(one.processes[name])
            for count, number in one.counts.items():
                course.counts[count] += number
            for kind, alarm in one.alarms.items():
                if kind not in course.alarms or alarm.time < course.alarms[kind].time:
                    course.alarms[kind] = alarm
        return course
