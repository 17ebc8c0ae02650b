"""The paper's protocol and the ledger: it shows outcomes of calibration questions.

Knows no figure of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stopadvisor.assessment.choice import Settings
from stopadvisor.errors import CalibrationError
from stopadvisor.runs.ledger import looks_at, open_outcomes
from stopadvisor.runs.sources import Source
from stopadvisor.runs.storage import lock_directory

__all__ = ["open_for_paper"]


def open_for_paper(source: Source, settings: Settings, *, open_calibration: bool) -> None:
    """Enter a look at the calibration questions, unless all of them were looked at before.

    Raises
    ------
    CalibrationError
        Some were not, and `open_calibration` does not allow to look at them; or the paper has no
        such serving regime.
    """
    if settings.serving == "overlap":
        raise CalibrationError(
            "the paper's serving regimes are kv-fork, prefix-cache and black-box, got 'overlap'"
        )
    if source.is_archive:
        return  # published with their outcomes: nothing is left to be blind to
    keys = source.part("calibration").keys
    seen = {key for look in looks_at(source.folder, keys) for key in look.questions}
    if seen.issuperset(keys):
        return
    if not open_calibration:
        raise CalibrationError(
            f"the paper protocol shows outcomes of {len(set(keys) - seen)} calibration questions "
            f"that nobody has looked at: run `stopadvisor calibrate {source.folder}` first, or say "
            "--open-calibration, which is recorded as a look and costs later certificates "
            "confidence"
        )
    with lock_directory(source.folder):
        request: Mapping[str, Any] = {
            "protocol": "paper",
            "alpha": settings.alpha,
            "serving": settings.serving,
            "data": source.fingerprint(),
        }
        open_outcomes(source.folder, keys, request, delta=settings.delta)
