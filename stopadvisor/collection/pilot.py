"""Choose, before the first probe, where thinking is cut and where traces are probed.

The model settles what the user left ``auto``: its context bounds the cap, and its traces of a few
fit questions choose the budgets of a grid, the stride, or the markers.  A recorded trace that the
model could not have produced under the plan's cap is refused, with its place in the file.  No
outcome is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.collection.collect import ask_all, make_prompts
from stopadvisor.collection.markers import CANDIDATES, LEAST_RATE, MarkerFindings, count_words
from stopadvisor.collection.probe_settings import ProbeSettings
from stopadvisor.ground.constants import PAPER_BUDGETS
from stopadvisor.ground.errors import ModelError, ProbeError, WorkloadError
from stopadvisor.ground.progress import Progress
from stopadvisor.probes.asking import Engine, ProbePlan, RawTrace, is_open_cue
from stopadvisor.probes.trigger import trace_positions
from stopadvisor.workload.questions import Question, RecordedTrace

__all__ = [
    "CAP_STEP", "MOST_SHARE", "NO_MARKERS", "ProbeCost", "SettledPlan", "auto_budgets",
    "auto_stride", "cue_ids", "expected_cost", "recorded_cap", "settle_plan", "thinking_cap",
    "trial_plan",
]  # fmt: skip

PILOT_QUESTIONS = 32
PILOT_QUANTILE = 0.9
EARLY = 32
"""A position early in the thinking, in tokens."""
STRIDES = 32
"""Probes that an `auto` stride takes in a trace of 90th-percentile length."""
STRIDE_STEP = 16
CAP_STEP = 64
"""An `auto` cap below the plan's is a multiple of this, which leaves room for longer prompts."""
MOST_SHARE = 0.10
"""Limit on what ``auto`` probes decode, as a share of thinking tokens, averaged over the pilot."""
FEWEST_STRIDES = 4
"""Stride probes that the longest trace keeps while there are markers to drop."""

NO_MARKERS = (
    f"none of {len(CANDIDATES)} usual markers begins {LEAST_RATE:g} or more sentences per 1,000 "
    "thinking tokens, so --schedule marker has nowhere to probe: use --schedule stride, or "
    "name the model's own words (--markers)"
)


# --- The cap on thinking --------------------------------------------------------------------------


def thinking_cap(
    engine: Engine,
    questions: Sequence[Question],
    plan: ProbePlan,
    *,
    template: str | None = None,
    auto: bool = False,
) -> int:
    """Return the plan's cap on thinking, if the model's context has room for it.

    `questions` are all that will be asked.  A cap that does not fit is refused, or lowered if
    `auto`.
    """
    room = engine.longest_thinking(make_prompts(questions, template), plan)
    cap = plan.max_think
    if room < cap:
        lower = room - room % CAP_STEP or room
        if not auto:
            raise ModelError(
                f"--max-think must be at most {room}, got {cap}: the model's context has no room "
                f"for more after the longest prompt; in a new run auto takes {lower}, to leave "
                "room for longer prompts"
            )
        cap = lower
    if plan.budgets and plan.budgets[-1] > cap:
        raise ModelError(
            f"--budgets must end at --max-think {cap} or before, got {plan.budgets[-1]}"
        )
    return cap


def recorded_cap(
    engine: Engine,
    questions: Sequence[Question],
    plan: ProbePlan,
    *,
    auto: bool,
    progress: Progress,
) -> int:
    """Return the plan's cap on thinking, if no recorded thinking was cut before it.

    Otherwise the earliest cut is refused, or becomes the cap if `auto`.  Thinking that contains the
    model's closer is refused.
    """
    closer = engine.identity()["think_close"]["text"]
    cap = plan.max_think
    cut: list[tuple[int, RecordedTrace]] = []
    for trace in (trace for question in questions for trace in question.traces):
        if closer in trace.thinking:
            raise WorkloadError(
                f"{trace.where}: expected thinking without the model's closer, got {closer!r} "
                "inside it"
            )
        if trace.reply is None and not trace.ended:
            cut.append((len(engine.encode(trace.thinking)), trace))
    if all(length >= cap for length, _ in cut):
        return cap
    length, trace = min(cut, key=lambda pair: pair[0])
    if not auto or length == 0:
        wanted = f"--max-think {cap}" if length else "at least one token"
        raise WorkloadError(
            f"{trace.where}: expected thinking with a reply, or cut no earlier than at "
            f"{wanted}, got {length} tokens and no reply"
            + (f"; --max-think {length} or less would do" if length else "")
        )
    progress.remark(
        f"max-think: {length} tokens, at which recorded thinking was cut ({trace.where})"
    )
    return length


def cue_ids(engine: Engine, cue: str) -> list[int]:
    """Tokens of the cue without the closer before it."""
    closer = () if is_open_cue(cue) else engine.identity()["think_close"]["ids"]
    return engine.suffix_ids(cue)[len(closer) :]


# --- Places to probe ------------------------------------------------------------------------------


def auto_budgets(trace_lengths: Sequence[int]) -> tuple[int, ...]:
    """Scale the paper's grid so that it ends at the 90th percentile of the trace lengths.

    Examples
    --------
    >>> auto_budgets([120] * 8)
    (0, 10, 15, 20, 30, 40, 50, 60, 80, 120)
    """
    last = _long_trace(trace_lengths, 1, "--budgets")
    scaled = np.rint(np.array(PAPER_BUDGETS) * (last / PAPER_BUDGETS[-1])).astype(int)
    return tuple(sorted({int(b) for b in scaled}))


