"""The evidence in a policy file: which questions made it, and what to expect of it.

These figures cannot be recomputed from the file, yet the headline uses them; so they are held to
each other and to the certificate, which was checked before.  Knows no file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from stopadvisor.ground.fields import Condition, Count, Name, ShareOrEnd, Some, expect
from stopadvisor.policy.claims import CertificateTerms, LossKind
from stopadvisor.rules.costs import CACHE_BLOCK, Weights
from stopadvisor.rules.losses import LOSSES, LOST
from stopadvisor.stats.binomial import binomial_tail

__all__ = [
    "ExpectedTerms", "ProfileShare", "ServedTerms", "SplitTerms", "check_expected", "check_split",
]  # fmt: skip

_Saving = Annotated[float, Condition("a number of at most 100", lambda value: value <= 100 + 1e-6)]
_Risk = Annotated[float, Condition("a number from -1 to 1", lambda value: -1 <= value <= 1)]

_Block = Annotated[int, Condition(str(CACHE_BLOCK), lambda value: value == CACHE_BLOCK)]

_SLACK = 1e-6
"""Of figures that were computed in another order."""
_TAIL = 0.025
"""Beyond either end of a 95 % interval."""
_SLACK_OF_TAILS = 1e-4
_HELD_IN = (
    ("calibration_total_saving_pct", "calibration_total_saving_band95"),
    ("test_total_saving_pct", "test_total_saving_ci95"),
    ("test_risk", "test_risk_ci95"),
    ("test_accuracy", "test_accuracy_ci95"),
)


# --- What a file holds ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExpectedTerms:
    """Risk and saving on fit, calibration and test questions, for reading."""

    SPARSE: ClassVar[bool] = True

    weights: Weights
    """What tokens cost."""
    cache_block: _Block
    """Tokens that a server caches together."""
    fit_total_saving_pct: _Saving | None
    """Net saving on fit questions, out of fold."""
    fit_risk: _Risk | None
    """Loss on fit questions, out of fold."""
    calibration_n: Some
    """Questions."""
    calibration_risk: _Risk
    """Loss."""
    calibration_total_saving_pct: _Saving
    """Net saving."""
    calibration_total_saving_band95: tuple[_Saving, _Saving]
    """Of the net saving, at the threshold that these questions chose."""
    calibration_think_saving_pct: _Saving
    """Saving in thinking tokens."""
    calibration_uncut_saving_pct: _Saving | None
    """Net saving on traces that were not cut off."""
    calibration_accuracy: ShareOrEnd
    """Share answered right, stopped by the rule."""
    calibration_full_accuracy: ShareOrEnd
    """Share that full thinking answers right."""
    graded_by: Literal["agreement"] | None = None
    """With what replies were compared, where it was not gold."""
    loss: LossKind = LOST.name
    """What the risks count."""
    calibration_answer_saving_pct: _Saving | None = None
    """Saving in tokens of the visible answer."""
    test_n: Some | None = None
    """Questions."""
    test_total_saving_pct: _Saving | None = None
    """Net saving."""
    test_total_saving_ci95: tuple[_Saving, _Saving] | None = field(
        default=None, metadata={"present_with": "test_n"}
    )
    """Of the net saving."""
    test_think_saving_pct: _Saving | None = None
    """Saving in thinking tokens."""
    test_uncut_saving_pct: _Saving | None = field(default=None, metadata={"present_with": "test_n"})
    """Net saving on traces that were not cut off."""
    test_risk: _Risk | None = None
    """Loss."""
    test_risk_ci95: tuple[float, float] | None = None
    """Of the loss."""
    test_accuracy: ShareOrEnd | None = None
    """Share answered right, stopped by the rule."""
    test_accuracy_ci95: tuple[ShareOrEnd, ShareOrEnd] | None = None
    """Of that share."""
    test_full_accuracy: ShareOrEnd | None = None
    """Share that full thinking answers right."""
    test_answer_saving_pct: _Saving | None = None
    """Saving in tokens of the visible answer."""
    saving_by_serving: Mapping[str, _Saving] | None = None
    """Net saving under each serving stack."""


@dataclass(frozen=True)
class ProfileShare:
    """One kind of fit questions."""

    count: Count
    """How many there are."""
    share: ShareOrEnd
    """Of the fit questions."""
    ci95: tuple[ShareOrEnd, ShareOrEnd]
    """Of the share."""


@dataclass(frozen=True)
class SplitTerms:
    """Which questions made the policy."""

    seed: int
    """Of the split."""
    fractions: tuple[ShareOrEnd, ...]
    """Shares of the three parts."""
    fit: tuple[Name, ...]
    """Questions that chose the rule, as content hashes."""
    calibration: tuple[Name, ...]
    """Questions that certified it."""
    test: tuple[Name, ...]
    """Questions that did neither."""


@dataclass(frozen=True)
class ServedTerms:
    """What the rule does on some calibration questions."""

    stop: tuple[float, ...]
    """Where it would have stopped; -1 for nowhere."""
    prompt_tokens: tuple[float, ...]
    """Tokens of its prompt."""
    first_logprob: tuple[float, ...] | None = None
    """Mean log-probability of its first forced answer, of those that have one."""


# --- Held to each other ---------------------------------------------------------------------------


def check_split(split: SplitTerms, certificate: CertificateTerms | None) -> None:
    """Hold a split to itself, and to what a certificate counts.

    Names are those of questions and of groups, so that there may be more than were counted.

    Raises
    ------
    PolicyError
        A question stands twice in a part, or in calibration and in another; or the certificate
        counts more questions than the file names.
    """
    parts = {name: set(getattr(split, name)) for name in ("fit", "calibration", "test")}
    for name, ids in parts.items():
        size = len(getattr(split, name))
        expect(len(ids) == size, f"split.{name}", "each question once", f"{len(ids)} of {size}")
    calibration = parts["calibration"]
    for name in ("fit", "test"):  # a transfer's fit part names what its source has seen
        both = len(calibration & parts[name])
        expect(not both, "split.calibration", f"no question of split.{name}", f"{both} of them")
    if certificate is not None:
        most = f"at most as many as split.calibration names ({len(calibration)})"
        several = enumerate(certificate.guarantees or ())
        counts = {"n": certificate.n} | {f"guarantees[{k}].n": each.n for k, each in several}
        for name, n in counts.items():
            expect(n <= len(calibration), f"certificate.{name}", most, n)


def check_expected(expected: ExpectedTerms, certificate: CertificateTerms) -> None:
    """Hold expected figures to each other, and to a certificate that was checked.

    Raises
    ------
    PolicyError
        A figure is outside its own interval, no count of its questions, better than the losses
        allow, or not what the certificate counts.
    """
    for name, limits in _HELD_IN:
        value, ends = getattr(expected, name), getattr(expected, limits)
        if value is not None and ends is not None:
            inside = ends[0] - _SLACK <= value <= ends[1] + _SLACK
            expect(inside, f"expected.{name}", f"a value within expected.{limits} {ends}", value)
    if certificate.labelled is not None:  # grades are of a part of the questions
        if certificate.differing is not None and expected.calibration_n == certificate.n:
            risk, counted = expected.calibration_risk, certificate.sampled_risk
            same = math.isclose(risk, counted, rel_tol=_SLACK, abs_tol=_SLACK / certificate.n)
            expect(same, "expected.calibration_risk", f"that of the labels ({counted:g})", risk)
        return
    traces = 1 if certificate.both is None else 2
    _check_shares(expected, "calibration", certificate.loss, traces)
    _check_shares(expected, "test", certificate.loss)
    n, losses = certificate.n * traces, certificate.losses - (certificate.gained or 0)
    risk = expected.calibration_risk
    if expected.calibration_n == certificate.n:
        same = math.isclose(risk, losses / n, rel_tol=_SLACK, abs_tol=_SLACK / n)
        expect(same, "expected.calibration_risk", f"certificate.losses / n ({losses} / {n})", risk)
    if expected.test_n is not None:
        # That of a drop follows from two counts, which are not in the file.
        shares = ("test_risk",) if LOSSES[certificate.loss].is_binary else ()
        for name in (*shares, "test_accuracy"):
            share, ends = getattr(expected, name), getattr(expected, f"{name}_ci95")
            if ends is not None and share is not None:
                count = round(share * expected.test_n)
                _check_interval(f"expected.{name}_ci95", count, expected.test_n, ends)


def _check_shares(expected: ExpectedTerms, part: str, loss: str, traces: int = 1) -> None:
    """Shares of n replies are counts of them, and together what one set of replies can give."""
    n = getattr(expected, f"{part}_n")
    n = None if n is None else n * traces
    names = [f"{part}_{name}" for name in ("risk", "accuracy", "full_accuracy")]
    risk, accuracy, full = shares = [getattr(expected, name) for name in names]
    for name, share in zip(names, shares, strict=True):
        if n is not None and share is not None:
            whole = abs(share * n - round(share * n)) <= _SLACK
            expect(whole, f"expected.{name}", f"a count out of {n}", share)
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


def _check_interval(name: str, count: int, n: int, ends: tuple[float, float]) -> None:
    """Hold an exact 95 % interval of a share to its count."""
    low, high = ends
    below = low if count == 0 else 1 - binomial_tail(count - 1, n, low) - _TAIL
    above = 1 - high if count == n else binomial_tail(count, n, high) - _TAIL
    fits = max(abs(below), abs(above)) <= _TAIL * _SLACK_OF_TAILS
    expect(fits, name, f"the exact interval of {count} of {n}", list(ends))
