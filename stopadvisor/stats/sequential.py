"""Is a promise still kept?  Anytime-valid tests on randomly audited requests.

Each request is audited with a known probability, its share: full thinking is finished in the
background and compared with the reply.  An audited request counts its loss divided by the share,
any other 0, so the expected count is the request's risk, whatever the share.  Runs inside a server,
so it needs only numpy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stopadvisor.ground.errors import CalibrationError

__all__ = ["AuditProcess", "AuditTest", "betting_upper_limit", "requests_to_alarm"]

_RATIOS = (1.25, 1.5, 2.0, 3.0, 5.0)
"""Risks, as multiples of alpha, at which each bet grows fastest, for losses of 0 or 1."""

_PARTS = (0.1, 0.2, 0.35, 0.55, 0.8)
"""Bets for losses that can be -1, as parts of the smallest bet that an audit could bankrupt.  Small
ones still grow when gains and open audits hide most of a broken promise."""

_ONES = (1.0,) * len(_RATIOS)

_MOST_STAKE = 0.9
"""Largest bet, as a part of the one that a single request without a loss would bankrupt."""

_SHARES = np.array([0.95, 0.75, *(2.0**-k for k in range(1, 15))])
"""Bets of the upper limit, as parts of the largest; small ones are for long streams."""

_MOST_SUM = 1e300
"""Cap on sums, far above any alarm."""


@dataclass(frozen=True)
class AuditTest:
    """Settings of the test, fixed before the first request.

    Raises CalibrationError if one is out of range.
    """

    alpha: float
    """Allowed risk, in (0, 1)."""
    delta: float = 0.05
    """Probability, at most, that `AuditProcess.is_broken` is ever true while no request's risk
    exceeds alpha; in (0, 1)."""
    least_share: float = 0.02
    """Smallest probability with which any request is audited, in (0, 1]."""
    change: float = 1e5
    """Mean number of requests, at least, to a false `AuditProcess.has_changed` while no risk
    exceeds alpha (average run length); above 1."""
    gains: bool = False
    """Whether a loss can be -1, as for `drop`."""

    def __post_init__(self) -> None:
        for name, value, top in (
            ("alpha", self.alpha, math.nextafter(1, 0)),
            ("delta", self.delta, math.nextafter(1, 0)),
            ("audit share", self.least_share, 1.0),
        ):
            if not 0 < value <= top:
                end = "1]" if top == 1.0 else "1)"
                raise CalibrationError(f"{name} must lie in (0, {end}, got {value!r}")
        if not 1 < self.change < math.inf:
            raise CalibrationError(f"change must be above 1 and finite, got {self.change!r}")

    @property
    def stakes(self) -> tuple[float, ...]:
        """The bets; none lets a factor ``1 + stake * (loss / share - alpha)`` reach 0.

        For losses of 0 or 1 audited at `least_share`, the bet ``(ratio - 1) / (1 / least_share -
        alpha)`` grows fastest at a risk of ratio times alpha.  If a loss can be -1, a bet must be
        below ``1 / (1 / least_share + alpha)``.
        """
        if self.gains:
            return tuple(part / (1 / self.least_share + self.alpha) for part in _PARTS)
        room = 1 / self.least_share - self.alpha
        return tuple(min((ratio - 1) / room, _MOST_STAKE / self.alpha) for ratio in _RATIOS)


_Open = tuple[float, list[float], list[float]]
"""An audit without a result: its share, and `logs` and `sums` just after its request."""


@dataclass
class AuditProcess:
    """Evidence against "every request's risk is at most alpha", request by request.

    Notes
    -----
    `e_value` is ``mean over stakes of prod(1 + stake * (loss / share - alpha))``.  If no request's
    risk, given all earlier ones, exceeds alpha, each product is a nonnegative supermartingale that
    starts at 1, so the probability that `e_value` *ever* reaches ``1 / delta`` is at most delta
    (Ville).

    `detector` is the Shiryaev-Roberts sum ``M_t = (M_{t-1} + 1) * e_t``, averaged over the same
    stakes.  While no risk exceeds alpha, it takes at least c requests on average to reach c; if the
    risk rises after a long quiet time, it gets there sooner than the e-value.

    An audit without a result counts as its smallest possible loss (0, or -1 if gains count) in
    both, in its request's place.  So neither ever exceeds its value with all results known,
    whatever decides which results arrive and in which order.  In `upper_limit` it counts 1.

    References
    ----------
    J. Ville, Etude critique de la notion de collectif, 1939; J. Shin, A. Ramdas, A. Rinaldo,
    E-detectors: a nonparametric framework for sequential change detection, 2023.

    Examples
    --------
    >>> process = AuditProcess(AuditTest(alpha=0.05, least_share=0.1))
    >>> for k in range(60):
    ...     process.count(9)
    ...     process.audit(k, share=0.1)
    ...     process.resolve(k, loss=k % 3 == 0)
    >>> process.is_broken
    True
    """

    test: AuditTest
    requests: int = 0
    logs: list[float] = field(default_factory=lambda: [0.0] * len(_RATIOS))
    """Logarithm of each stake's product."""
    sums: list[float] = field(default_factory=lambda: [0.0] * len(_RATIOS))
    """Shiryaev-Roberts sum of each stake."""
    losses: dict[float, int] = field(default_factory=dict)
    """Number of requests for each nonzero loss divided by share; an open audit's loss is 1."""
    _open: dict[Hashable, _Open] = field(default_factory=dict, repr=False)
    _quiet: tuple[float, ...] = field(init=False, repr=False)
    _factors: tuple[float, ...] = field(init=False, repr=False)
    _limit: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._quiet = self._logs_of(0.0)
        self._factors = tuple(math.exp(quiet) for quiet in self._quiet)
        self._limit = -math.log(self.test.delta)

    @property
    def e_value(self) -> float:
        """Evidence that some request's risk exceeds alpha."""
        most = max(self.logs)
        mean = sum(math.exp(one - most) for one in self.logs) / len(self.logs)
        return math.exp(min(most + math.log(mean), 700.0))

    @property
    def detector(self) -> float:
        """Evidence that the risk has risen above alpha."""
        return sum(self.sums) / len(self.sums)

    @property
    def is_broken(self) -> bool:
        """Whether the e-value is ``1 / delta`` or more."""
        # The mean is at most the maximum, which usually settles it.
        return max(self.logs) >= self._limit and self.e_value >= 1 / self.test.delta

    @property
    def has_changed(self) -> bool:
        """Whether the detector is `AuditTest.change` or more."""
        return sum(self.sums) / len(self.sums) >= self.test.change

    def open_keys(self) -> tuple[Hashable, ...]:
        """Keys of audits without a result, in the order of their requests."""
        return tuple(self._open)

    def is_open(self, key: Hashable) -> bool:
        """Whether an audit's result is still awaited."""
        return key in self._open

    def give_up(self, key: Hashable) -> None:
        """Stop waiting for an audit's result; the audit keeps counting as open."""
        self._open.pop(key, None)

    def count(self, requests: int = 1) -> None:
        """Count requests that were not audited, or whose loss is known to be 0."""
        if requests == 1:
            self._multiply(self._quiet, self._factors)
        elif requests > 1:
            self.logs, self.sums = self.logs.copy(), self.sums.copy()
            for k, quiet in enumerate(self._quiet):
                whole = requests * quiet
                self.logs[k] += whole
                added = math.exp(quiet) * math.expm1(whole) / math.expm1(quiet)
                self.sums[k] = self.sums[k] * math.exp(whole) + added
            self.requests += requests

    def audit(self, key: Hashable, share: float) -> None:
        """Count a request that was picked for audit with probability `share`.

        If a result arrives, pass it to `resolve` with the same key.
        """
        if not self.test.least_share <= share <= 1:
            raise CalibrationError(
                f"an audit's share must lie in [{self.test.least_share:g}, 1], got {share!r}"
            )
        if key in self._open:
            raise CalibrationError(f"an audit {key!r} is open already")
        if self.test.gains:
            logs = self._logs_of(-1 / share)
            self._multiply(logs, tuple(map(math.exp, logs)))
        else:
            self._multiply(self._quiet, self._factors)
        self.losses[1 / share] = self.losses.get(1 / share, 0) + 1
        self._open[key] = (share, self.logs, self.sums)

    def resolve(self, key: Hashable, loss: int) -> None:
        """Set an audit's result in its request's place: 1, 0, or -1 if gains count."""
        if key not in self._open:
            raise CalibrationError(f"no audit {key!r} is open")
        least = -1 if self.test.gains else 0
        if not least <= loss <= 1:
            raise CalibrationError(f"a loss of {loss!r} is not what this test counts")
        share, logs_then, sums_then = self._open[key]
        if loss < 1:
            self.losses[1 / share] -= 1
        if loss < 0:
            self.losses[loss / share] = self.losses.get(loss / share, 0) + 1
        later: list[_Open] = []
        if loss > least and next(reversed(self._open)) != key:
            keys = list(self._open)
            later = [self._open[k] for k in keys[keys.index(key) + 1 :]]
        del self._open[key]
        if loss == least:
            return
        self.logs, self.sums = self.logs.copy(), self.sums.copy()
        later.append((share, self.logs, self.sums))
        counted = self._logs_of(least / share)
        for k, log_factor in enumerate(self._logs_of(loss / share)):
            rise = log_factor - counted[k]
            log, partial = logs_then[k], sums_then[k] * math.expm1(rise)
            # Each term of a sum that began at or before this request contains its factor.
            for _, logs, sums in later:
                sums[k] = min(sums[k] + partial * math.exp(logs[k] - log), _MOST_SUM)
                logs[k] += rise

    def upper_limit(self, delta: float) -> float:
        """`betting_upper_limit` of the risk so far."""
        return betting_upper_limit(
            self.requests, self.losses, delta=delta, least_share=self.test.least_share
        )

    def state(self) -> dict[str, Any]:
        """State for `restore`, as JSON values."""
        return {
            "requests": self.requests,
            "logs": list(self.logs),
            "sums": list(self.sums),
            "losses": [list(item) for item in self.losses.items()],
            "open": [[key, *one] for key, one in self._open.items()],
        }

    @classmethod
    def restore(cls, test: AuditTest, state: Mapping[str, Any]) -> AuditProcess:
        """Rebuild the process from `state()`, under the same test."""
        process = cls(
            test, state["requests"], [*state["logs"]], [*state["sums"]], dict(state["losses"])
        )
        for key, share, logs, sums in state["open"]:
            process._open[key] = (share, [*logs], [*sums])
        return process

    def join(self, other: AuditProcess) -> None:
        """Add another replica's stream; its open audits are given up.

        Each stake's products multiply and stay a supermartingale.  The detector's sums add up:
        while no risk exceeds alpha each grows by at most one per request on average, and so does
        the total.
        """
        self.requests += other.requests
        self.logs = list(map(operator.add, self.logs, other.logs))
        self.sums = list(map(operator.add, self.sums, other.sums))
        for value, number in other.losses.items():
            self.losses[value] = self.losses.get(value, 0) + number

    def _logs_of(self, loss: float) -> tuple[float, ...]:
        """Log factor of each stake, for a loss already divided by its share."""
        return tuple(math.log1p(stake * (loss - self.test.alpha)) for stake in self.test.stakes)

    def _multiply(self, logs: tuple[float, ...], factors: tuple[float, ...]) -> None:
        # New lists, because open audits refer to the old ones.
        self.logs = list(map(operator.add, self.logs, logs))
        self.sums = list(map(operator.mul, map(operator.add, self.sums, _ONES), factors))
        self.requests += 1


