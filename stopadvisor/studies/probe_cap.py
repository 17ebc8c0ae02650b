"""Study `probe-cap`: how other caps on a probe's answer would change the saving.

The paper charges every probe its cap of 48 tokens and says that this overcharges short answers
(Section "Training and Metrics", Eq. for C^cap; Section "Discussion and Limitations", first
limitation); it has no table of other caps.  Here its matched-risk comparison is repeated with
every probe charged each cap in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stopadvisor.paper.protocol import paper_costs
from stopadvisor.runs.access import View
from stopadvisor.studies.runner import compare_at_risk, paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, layout

__all__ = ["OUTLINE", "rows"]

_CAPS = (16, 32, 48, 64, 96)

_CHARGED = layout(
    "charged",
    "Every probe charged its cap, alpha = {alpha:g}",
    "the paper's cap is 48; thresholds chosen for each cap",
    run="Run", cap=("Cap", "tokens"), learned_saving_pct=("Learned saves", "%"),
    scalar_saving_pct=("Scalar saves", "%"), delta_saving_pp=("Difference", "pp"),
    delta_saving_ci=("95% low", "pp"), verdict="Verdict", scalar_family="Best scalar",
    learned_feasible="Learned certified", scalar_feasible="Scalar certified",
)  # fmt: skip
OUTLINE = Outline(
    "probe-cap",
    'Section "Training and Metrics" (C^cap) and "Discussion and Limitations"',
    (_CHARGED,),
)


def rows(view: View, options: StudyOptions) -> Iterator[Row]:
    """Savings at equal risk under several caps."""
    setting = paper_setting(view)
    for cap in _CAPS:
        costs = paper_costs(view.table, cap=cap)
        compared = compare_at_risk(replace(setting, costs=costs), options)
        yield _CHARGED.row(
            run=view.label,
            cap=cap,
            learned_saving_pct=compared.learned.total_saving_pct,
            scalar_saving_pct=compared.scalar.total_saving_pct,
            delta_saving_pp=compared.difference.median if compared.difference else None,
            delta_saving_ci=compared.difference,
            verdict=compared.verdict,
            scalar_family=compared.scalar.family,
            learned_feasible=compared.learned.feasible,
            scalar_feasible=compared.scalar.feasible,
        )
