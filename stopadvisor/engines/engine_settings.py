"""Settings that choose a model and where it runs, and the functions that open it.

Torch or an HTTP client is imported only when a model is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.rung_policies import check_rungs, policy_of, read_rungs

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine
    from stopadvisor.engines.openai.engine import OpenAiEngine
    from stopadvisor.engines.openai.rung_servers import RungServers

__all__ = ["DEFAULT_MODEL", "EngineSettings", "open_engine", "open_ladder", "start_engine"]

DEFAULT_MODEL = "Qwen/Qwen3-8B"
_AT_ONCE = 32
"""Default concurrency per server of a ladder."""
_AT_ONCE_HERE = 256
"""Default if all rungs run in this process and decode in batches."""


@dataclass(frozen=True)
class EngineSettings:
    """Which model, its chat markers, and where it runs."""

    model: str | None = DEFAULT_MODEL
    of_policy: bool = False
    """Whether the model's name comes from a policy rather than the command line."""
    device: str = "auto"
    dtype: str = "auto"
    think_tags: tuple[str, str] | None = None
    """Opener and closer of thinking; detected if None."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "hf"
    base_url: tuple[str, ...] = ()
    tokenizer: str | None = None
    """Folder or Hub name; by default the model's origin as the server reports it, else `model`."""
    concurrency: int | None = None
    """Requests in flight per server; by default the engine decides."""
    api_key_env: str | None = None
    """Environment variable with the API key; by default OPENAI_API_KEY, if set."""
    request_timeout: float = 600.0
    patience: float = 300.0
    remark: Callable[[str], None] | None = field(default=None, compare=False)
    """Called with one line while waiting for a server."""
    ladder: Path | None = None
    """``ladder.toml`` of the rungs that are asked for whole replies; None for one model."""

    @property
    def at_server(self) -> bool:
        """Whether a server runs the model rather than this process."""
        return self.engine == "openai"


def start_engine(options: EngineSettings) -> HfEngine | OpenAiEngine:
    """Load the model into this process, or connect to its server."""
    assert options.model is not None
    chat: dict[str, Any] = {
        "think_tags": options.think_tags,
        "chat_template_kwargs": options.chat_template_kwargs,
    }
    if options.at_server:
        from stopadvisor.engines import openai

        at_once = {} if options.concurrency is None else {"concurrency": options.concurrency}
        return openai.open_servers(
            options.model,
            options.base_url,
            tokenizer=options.tokenizer,
            api_key_env=options.api_key_env,
            request_timeout=options.request_timeout,
            retry_timeout=options.patience,
            on_wait=options.remark,
            **at_once,
            **chat,
        )
    from stopadvisor.engines import hf

    return hf.load_engine(options.model, device=options.device, dtype=options.dtype, **chat)


@contextmanager
def open_engine(options: EngineSettings) -> Iterator[HfEngine | OpenAiEngine]:
    """Open the model for the duration of a ``with`` block."""
    try:
        loaded = start_engine(options)
    except ModelError as error:
        if not options.of_policy or str(options.model) not in str(error):
            raise
        raise ModelError(f"{error} (its name in the policy; --model says where it is)") from error
    with closing(loaded) as engine:
        yield engine


@contextmanager
def open_ladder(options: EngineSettings, policy: Policy | None = None) -> Iterator[RungServers]:
    """Load the rungs that run in this process, and open the servers of the others.

    With the `policy` that climbs it, a cheap rung that is down is climbed past; PolicyError if it
    has another ladder.
    """
    from stopadvisor.engines.openai.rung_servers import open_rungs

    assert options.ladder is not None
    ladder = read_rungs(options.ladder)
    if policy is not None:
        check_rungs(policy.terms, ladder)
    here, models = [rung for rung in ladder.rungs if rung.engine == "hf"], dict[str, Any]()
    how: dict[str, Any] = {"climbs": policy is not None, "on_wait": options.remark}
    with ExitStack() as opened:
        if here:
            from stopadvisor.engines.hf.local_rungs import LocalModels

            for rung in here:
                stops, arguments = policy_of(rung), rung.chat_template_kwargs or {}
                if stops is not None:
                    arguments = stops.terms.chat_template_kwargs
                settings = replace(
                    options, model=rung.model, engine="hf", chat_template_kwargs=arguments
                )
                models[rung.name] = opened.enter_context(open_engine(settings)), stops
            how["local"] = LocalModels(models, options.concurrency).ask
        at_once = _AT_ONCE_HERE if len(here) == len(ladder.rungs) else _AT_ONCE
        how |= {"request_timeout": options.request_timeout, "patience": options.patience}
        yield opened.enter_context(
            open_rungs(ladder, concurrency=options.concurrency or at_once, **how)
        )
