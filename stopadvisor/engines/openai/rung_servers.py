"""Whole replies of a ladder's rungs: one chat completion each, from the rung's own server.

Rungs whose models run here are asked through `local`.  Knows no policy file and no gold.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from anyio.from_thread import BlockingPortal, start_blocking_portal

from stopadvisor.engines.http.client import (
    FINAL,
    REQUEST_TIMEOUT,
    RETRY_TIMEOUT,
    Client,
    Refused,
    Unreachable,
)
from stopadvisor.engines.http.key import ForwardedKey, Key
from stopadvisor.engines.openai.each import ask_each
from stopadvisor.ground.constants import POLICY_HEADER
from stopadvisor.ground.errors import EngineError, ModelError
from stopadvisor.ground.fields import MOST_TOKENS, plain
from stopadvisor.policy.requests import RungAnswer
from stopadvisor.probes.asking import Prompt
from stopadvisor.runs.ladder import Ladder, Rung

__all__ = ["RungServers", "open_rungs", "request_of"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_PATIENCE = 5.0
"""Seconds for which a cheap rung is retried before the request climbs."""
_REST = 30.0
"""Seconds for which a rung is skipped after it was down."""
_SENT = ("model", "temperature", "reasoning_effort", "chat_template_kwargs")
_THINKING_BEGINS, _THINKING_ENDS = "<think>", "</think>"


def request_of(
    rung: Rung, messages: Sequence[Mapping[str, Any]], *, max_tokens: int | None, logprobs: bool
) -> dict[str, Any]:
    """The request body for a rung."""
    given = {name: value for name, value in plain(rung).items() if name in _SENT}
    asked = {"max_tokens": max_tokens, "logprobs": logprobs or None}
    asked = {name: value for name, value in asked.items() if value is not None}
    return {**given, "messages": [dict(message) for message in messages], **asked}


def _read(data: Mapping[str, Any], seconds: float) -> RungAnswer:
    """Read a server's answer; `EngineError` if it is not a chat completion."""
    try:
        (choice,) = data["choices"]
        message, usage = choice["message"], data["usage"]
        thinking, _, text = (message.get("content") or "").rpartition(_THINKING_ENDS)
        shown = message.get("reasoning") or message.get("reasoning_content") or thinking
        details = usage.get("prompt_tokens_details") or {}
        prompt, decoded = usage["prompt_tokens"], usage["completion_tokens"]
        cached = min(details.get("cached_tokens") or 0, prompt)
        if not isinstance(shown, str) or not all(
            type(count) is int and 0 <= count <= MOST_TOKENS for count in (prompt, decoded, cached)
        ):
            raise TypeError("a text or a count is of the wrong type")
        tokens = [float(t["logprob"]) for t in (choice.get("logprobs") or {}).get("content") or ()]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise EngineError(f"no chat completion ({type(error).__name__}: {error})") from error
    mean = min(sum(tokens) / len(tokens), 0.0) if tokens else None
    return RungAnswer(
        choice.get("finish_reason") == "stop",
        text.strip(),
        shown.removeprefix(_THINKING_BEGINS).strip(),
        prompt,
        cached,
        decoded,
        mean if mean is not None and mean > -1e6 else None,  # neither NaN nor infinite
        seconds,
    )


