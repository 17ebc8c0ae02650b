"""What a file says beside its certificate: which questions made it, and what to expect of it.

These figures cannot be recomputed from the file, yet the headline uses them; so their ranges and
their fit to each other and to the certificate are checked.  Files from before a figure was written
lack it.  Knows fields whose types `schema` has checked, and no file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stopadvisor.policy.checks import (
    LINE,
    SHARE_OR_END,
    FieldCheck,
    expect,
    map_of,
    nullable,
    on_one_line,
    one_of,
    record,
    where,
    whole,
)
from stopadvisor.policy.claims import binomial_tail
from stopadvisor.rules.losses import LOSSES, LOST

__all__ = ["check_evidence"]

_SLACK = 1e-6
"""Of figures that were computed in another order."""
_TAIL = 0.025
"""Beyond either end of a 95 % interval."""
_SLACK_OF_TAILS = 1e-4


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_SAVING = where("a number of at most 100", lambda v: _is_number(v) and v <= 100 + _SLACK)
_RISK = where("a number from -1 to 1", lambda v: _is_number(v) and -1 <= v <= 1)
_WEIGHT = where("a number >= 0", lambda v: _is_number(v) and v >= 0)


def _ends(what: str, low: float, high: float) -> FieldCheck:
    """A check for the two ends of an interval, the lower first."""
    return where(
        f"two numbers{what}, the lower first",
        lambda v: (
            type(v) is list
            and len(v) == 2
            and all(map(_is_number, v))
            and low <= v[0] <= v[1] <= high
        ),
    )


_SAVINGS = nullable(_ends(" of at most 100", -math.inf, 100))
_SHARES = _ends(" from 0 to 1", 0, 1)
_ANY_TWO = _ends("", -math.inf, math.inf)
_EXPECTED = record(
    {},
    more=True,
    optional={
        "weights": record(
            {"prefilled": _WEIGHT, "cached": _WEIGHT, "decoded": _WEIGHT, "unit": LINE},
            optional=dict.fromkeys(("request", "round_trip", "held", "context"), _WEIGHT)
            | {"gpu": LINE, "model": LINE, "in_flight": whole(1)},
        ),
        "cache_block": whole(1),
        "graded_by": one_of("agreement"),
        "loss": one_of(*LOSSES),
        "fit_total_saving_pct": nullable(_SAVING),
        "fit_risk": nullable(_RISK),
        "saving_by_serving": map_of(_SAVING),
        "calibration_total_saving_band95": _SAVINGS,
        "test_total_saving_ci95": _SAVINGS,
        "test_accuracy_ci95": _SHARES,
        "test_risk_ci95": _ANY_TWO,
    }
    | {
        f"{part}_{name}": check
        for part in ("calibration", "test")
        for name, check in {
            "n": whole(1),
            "risk": _RISK,
            "accuracy": SHARE_OR_END,
            "full_accuracy": SHARE_OR_END,
            "total_saving_pct": _SAVING,
            "think_saving_pct": _SAVING,
            "uncut_saving_pct": nullable(_SAVING),
            "answer_saving_pct": _SAVING,
        }.items()
    },
)
_HELD_IN = (
    ("calibration_total_saving_pct", "calibration_total_saving_band95"),
    ("test_total_saving_pct", "test_total_saving_ci95"),
    ("test_risk", "test_risk_ci95"),
    ("test_accuracy", "test_accuracy_ci95"),
)


def check_evidence(content: Mapping[str, Any]) -> None:
    """Hold split and expected figures to themselves, and to a certificate that was checked.

    Raises
    ------
    PolicyError
        A question stands twice in a part, or in calibration and in another; or the certificate
        counts more questions than the file names.  A figure is of another type, out of range,
        outside its own interval, better than the losses allow, or not what the certificate counts.
    """
    if content["split"] is not None:
        _check_split(content)
    if content["expected"] is not None and content["certificate"] is not None:
        _check_expected(content["expected"], content["certificate"])


def _check_split(content: Mapping[str, Any]) -> None:
    """Names are those of questions and of groups, so that there may be more than were counted."""
    split, certificate = content["split"], content["certificate"]
    parts = {name: set(split[name]) for name in ("fit", "calibration", "test")}
    for name, ids in parts.items():
        size = len(split[name])
        expect(len(ids) == size, f"split.{name}", "each question once", f"{len(ids)} of {size}")
    calibration = parts["calibration"]
    for name in ("fit", "test"):  # a transfer's fit part names what its source has seen
        both = len(calibration & parts[name])
        expect(not both, "split.calibration", f"no question of split.{name}", f"{both} of them")
    if certificate is not None:
        most = f"at most as many as split.calibration names ({len(calibration)})"
        several = enumerate(certificate.get("guarantees", ()))
        counts = {f"guarantees[{k}].n": each["n"] for k, each in several}
        for name, n in {"n": certificate["n"], **counts}.items():
            expect(n <= len(calibration), f"certificate.{name}", most, n)


def _check_expected(expected: Mapping[str, Any], certificate: Mapping[str, Any]) -> None:
    _EXPECTED(expected, "expected")
    on_one_line(expected, "expected")
    for name, limits in _HELD_IN:
        value, ends = expected.get(name), expected.get(limits)
        if value is not None and ends is not None:
            inside = ends[0] - _SLACK <= value <= ends[1] + _SLACK
            expect(inside, f"expected.{name}", f"a value within expected.{limits} {ends}", value)
    if "labelled" in certificate:  # grades are of a part of the questions
        return
    for part in ("calibration", "test"):
        _check_counts(expected, part, certificate.get("loss", LOST.name))
    n, losses = certificate["n"], certificate["losses"] - certificate.get("gained", 0)
    risk = expected.get("calibration_risk")
    if risk is not None and expected.get("calibration_n") == n:
        same = math.isclose(risk, losses / n, rel_tol=_SLACK, abs_tol=_SLACK / n)
        expect(same, "expected.calibration_risk", f"certificate.losses / n ({losses} / {n})", risk)
    if "test_n" in expected:
        n = expected["test_n"]
        for name in ("test_risk", "test_accuracy"):
            ends, share = expected.get(f"{name}_ci95"), expected.get(name)
            if ends is not None and share is not None and share >= 0:
                _check_interval(f"expected.{name}_ci95", round(share * n), n, ends)


def _check_counts(expected: Mapping[str, Any], part: str, loss: str) -> None:
    """Shares of n questions are counts of them, and together what one set of replies can give."""
    names = ("n", "risk", "accuracy", "full_accuracy")
    n, risk, accuracy, full = (expected.get(f"{part}_{name}") for name in names)
    for name in names[1:] if n is not None else ():
        share = expected.get(f"{part}_{name}")
        if share is not None:
            count = share * n
            whole = abs(count - round(count)) <= _SLACK
            expect(whole, f"expected.{part}_{name}", f"a count out of {n}", share)
    if loss != LOST.name or risk is None:
        return
    if accuracy is not None:
        # What stopping loses is wrong: the rest may be right, whatever full thinking says.
        most = f"at most 1 - {part}_risk ({1 - risk:g})"
        expect(accuracy <= 1 - risk + _SLACK, f"expected.{part}_accuracy", most, accuracy)
    if full is not None:
        least = f"at least {part}_risk ({risk:g}): what is lost was right"
        expect(full >= risk - _SLACK, f"expected.{part}_full_accuracy", least, full)
    if full is not None and accuracy is not None:
        least = f"at least {part}_full_accuracy - {part}_risk ({full - risk:g})"
        expect(accuracy >= full - risk - _SLACK, f"expected.{part}_accuracy", least, accuracy)


def _check_interval(name: str, count: int, n: int, ends: list[float]) -> None:
    """Hold an exact 95 % interval of a share to its count."""
    low, high = ends
    below = low if count == 0 else 1 - binomial_tail(count - 1, n, low) - _TAIL
    above = 1 - high if count == n else binomial_tail(count, n, high) - _TAIL
    fits = max(abs(below), abs(above)) <= _TAIL * _SLACK_OF_TAILS
    expect(fits, name, f"the exact interval of {count} of {n}", ends)
