"""What a certificate limits, as a file holds it: losses by name, with counts that fit each other.

Whether the counts show what they claim is for `policy.claims`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stopadvisor.errors import PolicyError
from stopadvisor.policy.checks import (
    LINE,
    NAME,
    SHARE,
    SHARE_OR_END,
    FieldCheck,
    expect,
    list_of,
    map_of,
    matching,
    nullable,
    on_one_line,
    one_of,
    record,
    where,
    whole,
)
from stopadvisor.rules.losses import LOSSES, LOST

__all__ = ["check_counts", "check_grader"]

_ROUNDING = 1e-12
_MOST = 64
"""Limits of one certificate."""
_LOSS = one_of(*LOSSES)
_GUARANTEE = record(
    {
        "loss": _LOSS,
        "alpha": SHARE,
        "n": whole(1),
        "lost": whole(0),
        "gained": whole(0),
        "upper": SHARE_OR_END,
        "category": nullable(NAME),
    }
)
_GUARANTEES = list_of(_GUARANTEE, most=_MOST)
_TEXT = where("a string", lambda value: type(value) is str)
_FLAG = where("true or false", lambda value: type(value) is bool)
_OTHERS: dict[str, FieldCheck] = {
    "confidence": SHARE_OR_END,
    "differs_upper": nullable(SHARE_OR_END),
    "loss": _LOSS,
    "gained": whole(0),
    "looks_elsewhere": whole(0),
    "planned_looks": nullable(whole(1)),
    "conditional": _FLAG,
    "labelled": whole(0),
    "group_claim": one_of("groups"),
    "alpha_over_full_accuracy": where("a float > 0", lambda v: type(v) is float and v > 0),
    "truncated_share": SHARE_OR_END,
    "max_think": nullable(whole(1)),
    "on_stop": one_of("probe", "answer"),
    "answer_cap": nullable(whole(1)),
    "provenance": map_of(LINE),
    **dict.fromkeys(("ledger_head", "transfer", "source_digest"), _TEXT),
    "source_model": nullable(_TEXT),
}
"""Of a certificate, where they are there; files from before them have fewer."""

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


def check_counts(content: Mapping[str, Any]) -> None:
    """Losses, their names and their counts; files without a name mean lost answers.

    No text in it begins a line of its own where it is shown.
    """
    certificate = content["certificate"]
    for name, check in _OTHERS.items():
        if name in certificate:
            check(certificate[name], f"certificate.{name}")
    on_one_line(certificate, "certificate")
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
    _check_looks(certificate)
    _check_repeated(certificate, content)


def _check_looks(certificate: Mapping[str, Any]) -> None:
    """What is left of 1 after all looks, by the union bound that the ledger keeps.

    Planned looks share one delta; without a plan each earlier one has cost some of its own.
    """
    looks, delta = certificate["looks"], certificate["delta"]
    planned = certificate.get("planned_looks")
    left = 1 - delta
    confidence = certificate.get("confidence", left)
    if planned is not None:
        expect(looks <= planned, "certificate.looks", f"at most planned_looks ({planned})", looks)
    if planned is not None or looks == 1:
        right = math.isclose(confidence, left, rel_tol=0, abs_tol=_ROUNDING)
        expect(right, "certificate.confidence", f"1 - delta ({left:g})", confidence)
    else:
        what = f"below 1 - delta ({left:g}) for look {looks} without a plan"
        expect(0 < confidence < left - _ROUNDING, "certificate.confidence", what, confidence)
    shared, chain = delta / (planned or 1), certificate.get("chain_delta", delta)
    if type(chain) is float:
        what = f"at most delta of one look ({shared:g})"
        expect(chain <= shared + _ROUNDING, "certificate.chain_delta", what, chain)


def _check_repeated(certificate: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """What the certificate says a second time is what stands elsewhere, or follows from it."""
    probe = content["probe"] or {}
    elsewhere = {
        "max_think": content["max_think"],
        "on_stop": content["on_stop"],
        "answer_cap": probe.get("answer_cap"),
    }
    for name, value in elsewhere.items():
        if certificate.get(name) is not None and value is not None:
            same = certificate[name] == value
            expect(same, f"certificate.{name}", f"the policy's own ({value})", certificate[name])
    alpha, n = certificate["alpha"], certificate["n"]
    of_right, conditional = (
        certificate.get(name) for name in ("alpha_over_full_accuracy", "conditional")
    )
    if of_right is not None:
        fits = of_right == alpha if conditional else of_right >= alpha
        what = f"{'alpha' if conditional else 'at least alpha'} ({alpha})"
        expect(fits, "certificate.alpha_over_full_accuracy", what, of_right)
    differs, loss = certificate.get("differs_upper"), certificate.get("loss", LOST.name)
    if differs is not None and loss == LOST.name and not conditional:
        at_least = certificate["losses"] / n  # what is lost differs
        expect(differs > at_least, "certificate.differs_upper", f"above {at_least:g}", differs)
    if "labelled" in certificate and content["split"] is not None:
        most = len(content["split"]["calibration"])
        what = f"at most as many as split.calibration names ({most})"
        labelled = certificate["labelled"]
        expect(labelled <= most, "certificate.labelled", what, labelled)
