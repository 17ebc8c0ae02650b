"""Settle, before the first probe, where thinking is cut and at which budgets to probe.

Both may be left to the model: its context bounds the cap, and the traces of a few fit questions
scale the budgets.  A recorded trace must be one that the model could have drawn under the plan's
caps; else it is refused with its place in the file.  Knows no particular engine, writes no files
and sees no outcome of any question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stopadvisor.collection.collect import ask_all, make_prompts
from stopadvisor.ground.constants import PAPER_BUDGETS
from stopadvisor.ground.errors import ModelError, ProbeError, WorkloadError
from stopadvisor.ground.progress import Progress
from stopadvisor.probes.asking import Engine, ProbePlan, RawTrace, is_open_cue
from stopadvisor.workload.questions import Question, RecordedTrace

__all__ = [
    "EARLY",
    "auto_budgets",
    "auto_stride",
    "cue_ids",
    "draw_pilot",
    "recorded_cap",
    "thinking_cap",
    "trial_plan",
]

PILOT_QUESTIONS = 32
EARLY = 32
"""A position early in the thinking, in tokens; also the small cap that a preflight tries."""
PILOT_QUANTILE = 0.9
STRIDES = 32
"""Probes of an `auto` stride in a trace as long as the pilot's 90th percentile."""
STRIDE_STEP = 16
CAP_STEP = 64
"""An `auto` cap below the plan's is a multiple of this, which leaves room for longer prompts."""


def thinking_cap(
    engine: Engine,
    questions: Sequence[Question],
    plan: ProbePlan,
    *,
    template: str | None = None,
    auto: bool = False,
) -> int:
    """The cap on thinking that the context leaves to every question, the plan's at most.

    `questions` are all that will be asked.  With `auto` a plan's cap that does not fit is lowered
    instead of refused.

    Raises
    ------
    ModelError
        The plan's cap does not fit the context, or its budgets go beyond the cap.
    """
    room = engine.longest_thinking(make_prompts(questions, template), plan)
    cap = plan.max_think
    if room is not None and room < cap:
        lower = room - room % CAP_STEP or room
        if not auto:
            raise ModelError(
                f"--max-think must be at most {room}, got {cap}: the model's context leaves no "
                f"more for thinking after the longest prompt; auto takes {lower}, to leave room "
                "for longer ones"
            )
        cap = lower
    if plan.budgets and plan.budgets[-1] > cap:
        raise ModelError(
            f"--budgets must end at --max-think {cap} or before, got {plan.budgets[-1]}"
        )
    return cap


def cue_ids(engine: Engine, cue: str) -> list[int]:
    """Tokens of the cue, without a closer before it."""
    closer = () if is_open_cue(cue) else engine.identity()["think_close"]["ids"]
    return engine.suffix_ids(cue)[len(closer) :]


def auto_budgets(trace_lengths: Sequence[int]) -> tuple[int, ...]:
    """Scale the paper's grid to a model's own traces.

    The shape is that of `PAPER_BUDGETS`, with the last budget at the 90th percentile of the
    lengths, rounded to whole tokens.  Budgets start at 0 and increase strictly, so there are fewer
    than in the paper if traces are a few tokens long.

    Raises
    ------
    ProbeError
        The model hardly thinks: no budget is above 0.

    Examples
    --------
    >>> auto_budgets([120] * 8)
    (0, 10, 15, 20, 30, 40, 50, 60, 80, 120)
    """
    last = float(np.quantile(trace_lengths, PILOT_QUANTILE)) if len(trace_lengths) else 0.0
    scaled = np.rint(np.array(PAPER_BUDGETS) * (last / PAPER_BUDGETS[-1])).astype(int)
    budgets = tuple(sorted({int(b) for b in scaled}))
    if len(budgets) < 2:
        raise _no_thinking(trace_lengths, last, "--budgets")
    return budgets


def auto_stride(trace_lengths: Sequence[int]) -> int:
    """Choose a stride of about `STRIDES` probes in a long trace.

    Returns
    -------
    int
        The 90th percentile of the lengths over `STRIDES`; rounded to a multiple of 16 from 16 on.

    Examples
    --------
    >>> auto_stride([3000] * 8), auto_stride([120] * 8)
    (96, 4)
    """
    last = float(np.quantile(trace_lengths, PILOT_QUANTILE)) if len(trace_lengths) else 0.0
    if last < 2:
        raise _no_thinking(trace_lengths, last, "--every")
    every = max(1, round(last / STRIDES))
    return every if every < STRIDE_STEP else STRIDE_STEP * round(every / STRIDE_STEP)


def _no_thinking(trace_lengths: Sequence[int], last: float, option: str) -> ProbeError:
    return ProbeError(
        f"the pilot's {len(trace_lengths)} traces must hold thinking to choose budgets from, "
        f"got a 90th percentile of {last:g} tokens; give {option}, or check that thinking "
        "is switched on (--chat-template-kwargs) and --think-tags"
    )


def draw_pilot(
    engine: Engine,
    questions: Sequence[Question],
    plan: ProbePlan,
    *,
    batch_size: int,
    template: str | None,
    progress: Progress,
) -> list[RawTrace]:
    """Draw a few traces, with forced answers at the positions of a preflight.

    `questions` are fit questions; the first 32 are asked.
    """
    asked = make_prompts(questions[:PILOT_QUESTIONS], template)
    progress.begin("pilot", len(asked))
    return ask_all(engine, asked, trial_plan(plan), batch_size=batch_size, progress=progress)


def trial_plan(plan: ProbePlan) -> ProbePlan:
    """Full thinking, probed before it begins, early and at its end."""
    positions = {0, min(EARLY, plan.max_think), plan.max_think}
    # Natural answers already show what visible ones look like.
    return replace(plan.at_budgets(*sorted(positions)), on_stop="probe")


def recorded_cap(
    engine: Engine,
    questions: Sequence[Question],
    plan: ProbePlan,
    *,
    auto: bool,
    progress: Progress,
) -> int:
    """The cap on thinking, such that no recorded thinking was cut before it.

    Parameters
    ----------
    questions
        Either all with recorded traces, or none.
    auto
        Lower the plan's cap to the shortest thinking that was cut, instead of refusing that.

    Raises
    ------
    WorkloadError
        Thinking contains the model's closer, or was cut before the cap; the message gives
        ``FILE:LINE``.
    """
    closer = engine.identity()["think_close"]["text"]
    cap, long_replies = plan.max_think, 0
    shortest: tuple[int, RecordedTrace] | None = None
    for trace in (trace for question in questions for trace in question.traces):
        if closer in trace.thinking:
            raise WorkloadError(
                f"{trace.where}: expected thinking that goes on to its end, got the model's own "
                f"closer {closer!r} inside it"
            )
        if trace.reply is not None:
            long_replies += len(engine.encode(trace.reply)) >= plan.answer_cap
        if trace.reply is not None or trace.ended:
            continue
        length = len(engine.encode(trace.thinking))
        if shortest is None or length < shortest[0]:
            shortest = length, trace
    if long_replies:
        progress.remark(
            f"{long_replies} recorded replies are longer than --answer-cap {plan.answer_cap} and "
            "count up to it, as the model's own would"
        )
    if shortest is not None and shortest[0] < cap:
        length, trace = shortest
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
        cap = length
    return cap
