"""The highest rate of arrival that meets limits of latency, under a policy and without one.

Blocks of requests are sent in turn, one under the policy and one with full thinking.  Each arm goes
up when a block met the limits and down when it did not, so that its rates gather where half of the
blocks do; from all blocks the two rates and their ratio follow.  Knows no server and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

from stopadvisor.arrays import FloatArray
from stopadvisor.policy.frozen import Policy
from stopadvisor.rules.serving_profile import Slo

__all__ = [
    "ARMS",
    "ArmName",
    "Arrivals",
    "Block",
    "RateRatio",
    "ReplaySettings",
    "fit_ratio",
    "is_met",
    "most_missed",
    "next_rate",
    "order",
]

ArmName = Literal["full", "policy"]
Arrivals = Literal["poisson", "fixed"]
ARMS: tuple[ArmName, ...] = ("full", "policy")

MISSED = 0.01
"""Share of the requests that may be slower than a limit: the 99th percentile meets it."""
_LIMITS_LONG = 3
"""Times the longest limit that a block lasts."""
_FIRST_STEP = math.log(2)
_FINEST_STEP = _FIRST_STEP / 4
_MANY_ALIKE = 4
_GENTLE = 0.5
"""Weight of the preference for slopes about the finest step, in blocks."""
_MOST_ROUNDS = 200
_FEWEST = 2
"""Blocks that an arm must have met, and missed: without one of them there is still a limit."""


@dataclass(frozen=True)
class ReplaySettings:
    """How the goodput is measured."""

    slo: Slo
    policy: Policy
    arrivals: Arrivals = "poisson"
    minutes: float = 10.0
    """Time for it; what an earlier call measured is added."""
    block: int = 200
    """Requests of a block, at least."""
    seed: int = 0

    def requests(self, rate: float) -> int:
        """Requests of a block, which arrive for so long that a queue can grow past the limits."""
        longest = max(limit for limit in (self.slo.ttft, self.slo.e2e, 0.0) if limit is not None)
        return max(self.block, math.ceil(rate * _LIMITS_LONG * longest))


@dataclass(frozen=True)
class Block:
    """Requests that arrived at one rate."""

    turn: int
    """One block of each arm makes a turn."""
    arm: ArmName
    rate: float
    """Arrivals a second."""
    met: bool
    asked: int
    """Requests that were judged."""
    decoded: float
    """Tokens of a request, mean."""
    seconds: float
    """To the end of a request, mean."""
    kv_block_seconds: float | None = None
    """Of a request, mean; None where the server does not say."""


@dataclass(frozen=True)
class RateRatio:
    """What the blocks say."""

    full: float
    """Arrivals a second at which half of the blocks meet the limits."""
    policy: float
    ratio: float
    low: float
    """Limits of the ratio, 95 %."""
    high: float
    turns: int


def order(turn: int) -> tuple[ArmName, ...]:
    """Which arm is first changes from turn to turn, so that a drift slows both alike."""
    return ARMS if turn % 2 == 0 else ARMS[::-1]


def next_rate(start: float, met: Sequence[bool]) -> float:
    """Rate of an arm's next block: up after one that met the limits, down after one that did not.

    Steps begin with a factor of 2 and are halved, in logarithms, at each turn-round, down to a
    quarter of it, 1.19.  From four like outcomes in a row on they are doubled again: a machine may
    have become another.

    References
    ----------
    W. J. Dixon, A. M. Mood, A method for obtaining and analyzing sensitivity data, JASA 43, 1948.
    """
    at, step, alike = math.log(start), _FIRST_STEP, 0
    for i, now in enumerate(met):
        alike = alike + 1 if i and now == met[i - 1] else 1
        if i and alike == 1:
            step = max(step / 2, _FINEST_STEP)
        elif alike >= _MANY_ALIKE:
            step = min(2 * step, _FIRST_STEP)
        at += step if now else -step
    return math.exp(at)


def most_missed(n: int) -> int:
    """Of so many requests, how many may be slower than a limit."""
    return math.floor(MISSED * n)


def is_met(slo: Slo, ttft: FloatArray, tpot: FloatArray, e2e: FloatArray) -> bool:
    """Whether the 99th percentile of each latency is within its limit; seconds, (n_requests,).

    Requests that failed are given as infinite.
    """
    limits = ((slo.ttft, ttft), (slo.tpot, tpot), (slo.e2e, e2e))
    return all(
        int((values > limit).sum()) <= most_missed(values.size)
        for limit, values in limits
        if limit is not None
    )


def fit_ratio(blocks: Sequence[Block]) -> RateRatio | None:
    """Estimate both rates and their ratio, with an interval over turns.

    Returns
    -------
    RateRatio or None
        None while an arm has met or missed the limits in fewer than two blocks, and where its
        rate would lie beyond all that were tried.

    Notes
    -----
    The chance that a block meets the limits falls with the logarithm of its rate as a logistic
    curve, of one slope for both arms: what is estimated is the rate of an even chance.  Rates
    follow from earlier blocks only, so the likelihood is that of rates fixed beforehand.  Of two
    variances the larger is taken: that of the likelihood's curvature, and that of leaving out one
    turn at a time (jackknife), where what slows a whole turn slows both arms; Student's t.  A
    slight preference for slopes about the finest step keeps them finite where met and missed are
    parted perfectly.  In simulations (``tests/serving/test_goodput.py``) 90 to 100 % of the
    intervals hold the ratio, from 10 turns on; the fewest where a block's chance falls so gently
    that rates half as high again still meet the limits at times.

    References
    ----------
    B. Efron, R. J. Tibshirani, An Introduction to the Bootstrap, 1993, section 11.2 (jackknife).
    """
    whole = {t for t in (b.turn for b in blocks) if sum(b.turn == t for b in blocks) == len(ARMS)}
    used = [block for block in blocks if block.turn in whole]
    for arm in ARMS:
        outcomes = [block.met for block in used if block.arm == arm]
        if min(sum(outcomes), len(outcomes) - sum(outcomes)) < _FEWEST:
            return None
    x = np.log([block.rate for block in used])
    stopped = np.array([block.arm == "policy" for block in used], dtype=np.float64)
    met = np.array([block.met for block in used], dtype=np.float64)
    turns = np.array([block.turn for block in used])
    kept = np.stack([np.ones_like(x), *(turns != turn for turn in sorted(whole))])
    full, shift, variance = _even_chance(x, stopped, met, kept)
    for arm, middle in (("full", full[0]), ("policy", full[0] + shift[0])):
        tried = [math.log(block.rate) for block in used if block.arm == arm]
        if not min(tried) <= middle <= max(tried):
            return None
    n, left_out = len(whole), shift[1:]
    jackknife = (n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum())
    reach = float(scipy.stats.t.ppf(0.975, n - 1)) * math.sqrt(max(jackknife, float(variance[0])))
    middle = float(shift[0])
    return RateRatio(
        full=math.exp(full[0]),
        policy=math.exp(full[0] + middle),
        ratio=math.exp(middle),
        low=math.exp(middle - reach),
        high=math.exp(middle + reach),
        turns=n,
    )


def _even_chance(
    x: FloatArray, stopped: FloatArray, met: FloatArray, kept: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Fit the curves to the blocks that are kept, in each row of `kept`, (n_fits, n_blocks).

    Returns
    -------
    tuple of ndarray, each of shape (n_fits,)
        Logarithm of full thinking's rate of an even chance, how far above it the policy's is, and
        the variance of that by the curvature of the likelihood.
    """
    centre = float(x.mean())
    columns = np.stack([np.ones_like(x), stopped, centre - x], axis=1)  # (n_blocks, 3)
    values = np.tile([0.0, 0.0, 1 / _FINEST_STEP], (len(kept), 1))
    for _ in range(_MOST_ROUNDS):
        chance = scipy.special.expit(values @ columns.T)  # (n_fits, n_blocks)
        slope = (kept * (chance - met)) @ columns
        slope[:, 2] += _FINEST_STEP * _GENTLE - _GENTLE / values[:, 2]
        curve = np.einsum("fn,ni,nj->fij", kept * chance * (1 - chance), columns, columns)
        curve[:, 2, 2] += _GENTLE / values[:, 2] ** 2
        curve += 1e-9 * np.eye(3)
        step = np.linalg.solve(curve, slope[:, :, None])[:, :, 0]
        size = np.sqrt(np.maximum((step * slope).sum(axis=1), 0.0))
        if size.max() < 1e-7:
            break
        step /= 1 + size[:, None]  # damped: the slope's logarithm must stay finite
        step[:, 2] = np.minimum(step[:, 2], 0.9 * values[:, 2])
        values = values - step
    level, shift, slope_ = values.T
    along = np.stack([np.zeros_like(shift), 1 / slope_, -shift / slope_**2], axis=1)
    variance = np.einsum("fi,fij,fj->f", along, np.linalg.inv(curve), along)
    return centre + level / slope_, shift / slope_, variance
