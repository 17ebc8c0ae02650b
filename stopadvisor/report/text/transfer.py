"""What `calibrate --from` prints beside the certificate: where the rule came from, and protocols.

Formats the document and computes nothing.
"""

from __future__ import annotations

from typing import TextIO

from stopadvisor.report.documents.transfer import TransferFields
from stopadvisor.report.screen import Screen
from stopadvisor.report.words import interval, number, percent, share

__all__ = ["show_transfer"]


def show_transfer(transfer: TransferFields, out: TextIO) -> None:
    """Print where the rule came from, and the comparison where one was asked for."""
    screen = Screen(out)
    model = transfer["source_model"] or "no model (an archive)"
    screen.items(
        "Transfer",
        [
            f"The rule comes from {transfer['from']} ({model}, digest "
            f"{transfer['source_digest'][:8]}); its threshold was certified here."
        ],
    )
    comparison = transfer["comparison"]
    if comparison is None:
        return
    screen.table(
        f"Compared on {comparison['n_test']} test questions, {comparison['labels']} labels to use",
        ("", "labels", "saving", "", "risk", ""),
        [
            (
                row["protocol"],
                str(row["labels_used"]),
                percent(row["test_total_saving_pct"]),
                interval(row["test_total_saving_ci95"]),
                share(row["test_risk"]),
                interval(row["test_risk_ci95"], 100),
            )
            for row in comparison["rows"]
        ],
    )
    screen.text(
        "zero-shot: the policy as it came. target-calibrated: its rule, certified here. "
        "target-trained: a rule chosen and certified here."
    )
    for row in comparison["rows"]:
        rule = "full budget"
        if row["family"] is not None:
            rule = f"{row['family']} at {number(row['threshold'])}"
        text = "certified here" if row["certified"] else f"not certified here: {row['reason']}"
        if row["test_verdict"] is not None:
            text += f"; the test questions alone: {row['test_verdict']}"
        screen.text(f"{row['protocol']} ({rule}): {text}")
    screen.text(
        f"Training a rule here was look number {comparison['look']['number']} at these questions; "
        f"a certificate of it has confidence {share(comparison['look']['confidence'])}. Each "
        "interval stands for itself, and the policy written is the target-calibrated one whatever "
        "they show."
    )
