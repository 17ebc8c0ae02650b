"""The result of `stopadvisor monitor`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stopadvisor.policy.claims import claim
from stopadvisor.policy.frozen import Policy
from stopadvisor.serving.monitoring import ALARMS, DRIFT_DELTA, Alarm, Course
from stopadvisor.stats.sequential import requests_to_alarm

__all__ = ["AlarmDelay", "MonitoredPromise", "Watch", "monitored"]


@dataclass(frozen=True)
class Watch:
    """One loss that is watched."""

    watch: str
    """`differs`, or the loss of the certificate, which needs gold."""
    limit: float
    """The risk that is allowed."""
    is_promise: bool
    """False: an early warning, not the promise itself."""
    e_value: float
    """Evidence that the limit is broken; an alarm at 1 / delta."""
    delta: float
    """Probability of ever raising this alarm falsely, at most."""
    detector: float
    """Evidence of a change; an alarm at `change`."""
    change: float
    """Mean requests to a false alarm of this detector, at least."""
    upper: float | None
    """Upper limit of this risk if it is constant; open audits count as losses.  Null before the
    first audit of a stop."""


@dataclass(frozen=True)
class AlarmDelay:
    """How soon a broken promise shows."""

    times: int
    """The promise's loss, as a multiple of its limit."""
    requests: float | None
    """Median number until its alarm, where every audited reply that differs gets gold if the
    promise needs it; null: perhaps never."""
    undropped: float | None
    """The same if no audit were given up."""


@dataclass(frozen=True)
class MonitoredPromise:
    """Whether a promise is kept by the traffic, and what was watched."""

    digest: str
    """Of the policy."""
    claim: str
    """What it promises."""
    verdict: Literal["alarm", "no-alarm", "no-audits"]
    """`no-audits` where nothing was audited."""
    alarm: Alarm | None
    """The gravest that is on; null where there is none."""
    alarms: tuple[Alarm, ...]
    """All that are on, the gravest first."""
    resets: int
    """Times that somebody reset the alarms; each began new tests."""
    watched: tuple[Watch, ...]
    """The promise, and where it needs gold the early warning."""
    replicas: int
    """Logs read as one stream; each server watches its own log alone."""
    delta: float
    """Probability of ever raising a false promise alarm or early warning in a stream, at most."""
    change: float
    """Mean requests to a false alarm of change in a stream, at least."""
    share: float
    """Of requests that are audited."""
    requests: int
    """Covered requests."""
    stopped: int
    """Of these, stopped early."""
    audits: int
    """Audited, stopped or not."""
    resolved: int
    """Audits of stopped requests that have a result."""
    differing: int
    """Of these, replies that differ from what full thinking said."""
    shed: int
    """Audits that were given up."""
    unresolved: int
    """Audits of stopped requests without a result, shed ones included."""
    gold: int
    """Audits with gold."""
    gold_losses: int
    """Sum of their losses."""
    upper: float | None
    """Upper limit of the share of differing replies, for a risk that is constant."""
    delay: tuple[AlarmDelay, ...]
    """How soon a broken promise shows at this share."""
    dropped_share: float
    """Share of the audits of stops that were given up, among those that have ended."""
    decoded_tokens: int
    """Of all requests."""
    audit_tokens: int
    """Decoded in the background, on top."""
    saved_tokens: float | None
    """Estimated from the audits; null without a result."""
    drift: Mapping[str, float]
    """Evidence that a feature changed; no claim about risk."""
    drifted: Mapping[str, int]
    """Features that changed, and the request at which it showed."""
    drift_delta: float
    """Probability of ever reporting drift falsely, at most, over all features together."""
    remarks: tuple[str, ...]
    """What the reader should know."""


_COUNTS = (
    *("requests", "stopped", "audits", "resolved", "differing", "shed", "gold", "gold_losses"),
    *("resets", "audit_tokens"),
)
"""Fields that have the same names as the course's counts."""


def monitored(
    course: Course, policy: Policy, remarks: Sequence[str], *, replicas: int
) -> MonitoredPromise:
    """Return the result for a course."""
    settings, counts, certificate = course.settings, course.counts, policy.terms.certificate
    assert certificate is not None  # `watch_settings` refuses a policy that promises nothing
    saved = None
    if counts["resolved"]:  # each stop saves what an audit decodes, on average
        saved = counts["stopped"] * counts["audit_tokens"] / counts["resolved"]
    alarms = tuple(course.alarms[kind] for kind in ALARMS if kind in course.alarms)
    return MonitoredPromise(
        digest=policy.digest,
        claim=claim(certificate),
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
                course.upper_limit(name),
            )
            for name, process in course.processes.items()
        ),
        replicas=replicas,
        delta=settings.delta,
        change=settings.change,
        share=settings.share,
        **{name: counts[name] for name in _COUNTS},
        unresolved=counts["audited_stops"] - counts["resolved"],
        upper=course.upper_limit(),
        delay=_delays(course, (certificate.gained or 0) / certificate.n),
        dropped_share=course.dropped_share,
        decoded_tokens=counts["tokens"],
        saved_tokens=saved,
        drift={name: test.capital for name, test in course.drift.items()},
        drifted=course.drifted,
        drift_delta=DRIFT_DELTA,
        remarks=tuple(remarks),
    )


def _delays(course: Course, gained: float) -> tuple[AlarmDelay, ...]:
    """Return how many requests the promise alarm takes at two and three times its limit.

    Where the promise needs gold, this assumes that every audit that differs gets it.
    """
    counts, settings = course.counts, course.settings
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

    return tuple(
        AlarmDelay(times, delay(times, course.dropped_share), delay(times)) for times in (2, 3)
    )
