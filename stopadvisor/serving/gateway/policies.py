"""The gateway's policies, and each of them at each upstream.

A set of policies is loaded as a whole and replaced as a whole; requests under way end with the set
they began with.  Knows files and upstreams; no request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stopadvisor.engines.http.client import Client, StreamTimeouts
from stopadvisor.engines.http.key import ForwardedKey, Key
from stopadvisor.engines.openai.early_exit import PolicyService
from stopadvisor.engines.openai.opening import open_client
from stopadvisor.engines.openai.policy_server import bind_policy
from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import policy_plan
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.serving.eligibility import Coverage
from stopadvisor.serving.gateway.gateway_settings import GatewaySettings
from stopadvisor.serving.gateway.pool import Upstream
from stopadvisor.serving.policy_files import check_tasks, load_policies

__all__ = ["Bound", "PolicySet", "ServedPolicy", "entries"]

_TOKEN_BYTES = 16
"""More than a token of text takes on average, in any language, as JSON writes it."""
_MOST_PROMPT = 4 * 2**20
"""Bytes of a prompt where a server does not tell its context."""


@dataclass(eq=False)
class Bound:
    """A policy at one upstream, closed when it was replaced and its last request is over."""

    service: PolicyService
    _users: int = 0
    _retired: bool = False

    @contextmanager
    def used(self) -> Iterator[PolicyService]:
        """Hold it open for a request."""
        self._users += 1
        try:
            yield self.service
        finally:
            self._users -= 1

    @property
    def is_idle(self) -> bool:
        """Whether nothing uses it, and nothing will."""
        return self._retired and not self._users

    def retire(self) -> None:
        """Take no further requests."""
        self._retired = True


@dataclass(eq=False)
class ServedPolicy:
    """One policy, and what it is bound to."""

    policy: Policy
    plan: ProbePlan
    asked_for: str
    """The model's name, as it is looked for at an upstream."""
    name: str = ""
    """The model's name at the upstreams, once one was opened."""
    coverage: Coverage | None = None
    at: dict[int, Bound] = field(default_factory=dict)
    """By the upstream's number."""


class PolicySet:
    """The policies of one load, one for each served model and task."""

    def __init__(self, policies: tuple[ServedPolicy, ...], settings: GatewaySettings) -> None:
        self.all = policies
        self._settings = settings
        self._retired: list[Bound] = []
        self._entries: dict[str, Any] = {}

    @classmethod
    def load(cls, settings: GatewaySettings) -> PolicySet:
        """Read the file, or all policies of the folder.

        Raises
        ------
        PolicyError
            A policy is refused, or two are for the same model and task.
        """
        found = load_policies(settings.policies, settings.require_signature)
        if settings.model is not None and len(found) > 1:
            raise PolicyError(f"--model is for one policy, got {len(found)}")
        policies: list[ServedPolicy] = []
        by_model: dict[str, list[tuple[Path, Policy]]] = {}
        for file, policy in found:
            plan = policy_plan(policy, at_server=True)
            assert policy.terms.model is not None  # or there is no plan
            name = settings.model or policy.terms.model.name
            by_model.setdefault(name, []).append((file, policy))
            policies.append(ServedPolicy(policy, plan, name))
        for name, named in by_model.items():
            check_tasks(named, name)
        return cls(tuple(policies), settings)

    def of(self, model: Any) -> list[ServedPolicy]:
        """Return the policies for a model, by its name at the upstreams."""
        return [p for p in self.all if p.name == model and isinstance(model, str)]

    async def open_at(self, upstream: Upstream, *, retry_timeout: float) -> None:
        """Open all models at an upstream and hold the policies against them.

        Raises
        ------
        PolicyError, ModelError
            A model is not there, or not the one that the policy is for.
        Unreachable
            The upstream is down for longer than `retry_timeout`.
        """
        opened: dict[ServedPolicy, Bound] = {}
        try:
            for served in self.all:
                opened[served] = await self._open(served, upstream, retry_timeout)
            first = next(iter(opened.values())).service.model.client
            listed = await first.ask("GET", "/models", opening=True)
        except BaseException:
            for bound in opened.values():
                await bound.service.model.aclose()
            raise
        for served, bound in opened.items():
            model = bound.service.model
            if served.name and model.client.model != served.name:
                await model.aclose()
                raise PolicyError(
                    f"all --upstream must be equal servers: the model is {model.client.model!r} "
                    f"at {upstream.url}, {served.name!r} elsewhere"
                )
            served.name = model.client.model
            served.coverage = Coverage.of(
                served.policy,
                served.plan,
                names={served.name},
                sampling=model.sampling(served.plan),
                closer_tokens=len(model.chat.closer.ids),
                any_text=self._settings.any_text,
            )
            before = served.at.get(upstream.number)
            served.at[upstream.number] = bound
            if before is not None:
                self._retire(before)
        self._entries[upstream.url] = entries(listed, self.names)
        await self.sweep()

    @property
    def names(self) -> frozenset[str]:
        """The models, as the upstreams call them."""
        return frozenset(served.name for served in self.all)

    @property
    def longest_prompt(self) -> int:
        """Bytes of JSON beyond which no prompt fits any model's context; guessed high."""
        bounds = (bound for served in self.all for bound in served.at.values())
        contexts = [bound.service.model.context or _MOST_PROMPT for bound in bounds]
        return min(_MOST_PROMPT, _TOKEN_BYTES * max(contexts, default=0))

    def same_at(self, upstream: Upstream, listed: Any) -> bool:
        """Whether an upstream lists the models as it did when they were opened."""
        return bool(self._entries.get(upstream.url) == entries(listed, self.names))

    def retire(self) -> None:
        """Take no further requests; `sweep` closes what is idle."""
        for served in self.all:
            for bound in served.at.values():
                self._retire(bound)
            served.at.clear()

    def _retire(self, bound: Bound) -> None:
        bound.retire()
        self._retired.append(bound)

    async def sweep(self) -> bool:
        """Close what was retired and is idle; return whether nothing is left to close."""
        idle = [bound for bound in self._retired if bound.is_idle]
        self._retired = [bound for bound in self._retired if not bound.is_idle]
        for bound in idle:
            await bound.service.model.aclose()
        return not self._retired

    async def _open(self, served: ServedPolicy, upstream: Upstream, retry_timeout: float) -> Bound:
        settings, limits = self._settings, self._settings.timeouts
        named = settings.api_key_env
        own = None if named is None else Key.of_environment(named, required=True)
        client = Client(
            [upstream.url],
            served.asked_for,
            key=own or ForwardedKey(),
            request_timeout=limits.total,
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
            service = await bind_policy(served.policy, model, served.plan, serving=settings.serving)
        except BaseException:
            await model.aclose()
            raise
        # Waiting was for the opening: a request that fails is sent to another upstream.
        client.retry_timeout = 0.0
        return Bound(replace(service, shadow=settings.shadow, probe_timeout=limits.probe))


def entries(listed: Any, names: frozenset[str]) -> dict[str, Any]:
    """Return what an answer of ``/models`` says of some models that stays as long as they do."""
    found = listed.get("data") if isinstance(listed, Mapping) else None
    return {
        entry["id"]: (entry.get("root"), entry.get("max_model_len"))
        for entry in (found if isinstance(found, list) else ())
        if isinstance(entry, Mapping) and entry.get("id") in names
    }
