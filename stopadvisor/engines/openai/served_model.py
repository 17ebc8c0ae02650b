"""A served model with its tokenizer: traces, forced answers and visible answers, one at a time.

A server ends an answer by its own rules only, so the rules of the hf engine are applied here to its
tokens, one by one.  Knows no batches, no policy and no gold.
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
from stopadvisor.engines.model_files import LoadedTokenizer, load_tokenizer, served_identity
from stopadvisor.engines.openai.endpoint import Endpoint, find_endpoint
from stopadvisor.engines.sampling import Sampling, entropy_top_k, thinking_room
from stopadvisor.engines.trace import Figures, Trace, TraceEnd, mean_figures, token_figures
from stopadvisor.ground.errors import EngineError, ModelError
from stopadvisor.probes.asking import ProbePlan, Prompt

__all__ = ["NO_ENTROPY", "ServedModel", "open_client"]

NO_ENTROPY = "none"
"""Entropy source of an endpoint that returns no log-probabilities."""
_GREEDY: Mapping[str, Any] = {
    "temperature": 0.0,
    "top_k": -1,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""All said, as a server would fill in the model's own."""


@dataclass(frozen=True)
class ServedModel:
    """Everything a request needs except its question."""

    client: Client
    chat: Chat
    stop_ids: tuple[int, ...]
    stops: AnswerStops = field(repr=False)
    """The ending rule of forced answers."""
    generation: Any = field(repr=False)
    """The model's own generation settings."""
    endpoint: Endpoint

    def identity(self) -> dict[str, Any]:
        """Return what is known of the model that determines its outcomes, wherever it is served."""
        name = self.endpoint.root or self.client.model
        identity = served_identity("openai", self.endpoint.server, name, generation=self.generation)
        return identity | self.chat.identity(self.stop_ids)

    def sampling(self, plan: ProbePlan) -> Sampling:
        """Return how this plan's traces are drawn, or refuse as `Sampling.of`."""
        return Sampling.of(self.generation, plan)

    def check_entropy(self, entropy: str) -> int | None:
        """Return how many log-probabilities to ask for; None for ``none``; refuses too many."""
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
        """Return how many likeliest tokens an entropy source takes; ``full`` is all of them."""
        return entropy_top_k(entropy) or self.stops.vocabulary

    def begin(
        self,
        prompt_ids: Sequence[int],
        prompt: Prompt,
        plan: ProbePlan,
        *,
        replica: int | None = None,
    ) -> Trace:
        """Return a trace of which nothing is drawn yet.

        `prompt` seeds the sampling; see `Client.assign_replica` for the replica.
        """
        room = self.thinking_room(prompt_ids, plan)
        end = TraceEnd(self.chat.closer.ids, self.stop_ids, room, plan.answer_cap)
        return Trace(prompt_ids, prompt, plan, replica, end)

    async def extend(
        self, trace: Trace, *, until: int | None = None, grown: Callable[[], None] | None = None
    ) -> None:
        """Draw on until the trace is over, or until there are `until` tokens after the prompt.

        One request where nothing is left out; a further one where a closer holds an id at which the
        server stops by itself.  Sampled parts have seeds of their own, so that a trace drawn in
        parts is another one than the same drawn at once; greedy they are equal.  Where `grown` is
        to be told of further tokens, they are streamed; a stream that breaks off is resumed after
        the ids that came.  Cancelling closes the connection, and the server gives the request up.
        A server that refuses, or fails for longer than its retry time-out, is an `EngineError`.
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
        """Return the plan's cap on thinking, or less; see `sampling.thinking_room`."""
        return thinking_room(self.endpoint.context, len(prompt_ids), self.chat, plan)

    async def force(self, trace: Trace, at: int, *, precise: bool = False) -> ForcedAnswer:
        """Force a short answer after `at` tokens of thinking, greedily; always as `precise`.

        Ends, counts and means as in `engines.hf.branch.probe_branches`; the entropy is over the K
        likeliest tokens of the plan's ``top-k:K``, with their raw probabilities.  After an open
        cue a further request asks what follows the answer's newline.  Errors are those of `extend`
        and `check_entropy`; also where the server leaves out what it was asked for.
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
                # A newline ends the request; one before any content does not end the answer.
                stop=["\n"],
                **_GREEDY,
            )
            new = self._new_ids(answer, newline=True)
            return new, [(0.0, 0.0, 0.0)] * len(new) if k is None else _figures(answer, k)

        forced = AnswerTokens(self.stops.after_cue(plan.cue))
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
        """Close the thinking after `at` tokens and let the model write its visible answer.

        `show` gets the tokens of each request when it is over.  Errors are those of `extend`.
        """
        closer, plan = self.chat.closer.ids, trace.plan
        ids: list[int] = []
        over = False
        while not over:  # once, unless the server has a limit of its own below the cap
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
        """Return how a trace is drawn on after `at` tokens, with a seed of that part's own.

        All is said, or a server fills in the model's own.
        """
        sampling = self.sampling(trace.plan)
        fields: dict[str, Any] = {**vars(sampling), "top_k": sampling.top_k or -1}
        if sampling.temperature != 0:
            name = f"{trace.plan.seed}:{trace.prompt.key}:{trace.prompt.sample}:{at}".encode()
            fields["seed"] = int.from_bytes(hashlib.sha256(name).digest()[:4], "big") >> 1
        return fields

    async def _continue(self, trace: Trace, prefix: Sequence[int], **options: Any) -> Completion:
        """Ask once; refuse an answer to anything but what was sent."""
        answer = await self.client.complete(
            prefix, stop_token_ids=self.stop_ids, replica=trace.replica, **options
        )
        # A stream that did not come to its end may not have come to its counts.
        counted = answer.prompt_tokens or answer.finish_reason in ("stop", "length")
        if counted and answer.prompt_tokens != len(prefix):
            raise EngineError(
                f"the server counts {answer.prompt_tokens} prompt tokens where {len(prefix)} ids "
                "were sent: it does not take ids as they are"
            )
        return answer

    def _new_ids(self, answer: Completion, *, newline: bool = False) -> list[int]:
        """Return the ids of an answer, the ending one included."""
        if answer.token_ids is None:
            raise EngineError("the server returns no token ids, as return_token_ids asks")
        ids = self._known(answer.token_ids)
        last = ids[-1:]  # what ended it; with `newline` that may be a newline, too
        seen = bool(last) and (
            last[0] in self.stop_ids or (newline and "\n" in self.chat.decode(last))
        )
        if answer.finish_reason == "stop" and not seen:
            ids.append(self.stop_ids[0])  # some servers keep the ending token to themselves
        if not ids:
            raise EngineError(
                f"the server returns no token, and {answer.finish_reason!r} as the reason"
            )
        return ids

    def _known(self, ids: Sequence[int]) -> list[int]:
        """Return the ids, unless the tokenizer does not have one of them."""
        known = self.stops.vocabulary
        if ids and max(ids) >= known:
            raise EngineError(
                f"the server returns the token {max(ids)}, the tokenizer has {known}: it serves "
                "another model"
            )
        return list(ids)


def _figures(answer: Completion, k: int) -> list[Figures]:
    """Return the figures of an answer's tokens; one that was put there for the server has none."""
    length = len(answer.token_ids or ())
    logprobs, top = answer.logprobs or (), answer.top_logprobs or ()
    if len(logprobs) < length or len(top) < length:
        raise EngineError(
            f"the server returns no log-probabilities for some of {length} tokens, as logprobs={k} "
            "asks"
        )
    return [token_figures(logprobs[i], top[i][:k]) for i in range(length)]


