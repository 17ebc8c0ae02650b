"""What a policy says of itself: its certificate, and what to expect of it, as typed values.

Reads the content of a policy that was loaded or built; checks nothing that the loader has not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import parse
from stopadvisor.policy.claims import CertificateTerms, shown_certificate
from stopadvisor.policy.evidence import ExpectedTerms
from stopadvisor.policy.triggers import trigger_of
from stopadvisor.rules.climb import Climb
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.schedules import at_budget, schedule_of

__all__ = [
    "Certificate",
    "Expected",
    "ExpectedOnTest",
    "TransferredCertificate",
    "certificate_of",
    "expected_of",
    "where_of",
]

Expected = ExpectedTerms


@dataclass(frozen=True, kw_only=True)
class ExpectedOnTest(Expected):
    """What a policy is expected to do, measured on test questions too: these fields are there."""

    test_n: int = field()
    test_total_saving_pct: float = field()
    test_total_saving_ci95: tuple[float, float] | None = field()
    test_think_saving_pct: float = field()
    test_uncut_saving_pct: float | None = field()
    test_risk: float = field()
    test_risk_ci95: tuple[float, float] = field()
    test_accuracy: float = field()
    test_accuracy_ci95: tuple[float, float] = field()
    test_full_accuracy: float = field()


@dataclass(frozen=True, kw_only=True)
class Certificate(CertificateTerms):
    """What was shown about one frozen policy."""

    claim: str
    """The certificate in one sentence."""


@dataclass(frozen=True, kw_only=True)
class TransferredCertificate(Certificate):
    """What was shown of a rule that came from another policy: these fields are there."""

    transfer: str = field()
    source_digest: str = field()
    source_model: str | None = field()


def certificate_of(content: Mapping[str, Any]) -> TransferredCertificate | Certificate | None:
    """Read the certificate of a policy that `calibrate` made, its claim in words."""
    shown = shown_certificate(content)
    if shown is None:
        return None
    if "transfer" not in shown:
        return parse(Certificate, shown)
    # A file leaves out what is null.
    return parse(TransferredCertificate, {"source_model": None, **shown})


def expected_of(expected: Mapping[str, Any] | None) -> ExpectedOnTest | Expected | None:
    """Read what a policy file says to expect; None where it is not what `calibrate` writes."""
    if not expected:
        return None
    if "test_n" not in expected:
        return parse(Expected, expected)
    left_out = dict.fromkeys(("test_total_saving_ci95", "test_uncut_saving_pct"))  # null in a file
    try:
        return parse(ExpectedOnTest, {**left_out, **expected})
    except PolicyError:
        return None


def where_of(content: Mapping[str, Any]) -> str | None:
    """Where a policy asks, in words; None for one that never stops."""
    if content["kind"] != "stop":
        return None
    if content["family"] == FIXED_BUDGET:
        return at_budget(int(content["decision_threshold"]))
    if "ladder" in content:
        climb = Climb.of(content["family"], content["ladder"], None)
        return climb.describe(content["decision_threshold"])
    return schedule_of(trigger_of(content)).describe()
