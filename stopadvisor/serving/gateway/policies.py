"""The gateway's policies at each upstream: loaded, checked, replaced and closed together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from stopadvisor.engines.http.client import Client, StreamTimeouts
from stopadvisor.engines.http.key import ForwardedKey, Key
from stopadvisor.engines.openai.early_exit import PolicyService, bind_policy
from stopadvisor.engines.openai.rung_servers import RungServers
from stopadvisor.engines.openai.served_model import open_client
from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import policy_plan
from stopadvisor.policy.rung_policies import check_rungs
from stopadvisor.runs.ladder import Ladder
from stopadvisor.serving.eligibility import Coverage
from stopadvisor.serving.gateway.pool import Upstream
from stopadvisor.serving.serve_settings import GatewaySettings, check_tasks, load_policies

__all__ = ["Bound", "PolicySet", "ServedPolicy", "entries", "upstream_key"]

_TOKEN_BYTES = 16
"""Upper bound on the average JSON bytes per token of text, in any language."""
_MOST_PROMPT = 4 * 2**20
"""Limit on a prompt's bytes if a server does not report its context length."""

_Service = TypeVar("_Service")


@dataclass(eq=False)
class Bound(Generic[_Service]):
    """A policy at one upstream; once replaced, it closes after its last request."""

    service: _Service
    close: Callable[[], Coroutine[Any, Any, None]]
    _retired: bool = False
    _users: int = 0
    _closing: asyncio.Task[None] | None = None
    """A separate task: the last request's client may disconnect, which cancels its own."""

    @contextmanager
    def used(self) -> Iterator[_Service]:
        """Keep the service open for a request."""
        self._users += 1
        try:
            yield self.service
        finally:
            self._users -= 1
            self._close_idle()

    async def retire(self) -> None:
        """Close the service as soon as no request uses it."""
        self._retired = True
        self._close_idle()
        if self._closing is not None:
            await self._closing

    def _close_idle(self) -> None:
        if self._retired and not self._users and self._closing is None:
            self._closing = asyncio.create_task(self._close_unused())

    async def _close_unused(self) -> None:
        if self._users:  # an audit has just begun, and will close the service when it ends
            self._closing = None
        else:
            await self.close()


@dataclass(eq=False)
class ServedPolicy:
    """One policy and the upstreams it is served at."""

    policy: Policy
    asked_for: str
    """Model name to look up at an upstream."""
    name: str = ""
    """The model's name in the upstreams' lists; empty until one has been opened."""
    coverage: Coverage | None = None
    at: dict[int, Bound[Any]] = field(default_factory=dict)
    """By upstream number: its `PolicyService`, or the `RungServers` that all policies share."""


