"""What a policy says of itself: its certificate, and what to expect of it, as typed values.

Reads the content of a policy that was loaded or built; checks nothing that the loader has not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.results import from_document
from stopadvisor.policy.claims import GraderTerms, GuaranteeTerms, shown_certificate
from stopadvisor.policy.evidence import WeightTerms
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


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a policy is expected to do; `test_…` only where the split has a test part."""

    weights: WeightTerms
    """Prices in which the savings are counted."""
    cache_block: int
    """Tokens per block of the prefix cache."""
    fit_total_saving_pct: float | None
    """Net saving on fit questions, out of fold; null for a rule that was fitted elsewhere."""
    fit_risk: float | None
    """Share lost of the fit questions."""
    graded_by: Literal["agreement"] | None = None
    """Only without gold: accuracies are shares that agree with full thinking."""
    loss: str | None = None
    """What risks count, where that is not lost answers."""
    calibration_n: int
    """Calibration questions that entered the bound."""
    calibration_risk: float
    """Share lost of them."""
    calibration_total_saving_pct: float
    """Net saving on them."""
    calibration_total_saving_band95: tuple[float, float]
    """Its 95 % band, wide enough for a threshold that these questions chose."""
    calibration_think_saving_pct: float
    """Thinking tokens saved on them."""
    calibration_uncut_saving_pct: float | None
    """Net saving on those that were not cut off."""
    calibration_accuracy: float
    """Accuracy with stopping on them."""
    calibration_full_accuracy: float
    """Accuracy of full thinking on them."""
    calibration_answer_saving_pct: float | None = None
    """Only with `--on-stop answer`: tokens of the visible answer that are saved on them."""
    saving_by_serving: Mapping[str, float] | None = None
    """Net saving of the same rule by serving stack: on test questions where there are any, else on
    calibration questions."""


@dataclass(frozen=True, kw_only=True)
class ExpectedOnTest(Expected):
    """What a policy is expected to do, measured on test questions too."""

    test_n: int
    """Test questions."""
    test_total_saving_pct: float
    """Net saving."""
    test_total_saving_ci95: tuple[float, float] | None
    """Its bootstrap-t interval; null where none was stopped."""
    test_think_saving_pct: float
    """Thinking tokens saved."""
    test_uncut_saving_pct: float | None
    """Net saving on traces that were not cut off."""
    test_risk: float
    """Share lost."""
    test_risk_ci95: tuple[float, float]
    """Its exact interval."""
    test_accuracy: float
    """Accuracy with stopping."""
    test_accuracy_ci95: tuple[float, float]
    """Its exact interval."""
    test_full_accuracy: float
    """Accuracy of full thinking."""
    test_answer_saving_pct: float | None = None
    """Only with `--on-stop answer`: tokens of the visible answer that are saved."""


@dataclass(frozen=True)
class Provenance:
    """What a certificate was computed from: of fit and calibration questions, as SHA-256."""

    probes_sha256: str
    """Of all that was recorded of them."""
    labels_sha256: str
    """Of which of their answers are right."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What was shown about one frozen policy."""

    alpha: float
    """The share of questions that may be lost."""
    delta: float
    """Error probability of this look."""
    confidence: float
    """1 minus what all looks so far have spent."""
    bound: str
    """The test of the risk."""
    multiplicity: str
    """How thresholds share the error probability."""
    n: int
    """Calibration questions that were counted."""
    losses: int
    """Lost questions among them."""
    upper: float
    """Exact upper limit of the risk at this threshold alone; not the claim."""
    reference: str
    """What full thinking means: `natural` or `last-checkpoint`."""
    looks: int
    """Number of this look at the calibration questions."""
    looks_elsewhere: int
    """Looks on record at other questions of the run, or at other probes of these in neighbouring
    runs."""
    planned_looks: int | None
    """Looks planned beforehand."""
    earlier_deltas: tuple[float, ...] | None = None
    """Only after unplanned looks: the error probability of each look before this one."""
    ledger_head: str
    """Digest of this look's line in the run's looks.jsonl."""
    provenance: Provenance | None = None
    """What it was computed from; not in older policies."""
    chain_delta: float
    """Error probability of this rule's tests."""
    conditional: bool
    """Whether alpha is a share of the questions that full thinking gets right."""
    alpha_over_full_accuracy: float
    """Alpha divided by the accuracy of full thinking, on fit questions where there are any."""
    truncated_share: float
    """Share of the calibration traces that were cut off."""
    max_think: int | None
    """Cap on thinking tokens."""
    differs_upper: float | None = None
    """Upper limit of the share of replies that differ from full thinking's at this threshold; what
    audits are held against, and no claim."""
    group_claim: Literal["groups"] | None = None
    """Only where groups hold several questions and one of each was counted: the claim is about
    groups."""
    labelled: int | None = None
    """Only where few calibration questions have gold: how many do; what differs without any counts
    as lost."""
    grader: GraderTerms | None = None
    """Only with `--grader`: the function that graded the answers."""
    loss: Literal["differs", "drop"] | None = None
    """What alpha limits; without it lost answers."""
    gained: int | None = None
    """Only of a drop: questions that stopping made right; `losses` made wrong."""
    traces: int | None = None
    """Only where two traces of each question were counted; `losses` counts replies then."""
    both: int | None = None
    """Of two traces: questions of which both replies are lost."""
    one: int | None = None
    """Of which one is."""
    none: int | None = None
    """Of which none is."""
    guarantees: tuple[GuaranteeTerms, ...] | None = None
    """All limits, the first as above; only where more than one holds."""
    claim: str
    """The certificate in one sentence."""
    on_stop: Literal["answer"] | None = None
    """Only with `--on-stop answer`."""
    answer_cap: int | None = None
    """Only with `--on-stop answer`: most tokens of a visible answer."""


@dataclass(frozen=True, kw_only=True)
class TransferredCertificate(Certificate):
    """What was shown of a rule that came from another policy."""

    transfer: str
    """Only after `calibrate --from`: the transfer protocol."""
    source_digest: str
    """Only after `calibrate --from`: digest of the source policy."""
    source_model: str | None
    """Only after `calibrate --from`: model of the source policy; null for an archive."""


def certificate_of(content: Mapping[str, Any]) -> TransferredCertificate | Certificate | None:
    """Read the certificate of a policy that `calibrate` made, its claim in words."""
    shown = shown_certificate(content)
    if shown is None:
        return None
    if "transfer" not in shown:
        return from_document(Certificate, shown, "certificate")
    # A file leaves out what is null.
    return from_document(TransferredCertificate, {"source_model": None, **shown}, "certificate")


def expected_of(expected: Mapping[str, Any] | None) -> ExpectedOnTest | Expected | None:
    """Read what a policy file says to expect; None where it is not what `calibrate` writes."""
    if not expected:
        return None
    kind = ExpectedOnTest if "test_n" in expected else Expected
    left_out = dict.fromkeys(("test_total_saving_ci95", "test_uncut_saving_pct"))  # null in a file
    try:
        return from_document(kind, {**left_out, **expected}, "expected")
    except ProbeError:
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
