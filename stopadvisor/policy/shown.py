"""What a policy says of itself: its certificate and what to expect of it, typed and in words.

Takes the terms of a policy that was loaded or built; checks nothing that the loader has not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from stopadvisor.policy.claims import CertificateTerms, claim
from stopadvisor.policy.evidence import ExpectedTerms
from stopadvisor.policy.terms import PolicyTerms
from stopadvisor.policy.triggers import trigger_of
from stopadvisor.rules.climb import Climb
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.schedules import at_budget, schedule_of

__all__ = [
    "Certificate",
    "Expected",
    "certificate_of",
    "counted",
    "counts",
    "promise_of",
    "promised",
    "says_lost",
    "where_of",
]

Expected = ExpectedTerms


@dataclass(frozen=True, kw_only=True)
class Certificate(CertificateTerms):
    """What was shown about one frozen policy."""

    claim: str
    """The certificate in one sentence."""


def certificate_of(terms: PolicyTerms) -> Certificate | None:
    """The certificate of a policy with its claim in words; None of one that never stops."""
    if terms.certificate is None:
        return None
    words = claim(terms.certificate, climbs=terms.ladder is not None)
    return Certificate(**vars(terms.certificate), claim=words)


def where_of(terms: PolicyTerms) -> str | None:
    """Where a policy asks, in words; None for one that never stops."""
    if terms.kind != "stop" or terms.decision_threshold is None:
        return None
    if terms.family == FIXED_BUDGET:
        return at_budget(int(terms.decision_threshold))
    if terms.ladder is not None:
        climb = Climb.of(str(terms.family), vars(terms.ladder), None)
        return climb.describe(terms.decision_threshold)
    return schedule_of(trigger_of(terms)).describe()


# --- In words -------------------------------------------------------------------------------------

_PROMISED = {
    "lost": "at most {} lost",
    "differs": "at most {} of replies different",
    "drop": "accuracy falls by at most {}",
}
_COUNTED = {
    "lost": "{lost} of {n}{whom} lost",
    "differs": "{lost} of {n}{whom} differ from full thinking",
    "drop": "{lost} of {n}{whom} lost and {gained} gained",
}
_COUNTED_TWICE = {
    "lost": "of {n}{whom} {both} lost with both replies and {one} with one",
    "differs": "of {n}{whom} {both} differ from full thinking with both replies and {one} with one",
}


def promised(alpha: float) -> str:
    """A limit as a percentage, as it was asked for."""
    return f"{100 * alpha:.10g}%"


class Promised(Protocol):
    """What is promised of one loss."""

    @property
    def loss(self) -> str: ...
    @property
    def alpha(self) -> float: ...
    @property
    def category(self) -> str | None: ...


def promise_of(limits: Iterable[Promised]) -> str:
    """What each loss is limited to."""
    return "; ".join(
        _of(each.category) + _PROMISED[each.loss].format(promised(each.alpha)) for each in limits
    )


def says_lost(certificate: CertificateTerms) -> bool:
    """Whether it is about lost answers and nothing else."""
    return certificate.loss == LOST.name and certificate.guarantees is None


def counted(certificate: CertificateTerms, whom: str = "calibration questions") -> str:
    """What was counted of each loss."""
    if certificate.labelled is not None:
        lost, n = certificate.losses, certificate.n
        differing, planned = certificate.differing, certificate.planned_labels
        if differing is None or planned is None:
            return f"{lost} of {n} {whom} lost, or differ without a label"
        labels = min(differing, planned)
        return f"{lost} of {labels} labelled of {differing} that differ among {n} {whom}"
    return "; ".join(
        _of(each.category)
        + counts(each.loss, each.n, each.lost, each.gained, each.both, each.one, whom)
        for each in certificate.limits
    )


def counts(
    loss: str,
    n: int,
    lost: int,
    gained: int = 0,
    both: int | None = None,
    one: int | None = None,
    whom: str = "",
) -> str:
    """What was counted of one loss."""
    words = (_COUNTED if both is None else _COUNTED_TWICE)[loss]
    whom = whom and f" {whom}"
    return words.format(lost=lost, n=n, gained=gained, both=both, one=one, whom=whom)


def _of(category: str | None) -> str:
    return "" if category is None else f"category {category}: "
