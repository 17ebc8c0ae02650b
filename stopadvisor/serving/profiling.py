"""Measuring what thinking, probes and tokens cost in seconds with a model that is loaded here.

Nothing is stopped: each question thinks to its own end and is probed on the way.  Knows no command
line and writes no file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stopadvisor.collection.collect import make_prompts
from stopadvisor.collection.pilot import PILOT_QUANTILE, thinking_cap
from stopadvisor.constants import CUES, PROBE_CAP
from stopadvisor.errors import WorkloadError
from stopadvisor.policy.requests import Request
from stopadvisor.probes.plan import ProbePlan
from stopadvisor.progress import Progress
from stopadvisor.rules.cost_fit import fit_costs
from stopadvisor.rules.serving_profile import ServingProfile
from stopadvisor.workload.questions import Question, content_key, read_workload

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

__all__ = ["ProfileSettings", "find_questions", "profile"]

_LONGEST_PREFIX = 1024
"""Tokens of the longer prefix by which tokens are measured, where the context has room."""


@dataclass(frozen=True)
class ProfileSettings:
    """What to measure."""

    batches: tuple[int, ...] = (1, 8)
    checkpoints: tuple[int, ...] = (4, 7, 10)
    questions: int | None = 16
    """None: as many as the workload has."""
    workload: Path | None = None
    """None: sums of our own."""
    cap: int = PROBE_CAP
    max_think: int = ProbePlan.max_think


def profile(
    settings: ProfileSettings,
    open_engine: Callable[[], AbstractContextManager[HfEngine]],
    progress: Progress,
) -> ServingProfile:
    """Measure a model on this machine.

    `open_engine` loads it, after the questions were found to do.

    Raises
    ------
    ModelError
        The model cannot be used here.
    WorkloadError
        The workload cannot be used, or holds fewer questions than a batch.
    """
    questions = find_questions(settings)
    with open_engine() as engine:
        return _measure(engine, questions, settings, progress)


def _measure(
    engine: HfEngine, questions: Sequence[Question], settings: ProfileSettings, progress: Progress
) -> ServingProfile:
    from stopadvisor.engines.hf.measure import (
        device_name,
        measure_questions,
        measure_tokens,
        spread_budgets,
    )

    prompts = make_prompts(questions, None)
    requests = [Request(p, q.task) for p, q in zip(prompts, questions, strict=True)]
    plan = ProbePlan((), cue=CUES["terse"], cap=settings.cap, max_think=settings.max_think)
    cap = thinking_cap(engine, questions, plan, auto=True)
    if cap < plan.max_think:
        plan = replace(plan, max_think=cap)
        progress.remark(f"max-think: {cap} tokens, which is what the context leaves")

    # Where the checkpoints lie follows from how long this model thinks; it warms up as well.
    progress.begin("thinking", len(requests))
    largest = min(max(settings.batches), len(requests))
    lengths = []
    for start in range(0, len(prompts), largest):
        traces = engine.probe(prompts[start : start + largest], plan)
        lengths += [trace.trace_tokens for trace in traces]
        progress.advance(len(traces), sum(trace.trace_tokens for trace in traces))
    last = int(np.quantile(lengths, PILOT_QUANTILE))
    schedules = {count: spread_budgets(count, last) for count in settings.checkpoints}

    total = len(settings.batches) * (len(schedules) + 1) * len(requests)
    progress.begin("measuring", total)
    rows = measure_questions(
        engine,
        requests,
        plan,
        {0: (), **schedules},
        settings.batches,
        lambda replies: progress.advance(len(replies), sum(r.decoded_tokens for r in replies)),
    )
    longest = min(_LONGEST_PREFIX, (engine.context or 2 * _LONGEST_PREFIX) // 2)
    progress.remark("measuring seconds per token")
    fit = fit_costs(measure_tokens(engine, longest // 2, settings.batches))
    identity = engine.identity()
    return ServingProfile.of_fit(
        fit,
        model=engine.name,
        engine=f"hf {identity['engine_version']}",
        device=device_name(engine),
        rows=tuple(rows),
        settings={
            "dtype": identity["dtype"],
            "torch": identity["torch"],
            "questions": len(requests),
            "workload": None if settings.workload is None else str(settings.workload),
            "mean_trace_tokens": float(np.mean(lengths)),
            "max_think": plan.max_think,
            "cap": plan.cap,
            "schedules": {str(count): list(schedules[count]) for count in sorted(schedules)},
            "per_token": {"prefix": longest // 2, "batches": list(settings.batches)},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )


def find_questions(settings: ProfileSettings) -> Sequence[Question]:
    """Return the questions to measure with.

    Raises
    ------
    WorkloadError
        The workload cannot be used, or holds fewer questions than a batch.
    """
    if settings.workload is None:
        texts = [_sum(i) for i in range(settings.questions or 16)]
        found = []
        for i, text in enumerate(texts):
            messages = ({"role": "user", "content": text},)
            found.append(Question(f"sum-{i}", content_key(messages), messages, None, "numeric"))
    else:
        workload = read_workload(settings.workload, default_task="exact")
        found = list(workload.questions[: settings.questions])
    if len(found) < max(settings.batches):
        raise WorkloadError(
            f"--batch {max(settings.batches)} needs at least as many questions, got {len(found)}: "
            "raise --questions, or name a larger --workload"
        )
    return found


def _sum(i: int) -> str:
    """A sum with as many terms as its number calls for: 3 to 8."""
    terms = [11 + (37 * (i + 1) * (k + 1)) % 83 for k in range(3 + i % 6)]
    return f"Compute {' + '.join(map(str, terms))} modulo 100."
