"""Certificates about questions where calibration holds several questions of one group.

Groups are independent, questions of one group are not: one customer's questions are hard or easy
together.  Taking one question of each group certifies the risk of a group, which is another number
than the risk of a question as soon as large groups are harder.  Here every question counts, and a
group is what chance draws.  Knows no questions, only what was lost of each group.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from stopadvisor.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.errors import CalibrationError

__all__ = [
    "SHARES",
    "group_interval",
    "group_limit",
    "group_log_evidence",
    "group_lower_limit",
    "group_passes",
    "group_upper_limit",
]

SHARES: tuple[float, ...] = tuple(k / 8 for k in range(1, 9))
"""Stakes of the mixture, equally weighted, as shares of the largest that cannot go bankrupt."""


def group_log_evidence(losses: IntArray, sizes: IntArray, *, alpha: float, most: int) -> FloatArray:
    """Evidence against "of all questions, more than alpha are lost", as a logarithm.

    Parameters
    ----------
    losses : ndarray of int, shape (n_groups, n_thresholds)
        Sum of the losses of each group's questions at each threshold; one question's is at most 1.
        Where gains count -1 it may be negative.
    sizes : ndarray of int, shape (n_groups,)
        Questions in each group.
    alpha : float
        The risk of a question that is to be shown, between 0 and 1.
    most : int
        Most questions that a group can hold, here and in the traffic that the claim is about.  It
        is declared, or read off the fit questions; never off these.

    Returns
    -------
    ndarray of float, shape (n_thresholds,)
        ``log E``; at each threshold ``E >= 1 / delta`` has probability at most delta as long as
        the risk there is alpha or more.

    Raises
    ------
    CalibrationError
        A group holds more than `most` questions: what it may lose has no limit that was fixed
        before.  Or no groups, sizes below 1, an alpha outside (0, 1), or more lost than a group
        holds.

    Notes
    -----
    The risk of a question is ``E[sum of L in a group] / E[questions in a group]``, so it is alpha
    or more just where ``Z = sum(L - alpha)`` over a group has an expectation of 0 or more.  Then
    ``E = prod(1 - stake * Z)`` over groups has an expectation of at most 1 for every fixed stake
    from 0 to ``1 / (most * (1 - alpha))``, which keeps each factor from being negative, and so has
    an average over fixed stakes; Markov's inequality does the rest.  Nothing is assumed of how
    losses of one group hang together, nor of how sizes and losses do.

    References
    ----------
    I. Waudby-Smith, A. Ramdas, Estimating means of bounded random variables by betting, 2024.
    """
    _check(losses, sizes, alpha, most)
    return _log_evidence(losses.astype(np.float64), sizes.astype(np.float64), alpha, most)


def group_passes(
    losses: IntArray, sizes: IntArray, *, alpha: float, delta: float, most: int
) -> BoolArray:
    """Whether each threshold's risk is shown to be below alpha; see `group_log_evidence`.

    Of several thresholds each is one test: whoever goes through them keeps to a fixed sequence,
    and stops at the first that does not pass.

    Returns
    -------
    ndarray of bool, shape (n_thresholds,)
    """
    _check_delta(delta)
    return group_log_evidence(losses, sizes, alpha=alpha, most=most) >= -math.log(delta)


def group_upper_limit(
    losses: FloatArray | IntArray, sizes: IntArray, *, delta: float, most: int
) -> float:
    """Upper limit of a question's risk at confidence 1 - delta.

    Parameters
    ----------
    losses, sizes : ndarray of int, shape (n_groups,)
        At one threshold.

    Returns
    -------
    float
        The largest alpha that the test does not reject; 1 where it rejects none.

    Notes
    -----
    The evidence grows with alpha at any losses, since each factor does: its derivative has the sign
    of ``n - L``, and no group loses more than it holds.  So the limit is one number, and the test
    at alpha passes just where it is below alpha.
    """
    _check_delta(delta)
    _check(losses[:, None], sizes, 0.5, most)
    lost, held = losses[:, None].astype(np.float64), sizes.astype(np.float64)

    def excess(alpha: float) -> float:
        return float(_log_evidence(lost, held, alpha, most)[0]) + math.log(delta)

    edge = 1e-12
    if excess(1 - edge) < 0:
        return 1.0
    if excess(edge) >= 0:  # where gains are counted risks may lie below 0
        return 0.0
    return float(scipy.optimize.brentq(excess, edge, 1 - edge, xtol=1e-12))


def group_lower_limit(
    losses: FloatArray | IntArray, sizes: IntArray, *, delta: float, most: int
) -> float:
    """Lower limit of a question's risk at confidence 1 - delta.

    Parameters
    ----------
    losses, sizes : ndarray of int, shape (n_groups,)
        At one threshold; here no loss may be negative.

    Returns
    -------
    float
        The smallest alpha at which "of all questions, at most alpha are lost" is not rejected.

    Notes
    -----
    The bets are on the other side: ``E = prod(1 + stake * Z)`` with stakes up to
    ``1 / (most * alpha)``, since a group without a loss has ``Z >= -most * alpha``.  The evidence
    falls as alpha grows, so the limit is one number.
    """
    _check_delta(delta)
    _check(losses[:, None], sizes, 0.5, most)
    if losses.min() < 0:
        raise CalibrationError("a lower limit takes losses, and a group here has gains")
    shares = np.array(SHARES)[:, None] / most

    def excess(alpha: float) -> float:
        with np.errstate(divide="ignore"):  # the largest stake on a full group without a loss
            logs = np.log(np.maximum(1 + shares * (losses / alpha - sizes), 0.0)).sum(axis=1)
        return float(np.logaddexp.reduce(logs)) - math.log(len(SHARES)) + math.log(delta)

    edge = 1e-9
    if excess(edge) <= 0:
        return 0.0
    return float(scipy.optimize.brentq(excess, edge, 1.0, xtol=1e-12))


def group_interval(
    hits: FloatArray | IntArray, sizes: IntArray, *, most: int, level: float = 0.95
) -> tuple[float, float]:
    """Interval of a mean over questions, by bets on whole groups on either side.

    Parameters
    ----------
    hits : ndarray, shape (n_groups,)
        Sum over each group's questions of what lies between 0 and 1.
    """
    delta = (1 - level) / 2
    return (
        group_lower_limit(hits, sizes, delta=delta, most=most),
        group_upper_limit(hits, sizes, delta=delta, most=most),
    )


def group_limit(
    n_groups: int,
    n_questions: float,
    *,
    alpha: float,
    delta: float,
    most: int,
    lost_together: float = 1.0,
) -> float:
    """Largest share of lost questions at which the test would still reject, to aim at on fit.

    Parameters
    ----------
    n_groups : int
    n_questions : float
        Of calibration; groups are taken to be equally large.
    lost_together : float
        Lost questions in a group that loses any: the mean over such groups on fit.

    Returns
    -------
    float
        -1 where not even a calibration without losses would do.
    """
    _check_delta(delta)
    size = n_questions / max(n_groups, 1)
    _check(np.zeros((max(n_groups, 0), 1)), np.full(max(n_groups, 0), math.ceil(size)), alpha, most)
    if not 1 <= lost_together <= most:
        raise CalibrationError(
            f"lost_together must lie between 1 and {most}, got {lost_together!r}"
        )
    stake = np.array(SHARES) / (most * (1 - alpha))
    kept = np.log1p(stake * alpha * size)
    with np.errstate(divide="ignore"):
        lost = np.log(np.maximum(1 - stake * (min(lost_together, size) - alpha * size), 0.0))

    def excess(groups: float) -> float:
        logs = (n_groups - groups) * kept + (groups * lost if groups else 0.0)
        return float(np.logaddexp.reduce(logs)) - math.log(len(SHARES)) + math.log(delta)

    if excess(0.0) < 0:
        return -1.0
    found = n_groups if excess(n_groups) >= 0 else scipy.optimize.brentq(excess, 0.0, n_groups)
    return float(found) * min(lost_together, size) / n_questions


def _log_evidence(losses: FloatArray, sizes: FloatArray, alpha: float, most: int) -> FloatArray:
    """Log of the mixture of products, without the checks."""
    excess = losses - alpha * sizes[:, None]  # (n_groups, n_thresholds)
    logs = np.empty((len(SHARES), losses.shape[1]))
    for row, share in zip(logs, SHARES, strict=True):
        factors = 1 - share / (most * (1 - alpha)) * excess
        with np.errstate(divide="ignore"):  # a whole group lost at the largest stake: bankrupt
            row[:] = np.log(np.maximum(factors, 0.0)).sum(axis=0)
    return np.asarray(np.logaddexp.reduce(logs, axis=0) - math.log(len(SHARES)), np.float64)


def _check(losses: FloatArray | IntArray, sizes: IntArray, alpha: float, most: int) -> None:
    if not 0 < alpha < 1:
        raise CalibrationError(f"alpha must lie between 0 and 1, got {alpha!r}")
    if not sizes.size or losses.shape[0] != sizes.size or losses.ndim != 2:
        raise CalibrationError(
            f"losses must have a row for each of the groups, got shapes {losses.shape} and "
            f"{sizes.shape}"
        )
    if sizes.min() < 1:
        raise CalibrationError(f"a group holds at least one question, got {int(sizes.min())}")
    if sizes.max() > most:
        raise CalibrationError(
            f"a calibration group holds {int(sizes.max())} questions, more than the {most} that "
            "a group may hold: the largest that can occur must be known beforehand"
        )
    if (losses > sizes[:, None]).any():
        raise CalibrationError("a group loses at most the questions that it holds")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise CalibrationError(f"delta must lie between 0 and 1, got {delta!r}")
