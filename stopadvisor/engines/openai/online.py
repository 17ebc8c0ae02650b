"""Real early exit over HTTP: draw to a checkpoint, probe, ask the policy, stop or draw on.

Thinking is drawn in parts, each a request that sends prompt and thinking so far as token ids, so
that the server's prefix cache gives them back.  Stops are those of `engines.hf.online`.  Knows no
files and no gold answer.
"""

from __future__ import annotations

import queue
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio

from stopadvisor.answers import extract_forced, extract_natural
from stopadvisor.engines.openai.load import identity_of, open_model
from stopadvisor.engines.openai.model import NO_ENTROPY, Forced, Served, ServedModel
from stopadvisor.engines.settings import entropy_top_k
from stopadvisor.markers import count_markers
from stopadvisor.policy import Policy
from stopadvisor.probes import ProbePlan
from stopadvisor.serving import (
    OnStop,
    PromptLike,
    Reply,
    Request,
    Rule,
    make_requests,
    policy_plan,
)

if TYPE_CHECKING:
    from stopadvisor.engines.openai.engine import OpenAiEngine

__all__ = ["PolicyServer", "connect", "entropy_at", "serve", "server_plan"]


@asynccontextmanager
async def connect(
    policy: Policy,
    base_urls: Sequence[str],
    *,
    model: str | None = None,
    on_stop: OnStop | None = None,
    answer_cap: int | None = None,
    **options: Any,
) -> AsyncIterator[PolicyServer]:
    """Open a served model and hold a frozen policy against it, once for many prompts.

    Parameters
    ----------
    policy : Policy
        From `stopadvisor.load_policy`; cue, caps, sampling and templates are its own.
    base_urls : sequence of str
        Such as ``http://host:8000/v1``.
    model : str, optional
        The model's name at the server; by default the policy's.
    on_stop : {"probe", "answer"}, optional
        What a stopped prompt gets: the forced answer, or a visible answer after the closed
        thinking.  The policy's own by default; its certificate covers no other.
    answer_cap : int, optional
        Most tokens of a visible answer; by default what was certified.
    **options
        As `open_model` takes them: ``api_key_env``, ``request_timeout``, ``patience`` and so on.

    Raises
    ------
    PolicyError
        The policy is bound to another model, tokenizer, template or entropy, or to none.
    ModelError
        The server cannot be reached, or cannot resume reasoning.

    Examples
    --------
    ::

        import asyncio

        from stopadvisor import load_policy
        from stopadvisor.engines.openai import connect

        async def main() -> None:
            policy = load_policy("policy.joblib")
            async with connect(policy, ["http://127.0.0.1:8000/v1"]) as server:
                reply = await server.answer("Compute 86 + 6 - 9 modulo 100.")
                print(reply.answer, reply.budget, reply.think_tokens, reply.probe_tokens)

        asyncio.run(main())
    """
    plan = server_plan(policy, answer_cap=answer_cap)
    content = policy.content
    served = await open_model(
        model or content["model"]["name"],
        base_urls,
        chat_template_kwargs=content["chat_template_kwargs"],
        **options,
    )
    try:
        remarks = policy.check_source(identity_of(served), entropy_at(served, policy))
        how: OnStop = on_stop or content["on_stop"]
        yield PolicyServer(_Answering(served, plan, policy, how), policy, tuple(remarks))
    finally:
        await served.aclose()


@dataclass(frozen=True)
class PolicyServer:
    """A frozen policy at a server; made by `connect`."""

    _answering: _Answering
    policy: Policy
    remarks: tuple[str, ...]
    """Differences from calibration that ask for a passing ``verify`` before this serves."""

    async def answer(self, prompt: PromptLike, *, task: str | None = None) -> Reply:
        """Answer one prompt, thinking only as long as the policy lets it.

        Any number of prompts may be on their way at once.

        Parameters
        ----------
        prompt : str, messages or Question
            A text goes through the policy's prompt template; chat messages are sent as they stand.
        task : str, optional
            Task of a prompt that is no `Question`; needed where the policy's is ``mixed``.

        Raises
        ------
        PolicyError
            The policy is for another task.
        ModelError
            The prompt does not fit the server's context.
        EngineError
            The server refuses, or goes on failing for longer than the client's patience.
        """
        (request,) = make_requests([prompt], self.policy, task=task)
        return await self._answering.go(request)


def entropy_at(served: ServedModel, policy: Policy) -> str:
    """Return the entropy source that a server gives a policy: the policy's own, where it can."""
    own: str = policy.content["entropy_source"]
    top = served.can.top_limit
    if own == NO_ENTROPY or (own != "full" and (entropy_top_k(own) or 0) <= top):
        return own
    return f"top-k:{top}" if top else NO_ENTROPY


def server_plan(policy: Policy, *, answer_cap: int | None = None) -> ProbePlan:
    """Return a policy's plan, without log-probabilities where the policy reads none.

    Raises
    ------
    PolicyError
        As `serving.policy_plan`.
    """
    plan = policy_plan(policy, answer_cap=answer_cap)
    if policy.content["entropy_source"] == NO_ENTROPY:
        return replace(plan, entropy=NO_ENTROPY)
    return plan


