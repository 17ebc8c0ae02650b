"""Limits of a certificate in words: what is promised of each loss, and what was counted.

Knows neither terminal nor page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from stopadvisor.policy.claims import CertificateTerms
from stopadvisor.rules.losses import LOST

__all__ = ["MEANINGS", "counted", "counts", "promise_of", "promised", "says_lost"]


class Promised(Protocol):
    """What is promised of one loss."""

    @property
    def loss(self) -> str: ...
    @property
    def alpha(self) -> float: ...
    @property
    def category(self) -> str | None: ...


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

MEANINGS = {
    "lost": ("were lost", "Lost: full thinking is right, the early answer is wrong."),
    "differs": (
        "were answered differently",
        "Different: the early answer is not what full thinking says in the end.",
    ),
    "drop": (
        "were lost beyond those gained",
        "Gained: full thinking is wrong, the early answer is right.",
    ),
}
"""By loss: how a share is worded, and what that means."""


def promised(alpha: float) -> str:
    """A limit as a percentage, as it was asked for."""
    return f"{100 * alpha:.10g}%"


def promise_of(limits: Iterable[Promised]) -> str:
    """What each loss is limited to."""
    return "; ".join(
        _of(each) + _PROMISED[each.loss].format(promised(each.alpha)) for each in limits
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
        _of(each) + counts(each.loss, each.n, each.lost, each.gained, each.both, each.one, whom)
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


def _of(limit: Promised) -> str:
    return "" if limit.category is None else f"category {limit.category}: "
