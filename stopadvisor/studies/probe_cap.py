"""Study `probe-cap`: what other caps on a probe's answer would do to the saving.

The paper charges every probe its cap of 48 tokens and says that this overcharges short answers
(Section "Training and Metrics", Eq. for C^cap; Section "Discussion and Limitations", first
limitation); it has no table of other caps.  The paper's protocol repeats its matched-risk
comparison with each cap charged in full.  The deploy protocol charges the recorded tokens of each
probe, cut at the cap, and says how many probes the cap would cut: what those would then answer is
not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from stopadvisor.paper.costs import paper_costs
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import (
    DeployProtocol,
    Expected,
    archive_remarks,
    compare_at_risk,
    deploy_protocols,
    paper_setting,
    paper_views,
    study_settings,
)
from stopadvisor.studies.rows import Ends, Outline, Row, RunRow, column, ends, part
from stopadvisor.studies.study import StudyOptions, StudyResult

__all__ = ["OUTLINE", "run"]

_CAPS = (16, 32, 48, 64, 96)
_RECORDED_CAPS = (4, 8, *_CAPS)


class _Charged(
    RunRow,
    table="charged",
    title="Every probe charged its cap, alpha = {alpha:g}",
    note="the paper's cap is 48; thresholds chosen anew for each cap",
):
    cap: int = column("Cap", "tokens")
    learned_saving_pct: float = column("Learned saves", "%", of="learned.total_saving_pct")
    scalar_saving_pct: float = column("Scalar saves", "%", of="scalar.total_saving_pct")
    delta_saving_pp: float | None = column("Difference", "pp", of="difference.median")
    delta_saving_ci: Ends = ends("95% low", "pp", of="difference")
    verdict: str = column("Verdict")
    scalar_family: str = column("Best scalar", of="scalar.family")
    learned_feasible: bool = column("Learned certified", of="learned.feasible")
    scalar_feasible: bool = column("Scalar certified", of="scalar.feasible")


class _Recorded(
    RunRow,
    table="recorded",
    title="Recorded probe tokens cut at the cap, {serving}",
    note="answers are taken as they were; those that a cap cuts may change",
):
    cap: int = column("Cap", "tokens")
    cut_share: float = column("Probes cut", "share")
    mean_probe_tokens: float = column("Mean probe", "tokens")
    expected: Expected | None = part(Expected)


OUTLINE = Outline(
    "probe-cap",
    'Section "Training and Metrics" (C^cap) and "Discussion and Limitations"',
    (_Charged, _Recorded),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Savings at equal risk under several caps."""
    views = paper_views(sources)
    found: list[Row | str] = [row for view in views for row in _charged_rows(view, options)]
    logged = [source for source in sources if not source.is_archive]
    protocols, reasons = deploy_protocols(logged, study_settings(options))
    found += [row for deploy in protocols for row in _recorded_rows(deploy)]
    found += [
        *reasons,
        *archive_remarks(sources, "archives log no probe lengths: no rows of the deploy protocol"),
    ]
    return OUTLINE.result(found, options, basis_remarks(views))


def _charged_rows(view: View, options: StudyOptions) -> Iterator[_Charged]:
    setting = paper_setting(view)
    for cap in _CAPS:
        charged = replace(setting, costs=paper_costs(view.table, cap=cap))
        yield _Charged.of(compare_at_risk(charged, options), run=view.label, cap=cap)


def _recorded_rows(deploy: DeployProtocol) -> Iterator[_Recorded]:
    table = deploy.fit.table
    tokens = table.probe_tokens[~table.ended]
    longest = float(tokens.max()) if tokens.size else 0.0
    chosen = deploy.cheapest(deploy.all_sequences())
    schedule = deploy.every_checkpoint if chosen is None else chosen[0].scorer.schedule
    # A cap above the longest recorded answer changes nothing: one such row is enough.
    below = [cap for cap in _RECORDED_CAPS if cap < longest]
    for cap in [*below, *[c for c in _RECORDED_CAPS if c >= longest][:1]]:
        cut = replace(table, probe_tokens=np.minimum(table.probe_tokens, cap))
        shortened = replace(deploy, fit=replace(deploy.fit, table=cut))
        yield _Recorded(
            run=deploy.label,
            cap=cap,
            cut_share=float((tokens > cap).mean()),
            mean_probe_tokens=float(np.minimum(tokens, cap).mean()),
            expected=shortened.expected(shortened.sequences(schedule)),
        )
