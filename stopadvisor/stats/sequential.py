"""Is a promise still kept?  Tests that may be read after every request, for ever.

Of the requests a known share is audited at random: full thinking is finished in the background and
compared with what was served.  A request that was not audited counts 0, an audited one counts its
loss divided by its share, so a request's expected count is its risk whatever the share is.  Arrays
and numbers only: knows no requests, no files and no clock.  Runs inside a server, so that numpy is
all it needs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stopadvisor.errors import CalibrationError

__all__ = [
    "RATIOS",
    "AuditProcess",
    "AuditTest",
    "betting_upper_limit",
    "mixture_upper_limit",
    "requests_to_alarm",
]

RATIOS: tuple[float, ...] = (1.25, 1.5, 2.0, 3.0, 5.0)
"""Risks that the bets are made for, as multiples of alpha where everything is audited."""

_ONES = (1.0,) * len(RATIOS)

_MOST_STAKE = 0.9
"""Of the stake that one audit could bankrupt."""

_SHARES: tuple[float, ...] = (0.95, 0.75, *(2.0**-k for k in range(1, 15)))
"""Stakes of the upper limit's mixture, as shares of the largest; small ones for long streams."""

_MOST_SUM = 1e300
"""Beyond any alarm; what is above is cut off."""

_PRIOR = (0.5, 10.0)
"""Beta prior of the share of differing audits: most policies are calibrated to a few percent."""


@dataclass(frozen=True)
class AuditTest:
    """What is tested, settled before the first request.

    Raises
    ------
    CalibrationError
        A number lies outside its range.
    """

    alpha: float
    """The risk that was promised, in (0, 1)."""
    delta: float = 0.05
    """Most probability of ever raising a false alarm, in (0, 1)."""
    least_share: float = 0.02
    """No request is audited with a smaller probability, in (0, 1]."""
    change: float = 1e5
    """Mean number of requests to a false alarm of the change detector, at least; above 1."""
    gains: bool = False
    """Whether a loss can be -1, as that of `drop` can."""

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
        """One bet for each of `RATIOS`: ``(ratio - 1) / (1 / least_share - alpha)``.

        Never so much that a factor could reach 0.
        """
        worst = 1 / self.least_share + self.alpha if self.gains else self.alpha
        most = _MOST_STAKE / worst
        room = 1 / self.least_share - self.alpha
        return tuple(min((ratio - 1) / room, most) for ratio in RATIOS)


_Open = tuple[float, list[float], list[float]]
"""An audit without a result yet: its share, `logs` and `sums` once its request was counted."""


