"""The one way to read JSON that comes from a file, a process or a server.

Knows no fields: what a document must hold, and which error says so, is its reader's matter.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parse_json"]


def parse_json(text: bytes | bytearray | str, **options: Any) -> Any:
    """Read JSON; what is nested too deeply is a ValueError, as all else that is no JSON."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None
