"""What `calibrate --from` prints after the certificate: where the rule came from.

Formats the document and computes nothing.
"""

from __future__ import annotations

from typing import TextIO

from stopadvisor.report.documents.transfer import TransferFields
from stopadvisor.report.screen import Screen

__all__ = ["show_transfer"]


def show_transfer(transfer: TransferFields, out: TextIO) -> None:
    """Print where the rule came from."""
    screen = Screen(out)
    model = transfer["source_model"] or "no model (an archive)"
    screen.items(
        "Transfer",
        [
            f"The rule comes from {transfer['from']} ({model}, digest "
            f"{transfer['source_digest'][:8]}); its threshold was certified here."
        ],
    )