def betting_upper_limit(
    requests: int, losses: Mapping[float, int], *, delta: float, least_share: float
) -> float:
    """Anytime-valid upper limit of a constant risk.

    Parameters
    ----------
    requests : int
        Number of requests, audited or not.
    losses : mapping of float to int
        Number of requests for each nonzero loss divided by share.

    Returns
    -------
    float
        The largest risk in (0, 1] that is not rejected; with probability 1 - delta at least, it is
        no lower than the true risk at any time.

    Notes
    -----
    A risk is rejected if ``mean over stakes of prod(1 - stake * (loss / share - risk))`` exceeds
    ``1 / delta``, with stakes between 0 and ``1 / (1 / least_share - risk)``.  The share of
    requests that stop does not matter.
    """
    counted = sum(losses.values())
    if requests < counted:
        raise CalibrationError(f"{counted} of {requests} requests have a loss")
    enough = math.log(len(_SHARES)) - math.log(delta)

    def excess(risk: float) -> float:
        stakes = _SHARES / (1 / least_share - risk)
        logs = (requests - counted) * np.log1p(stakes * risk)
        for loss, number in losses.items():
            logs += number * np.log1p(-stakes * (loss - risk))
        return float(np.logaddexp.reduce(logs)) - enough

    return _root(excess)


