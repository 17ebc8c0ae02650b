"""An engine that tells a fixed story, a token at a time, as vLLM's own client yields it."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from stopadvisor.engines.model_files import LoadedTokenizer, content_revision, load_tokenizer
from stopadvisor.engines.trace_context import TRACE_CONTEXT
from stopadvisor.ground.constants import CUES
from stopadvisor.policy.frozen import Policy
from stopadvisor.serving.audits import Auditors
from stopadvisor.serving.metrics import Metrics
from stopadvisor.serving.serve_settings import AuditSettings, ServeSettings
from stopadvisor.serving.vllm.adapter import EngineFacts, VllmEngine
from stopadvisor.serving.vllm.binding import BoundPolicy, bind_policies
from stopadvisor.serving.vllm.route import PolicyRoute
from tests.engines.fake_server import TINY, Story, words
from tests.policy_content import family_content, policy_from

QUESTION = [{"role": "user", "content": "3+4"}]
FACTS = EngineFacts(
    model=str(TINY),
    tokenizer=str(TINY),
    names=("tiny-reasoner",),
    version="0.32.0",
    context=1536,
    vocabulary=559,
    dtype="float32",
    quantization=None,
    max_logprobs=20,
    chat_template=None,
    chat_template_kwargs=None,
    sampling={"temperature": 0.0},
    max_output=None,
    reasoning_parser="deepseek_r1",
    prefix_caching=True,
    by_priority=True,
    replicas=1,
    api_servers=1,
)


@cache
def loaded() -> LoadedTokenizer:
    """The tiny reasoner's."""
    return load_tokenizer(str(TINY))


def policy_of(content: dict[str, Any] | None = None, **changes: Any) -> Policy:
    """Stops when an answer repeats: at 4, where it is 5 again."""
    own = content or family_content("run-stability", 2.0)
    identity = words().identity([2])
    bound = {
        "model": {
            "name": "tiny-reasoner",
            "revision": content_revision(TINY),
            "tokenizer_sha256": identity["tokenizer_sha256"],
            "template_sha256": identity["template_sha256"],
        },
        "budgets": [0, 4, 12, 16, 200],
        "probe": {
            "closer": identity["think_close"],
            "cue": {"text": CUES["terse"], "ids": None},
            "cap": 16,
            "stop_ids": [2],
            "answer_cap": 64,
        },
        "sampling": {"greedy": True, "temperature": None, "seed": 5},
        "prompt_template": "{question}",
        "chat_template_kwargs": {},
        "entropy_source": "top-k:20",
        "max_think": 400,
    }
    return policy_from(own | bound | changes)


@dataclass
class FlatLogprobs:
    """Log-probabilities of several positions, as vLLM keeps and merges them."""

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def append(self, ids: list[int], logprobs: list[float]) -> None:
        """Add a position: the decoded token, then the likeliest ones."""
        self.start_indices.append(len(self.logprobs))
        self.token_ids += ids
        self.logprobs += logprobs
        self.end_indices.append(len(self.logprobs))

    def extend(self, others: FlatLogprobs) -> None:
        """Add further positions by way of dicts, which hold each token once."""
        for start, end in zip(others.start_indices, others.end_indices, strict=True):
            ids, values = others.token_ids[start:end], others.logprobs[start:end]
            named = dict(zip(ids, values, strict=True))
            self.append(list(named), list(named.values()))


def merged(earlier: Any, later: Any) -> Any:
    """Merge an output into one that was not fetched, as vLLM's `RequestOutput.add` does."""
    one, other = earlier.outputs[0], later.outputs[0]
    if one.logprobs is not None:
        one.logprobs.extend(other.logprobs)
    one.token_ids = [*one.token_ids, *other.token_ids]
    one.finish_reason = other.finish_reason
    earlier.finished |= later.finished
    return earlier


