"""`stopadvisor profile-serving`: what thinking, probes and tokens cost in seconds here.

Writes the serving profile by which costs are counted in seconds, beside tokens and money.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import click
import numpy as np

from stopadvisor.cli.model import CHAT_TEMPLATE, DEFAULT_MODEL, model_options
from stopadvisor.cli.options import COUNT, OUTPUT, PATH, OutputOptions, Parsed, declare, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.collection.collect import make_prompts
from stopadvisor.collection.pilot import CAP_STEP, PILOT_QUANTILE
from stopadvisor.collection.progress import Progress
from stopadvisor.constants import CUES, PROBE_CAP
from stopadvisor.errors import WorkloadError
from stopadvisor.policy.requests import Request
from stopadvisor.probes.plan import ProbePlan
from stopadvisor.report.text.screen import Screen
from stopadvisor.rules.serving_profile import ServingProfile
from stopadvisor.runs.storage import check_writable, write_json_atomically
from stopadvisor.workload.questions import Question, content_key, read_workload

__all__ = ["ProfileOptions", "command", "profile", "run"]

_LONGEST_PREFIX = 1024
"""Tokens of the longer prefix by which tokens are measured, where the context holds so many."""


@dataclass(frozen=True)
class ProfileOptions:
    """What to measure."""

    model: str = DEFAULT_MODEL
    batches: tuple[int, ...] = (1, 8)
    checkpoints: tuple[int, ...] = (4, 7, 10)
    questions: int = 16
    workload: Path | None = None
    """None: sums of our own."""
    out: Path = Path("profile.json")
    cap: int = PROBE_CAP
    max_think: int = ProbePlan.max_think
    device: str = "auto"
    dtype: str = "auto"
    think_open: str | None = None
    think_close: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    output: OutputOptions = field(default_factory=OutputOptions)


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise ValueError("expected whole numbers >= 1 such as 1,8")
    return tuple(sorted({int(part) for part in parts}))


_COUNTS = Parsed("n,n,...", _counts)


@click.command(
    "profile-serving",
    cls=Command,
    writes="The profile, JSON: --out. `assess --serving-profile` counts in its seconds.",
    examples=[
        "stopadvisor profile-serving --model samples/tiny-reasoner --out profile.json",
        "stopadvisor profile-serving --model Qwen/Qwen3-8B --batch 1,8,32 --device cuda",
    ],
    exit_codes=(0, 1, 2, 130),
)
@model_options(DEFAULT_MODEL, served=False)
@click.option("--batch", "batches", type=_COUNTS, default="1,8", help="Questions at once.")
@click.option(
    "--checkpoints", type=_COUNTS, default="4,7,10", help="Numbers of checkpoints to measure."
)
@click.option(
    "--questions",
    type=COUNT,
    default=ProfileOptions.questions,
    help="Questions to measure with.",
)
@click.option(
    "--workload",
    type=PATH,
    show_default="sums of our own",
    help="Take the questions from here (JSONL, no gold needed).",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=ProfileOptions.out,
    help="The profile's file (JSON).",
)
@click.option(
    "--cap",
    type=COUNT,
    default=ProfileOptions.cap,
    help="Most tokens of a forced answer.",
)
@click.option(
    "--max-think",
    type=COUNT,
    default=ProfileOptions.max_think,
    help="Cut thinking here, or earlier where the context leaves less.",
)
@declare(CHAT_TEMPLATE, *OUTPUT)
def command(**params: Any) -> int:
    """Measure seconds and memory per question with probes, and seconds per token.

    Nothing is stopped: each question thinks to its own end and is probed on the way.
    """
    output = take(OutputOptions, params)
    return run(ProfileOptions(output=output, **params), sys.stdout, sys.stderr)


def run(options: ProfileOptions, out: TextIO, err: TextIO) -> int:
    """Measure, write and show."""
    check_writable(options.out.parent)
    with progress_on(err, quiet=options.output.quiet) as progress:
        measured = profile(options, progress)
    document = measured.to_dict()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomically(options.out, document)
    if options.output.json:
        print(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1), file=out)
    else:
        _show(measured, options.out, out)
    return 0


def profile(options: ProfileOptions, progress: Progress) -> ServingProfile:
    """Measure a model on this machine.

    Raises
    ------
    ModelError
        The model cannot be used here.
    WorkloadError
        The workload cannot be used, or holds fewer questions than a batch.
    """
    questions = _questions(options)
    from stopadvisor.engines import hf

    engine = hf.load_engine(
        options.model,
        device=options.device,
        dtype=options.dtype,
        think_open=options.think_open,
        think_close=options.think_close,
        chat_template_kwargs=options.chat_template_kwargs,
    )
    from stopadvisor.engines.hf.measure import (
        device_name,
        measure_questions,
        measure_tokens,
        spread_budgets,
    )

    prompts = make_prompts(questions, None)
    requests = [Request(p, q.task) for p, q in zip(prompts, questions, strict=True)]
    plan = ProbePlan((), cue=CUES["terse"], cap=options.cap, max_think=options.max_think)
    room = engine.longest_thinking(prompts, plan)
    if room is not None and room < plan.max_think:
        plan = replace(plan, max_think=room - room % CAP_STEP or room)
        progress.remark(f"max-think: {plan.max_think} tokens, which is what the context leaves")

    # Where the checkpoints lie follows from how long this model thinks; it warms up as well.
    progress.begin("thinking", len(requests))
    largest = min(max(options.batches), len(requests))
    lengths = []
    for start in range(0, len(prompts), largest):
        traces = engine.probe(prompts[start : start + largest], plan)
        lengths += [trace.trace_tokens for trace in traces]
        progress.advance(len(traces), sum(trace.trace_tokens for trace in traces))
    last = int(np.quantile(lengths, PILOT_QUANTILE))
    schedules = {count: spread_budgets(count, last) for count in options.checkpoints}

    total = len(options.batches) * (len(schedules) + 1) * len(requests)
    progress.begin("measuring", total)
    rows = measure_questions(
        engine,
        requests,
        plan,
        {0: (), **schedules},
        options.batches,
        lambda replies: progress.advance(len(replies), sum(r.decoded_tokens for r in replies)),
    )
    longest = min(_LONGEST_PREFIX, (engine.context or 2 * _LONGEST_PREFIX) // 2)
    progress.remark("measuring seconds per token")
    seconds = measure_tokens(engine, longest // 2, max(options.batches))
    identity = engine.identity()
    return ServingProfile(
        model=engine.name,
        engine=f"hf {identity['engine_version']}",
        device=device_name(engine),
        per_token_seconds=seconds,
        rows=tuple(rows),
        settings={
            "dtype": identity["dtype"],
            "torch": identity["torch"],
            "questions": len(requests),
            "workload": None if options.workload is None else str(options.workload),
            "mean_trace_tokens": float(np.mean(lengths)),
            "max_think": plan.max_think,
            "cap": plan.cap,
            "schedules": {str(count): list(schedules[count]) for count in sorted(schedules)},
            "per_token": {"prefix": longest // 2, "batch": max(options.batches)},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )


def _questions(options: ProfileOptions) -> Sequence[Question]:
    if options.workload is None:
        texts = [_sum(i) for i in range(options.questions)]
        found = []
        for i, text in enumerate(texts):
            messages = ({"role": "user", "content": text},)
            found.append(Question(f"sum-{i}", content_key(messages), messages, None, "numeric"))
    else:
        workload = read_workload(options.workload, require_gold=False, default_task="exact")
        found = list(workload.questions[: options.questions])
    if len(found) < max(options.batches):
        raise WorkloadError(
            f"--batch {max(options.batches)} needs at least as many questions, got {len(found)}: "
            "raise --questions, or name a larger --workload"
        )
    return found


def _sum(i: int) -> str:
    """A sum with as many terms as its number calls for: 3 to 8."""
    terms = [11 + (37 * (i + 1) * (k + 1)) % 83 for k in range(3 + i % 6)]
    return f"Compute {' + '.join(map(str, terms))} modulo 100."


def _show(measured: ServingProfile, path: Path, out: TextIO) -> None:
    screen = Screen(out)
    screen.headline(f"{measured.model} on {measured.device}")
    seconds = measured.per_token_seconds
    screen.facts(
        [
            ("prefilled", f"{1e6 * seconds.prefilled:.2f} µs per token"),
            ("cached", f"{1e6 * seconds.cached:.3f} µs per token that a probe reads"),
            ("decoded", f"{1e6 * seconds.decoded:.1f} µs per token"),
            ("profile", str(path)),
        ]
    )
    screen.table(
        "Per question, probes included; nothing is stopped",
        ["batch", "checkpoints", "seconds", "std", "peak memory"],
        [
            (
                str(row.batch),
                str(row.checkpoints) if row.checkpoints else "none",
                f"{row.seconds_per_question:.3g}",
                "-" if row.std is None else f"{row.std:.2g}",
                f"{row.peak_memory_gb:.2f} GB",
            )
            for row in measured.rows
        ],
        left=0,
    )
    screen.command(f"stopadvisor assess RUN --serving-profile {path}")