def auto_stride(trace_lengths: Sequence[int]) -> int:
    """Choose a stride with about `STRIDES` probes in a long trace; a multiple of 16 from 16 on.

    Examples
    --------
    >>> auto_stride([3000] * 8), auto_stride([120] * 8)
    (96, 4)
    """
    every = max(1, round(_long_trace(trace_lengths, 2, "--every") / STRIDES))
    return every if every < STRIDE_STEP else STRIDE_STEP * round(every / STRIDE_STEP)


def _long_trace(trace_lengths: Sequence[int], least: float, option: str) -> float:
    """The 90th percentile of a pilot's trace lengths."""
    long = float(np.quantile(trace_lengths, PILOT_QUANTILE)) if len(trace_lengths) else 0.0
    if long < least:
        raise ProbeError(
            f"the pilot's {len(trace_lengths)} traces must contain thinking to choose budgets "
            f"from, got a 90th percentile of {long:g} tokens; give {option}, or check --think-tags "
            "and that thinking is switched on (--chat-template-kwargs)"
        )
    return long


def trial_plan(plan: ProbePlan) -> ProbePlan:
    """Full thinking, probed before it begins, early and at its end."""
    positions = {0, min(EARLY, plan.max_think), plan.max_think}
    # Visible answers would look like the natural ones, which a trace has anyway.
    return replace(plan.at_budgets(*sorted(positions)), on_stop="probe")


@dataclass(frozen=True)
class SettledPlan:
    """A plan with nothing left ``auto``, and the pilot's findings."""

    plan: ProbePlan
    markers: MarkerFindings | None = None
    """Word counts of the pilot; None if it counted none, or ``auto`` found no marker."""
    remark: str = ""
    """Why fewer places are probed than the pilot chose, to end a sentence with."""
    pilot: Sequence[RawTrace] = ()
    """Traces of the first fit questions; empty if no pilot was needed."""


def settle_plan(
    engine: Engine,
    fit: Sequence[Question],
    plan: ProbePlan,
    settings: ProbeSettings,
    *,
    batch_size: int,
    progress: Progress,
) -> SettledPlan:
    """Settle budgets, stride and markers, with a pilot of 32 fit questions if any is ``auto``.

    The plan's cap must be settled.  If a ``marker`` schedule finds no markers, the returned plan
    has none; see `NO_MARKERS`.
    """
    is_auto = plan.schedule == "auto"
    search = is_auto or (plan.schedule == "marker" and not plan.markers)
    open_grid = settings.budgets is None and plan.schedule == "grid"
    traces: list[RawTrace] = []
    if search or open_grid or settings.auto_every:
        asked = make_prompts(fit[:PILOT_QUESTIONS], settings.prompt_template)
        progress.begin("pilot", len(asked))
        trial = trial_plan(plan)  # the preflight probes there too, and reuses these traces
        traces = ask_all(engine, asked, trial, batch_size=batch_size, progress=progress)
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
        return SettledPlan(plan, words, pilot=traces)
    thin = _thinned(plan, traces)
    remark = f", fewer so that probing stays within {MOST_SHARE:.0%} of thinking"
    markers = words if words and words.ids else None
    return SettledPlan(thin, markers, remark * (thin != plan), traces)


def _thinned(plan: ProbePlan, traces: Sequence[RawTrace]) -> ProbePlan:
    """Drop markers and widen the stride until probing is within `MOST_SHARE`.

    The stride keeps `FEWEST_STRIDES` probes as long as there are markers to drop.
    """
    answer_tokens = float(np.mean([trace.probes[-1].probe_tokens for trace in traces]))
    longest = max(trace.trace_tokens for trace in traces)
    plan = replace(plan, max_markers=min(plan.max_markers, longest)) if plan.markers else plan
    while (cost := expected_cost(plan, traces, answer_tokens)) is not None:
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


# --- Expected cost --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProbeCost:
    """Mean tokens that probing a question decodes on top of its thinking."""

    probes: float
    """Probes per question."""
    decoded_tokens: float
    """Tokens of all forced answers, and of visible ones with on-stop ``answer``."""
    share_of_thinking: float | None
    """`decoded_tokens` as a share of thinking tokens; None if there was no thinking."""

    def __str__(self) -> str:
        share = "" if self.share_of_thinking is None else f", {self.share_of_thinking:.0%} of its"
        return (
            f"about {self.probes:.1f} probes a question, {self.decoded_tokens:.0f} decoded tokens"
            f"{share and share + ' thinking'}"
        )


def expected_cost(
    plan: ProbePlan, traces: Sequence[RawTrace], answer_tokens: float
) -> ProbeCost | None:
    """Estimate the tokens that a plan's probes will decode; None if it has no positions yet.

    `answer_tokens` is the mean length of a forced answer.
    """
    if not plan.budgets and not plan.markers:
        return None
    counts, decoded = [], []
    for trace in traces:
        length = trace.trace_tokens
        # Budgets at or past the end share one probe.
        places = {min(at, length) for at in trace_positions(plan, trace.thinking_ids).probed}
        live = sum(at < length for at in places)
        visible = live * trace.natural_tokens if plan.on_stop == "answer" else 0
        counts.append(len(places))
        decoded.append(len(places) * answer_tokens + visible)
    thinking = float(np.mean([trace.trace_tokens for trace in traces]))
    tokens = float(np.mean(decoded))
    return ProbeCost(float(np.mean(counts)), tokens, tokens / thinking if thinking else None)