def serve(
    engine: OpenAiEngine,
    requests: Sequence[Request],
    plan: ProbePlan,
    rule: Rule | None,
    *,
    batch_size: int | None = None,
    on_stop: OnStop = "probe",
) -> Iterator[tuple[int, Reply]]:
    """Answer requests and yield each with its position as soon as it is over.

    Parameters
    ----------
    plan : ProbePlan
        From `server_plan`.
    rule : Rule or None
        A policy; None thinks to the end, without any probe.
    batch_size : int, optional
        Most questions at once; by default the engine's concurrency.
    on_stop : {"probe", "answer"}
        What a stopped request gets.

    Raises
    ------
    ModelError, EngineError
        As `PolicyServer.answer`.  What was over before is yielded before the error is raised.
    """
    answering = _Answering(engine.served_model, plan, rule, on_stop)
    waiting = iter(enumerate(requests))
    done: queue.SimpleQueue[tuple[int, Reply] | None] = queue.SimpleQueue()

    async def worker() -> None:
        for number, request in waiting:
            done.put((number, await answering.go(request)))

    async def work(size: int) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(min(size, len(requests))):
                group.start_soon(worker)

    yield from engine.results(work, batch_size, done)


@dataclass
class _Answering:
    """What all requests of one policy have in common."""

    model: ServedModel
    plan: ProbePlan
    rule: Rule | None
    on_stop: OnStop

    async def go(self, request: Request) -> Reply:
        """Answer one request."""
        prompt_ids = await self.model.aside(self.model.chat.prompt_ids, request.prompt.messages)
        row = _Row(self, request, prompt_ids, self.model.client.home())
        forced = await row.think()
        if forced is None:
            return await self.model.aside(row.ended)
        return await row.stopped(forced)


@dataclass
class _Row:
    """A request on its way."""

    common: _Answering
    request: Request
    prompt_ids: list[int]
    home: int
    started: float = field(default_factory=time.perf_counter)
    ids: list[int] = field(default_factory=list)
    """Drawn behind the prompt."""
    checkpoint: int = 0
    """The next one."""
    probe_tokens: int = 0
    served: list[Served] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = self.common.model.trace_end(self.prompt_ids, self.common.plan)

    async def think(self) -> Forced | None:
        """Draw until the policy stops, which gives its last forced answer, or to the end."""
        model, rule = self.common.model, self.common.rule
        budgets = rule.budgets if rule is not None else ()
        stepper = rule.start(self.request.task) if rule is not None and budgets else None
        for budget in budgets:
            # The trace is known to go beyond a budget once as many further tokens as the closer
            # has were drawn; where it does not, it ends by itself and no probe follows.
            await self._draw(budget + len(model.chat.closer.ids))
            if 0 <= self.end.thinking <= budget:
                break
            forced = await self._force(budget)
            seen = await model.aside(model.chat.decode, self.ids[:budget])
            assert stepper is not None
            decision = stepper.observe(
                answer=forced.text,
                mean_logprob=forced.mean_logprob,
                mean_entropy=forced.mean_entropy,
                markers=float(count_markers(seen)),
                think_tokens=budget,
            )
            self.checkpoint += 1
            self.probe_tokens += len(forced.ids)
            if decision.stop:
                return forced
        await self._draw(None)
        return None

    async def _draw(self, upto: int | None) -> None:
        await self.common.model.extend(
            self.prompt_ids,
            self.ids,
            self.end,
            self.request.prompt,
            self.common.plan,
            upto=upto,
            served=self.served,
            home=self.home,
        )

    async def _force(self, budget: int) -> Forced:
        model, plan = self.common.model, self.common.plan
        return await model.force(
            self.prompt_ids,
            self.ids[:budget],
            model.chat.suffix_ids(plan.cue),
            cap=plan.cap,
            entropy=plan.entropy,
            home=self.home,
        )

    async def stopped(self, forced: Forced) -> Reply:
        """Reply with the forced answer, or have a visible one written."""
        model = self.common.model
        at = self.checkpoint - 1
        assert self.common.rule is not None
        budget = self.common.rule.budgets[at]
        task, thinking = self.request.task, self.ids[:budget]
        drawn = self.end.thinking if self.end.thinking >= 0 else len(self.ids)
        if self.common.on_stop == "probe":
            text, visible = forced.text, 0
            short = extract_forced(task, text) or None
        else:
            written = await model.write(
                self.prompt_ids, thinking, self.request.prompt, self.common.plan, home=self.home
            )
            text, visible = written.text, len(written.ids) + len(model.chat.closer.ids)
            short = extract_natural(task, text)
        return await model.aside(
            self._reply, text, short, visible, drawn, thinking, at=at, budget=budget
        )

    def ended(self) -> Reply:
        """Reply with what the trace says that ended by itself, or was cut."""
        model, length = self.common.model, self.end.thinking
        text, short, visible = None, None, 0
        if self.end.closed:
            closer = len(model.chat.closer.ids)
            text = model.visible_text(self.ids[length + closer :])
            short = extract_natural(self.request.task, text)
            visible = len(self.ids) - length
        return self._reply(text, short, visible, length, self.ids[:length])

    def _reply(
        self,
        text: str | None,
        short: str | None,
        visible: int,
        drawn: int,
        thinking: Sequence[int],
        *,
        at: int | None = None,
        budget: int | None = None,
    ) -> Reply:
        return Reply(
            text=text,
            answer=short,
            stopped_at=at,
            budget=budget,
            prompt_tokens=len(self.prompt_ids),
            think_tokens=drawn,
            probe_tokens=self.probe_tokens,
            visible_tokens=visible,
            n_probes=self.checkpoint,
            seconds=time.perf_counter() - self.started,
            finish="stopped" if at is not None else ("length" if self.end.cut else "stop"),
            thinking=self.common.model.chat.decode(list(thinking)),
        )
