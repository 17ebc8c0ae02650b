"""A policy's certificate: its fields, the claim in words, and the tests repeated on load.

A policy file is not trusted.  The exact test is repeated on its counts, the confidence is derived
from its looks, and the claim that people read is written here, never taken from the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import (
    Condition,
    Count,
    Line,
    Most,
    Name,
    Positive,
    Sha256,
    Share,
    ShareOrEnd,
    Some,
    TokenCount,
    expect,
    matching,
    one_of,
    plain,
)
from stopadvisor.probes.asking import OnStop
from stopadvisor.rules.losses import LOSSES, LOST
from stopadvisor.stats.binomial import binomial_tail
from stopadvisor.stats.label_sample import MOST_SAMPLED, sample_passes, share_lost
from stopadvisor.stats.trinomial import MOST_QUESTIONS, drop_passes, limit_of_pairs

__all__ = [
    "CertificateTerms", "GraderTerms", "GuaranteeTerms", "LossKind", "check_certificate", "claim",
]  # fmt: skip

LossKind = Annotated[str, one_of(*LOSSES)]
_MOST_LIMITS = 64
_MOST_LOOKS = 1024

_SLACK = 1e-3
"""Relative tolerance, for quantiles of another library or rounded for display."""
_ROUNDING = 1e-12
_DROP_SLACK = 4e-4
"""Absolute tolerance for limits found by bisection: of a drop, of two traces, of a sample."""

_LOST_OF_GROUPS = (
    "in at most {alpha:g} % of all groups, stopping early turns the question drawn from the group "
    "from right to wrong"
)
"""Words for `lost` under a `group_claim`: one question of each group was counted."""
_ON_LADDER = {
    "lost": "climbing the ladder turns at most {alpha:g} % of all questions from right to wrong",
    "differs": "at most {alpha:g} % of replies differ from what the reference would have said",
}
"""Words for a ladder; its reference is the last rung."""
_FEW_LABELS = (
    " Few questions were labelled: a reply equal in normal form to the natural answer takes its "
    "grade, and one that differs without a label counts as lost."
)
_SAMPLED = (
    " Of the replies that differ the first {labels}, in an order fixed beforehand, were labelled."
)
_TWO_TRACES = " Each calibration question was answered twice, and both replies counted."
_FIRST_OF_TWO = " For the fall of accuracy the first reply alone counted."


# --- Fields ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GuaranteeTerms:
    """One of several guaranteed limits, with the counts it rests on."""

    loss: LossKind
    """The loss that is limited."""
    alpha: Share
    """Largest share of questions with that loss; for `drop`, largest fall of accuracy."""
    n: Some
    """Calibration questions."""
    lost: Count
    """Replies that stopping made wrong, or different."""
    gained: Count
    """Replies that stopping made right; only for `drop`."""
    upper: ShareOrEnd
    """One-sided upper confidence limit at this threshold alone; the claim is `alpha`."""
    category: Name | None
    """The category of questions it covers; null for all."""
    both: Count | None = None
    """With two traces per question: questions with both replies lost; `lost` counts replies."""
    one: Count | None = None
    """Questions with one of two replies lost."""
    none: Count | None = None
    """Questions with neither of two replies lost."""

    @property
    def risk(self) -> float:
        """Share of replies lost, minus the share gained."""
        return (self.lost - self.gained) / (self.n * (1 if self.both is None else 2))


@dataclass(frozen=True)
class GraderTerms:
    """A function that graded calibration questions."""

    name: Annotated[str, matching("[ -~]{1,200}", "1 to 200 printable ASCII characters")]
    """Its name, as given on the command line."""
    sha256: Sha256
    """SHA-256 of its code."""


@dataclass(frozen=True, kw_only=True)
class CertificateTerms:
    """What was certified about the policy; `claims.claim` puts it into words."""

    SPARSE: ClassVar[bool] = True

    alpha: Share
    """Largest share of questions with the loss; for `drop`, largest fall of accuracy."""
    delta: Share
    """Error probability of this look, over the draw of questions; if looks were planned, of all of
    them together."""
    confidence: ShareOrEnd
    """1 minus the error probability of all looks."""
    bound: Literal["exact"]
    """The test that certifies: an exact one."""
    multiplicity: Literal["fixed-sequence"]
    """Thresholds are tested in a fixed order up to the first failure, each at all of
    `chain_delta`."""
    n: Some
    """Calibration questions."""
    losses: Count
    """Calibration questions that stopping made wrong, or different; replies, with two traces."""
    upper: ShareOrEnd
    """One-sided upper confidence limit of the risk at this threshold alone; the claim is
    `alpha`."""
    reference: Literal["natural", "last-checkpoint"]
    """The answer of full thinking: the model's own, or the last probe's."""
    looks: Some
    """Number of this look at the calibration questions, from 1."""
    looks_elsewhere: Count
    """Earlier looks at other questions of the run, or at other probes of these in neighbouring
    runs."""
    planned_looks: Some | None
    """Number of looks declared with the first one; they share `delta`."""
    earlier_deltas: Annotated[tuple[Share, ...], Most(_MOST_LOOKS)] | None = None
    """`delta` of each earlier look, if looks were not planned."""
    ledger_head: str
    """SHA-256 of this look's line in the run's log."""
    provenance: Mapping[str, Line] | None = None
    """SHA-256 of the recorded fit and calibration questions, and of their labels."""
    chain_delta: Share
    """Error probability of the tests of this rule."""
    conditional: Annotated[bool, Condition("false", lambda value: not value)]
    """False: `alpha` is a share of all questions, not only of those that full thinking gets
    right."""
    alpha_over_full_accuracy: Positive
    """`alpha` divided by the accuracy of full thinking."""
    truncated_share: ShareOrEnd
    """Share of calibration traces that were cut off."""
    max_think: TokenCount | None
    """Cap on thinking tokens under which the claim holds: the policy's own."""
    differs_upper: ShareOrEnd | None = None
    """One-sided upper limit, at `delta`, of the share of replies that differ from full thinking's,
    at this threshold alone; for the monitor."""
    loss: LossKind = LOST.name
    """The loss that is limited."""
    gained: Count | None = None
    """Questions that stopping made right; only for `drop`."""
    traces: Annotated[int, Condition("2", lambda value: value == 2)] | None = None
    """Traces counted per question, if two; `losses` then counts replies."""
    both: Count | None = None
    """Questions with both of two replies lost."""
    one: Count | None = None
    """Questions with one of two replies lost."""
    none: Count | None = None
    """Questions with neither of two replies lost."""
    guarantees: Annotated[tuple[GuaranteeTerms, ...], Most(_MOST_LIMITS)] | None = None
    """All limits if there are several, starting with the certificate's own."""
    group_claim: Literal["groups"] | None = None
    """One question of each group was counted."""
    grader: GraderTerms | None = None
    """The grading function, if answers were not compared with gold."""
    labelled: Count | None = None
    """Number of labelled calibration questions, if only some are labelled."""
    differing: Count | None = None
    """Replies that differ from full thinking's, if labels were planned."""
    planned_labels: Some | None = None
    """Number of labels planned: that many of the differing replies count, the first ones, or all if
    fewer differ; `losses` are the lost ones among these."""
    on_stop: OnStop | None = None
    """What a stopped question gets, if that is a visible answer."""
    answer_cap: TokenCount | None = None
    """Most tokens of that answer."""
    transfer: Line | None = None
    """How the rule was transferred from another policy."""
    source_digest: Line | None = None
    """Digest of that policy."""
    source_model: Line | None = field(default=None, metadata={"present_with": "transfer"})
    """Model of that policy."""

    @property
    def risk(self) -> float:
        """Measured risk: the share of replies lost, minus the share gained."""
        if self.differing is None:
            return self.first.risk
        return share_lost(self.losses, self.differing, self.n, self.planned_labels or 1)

    @property
    def first(self) -> GuaranteeTerms:
        """The certificate's own limit."""
        return GuaranteeTerms(
            loss=self.loss,
            alpha=self.alpha,
            n=self.n,
            lost=self.losses,
            gained=self.gained or 0,
            upper=self.upper,
            category=None,
            both=self.both,
            one=self.one,
            none=self.none,
        )

    @property
    def limits(self) -> tuple[GuaranteeTerms, ...]:
        """All limits, starting with the certificate's own."""
        return self.guarantees or (self.first,)


