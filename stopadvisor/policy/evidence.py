"""A policy's evidence: the questions it was made from, and its expected risk and saving.

The file does not allow these figures to be recomputed, but the headline shows them, so they are
checked against each other and against the certificate.
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
"""Tolerance for figures summed in another order."""
_TAIL = 0.025
"""Probability beyond either end of a 95 % interval."""
_SLACK_OF_TAILS = 1e-4
_INTERVALS = (
    ("calibration_total_saving_pct", "calibration_total_saving_band95"),
    ("test_total_saving_pct", "test_total_saving_ci95"),
    ("test_risk", "test_risk_ci95"),
    ("test_accuracy", "test_accuracy_ci95"),
)


# --- Fields ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExpectedTerms:
    """Risk and saving on fit, calibration and test questions; for display only."""

    SPARSE: ClassVar[bool] = True

    weights: Weights
    """Prices of a prefilled, a cached and a decoded token."""
    cache_block: _Block
    """Tokens in one block of the server's prefix cache."""
    fit_total_saving_pct: _Saving | None
    """Net saving on fit questions, out of fold."""
    fit_risk: _Risk | None
    """Risk on fit questions, out of fold."""
    calibration_n: Some
    """Number of calibration questions."""
    calibration_risk: _Risk
    """Measured risk."""
    calibration_total_saving_pct: _Saving
    """Net saving."""
    calibration_total_saving_band95: tuple[_Saving, _Saving]
    """95 % bootstrap band of the net saving, simultaneous over thresholds, because these questions
    chose the threshold."""
    calibration_think_saving_pct: _Saving
    """Saving in thinking tokens."""
    calibration_uncut_saving_pct: _Saving | None
    """Net saving on traces that were not cut off."""
    calibration_accuracy: ShareOrEnd
    """Share answered right under the rule."""
    calibration_full_accuracy: ShareOrEnd
    """Share that full thinking answers right."""
    graded_by: Literal["agreement"] | None = None
    """How replies were graded, if not by gold."""
    loss: LossKind = LOST.name
    """The loss that the risks count."""
    calibration_answer_saving_pct: _Saving | None = None
    """Saving in tokens of the visible answer."""
    test_n: Some | None = None
    """Number of test questions."""
    test_total_saving_pct: _Saving | None = None
    """Net saving."""
    test_total_saving_ci95: tuple[_Saving, _Saving] | None = field(
        default=None, metadata={"present_with": "test_n"}
    )
    """95 % interval of the net saving."""
    test_think_saving_pct: _Saving | None = None
    """Saving in thinking tokens."""
    test_uncut_saving_pct: _Saving | None = field(default=None, metadata={"present_with": "test_n"})
    """Net saving on traces that were not cut off."""
    test_risk: _Risk | None = None
    """Measured risk."""
    test_risk_ci95: tuple[float, float] | None = None
    """95 % interval of the risk: exact, or a score interval for `drop`."""
    test_accuracy: ShareOrEnd | None = None
    """Share answered right under the rule."""
    test_accuracy_ci95: tuple[ShareOrEnd, ShareOrEnd] | None = None
    """Exact 95 % interval of that share."""
    test_full_accuracy: ShareOrEnd | None = None
    """Share that full thinking answers right."""
    test_answer_saving_pct: _Saving | None = None
    """Saving in tokens of the visible answer."""
    saving_by_serving: Mapping[str, _Saving] | None = None
    """Net saving under each serving stack."""


@dataclass(frozen=True)
class ProfileShare:
    """Fit questions of one trajectory type."""

    count: Count
    """Questions of this type."""
    share: ShareOrEnd
    """Their share of the fit questions."""
    ci95: tuple[ShareOrEnd, ShareOrEnd]
    """95 % interval of the share."""


@dataclass(frozen=True)
class SplitTerms:
    """The questions that the policy was made from, as content hashes."""

    seed: int
    """Seed of the split."""
    fractions: tuple[ShareOrEnd, ...]
    """Shares of the three parts."""
    fit: tuple[Name, ...]
    """Questions on which the rule was chosen."""
    calibration: tuple[Name, ...]
    """Questions on which it was certified."""
    test: tuple[Name, ...]
    """Questions used for neither."""


@dataclass(frozen=True)
class ServedTerms:
    """What the rule does on a sample of calibration questions."""

    stop: tuple[float, ...]
    """Thinking tokens at the stop, -1 for none; for a ladder, the number of the reply served, -1
    for the reference."""
    prompt_tokens: tuple[float, ...]
    """Prompt tokens of each question."""
    first_logprob: tuple[float, ...] | None = None
    """Mean log-probability of each first forced answer; questions without one are left out."""


