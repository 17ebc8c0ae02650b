"""The plugin's audits: a stopped trace thinks on in the engine, after all other requests.

Knows the engine's model and the trace with all its ids, so that nothing is drawn twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stopadvisor.answers.normal_form import extract_forced, extract_natural
from stopadvisor.engines.live import LiveAnswer
from stopadvisor.serving.audits import (
    AlarmAction,
    AuditedReply,
    Auditor,
    AuditSettings,
    FullThinking,
)
from stopadvisor.serving.coverage import CoveredRequest
from stopadvisor.serving.metrics import Metrics
from stopadvisor.serving.responder import counts_of
from stopadvisor.serving.vllm.engine import EngineModel

if TYPE_CHECKING:
    from stopadvisor.policy.frozen import Policy

__all__ = ["EngineAudits"]


def _leave(code: int) -> None:
    """End the process at once, open requests included: vLLM has no other way out from inside."""
    os._exit(code)


@dataclass
class EngineAudits:
    """Audits of one policy in the engine; an `answering.AfterReply`."""

    policy: Policy
    settings: AuditSettings
    metrics: Metrics
    leave: Callable[[int], None] = _leave
    """Ends the server with an exit code."""
    _in_shadow: bool = False
    auditor: Auditor = field(init=False)

    def __post_init__(self) -> None:
        self.auditor = Auditor(self.policy, self.settings, self.metrics, self._act)

    def is_shadowed(self) -> bool:
        """Whether an alarm put the policy into its shadow; a reset of the alarm ends that."""
        if self._in_shadow and self.auditor.is_reset():
            self._in_shadow = False
        return self._in_shadow

    def __call__(
        self, covered: CoveredRequest, answered: LiveAnswer, model: EngineModel, name: str
    ) -> None:
        """Take note of a request that was answered under the policy."""
        trace, task, stop = answered.trace, covered.request.task, answered.stop
        answer: str | None
        if answered.forced is not None:
            answer = extract_forced(task, answered.forced.text)
        else:
            ids = trace.visible if stop is None else answered.written
            answer = extract_natural(task, model.stops.visible_text(ids))
        counts = counts_of(answered, len(model.chat.closer.ids))

        async def finish() -> FullThinking:
            tokens = await model.finish(trace)
            closed = trace.end.closed
            return FullThinking(model.stops.visible_text(trace.visible) if closed else None, tokens)

        self.auditor.served(
            AuditedReply(
                id=name,
                stop=None if stop is None else stop.position,
                answer=answer,
                task=task,
                tokens=counts.completion,
                prompt_tokens=counts.prompt,
                first_logprob=answered.first_logprob if self.policy.reads_logprobs else None,
            ),
            finish,
        )

    def _act(self, action: AlarmAction, code: int) -> None:
        if action == "shadow":
            self._in_shadow = True
        elif action == "exit":
            self.leave(code)
