"""Settle where traces will be probed, before the first probe, and estimate what that costs.

The traces of a pilot on fit questions choose what the user left open: the budgets of a grid, the
distance of a stride, the markers of the model.  Knows no particular engine, no files and no outcome
of any question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.collection.markers import CANDIDATES, LEAST_RATE, MarkerFindings, count_words
from stopadvisor.collection.pilot import auto_budgets, auto_stride, draw_pilot
from stopadvisor.collection.probe_settings import ProbeSettings
from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.progress import Progress
from stopadvisor.probes.asking import Engine, ProbePlan, RawTrace
from stopadvisor.probes.positions import trace_positions
from stopadvisor.workload.questions import Question

__all__ = [
    "MOST_SHARE",
    "NO_MARKERS",
    "ProbeCost",
    "SettledSchedule",
    "check_markers",
    "expected_cost",
    "settle_plan",
]

MOST_SHARE = 0.10
"""Most tokens that ``auto`` lets probing decode, as a share of thinking; means over a pilot."""
FEWEST_STRIDES = 4
"""Places that the stride keeps in the longest trace as long as there are markers to drop."""

NO_MARKERS = (
    f"none of {len(CANDIDATES)} usual markers begins {LEAST_RATE:g} or more sentences per 1,000 "
    "thinking tokens, so that --schedule marker has nowhere to probe: use --schedule stride, or "
    "name the model's own words (--markers)"
)


@dataclass(frozen=True)
class SettledSchedule:
    """A plan with nothing left open, and what the pilot found."""

    plan: ProbePlan
    markers: MarkerFindings | None = None
    """Words that a pilot counted; None if it did not, or ``auto`` thinned a plan without any."""
    remark: str = ""
    """Why fewer places are probed than the pilot chose; continues a sentence."""
    pilot: Sequence[RawTrace] = ()
    """Traces of the first fit questions that settled it; empty if nothing was open."""


@dataclass(frozen=True)
class ProbeCost:
    """What probing a question decodes besides its thinking; means over a few traces."""

    probes: float
    """Probes a question."""
    decoded_tokens: float
    """Tokens of all forced answers, and of visible ones with on-stop ``answer``."""
    share_of_thinking: float | None
    """These tokens over the thinking tokens; None if there was no thinking."""

    def __str__(self) -> str:
        share = "" if self.share_of_thinking is None else f", {self.share_of_thinking:.0%} of its"
        return (
            f"about {self.probes:.1f} probes a question, {self.decoded_tokens:.0f} decoded tokens"
            f"{share and share + ' thinking'}"
        )


def settle_plan(
    engine: Engine,
    fit: Sequence[Question],
    plan: ProbePlan,
    settings: ProbeSettings,
    *,
    batch_size: int,
    progress: Progress,
) -> SettledSchedule:
    """Settle budgets, stride and markers; draws a pilot if one of them is left open.

    Returns a plan without markers if a ``marker`` schedule finds none; see `check_markers`.

    Parameters
    ----------
    fit
        Fit questions, never others.
    plan
        With its cap on thinking settled.
    """
    is_auto = plan.schedule == "auto"
    search = is_auto or (plan.schedule == "marker" and not plan.markers)
    open_grid = settings.budgets is None and plan.schedule == "grid"
    traces: list[RawTrace] = []
    if search or open_grid or settings.auto_every:
        traces = draw_pilot(
            engine,
            fit,
            plan,
            batch_size=batch_size,
            template=settings.prompt_template,
            progress=progress,
        )
    lengths = [trace.trace_tokens for trace in traces]
    if open_grid:
        plan = replace(plan, budgets=auto_budgets(lengths))
    elif settings.budgets is None:
        plan = plan.with_stride(auto_stride(lengths) if plan.every is None else plan.every)
    words = count_words(engine, traces) if search else None
    if words is not None:
        plan = replace(plan, markers=words.ids)
    if is_auto:
        plan = replace(plan, schedule="marker" if plan.markers else "stride")
    if not (is_auto and settings.auto_every):
        return SettledSchedule(plan, words, pilot=traces)
    thin = _thinned(plan, traces)
    remark = f", fewer so that probing stays within {MOST_SHARE:.0%} of thinking"
    markers = words if words and words.ids else None
    return SettledSchedule(thin, markers, remark * (thin != plan), traces)


def _thinned(plan: ProbePlan, traces: Sequence[RawTrace]) -> ProbePlan:
    """Widen the stride and drop markers until probing is within `MOST_SHARE`.

    The stride keeps a few places as long as there are markers to drop.
    """
    answers = [trace.probes[-1].probe_tokens for trace in traces]
    longest = max(trace.trace_tokens for trace in traces)
    plan = replace(plan, max_markers=min(plan.max_markers, longest)) if plan.markers else plan
    while (cost := expected_cost(plan, traces, float(np.mean(answers)))) is not None:
        if (cost.share_of_thinking or 0.0) <= MOST_SHARE:
            break
        every = plan.every or longest
        has_markers = bool(plan.markers) and plan.max_markers > 1
        if has_markers and every * FEWEST_STRIDES >= longest:
            plan = replace(plan, max_markers=plan.max_markers - 1)
        elif every < longest:
            plan = plan.with_stride(max(every + 1, round(every * 1.25)))
        else:
            break
    return plan


def check_markers(plan: ProbePlan) -> None:
    """Refuse a ``marker`` schedule for a model without markers."""
    if plan.schedule == "marker" and not plan.markers:
        raise ProbeError(NO_MARKERS)


def expected_cost(
    plan: ProbePlan, traces: Sequence[RawTrace], answer_tokens: float
) -> ProbeCost | None:
    """Estimate what the probes of a plan will decode; None if its places are not settled.

    Parameters
    ----------
    traces
        Traces of a few questions, with `thinking_ids`.
    answer_tokens
        Mean length of a forced answer.
    """
    if not plan.budgets and not plan.markers:
        return None
    counts, decoded = [], []
    for trace in traces:
        length = trace.trace_tokens
        # Budgets at or beyond the end share one probe.
        places = {min(at, length) for at in trace_positions(plan, trace.thinking_ids).probed}
        live = sum(at < length for at in places)
        visible = live * trace.natural_tokens if plan.on_stop == "answer" else 0
        counts.append(len(places))
        decoded.append(len(places) * answer_tokens + visible)
    thinking = float(np.mean([trace.trace_tokens for trace in traces]))
    tokens = float(np.mean(decoded))
    return ProbeCost(float(np.mean(counts)), tokens, tokens / thinking if thinking else None)
