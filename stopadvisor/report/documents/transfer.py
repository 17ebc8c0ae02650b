"""What `calibrate --from --json` adds: the source policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypedDict

from stopadvisor.certification.certify_transfer import TransferCertification
from stopadvisor.certification.transfer import TARGET_CALIBRATED

__all__ = ["TransferFields", "transfer_fields"]


TransferFields = TypedDict(
    "TransferFields",
    {
        "protocol": Annotated[str, "How the policy was carried over."],
        "from": Annotated[str, "File of the source policy."],
        "source_digest": Annotated[str, "Its digest."],
        "source_model": Annotated[str | None, "Its model; null for an archive."],
    },
)


def transfer_fields(path: Path, found: TransferCertification) -> TransferFields:
    """Name the source policy."""
    content = found.source.content
    return {
        "protocol": TARGET_CALIBRATED,
        "from": str(path),
        "source_digest": content["digest"],
        "source_model": None if content["model"] is None else content["model"]["name"],
    }
