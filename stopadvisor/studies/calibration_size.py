"""Study `calibration-size`: what is certified with how many calibration questions.

The paper has no such table; it says that with 80 calibration questions or fewer the concentration
term alone approaches the risk target (Section "A Three-Regime Map", third regime), and this is that
statement measured.  The paper's side draws calibration sets of each size from its 40 % and measures
on its own 60 %.  The deploy side needs no outcome of a calibration question: it says what the fit
questions expect of each number of them, so that sizes beyond those at hand can be planned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stopadvisor.assessment.choice import first_useful_risk, fit_limit
from stopadvisor.paper.protocol import OperatingPoint, operating_points, paper_split
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bounds import max_losses, power
from stopadvisor.studies.protocols import (
    EXPECTED,
    FitSide,
    fit_sides,
    paper_setting,
    paper_views,
    study_settings,
)
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table

__all__ = ["run"]

_SIZES = (25, 50, 80, 100, 150, 200, 300, 400, 800, 1600)
_DRAWS = 8
"""Calibration sets of each size; the full one is drawn once."""

_DRAWN = (
    Column("run", "Run"),
    Column("side", "Rule"),
    Column("questions", "Labels"),
    Column("certified", "Certified", "share"),
    Column("saving_pct", "Saves", "%"),
    Column("saving_min_pct", "Least", "%"),
    Column("saving_max_pct", "Most", "%"),
    Column("test_risk", "Test risk", "share"),
    Column("slack", "Slack"),
    Column("draws", "Sets"),
    Column("candidates", "Candidates"),
)
_EXPECTED = (
    Column("run", "Run"),
    Column("questions", "Labels"),
    Column("allowed_losses", "Losses allowed"),
    Column("chance", "Chance to certify", "chance"),
    *EXPECTED,
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Certified savings along the number of calibration questions."""
    views = paper_views(sources)
    sides, reasons = fit_sides(sources, study_settings(options))
    drawn = [row for view in views for row in _drawn_rows(view, options)]
    expected = [row for side in sides for row in _expected_rows(side)]
    return StudyResult(
        "calibration-size",
        'Section "A Three-Regime Map" (n_cal <= 80)',
        ("paper", "deploy"),
        (
            Table(
                "drawn",
                f"Certified by the paper's bound, alpha = {options.alpha:g}",
                _DRAWN,
                tuple(drawn),
                "means over sets drawn from the calibration questions; nothing certified counts as "
                "never stopping; slack is what Hoeffding's bound adds to the risk seen",
            ),
            Table(
                "expected",
                f"Expected of the deploy protocol, {options.serving}",
                _EXPECTED,
                tuple(expected),
                "from fit questions; the chance is that of the rule's most careful threshold that "
                "saves anything",
            ),
        ),
        (*basis_remarks(views), *reasons),
    )


def _drawn_rows(view: View, options: StudyOptions) -> list[tuple[Cell, ...]]:
    setting = paper_setting(view)
    calibration, test = paper_split(view.table.n_questions)
    rng = np.random.default_rng(options.seed)
    rows: list[tuple[Cell, ...]] = []
    for size in [*(s for s in _SIZES if s < calibration.size), calibration.size]:
        draws = 1 if size == calibration.size else _DRAWS
        pairs = [
            operating_points(
                setting,
                rng.choice(calibration, size=size, replace=False),
                test,
                alpha=options.alpha,
                delta=options.delta,
            )
            for _ in range(draws)
        ]
        for name, points in zip(("learned", "scalar"), zip(*pairs, strict=True), strict=True):
            rows.append((view.label, name, *_summary(points, size, options.delta)))
    return rows


def _summary(points: Sequence[OperatingPoint], size: int, delta: float) -> tuple[Cell, ...]:
    savings = [p.total_saving_pct for p in points]
    slacks = [math.sqrt(math.log(p.candidates / delta) / (2 * size)) for p in points]
    return (
        size,
        float(np.mean([p.feasible for p in points])),
        float(np.mean(savings)),
        min(savings),
        max(savings),
        float(np.mean([p.test_risk for p in points])),
        float(np.mean(slacks)),
        len(points),
        float(np.mean([p.candidates for p in points])),
    )


def _expected_rows(side: FitSide) -> list[tuple[Cell, ...]]:
    settings, fit = side.settings, side.fit
    n_fit = fit.table.n_questions
    accuracy = float(fit.table.full_correct.mean())
    chains = side.all_chains()
    delta = settings.chain_delta()
    rows: list[tuple[Cell, ...]] = []
    for size in _SIZES:
        allowed = max_losses(size, settings.alpha, delta, settings.bound)
        names: tuple[Cell, ...] = (side.label, size, allowed if allowed >= 0 else None)
        limit = fit_limit(n_fit, size, settings, accuracy)
        chain = side.cheapest(chains, limit)
        first = None if chain is None else first_useful_risk(fit, chain)
        chance = 0.0 if first is None else power(size, settings.alpha, delta, first, settings.bound)
        rows.append((*names, chance, *side.expected(chains, limit)))
    return rows
