"""Streams of audited requests with a known risk: does the monitor keep what it promises?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from stopadvisor.stats.sequential import AuditProcess, AuditTest

__all__ = ["Found", "alarm_times", "naive_alarm"]


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
