"""Recorded traces held against the plan that they are to be probed under.

A recorded trace stands for one that the model would have drawn under the plan's caps; where it
cannot, it is refused by its place in the file.  Knows no particular engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from stopadvisor.ground.errors import WorkloadError
from stopadvisor.ground.progress import Progress
from stopadvisor.probes.asking import Engine, ProbePlan
from stopadvisor.workload.questions import Question, RecordedTrace

__all__ = ["recorded_cap"]


def recorded_cap(
    engine: Engine,
    questions: Sequence[Question],
    plan: ProbePlan,
    *,
    auto: bool,
    progress: Progress,
) -> int:
    """Say where thinking is cut, such that no recorded thinking was cut before.

    Parameters
    ----------
    questions
        With their traces, or none of them with any.
    auto
        Lower the plan's cap to the shortest thinking that was cut, instead of refusing it.

    Raises
    ------
    WorkloadError
        Thinking holds the model's own closer, or was cut before the cap; the message gives
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
