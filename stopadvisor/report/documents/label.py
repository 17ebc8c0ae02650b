"""What `label --json` prints: how many labels there are, and what more of them would buy."""

from __future__ import annotations

from typing import Annotated

from stopadvisor.report.documents.fields import Document
from stopadvisor.report.documents.parts import LabelFields

__all__ = ["LabelDocument"]


class LabelDocument(Document):
    """`label --json`."""

    run: Annotated[str, "The run directory."]
    alpha: Annotated[float, "The share of lost answers to certify."]
    delta: Annotated[float, "1 minus the confidence."]
    n: Annotated[int, "Calibration questions that the bound counts."]
    planned: Annotated[int | None, "Labels that were planned for, with `--labels`."]
    labels: Annotated[LabelFields, "What there is, and what more would buy."]
    certified_saving_pct: Annotated[
        float, "Net saving that these labels certify, as fit questions measure it."
    ]
    labellers: Annotated[dict[str, int], "Questions that each has labelled."]
    disagreements: Annotated[list[str], "Ids of the questions answered differently."]
    file: Annotated[str, "Where the labels stand."]
    exported: Annotated[str | None, "The sheet that was written, with `--export`."]
    n_exported: Annotated[int | None, "Questions on it."]