# --- In words -------------------------------------------------------------------------------------


def claim(certificate: CertificateTerms, *, climbs: bool = False) -> str:
    """Put a certificate into words; `climbs` if the policy climbs a ladder of whole replies."""
    of_groups = certificate.group_claim == "groups"
    named = _ON_LADDER if climbs else {}
    named = {**named, "lost": _LOST_OF_GROUPS} if of_groups else named
    lost = named.get("lost", LOST.words)
    limits = certificate.limits
    words = "; ".join(_words(limit, named) for limit in limits)
    if len(limits) > 1:
        words = f"all of this holds at once: {words}"
    if of_groups and words != lost.format(alpha=100 * certificate.alpha):
        words += ", counting one question of each group"
    text = (
        f"With confidence {100 * certificate.confidence:.10g} % over the draw of the calibration "
        f"questions, {words}; for independent "
        f"{'groups' if of_groups else 'questions'} from this traffic, "
        f"{'under these rungs.' if climbs else 'under this decoding and this cap.'}"
    )
    if certificate.traces is not None:
        text += _TWO_TRACES
        if not all(LOSSES[limit.loss].is_binary for limit in limits):
            text += _FIRST_OF_TWO
    if certificate.labelled is not None:
        text += _FEW_LABELS
    if certificate.planned_labels is not None:
        text += _SAMPLED.format(labels=certificate.planned_labels)
    function = certificate.grader
    if function is not None and any(LOSSES[limit.loss].needs_gold for limit in limits):
        text += (
            f" Answers were graded by {function.name} (SHA-256 {function.sha256[:12]}), not by "
            "comparison with gold."
        )
    return text


