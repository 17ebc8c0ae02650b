"""What `calibrate --from --json` adds: the source policy, and the comparison of protocols."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypedDict

from stopadvisor.certification.certify_transfer import TransferCertification
from stopadvisor.certification.transfer import TARGET_CALIBRATED, TransferRow
from stopadvisor.report.documents.fields import fill
from stopadvisor.report.documents.parts import interval_list

__all__ = ["TransferFields", "transfer_fields"]


class _LookTaken(TypedDict):
    number: Annotated[int, "Of the look that the rule trained here took."]
    confidence: Annotated[float, "Of a certificate of it."]


class _ProtocolRow(TypedDict):
    protocol: Annotated[str, "How the policy was carried over."]
    family: Annotated[str | None, "Its rule; null for the full budget."]
    schedule: Annotated[list[int] | None, "Thinking tokens at which it probes."]
    threshold: Annotated[float | None, "It stops when the score reaches this."]
    labels_used: Annotated[int, "Labels that it took."]
    certified: Annotated[bool, "Whether its risk was certified here."]
    reason: Annotated[str | None, "Why not."]
    test_verdict: Annotated[str | None, "What the test questions alone say of its risk."]
    test_total_saving_pct: Annotated[float, "Net saving."]
    test_total_saving_ci95: Annotated[
        list[float] | None, "Its bootstrap-t interval; null where none was stopped."
    ]
    test_think_saving_pct: Annotated[float, "Thinking tokens saved."]
    test_risk: Annotated[float, "Share lost."]
    test_risk_ci95: Annotated[list[float], "Its exact interval."]
    test_accuracy: Annotated[float, "Accuracy with stopping."]
    test_full_accuracy: Annotated[float, "Accuracy of full thinking."]


class _ComparisonFields(TypedDict):
    """The protocols on the same test questions."""

    n_test: Annotated[int, "Test questions."]
    n_met_before: Annotated[int, "Left out, because they made the source policy."]
    labels: Annotated[int, "Labels there are to use."]
    look: Annotated[_LookTaken, "The look of the rule that was trained here."]
    rows: Annotated[list[_ProtocolRow], "One for each protocol."]


TransferFields = TypedDict(
    "TransferFields",
    {
        "protocol": Annotated[str, "How the policy was carried over."],
        "from": Annotated[str, "File of the source policy."],
        "source_digest": Annotated[str, "Its digest."],
        "source_model": Annotated[str | None, "Its model; null for an archive."],
        "comparison": Annotated[_ComparisonFields | None, "Only with `--compare`."],
    },
)


def transfer_fields(path: Path, found: TransferCertification) -> TransferFields:
    """Name the source policy, and compare the protocols where that was asked for."""
    content = found.source.content
    return {
        "protocol": TARGET_CALIBRATED,
        "from": str(path),
        "source_digest": content["digest"],
        "source_model": None if content["model"] is None else content["model"]["name"],
        "comparison": _comparison(found),
    }


def _comparison(found: TransferCertification) -> _ComparisonFields | None:
    compared, second = found.comparison, found.second_look
    if compared is None or second is None:
        return None
    return fill(
        _ComparisonFields,
        compared,
        n_met_before=compared.n_seen,
        look=second,
        rows=[_row(row) for row in compared.rows],
    )


def _row(row: TransferRow) -> _ProtocolRow:
    outcome = row.outcome
    return fill(
        _ProtocolRow,
        row,
        schedule=row.budgets or None,
        test_verdict=row.verdict,
        test_total_saving_pct=outcome.total_saving_pct,
        test_total_saving_ci95=interval_list(outcome.saving_interval),
        test_think_saving_pct=outcome.think_saving_pct,
        test_risk=outcome.risk,
        test_risk_ci95=row.risk_ci95,
        test_accuracy=outcome.accuracy,
        test_full_accuracy=outcome.full_accuracy,
    )
