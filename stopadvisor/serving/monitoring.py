"""Sequential tests of whether live traffic still keeps a certified promise.

There are three alarms.  *Promise*: the certified loss is above its limit.  *Early warning*: more
replies differ from full thinking than at calibration; the promise may still hold.  *Change*: a loss
has recently risen above its limit, according to a detector with a known false-alarm rate.
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
    "ALARMS", "DRIFT_DELTA", "MEANINGS", "Alarm", "AlarmKind", "PromiseMonitor", "WatchSettings",
    "drift_reference", "exit_code", "watch_settings",
]  # fmt: skip

AlarmKind = Literal["promise", "early-warning", "change"]
ALARMS: tuple[AlarmKind, ...] = get_args(AlarmKind)
"""Most severe first."""
MEANINGS: Mapping[AlarmKind, str] = {
    "promise": "the promise is broken",
    "early-warning": "more replies differ from full thinking than calibration saw; "
    "the promise may still hold",
    "change": "a loss seems to have risen above its limit lately",
}

DRIFT_DELTA = 0.01
"""Limit on the probability of ever reporting drift falsely, over all features together."""
CHANGE = 1e6
"""Lower limit on the mean number of requests to a false alarm of change, for each server."""
WATCHED: tuple[str, ...] = ("stop", "prompt_tokens", "first_logprob")
"""Fields of request records to compare with calibration."""


@dataclass(frozen=True)
class WatchSettings:
    """Settings of the tests, fixed before the first request and written into each log."""

    digest: str
    """The policy's digest."""
    loss: str
    """The certified loss: `lost`, `differs` or `drop`."""
    alpha: float
    """The certified limit on this loss."""
    differs_limit: float
    """Share of replies that may differ before the early warning: the rule's upper limit at
    calibration.  Equals alpha if the loss is `differs`."""
    delta: float
    """Limit on the probability of ever raising a false promise alarm or early warning."""
    share: float
    """Share of requests that are audited."""
    change: float
    """Lower limit on the mean number of requests to a false alarm of change; `CHANGE`."""

    @property
    def needs_gold(self) -> bool:
        """Whether gold tests the promise, and differing replies are an early warning."""
        return self.loss != "differs"

    def tests(self) -> dict[str, AuditTest]:
        """Return the tests by loss: `differs`, and the certified loss if that needs gold.

        Two tests share delta, and each of two change detectors takes twice as long to a false
        alarm, so that the rates hold for the whole policy.
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
    """Return the settings for a policy.

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
    settings.tests()  # checks the ranges
    return settings


def drift_reference(policy: Policy) -> Mapping[str, Sequence[float]]:
    """Return the known values of `WATCHED` features on the calibration questions."""
    served = policy.terms.served
    features = {name: getattr(served, name, None) for name in WATCHED}
    return {name: values for name, values in features.items() if values}


# --- The monitor ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alarm:
    """A raised alarm."""

    watch: str
    """The loss that raised it: `differs`, or the certificate's."""
    kind: AlarmKind
    """The promise, an early warning, or a change."""
    request: int
    """Number of requests up to the alarm."""
    time: float
    """Time of the record that raised it, in seconds since 1970."""


def exit_code(alarms: Mapping[AlarmKind, Alarm]) -> int:
    """Exit code of `monitor` and of a server: 6 for the promise alarm, 8 for others, 0 for none."""
    return 6 if "promise" in alarms else 8 if alarms else 0


_COUNTS = (
    *("requests", "stopped", "tokens", "audits", "audited_stops", "resolved", "differing", "shed"),
    *("audit_tokens", "gold", "gold_losses", "resets"),
)
"""Names of a monitor's counts."""


