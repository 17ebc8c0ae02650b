"""Study `calibration-size`: what is certified with how many calibration questions.

The paper has no such table; it says that with 80 calibration questions or fewer the concentration
term alone approaches the risk target (Section "A Three-Regime Map", third regime), and this study
measures that statement.  The paper's protocol draws calibration sets of each size from its 40 % and
measures on its own 60 %.  The deploy protocol needs no outcome of a calibration question: it says
what the fit questions let expect of each size, so that sizes beyond those at hand can be planned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from stopadvisor.assessment.probabilities import first_useful_risk, fit_limit
from stopadvisor.paper.protocol import OperatingPoint, operating_points, paper_split
from stopadvisor.runs.access import View
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bounds import max_losses, power
from stopadvisor.studies.protocols import DeployProtocol, Expected, paper_setting, study_both
from stopadvisor.studies.rows import Outline, RunRow, column, part
from stopadvisor.studies.study import StudyOptions, StudyResult

__all__ = ["OUTLINE", "run"]

_SIZES = (25, 50, 80, 100, 150, 200, 300, 400, 800, 1600)
_DRAWS = 8
"""Calibration sets of each size; the full one is drawn once."""


class _CertifiedBySize(
    RunRow,
    table="drawn",
    title="Certified by the paper's bound, alpha = {alpha:g}",
    note="means over sets drawn from the calibration questions; nothing certified counts as never "
    "stopping; slack is what Hoeffding's bound adds to the risk seen",
):
    side: str = column("Rule")
    questions: int = column("Labels")
    certified: float = column("Certified", "share")
    saving_pct: float = column("Saves", "%")
    saving_min_pct: float = column("Least", "%")
    saving_max_pct: float = column("Most", "%")
    test_risk: float = column("Test risk", "share")
    slack: float = column("Slack")
    draws: int = column("Sets")
    candidates: float = column("Candidates")


class _Planned(
    RunRow,
    table="expected",
    title="Expected of the deploy protocol, {serving}",
    note="from fit questions; the probability is that of the rule's most careful threshold that "
    "saves anything",
):
    questions: int = column("Labels")
    allowed_losses: int | None = column("Losses allowed")
    chance: float = column("Probability to certify", "chance")
    expected: Expected | None = part(Expected)


OUTLINE = Outline(
    "calibration-size", 'Section "A Three-Regime Map" (n_cal <= 80)', (_CertifiedBySize, _Planned)
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Certified savings along the number of calibration questions."""
    return study_both(OUTLINE, sources, options, _certified_rows, _planned_rows)


def _certified_rows(view: View, options: StudyOptions) -> Iterator[_CertifiedBySize]:
    setting = paper_setting(view)
    calibration, test = paper_split(view.table.n_questions)
    rng = np.random.default_rng(options.seed)
    for size in [*(s for s in _SIZES if s < calibration.size), calibration.size]:
        pairs = [
            operating_points(
                setting,
                rng.choice(calibration, size=size, replace=False),
                test,
                alpha=options.alpha,
                delta=options.delta,
            )
            for _ in range(1 if size == calibration.size else _DRAWS)
        ]
        for name, points in zip(("learned", "scalar"), zip(*pairs, strict=True), strict=True):
            yield _certified_row(view.label, name, points, size, options.delta)


def _certified_row(
    label: str, name: str, points: Sequence[OperatingPoint], size: int, delta: float
) -> _CertifiedBySize:
    savings = [p.total_saving_pct for p in points]
    slacks = [math.sqrt(math.log(p.candidates / delta) / (2 * size)) for p in points]
    return _CertifiedBySize(
        run=label,
        side=name,
        questions=size,
        certified=float(np.mean([p.feasible for p in points])),
        saving_pct=float(np.mean(savings)),
        saving_min_pct=min(savings),
        saving_max_pct=max(savings),
        test_risk=float(np.mean([p.test_risk for p in points])),
        slack=float(np.mean(slacks)),
        draws=len(points),
        candidates=float(np.mean([p.candidates for p in points])),
    )


def _planned_rows(deploy: DeployProtocol, options: StudyOptions) -> Iterator[_Planned]:
    settings, fit = deploy.settings, deploy.fit
    accuracy = float(fit.table.full_correct.mean())
    sequences = deploy.all_sequences()
    delta = settings.delta
    for size in _SIZES:
        allowed = max_losses(size, settings.alpha, delta, settings.bound)
        most = fit_limit(fit.table.n_questions, size, settings, accuracy)
        planned = replace(deploy, most_losses=most)
        found = planned.cheapest(sequences)
        first = None if found is None else first_useful_risk(fit, found[0])
        probability = (
            0.0 if first is None else power(size, settings.alpha, delta, first, settings.bound)
        )
        yield _Planned(
            run=deploy.label,
            questions=size,
            allowed_losses=allowed if allowed >= 0 else None,
            chance=probability,
            expected=planned.expected(sequences),
        )
