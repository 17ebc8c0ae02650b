"""What answering with a policy needs of an engine, beyond what probing needs.

Both engines do it; which of the two answers, nothing in this folder knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import OnStop, Reply, Request, ThinkingMode
from stopadvisor.policy.session import Rule
from stopadvisor.probes.plan import Engine, ProbePlan

__all__ = ["AnsweringEngine"]


class AnsweringEngine(Engine, Protocol):
    """An engine that answers requests, each thinking only as long as a rule lets it."""

    @property
    def name(self) -> str:
        """The model's name, as a reader should see it."""
        ...

    def policy_plan(self, policy: Policy, *, answer_cap: int | None = None) -> ProbePlan:
        """Plan of a policy at this engine; see `policy.requests.policy_plan`."""
        ...

    def entropy_for(self, policy: Policy) -> str:
        """Entropy source that this engine gives a policy."""
        ...

    def thinking_mode(
        self, policy: Policy, asked: ThinkingMode | None, remarks: list[str]
    ) -> ThinkingMode | None:
        """How this engine thinks: as asked, else as the policy was chosen for, where that works.

        None where there is but one way.  `remarks` grows where the policy's way does not work; what
        is asked for and does not work raises `ModelError`.
        """
        ...

    def questions_at_once(self, plan: ProbePlan) -> int:
        """Requests that `serve` should be working on, where the user does not say."""
        ...

    def serve(
        self,
        requests: Sequence[Request],
        plan: ProbePlan,
        rule: Rule | None,
        *,
        batch_size: int | None = None,
        on_stop: OnStop = "probe",
        serving: ThinkingMode | None = None,
    ) -> Iterator[tuple[int, Reply]]:
        """Answer requests and yield each with its position as soon as it is over.

        `plan`, `batch_size` and `serving` are those of `policy_plan`, `questions_at_once` and
        `thinking_mode`; a `rule` is a policy, or None to think to the end without any probe.

        Raises
        ------
        OutOfMemory
            Too many at once; those that were yielded are done.
        EngineError
            The engine failed; what was over before is yielded first.
        """
        ...
