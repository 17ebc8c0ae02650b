"""The gateway's audits: a stopped request is thought to its end once more, and compared.

An audit is a request of its own at the upstream that served the first, whose prompt is in its
prefix cache; under the same seed it draws the same thinking.  Knows the gateway's services and no
HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from stopadvisor.engines.live import LiveAnswer
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Request
from stopadvisor.serving.audits import Auditor, AuditSettings, FullThinking
from stopadvisor.serving.eligibility import CoveredRequest
from stopadvisor.serving.gateway.policies import Bound
from stopadvisor.serving.metrics import Metrics
from stopadvisor.serving.responder import audited_reply

__all__ = ["GatewayAudits"]


@dataclass
class GatewayAudits:
    """An auditor for each policy that promises anything; none without settings."""

    settings: AuditSettings | None
    metrics: Metrics
    is_crowded: Callable[[], bool] = lambda: False
    """Whether requests wait for a place; then no audit begins."""
    leave: Callable[[], None] = lambda: None
    """Ends the gateway; set by whoever runs it."""
    exit_code: int = 0
    """Of the alarm that ended the gateway; 0 while none has."""
    _auditors: dict[str, Auditor] = field(default_factory=dict)

    def prepare(self, policies: Iterable[Policy]) -> None:
        """Open the audit log of every policy that has none open."""
        for policy in policies:
            digest = policy.digest
            if self.settings is None or policy.kind != "stop" or digest in self._auditors:
                continue
            self._auditors[digest] = Auditor(policy, self.settings, self.metrics, self._end)

    def is_shadowed(self, policy: Policy) -> bool:
        """Whether an alarm put the policy into its shadow."""
        auditor = self._auditors.get(policy.digest)
        return auditor is not None and auditor.is_shadowed()

    def served(
        self,
        bound: Bound,
        covered: CoveredRequest,
        request: Request,
        answered: LiveAnswer,
        name: str,
    ) -> None:
        """Take note of a request that was answered under its policy.

        `request` is the covered one with the seed that it was answered under.
        """
        service = bound.service
        policy = service.rule
        auditor = self._auditors.get(policy.digest) if isinstance(policy, Policy) else None
        if auditor is None:
            return
        prompt_ids = answered.trace.prompt_ids

        async def finish() -> FullThinking:
            with bound.used():
                full = replace(service, rule=None, shadow=False)
                whole = await full.answer(request, prompt_ids=prompt_ids, replica=0)
            return FullThinking(whole.text, whole.think_tokens + whole.visible_tokens)

        found = audited_reply(name, covered, answered, service.model, auditor.policy)
        auditor.served(found, None if self.is_crowded() else finish)

    def shed(self) -> None:
        """Give up all audits under way: somebody waits for the place they take."""
        for auditor in self._auditors.values():
            auditor.shed()

    async def drain(self, seconds: float) -> None:
        """Let audits end, and give up what takes longer."""
        for auditor in self._auditors.values():
            await auditor.drain(seconds)

    def _end(self, code: int) -> None:
        self.exit_code = code
        self.leave()
