"""The plugin's policies: held against the engine at the start, and again when they are replaced.

They are replaced as a whole or not at all; requests under way end with the policy they began with.
Knows files and the engine; no request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stopadvisor.engines.model_files import LoadedTokenizer
from stopadvisor.ground.errors import StopAdvisorError
from stopadvisor.ground.printable import printable
from stopadvisor.policy.frozen import Policy
from stopadvisor.serving.audits import Auditors
from stopadvisor.serving.metrics import Metrics
from stopadvisor.serving.serve_settings import ServeSettings, load_policies
from stopadvisor.serving.vllm.binding import BoundPolicy, EngineFacts, bind_policies
from stopadvisor.serving.vllm.engine_model import AskedEngine
from stopadvisor.serving.vllm.route import PolicyRoute
from stopadvisor.serving.vllm.self_test import try_engine

__all__ = ["PolicyLoader"]

_log = logging.getLogger("vllm.stopadvisor")


@dataclass
class PolicyLoader:
    """Makes policies ready to serve in one engine."""

    settings: ServeSettings
    facts: EngineFacts
    tokenizer: LoadedTokenizer
    engine: AskedEngine
    metrics: Metrics
    auditors: Auditors
    _swapping: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self, policies: Sequence[tuple[Path, Policy]]) -> tuple[BoundPolicy, ...]:
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
            self.engine,
            any_text=self.settings.any_text,
            audits=self.settings.audit is not None,
        )
        for bound in found:
            if bound.policy.kind == "stop":
                await try_engine(bound.model, self.facts.context, self.facts.max_logprobs)
        used = tuple(replace(bound, auditor=self.auditors.of(bound.policy)) for bound in found)
        how = "in its shadow" if self.settings.shadow else "under it"
        self.metrics.policy.clear()
        for bound in used:
            for remark in bound.remarks:
                _log.warning("%s", printable(remark))
            digest = bound.policy.digest
            _log.info("policy %s: requests that it covers are answered %s", digest, how)
            self.metrics.policy.labels(self.facts.names[0], digest[:8]).set(1)
        return used

    async def reload(self, route: PolicyRoute) -> None:
        """Read the policies again for new requests; what is refused leaves those before in use."""
        async with self._swapping:
            try:
                found = await asyncio.to_thread(load_policies, self.settings)
                route.policies = await self.load(found)
            except StopAdvisorError as error:
                message = printable(str(error))
                _log.error("reload refused, the policies in use stay: %s", message)