# --- Opening -------------------------------------------------------------------------------------


async def open_client(
    client: Client,
    *,
    tokenizer: str | None = None,
    think_open: str | None = None,
    think_close: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> ServedModel:
    """Open the model of a client within a running event loop; refused, the client is closed.

    `tokenizer` is a folder or a name; by default what the server names as the model's origin, else
    the model.  Errors are those of `opening.open_servers`.
    """
    # Transformers says on import that torch is missing; nothing here needs it.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    model, key = client.model, client.key
    try:
        endpoint = await find_endpoint(client)
        # May download: what is waited for can be interrupted, what holds the loop up cannot.
        load = partial(_load_tokenizer, tokenizer, model, endpoint.root)
        found = await run_sync(load, abandon_on_cancel=True)
        chat = Chat.of(
            found.tokenizer,
            think_open=think_open,
            think_close=think_close,
            template_kwargs=chat_template_kwargs,
        )
        if key is not None:
            chat = replace(chat, hide=key.hide_in_text)
        # Decodes a whole vocabulary, which would hold up the event loop.
        stops = await run_sync(AnswerStops.of, chat, found.stop_ids, len(found.tokenizer))
        await _check_tokenizer(client, chat)
        return ServedModel(
            client=client,
            chat=chat,
            stop_ids=found.stop_ids,
            stops=stops,
            generation=found.generation,
            endpoint=endpoint,
        )
    except BaseException:
        with CancelScope(shield=True):  # cancelled, it would close nothing
            await client.aclose()
        raise


def _load_tokenizer(named: str | None, model: str, root: str | None) -> LoadedTokenizer:
    """Load the tokenizer from where the user says it is, else from where the model came from."""
    if named is not None:
        return load_tokenizer(named)
    # A path of the server's machine is no name that anything here could be found under.
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
    """Refuse our tokenizer where the server shows that its own splits text differently."""
    text = chat.render([{"role": "user", "content": "What is 17 + 25?"}])
    body = {"model": client.model, "prompt": text, "add_special_tokens": False}
    for number, url in enumerate(client.urls):
        try:
            found = await client.ask(
                "POST", "//tokenize", body, replica=number, opening=True, optional=True
            )
        except EngineError:
            continue  # not every server has it
        if found.get("tokens") not in (None, chat.encode(text)):
            raise ModelError(
                f"the tokenizer of {chat.tokenizer.name_or_path!r} is not the one that {url} uses: "
                "they split the same text differently; name the right one with --tokenizer"
            )
