"""Streams of audited requests with a known risk: does the monitor keep what it promises?

False alarms are counted over `PromiseMonitor`, which a server and `stopadvisor monitor` use, and
delays over its `AuditProcess`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from stopadvisor.serving.monitoring import PromiseMonitor, WatchSettings
from stopadvisor.stats.sequential import AuditProcess, AuditTest, betting_upper_limit
from tests.long.coverage import Check, Found, rare

__all__ = [
    "BROKEN_STREAMS", "CALM", "Calm", "alarm_times", "calm_monitor",
    "false_alarms", "limits_missed", "naive_alarm", "watched", "watched_cases",
]  # fmt: skip

_ALPHA, _DELTA, _CHANGE = 0.05, 0.05, 1e5


# --- False alarms: whole courses, at risk exactly alpha -------------------------------------------

_EQUAL, _DIFFERS, _LOST, _GAINED = range(4)
"""Outcomes of a stop; `_DIFFERS`: and is as right, or as wrong, as full thinking."""


@dataclass(frozen=True)
class Calm:
    """Traffic whose every loss is exactly at its limit, so that no promise is broken."""

    loss: str
    lost: float
    """Share of requests, as the next two."""
    gained: float = 0.0
    differs: float = 0.0
    shed: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Share of audits that are given up, by outcome."""
    replicas: int = 1
    """Servers with a log each, which are read as one stream."""
    stops: float = 0.6
    share: float = 0.5
    requests: int = 1_500
    """Of all replicas together."""

    @property
    def settings(self) -> WatchSettings:
        """What is watched: each limit is the share that this traffic has."""
        risk = {"differs": self.differs, "lost": self.lost, "drop": self.lost - self.gained}
        limit = self.lost + self.gained + self.differs
        alpha = limit if self.loss == "differs" else risk[self.loss]
        return WatchSettings("0" * 64, self.loss, alpha, limit, _DELTA, self.share, 300.0)


CALM = {
    "differs": Calm("differs", 0.0, differs=0.05, shed=(0.7, 0.0, 0.0, 0.0), requests=4_500),
    "lost": Calm("lost", 0.05, differs=0.03, shed=(0.7, 0.7, 0.0, 0.0)),
    "drop": Calm("drop", 0.08, 0.03, differs=0.02, shed=(0.7, 0.7, 0.0, 0.9)),
    "drop, nothing shed": Calm("drop", 0.08, 0.03, differs=0.02),
    "drop, three replicas": Calm("drop", 0.08, 0.03, differs=0.02, replicas=3),
}
"""By name.  Losses are never shed, and so the worst is made of the rest."""

BROKEN_STREAMS = (
    "drop, unresolved audits left out",
    "drop, open audits count 0",
    "differs, change taken for the promise",
)
"""Broken ways to watch the same traffic; the third is the alarm that no delta holds for."""


def false_alarms(name: str, streams: int, seed: int = 0) -> int:
    """Count the streams that raise a false alarm.

    Parameters
    ----------
    name : str
        One of `CALM`, or of `BROKEN_STREAMS`.
    """
    case = CALM[name if name in CALM else name.partition(",")[0]]
    promise, change, if_open_counts_0 = _alarms(case, streams, seed, "left out" in name)
    return if_open_counts_0 if "count 0" in name else change if "change" in name else promise


@cache
def _alarms(case: Calm, streams: int, seed: int, leaves_out: bool) -> tuple[int, int, int]:
    """Count the streams with an alarm of promise or early warning, with one of change, and with one
    if open audits counted 0."""
    counts = [0, 0, 0]
    for rng in np.random.default_rng(seed).spawn(streams):
        monitor, if_open_counts_0 = calm_monitor(case, rng, leaves_out=leaves_out)
        counts[0] += bool(monitor.alarms.keys() - {"change"})
        counts[1] += "change" in monitor.alarms
        counts[2] += if_open_counts_0 >= 1 / monitor.processes[case.loss].test.delta
    return counts[0], counts[1], counts[2]


