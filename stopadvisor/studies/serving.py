"""Study `serving`: one rule under every serving regime, where its saving ends, and other prices.

Paper, Section "Deployment Cost" and Appendix "Cost and Serving Profiles": the learned rule at its
threshold of peak gain, in capped tokens.  To the paper's table it adds the weight of a token read
again at which the saving is gone.  The deploy protocol costs the rule that it expects to certify
under `--serving`, in recorded tokens, and tries other prices of prompt and cached tokens, with a
decoded token at 1.  Another rule may do better under another regime; its saving is shown beside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.constants import PAPER_CACHED_WEIGHT
from stopadvisor.paper.protocol import first_stops, peak_serving
from stopadvisor.rules.costs import Serving, ServingCost, Weights, full_counts, serving_costs
from stopadvisor.runs.access import View
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import DeployProtocol, archive_remarks, paper_setting, study_both
from stopadvisor.studies.rows import Outline, Row, RunRow, column
from stopadvisor.studies.study import StudyOptions, StudyResult

__all__ = ["OUTLINE", "run"]

_CACHED = (0.0, 0.1, 0.25, 0.5, 1.0)
_PREFILLED = (0.0, 0.1, 0.25, 0.5, 1.0)
_CACHED_SHARE = 0.1
"""A cached token's share of the price of a prompt token, while that price is swept."""


class _ServingNames(RunRow):
    regime: str = column("Serving", of="serving")


class _ServingPaper(
    _ServingNames,
    table="paper",
    title="The learned rule at peak gain, capped tokens",
    note="a token read again weighs 0.1 from a cache, 1 in a prompt; kv-fork reads none",
):
    threshold: float = column("Threshold")
    peak_gain: float = column("Peak gain")
    saving_pct: float = column("Saving", "%")
    reread_weight: float | None = column("Weight read again")
    break_even_weight: float | None = column("Ends at weight")


class _Own(_ServingNames, table="own", title="The rule that each regime would choose"):
    family: str | None = column("Rule")
    checkpoints: int | None = column("Checkpoints")
    saving_pct: float | None = column("Saves (fit)", "%")


class _ServingRegime(
    _Own,
    table="regimes",
    title="The rule chosen for {serving} under every regime",
    note="fit questions, the paper's weights; where the saving ends: so many probes a request, or "
    "such a price of a cached token",
):
    break_even_probes: float | None = column("Ends at probes")
    break_even_cached: float | None = column("Ends at cached price")


class _ServingTokens(_ServingNames, table="tokens", title="What it takes, per request"):
    probes: float = column("Probes")
    decoded: float = column("Decoded", "tokens")
    cached: float = column("Cached", "tokens")
    prefilled: float = column("Prefilled", "tokens")


class _Price(
    RunRow,
    table="prices",
    title="Net saving of the rule chosen for {serving}, by price",
    note="a decoded token costs 1; fit questions",
):
    swept: str = column("Swept")
    prefilled: float = column("Prompt token")
    cached: float = column("Cached token")
    kv_fork_pct: float = column("kv-fork", "%")
    prefix_cache_pct: float = column("prefix-cache", "%")
    black_box_pct: float = column("black-box", "%")
    overlap_pct: float = column("overlap", "%")


OUTLINE = Outline(
    "serving",
    'Section "Deployment Cost" and Appendix "Cost and Serving Profiles"',
    (_ServingPaper, _ServingRegime, _ServingTokens, _Own, _Price),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Savings by serving regime and price."""
    found = study_both(OUTLINE, sources, options, _paper_rows, _deploy_rows)
    flat = archive_remarks(sources, "archives log no prompts: they count 0 tokens")
    return replace(found, remarks=(*found.remarks, *flat))


def _paper_rows(view: View, options: StudyOptions) -> Iterator[_ServingPaper]:
    setting = paper_setting(view)
    found = peak_serving(setting)
    stops = first_stops(setting.scores["learned"], found.threshold)
    budgets = view.table.budgets.astype(np.float64)
    steps = np.arange(1, budgets.size + 1)
    stopped = np.take_along_axis(setting.costs.total, stops[:, None], axis=1)
    left = float(setting.costs.full_total.mean() - stopped.mean())
    # What is read again: the paper charges B_j for each probe so far from a cache, every prefix
    # in full to a black box.
    read = {
        "kv-fork": (None, np.zeros_like(budgets)),
        "prefix-cache": (PAPER_CACHED_WEIGHT, budgets * steps),
        "black-box": (1.0, np.cumsum(budgets)),
    }
    for regime, (weight, again) in read.items():
        tokens = float(again[stops].mean())
        yield _ServingPaper.of(
            found,
            run=view.label,
            regime=regime,
            saving_pct=found.saving_pct[regime],
            reread_weight=weight,
            break_even_weight=left / tokens if tokens > 0 and left > 0 else None,
        )


def _deploy_rows(deploy: DeployProtocol, options: StudyOptions) -> Iterator[Row | str]:
    chosen = deploy.cheapest(deploy.all_sequences())
    if chosen is None:
        yield f"{deploy.label}: no rule is expected to be certified"
        return
    sequence, limit = chosen
    scorer = sequence.scorer
    costs = serving_costs(
        sequence.view,
        sequence.curve.stops(limit.index),
        deploy.settings.weights,
        cache_block=deploy.settings.cache_block,
        asking=scorer.asking,
    )
    for cost in costs:
        yield _ServingRegime.of(
            cost, run=deploy.label, family=scorer.family, checkpoints=len(scorer.schedule)
        )
        yield _ServingTokens.of(cost, run=deploy.label)
        yield _own(deploy, sequence, cost.serving)
    yield from _prices(deploy, costs)


def _own(deploy: DeployProtocol, chosen: ThresholdSequence, serving: Serving) -> _Own:
    """The rule that a regime itself would choose."""
    costing = replace(deploy.fit.costing, serving=serving)
    there = replace(deploy, fit=replace(deploy.fit, costing=costing))
    same = serving == deploy.fit.costing.serving
    best = there.expected([chosen] if same else there.all_sequences())
    saving = None if best is None else best.fit_saving_pct
    return _Own.of(best, run=deploy.label, regime=serving, saving_pct=saving)


def _prices(deploy: DeployProtocol, costs: Sequence[ServingCost]) -> Iterator[_Price]:
    grid = [("cached", 1.0, price) for price in _CACHED]
    grid += [("prompt", price, _CACHED_SHARE * price) for price in _PREFILLED]
    full = full_counts(deploy.fit.table)
    for swept, prefilled, cached in grid:
        whole = float(full.weighed(Weights(prefilled, cached, 1.0, "decoded tokens")).mean())
        saved = {
            c.serving: 100 * (1 - (c.decoded + cached * c.cached + prefilled * c.prefilled) / whole)
            for c in costs
        }
        yield _Price(
            run=deploy.label,
            swept=swept,
            prefilled=prefilled,
            cached=cached,
            kv_fork_pct=saved["kv-fork"],
            prefix_cache_pct=saved["prefix-cache"],
            black_box_pct=saved["black-box"],
            overlap_pct=saved["overlap"],
        )
