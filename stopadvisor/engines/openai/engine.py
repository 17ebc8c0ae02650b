"""The engine over HTTP: takes prompts, returns probed traces as they finish.

Questions are independent, so none waits for the slowest.  The event loop runs in its own thread, so
that grading and writing do not keep the server waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from stopadvisor.engines.answer_end import ForcedAnswer
from stopadvisor.engines.chat import Chat, ChatEngine
from stopadvisor.engines.openai.each import ask_each
from stopadvisor.engines.openai.early_exit import PolicyService, entropy_at
from stopadvisor.engines.openai.endpoint import USUAL_TOP
from stopadvisor.engines.openai.served_model import NO_ENTROPY, ServedModel
from stopadvisor.engines.trace import raw_trace, read_recorded
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Reply, Request, policy_plan
from stopadvisor.policy.session import Rule
from stopadvisor.probes.asking import Capabilities, Check, ProbePlan, Prompt, RawTrace
from stopadvisor.probes.trigger import trace_positions

__all__ = ["OpenAiEngine"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass
class OpenAiEngine(ChatEngine):
    """A served model, as `probes.asking.Engine` and `serving.answering.AnsweringEngine`.

    Made by `open_servers`; `close` ends its connections and its thread.  Raises `ModelError` for a
    plan that the server cannot carry out, and `EngineError` if the server refuses a request or
    fails until the retry time-out.
    """

    served_model: ServedModel
    chat: Chat
    """The served model's."""
    model_identity: dict[str, Any]
    """See `identity`."""
    portal: BlockingPortal = field(repr=False)
    """Runs coroutines in the event loop's thread."""
    thread: AbstractContextManager[BlockingPortal] = field(repr=False)
    """Context manager of that thread, exited by `close`."""
    concurrency: int = 32
    """Limit on requests in flight."""
    remarks: list[str] = field(default_factory=list)
    """Notes for the user, one line each."""

    @property
    def name(self) -> str:
        """The model's name at the server."""
        return self.served_model.client.model

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of this server."""
        top = min(USUAL_TOP, self.served_model.endpoint.top_limit)
        return Capabilities(f"top-k:{top}" if top else NO_ENTROPY, batched=False)

    def identity(self) -> dict[str, Any]:
        """Return all settings that determine the outcome, as plain values."""
        return dict(self.model_identity)

    def temperature(self, plan: ProbePlan) -> float:
        """Return the sampling temperature of this plan's traces."""
        return self.served_model.sampling(plan).temperature

    def auto_batch_size(self, plan: ProbePlan) -> int:
        """Return the concurrency."""
        del plan  # memory is the server's concern
        return self.concurrency

    def longest_thinking(self, prompts: Sequence[Prompt], plan: ProbePlan) -> int:
        """Return how many thinking tokens every prompt has room for, at most the plan's cap."""
        model = self.served_model
        return min(model.thinking_room(model.chat.prompt_ids(p.messages), plan) for p in prompts)

    def engine_checks(self, prompt: Prompt, plan: ProbePlan) -> list[Check]:
        """Test that the server obeys limits, resumes, caches and gives log-probabilities."""
        model = self.served_model
        top, ids = _top_k(model, plan), model.chat.prompt_ids(prompt.messages)
        obeys, resumes = (self.portal.call(check, model, ids) for check in (_obeys, _resumes))
        return [obeys, resumes, _caches(model), top]

    def probe_each(
        self,
        prompts: Sequence[Prompt],
        plan: ProbePlan,
        on_tokens: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[int, RawTrace]]:
        """Generate one trace per prompt and probe it where the plan says; yield them as they end.

        `on_tokens` is never called, as tokens arrive only with their finished trace.  Traces
        finished before an error are yielded before it is raised.
        """
        del on_tokens
        self.served_model.sampling(plan)  # fails before any request is sent
        self.served_model.check_entropy(plan.entropy)
        slots = anyio.Semaphore(self.concurrency)

        async def ask(prompt: Prompt) -> RawTrace:
            return await self._question(prompt, plan, slots)

        yield from ask_each(self.portal, prompts, ask, self.concurrency)

    # --- Answering with a policy ---

    def policy_plan(self, policy: Policy, *, answer_cap: int | None = None) -> ProbePlan:
        """Return the policy's plan, with only as many log-probabilities as it reads."""
        plan = policy_plan(policy, answer_cap=answer_cap, at_server=True)
        return replace(plan, entropy=entropy_at(self.served_model, policy)[1])

    def entropy_for(self, policy: Policy) -> str:
        """Return the entropy source that this policy gets at the server."""
        return entropy_at(self.served_model, policy)[0]

    def serve(
        self,
        requests: Sequence[Request],
        plan: ProbePlan,
        rule: Rule | None,
        *,
        batch_size: int | None = None,
    ) -> Iterator[tuple[int, Reply]]:
        """Answer requests, `batch_size` (by default the concurrency) at once.

        Replies finished before an error are yielded before it is raised.
        """
        service = PolicyService(self.served_model, plan, rule, self.remarks)
        return ask_each(self.portal, requests, service.answer, batch_size or self.concurrency)

    def close(self) -> None:
        """Close the connections and end the thread."""
        self.portal.call(self.served_model.client.aclose)
        self.thread.__exit__(None, None, None)

    async def _question(self, prompt: Prompt, plan: ProbePlan, slots: anyio.Semaphore) -> RawTrace:
        """Generate one trace, or read a recorded one, then run all its probes concurrently."""
        model = self.served_model
        trace = model.begin(model.chat.prompt_ids(prompt.messages), prompt, plan)
        if prompt.recorded is None:
            async with slots:
                await model.extend(trace)
        else:
            read_recorded(model.chat, trace)
        length = trace.end.thinking
        positions = trace_positions(plan, trace.ids[:length])
        forced: dict[int, ForcedAnswer] = {}
        visible: dict[int, list[int]] = {}

        async def force(at: int) -> None:
            async with slots:
                forced[at] = await model.force(trace, at)

        async def write(at: int) -> None:
            async with slots:
                visible[at] = await model.write(trace, at)

        async with anyio.create_task_group() as group:
            for at in sorted({min(position, length) for position in positions.probed}):
                group.start_soon(force, at)
            for position in positions.probed if plan.on_stop == "answer" else ():
                if position < length:
                    group.start_soon(write, position)
        return raw_trace(model.stops, trace, positions, forced, visible)


