"""Opening a ladder's rungs: which options go with `--ladder`, servers, and models loaded here.

Makes values of what was parsed, and opens; asking is `engines.openai.rungs`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stopadvisor.cli.parts.declare import PATH, is_given, option
from stopadvisor.cli.parts.model import EngineSettings, open_engine
from stopadvisor.collection.probe_settings import ProbeSettings
from stopadvisor.collection.probe_summary import ProbeSummary
from stopadvisor.ground.progress import Progress
from stopadvisor.runs.ladder import Ladder, read_ladder

if TYPE_CHECKING:
    from stopadvisor.engines.openai.rungs import AskedRungs

__all__ = ["RECORDED_LADDER", "check_recording", "how_to_open", "recorded"]

_AT_ONCE = 32
"""Requests to each server of a ladder, where nobody says how many."""
_AT_ONCE_HERE = 256
"""Where all models run here, and decode in batches."""
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


@contextmanager
def how_to_open(options: EngineSettings, ladder: Ladder) -> Iterator[dict[str, Any]]:
    """Load the models of rungs that run here; what to open the ladder's rungs with."""
    with ExitStack() as opened:
        here = [rung for rung in ladder.rungs if rung.engine == "hf"]
        how: dict[str, Any] = {
            "concurrency": options.concurrency
            or (_AT_ONCE_HERE if len(here) == len(ladder.rungs) else _AT_ONCE),
            "request_timeout": options.request_timeout,
            "patience": options.patience,
        }
        if here:
            from stopadvisor.engines.hf.local_rungs import LocalModels

            engines: dict[str, Any] = {}
            for rung in here:
                arguments = rung.chat_template_kwargs or {}
                own = replace(
                    options, model=rung.model, engine="hf", chat_template_kwargs=arguments
                )
                engines[rung.name] = opened.enter_context(open_engine(own))
            how["local"] = LocalModels(engines, options.concurrency)
        yield how


def recorded(
    settings: ProbeSettings,
    options: EngineSettings,
    file: Path,
    progress: Progress,
    *,
    whole: bool = False,
) -> ProbeSummary:
    """Record what is missing of a workload's replies; as `rung_recording.record_replies`."""
    from stopadvisor.collection.rung_recording import record_replies

    ladder = read_ladder(file)

    @contextmanager
    def opened() -> Iterator[AskedRungs]:
        from stopadvisor.engines.openai.rungs import open_rungs

        with how_to_open(options, ladder) as how, open_rungs(ladder, **how) as rungs:
            yield rungs

    return record_replies(settings, ladder, opened, progress, whole=whole)
