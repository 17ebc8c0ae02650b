"""The plugin's policies: held against the engine at the start, and again when they are replaced.

They are replaced as a whole or not at all; requests under way end with the policy they began with.
Knows files and the engine; no request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stopadvisor.engines.live import LiveAnswer
from stopadvisor.engines.local_tokenizer import LoadedTokenizer
from stopadvisor.ground.errors import StopAdvisorError
from stopadvisor.ground.printable import printable
from stopadvisor.policy.frozen import Policy
from stopadvisor.serving.audits import Auditor, FullThinking
from stopadvisor.serving.eligibility import CoveredRequest
from stopadvisor.serving.metrics import Metrics
from stopadvisor.serving.policy_files import load_policies
from stopadvisor.serving.responder import audited_reply
from stopadvisor.serving.vllm.binding import BoundPolicy, EngineAccess, EngineFacts, bind_policies
from stopadvisor.serving.vllm.engine_model import EngineModel
from stopadvisor.serving.vllm.plugin_settings import PluginSettings
from stopadvisor.serving.vllm.route import PolicyInUse, PolicyRoute
from stopadvisor.serving.vllm.self_test import try_engine

__all__ = ["EngineAudits", "PolicyLoader"]

_log = logging.getLogger("vllm.stopadvisor")


@dataclass
class PolicyLoader:
    """Makes policies ready to serve in one engine."""

    settings: PluginSettings
    facts: EngineFacts
    tokenizer: LoadedTokenizer
    access: EngineAccess
    metrics: Metrics
    leave: Callable[[int], None]
    """Ends the process, where an alarm is to."""
    _auditors: dict[str, Auditor] = field(default_factory=dict)
    """By digest: a log has one writer, also when its policy comes back."""
    _swapping: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self, policies: Sequence[tuple[Path, Policy]]) -> tuple[PolicyInUse, ...]:
        """Hold policies against the engine.

        Raises
        ------
        PolicyError, ModelError
            As in `bind_policies` and `try_engine`; or a policy's audits cannot go on.
        """
        # In a thread: hashing weights and decoding a vocabulary take seconds.
        found = await asyncio.to_thread(
            bind_policies,
            policies,
            self.facts,
            self.tokenizer,
            self.access,
            any_text=self.settings.any_text,
            audits=self.settings.audit is not None,
        )
        for bound in found:
            if bound.policy.kind == "stop":
                await try_engine(bound.model, self.facts.context, self.facts.max_logprobs)
        used = tuple(map(self._audited, found))
        how = "in its shadow" if self.settings.shadow else "under it"
        self.metrics.policy.clear()
        for bound in found:
            for remark in bound.remarks:
                _log.warning("%s", printable(remark))
            digest = bound.policy.digest
            _log.info("policy %s: requests that it covers are answered %s", digest, how)
            self.metrics.policy.labels(self.facts.names[0], digest[:8]).set(1)
        return used

    def _audited(self, bound: BoundPolicy) -> PolicyInUse:
        if self.settings.audit is None or bound.policy.kind != "stop":
            return PolicyInUse(bound)
        digest = bound.policy.digest
        if digest not in self._auditors:
            self._auditors[digest] = Auditor(
                bound.policy, self.settings.audit, self.metrics, self.leave
            )
        auditor = self._auditors[digest]
        return PolicyInUse(bound, EngineAudits(auditor), auditor.is_shadowed)

    async def reload(self, route: PolicyRoute) -> None:
        """Read the policies again for new requests; what is refused leaves those before in use."""
        async with self._swapping:
            try:
                found = await asyncio.to_thread(
                    load_policies, self.settings.policy, self.settings.require_signature
                )
                route.policies = await self.load(found)
            except StopAdvisorError as error:
                message = printable(str(error))
                _log.error("reload refused, the policies in use stay: %s", message)


@dataclass(frozen=True)
class EngineAudits:
    """Audits of one policy in the engine; a `route.AfterReply`."""

    auditor: Auditor

    def __call__(
        self, covered: CoveredRequest, answered: LiveAnswer, model: EngineModel, name: str
    ) -> None:
        """Take note of a request that was answered under the policy."""
        trace = answered.trace

        async def finish() -> FullThinking:
            tokens = await model.finish(trace)
            text = model.stops.visible_text(trace.visible) if trace.end.closed else None
            return FullThinking(text, tokens)

        found = audited_reply(name, covered, answered, model, self.auditor.policy)
        self.auditor.served(found, finish)
