"""From a source and its documents to all that a report shows: what may be shown, and the texts.

Reads the run's files and never the model.  Calibration outcomes are taken up only where a
``calibration.json`` and its look say that they are open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stopadvisor.assessment.assess import FitAssessment
from stopadvisor.certification.calibrated import CalibratedRun
from stopadvisor.certification.calibrated_risk import calibrated_risk
from stopadvisor.errors import PolicyError, ProbeError, WorkloadError
from stopadvisor.paper.assess import PaperAssessment
from stopadvisor.policy.frozen import load_policy
from stopadvisor.report.figures.data import Figures
from stopadvisor.report.figures.deploy import deploy_figures
from stopadvisor.report.figures.examples import Texts
from stopadvisor.report.figures.paper import paper_figures
from stopadvisor.results import from_document
from stopadvisor.runs.directory import CALIBRATION, RunDirectory
from stopadvisor.runs.imported import IMPORTED
from stopadvisor.runs.sources import Source, read_calibration
from stopadvisor.workload.questions import read_workload

__all__ = ["ReportData", "load"]

Document = Mapping[str, Any]


@dataclass(frozen=True)
class ReportData:
    """All that goes onto a page."""

    document: Document
    """An ``assessment.json``."""
    calibration: CalibratedRun | None
    figures: Figures
    remarks: tuple[str, ...]
    """What could not be shown, and why."""


def load(assessment: FitAssessment | PaperAssessment, document: Document) -> ReportData:
    """Collect what a report on an assessment shows."""
    source = assessment.source
    texts = _texts(source)
    written = read_calibration(source.folder)
    file = source.folder / CALIBRATION
    calibration = None
    if written is not None:
        try:
            calibration = from_document(CalibratedRun, written, file)
        except ProbeError as error:
            raise ProbeError(f"{error}; calibrate again") from error
    remarks: list[str] = []
    if isinstance(assessment, PaperAssessment):
        figures = paper_figures(assessment, texts)
    else:
        risk = None
        if calibration is not None and written is not None:
            try:
                policy = _policy_of(calibration, source.folder)
                risk = calibrated_risk(source, assessment.choice, written, policy)
            except (KeyError, TypeError, IndexError) as error:
                raise ProbeError(f"{file}: damaged ({error!r}); calibrate again") from error
            except PolicyError as error:
                remarks.append(f"The risk picture shows fit questions only: {error}.")
        figures = deploy_figures(assessment.choice, risk, texts)
        if calibration is not None and calibration.alpha != assessment.alpha:
            remarks.append(
                f"Assessed at alpha = {assessment.alpha:g}, calibrated at {calibration.alpha:g}: "
                "first screen and risk picture follow the calibration."
            )
    if source.simulated:
        remarks.append("Simulated probes have no texts: examples show no question.")
    elif texts is None:
        remarks.append("A published archive holds no texts: examples show no question or answer.")
    elif source.manifest is not None and source.manifest["engine"]["engine"] == IMPORTED:
        remarks.append("Imported probes bring no questions along: examples show answers alone.")
    elif not texts.questions:
        remarks.append("The workload file is gone, so that examples show no question.")
    return ReportData(document, calibration, figures, tuple(remarks))


def _policy_of(calibration: CalibratedRun, folder: Path) -> Mapping[str, Any]:
    """Content of the policy that a calibration wrote; empty where nothing was certified."""
    if not calibration.certified:
        return {}
    written = Path(calibration.policy)
    beside = folder / written.name
    content = load_policy(beside if beside.exists() else written).content
    if content["digest"] != calibration.digest:
        raise PolicyError(f"{written} is another policy than {CALIBRATION} names")
    return content


# --- Texts ----------------------------------------------------------------------------------------


def _texts(source: Source) -> Texts | None:
    """Questions and forced answers of a run; None for an archive."""
    if source.manifest is None:
        return None
    records = {r.id: r for r in RunDirectory.load(source.folder).records() if r.sample == 0}
    try:
        workload = read_workload(source.manifest["workload"]["path"])
    except WorkloadError:
        return Texts(records, {})
    texts = {q.key: "\n\n".join(m["content"] for m in q.messages) for q in workload.questions}
    return Texts(records, {i: texts[r.key] for i, r in records.items() if r.key in texts})