# --- Checks of the server, which may silently ignore fields ---------------------------------------


_TRIED = 8


async def _obeys(model: ServedModel, ids: Sequence[int]) -> Check:
    """Check that the server obeys token limits and stop ids, and leaves prompt ids unchanged."""
    drawn = await model.client.complete(ids, max_tokens=_TRIED)
    tokens, wrong = drawn.token_ids or (), []
    if len(tokens) > _TRIED or (len(tokens) < _TRIED and drawn.finish_reason != "stop"):
        wrong.append(f"decodes {len(tokens)} tokens under max_tokens={_TRIED}")
    if at := next((i for i, token in enumerate(tokens) if token not in tokens[:i] and i), 0):
        cut = await model.client.complete(ids, max_tokens=_TRIED, stop_token_ids=[tokens[at]])
        if len(cut.token_ids or ()) not in (at, at + 1):
            wrong.append(
                f"does not stop at stop_token_ids=[{tokens[at]}], which is its token {at + 1}, but "
                f"decodes {len(cut.token_ids or ())} tokens"
            )
    if drawn.prompt_tokens != len(ids):
        wrong.append(f"counts {drawn.prompt_tokens} prompt tokens for {len(ids)} ids")
    if wrong:
        advice = "use a server that obeys max_tokens and stop_token_ids and takes ids as sent"
        return Check("server-obeys", "fail", f"the server {'; '.join(wrong)}", advice)
    taken = f"{len(ids)} ids taken as they are"
    return Check("server-obeys", "pass", f"{taken}, max_tokens and stop_token_ids obeyed")


async def _resumes(model: ServedModel, ids: Sequence[int]) -> Check:
    """Check that a resumed generation gives the same tokens as an uninterrupted one."""
    client = model.client
    whole = (await client.complete(ids, max_tokens=_TRIED)).token_ids or ()
    half = len(whole) // 2
    rest = await client.complete([*ids, *whole[:half]], max_tokens=len(whole) - half)
    if whole[half:] == rest.token_ids:
        return Check("resumes", "pass", f"resumed after {half} tokens, greedy tokens are the same")
    detail = (
        f"resumed after {half} tokens, the server continues with {list(rest.token_ids or ())}; "
        f"without the interruption it continued with {list(whole[half:])}"
    )
    advice = "in half precision resumed traces differ; where stops must not, serve in float32"
    return Check("resumes", "warn", detail, advice)


def _caches(model: ServedModel) -> Check:
    """Check that a repeated prompt is read from the cache."""
    cached, sent = model.endpoint.cached_tokens, model.endpoint.repeated_tokens
    if cached:
        detail = f"{cached} of {sent} repeated prompt tokens were cached"
        return Check("server-caches", "pass", detail)
    detail = "the server does not say how many prompt tokens it cached"
    advice = "vLLM says so with --enable-prompt-tokens-details; otherwise costs are estimates"
    if cached == 0:
        detail = f"0 of {sent} repeated prompt tokens were cached"
        advice = (
            "every probe reads its whole prefix again: switch prefix caching on, or assess with "
            "--serving black-box"
        )
    return Check("server-caches", "warn", detail, advice)


def _top_k(model: ServedModel, plan: ProbePlan) -> Check:
    """Check how many log-probabilities the server gives; raise if the plan needs more."""
    gives = f"the server gives {model.endpoint.top_limit} log-probabilities per token"
    k = model.check_entropy(plan.entropy)
    if k is not None:
        return Check("top-k", "pass", f"{gives}, {k} are asked for")
    if not model.endpoint.top_limit:
        return Check("top-k", "pass", f"{gives}, none are asked for")
    advice = f"--entropy top-k:{model.endpoint.top_limit} lets every family be compared"
    return Check("top-k", "warn", f"{gives}, none are asked for", advice)
