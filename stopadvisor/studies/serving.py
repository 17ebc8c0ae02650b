"""Study `serving`: one rule under every serving regime, where its saving ends, and other prices.

Paper, Section "Deployment Cost" and Appendix "Cost and Serving Profiles": the learned rule at its
threshold of peak gain, in capped tokens.  The paper's side adds the weight of a token read again
at which the saving is gone.  The deploy side costs the rule that `--serving` is expected to
certify, in recorded tokens, and sweeps the prices of prompt and cached tokens with a decoded one
at 1; a rule chosen for another regime may do better there, and its saving is shown beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.constants import PAPER_CACHED_WEIGHT
from stopadvisor.paper.protocol import first_stops, peak_serving
from stopadvisor.rules.costs import (
    REGIMES,
    Serving,
    ServingCost,
    Weights,
    full_counts,
    serving_costs,
)
from stopadvisor.runs.access import View, basis_remarks, labels
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import (
    FitSide,
    fit_sides,
    paper_setting,
    paper_views,
    study_settings,
)
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table

__all__ = ["run"]

_CACHED = (0.0, 0.1, 0.25, 0.5, 1.0)
_PREFILLED = (0.0, 0.1, 0.25, 0.5, 1.0)
_CACHED_SHARE = 0.1
"""Of the price of a prompt token, while that one is swept."""

_PAPER = (
    Column("run", "Run"),
    Column("regime", "Serving"),
    Column("threshold", "Threshold"),
    Column("peak_gain", "Peak gain"),
    Column("saving_pct", "Saving", "%"),
    Column("reread_weight", "Weight read again"),
    Column("break_even_weight", "Ends at weight"),
)
_REGIMES = (
    Column("run", "Run"),
    Column("regime", "Serving"),
    Column("family", "Rule"),
    Column("checkpoints", "Checkpoints"),
    Column("saving_pct", "Saves (fit)", "%"),
    Column("break_even_probes", "Ends at probes"),
    Column("break_even_cached", "Ends at cached price"),
)
_TOKENS = (
    Column("run", "Run"),
    Column("regime", "Serving"),
    Column("probes", "Probes"),
    Column("decoded", "Decoded", "tokens"),
    Column("cached", "Cached", "tokens"),
    Column("prefilled", "Prefilled", "tokens"),
)
_OWN = (
    Column("run", "Run"),
    Column("regime", "Serving"),
    Column("family", "Rule"),
    Column("checkpoints", "Checkpoints"),
    Column("saving_pct", "Saves (fit)", "%"),
)
_PRICES = (
    Column("run", "Run"),
    Column("swept", "Swept"),
    Column("prefilled", "Prompt token"),
    Column("cached", "Cached token"),
    *(Column(f"{name.replace('-', '_')}_pct", name, "%") for name in REGIMES),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Savings by serving regime and price."""
    views = paper_views(sources)
    sides, reasons = fit_sides(sources, study_settings(options))
    regimes: list[tuple[Cell, ...]] = []
    tokens: list[tuple[Cell, ...]] = []
    own: list[tuple[Cell, ...]] = []
    prices: list[tuple[Cell, ...]] = []
    for side in sides:
        chain = side.cheapest(side.all_chains())
        if chain is None:
            reasons = (*reasons, f"{side.label}: no rule is expected to be certified")
            continue
        for cost in _served(side, chain, side.settings.weights):
            regimes.append(_regime_row(side, chain, cost))
            tokens.append(
                (
                    side.label,
                    cost.serving,
                    cost.probes,
                    cost.decoded,
                    cost.cached,
                    cost.prefilled,
                )
            )
            own.append(_own_row(side, chain, cost.serving))
        prices.extend(_price_rows(side, chain))
    flat = [name for name, s in zip(labels(sources), sources, strict=True) if s.is_archive]
    if flat:
        reasons = (*reasons, f"{', '.join(flat)}: archives log no prompts: they count 0 tokens")
    return StudyResult(
        "serving",
        'Section "Deployment Cost" and Appendix "Cost and Serving Profiles"',
        ("paper", "deploy"),
        (
            Table(
                "paper",
                "The learned rule at peak gain, capped tokens",
                _PAPER,
                tuple(row for view in views for row in _paper_rows(view)),
                "a token read again weighs 0.1 from a cache, 1 in a prompt; kv-fork reads none",
            ),
            Table(
                "regimes",
                f"The rule chosen for {options.serving} under every regime",
                _REGIMES,
                tuple(regimes),
                "fit questions, the paper's weights; where the saving ends: so many probes a "
                "request, or such a price of a cached token",
            ),
            Table("tokens", "What it takes, per request", _TOKENS, tuple(tokens)),
            Table("own", "The rule that each regime would choose", _OWN, tuple(own)),
            Table(
                "prices",
                f"Net saving of the rule chosen for {options.serving}, by price",
                _PRICES,
                tuple(prices),
                "a decoded token costs 1; fit questions",
            ),
        ),
        (*basis_remarks(views), *reasons),
    )


