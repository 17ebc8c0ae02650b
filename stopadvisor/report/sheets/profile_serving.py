"""The sheet of `profile-serving`: what requests and tokens cost in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stopadvisor.report.sheet import Section, Sheet
from stopadvisor.report.words import percent, shell_quote
from stopadvisor.rules.serving_profile import ServingProfile

__all__ = ["profile_serving_sheet"]


def profile_serving_sheet(profile: ServingProfile, file: Path) -> Sheet:
    """Return the seconds that were measured, and the `file` that keeps them."""
    seconds = profile.per_token_seconds
    return Sheet(
        f"{profile.model} on {profile.device}",
        facts=(
            ("request", f"{1e6 * profile.per_request_seconds:.0f} µs each"),
            ("prefilled", f"{1e6 * seconds.prefilled:.2f} µs per token"),
            ("cached", f"{1e6 * seconds.cached:.3f} µs per token that is read again"),
            ("decoded", f"{1e6 * seconds.decoded:.1f} µs per token, {profile.at_batch} at once"),
            ("fit", f"misses {percent(100 * (profile.misfit or 0))} of the seconds measured"),
            ("profile", str(file)),
        ),
        command=f"stopadvisor assess RUN --serving-profile {shell_quote(file)}",
        sections=tuple(_tables(profile)),
    )


def _tables(profile: ServingProfile) -> Iterator[Section]:
    yield Section(
        "Decoding, by requests in flight",
        ("at once", "µs per token"),
        tuple((str(row.batch), f"{1e6 * row.seconds:.1f}") for row in profile.decoded_by_batch),
        left=0,
    )
    if profile.rows:
        yield Section(
            "Per question, probes included; nothing is stopped",
            ("batch", "checkpoints", "seconds", "std", "peak memory"),
            tuple(
                (
                    str(row.batch),
                    str(row.checkpoints) if row.checkpoints else "none",
                    f"{row.seconds_per_question:.3g}",
                    "-" if row.std is None else f"{row.std:.2g}",
                    f"{row.peak_memory_gb:.2f} GB",
                )
                for row in profile.rows
            ),
            left=0,
        )
