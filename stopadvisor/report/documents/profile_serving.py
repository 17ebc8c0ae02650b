"""What `profile-serving --json` prints, which is what its file holds."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict, cast

from stopadvisor.report.documents.fields import Document
from stopadvisor.rules.serving_profile import ServingProfile

__all__ = ["ProfileServingDocument", "serving_profile_document"]


class _Seconds(TypedDict):
    prefilled: Annotated[float, "Read for the first time."]
    cached: Annotated[float, "Read from the cache."]
    decoded: Annotated[float, "Generated."]


class _ProfileRowFields(TypedDict):
    batch: Annotated[int, "Questions at once."]
    checkpoints: Annotated[int, "Probes of each; 0: full thinking."]
    seconds_per_question: Annotated[float, "Wall time of a batch, divided by its questions."]
    std: Annotated[float | None, "Over batches; null with a single one."]
    peak_memory_gb: Annotated[float, "Of the device."]


class _BatchFields(TypedDict):
    batch: Annotated[int, "Requests in flight."]
    seconds: Annotated[float, "Of a decoded token: of a step, divided by the batch."]


class ProfileServingDocument(Document):
    """`profile-serving --json`, and its file."""

    model: Annotated[str, "What was measured."]
    engine: Annotated[str, "What ran it."]
    device: Annotated[str, "Where: a device, or the server's address."]
    per_token_seconds: Annotated[_Seconds, "Seconds of a token of each kind."]
    rows: Annotated[list[_ProfileRowFields], "What was measured of whole questions; hf only."]
    settings: Annotated[dict[str, Any], "How it was measured."]
    per_request_seconds: Annotated[float, "Seconds of a request, whatever it reads and decodes."]
    round_trip_seconds: Annotated[
        float, "From a request whose prompt is cached to its first token, on an idle server."
    ]
    at_batch: Annotated[int | None, "Requests in flight for which `decoded` is the price."]
    decoded_by_batch: Annotated[list[_BatchFields], "Decoding, by requests in flight."]
    misfit: Annotated[float | None, "Relative error of the fit, root mean square."]


def serving_profile_document(profile: ServingProfile) -> ProfileServingDocument:
    """Build the document: the profile's own file, which `rules` also reads back."""
    return cast(ProfileServingDocument, profile.to_dict())
