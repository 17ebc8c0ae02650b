"""The policies to serve under: one file, or a folder with one for each model.

Knows files; no server.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stopadvisor.errors import PolicyError
from stopadvisor.policy.frozen import Policy, load_policy

__all__ = ["load_policies"]

_ENDINGS = (".joblib", ".json")


def load_policies(named: Path, keys: Sequence[Path]) -> list[tuple[Path, Policy]]:
    """Load the policies that are named, trusting nothing in them."""
    files = [named]
    if named.is_dir():
        files = sorted(file for file in named.iterdir() if file.suffix in _ENDINGS)
        if not files:
            raise PolicyError(f"{named}: expected a policy (.joblib or .json) in it, got none")
    return [(file, load_policy(file, require_signature=keys or None)) for file in files]
