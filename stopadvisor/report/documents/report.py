"""What `report --json` prints: which page was written, and of what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from stopadvisor.report.documents.fields import Document, fill

__all__ = ["ReportDocument", "report_document"]


class ReportDocument(Document):
    """`report --json`."""

    run: Annotated[str, "Where the probes are."]
    report: Annotated[str, "The file."]
    bytes: Annotated[int, "Its size."]
    protocol: Annotated[str, "`deploy` or `paper`."]
    certified: Annotated[bool | None, "Whether `calibrate` certified a rule; null before it."]
    remarks: Annotated[list[str], "What could not be shown, and why."]


def report_document(
    run: Path,
    page: Path,
    size: int,
    assessment: Mapping[str, Any],
    calibration: Mapping[str, Any] | None,
    remarks: Sequence[str],
) -> ReportDocument:
    """Build the document of a page of `size` bytes that was written.

    Parameters
    ----------
    assessment, calibration : mapping
        The documents that the page shows.
    """
    return fill(
        ReportDocument,
        run=run,
        report=page,
        bytes=size,
        protocol=assessment["protocol"],
        certified=None if calibration is None else calibration["certified"],
        remarks=remarks,
    )
