"""Limits of a certificate in words: what is promised of each loss, and what was counted.

Takes a certificate's fields, or those of one of its guarantees; knows neither terminal nor page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stopadvisor.rules.losses import LOST, Guarantee

__all__ = ["MEANINGS", "asked", "counted", "loss_name", "promise_of", "promised", "says_lost"]

Document = Mapping[str, Any]

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


def loss_name(certificate: Document | None) -> str:
    """Loss of a certificate; lost answers where it names none."""
    return str((certificate or {}).get("loss", LOST.name))


def _limits(certificate: Document) -> list[Document]:
    """Every limit of a certificate, its own first."""
    own = {**certificate, "lost": certificate.get("losses"), "category": None}
    return list(certificate.get("guarantees") or [own])


def says_lost(certificate: Document) -> bool:
    """Whether it is about lost answers and nothing else, as all were before there were others."""
    return loss_name(certificate) == LOST.name and "guarantees" not in certificate


def promise_of(certificate: Document) -> str:
    """What each loss is limited to."""
    return "; ".join(
        _of(each) + _PROMISED[loss_name(each)].format(promised(each["alpha"]))
        for each in _limits(certificate)
    )


def counted(certificate: Document, whom: str = "calibration questions") -> str:
    """What was counted of each loss."""
    if "labelled" in certificate:
        lost, n = certificate["losses"], certificate["n"]
        if (differing := certificate.get("differing")) is not None:
            labels = min(differing, certificate["planned_labels"])
            return f"{lost} of {labels} labelled of {differing} that differ among {n} {whom}"
        return f"{lost} of {n} {whom} lost, or differ without a label"
    words = []
    for each in _limits(certificate):
        kinds = _COUNTED if each.get("both") is None else _COUNTED_TWICE
        counts = {"gained": 0, **each, "whom": whom and f" {whom}"}
        words.append(_of(each) + kinds[loss_name(each)].format(**counts))
    return "; ".join(words)


def asked(guarantees: tuple[Guarantee, ...]) -> str:
    """What was asked for."""
    return "; ".join(
        _of({"category": each.category}) + _PROMISED[each.loss].format(promised(each.alpha))
        for each in guarantees
    )


def _of(limit: Document) -> str:
    return "" if limit.get("category") is None else f"category {limit['category']}: "
