"""A model at a server with its tokenizer: generates one trace or answer at a time.

A server ends answers only by its own rules, so ours are applied to its tokens here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from anyio import CancelScope
from anyio.to_thread import run_sync

from stopadvisor.engines.answer_end import AnswerStops, AnswerTokens, ForcedAnswer
from stopadvisor.engines.chat import Chat
from stopadvisor.engines.http.client import Client, Completion
from stopadvisor.engines.live import Grown
from stopadvisor.engines.model_files import LoadedTokenizer, load_tokenizer, served_identity
from stopadvisor.engines.openai.endpoint import Endpoint, find_endpoint
from stopadvisor.engines.sampling import Sampling, entropy_top_k, thinking_room
from stopadvisor.engines.trace import Figures, Trace, TraceEnd, mean_figures, token_figures
from stopadvisor.ground.errors import EngineError, ModelError
from stopadvisor.probes.asking import ProbePlan, Prompt, is_open_cue

__all__ = ["NO_ENTROPY", "ServedModel", "open_client"]

NO_ENTROPY = "none"
"""Entropy source without log-probabilities."""
_GREEDY: Mapping[str, Any] = {
    "temperature": 0.0,
    "top_k": -1,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""All fields are given, or the server would fill in the model's own defaults."""


@dataclass(frozen=True)
class ServedModel:
    """A client with the model's tokenizer, settings and capabilities."""

    client: Client
    stop_ids: tuple[int, ...]
    stops: AnswerStops = field(repr=False)
    """The rules that end a forced answer, with the `chat`."""
    generation: Any = field(repr=False)
    """The model's own generation settings."""
    endpoint: Endpoint

    @property
    def chat(self) -> Chat:
        """Tokenizer and thinking markers."""
        return self.stops.chat

    def identity(self) -> dict[str, Any]:
        """Return the properties of the model that determine the outcome."""
        name = self.endpoint.root or self.client.model
        identity = served_identity("openai", self.endpoint.server, name, generation=self.generation)
        return identity | self.chat.identity(self.stop_ids)

    def sampling(self, plan: ProbePlan) -> Sampling:
        """Return this plan's sampling settings; raises as `Sampling.of`."""
        return Sampling.of(self.generation, plan)

    def check_entropy(self, entropy: str) -> int | None:
        """Return how many log-probabilities to request (None for ``none``); refuse too many."""
        if entropy == NO_ENTROPY:
            return None
        k = self.top_of(entropy)
        if k > self.endpoint.top_limit:
            best = f"top-k:{self.endpoint.top_limit}" if self.endpoint.top_limit else NO_ENTROPY
            raise ModelError(
                f"--entropy must be {best} or less at this server, which gives "
                f"{self.endpoint.top_limit} log-probabilities per token, got {entropy!r}"
            )
        return k

    def top_of(self, entropy: str) -> int:
        """Return the K of an entropy source; ``full`` is the whole vocabulary."""
        return entropy_top_k(entropy) or self.stops.vocabulary

    def begin(self, prompt_ids: Sequence[int], prompt: Prompt, plan: ProbePlan) -> Trace:
        """Return an empty trace, assigned to one of the servers."""
        room = self.thinking_room(prompt_ids, plan)
        end = TraceEnd(self.chat.closer.ids, self.stop_ids, room, plan.answer_cap)
        return Trace(prompt_ids, prompt, plan, self.client.assign_replica(), end)

    def think(self, trace: Trace, grown: Grown | None, *, needs_ids: bool) -> ResumedThinking:
        """See `live.Backend`; nothing is generated before `reach` asks for it."""
        del needs_ids
        return ResumedThinking(self, trace, grown)

    async def extend(
        self, trace: Trace, *, until: int | None = None, grown: Callable[[], None] | None = None
    ) -> None:
        """Generate until the trace is over or has `until` tokens after the prompt.

        Usually one request; more only if the closer contains a stop id or the server stops early.
        Each part has its own seed, so a trace sampled in parts differs from one sampled whole
        (greedy traces are equal).  With `grown` tokens are streamed, and a broken stream is resumed
        after its last token.  Cancelling aborts the request.  Raises `EngineError` if the server
        refuses, or fails until the retry time-out.
        """

        def take(new: Sequence[int]) -> bool:
            trace.take(self._known(new))
            if grown is not None:
                grown()
            return not trace.end.over

        most = trace.end.most if until is None else min(until, trace.end.most)
        while not trace.end.over and len(trace.ids) < most:
            at = len(trace.ids)
            answer = await self._continue(
                trace,
                [*trace.prompt_ids, *trace.ids],
                take=None if grown is None else take,
                max_tokens=most - at,
                **self._drawn_as(trace, at),
            )
            if answer.finish_reason != "broken" and not trace.end.over:
                take(self._new_ids(answer)[len(trace.ids) - at :])

    def thinking_room(self, prompt_ids: Sequence[int], plan: ProbePlan) -> int:
        """See `sampling.thinking_room`."""
        return thinking_room(self.endpoint.context, len(prompt_ids), self.chat, plan)

    async def force(self, trace: Trace, at: int, *, precise: bool = False) -> ForcedAnswer:
        """Force a short greedy answer after `at` thinking tokens; always `precise`.

        Endings, counts and means are as in `engines.hf.branch.probe_branches`, with the entropy
        over the K likeliest tokens of the plan's ``top-k:K``.  After an open cue, a second request
        reads past the answer's newline.  Raises as `extend` and `check_entropy`.
        """
        del precise
        plan = trace.plan
        suffix, k = self.chat.suffix_ids(plan.cue), self.check_entropy(plan.entropy)

        async def ask(ids: Sequence[int], limit: int) -> tuple[Sequence[int], list[Figures]]:
            answer = await self._continue(
                trace,
                [*trace.prompt_ids, *trace.ids[:at], *suffix, *ids],
                max_tokens=limit,
                logprobs=k,
                # A newline before any content ends the request, but not the answer.
                stop=["\n"],
                **_GREEDY,
            )
            new = self._new_ids(answer, newline=True)
            return new, [(0.0, 0.0, 0.0)] * len(new) if k is None else _figures(answer, k)

        forced = AnswerTokens(self.stops, is_open=is_open_cue(plan.cue))
        rows = await forced.decode(ask, plan.cap)
        if len(rows) < forced.counted:
            raise EngineError(
                "the server returns no log-probability of a token that ends an answer"
            )
        trace.probe_tokens += len(forced.ids)
        logprob, entropy, tail = mean_figures(rows)
        return forced.forced(logprob, entropy, None if k is None else tail)

    async def write(
        self, trace: Trace, at: int, show: Callable[[Sequence[int]], None] | None = None
    ) -> list[int]:
        """Close the thinking after `at` tokens and generate the visible answer.

        Calls `show` with the tokens of each finished request.  Raises as `extend`.
        """
        closer, plan = self.chat.closer.ids, trace.plan
        ids: list[int] = []
        over = False
        while not over:  # once, unless the server's own token limit is lower
            drawn = at + len(closer) + len(ids)
            answer = await self._continue(
                trace,
                [*trace.prompt_ids, *trace.ids[:at], *closer, *ids],
                max_tokens=plan.answer_cap - len(ids),
                **self._drawn_as(trace, drawn),
            )
            before = len(ids)
            for token in self._new_ids(answer):
                ids.append(token)
                if over := token in self.stop_ids or len(ids) >= plan.answer_cap:
                    break
            if show is not None:
                show(ids[before:])
        return ids

    def _drawn_as(self, trace: Trace, at: int) -> dict[str, Any]:
        """Return all sampling fields, and a seed, for continuing a trace after `at` tokens."""
        sampling = self.sampling(trace.plan)
        fields: dict[str, Any] = {**vars(sampling), "top_k": sampling.top_k or -1}
        if sampling.temperature != 0:
            name = f"{trace.plan.seed}:{trace.prompt.key}:{trace.prompt.sample}:{at}".encode()
            fields["seed"] = int.from_bytes(hashlib.sha256(name).digest()[:4], "big") >> 1
        return fields

    async def _continue(self, trace: Trace, prefix: Sequence[int], **options: Any) -> Completion:
        """Send one request; raise if the server counts the prompt's tokens differently."""
        answer = await self.client.complete(
            prefix, stop_token_ids=self.stop_ids, replica=trace.replica, **options
        )
        # A broken or closed stream may end before its counts.
        counted = answer.prompt_tokens or answer.finish_reason in ("stop", "length")
        if counted and answer.prompt_tokens != len(prefix):
            raise EngineError(
                f"the server counts {answer.prompt_tokens} prompt tokens where {len(prefix)} ids "
                "were sent: it does not take ids as they are"
            )
        return answer

    def _new_ids(self, answer: Completion, *, newline: bool = False) -> list[int]:
        """Return the token ids of an answer, including the ending one."""
        if answer.token_ids is None:
            raise EngineError("the server returns no token ids, though return_token_ids is set")
        ids = self._known(answer.token_ids)
        last = ids[-1:]  # the ending token; with `newline` it may contain a newline
        seen = bool(last) and (
            last[0] in self.stop_ids or (newline and "\n" in self.chat.decode(last))
        )
        if answer.finish_reason == "stop" and not seen:
            ids.append(self.stop_ids[0])  # some servers leave out the ending token
        if not ids:
            raise EngineError(
                f"the server returns no token, and {answer.finish_reason!r} as the reason"
            )
        return ids

    def _known(self, ids: Sequence[int]) -> list[int]:
        """Return the ids; raise if the tokenizer lacks one."""
        known = self.stops.vocabulary
        if ids and max(ids) >= known:
            raise EngineError(
                f"the server returns the token {max(ids)}, the tokenizer has {known}: it serves "
                "another model"
            )
        return list(ids)


