"""Study `alpha-grid`: learned against scalar rules at several risk targets.

Paper, Figure "Matched-risk saving difference" and Appendix "Primary-Setting α Grid": α of 0.05,
0.10, 0.15 and 0.20 under one 40/60 split.  The deploy protocol makes the whole choice anew on fit
questions for each α, and says how likely calibration is to certify a saving.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stopadvisor.assessment.assess import calibration_size
from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.constants import PAPER_ALPHAS
from stopadvisor.errors import CalibrationError
from stopadvisor.paper.protocol import match_risk, paper_split
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import paper_setting, paper_views, study_settings
from stopadvisor.studies.rows import Ends, Outline, Row, RunRow, column, ends
from stopadvisor.studies.study import StudyOptions, StudyResult

__all__ = ["OUTLINE", "run"]


class _AlphaGridPaper(
    RunRow,
    table="paper",
    title="Matched risk on the test questions of the paper's split",
    note="a probe is charged the paper's cap; intervals keep thresholds frozen, as the paper's do, "
    "and tell equal families apart far more often than 5 % of the time",
):
    alpha: float = column("Alpha")
    scalar: str = column("Best scalar", of="scalar.family")
    learned_risk: float = column("Learned risk", "share", of="learned.test_risk")
    scalar_risk: float = column("Scalar risk", "share", of="scalar.test_risk")
    learned_saving_pct: float = column("Learned saving", "%", of="learned.total_saving_pct")
    scalar_saving_pct: float = column("Scalar saving", "%", of="scalar.total_saving_pct")
    difference_pp: float | None = column("Difference", "pp", of="difference.median")
    difference_ci: Ends = ends("95 % CI", "pp", of="difference")
    verdict: str = column("Verdict")


class _Deploy(
    RunRow,
    table="deploy",
    title="Chosen anew on fit questions, {serving}",
    note="net savings out of fold; intervals choose every threshold anew",
):
    alpha: float = column("Alpha")
    scalar: str | None = column("Best scalar", of="scalar.family")
    learned_risk: float | None = column("Learned risk (fit)", "share", of="learned.fit_risk")
    scalar_risk: float | None = column("Scalar risk (fit)", "share", of="scalar.fit_risk")
    learned_saving_pct: float | None = column(
        "Learned saving (fit)", "%", of="learned.fit_total_saving_pct"
    )
    scalar_saving_pct: float | None = column(
        "Scalar saving (fit)", "%", of="scalar.fit_total_saving_pct"
    )
    difference_pp: float | None = column("Difference", "pp")
    difference_ci: Ends = ends("95 % CI", "pp")
    verdict: str = column("Verdict")
    chance: float = column("Probability to certify", "chance", of="probability")


OUTLINE = Outline("alpha-grid", 'Appendix "Primary-Setting α Grid"', (_AlphaGridPaper, _Deploy))


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Compare learned and scalar rules at every α of the paper, and at the one asked for."""
    alphas = sorted({*PAPER_ALPHAS, options.alpha})
    views = paper_views(sources)
    found: list[Row | str] = [row for view in views for row in _paper_rows(view, alphas, options)]
    for source, view in zip(sources, views, strict=True):
        for alpha in alphas:
            settings = replace(study_settings(options), alpha=alpha)
            try:
                found.append(_deploy_row(view.label, source, settings))
            except CalibrationError as error:
                found.append(
                    f"{view.label}, α = {alpha:g}: no rows of the deploy protocol: {error}"
                )
    return OUTLINE.result(found, options, basis_remarks(views))


def _paper_rows(
    view: View, alphas: Sequence[float], options: StudyOptions
) -> Iterator[_AlphaGridPaper]:
    for found in match_risk(
        paper_setting(view),
        *paper_split(view.table.n_questions),
        alphas=alphas,
        delta=options.delta,
        n_resamples=options.resamples,
    ):
        yield _AlphaGridPaper.of(found, run=view.label)


def _deploy_row(label: str, source: Source, settings: Settings) -> _Deploy:
    choice = choose(source.part("fit"), calibration_size(source.part("calibration")), settings)
    learned, scalar, spread = choice.learned, choice.scalar, choice.delta_saving_pp
    if not (learned and learned.feasible and scalar and scalar.feasible):
        spread = None
    return _Deploy.of(
        choice,
        run=label,
        alpha=settings.alpha,
        difference_pp=spread.median if spread else None,
        difference_ci=spread,
    )
