"""What `profile-serving --json` prints, which is what its file holds."""

from __future__ import annotations

from typing import Any, TypedDict, cast

from stopadvisor.rules.serving_profile import ServingProfile

__all__ = ["ProfileServingDocument", "serving_profile_document"]


class _Seconds(TypedDict):
    prefilled: float
    """Read for the first time."""
    cached: float
    """Read from the cache."""
    decoded: float
    """Generated."""


class _ProfileRowFields(TypedDict):
    batch: int
    """Questions at once."""
    checkpoints: int
    """Probes of each; 0: full thinking."""
    seconds_per_question: float
    """Wall time of a batch, divided by its questions."""
    std: float | None
    """Over batches; null with a single one."""
    peak_memory_gb: float
    """Of the device."""


class ProfileServingDocument(TypedDict):
    """`profile-serving --json`, and its file."""

    schema: int
    """Now 1; raised when a program that reads this has to change."""
    model: str
    """What was measured."""
    engine: str
    """What ran it."""
    device: str
    """Where."""
    per_token_seconds: _Seconds
    """Seconds of a token of each kind."""
    rows: list[_ProfileRowFields]
    """What was measured of whole questions."""
    settings: dict[str, Any]
    """How it was measured."""


def serving_profile_document(profile: ServingProfile) -> ProfileServingDocument:
    """Build the document: the profile's own file, which `rules` also reads back."""
    return cast(ProfileServingDocument, profile.to_dict())
