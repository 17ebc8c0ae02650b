"""What a policy says of itself: its certificate, and what to expect of it, as typed values.

Takes the terms of a policy that was loaded or built; checks nothing that the loader has not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stopadvisor.policy.claims import CertificateTerms, claim
from stopadvisor.policy.evidence import ExpectedTerms
from stopadvisor.policy.terms import PolicyTerms
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
    "where_of",
    "with_test",
]

Expected = ExpectedTerms

_ON_TEST = (
    *("test_n", "test_total_saving_pct", "test_think_saving_pct", "test_risk", "test_risk_ci95"),
    *("test_accuracy", "test_accuracy_ci95", "test_full_accuracy"),
)


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


def certificate_of(terms: PolicyTerms) -> TransferredCertificate | Certificate | None:
    """The certificate of a policy with its claim in words; None of one that never stops."""
    certificate = terms.certificate
    if certificate is None:
        return None
    kind = Certificate if certificate.transfer is None else TransferredCertificate
    words = claim(certificate, climbs=terms.ladder is not None)
    return kind(**vars(certificate), claim=words)


def with_test(expected: ExpectedTerms | None) -> ExpectedOnTest | Expected | None:
    """What to expect of a policy, typed by whether all figures of test questions are there."""
    if expected is None or any(getattr(expected, name) is None for name in _ON_TEST):
        return expected
    return ExpectedOnTest(**vars(expected))


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
