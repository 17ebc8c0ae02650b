"""`--ladder` of commands that record, and the options that do not go with it."""

from __future__ import annotations

import click

from stopadvisor.cli.parts.declare import PATH, is_given, option

__all__ = ["RECORDED_LADDER", "check_recording"]

_OF_TRACES = (
    *("model", "engine", "base_url", "tokenizer", "api_key_env", "think_tags", "like", "schedule"),
    *("budgets", "every", "markers", "max_think", "cap", "answer_cap", "cue", "on_stop", "entropy"),
    *("temperature", "samples", "traces", "chat_template_kwargs", "regrade"),
)
"""Options that whole replies of several models have no use for, or that stand in ladder.toml."""

RECORDED_LADDER = option("Probing")(
    "--ladder",
    metavar="LADDER.TOML",
    type=PATH,
    help="Ask every rung that this file names for a whole reply, in place of probing one model.",
)


def check_recording() -> None:
    """Refuse options of probing where whole replies are asked for."""
    if strange := [name for name in _OF_TRACES if is_given(name)]:
        names = ", ".join("--" + name.replace("_", "-") for name in strange)
        raise click.UsageError(
            f"--ladder asks for whole replies, as its file says: leave out {names}"
        )
