"""The results that a run's folder holds beside its probes; knows no figure in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stopadvisor.errors import ProbeError
from stopadvisor.runs.sources import ASSESSMENT

__all__ = ["read_assessment"]


def read_assessment(folder: Path) -> dict[str, Any] | None:
    """Read a run's ``assessment.json``; None where it was not assessed yet.

    Raises
    ------
    ProbeError
        The file cannot be read, or is no assessment.
    """
    file = folder / ASSESSMENT
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ProbeError(f"{file}: cannot read the assessment: {error}; assess again") from error
    if not isinstance(content, dict):
        raise ProbeError(f"{file}: not an assessment; assess again")
    return content
