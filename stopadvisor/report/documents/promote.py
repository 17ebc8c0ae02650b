"""What `promote --json` prints: which policy is in use now, and which was before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NotRequired

from stopadvisor.policy.folder import Promotion
from stopadvisor.report.documents.fields import SCHEMA, Document
from stopadvisor.report.promises import promise_of, says_lost

__all__ = ["PromoteDocument", "promote_document"]


class PromoteDocument(Document):
    """`promote --json`."""

    policy: Annotated[str, "The file that was named."]
    digest: Annotated[str, "Its digest."]
    kind: Annotated[str, "`stop` or `full-budget`."]
    alpha: Annotated[float | None, "What it promises; null for one that never stops."]
    promise: NotRequired[
        Annotated[str, "All that it promises in words, where it is not about lost answers alone."]
    ]
    current: Annotated[str, "Its copy, the policy in use."]
    previous_digest: Annotated[
        str | None, "Of the policy in use before; null where there was none that can be read."
    ]
    previous_policy: Annotated[
        str | None, "Where that one lies, to be promoted again; null where there was none."
    ]
    remarks: Annotated[list[str], "What the reader should know."]


def promote_document(found: Promotion, original: Path, remarks: list[str]) -> PromoteDocument:
    """Build the document of a promotion."""
    certificate = found.policy.content["certificate"]
    document: PromoteDocument = {
        "schema": SCHEMA,
        "policy": str(original),
        "digest": found.policy.digest,
        "kind": found.policy.kind,
        "alpha": None if certificate is None else certificate["alpha"],
        "current": str(found.current),
        "previous_digest": None if found.before is None else found.before.digest,
        "previous_policy": None if found.kept_as is None else str(found.kept_as),
        "remarks": remarks,
    }
    if certificate is not None and not says_lost(certificate):
        document["promise"] = promise_of(certificate)
    return document