@dataclass
class FakeEngine(VllmEngine):
    """One engine; its fields may be changed while it runs."""

    story: Story = field(default_factory=Story)
    pace: float = 0.0
    """Seconds a token."""
    fails: tuple[str, ...] = ()
    """Kinds of requests that fail when they are sent: think, probe, answer."""
    hangs: tuple[str, ...] = ()
    """Kinds that never yield."""
    hanging: set[str] = field(default_factory=set)
    """Kinds of which a request is hanging."""
    without_logprobs: bool = False
    fetched_late: random.Random | None = None
    """Merges outputs at random, as happens when the event loop is busy."""
    likeliest: tuple[float, ...] = ()
    """Log-probabilities of each position, descending; by default one likely token, others equal."""
    waits: dict[str, int] = field(default_factory=dict)
    """Tokens at which a request's next output is due, as set by `wait`."""
    outputs: dict[str, int] = field(default_factory=dict)
    """Number of outputs by request."""
    ended: set[str] = field(default_factory=set)
    """Requests that were aborted by name."""
    running: dict[str, Any] = field(default_factory=dict)
    """Running requests, with their parameters."""
    asked: list[tuple[str, list[int], Any, int]] = field(default_factory=list)
    """Kind, ids, parameters and priority of every request."""
    traced: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    """Kind and trace headers of every request."""
    aborted: list[str] = field(default_factory=list)
    decoded: dict[str, int] = field(default_factory=dict)
    """Tokens by request."""

    def generate(
        self,
        ids: Sequence[int],
        parameters: Mapping[str, Any],
        name: str,
        *,
        final: bool,
        priority: int,
    ) -> AsyncGenerator[Any, None]:
        kind, asked = name.split("-")[2], SimpleNamespace(**parameters, final=final)
        self.traced.append((kind, TRACE_CONTEXT.get()))
        self.asked.append((kind, list(ids), asked, priority))
        return self._yield(kind, list(ids), asked, name)

    async def _yield(
        self, kind: str, ids: list[int], parameters: Any, name: str
    ) -> AsyncGenerator[Any, None]:
        assert name not in self.running
        self.running[name] = parameters
        unfetched: Any = None
        try:
            await asyncio.sleep(self.pace)
            if kind in self.fails:
                raise RuntimeError("the engine does not like it")
            while kind in self.hangs:
                self.hanging.add(kind)
                await asyncio.sleep(3600)
            said = self.story.after(ids[len(words().prompt_ids(QUESTION)) :])
            said = said[: parameters.max_tokens]
            brought, interval = 0, getattr(parameters, "stream_interval", 1)
            for number, token in enumerate(said, 1):
                await asyncio.sleep(self.pace)
                if name in self.ended:
                    last = self._output(said[brought : number - 1], parameters, "abort")
                    yield last if unfetched is None else merged(unfetched, last)
                    self.aborted.append(name)
                    return
                self.decoded[name] = number
                finished = number == len(said) or token in parameters.stop_token_ids
                wanted = self.waits.get(name, brought + interval)
                if parameters.final:
                    wanted = len(said)
                elif not brought:
                    wanted = 1
                if finished or number >= wanted:
                    self.waits.pop(name, None)
                    self.outputs[name] = self.outputs.get(name, 0) + 1
                    reason = "stop" if token in parameters.stop_token_ids else "length"
                    output = self._output(
                        said[brought:number], parameters, reason if finished else None
                    )
                    output = output if unfetched is None else merged(unfetched, output)
                    brought, unfetched = number, None
                    if self.fetched_late and not finished and self.fetched_late.random() < 0.5:
                        unfetched = output
                    else:
                        yield output
                if finished:
                    return
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.append(name)
            raise
        finally:
            del self.running[name]

    async def abort(self, name: str) -> None:
        self.ended.add(name)

    def wait(self, name: str, tokens: int) -> None:
        self.waits[name] = tokens

    def _output(self, tokens: list[int], parameters: Any, reason: str | None) -> Any:
        rows, k = None, getattr(parameters, "logprobs", None)
        if k is not None and not self.without_logprobs:
            rows = FlatLogprobs()
            for token in tokens:
                likeliest = self.likeliest or _one_likely_token()
                likeliest = likeliest if k < 0 else likeliest[:k]
                others = range(10_000, 10_000 + len(likeliest) - 1)
                ids = [token, *([token, *others] if likeliest else [])]
                rows.append(ids, [*(likeliest[:1] or (-0.25,)), *likeliest])
        output = SimpleNamespace(token_ids=tokens, logprobs=rows, finish_reason=reason)
        return SimpleNamespace(outputs=[output], num_cached_tokens=16, finished=reason is not None)


def _one_likely_token() -> tuple[float, ...]:
    others = FACTS.vocabulary - 1
    return (-0.25, *[math.log((1 - math.exp(-0.25)) / others)] * others)


def bound_at(
    engine: FakeEngine, policy: Policy | None = None, any_text: bool = False, **changes: Any
) -> BoundPolicy:
    """A policy at this engine."""
    found = [(Path("policy.joblib"), policy or policy_of())]
    settings = ServeSettings(found[0][0], any_text=any_text)
    (bound,) = bind_policies(found, replace(FACTS, **changes), loaded(), engine, settings)
    return bound


def route_at(
    engine: FakeEngine,
    policy: Policy | None = None,
    *,
    path: Path = Path("policy.joblib"),
    shadow: bool = False,
    audit: AuditSettings | None = None,
    shows_cached: bool = False,
    **changes: Any,
) -> PolicyRoute:
    """The plugin's route under a policy at this engine."""
    metrics, settings = Metrics(CollectorRegistry()), ServeSettings(path, shadow, audit=audit)
    facts, auditors = replace(FACTS, **changes), Auditors(audit, metrics, lambda code: None)
    bound = bound_at(engine, policy, **changes)
    auditors.open([bound.policy])
    parts = (settings, facts, loaded(), engine, metrics, auditors)
    return PolicyRoute(*parts, shows_cached, (bound,))
