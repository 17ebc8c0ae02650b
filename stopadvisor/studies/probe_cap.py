"""Study `probe-cap`: what other caps on a probe's answer would do to the saving.

The paper charges every probe its cap of 48 tokens and says that this overcharges short answers
(Section "Training and Metrics", Eq. for C^cap; Section "Discussion and Limitations", first
limitation); it has no table of other caps.  The paper's side repeats its matched-risk comparison
with each cap charged in full.  The deploy side charges the recorded tokens of each probe, cut at
the cap, and says how many probes the cap would cut: what those would then answer is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stopadvisor.paper.protocol import match_risk, paper_split
from stopadvisor.rules.costs import paper_costs
from stopadvisor.runs.access import View, basis_remarks, labels
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import (
    EXPECTED,
    FitSide,
    fit_sides,
    interval_cells,
    paper_setting,
    paper_views,
    study_settings,
)
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table

__all__ = ["run"]

_CAPS = (16, 32, 48, 64, 96)
_RECORDED_CAPS = (4, 8, *_CAPS)

_MATCHED = (
    Column("run", "Run"),
    Column("cap", "Cap", "tokens"),
    Column("learned_saving_pct", "Learned saves", "%"),
    Column("scalar_saving_pct", "Scalar saves", "%"),
    Column("delta_saving_pp", "Difference", "pp"),
    Column("delta_saving_low", "95% low", "pp"),
    Column("delta_saving_high", "high", "pp"),
    Column("verdict", "Verdict"),
    Column("scalar_family", "Best scalar"),
    Column("learned_feasible", "Learned certified"),
    Column("scalar_feasible", "Scalar certified"),
)
_RECORDED = (
    Column("run", "Run"),
    Column("cap", "Cap", "tokens"),
    Column("cut_share", "Probes cut", "share"),
    Column("mean_probe_tokens", "Mean probe", "tokens"),
    *EXPECTED,
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Savings at equal risk under several caps."""
    views = paper_views(sources)
    matched = [row for view in views for row in _matched_rows(view, options)]
    flat = [name for name, s in zip(labels(sources), sources, strict=True) if s.is_archive]
    logged = [source for source in sources if not source.is_archive]
    sides, reasons = fit_sides(logged, study_settings(options))
    recorded = [row for side in sides for row in _recorded_rows(side)]
    if flat:
        reasons = (*reasons, f"{', '.join(flat)}: archives log no probe lengths: no deploy side")
    return StudyResult(
        "probe-cap",
        'Section "Training and Metrics" (C^cap) and "Discussion and Limitations"',
        ("paper", "deploy"),
        (
            Table(
                "charged",
                f"Every probe charged its cap, alpha = {options.alpha:g}",
                _MATCHED,
                tuple(matched),
                "the paper's cap is 48; thresholds chosen anew for each cap",
            ),
            Table(
                "recorded",
                f"Recorded probe tokens cut at the cap, {options.serving}",
                _RECORDED,
                tuple(recorded),
                "answers are taken as they were; those that a cap cuts may change",
            ),
        ),
        (*basis_remarks(views), *reasons),
    )


def _matched_rows(view: View, options: StudyOptions) -> list[tuple[Cell, ...]]:
    setting = paper_setting(view)
    calibration, test = paper_split(view.table.n_questions)
    rows: list[tuple[Cell, ...]] = []
    for cap in _CAPS:
        charged = replace(setting, costs=paper_costs(view.table, cap=cap))
        (found,) = match_risk(
            charged,
            calibration,
            test,
            alphas=[options.alpha],
            delta=options.delta,
            n_resamples=options.resamples,
        )
        rows.append(
            (
                view.label,
                cap,
                found.learned.total_saving_pct,
                found.scalar.total_saving_pct,
                *interval_cells(found.difference),
                found.verdict,
                found.scalar.family,
                found.learned.feasible,
                found.scalar.feasible,
            )
        )
    return rows


def _recorded_rows(side: FitSide) -> list[tuple[Cell, ...]]:
    table = side.fit.table
    live = ~table.ended
    tokens = table.probe_tokens[live]
    longest = float(tokens.max()) if tokens.size else 0.0
    chosen = side.cheapest(side.all_chains())
    columns = tuple(range(table.n_checkpoints)) if chosen is None else chosen.scorer.schedule
    rows: list[tuple[Cell, ...]] = []
    # A cap above the longest recorded answer changes nothing: one such row is enough.
    below = [cap for cap in _RECORDED_CAPS if cap < longest]
    for cap in [*below, *[c for c in _RECORDED_CAPS if c >= longest][:1]]:
        cut = replace(table, probe_tokens=np.minimum(table.probe_tokens, cap))
        shortened = replace(side, fit=replace(side.fit, table=cut))
        share, mean = float((tokens > cap).mean()), float(np.minimum(tokens, cap).mean())
        expected = shortened.expected(shortened.chains(columns))
        rows.append((side.label, cap, share, mean, *expected))
    return rows
