"""Parse JSON from files, processes and servers; callers check the fields."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parse_json"]


def parse_json(text: bytes | bytearray | str, **options: Any) -> Any:
    """Parse JSON; raise ValueError if it is not JSON or nested too deeply."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None