def _words(limit: GuaranteeTerms, named: Mapping[str, str]) -> str:
    words = named.get(limit.loss, LOSSES[limit.loss].words)
    text = words.format(alpha=100 * limit.alpha)
    return text if limit.category is None else f"in category {limit.category!r} {text}"


# --- Repeated on load -----------------------------------------------------------------------------


def check_certificate(certificate: CertificateTerms) -> None:
    """Repeat the exact test on a certificate's counts, and derive confidence from its looks.

    `upper` must be the limit at `chain_delta`.  Several limits are tested each on its own counts.

    Raises
    ------
    PolicyError
        The counts do not certify `alpha` or do not give `upper`, or confidence and deltas
        contradict the looks.
    """
    limits = certificate.limits
    if certificate.guarantees is not None:
        expect(len(limits) > 1, "certificate.guarantees", "two limits or more", len(limits))
        if limits[0] != certificate.first:
            raise PolicyError(
                "field 'certificate.guarantees': expected the certificate's own limit first, got "
                f"{str(plain(limits[0]))[:80]}"
            )
    _check_looks(certificate)
    for limit in limits:
        fits = limit.upper <= limit.alpha * (1 + _SLACK)
        expect(fits, "certificate.upper", f"at most alpha ({limit.alpha!r})", limit.upper)
    if certificate.differing is not None or certificate.planned_labels is not None:
        _check_sample(certificate)
        return
    delta = certificate.chain_delta
    for limit in limits:
        _check_counts(limit, certificate)
        if limit.both is not None:
            counted = f"{limit.both} with both replies lost and {limit.none} with none"
            _check_trinomial(limit, (limit.both, limit.none or 0), delta, counted, "a share")
        elif not LOSSES[limit.loss].is_binary:
            counted = f"{limit.lost} lost and {limit.gained} gained"
            _check_trinomial(limit, (limit.lost, limit.gained), delta, counted, "a drop")
        else:
            _check_binomial(limit, delta)


def _check_looks(certificate: CertificateTerms) -> None:
    """Check that confidence is what the union bound over all looks leaves.

    Planned looks share one delta; without a plan each earlier look costs its own.
    """
    looks, planned, delta = certificate.looks, certificate.planned_looks, certificate.delta
    if planned is not None:
        expect(looks <= planned, "certificate.looks", f"at most planned_looks ({planned})", looks)
    earlier = certificate.earlier_deltas or ()
    unplanned = 0 if planned is not None else looks - 1
    what = f"one for each of {unplanned} unplanned looks before this one"
    expect(len(earlier) == unplanned, "certificate.earlier_deltas", what, list(earlier))
    confidence, left = certificate.confidence, 1 - (delta + sum(earlier))
    right = confidence > 0 and math.isclose(confidence, left, rel_tol=0, abs_tol=_ROUNDING)
    what = f"1 - delta - the sum of earlier_deltas ({left:g})"
    expect(right, "certificate.confidence", what, confidence)
    shared, chain = delta / (planned or 1), certificate.chain_delta
    what = f"at most delta of one look ({shared:g})"
    expect(chain <= shared + _ROUNDING, "certificate.chain_delta", what, chain)