def calm_monitor(
    case: Calm, rng: np.random.Generator, *, leaves_out: bool = False
) -> tuple[PromiseMonitor, float]:
    """One stream to its end, gold last; and its largest e-value if open audits counted 0.

    With `leaves_out` audits that are given up are not counted as requests.
    """
    settings = case.settings
    monitor, open_counts_0 = PromiseMonitor(settings), AuditProcess(AuditTest(0.5))
    if settings.needs_gold:
        open_counts_0 = AuditProcess(settings.tests()[settings.loss])
    replicas = rng.integers(case.replicas, size=case.requests)
    stopped = rng.random(case.requests) < case.stops
    shares = np.array([case.differs, case.lost, case.gained]) / case.stops
    outcomes = rng.choice(4, size=case.requests, p=[1 - shares.sum(), *shares])
    audited = rng.random(case.requests) < case.share
    shed = rng.random(case.requests) < np.take(case.shed, outcomes)
    late = rng.geometric(0.05, size=case.requests)
    at_once = rng.random(case.requests) < 0.3
    due: dict[int, list[dict[str, Any]]] = {}
    gold: dict[str, tuple[bool, bool]] = {}
    for k in range(case.requests):
        name, outcome = f"{k}", int(outcomes[k])
        source = f"{replicas[k]}" if case.replicas > 1 else ""
        picked = bool(audited[k] and stopped[k])
        if not (leaves_out and picked and shed[k]):
            audit = {"share": case.share} if audited[k] else {}
            stop = 43 if stopped[k] else None
            monitor.apply({"kind": "request", "id": name, "stop": stop, **audit}, source)
        open_counts_0.count()
        if picked:
            record: dict[str, Any] = {"id": name, "source": source}
            here = due.setdefault(k + int(late[k]), [])
            if shed[k]:
                here.append({**record, "kind": "shed"})
            else:
                here.append({**record, "kind": "result", "differs": outcome != _EQUAL})
                grades = (outcome == _GAINED, outcome == _LOST)
                if at_once[k]:
                    here.append({**record, "kind": "gold", "grades": grades})
                else:
                    gold[name] = grades
            if outcome == _LOST and settings.loss == "drop":
                # A file with the losses first, looked at after each line: the last loss is highest.
                open_counts_0.logs = [
                    log + math.log1p(stake / case.share / (1 - stake * settings.alpha))
                    for log, stake in zip(
                        open_counts_0.logs, open_counts_0.test.stakes, strict=True
                    )
                ]
        for record in due.pop(k, ()):
            if record["kind"] == "gold":
                monitor.settle({record["id"]: record["grades"]})
            else:
                monitor.apply(record, record["source"])
    monitor.settle(gold)
    return monitor, open_counts_0.e_value


# --- The upper limit, at all times ----------------------------------------------------------------


def limits_missed(stops: float, streams: int, *, looks: int = 60, seed: int = 0) -> tuple[int, int]:
    """Count the streams in which the upper limit is ever below the risk.

    Returns
    -------
    ours : int
    times_observed_share : int
        The broken variant: an anytime limit of the differing share of stops, times the share of
        requests that has stopped so far.
    """
    share, differs, requests = 0.2, 0.5, int(40 / stops * 20)
    # Most streams share their counts.
    limit = cache(lambda n, x, k: betting_upper_limit(n, {x: k}, delta=_DELTA, least_share=share))
    at = np.unique(np.geomspace(20, requests, looks).astype(int))
    missed = [0, 0]
    for rng in np.random.default_rng(seed).spawn(streams):
        stopped = rng.random(requests) < stops
        audited = stopped & (rng.random(requests) < share)
        differing = audited & (rng.random(requests) < differs)
        counts = np.stack([np.cumsum(x)[at - 1] for x in (stopped, audited, differing)], axis=1)
        below = [False, False]
        for n, (n_stopped, n_audited, n_differing) in zip(
            at.tolist(), counts.tolist(), strict=True
        ):
            if n_audited == 0:  # nothing is said yet
                continue
            ours = limit(n, 1 / share, n_differing)
            theirs = _mixture_limit(n_audited, n_differing) * n_stopped / n
            below[0] |= ours < stops * differs
            below[1] |= theirs < stops * differs
        missed = [a + b for a, b in zip(missed, below, strict=True)]
    return missed[0], missed[1]


@cache
def _mixture_limit(n: int, k: int) -> float:
    """Robbins' mixture limit of a share, by a Beta(1/2, 10) mixture."""
    shares = np.linspace(0, 1, 2_001)[1:-1]
    mixed = special.betaln(0.5 + k, 10 + n - k) - special.betaln(0.5, 10)
    likelihood = k * np.log(shares) + (n - k) * np.log1p(-shares)
    kept = shares[mixed - likelihood + math.log(_DELTA) < 0]
    return float(kept[-1]) if kept.size else k / n


# --- Delays ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rung:
    """Requests until an alarm, counted from 1; None where there was none."""

    e_value: int | None
    change: int | None


def alarm_times(
    test: AuditTest,
    risks: Sequence[float | NDArray[np.float64]],
    *,
    requests: int,
    share: float,
    seed: int,
) -> list[Rung]:
    """First alarms of independent streams, one for each risk: a number, or one a request."""
    return [
        _one(test, np.broadcast_to(np.asarray(risk), requests), share, rng)
        for risk, rng in zip(risks, np.random.default_rng(seed).spawn(len(risks)), strict=True)
    ]


