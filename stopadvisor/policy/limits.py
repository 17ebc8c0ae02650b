"""What a certificate limits, as a file holds it: losses by name, with counts that fit each other.

Whether the counts show what they claim is for `policy.claims`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stopadvisor.errors import PolicyError
from stopadvisor.policy.checks import (
    NAME,
    SHARE,
    expect,
    list_of,
    matching,
    nullable,
    one_of,
    record,
    where,
    whole,
)
from stopadvisor.rules.losses import LOSSES

__all__ = ["check_counts", "check_grader"]

_MOST = 64
"""Limits of one certificate."""
_SHARE_OR_END = where("a float from 0 to 1", lambda value: type(value) is float and 0 <= value <= 1)
_LOSS = one_of(*LOSSES)
_GUARANTEE = record(
    {
        "loss": _LOSS,
        "alpha": SHARE,
        "n": whole(1),
        "lost": whole(0),
        "gained": whole(0),
        "upper": _SHARE_OR_END,
        "category": nullable(NAME),
    }
)
_GUARANTEES = list_of(_GUARANTEE, most=_MOST)


_GRADER = record(
    {
        "name": matching("[ -~]{1,200}", "1 to 200 printable ASCII characters"),
        "sha256": matching("[0-9a-f]{64}", "a SHA-256 in 64 hex digits"),
    }
)


def check_grader(certificate: Mapping[str, Any], grader: str) -> None:
    """The function that graded calibration questions; files without one compared with gold."""
    if "grader" in certificate:
        _GRADER(certificate["grader"], "certificate.grader")
        found = certificate["grader"]["name"]
        expect(found == grader, "certificate.grader.name", f"grader ({grader!r})", found)


def check_counts(certificate: Mapping[str, Any]) -> None:
    """Losses, their names and their counts; files without a name mean lost answers."""
    if "loss" in certificate:
        _LOSS(certificate["loss"], "certificate.loss")
    if "gained" in certificate:
        whole(0)(certificate["gained"], "certificate.gained")
    for name in ("confidence", "differs_upper"):
        if certificate.get(name) is not None:
            _SHARE_OR_END(certificate[name], f"certificate.{name}")
    several = certificate.get("guarantees", [])
    if "guarantees" in certificate:
        _GUARANTEES(several, "certificate.guarantees")
        expect(len(several) > 1, "certificate.guarantees", "two limits or more", len(several))
    own = (certificate["losses"], certificate.get("gained", 0), certificate["n"])
    for lost, gained, n in (own, *((g["lost"], g["gained"], g["n"]) for g in several)):
        if lost + gained > n:
            raise PolicyError(
                f"field 'certificate.losses': expected at most certificate.n ({n}), got "
                f"{lost + gained}"
            )
