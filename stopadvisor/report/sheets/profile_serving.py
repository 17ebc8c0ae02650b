"""The sheet of `profile-serving`: what requests and tokens cost in seconds."""

from __future__ import annotations

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
            ("fit", f"misses {percent(100 * profile.misfit)} of the seconds measured"),
            ("profile", str(file)),
        ),
        command=f"stopadvisor assess RUN --serving-profile {shell_quote(file)}",
        sections=(
            Section(
                "Decoding, by requests in flight",
                ("at once", "µs per token"),
                tuple((str(b.batch), f"{1e6 * b.seconds:.1f}") for b in profile.decoded_by_batch),
                left=0,
            ),
        ),
    )
