"""A run's page once more, from its files and without the model.

Assesses again with the recorded settings, since pictures need more than the document holds, and
refuses where the two disagree.  Opens nothing: calibration outcomes are on the page only where
`calibrate` has shown them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stopadvisor.assessment.assess import FitAssessment, assess
from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.errors import ProbeError, StopAdvisorError
from stopadvisor.json_text import parse_json
from stopadvisor.paper.assess import PaperAssessment, assess_paper
from stopadvisor.report.from_assessment import assessed
from stopadvisor.report.html.page import write_report
from stopadvisor.report.words import shell_quote
from stopadvisor.report.written import WrittenPage
from stopadvisor.results import to_document
from stopadvisor.runs.access import is_unsealed
from stopadvisor.runs.sources import ASSESSMENT, REPORT, Source, open_source, read_assessment

__all__ = ["agrees", "refresh_report", "rewrite_report"]

_CHECKED = ("split", "profile", "matched_risk", "serving")
"""Parts of the assessment that have to come out again."""


def rewrite_report(
    source: Source, out: Path | None = None, assessment: FitAssessment | None = None
) -> WrittenPage:
    """Write the page of a run that was assessed.

    Parameters
    ----------
    source : Source
    out : Path, optional
        The file; by default ``report.html`` in the run.
    assessment : FitAssessment, optional
        Where it was just made: it is taken if its settings are those that are recorded.

    Raises
    ------
    ProbeError
        The run was not assessed, its probes now give other figures, or the paper's protocol would
        show what nobody has seen.
    OutputError
        The page cannot be written, or a package is missing.
    """
    document = read_assessment(source.folder)
    if document is None:
        raise ProbeError(
            f"{source.folder}: not assessed yet: run `stopadvisor assess "
            f"{shell_quote(source.folder)}` first"
        )
    settings = SettingsOverrides().settings(document)
    if assessment is not None and assessment.choice.settings == settings:
        return _write(assessment, document, out)
    return _write(_assess_again(source, document), document, out)


def refresh_report(folder: Path, assessment: FitAssessment | None = None) -> list[str]:
    """Write a run's page again, if it has one, after what it shows has changed.

    Returns
    -------
    list of str
        What there is to say of it; empty where there is no page.
    """
    page = folder / REPORT
    if not page.exists():
        return []
    try:
        rewrite_report(open_source(folder), assessment=assessment)
    except StopAdvisorError as error:
        return [
            f"{page} is from before, and could not be written again: {error}; "
            f"`stopadvisor report {shell_quote(folder)}` does so later"
        ]
    return [f"wrote {page} again"]


def _write(
    assessment: FitAssessment | PaperAssessment, document: Mapping[str, Any], out: Path | None
) -> WrittenPage:
    fresh = parse_json(json.dumps(to_document(assessed(assessment))))
    folder = assessment.source.folder
    if not agrees(document, {name: fresh[name] for name in _CHECKED}):
        raise ProbeError(
            f"{folder / ASSESSMENT}: the probes now give other figures than it holds; run "
            f"`stopadvisor assess {shell_quote(folder)}` again"
        )
    return write_report(assessment, document, out)


def _assess_again(source: Source, document: Mapping[str, Any]) -> FitAssessment | PaperAssessment:
    settings = SettingsOverrides().settings(document)
    if document["protocol"] == "deploy":
        return assess(source, settings)
    if not is_unsealed(source):
        raise ProbeError(
            f"{source.folder}: the paper's protocol shows outcomes of calibration questions that "
            "nobody has seen; run "
            f"`stopadvisor assess {shell_quote(source.folder)}` for a report on the others"
        )
    return assess_paper(
        source, alpha=settings.alpha, delta=settings.delta, serving=settings.serving
    )


def agrees(stored: Any, fresh: Any) -> bool:
    """Whether a stored document says what a fresh one says, up to another machine's rounding.

    Fields that only the stored one has are not looked at.
    """
    if isinstance(fresh, Mapping):
        return isinstance(stored, Mapping) and all(
            key in stored and agrees(stored[key], value) for key, value in fresh.items()
        )
    if isinstance(fresh, list):
        return (
            isinstance(stored, list)
            and len(stored) == len(fresh)
            and all(map(agrees, stored, fresh))
        )
    if isinstance(fresh, float) and isinstance(stored, int | float):
        return math.isclose(stored, fresh, rel_tol=1e-6, abs_tol=1e-9)
    return bool(stored == fresh)