def _check_counts(limit: GuaranteeTerms, certificate: CertificateTerms) -> None:
    """Check that counts fit the number of replies and, with two traces, that the pairs add up."""
    pairs = (limit.both, limit.one, limit.none)
    has_two = certificate.traces is not None and LOSSES[limit.loss].is_binary
    if certificate.traces is not None and certificate.labelled is not None:
        raise PolicyError("field 'certificate.traces': expected null with 'labelled', got 2")
    fits = all((count is not None) == has_two for count in pairs)
    what = "all three with two traces, else null"
    expect(fits, "certificate.both, one, none", what, pairs)
    counts, most = [limit.lost, limit.gained], limit.n * (1 + has_two)
    if has_two:
        both, one, none = (count or 0 for count in pairs)
        what = f"certificate.n ({limit.n}) questions in all"
        expect(both + one + none == limit.n, "certificate.both, one, none", what, pairs)
        what = f"2 x {both} + {one}, gained 0"
        expect(counts == [2 * both + one, 0], "certificate.losses", what, counts)
    what = f"at most certificate.n ({most})"
    expect(sum(counts) <= most, "certificate.losses", what, sum(counts))


# --- The exact tests ------------------------------------------------------------------------------


def _check_binomial(limit: GuaranteeTerms, delta: float) -> None:
    alpha, upper, n, losses = limit.alpha, limit.upper, limit.n, limit.lost
    if binomial_tail(losses, n, alpha * (1 + _SLACK)) > delta:
        raise PolicyError(
            f"field 'certificate.losses': {losses} of {n} lost do not certify alpha {alpha!r} at "
            f"delta {delta!r}: the exact test gives {binomial_tail(losses, n, alpha):.4g}"
        )
    # At the limit the p-value is delta; it falls as the share rises.
    low, high = upper * (1 - _SLACK), upper * (1 + _SLACK)
    if not binomial_tail(losses, n, high) <= delta <= binomial_tail(losses, n, low):
        raise PolicyError(
            f"field 'certificate.upper': {losses} of {n} lost do not give {upper!r} as the exact "
            f"limit at delta {delta!r}"
        )


def _check_trinomial(
    limit: GuaranteeTerms, counts: tuple[int, int], delta: float, counted: str, what: str
) -> None:
    """Run the exact test at 96 shares of gained questions, which is never stricter than in full.

    With two traces, `counts` are the questions with both replies lost and with neither lost.
    """
    most = f"at most {MOST_QUESTIONS} with a drop or two traces"
    expect(limit.n <= MOST_QUESTIONS, "certificate.n", most, limit.n)

    def passes(share: float) -> bool:
        share = share if limit.both is None else limit_of_pairs(share)
        return drop_passes(*counts, limit.n, share, delta, quick=True)

    _require_shown(limit, passes, f"{counted} of {limit.n} do not show {what}", delta)


def _check_sample(certificate: CertificateTerms) -> None:
    """Run the exact test on the labelled ones of the differing replies."""
    differing, labels = certificate.differing, certificate.planned_labels
    n, lost, delta = certificate.n, certificate.losses, certificate.chain_delta
    if differing is None or labels is None or certificate.labelled is None:
        raise PolicyError(
            "field 'certificate.planned_labels': expected differing, planned_labels and labelled "
            f"together, got {[differing, labels, certificate.labelled]}"
        )
    alone = certificate.guarantees is None and certificate.traces is None
    alone = alone and certificate.loss == LOST.name and certificate.gained is None
    expect(alone, "certificate.planned_labels", "lost answers alone, of one trace", labels)
    expect(n <= MOST_SAMPLED, "certificate.n", f"at most {MOST_SAMPLED} with a sample", n)
    expect(labels < n, "certificate.planned_labels", f"less than certificate.n ({n})", labels)
    expect(differing <= n, "certificate.differing", f"at most certificate.n ({n})", differing)
    what = f"at most the labelled of {differing} that differ"
    expect(lost <= min(differing, labels), "certificate.losses", what, lost)
    counted = f"{lost} of {min(differing, labels)} labelled of {differing} that differ among {n}"
    _require_shown(
        certificate.first,
        lambda share: sample_passes(lost, differing, n, labels, share, delta),
        f"{counted} do not show a share",
        delta,
    )


def _require_shown(
    limit: GuaranteeTerms, passes: Callable[[float], bool], failed: str, delta: float
) -> None:
    for name, share in (("alpha", limit.alpha), ("upper", limit.upper)):
        if not passes(min(share * (1 + _SLACK) + _DROP_SLACK, 0.9999)):
            raise PolicyError(
                f"field 'certificate.{name}': {failed} of at most {share!r} at delta {delta!r} by "
                "the exact test"
            )