@dataclass
class AuditProcess:
    """Evidence against "every request's risk is at most alpha", request by request.

    Notes
    -----
    `e_value` is ``mean over stakes of prod(1 + stake * (loss / share - alpha))``.  Where no
    conditional risk exceeds alpha each product is a nonnegative supermartingale that starts at 1,
    so the probability that `e_value` *ever* reaches ``1 / delta`` is at most delta (Ville).

    `detector` is the Shiryaev-Roberts sum ``M_t = (M_{t-1} + 1) * e_t``, averaged over the same
    stakes: an alarm at ``M >= c`` comes after c requests on average or later where nothing has
    changed, and sooner than that of the e-value where the risk rises after a long quiet time.

    An audit without a result counts 0 until it has one, which can only lower both: products that
    hold later results at the places of their requests are what is promised for, and these are never
    above them.

    References
    ----------
    J. Ville, Etude critique de la notion de collectif, 1939; J. Shin, A. Ramdas, A. Rinaldo,
    E-detectors: a nonparametric framework for sequential change detection, 2023.
    """

    test: AuditTest
    requests: int = 0
    logs: list[float] = field(default_factory=lambda: [0.0] * len(RATIOS))
    """Logarithm of each stake's product."""
    sums: list[float] = field(default_factory=lambda: [0.0] * len(RATIOS))
    """Shiryaev-Roberts sum of each stake."""
    _open: dict[Hashable, _Open] = field(default_factory=dict, repr=False)
    _quiet: tuple[float, ...] = field(init=False, repr=False)
    _factors: tuple[float, ...] = field(init=False, repr=False)
    _limit: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._quiet = tuple(math.log1p(-stake * self.test.alpha) for stake in self.test.stakes)
        self._factors = tuple(math.exp(quiet) for quiet in self._quiet)
        self._limit = -math.log(self.test.delta)

    @property
    def e_value(self) -> float:
        """Evidence that the promise is broken; an alarm at ``1 / delta``."""
        most = max(self.logs)
        mean = sum(math.exp(one - most) for one in self.logs) / len(self.logs)
        return math.exp(min(most + math.log(mean), 700.0))

    @property
    def detector(self) -> float:
        """Evidence that it has begun to be broken; an alarm at `AuditTest.change`."""
        return sum(self.sums) / len(self.sums)

    @property
    def alarm(self) -> str | None:
        """``e-value``, ``change``, or None; e-value where both are reached."""
        # A mean is no larger than the largest: most of the time that settles it.
        if max(self.logs) >= self._limit and self.e_value >= 1 / self.test.delta:
            return "e-value"
        return "change" if sum(self.sums) / len(self.sums) >= self.test.change else None

    def open_keys(self) -> tuple[Hashable, ...]:
        """Audits without a result, in the order of their requests."""
        return tuple(self._open)

    def share_of(self, key: Hashable) -> float | None:
        """With which probability an open audit was picked; None where none is open."""
        found = self._open.get(key)
        return None if found is None else found[0]

    def give_up(self, key: Hashable) -> None:
        """Wait no longer for an audit's result: it counts 0 for ever."""
        self._open.pop(key, None)

    def count(self, requests: int = 1) -> None:
        """Count requests that were not audited, or whose loss is known to be 0."""
        if requests == 1:
            # New lists: open audits hold the old ones.
            self.logs = list(map(operator.add, self.logs, self._quiet))
            self.sums = list(map(operator.mul, map(operator.add, self.sums, _ONES), self._factors))
        elif requests > 1:
            self.logs, self.sums = self.logs.copy(), self.sums.copy()
            for k, quiet in enumerate(self._quiet):
                whole = requests * quiet
                self.logs[k] += whole
                added = math.exp(quiet) * math.expm1(whole) / math.expm1(quiet)
                self.sums[k] = self.sums[k] * math.exp(whole) + added
        self.requests += max(requests, 0)

    def audit(self, key: Hashable, share: float) -> None:
        """Count a request that is audited; its result comes by `resolve`, or never.

        Parameters
        ----------
        key : hashable
            Names the audit until its result is there.
        share : float
            The probability with which it was picked.

        Raises
        ------
        CalibrationError
            The share is below the least one or above 1, or the key is taken.
        """
        if not self.test.least_share <= share <= 1:
            raise CalibrationError(
                f"an audit's share must lie in [{self.test.least_share:g}, 1], got {share!r}"
            )
        if key in self._open:
            raise CalibrationError(f"an audit {key!r} is open already")
        self.count()
        self._open[key] = (share, self.logs, self.sums)

    def resolve(self, key: Hashable, loss: int) -> None:
        """Put an audit's result where its request stands.

        Parameters
        ----------
        key : hashable
            Of an audit that is open.
        loss : int
            1, 0, or -1 where gains count.

        Raises
        ------
        CalibrationError
            No such audit is open, or the loss is none of these.
        """
        found = self._open.get(key)
        if found is None:
            raise CalibrationError(f"no audit {key!r} is open")
        if loss not in ((-1, 0, 1) if self.test.gains else (0, 1)):
            raise CalibrationError(f"a loss of {loss!r} is not what this test counts")
        later: list[_Open] = []
        if loss and next(reversed(self._open)) != key:
            keys = list(self._open)
            later = [self._open[k] for k in keys[keys.index(key) + 1 :]]
        del self._open[key]
        if not loss:
            return
        self.logs, self.sums = self.logs.copy(), self.sums.copy()
        share, logs_then, sums_then = found
        later.append((share, self.logs, self.sums))
        for k, stake in enumerate(self.test.stakes):
            rise = math.log1p(stake * (loss / share - self.test.alpha)) - self._quiet[k]
            log, partial = logs_then[k], sums_then[k] * math.expm1(rise)
            # Every sum that began at or before this request holds its factor.
            for _, logs, sums in later:
                sums[k] = min(sums[k] + partial * math.exp(logs[k] - log), _MOST_SUM)
                logs[k] += rise

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on, as JSON values."""
        return {
            "requests": self.requests,
            "logs": list(self.logs),
            "sums": list(self.sums),
            "open": [[key, *one] for key, one in self._open.items()],
        }

    @classmethod
    def restore(cls, test: AuditTest, state: Mapping[str, Any]) -> AuditProcess:
        """The process that a state was taken of, under the same test."""
        process = cls(test, state["requests"], [*state["logs"]], [*state["sums"]])
        for key, share, logs, sums in state["open"]:
            process._open[key] = (share, [*logs], [*sums])
        return process


def betting_upper_limit(
    requests: int, differing: Mapping[float, int], *, delta: float, least_share: float
) -> float:
    """Upper limit of a risk that does not change, read at any time.

    Parameters
    ----------
    requests : int
        All of them, audited or not.
    differing : mapping of float to int
        By the share they were picked with: audits with a loss, and those without a result, which
        count as losses here.
    delta : float
    least_share : float

    Returns
    -------
    float
        The largest risk that is not rejected; with probability ``1 - delta`` it is above the risk
        at all times at once.

    Notes
    -----
    ``mean over stakes of prod(1 - stake * (loss / share - risk))`` with stakes from 0 to
    ``1 / (1 / least_share - risk)``.
    """
    lost = sum(differing.values())
    if requests < lost:
        raise CalibrationError(f"{lost} of {requests} requests differ")
    enough = math.log(len(_SHARES)) - math.log(delta)

    def excess(risk: float) -> float:
        worst = 1 / least_share - risk
        logs = []
        for part in _SHARES:
            log = (requests - lost) * math.log1p(part * risk / worst)
            for share, number in differing.items():
                log += number * math.log1p(-part * (1 / share - risk) / worst)
            logs.append(log)
        return max(logs) + math.log(sum(math.exp(one - max(logs)) for one in logs)) - enough

    return _root(excess, 0.0)


def mixture_upper_limit(audits: int, differing: int, *, delta: float) -> float:
    """Upper limit of the share of audited stops that differ, where all are audited alike.

    Parameters
    ----------
    audits : int
        Requests that stopped and were audited.
    differing : int
        Of them, those with a loss or without a result.
    delta : float

    Returns
    -------
    float
        Of *stops*; times the share of requests that stop it limits the risk of a request.  Sharper
        than `betting_upper_limit`, because chance in which requests are audited drops out.

    References
    ----------
    H. Robbins, Statistical methods related to the law of the iterated logarithm, 1970 (method of
    mixtures), with a beta mixture.
    """
    if not 0 <= differing <= audits:
        raise CalibrationError(f"{differing} of {audits} audits differ")
    a, b = _PRIOR
    mixed = _log_beta(a + differing, b + audits - differing) - _log_beta(a, b)

    def excess(share: float) -> float:
        likelihood = differing * math.log(share) + (audits - differing) * math.log1p(-share)
        return mixed - likelihood + math.log(delta)

    return _root(excess, differing / audits if audits else 0.0)


def requests_to_alarm(test: AuditTest, risk: float, share: float) -> float:
    """Median number of requests until the e-value raises its alarm, over simulated streams.

    Parameters
    ----------
    test : AuditTest
        Without gains.
    risk : float
        From the first request on; a risk at or below alpha may never be found.
    share : float
        Of requests that are audited.

    Returns
    -------
    float
        Infinity where half of the streams have no alarm after 400 losses were seen.
    """
    rng, draws = np.random.default_rng(0), 2_001
    seen = np.arange(1, 401)
    times = rng.geometric(share * risk, size=(draws, seen.size)).cumsum(axis=1)
    logs = [
        (times - seen) * math.log1p(-stake * test.alpha)
        + seen * math.log1p(stake * (1 / share - test.alpha))
        for stake in test.stakes
    ]
    evidence = np.logaddexp.reduce(np.stack(logs), axis=0) - math.log(len(logs))
    found = evidence >= -math.log(test.delta)
    first = np.where(found.any(axis=1), found.argmax(axis=1), -1)
    when = np.where(first >= 0, times[np.arange(draws), first], np.inf)
    return float(np.median(when))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _root(excess: Callable[[float], float], low: float) -> float:
    """Where a function that grows above `low` crosses 0, from above; 1 where it does not before."""
    low, high = max(low, 1e-12), math.nextafter(1, 0)
    if excess(high) <= 0:
        return 1.0
    while high - low > 1e-12 + 1e-10 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return high