class RungServers:
    """The servers of a ladder's rungs, within one event loop.

    A cheap rung that refuses or replies with nonsense is skipped; one that is down or busy is
    retried for five seconds, then skipped for thirty.  The reference is retried for `patience`
    seconds; when recording (`climbs` is false), so is every rung.  A server that refuses
    log-probabilities is asked without.  `on_wait` is called with one line when a server that is not
    skipped keeps us waiting.  For a gateway, `rung_timeout` limits the reply of a cheap rung, and
    with `forwards` a client's own key goes to the reference's server only.  `local` asks rungs
    whose models run here.  `portal` leads to the event loop, for callers outside it.  Raises
    ModelError if a rung lacks a model or a server, or a key is unset.
    """

    def __init__(
        self,
        ladder: Ladder,
        *,
        concurrency: int,
        request_timeout: float = REQUEST_TIMEOUT,
        patience: float = RETRY_TIMEOUT,
        rung_timeout: float | None = None,
        climbs: bool = True,
        on_wait: Callable[[str], None] | None = None,
        forwards: bool = False,
        local: Callable[[Rung, Prompt, int | None], Awaitable[RungAnswer]] | None = None,
        portal: BlockingPortal | None = None,
    ) -> None:
        self.ladder, self._climbs, self._local, self._portal = ladder, climbs, local, portal
        # Not asked for log-probabilities: with them a server does not apply its policy.
        self._silent = {rung.name for rung in ladder.rungs if rung.policy_digest is not None}
        self._clients: dict[str, Client] = {}
        # Rungs at one server share its concurrency.
        places = {rung.base_url: asyncio.Semaphore(concurrency) for rung in ladder.rungs}
        self._free = {rung.name: places[rung.base_url] for rung in ladder.rungs}
        self.concurrency, self.size = concurrency, concurrency * len(places)
        self._down: dict[str, tuple[float, str]] = {}
        tell = None if on_wait is None else cache(on_wait)  # one line for rungs at one server
        for rung in ladder.rungs:
            if rung.engine == "hf":
                continue
            if rung.base_url is None or rung.model is None:
                raise ModelError(f"rung {rung.name!r}: it takes model and base_url, got none")
            key = None
            if rung.api_key_env is not None:
                key = Key.of_environment(rung.api_key_env, required=True)
            elif forwards and _origin(rung.base_url) == _origin(ladder.reference.base_url):
                key = ForwardedKey()
            can_climb = climbs and rung is not ladder.reference
            self._clients[rung.name] = Client(
                [rung.base_url],
                rung.model,
                key=key,
                request_timeout=(rung_timeout if can_climb else None) or request_timeout,
                retry_timeout=min(patience, _PATIENCE) if can_climb else patience,
                on_wait=None if can_climb else tell,
            )

    async def aclose(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()

    def each(
        self, items: Sequence[_Item], ask: Callable[[_Item], Awaitable[_Result]], size: int
    ) -> Iterator[tuple[int, _Result]]:
        """Call `ask` for each item from outside the event loop; see `each.ask_each`."""
        assert self._portal is not None
        return ask_each(self._portal, items, ask, size)

    async def listed(self, seconds: float) -> Mapping[str, Any]:
        """Return the reference server's list of models, before asking it anything else.

        Raises `Unreachable` if it is down or takes longer than `seconds`.
        """
        client = self._clients[self.ladder.reference.name]
        usual, client.request_timeout = client.request_timeout, seconds
        try:
            return await client.ask("GET", "/models", opening=True)
        except Unreachable:
            raise
        except EngineError:  # it lists none
            return {}
        finally:
            client.request_timeout = usual

    async def ask(
        self, rung: Rung, prompt: Prompt, *, max_tokens: int | None = None, logprobs: bool = False
    ) -> RungAnswer:
        """Ask a rung; if a cheap one cannot answer, the reply says why (`down`).

        Raises EngineError if the reference cannot answer, or if a rung cannot be reached while
        recording.
        """
        if rung.name not in self._clients:
            assert self._local is not None  # `open_ladder` loaded its model
            return (await self._local(rung, prompt, max_tokens)).of(rung)
        can_climb = rung.name != self.ladder.reference.name
        until, why = self._down.get(rung.name, (0.0, ""))
        if can_climb and time.monotonic() < until:
            return RungAnswer(finished=False, down=why, name=rung.name)
        async with self._free[rung.name]:
            began = time.monotonic()
            try:
                data = await self._send(rung, prompt, max_tokens, logprobs=logprobs)
                return _judged(rung, _read(data, time.monotonic() - began), data).of(rung)
            except EngineError as error:
                is_gone = isinstance(error, Unreachable)  # a refusal concerns only this question
                is_final = isinstance(error, Refused) and error.status in FINAL
                if not can_climb or ((is_gone or is_final) and not self._climbs):
                    raise
                if is_gone:
                    self._down[rung.name] = time.monotonic() + _REST, str(error)
                seconds = time.monotonic() - began
                return RungAnswer(finished=False, seconds=seconds, down=str(error), name=rung.name)

    async def _send(
        self, rung: Rung, prompt: Prompt, max_tokens: int | None, *, logprobs: bool
    ) -> dict[str, Any]:
        client, asks = self._clients[rung.name], logprobs and rung.name not in self._silent
        body = request_of(rung, prompt.messages, max_tokens=max_tokens, logprobs=asks)
        header = None if rung.policy_digest is None else POLICY_HEADER
        try:
            return await client.ask("POST", "/chat/completions", body, header=header)
        except Refused as error:
            if not asks or error.status in FINAL:
                raise
        del body["logprobs"]
        data = await client.ask("POST", "/chat/completions", body)
        self._silent.add(rung.name)
        return data


def _judged(rung: Rung, answer: RungAnswer, data: Mapping[str, Any]) -> RungAnswer:
    """Return the answer, marked as not to be served unless the rung's policy gave it."""
    if rung.policy_digest is None:
        return answer
    header, digest = data[POLICY_HEADER], f"{rung.policy_digest:.8}"
    if header.startswith("policy;") and f"digest={digest}" in header:
        return answer
    why = f"expected a reply under policy {digest}, got {header or 'none':.80}"
    return replace(answer, finished=False, text="", reasoning="", down=why)


def _origin(url: str | None) -> tuple[str, str]:
    parts = urlsplit(url or "")
    return parts.scheme, parts.netloc


@contextmanager
def open_rungs(ladder: Ladder, **how: Any) -> Iterator[RungServers]:
    """Open the servers of a ladder in an event loop of their own; see `RungServers`."""
    with start_blocking_portal() as portal:
        servers = RungServers(ladder, portal=portal, **how)
        try:
            yield servers
        finally:
            portal.call(servers.aclose)