def _paper_rows(view: View) -> list[tuple[Cell, ...]]:
    setting = paper_setting(view)
    found = peak_serving(setting)
    stops = first_stops(setting.scores["learned"], found.threshold)
    budgets = view.table.budgets.astype(np.float64)
    steps = np.arange(1, budgets.size + 1)
    left = (
        setting.costs.full_total.mean()
        - np.take_along_axis(setting.costs.total, stops[:, None], axis=1).mean()
    )
    # What is read again: the paper charges B_j for each probe so far from a cache, every prefix
    # in full to a black box.
    read = {
        "kv-fork": (None, np.zeros_like(budgets)),
        "prefix-cache": (PAPER_CACHED_WEIGHT, budgets * steps),
        "black-box": (1.0, np.cumsum(budgets)),
    }
    rows: list[tuple[Cell, ...]] = []
    for regime, (weight, again) in read.items():
        tokens = float(again[stops].mean())
        ends = float(left) / tokens if tokens > 0 and left > 0 else None
        saving = found.saving_pct[regime]
        rows.append((view.label, regime, found.threshold, found.peak_gain, saving, weight, ends))
    return rows


def _served(side: FitSide, chain: ThresholdSequence, weights: Weights) -> tuple[ServingCost, ...]:
    return serving_costs(
        side.fit.table,
        chain.scorer.schedule,
        chain.curve.stops(chain.position(side.limit)),
        weights,
        cache_block=side.settings.cache_block,
    )


def _regime_row(side: FitSide, chain: ThresholdSequence, cost: ServingCost) -> tuple[Cell, ...]:
    return (
        side.label,
        cost.serving,
        chain.scorer.family,
        len(chain.scorer.schedule),
        cost.saving_pct,
        cost.break_even_probes,
        cost.break_even_cached,
    )


def _own_row(side: FitSide, chain: ThresholdSequence, serving: Serving) -> tuple[Cell, ...]:
    """The rule that a regime itself would choose."""
    there = replace(side, fit=replace(side.fit, serving=serving))
    best = chain if serving == side.fit.serving else there.cheapest(there.all_chains())
    if best is None:
        return (side.label, serving, None, None, None)
    scorer = best.scorer
    return (side.label, serving, scorer.family, len(scorer.schedule), there.saving(best))


def _price_rows(side: FitSide, chain: ThresholdSequence) -> list[tuple[Cell, ...]]:
    grid = [("cached", 1.0, price) for price in _CACHED]
    grid += [("prompt", price, _CACHED_SHARE * price) for price in _PREFILLED]
    costs = _served(side, chain, side.settings.weights)
    full = full_counts(side.fit.table)
    rows: list[tuple[Cell, ...]] = []
    for swept, prefilled, cached in grid:
        weights = Weights(prefilled, cached, 1.0, "decoded tokens")
        whole = float(full.weighed(weights).mean())
        savings = [
            100 * (1 - (c.decoded + cached * c.cached + prefilled * c.prefilled) / whole)
            for c in costs
        ]
        rows.append((side.label, swept, prefilled, cached, *savings))
    return rows
