"""The paper's protocol and the ledger: it shows outcomes of calibration questions.

Knows no figure of the protocol.
"""

from __future__ import annotations

from stopadvisor.assessment.choice import Settings
from stopadvisor.errors import CalibrationError
from stopadvisor.runs import access
from stopadvisor.runs.sources import Source

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
    closed = access.closed_questions(source)
    if not closed:
        return
    if not open_calibration:
        raise CalibrationError(
            f"the paper protocol shows outcomes of {len(closed)} calibration questions "
            f"that nobody has looked at: run `stopadvisor calibrate {source.folder}` first, or say "
            "--open-calibration, which is recorded as a look and costs later certificates "
            "confidence"
        )
    request = {"protocol": "paper", "alpha": settings.alpha, "serving": settings.serving}
    access.open_calibration(source, request, delta=settings.delta)
