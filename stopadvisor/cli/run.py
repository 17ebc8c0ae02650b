"""`stopadvisor run`: answer questions, each thinking only as long as a frozen policy lets it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from stopadvisor.cli.parts.command import Command, typed_again
from stopadvisor.cli.parts.declare import (
    COUNT,
    FILE,
    PATH,
    SIGNATURE,
    WORKLOAD,
    Printed,
    declare,
    grader_option,
    option,
    pop_settings,
    printed,
)
from stopadvisor.cli.parts.model import SERVER, check_engine_options, model_options
from stopadvisor.engines.engine_settings import EngineSettings, open_engine, open_ladder
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.frozen import Policy, load_policy
from stopadvisor.policy.run_policies import newest_policy
from stopadvisor.policy.rung_policies import read_rungs
from stopadvisor.policy.shown import server_words
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.report.sheets.run import run_sheet
from stopadvisor.runs.sources import model_as_given
from stopadvisor.serving.answering import Answering, AnswerSettings, answer_workload

__all__ = ["command"]


@click.command(
    "run",
    cls=Command,
    reads=f"POLICY, and {WORKLOAD}",
    writes="The answers, JSONL: --out gets a line as soon as a question is answered.",
    examples=[
        "stopadvisor run my.jsonl",
        "stopadvisor run policy.joblib questions.jsonl --model samples/tiny-reasoner",
        "stopadvisor run policy.joblib my.jsonl --compare-full --limit 100",
    ],
    exit_codes=(0, 1, 2, 130),
)
@click.argument("files", metavar="[POLICY] WORKLOAD", nargs=-1, required=True, type=PATH)
@model_options(None, "as the policy names it")
@click.option(
    "--ladder",
    metavar="LADDER.TOML",
    type=PATH,
    help="For a policy that climbs: the rungs with their servers.",
)
@click.option(
    "--out",
    type=FILE,
    help="The answers' file; by default one under runs/, named for workload and policy.",
)
@click.option(
    "--compare-full",
    is_flag=True,
    help="Also answer the questions without stopping, to measure what stopping saves.",
)
@click.option(
    "--on-stop",
    type=click.Choice(["probe", "answer"]),
    show_default="the policy's",
    help="Reply of a stopped question: the forced answer, or a visible one written after it.",
)
@click.option("--limit", type=COUNT, help="Only the first N questions.")
@option("Model")(
    "--answer-cap",
    type=COUNT,
    show_default=f"the certified one, or {ProbePlan.answer_cap}",
    help="Longest visible answer, in tokens.",
)
@SIGNATURE
@grader_option(click.option)
@declare(*SERVER)
@printed
def command(progress: Progress, files: tuple[Path, ...], **params: Any) -> Printed:
    """Answer the questions of WORKLOAD (JSONL, no gold needed), stopping as POLICY says.

    Without POLICY: the policy in use of the run calibrated last under runs/.  Prompt, sampling,
    caps and cue are the policy's.  Continues where an earlier call stopped.  A policy that climbs
    asks the rungs that LADDER.TOML names, a chat completion each; a rung before the reference
    that is down, or whose reply is cut, is skipped.
    """
    if len(files) > 2:
        raise click.UsageError(f"expected [POLICY] WORKLOAD, got {len(files)} files")
    *named, workload = files
    if params["ladder"] is None:  # else patience and concurrency are for the servers of the ladder
        check_engine_options(params)
    model = pop_settings(EngineSettings, params)
    ladder = model.ladder
    policy = named[0] if named else newest_policy()
    batch_size = None if model.at_server or ladder is not None else model.concurrency
    settings = AnswerSettings(policy, workload, batch_size=batch_size, **params)
    if not named:
        progress.remark(f"following {policy}, the policy written last")
    opened = partial(_open, replace(model, remark=progress.remark), policy.parent)
    summary = answer_workload(settings, opened, progress)
    # For the next command, `serve`: the servers that answered, or the model for vLLM.
    server: tuple[str, ...] = ("--upstream", *model.base_url[:1])
    if ladder is not None:
        local = any(rung.engine == "hf" for rung in read_rungs(ladder).rungs)
        server = () if local else ("--ladder", str(ladder))
    elif not model.at_server:
        name = model.model or model_as_given(policy.parent, summary.model)
        server = server_words(load_policy(policy).terms, name) or ("--", name)
    sheet = run_sheet(summary, given=typed_again("out", "compare_full"), server=server)
    return Printed(replace(summary, headline=sheet.headline), sheet)


@contextmanager
def _open(options: EngineSettings, folder: Path, policy: Policy) -> Iterator[Answering]:
    """Open the model of a policy in `folder`, or the servers of its ladder, asked as calibrated."""
    terms = policy.terms
    if options.ladder is not None:
        from stopadvisor.engines.openai.climbing import LadderEngine

        with open_ladder(options, policy) as servers:
            yield LadderEngine(policy, servers)
        return
    if policy.ladder:
        raise click.UsageError("this policy climbs a ladder: name its servers by --ladder")
    assert terms.model is not None  # checked with the plan
    if options.model is None:
        name = terms.model.name  # a server goes by it, whatever folder it was loaded from
        name = name if options.at_server else model_as_given(folder, name)
        options = replace(options, model=name, of_policy=True)
    with open_engine(replace(options, chat_template_kwargs=terms.chat_template_kwargs)) as engine:
        yield engine
