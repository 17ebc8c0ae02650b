"""Parse JSON from files, processes and servers; callers check the fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import StopAdvisorError
from stopadvisor.ground.printable import short_repr

__all__ = ["parse_json", "read_object"]


def parse_json(text: bytes | bytearray | str, **options: Any) -> Any:
    """Parse JSON; raise ValueError if it is not JSON or nested too deeply."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_object(path: Path, error: type[StopAdvisorError], hint: str = "") -> dict[str, Any]:
    """Read a file that holds one JSON object; raise `error`, its message ending in `hint`."""
    try:
        content = parse_json(path.read_bytes())
    except OSError as failed:
        raise error(f"cannot read {path}: {failed.strerror or failed}{hint}") from failed
    except ValueError as failed:
        raise error(f"{path}: not JSON: {failed}{hint}") from failed
    if not isinstance(content, dict):
        raise error(f"{path}: expected a JSON object, got {short_repr(content)}{hint}")
    return content