# --- Checks ---------------------------------------------------------------------------------------


def check_split(split: SplitTerms, certificate: CertificateTerms | None) -> None:
    """Check a split, and that it names at least as many questions as the certificate counts.

    It names both questions and groups, so it may name more.

    Raises
    ------
    PolicyError
        A question appears twice in a part, or in calibration and another part; or the certificate
        counts more questions than the split names.
    """
    parts = {name: set(getattr(split, name)) for name in ("fit", "calibration", "test")}
    for name, ids in parts.items():
        size = len(getattr(split, name))
        expect(len(ids) == size, f"split.{name}", "each question once", f"{len(ids)} of {size}")
    calibration = parts["calibration"]
    for name in ("fit", "test"):  # a transfer's fit part names what its source has seen
        shared = len(calibration & parts[name])
        expect(not shared, "split.calibration", f"no question of split.{name}", f"{shared} of them")
    if certificate is not None:
        most = f"at most as many as split.calibration names ({len(calibration)})"
        guarantees = enumerate(certificate.guarantees or ())
        counts = {"n": certificate.n, "labelled": certificate.labelled or 0}
        counts |= {f"guarantees[{k}].n": limit.n for k, limit in guarantees}
        for name, n in counts.items():
            expect(n <= len(calibration), f"certificate.{name}", most, n)


def check_expected(expected: ExpectedTerms, certificate: CertificateTerms) -> None:
    """Check expected figures against each other and against a checked certificate.

    Raises
    ------
    PolicyError
        A figure is outside its own interval, is no count divided by the number of questions, is
        better than the losses allow, or contradicts the certificate.
    """
    for name, interval in _INTERVALS:
        value, ends = getattr(expected, name), getattr(expected, interval)
        if value is not None and ends is not None:
            inside = ends[0] - _SLACK <= value <= ends[1] + _SLACK
            expect(inside, f"expected.{name}", f"a value within expected.{interval} {ends}", value)
    traces = 1 if certificate.both is None else 2
    graded = certificate.labelled is None  # otherwise only some of the questions have grades
    if graded:
        _check_shares(expected, "calibration", certificate.loss, traces)
        _check_shares(expected, "test", certificate.loss)
    counted = graded or certificate.differing is not None
    if counted and expected.calibration_n == certificate.n:
        risk, right = expected.calibration_risk, certificate.risk
        slack = _SLACK / (certificate.n * traces)
        same = math.isclose(risk, right, rel_tol=_SLACK, abs_tol=slack)
        expect(same, "expected.calibration_risk", f"that of the certificate ({right:g})", risk)
    if graded and expected.test_n is not None:
        # The risk of a drop depends on two counts, which the file does not hold.
        shares = ("test_risk",) if LOSSES[certificate.loss].is_binary else ()
        for name in (*shares, "test_accuracy"):
            share, ends = getattr(expected, name), getattr(expected, f"{name}_ci95")
            if ends is not None and share is not None:
                count = round(share * expected.test_n)
                _check_interval(f"expected.{name}_ci95", count, expected.test_n, ends)


def _check_shares(expected: ExpectedTerms, part: str, loss: str, traces: int = 1) -> None:
    """Check that shares are counts out of n replies, and are possible together."""
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
        # Replies that stopping lost are wrong; all others may be right.
        most = f"at most 1 - {part}_risk ({1 - risk:g})"
        expect(accuracy <= 1 - risk + _SLACK, f"expected.{part}_accuracy", most, accuracy)
    if full is not None:
        least = f"at least {part}_risk ({risk:g}): what is lost was right"
        expect(full >= risk - _SLACK, f"expected.{part}_full_accuracy", least, full)
    if full is not None and accuracy is not None:
        least = f"at least {part}_full_accuracy - {part}_risk ({full - risk:g})"
        expect(accuracy >= full - risk - _SLACK, f"expected.{part}_accuracy", least, accuracy)


def _check_interval(name: str, count: int, n: int, ends: tuple[float, float]) -> None:
    """Check that an interval is the two-sided exact (Clopper-Pearson) 95 % interval of a count."""
    low, high = ends
    below = low if count == 0 else 1 - binomial_tail(count - 1, n, low) - _TAIL
    above = 1 - high if count == n else binomial_tail(count, n, high) - _TAIL
    fits = max(abs(below), abs(above)) <= _TAIL * _SLACK_OF_TAILS
    expect(fits, name, f"the exact interval of {count} of {n}", list(ends))
