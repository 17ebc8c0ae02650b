"""Streams of audited requests with a known risk: does the monitor keep what it promises?

All go through `AuditProcess`, which a serving process and `stopadvisor monitor` use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from stopadvisor.stats.sequential import AuditProcess, AuditTest

__all__ = ["Found", "Watched", "alarm_times", "naive_alarm", "watched", "watched_cases"]

_ALPHA, _DELTA, _CHANGE = 0.05, 0.05, 1e5


@dataclass(frozen=True)
class Found:
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
) -> list[Found]:
    """First alarms of independent streams, one for each risk: a number, or one a request."""
    return [
        _one(test, np.broadcast_to(np.asarray(risk), requests), share, rng)
        for risk, rng in zip(risks, np.random.default_rng(seed).spawn(len(risks)), strict=True)
    ]


def _one(
    test: AuditTest, risk: NDArray[np.float64], share: float, rng: np.random.Generator
) -> Found:
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
        if process.e_value >= 1 / test.delta:
            first.setdefault("e-value", done)
        if process.detector >= test.change:
            first.setdefault("change", done)
        if len(first) == 2:
            break
    return Found(first.get("e-value"), first.get("change"))


def naive_alarm(test: AuditTest, *, streams: int, requests: int, share: float, seed: int) -> int:
    """How many streams a binomial test raises a false alarm on that is repeated at each audit.

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


@dataclass(frozen=True)
class Watched:
    """What came of many streams of one kind."""

    case: str
    alarms: int
    """False alarms of the e-value, where the risk is alpha; else streams without any alarm."""
    streams: int
    median: float | None
    """Requests from the breach to the alarm; None where nothing is broken."""
    asked: float | None
    """At most this median."""


def watched_cases() -> dict[str, tuple[float, int, float | None]]:
    """By name: audit share, requests of a stream, and the median that is asked for."""
    return {
        "risk exactly alpha": (0.05, 50_000, None),
        "naive test, risk exactly alpha": (0.05, 50_000, None),
        "2 alpha from the start, q 1 %": (0.01, 120_000, 1.2 * 14_300),
        "2 alpha from the start, q 5 %": (0.05, 40_000, 1.2 * 3_030),
        "3 alpha from the start, q 1 %": (0.01, 60_000, 1.2 * 4_480),
        "3 alpha from the start, q 5 %": (0.05, 20_000, 1.2 * 935),
        "2 alpha after 20,000, detector": (0.05, 60_000, 1.2 * 4_200),
        "2 alpha after 20,000, e-value": (0.05, 140_000, 1.2 * 21_000),
    }


def watched(case: str, streams: int) -> Watched:
    """Simulate one case."""
    share, requests, asked = watched_cases()[case]
    test = AuditTest(_ALPHA, _DELTA, share, _CHANGE)
    if case.startswith("naive"):
        found = naive_alarm(test, streams=streams, requests=requests, share=share, seed=9)
        return Watched(case, found, streams, None, None)
    start = 20_000 if "after" in case else 0
    after = float(case[0]) * _ALPHA if case[0].isdigit() else _ALPHA
    risk = np.where(np.arange(requests) < start, 0.02, after)
    times = alarm_times(test, [risk] * streams, requests=requests, share=share, seed=len(case))
    by_change = "detector" in case
    first = [one.change if by_change else one.e_value for one in times]
    if asked is None:
        return Watched(case, sum(one is not None for one in first), streams, None, None)
    late = [np.inf if one is None else one - start for one in first]
    return Watched(case, sum(one is None for one in first), streams, float(np.median(late)), asked)