@dataclass(frozen=True)
class ResumedThinking:
    """A `live.Thinking` that generates only as far as `reach` asks."""

    model: ServedModel
    trace: Trace
    grown: Grown | None

    async def reach(self, tokens: int | None) -> None:
        """Generate up to this many tokens, or to the end."""
        await self.model.extend(self.trace, until=tokens, grown=self.grown)

    async def give_up(self) -> None:
        """Do nothing: no request is running between two calls of `reach`."""


def _figures(answer: Completion, k: int) -> list[Figures]:
    length = len(answer.token_ids or ())
    logprobs, top = answer.logprobs or (), answer.top_logprobs or ()
    if len(logprobs) < length or len(top) < length:
        raise EngineError(
            f"the server returns no log-probabilities for some of {length} tokens, though "
            f"logprobs={k} is set"
        )
    return [token_figures(logprobs[i], top[i][:k]) for i in range(length)]


# --- Opening -------------------------------------------------------------------------------------


async def open_client(
    client: Client,
    *,
    tokenizer: str | None = None,
    think_tags: tuple[str, str] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> ServedModel:
    """Open the model of a client; close the client if that fails.

    `tokenizer` is a folder or Hub name; by default the model's origin as the server reports it,
    else the model.  Raises as `opening.open_servers`.
    """
    # Silences transformers' notice that torch is missing, which is not needed here.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    model, key = client.model, client.key
    try:
        endpoint = await find_endpoint(client)
        # May download: waiting in a thread can be interrupted.
        load = partial(_load_tokenizer, tokenizer, model, endpoint.root)
        loaded = await run_sync(load, abandon_on_cancel=True)
        chat = Chat.of(
            loaded.tokenizer, think_tags=think_tags, template_kwargs=chat_template_kwargs
        )
        if key is not None:
            chat = replace(chat, hide=key.hide_in_text)
        # Decodes the whole vocabulary, which would block the event loop.
        stops = await run_sync(AnswerStops.of, chat, loaded.stop_ids, len(loaded.tokenizer))
        await _check_tokenizer(client, chat)
        return ServedModel(
            client=client,
            stop_ids=loaded.stop_ids,
            stops=stops,
            generation=loaded.generation,
            endpoint=endpoint,
        )
    except BaseException:
        with CancelScope(shield=True):  # else a cancelled task could not close it
            await client.aclose()
        raise


def _load_tokenizer(named: str | None, model: str, root: str | None) -> LoadedTokenizer:
    """Load the tokenizer that the user `named`, else that of the model or its origin."""
    if named is not None:
        return load_tokenizer(named)
    # A path on the server's machine cannot be looked up here.
    name = root if root and not Path(root).is_absolute() else model
    folders = (place for place in (model, root) if place and Path(place).is_dir())
    try:
        return load_tokenizer(next(folders, name))
    except ModelError as error:
        raise ModelError(
            f"{error}; the served model's own tokenizer is needed here: name its folder or its "
            "name on the Hub with --tokenizer"
        ) from error


async def _check_tokenizer(client: Client, chat: Chat) -> None:
    """Refuse our tokenizer if the server's own splits a text differently."""
    text = chat.render([{"role": "user", "content": "What is 17 + 25?"}])
    body = {"model": client.model, "prompt": text, "add_special_tokens": False}
    for number, url in enumerate(client.urls):
        try:
            reply = await client.ask(
                "POST", "//tokenize", body, replica=number, opening=True, optional=True
            )
        except EngineError:
            continue  # not every server has it
        if reply.get("tokens") not in (None, chat.encode(text)):
            raise ModelError(
                f"the tokenizer of {chat.tokenizer.name_or_path!r} is not the one that {url} uses: "
                "they split the same text differently; name the right one with --tokenizer"
            )