class PolicySet:
    """All policies in use, one for each served model and task.

    A reload replaces the whole set; requests in flight finish under theirs.
    """

    def __init__(self, policies: tuple[ServedPolicy, ...], settings: GatewaySettings) -> None:
        self.all = policies
        self._settings = settings
        self._entries: dict[str, Any] = {}

    @classmethod
    def load(cls, settings: GatewaySettings) -> PolicySet:
        """Load the policy file, or every policy in the folder.

        Raises
        ------
        PolicyError
            A policy is refused, or two are for the same model and task.
        """
        loaded = load_policies(settings)
        if settings.model is not None and len(loaded) > 1:
            raise PolicyError(f"--model is for one policy, got {len(loaded)}")
        policies: list[ServedPolicy] = []
        by_model: dict[str, list[tuple[Path, Policy]]] = {}
        for file, policy in loaded:
            if settings.ladder is not None:
                check_rungs(policy.terms, settings.ladder)
                name = settings.ladder.reference.model or ""
                coverage = Coverage.of_ladder(policy, any_text=settings.any_text)
                served = ServedPolicy(policy, name, name, coverage)
            else:
                policy_plan(policy, at_server=True)  # refuses policies that no server can follow
                assert policy.terms.model is not None
                name = settings.model or policy.terms.model.name
                served = ServedPolicy(policy, name)
            by_model.setdefault(name, []).append((file, policy))
            policies.append(served)
        for name, named in by_model.items():
            check_tasks(named, name)
        return cls(tuple(policies), settings)

    def of(self, model: Any) -> list[ServedPolicy]:
        """Return the policies for the model in a request."""
        return [served for served in self.all if served.name == model]

    async def open_at(self, upstream: Upstream, *, retry_timeout: float) -> None:
        """Open all models at an upstream and check the policies against them.

        Raises
        ------
        PolicyError, ModelError
            A model is missing, or differs from its policy's.
        Unreachable
            The upstream stays down for longer than `retry_timeout`.
        """
        opened: dict[ServedPolicy, Bound[Any]] = {}
        ladder = self._settings.ladder
        try:
            if ladder is None:
                listed = await self._open_models(upstream, retry_timeout, opened)
            else:
                listed = await self._open_rungs(ladder, opened)
        except BaseException:
            for bound in {*opened.values()}:
                await bound.close()
            raise
        for served, bound in opened.items():
            before = served.at.get(upstream.number)
            served.at[upstream.number] = bound
            if before is not None:
                await before.retire()
        self._entries[upstream.url] = entries(listed, self.names)

    async def _open_models(
        self, upstream: Upstream, retry_timeout: float, opened: dict[ServedPolicy, Bound[Any]]
    ) -> Any:
        """Open the model of each policy into `opened`; return what the upstream lists."""
        for served in self.all:
            opened[served] = bound = await self._open(served, upstream, retry_timeout)
            name = bound.service.model.client.model
            if served.name not in ("", name):
                raise PolicyError(
                    f"all --upstream must be equal servers: the model is {name!r} at "
                    f"{upstream.url}, {served.name!r} elsewhere"
                )
        first = next(iter(opened.values())).service.model.client
        listed = await first.ask("GET", "/models", opening=True)
        for served, bound in opened.items():
            model, plan = bound.service.model, bound.service.plan
            served.name = model.client.model
            served.coverage = Coverage.of(
                served.policy,
                plan,
                names={served.name},
                sampling=model.sampling(plan),
                closer_tokens=len(model.chat.closer.ids),
                any_text=self._settings.any_text,
                context=model.endpoint.context,
            )
        return listed

    async def _open_rungs(self, ladder: Ladder, opened: dict[ServedPolicy, Bound[Any]]) -> Any:
        """Open a ladder's servers; only the reference's must be reachable."""
        limits = self._settings.timeouts
        servers = RungServers(
            ladder,
            concurrency=self._settings.concurrency,
            request_timeout=limits.total,
            rung_timeout=limits.total / len(ladder.rungs),
            patience=0.0,
            forwards=True,
        )
        opened |= dict.fromkeys(self.all, Bound(servers, servers.aclose))
        return await servers.listed(limits.opening)

    @property
    def names(self) -> frozenset[str]:
        """Model names at the upstreams."""
        return frozenset(served.name for served in self.all)

    @property
    def longest_prompt(self) -> int:
        """Generous upper bound on the JSON bytes of a prompt that fits a model's context."""
        services = [bound.service for served in self.all for bound in served.at.values()]
        models = [each.model for each in services if isinstance(each, PolicyService)]
        contexts = [model.endpoint.context or _MOST_PROMPT for model in models]
        return min(_MOST_PROMPT, _TOKEN_BYTES * max(contexts, default=0))

    def same_at(self, upstream: Upstream, listed: Any) -> bool:
        """Whether an upstream lists the models as it did when they were opened."""
        return bool(self._entries.get(upstream.url) == entries(listed, self.names))

    async def retire(self) -> None:
        """Close each policy's connections after its last request; accept no more."""
        for served in self.all:
            services, served.at = served.at, {}
            for bound in services.values():
                await bound.retire()

    async def _open(
        self, served: ServedPolicy, upstream: Upstream, retry_timeout: float
    ) -> Bound[PolicyService]:
        settings, limits = self._settings, self._settings.timeouts
        client = Client(
            [upstream.url],
            served.asked_for,
            key=upstream_key(settings) or ForwardedKey(),
            request_timeout=limits.opening,
            retry_timeout=retry_timeout,
            connect_timeout=limits.connect,
            stream_timeouts=StreamTimeouts(limits.first, limits.between),
        )
        model = await open_client(
            client,
            tokenizer=settings.tokenizer,
            chat_template_kwargs=served.policy.terms.chat_template_kwargs,
        )
        try:
            service = bind_policy(served.policy, model)
        except BaseException:
            await client.aclose()
            raise
        # Retries are for opening only: a failed request goes to another upstream.
        client.request_timeout, client.retry_timeout = limits.total, 0.0
        service.probe_timeout = limits.probe
        return Bound(service, client.aclose)


def upstream_key(settings: GatewaySettings) -> Key | None:
    """Return the API key of all upstreams; None forwards each client's own."""
    variable = settings.api_key_env
    return None if variable is None else Key.of_environment(variable, required=True)


def entries(listed: Any, names: frozenset[str]) -> dict[str, Any]:
    """Return the fields of a ``/models`` reply that identify the named models."""
    data = listed.get("data") if isinstance(listed, Mapping) else None
    return {
        entry["id"]: (entry.get("root"), entry.get("max_model_len"))
        for entry in (data if isinstance(data, list) else ())
        if isinstance(entry, Mapping) and entry.get("id") in names
    }
