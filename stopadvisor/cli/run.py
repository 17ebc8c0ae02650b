"""`stopadvisor run`: answer questions, each thinking only as long as a frozen policy lets it.

Questions need no gold.  Every answer is on disk before the next; the same command goes on where it
stopped.  With `--compare-full` the same questions are asked without stopping too, group by group in
turn, so that what else the machine does hits both alike.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from stopadvisor.answers.grading import Grader
from stopadvisor.certification.budgets import check_budgets
from stopadvisor.cli.model import (
    SERVER,
    ModelOptions,
    check_engine_options,
    model_options,
    open_engine,
)
from stopadvisor.cli.options import COUNT, OUTPUT, PATH, OutputOptions, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.errors import EngineError, ModelError
from stopadvisor.policy.frozen import MIXED_TASKS, Policy, load_policy
from stopadvisor.policy.requests import (
    DRAWS,
    Draws,
    OnStop,
    make_requests,
    policy_plan,
)
from stopadvisor.probes.plan import ProbePlan
from stopadvisor.report.documents.run import run_document
from stopadvisor.report.text.run import show_summary
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from stopadvisor.serving.agreement import agree
from stopadvisor.serving.answering import Answering
from stopadvisor.serving.answers import AnswerFile
from stopadvisor.workload.questions import Workload, read_workload

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine
    from stopadvisor.engines.openai.engine import OpenAiEngine

__all__ = ["RunOptions", "command", "run"]


@dataclass(frozen=True)
class RunOptions:
    """Which policy, over which questions, on which model."""

    policy: Path
    workload: Path
    model: ModelOptions = field(default_factory=lambda: ModelOptions(model=None))
    """Its name: None for the one that the policy gives."""
    out: Path | None = None
    """The answers' file; None for one under ``runs/``."""
    compare_full: bool = False
    against: Path | None = None
    """A run with recorded probes of the same questions."""
    on_stop: OnStop | None = None
    """None: the policy's own."""
    batch_size: int | None = None
    """None: what fits, halved when memory runs out."""
    limit: int | None = None
    answer_cap: int | None = None
    """None: the one that was certified, else the default."""
    serving: Draws | None = None
    """None: overlap at a server where the policy was chosen for it."""
    output: OutputOptions = field(default_factory=OutputOptions)

    @property
    def at_server(self) -> bool:
        """Whether a server answers, and not a model that is loaded here."""
        return self.model.at_server


@click.command(
    "run",
    cls=Command,
    reads="POLICY, and WORKLOAD: JSONL with `question`, a question a line; `gold` where "
    "there is any.",
    writes="The answers, JSONL, a line as each question ends: --out, else a file under "
    "runs/ named for workload and policy.",
    examples=[
        "stopadvisor run policy.joblib questions.jsonl --model samples/tiny-reasoner",
        "stopadvisor run policy.joblib my.jsonl --compare-full --limit 100",
    ],
    exit_codes=(0, 1, 2, 130),
)
@click.argument("policy", metavar="POLICY", type=PATH)
@click.argument("workload", metavar="WORKLOAD", type=PATH)
@model_options(None, "as the policy names it")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the answers (JSONL); by default one under runs/, named for workload and policy.",
)
@click.option(
    "--compare-full",
    is_flag=True,
    help="Ask the same questions without stopping too, to measure what stopping saves.",
)
@click.option(
    "--against",
    metavar="RUN",
    type=PATH,
    help="Count the stops that differ from those of RUN's recorded probes.",
)
@click.option(
    "--on-stop",
    type=click.Choice(["probe", "answer"]),
    show_default="the policy's",
    help="Reply of a stopped question: the forced answer, or a visible one written after it.",
)
@click.option(
    "--batch-size",
    type=COUNT,
    show_default="what fits",
    help="Questions at once; places that become free are taken by the next.",
)
@click.option("--limit", type=COUNT, help="Only the first N questions.")
@click.option(
    "--answer-cap",
    type=COUNT,
    show_default=f"the certified one, or {ProbePlan.answer_cap}",
    help="Most tokens of a visible answer.",
)
@click.option(
    "--serving",
    type=click.Choice(DRAWS),
    show_default="overlap if the policy was chosen for it",
    help="At a server: resume thinking after each probe, or let it stream on while one runs.",
)
@declare(*SERVER, *OUTPUT)
def command(policy: Path, workload: Path, **params: Any) -> int:
    """Answer the questions of WORKLOAD (JSONL, no gold needed), stopping as POLICY says.

    Prompt, sampling, caps and cue are the policy's.  Goes on where an earlier call stopped.
    """
    check_engine_options(params)
    model, output = take(ModelOptions, params), take(OutputOptions, params)
    if not model.at_server and params["serving"] is not None:
        raise click.UsageError(f"--serving belongs to --engine openai, got --engine {model.engine}")
    options = RunOptions(policy, workload, model, output=output, **params)
    return run(options, sys.stdout, sys.stderr)


