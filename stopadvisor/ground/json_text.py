"""The one way to read JSON from a file, a process or a server.

Checks no fields: each reader does that, and raises its own error.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parse_json"]


def parse_json(text: bytes | bytearray | str, **options: Any) -> Any:
    """Read JSON; raise ValueError if it is not JSON, or nested too deeply."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None
