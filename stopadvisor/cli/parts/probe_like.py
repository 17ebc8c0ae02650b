"""`probe --like POLICY`: probe the way a policy was probed, so that the two can be compared.

`verify` and `calibrate --from` need probes where the policy's own trigger takes them, under its cap
and cue; here all that is taken out of the policy.  Knows no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from stopadvisor.answers.function_grader import BY_GOLD, described, open_graders
from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import MIXED_TASKS, Policy, load_policy
from stopadvisor.policy.requests import policy_plan
from stopadvisor.probes.positions import at_trigger

__all__ = ["like_policy", "like_remark"]

_OF_PLAN = (
    "budgets", "cue", "cap", "max_think", "answer_cap", "entropy",
    "schedule", "every", "min_gap", "max_markers",
)  # fmt: skip
_OF_TRIGGER = ("max_probes", "fill")
"""Fields of the plan that no option sets."""


def like_policy(
    ctx: click.Context, params: Mapping[str, Any], path: Path, *, quiet: bool
) -> dict[str, Any]:
    """Parameters of `probe` with what the policy says about probing.

    The seed stays, so that fresh questions get a split of their own.

    Raises
    ------
    PolicyError
        The file is refused, never stops, or comes from an archive.
    click.UsageError
        The command line asks for something else than the policy.
    """
    policy = load_policy(path)
    if policy.kind != "stop":
        raise PolicyError(f"{path}: a full-budget policy asks for no probe")
    terms = policy.terms
    plan = policy_plan(policy, at_server=params["engine"] == "openai")
    plan = at_trigger(plan, policy.trigger)
    wanted = {name: getattr(plan, name) for name in _OF_PLAN} | {
        "temperature": 0.0 if plan.greedy else plan.temperature,
        "on_stop": terms.on_stop,
        "chat_template_kwargs": terms.chat_template_kwargs,
        "model": None if terms.model is None else terms.model.name,
    }
    if isinstance(terms.prompt_template, str):
        wanted["prompt_template"] = terms.prompt_template
    # In the policy's own tokens, whatever the words.
    of_trigger = {name: getattr(plan, name) for name in _OF_TRIGGER} | {"marker_ids": plan.markers}
    if params["markers"] is not None:
        raise click.UsageError("--like and --markers exclude each other")
    sources = {name: ctx.get_parameter_source(name) for name in wanted}
    if sources["model"] != ParameterSource.DEFAULT:
        del wanted["model"]  # a folder or a server's name; `verify` compares the content
    if sources["entropy"] == ParameterSource.COMMANDLINE and not policy.reads_logprobs:
        del wanted["entropy"]  # the policy decides the same under any
    for name, value in wanted.items():
        if sources[name] == ParameterSource.COMMANDLINE and params[name] != value:
            raise click.UsageError(
                f"--like brings --{name.replace('_', '-')} {_as_option(value)}, got "
                f"{_as_option(params[name])}"
            )
    wanted["of_policy"] = "model" in wanted
    _check_grader(policy, params, quiet=quiet)
    own = policy.terms.task
    of_task = {} if own == MIXED_TASKS else {"assumed_task": own}
    return {**params, **wanted, **of_trigger, **of_task}


def _check_grader(policy: Policy, params: Mapping[str, Any], *, quiet: bool) -> None:
    """Ask for the policy's own grader; a function runs code, so the command line must name it."""
    ours = policy.terms.grading
    if "grader_sha256" in ours and params["grader"] is None:
        raise click.UsageError(
            f"the policy's questions were graded by {described(ours)}: name it with --grader, "
            "because its code is run"
        )
    if "grader_sha256" not in ours and params["grader"] in (None, BY_GOLD):
        return
    with open_graders(params["grader"]) as graders:
        mine = graders.right.identity
    wanted = ours["grader"] if "grader_sha256" in ours else BY_GOLD
    if mine["grader"] != wanted:
        raise click.UsageError(f"--like brings --grader {wanted}, got {mine['grader']}")
    if mine != ours and not quiet:
        click.echo(
            f"note: {described(mine)} grades, the policy's questions were graded by "
            f"{described(ours)}",
            err=True,
        )


def like_remark(path: Path, *, traces: bool) -> str | None:
    """What to know where thinking was recorded on one side alone; None where it was not."""
    sampling = load_policy(path).terms.sampling
    there = sampling is not None and sampling.recorded is not None
    if there == traces:
        return None
    here = "recorded" if traces else "drawn"
    return (
        f"the policy's thinking was {'recorded' if there else 'drawn'}, here it is {here}: nothing "
        "shows that it was sampled alike"
    )


def _as_option(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
