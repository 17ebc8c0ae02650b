"""The result of `stopadvisor monitor`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.shown import certificate_of
from stopadvisor.serving.monitoring import ALARMS, DRIFT_DELTA, Alarm, PromiseMonitor
from stopadvisor.stats.sequential import requests_to_alarm

__all__ = ["AlarmDelay", "MonitoredPromise", "Watch", "monitored"]


@dataclass(frozen=True)
class Watch:
    """The tests of one loss."""

    watch: str
    """`differs`, or the certificate's loss, which needs gold."""
    limit: float
    """The limit on this risk."""
    is_promise: bool
    """False for an early warning."""
    e_value: float
    """Evidence that the risk exceeds its limit; an alarm at 1 / delta."""
    delta: float
    """Limit on the probability of ever raising this alarm falsely."""
    detector: float
    """Evidence of a recent change; an alarm at `change`."""
    change: float
    """Lower limit on the mean number of requests to a false alarm of this detector."""
    upper: float | None
    """Upper limit on this risk if it is constant; open audits count as losses.  Null before the
    first audit of a stopped request."""


@dataclass(frozen=True)
class AlarmDelay:
    """How soon a broken promise raises the alarm."""

    times: int
    """The true risk, as a multiple of the promise's limit."""
    requests: float | None
    """Median number of requests until the alarm, if every differing audit gets the gold that the
    promise needs, and audits are shed at random; null if the alarm may never come."""
    undropped: float | None
    """The same if no audits were shed."""


@dataclass(frozen=True)
class MonitoredPromise:
    """Whether live traffic keeps a promise, with the figures."""

    digest: str
    """The policy's digest."""
    claim: str
    """The promise in words."""
    verdict: Literal["alarm", "no-alarm", "no-audits"]
    """`no-audits` if nothing was audited."""
    alarm: Alarm | None
    """The most severe alarm that is on; null if none is."""
    alarms: tuple[Alarm, ...]
    """All alarms that are on, most severe first."""
    resets: int
    """How often the alarms were reset; each reset started new tests."""
    watched: tuple[Watch, ...]
    """The promise and, if that needs gold, the early warning."""
    replicas: int
    """Number of logs merged into one stream; each server tests only its own log."""
    delta: float
    """Limit on the probability of ever raising a false promise alarm or early warning."""
    change: float
    """Lower limit on the mean number of requests to a false alarm of change."""
    share: float
    """Share of requests that are audited."""
    requests: int
    """Covered requests."""
    stopped: int
    """Covered requests stopped early."""
    audits: int
    """Requests picked for an audit, stopped or not."""
    resolved: int
    """Audits of stopped requests that have a result."""
    differing: int
    """Resolved audits whose reply differs from full thinking's."""
    shed: int
    """Audits shed or failed."""
    unresolved: int
    """Audits of stopped requests without a result, including shed ones."""
    gold: int
    """Audits with gold."""
    gold_losses: int
    """Sum of their losses."""
    upper: float | None
    """Upper limit on the share of differing replies, if that is constant."""
    delay: tuple[AlarmDelay, ...]
    """How soon a broken promise raises the alarm at this audit share."""
    dropped_share: float
    """Share of ended audits that were shed or failed."""
    decoded_tokens: int
    """Tokens decoded for all requests."""
    audit_tokens: int
    """Further tokens decoded for audits."""
    saved_tokens: float | None
    """Tokens saved by stopping, estimated from those that audits decode; those of probes are not
    subtracted.  Too high for a ladder, whose audits ask for whole replies.  Null without a result.
    """
    drift: Mapping[str, float]
    """Evidence that a feature of the traffic has changed; says nothing about risk."""
    drifted: Mapping[str, int]
    """Features that have changed, and the request at which that was detected."""
    drift_delta: float
    """Limit on the probability of ever reporting drift falsely, over all features together."""
    remarks: tuple[str, ...]
    """Notes for the reader."""


_COUNTS = (
    *("requests", "stopped", "audits", "resolved", "differing", "shed", "gold", "gold_losses"),
    *("resets", "audit_tokens"),
)
"""Fields named like the monitor's counts."""


def monitored(
    monitor: PromiseMonitor, policy: Policy, remarks: Sequence[str], *, replicas: int
) -> MonitoredPromise:
    """Return the figures of a monitor."""
    settings, counts, certificate = monitor.settings, monitor.counts, certificate_of(policy.terms)
    assert certificate is not None  # `watch_settings` refuses a policy that promises nothing
    saved = None
    if counts["resolved"]:  # a stop saves about what an audit decodes
        saved = counts["stopped"] * counts["audit_tokens"] / counts["resolved"]
    alarms = tuple(monitor.alarms[kind] for kind in ALARMS if kind in monitor.alarms)
    return MonitoredPromise(
        digest=policy.digest,
        claim=certificate.claim,
        verdict="alarm" if alarms else "no-alarm" if counts["audits"] else "no-audits",
        alarm=alarms[0] if alarms else None,
        alarms=alarms,
        watched=tuple(
            Watch(
                name,
                process.test.alpha,
                name == settings.loss,
                process.e_value,
                process.test.delta,
                process.detector,
                process.test.change,
                monitor.upper_limit(name),
            )
            for name, process in monitor.processes.items()
        ),
        replicas=replicas,
        delta=settings.delta,
        change=settings.change,
        share=settings.share,
        **{name: counts[name] for name in _COUNTS},
        unresolved=counts["audited_stops"] - counts["resolved"],
        upper=monitor.upper_limit(),
        delay=_delays(monitor, (certificate.gained or 0) / certificate.n),
        dropped_share=monitor.dropped_share,
        decoded_tokens=counts["tokens"],
        saved_tokens=saved,
        drift={name: test.capital for name, test in monitor.drift.items()},
        drifted=monitor.drifted,
        drift_delta=DRIFT_DELTA,
        remarks=tuple(remarks),
    )


def _delays(monitor: PromiseMonitor, gained: float) -> tuple[AlarmDelay, ...]:
    """Return how many requests the promise alarm takes at two and three times its limit."""
    counts, settings = monitor.counts, monitor.settings
    test = settings.tests()[settings.loss]
    stops = counts["stopped"] / counts["requests"] if counts["requests"] else 1.0

    def delay(times: int, dropped: float = 0.0) -> float | None:
        risk = times * settings.alpha
        if risk >= 1:
            return None
        requests = requests_to_alarm(
            test, risk, settings.share, gained=gained, stops=stops, dropped=dropped
        )
        return requests if math.isfinite(requests) else None

    dropped, undropped = monitor.dropped_share, {times: delay(times) for times in (2, 3)}
    return tuple(
        AlarmDelay(times, delay(times, dropped) if dropped else requests, requests)
        for times, requests in undropped.items()
    )