def run(options: RunOptions, out: TextIO, err: TextIO) -> int:
    """Answer and sum up."""
    policy = load_policy(options.policy)
    plan = policy_plan(policy, answer_cap=options.answer_cap)
    task = policy.content["task"]
    workload = read_workload(
        options.workload,
        require_gold=False,
        default_task=None if task == MIXED_TASKS else task,
    )
    make_requests(workload.questions, policy)  # refused before a model is loaded
    recorded = RunDirectory.load(options.against) if options.against else None
    if options.against is not None:
        check_budgets(policy, str(options.policy), open_source(options.against))
    with progress_on(err, quiet=options.output.quiet) as progress, ExitStack() as stack:
        engine = _load(options, policy, stack)
        if options.at_server:
            from stopadvisor.engines.openai.online import server_plan

            plan = server_plan(policy, answer_cap=options.answer_cap)
        remarks = _check(engine, policy, options)
        draws = _draws(engine, policy, options, remarks)
        on_stop: OnStop = options.on_stop or policy.content["on_stop"]
        path = options.out or _default_path(workload, policy)
        setting = _setting(policy, engine.identity(), plan, on_stop, draws)
        with AnswerFile.open(path, setting) as file, Grader() as grader:
            alone = file.uncompared(workload.questions[: options.limit])
            if options.compare_full and alone:
                remarks.append(
                    f"{alone} questions were answered before without full thinking beside them: "
                    "--compare-full leaves them out, another --out asks them again"
                )
            for remark in remarks:
                progress.remark(f"note: {remark}")
            work = Answering(
                policy,
                plan,
                engine,
                on_stop,
                draws,
                file,
                grader,
                progress,
                compare_full=options.compare_full,
                asked_size=options.batch_size,
            )
            try:
                work.go(workload.questions[: options.limit])
            except KeyboardInterrupt:
                progress.remark(
                    f"interrupted: what was answered is kept in {path}; "
                    "the same command goes on from there"
                )
                raise
            except EngineError:
                progress.remark(
                    f"what was answered is kept in {path}; the same command goes on from there"
                )
                raise
            lines = work.answered(workload.questions[: options.limit])
            document = run_document(
                work,
                lines,
                policy_path=options.policy,
                workload_path=workload.path,
                recorded=(recorded.path, agree(policy, lines, recorded)) if recorded else None,
                remarks=remarks,
            )
    emit(document, options.output, out, show_summary)
    return 0


# --- Before the first question --------------------------------------------------------------------


def _load(options: RunOptions, policy: Policy, stack: ExitStack) -> HfEngine | OpenAiEngine:
    """Load the model of a policy, its chat template filled in as at calibration.

    Raises
    ------
    ModelError
        There is no such model, or it cannot be probed here.
    """
    content, asked = policy.content, options.model.model
    name = asked or content["model"]["name"]
    model = replace(options.model, model=name, chat_template_kwargs=content["chat_template_kwargs"])
    try:
        return cast("HfEngine | OpenAiEngine", stack.enter_context(open_engine(model)))
    except ModelError as error:
        if asked is not None or name not in str(error):
            raise
        raise ModelError(f"{error} (the policy names it so; --model says where it is)") from error


def _check(engine: HfEngine | OpenAiEngine, policy: Policy, options: RunOptions) -> list[str]:
    """Hold the policy against the engine; what differs and is allowed becomes remarks."""
    content = policy.content
    entropy: str = content["entropy_source"]  # measured here as the policy wants it
    if options.at_server:
        from stopadvisor.engines.openai.online import entropy_at

        entropy = entropy_at(cast("OpenAiEngine", engine).served_model, policy)
    remarks = policy.check_source(engine.identity(), entropy)
    own = content["on_stop"]
    if options.on_stop not in (None, own) and policy.kind == "stop":
        remarks.append(
            f"--on-stop {options.on_stop}: the certificate does not cover these answers, it was "
            f"shown for on-stop {own}"
        )
    return remarks


def _draws(
    engine: HfEngine | OpenAiEngine, policy: Policy, options: RunOptions, remarks: list[str]
) -> Draws | None:
    """How a server's thinking is drawn; None where the model runs here."""
    if not options.at_server:
        return None
    from stopadvisor.engines.openai.online import choose_draws

    server = cast("OpenAiEngine", engine)
    return server.call(choose_draws, server.served_model, policy, options.serving, remarks)


def _default_path(workload: Workload, policy: Policy) -> Path:
    return Path("runs") / f"{workload.name}-{policy.digest[:8]}.jsonl"


def _setting(
    policy: Policy,
    identity: Mapping[str, Any],
    plan: ProbePlan,
    on_stop: OnStop,
    draws: Draws | None,
) -> str:
    """Name everything that decides the answers and what they cost, in eight digits."""
    decides = [policy.digest, identity, plan.answer_cap, on_stop]
    if draws == "overlap":
        decides.append(draws)
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:8]