def requests_to_alarm(
    test: AuditTest,
    risk: float,
    share: float,
    *,
    gained: float = 0.0,
    stops: float = 1.0,
    dropped: float = 0.0,
) -> float:
    """Median number of requests until `AuditProcess.is_broken`, over simulated streams.

    Parameters
    ----------
    risk, share : float
        Risk of every request, and share of requests that are audited.
    gained : float, optional
        Share of requests with a loss of -1, if gains count.
    stops : float, optional
        Share of requests that stop.
    dropped : float, optional
        Share of stopped requests' audits that never get a result.

    Returns
    -------
    float
        Infinity if half of the streams raise no alarm within 2,400 losses and gains.
    """
    up = share * (1 - dropped) * (risk + gained)
    down = share * ((1 - dropped) * gained + dropped * stops) if test.gains else 0.0
    if up == 0:
        return math.inf
    draws, median = 301, math.inf
    for events in (300, 2_400):  # most delays are short
        rng = np.random.default_rng(0)
        times = rng.geometric(min(up + down, 1.0), size=(draws, events)).cumsum(axis=1)
        ups = (rng.random((draws, events)) < up / (up + down)).cumsum(axis=1)
        downs = np.arange(1, events + 1) - ups
        evidence = np.full((draws, events), -math.inf)
        for stake in test.stakes:
            logs = (times - ups - downs) * math.log1p(-stake * test.alpha)
            logs += ups * math.log1p(stake * (1 / share - test.alpha))
            if down:
                logs += downs * math.log1p(stake * (-1 / share - test.alpha))
            np.logaddexp(evidence, logs, out=evidence)
        noticed = evidence >= math.log(len(test.stakes)) - math.log(test.delta)
        first = times[np.arange(draws), noticed.argmax(axis=1)]
        median = float(np.median(np.where(noticed.any(axis=1), first, np.inf)))
        if math.isfinite(median):
            break
    return median


def _root(excess: Callable[[float], float]) -> float:
    """Where an increasing function crosses 0 in (0, 1), rounded up; 1 if it does not."""
    low, high = 1e-12, math.nextafter(1, 0)
    if excess(high) <= 0:
        return 1.0
    while high - low > 1e-12 + 1e-10 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return high
