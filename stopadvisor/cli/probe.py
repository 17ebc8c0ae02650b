"""`stopadvisor probe`: collect the probes of a workload into a run directory.

It prints no outcome of any question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from stopadvisor.answers.grading import BY_GOLD, described, open_graders
from stopadvisor.cli.parts.command import Command
from stopadvisor.cli.parts.declare import PATH, WORKLOAD, Printed, pop_settings
from stopadvisor.cli.parts.probing import probe_options, take_probing
from stopadvisor.collection.probing import probe
from stopadvisor.engines.engine_settings import EngineSettings
from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.frozen import MIXED_TASKS, Policy, load_policy
from stopadvisor.policy.requests import policy_plan
from stopadvisor.probes.trigger import at_trigger
from stopadvisor.report.sheets.files import probe_sheet
from stopadvisor.report.words import shell_quote
from stopadvisor.runs.sources import model_as_given

__all__ = ["command"]


@click.command(
    "probe",
    cls=Command,
    reads=WORKLOAD,
    writes="A run directory (--out, else one under runs/): manifest.json, which says how it was "
    "probed, probes.jsonl, which gets a line for each question of a finished batch, and "
    "preflight.json.",
    examples=[
        "stopadvisor probe samples/hard.jsonl --model samples/tiny-reasoner",
        "stopadvisor probe my.jsonl --model Qwen/Qwen3-8B --budgets 0,512,1024,2048",
        "stopadvisor probe my.jsonl --model Qwen/Qwen3-8B --schedule marker",
        "stopadvisor probe fresh.jsonl --like policy.joblib",
        "stopadvisor probe my.jsonl --ladder ladder.toml",
    ],
    exit_codes=(0, 1, 2, 5, 130),
)
@click.argument("workload", type=PATH)
@click.option(
    "--like",
    metavar="POLICY",
    type=PATH,
    help="Probe as POLICY was probed: its budgets, caps, cue, sampling, entropy and template.",
)
@probe_options
def command(progress: Progress, workload: Path, like: Path | None, **params: Any) -> Printed:
    """Collect forced answers along the thinking of each question in WORKLOAD (JSONL).

    Continues where an earlier call stopped: finished questions are not asked again.  With --ladder
    every rung is asked for a whole reply instead, and nothing is forced.
    """
    recorded = False
    if like is not None:
        policy = load_policy(like)
        sampling = policy.terms.sampling
        recorded = sampling is not None and sampling.recorded is not None
        params = like_policy(params, policy, like, progress)
    settings = take_probing(params, workload, like_policy=like is not None)
    engine = pop_settings(EngineSettings, params)
    traces = settings.traces is not None
    if like is not None and traces != recorded:
        there, here = ("recorded" if known else "drawn" for known in (recorded, traces))
        progress.remark(
            f"the policy's thinking was {there}, here it is {here}: nothing shows that both were "
            "sampled alike"
        )
    summary = probe(settings, replace(engine, remark=progress.remark), progress)
    step = "assess" if like is None else f"verify {shell_quote(like)}"
    return Printed(summary, probe_sheet(summary), then=f"{step} {shell_quote(summary.run)}")


# --- Like a policy --------------------------------------------------------------------------------

_PLAN_FIELDS = (
    "budgets", "cue", "cap", "max_think", "answer_cap", "entropy",
    "schedule", "every", "min_gap", "max_markers",
)  # fmt: skip


def like_policy(
    params: Mapping[str, Any], policy: Policy, path: Path, progress: Progress
) -> dict[str, Any]:
    """Replace the parameters of `probe` by those of a policy.

    The seed is not replaced: fresh questions get their own split.

    Raises
    ------
    PolicyError
        The policy never stops, or comes from an archive.
    click.UsageError
        The command line contradicts the policy.
    """
    if policy.kind != "stop":
        raise PolicyError(f"{path}: a full-budget policy needs no probes")
    terms = policy.terms
    plan = policy_plan(policy, at_server=params["engine"] == "openai")
    plan = at_trigger(plan, policy.trigger)
    wanted = {name: getattr(plan, name) for name in _PLAN_FIELDS} | {
        "temperature": 0.0 if plan.greedy else plan.temperature,
        "on_stop": terms.on_stop,
        "chat_template_kwargs": terms.chat_template_kwargs,
        "model": None if terms.model is None else terms.model.name,
    }
    if terms.model is not None and params["engine"] != "openai":
        wanted["model"] = model_as_given(path.parent, terms.model.name)
    if isinstance(terms.prompt_template, str):
        wanted["prompt_template"] = terms.prompt_template
    # Markers as token ids of the policy; `--markers` takes words.
    trigger_fields = {"max_probes": plan.max_probes, "marker_ids": plan.markers}
    if params["markers"] is not None:
        raise click.UsageError("--like and --markers cannot be combined")
    ctx = click.get_current_context()
    sources = {name: ctx.get_parameter_source(name) for name in wanted}
    if sources["model"] != ParameterSource.DEFAULT:
        del wanted["model"]  # it may have another name here; `verify` compares the content
    if sources["entropy"] == ParameterSource.COMMANDLINE and not policy.reads_logprobs:
        del wanted["entropy"]  # it does not change the policy's decisions
    for name, value in wanted.items():
        if sources[name] == ParameterSource.COMMANDLINE and params[name] != value:
            brought, got = (
                ",".join(map(str, side)) if isinstance(side, tuple) else side
                for side in (value, params[name])
            )
            option = name.replace("_", "-")
            raise click.UsageError(f"--like sets --{option} {brought}, got {got}")
    wanted["of_policy"] = "model" in wanted
    _check_grader(policy, params, progress)
    task = policy.terms.task
    task_fields = {} if task == MIXED_TASKS else {"assumed_task": task}
    return {**params, **wanted, **trigger_fields, **task_fields}


def _check_grader(policy: Policy, params: Mapping[str, Any], progress: Progress) -> None:
    """Require the policy's grader; a function runs code, so the command line must name it."""
    theirs = policy.terms.grading
    is_function = "grader_sha256" in theirs
    if is_function and params["grader"] is None:
        raise click.UsageError(
            f"the policy's questions were graded by {described(theirs)}: name it with --grader, "
            "because grading runs its code"
        )
    if not is_function and params["grader"] in (None, BY_GOLD):
        return
    with open_graders(params["grader"]) as graders:
        ours = graders.right.identity
    wanted = theirs["grader"] if is_function else BY_GOLD
    if ours["grader"] != wanted:
        raise click.UsageError(f"--like sets --grader {wanted}, got {ours['grader']}")
    if ours != theirs:
        progress.remark(
            f"note: {described(ours)} grades here, {described(theirs)} graded the policy's "
            "questions"
        )