class PromiseMonitor:
    """Tests a promise on the records of an audit log.

    A server applies the records that it writes, `stopadvisor monitor` those that it reads; the
    figures agree to the last digit.  `reference` has the values of `WATCHED` features on the
    calibration questions; missing ones are not watched.
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
        """By feature, the request at which drift was first detected."""
        self.alarms: dict[AlarmKind, Alarm] = {}
        """First alarm of each kind since the last reset."""
        self.counts = dict.fromkeys(_COUNTS, 0)
        self._time = 0.0

    # --- Records ----------------------------------------------------------------------------------

    def apply(self, record: Mapping[str, Any], source: str = "") -> None:
        """Apply one record; `source`, without a slash, keeps several servers' ids apart."""
        kind, key = record["kind"], f"{source}/{record.get('id', '')}"
        if kind == "shed":
            self.counts["shed"] += 1
            for process in self.processes.values():
                process.give_up(key)
            return
        if kind == "reset":  # new tests, with their own delta
            self.processes = PromiseMonitor(self.settings).processes
            self.alarms, resets = {}, self.counts["resets"] + 1
            self.counts = {**dict.fromkeys(_COUNTS, 0), "resets": resets}
            return
        if kind == "request":
            self._request(record, key)
        else:
            self._result(record, key)
        time = record.get("t", 0.0)
        if time > self._time:
            self._time = float(time)
        self._raise_alarms()

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
                # A request that was not stopped is full thinking, and cannot differ.
                process.audit(key, share) if stopped else process.count()
        if self.drift:
            self._watch_drift(record, key)

    def _watch_drift(self, record: Mapping[str, Any], key: str) -> None:
        # Breaks ties independently of all values, and the same on every replay.
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

    def _result(self, record: Mapping[str, Any], key: str) -> None:
        if not self.processes["differs"].is_open(key):
            return  # its request is in a deleted log, or before a reset
        counts, differs = self.counts, bool(record["differs"])
        counts["resolved"] += 1
        counts["audit_tokens"] += int(record.get("tokens") or 0)
        counts["differing"] += differs
        if differs:
            self.processes["differs"].resolve(key, 1)
        if record.get("cut") or not differs:
            # Equal replies are right or wrong together; where full thinking was cut off, the
            # certificate counts nothing lost and nothing gained, so gold has no say.
            for process in self.processes.values():
                if process.is_open(key):
                    process.resolve(key, 0)

    def settle(self, gold: Mapping[str, tuple[bool, bool]]) -> None:
        """Apply late gold, all at once, so that its order does not matter.

        By request id, `gold` says whether the reply is right and whether full thinking is.  It is
        ignored if the promise needs none.
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
        self._raise_alarms()

    def _raise_alarms(self) -> None:
        for name, process in self.processes.items():
            kind: AlarmKind = "promise" if name == self.settings.loss else "early-warning"
            for rings, of_kind in ((process.is_broken, kind), (process.has_changed, "change")):
                if rings and of_kind not in self.alarms:
                    requests = self.counts["requests"]
                    self.alarms[of_kind] = Alarm(name, of_kind, requests, self._time)

    # --- Results ----------------------------------------------------------------------------------

    @property
    def dropped_share(self) -> float:
        """Share of the ended audits that were shed or failed."""
        ended = self.counts["resolved"] + self.counts["shed"]
        return self.counts["shed"] / ended if ended else 0.0

    def upper_limit(self, watch: str = "differs") -> float | None:
        """Upper limit on the risk of loss `watch`, assuming that it is constant.

        Audits without a result, or without gold that the loss needs, count as losses.  None before
        the first audit of a stopped request.
        """
        if not self.counts["audited_stops"]:
            return None
        return self.processes[watch].upper_limit(self.settings.delta)

    # --- Saving and restoring ---------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`, as JSON values."""
        return {
            "processes": {name: one.state() for name, one in self.processes.items()},
            "drift": {name: one.state() for name, one in self.drift.items()},
            "drifted": dict(self.drifted),
            "alarms": {kind: asdict(alarm) for kind, alarm in self.alarms.items()},
            "counts": dict(self.counts),
        }

    @classmethod
    def restore(cls, settings: WatchSettings, state: Mapping[str, Any]) -> PromiseMonitor:
        """Rebuild a monitor from its `state`; raises `PolicyError` if that is damaged."""
        monitor = cls(settings)
        try:
            monitor.processes = {
                name: AuditProcess.restore(test, state["processes"][name])
                for name, test in settings.tests().items()
            }
            monitor.drift = {
                name: ExchangeabilityTest.restore(one) for name, one in state["drift"].items()
            }
            monitor.drifted = {**state["drifted"]}
            monitor.alarms = {kind: Alarm(**state["alarms"][kind]) for kind in state["alarms"]}
            monitor.counts = {name: state["counts"].get(name, 0) for name in _COUNTS}
            figures = [
                *(one.requests for one in monitor.processes.values()),
                *(x for one in monitor.processes.values() for x in (*one.logs, *one.sums)),
                *monitor.drifted.values(),
                *(test.capital for test in monitor.drift.values()),
                *(number for one in monitor.processes.values() for number in one.losses.values()),
                *monitor.counts.values(),
                *(x for alarm in monitor.alarms.values() for x in (alarm.request, alarm.time)),
            ]
            sound = all(math.isfinite(x) for x in figures) and set(monitor.alarms) <= set(ALARMS)
            sound = sound and {*monitor.drifted} <= {*monitor.drift} <= {*WATCHED}
            for one in monitor.processes.values():
                sound = sound and len(one.logs) == len(one.sums) == len(one.test.stakes)
                sound = sound and all(abs(x) <= 1 / settings.share for x in one.losses)
                sound = sound and sum(map(abs, one.losses.values())) <= one.requests
            sound = sound and min(monitor.counts.values(), default=0) >= -monitor.counts["requests"]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise PolicyError(f"the log's header holds no state: {error!r:.80}") from error
        if not sound:
            raise PolicyError("the log's header holds no state: a number is out of range")
        if monitor.counts["requests"]:
            monitor._raise_alarms()  # the evidence counts, not the saved alarms
        return monitor

    @classmethod
    def join(
        cls,
        settings: WatchSettings,
        states: Sequence[Mapping[str, Any]],
        reference: Mapping[str, Sequence[float]] | None,
    ) -> PromiseMonitor:
        """Combine the states in which several servers' logs begin into one monitor.

        Open audits are given up, drift detection starts over, and one server's alarm counts for
        all.
        """
        if len(states) == 1:
            return cls.restore(settings, states[0])
        monitor = cls(settings, reference)
        for one in (cls.restore(settings, state) for state in states):
            for name, process in monitor.processes.items():
                process.join(one.processes[name])
            for count, number in one.counts.items():
                monitor.counts[count] += number
            for kind, alarm in one.alarms.items():
                if kind not in monitor.alarms or alarm.time < monitor.alarms[kind].time:
                    monitor.alarms[kind] = alarm
        return monitor