def _one(
    test: AuditTest, risk: NDArray[np.float64], share: float, rng: np.random.Generator
) -> Rung:
    audited = np.flatnonzero(rng.random(risk.size) < share)
    lost = rng.random(audited.size) < risk[audited]
    process = AuditProcess(test)
    first: dict[str, int] = {}
    done = 0
    for place, loss in zip(audited.tolist(), lost.tolist(), strict=True):
        process.count(place - done)
        process.audit(place, share)
        process.resolve(place, int(loss))
        done = place + 1
        if not loss:  # evidence rises with losses; the detector's quiet rise stays far below
            continue
        if process.is_broken:
            first.setdefault("e-value", done)
        if process.has_changed:
            first.setdefault("change", done)
        if len(first) == 2:
            break
    return Rung(first.get("e-value"), first.get("change"))


def naive_alarm(test: AuditTest, *, streams: int, requests: int, share: float, seed: int) -> int:
    """Count the streams with a false alarm by a binomial test that is repeated at each audit.

    The broken variant: each test has level delta, and all of them together have none.
    """
    rng = np.random.default_rng(seed)
    alarms = 0
    for _ in range(streams):
        audits = int(rng.binomial(requests, share))
        lost = np.cumsum(rng.random(audits) < test.alpha)
        seen = np.arange(1, audits + 1)
        alarms += bool((stats.binom.sf(lost - 1, seen, test.alpha) <= test.delta).any())
    return alarms


_LIMIT, _OLD_LIMIT = "limit, stop share ", "limit times observed share, stop share "


def watched_cases() -> dict[str, tuple[float, int, float | None]]:
    """By name: audit share, requests of a stream, and the median that is asked for."""
    limits = [f"{name}{stops}" for name in (_LIMIT, _OLD_LIMIT) for stops in (0.02, 0.1, 0.3)]
    limits.append(f"{_LIMIT}0.6")  # where most stop, their observed share is near the true one
    return {
        **dict.fromkeys(
            (f"false alarm, {name}" for name in (*CALM, *BROKEN_STREAMS)), (0, 0, None)
        ),
        **dict.fromkeys(limits, (0, 0, None)),
        "risk exactly alpha": (0.05, 50_000, None),
        "naive test, risk exactly alpha": (0.05, 50_000, None),
        "2 alpha from the start, q 1 %": (0.01, 120_000, 1.2 * 14_300),
        "2 alpha from the start, q 5 %": (0.05, 40_000, 1.2 * 3_030),
        "3 alpha from the start, q 1 %": (0.01, 60_000, 1.2 * 4_480),
        "3 alpha from the start, q 5 %": (0.05, 20_000, 1.2 * 935),
        "2 alpha after 20,000, detector": (0.05, 60_000, 1.2 * 4_200),
        "2 alpha after 20,000, e-value": (0.05, 140_000, 1.2 * 21_000),
    }


def watched(case: str, streams: int) -> list[Check]:
    """Simulate one case: alarms that are false, or limits below the risk; or the median delay."""
    share, requests, asked = watched_cases()[case]
    test = AuditTest(_ALPHA, _DELTA, share or 1, _CHANGE)

    def judged(alarms: int, *, is_broken: bool = False) -> list[Check]:
        return [rare("monitor", case, Found(streams, alarms), is_broken=is_broken)]

    if case.startswith("false alarm, "):
        name = case.removeprefix("false alarm, ")
        return judged(false_alarms(name, streams), is_broken=name in BROKEN_STREAMS)
    if case.startswith((_LIMIT, _OLD_LIMIT)):
        is_old = case.startswith(_OLD_LIMIT)
        return judged(limits_missed(float(case.split()[-1]), streams)[is_old], is_broken=is_old)
    if case.startswith("naive"):
        alarms = naive_alarm(test, streams=streams, requests=requests, share=share, seed=9)
        return judged(alarms, is_broken=True)
    start = 20_000 if "after" in case else 0
    after = float(case[0]) * _ALPHA if case[0].isdigit() else _ALPHA
    risk = np.where(np.arange(requests) < start, 0.02, after)
    times = alarm_times(test, [risk] * streams, requests=requests, share=share, seed=len(case))
    first = [one.change if "detector" in case else one.e_value for one in times]
    if asked is None:
        return judged(sum(one is not None for one in first))
    median = float(np.median([np.inf if one is None else one - start for one in first]))
    line = f"{case:52} {streams:5d} streams  median {median:8.0f}  asked at most {asked:8.0f}"
    return [Check("monitor", median <= asked, line)]
