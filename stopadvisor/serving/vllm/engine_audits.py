"""The plugin's audits: a stopped trace thinks on in the engine, after all other requests.

Knows the engine's model and the trace with all its ids, so that nothing is drawn twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from stopadvisor.engines.live import LiveAnswer
from stopadvisor.serving.audits import Auditor, FullThinking
from stopadvisor.serving.eligibility import CoveredRequest
from stopadvisor.serving.responder import audited_reply
from stopadvisor.serving.vllm.engine_model import EngineModel

__all__ = ["EngineAudits"]


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
