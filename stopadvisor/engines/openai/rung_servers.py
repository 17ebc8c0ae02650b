"""Whole replies of a ladder's rungs: one chat completion each, at the rung's own server.

Rungs whose models run here are handed on.  Knows how a rung is asked and how its reply is read;
nothing of policies, files or who is right.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self
from urllib.parse import urlsplit

from anyio.from_thread import BlockingPortal, start_blocking_portal

from stopadvisor.engines.asked_rungs import AskedReply, LocalRungs, RungAnswer
from stopadvisor.engines.http.client import (
    FINAL,
    REQUEST_TIMEOUT,
    RETRY_TIMEOUT,
    Client,
    Refused,
    Unreachable,
)
from stopadvisor.engines.http.key import ForwardedKey, Key
from stopadvisor.engines.openai.each import asked_each
from stopadvisor.ground.errors import EngineError, ModelError
from stopadvisor.probes.asking import Prompt
from stopadvisor.runs.ladder import Ladder, Rung

__all__ = ["AskedRungs", "RungServers", "open_rungs", "reply_of", "request_of"]

_PATIENCE = 5.0
"""Seconds for which a rung that can be climbed past is asked again before it is."""
_REST = 30.0
"""Seconds for which a rung that was down is climbed past without being asked."""
_THINKING_BEGINS, _THINKING_ENDS = "<think>", "</think>"


def request_of(
    rung: Rung, messages: Sequence[Mapping[str, Any]], *, max_tokens: int | None, logprobs: bool
) -> dict[str, Any]:
    """The body of a rung's request."""
    asked: dict[str, Any] = {
        "model": rung.model,
        "messages": [dict(message) for message in messages],
        "max_tokens": max_tokens,
        "temperature": rung.temperature,
        "reasoning_effort": rung.reasoning_effort,
        "chat_template_kwargs": None
        if rung.chat_template_kwargs is None
        else dict(rung.chat_template_kwargs),
        "logprobs": logprobs or None,
    }
    return {name: value for name, value in asked.items() if value is not None}


def reply_of(data: Mapping[str, Any], seconds: float = 0.0) -> RungAnswer:
    """Read the answer of a server.

    Raises
    ------
    EngineError
        It is no chat completion.
    """
    try:
        (choice,) = data["choices"]
        message = choice["message"]
        thinking, _, text = (message.get("content") or "").rpartition(_THINKING_ENDS)
        shown = message.get("reasoning") or message.get("reasoning_content") or thinking
        usage = data["usage"]
        details = usage.get("prompt_tokens_details") or {}
        prompt, decoded = usage["prompt_tokens"], usage["completion_tokens"]
        cached = min(details.get("cached_tokens") or 0, prompt)
        if not isinstance(shown, str) or not all(
            type(count) is int and count >= 0 for count in (prompt, decoded, cached)
        ):
            raise TypeError("its text or its counts are none")
        tokens = [float(t["logprob"]) for t in (choice.get("logprobs") or {}).get("content") or ()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"no chat completion ({type(error).__name__}: {error})") from error
    mean = min(sum(tokens) / len(tokens), 0.0) if tokens else None
    return RungAnswer(
        text.strip(),
        choice.get("finish_reason") == "stop",
        prompt,
        cached,
        decoded,
        mean if mean is not None and mean == mean and mean > -1e6 else None,
        seconds,
        reasoning=shown.removeprefix(_THINKING_BEGINS).strip(),
    )


class RungServers:
    """The servers of a ladder's rungs, within one event loop.

    The reference is waited for as any server is; a rung before it that refuses or talks nonsense is
    climbed past, and one that is down or busy is after five seconds, and left alone for thirty.
    Whoever records, and does not climb (`climbs`), waits for every rung.  A server that refuses to
    give log-probabilities is asked without.  For a gateway each rung before the reference has
    `rung_timeout` seconds for a reply, and a client's own key (`forwards`) is sent to the
    reference's server, and to no other.
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
        forwards: bool = False,
        local: LocalRungs | None = None,
    ) -> None:
        self._reference = ladder.reference
        self._climbs, self._local = climbs, local
        self._here = {rung.name for rung in ladder.rungs if rung.engine == "hf"}
        self._silent: set[str] = set()
        self._clients: dict[str, Client] = {}
        self._free: dict[str, asyncio.Semaphore] = {}
        self._down: dict[str, tuple[float, str]] = {}
        for rung in ladder.rungs:
            if rung.name in self._here:
                continue
            if rung.base_url is None or rung.model is None:
                raise ModelError(f"rung {rung.name!r}: it takes model and base_url, got none")
            key = None
            if rung.api_key_env is not None:
                key = Key.of_environment(rung.api_key_env, required=True)
            elif forwards and _origin(rung.base_url) == _origin(ladder.reference.base_url):
                key = ForwardedKey()
            can_climb = climbs and rung is not ladder.reference
            waits = min(patience, _PATIENCE) if can_climb else patience
            self._clients[rung.name] = Client(
                [rung.base_url],
                rung.model,
                key=key,
                request_timeout=(rung_timeout if can_climb else None) or request_timeout,
                retry_timeout=waits,
            )
            # Rungs of one server share its places.
            same = next((r for r in ladder.rungs if r.base_url == rung.base_url), rung)
            self._free[rung.name] = self._free.get(same.name) or asyncio.Semaphore(concurrency)

    @classmethod
    async def opened(cls, ladder: Ladder, **how: Any) -> Self:
        """Make them within the event loop in which they will be asked."""
        return cls(ladder, **how)

    async def aclose(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()

    async def listed(self) -> Mapping[str, Any]:
        """What the reference's server says of its models; nothing where it keeps that to itself.

        Raises
        ------
        Unreachable
            It is down.
        """
        try:
            client = self._clients[self._reference.name]
            return await client.ask("GET", "/models", opening=True)
        except Unreachable:
            raise
        except EngineError:
            return {}

    async def ask(
        self, rung: Rung, prompt: Prompt, *, max_tokens: int | None = None, logprobs: bool = False
    ) -> RungAnswer:
        """Ask a rung; one before the reference that cannot answer gives a reply that is `down`.

        Raises
        ------
        EngineError
            The reference cannot answer, or no rung may be climbed past and one is not reached.
        """
        if rung.name in self._here:
            assert self._local is not None  # whoever opens a ladder loads its models
            return await self._local.ask(rung, prompt, max_tokens)
        can_climb = rung.name != self._reference.name
        until, why = self._down.get(rung.name, (0.0, ""))
        if can_climb and time.monotonic() < until:
            return RungAnswer("", finished=False, down=why)
        async with self._free[rung.name]:
            began = time.monotonic()
            try:
                return await self._answer(rung, prompt, max_tokens, logprobs=logprobs)
            except EngineError as error:
                is_gone = isinstance(error, Unreachable)  # a refusal is of this question alone
                is_final = isinstance(error, Refused) and error.status in FINAL
                if not can_climb or ((is_gone or is_final) and not self._climbs):
                    raise
                if is_gone:
                    self._down[rung.name] = time.monotonic() + _REST, str(error)
                seconds = time.monotonic() - began
                return RungAnswer("", finished=False, seconds=seconds, down=str(error))

    async def _answer(
        self, rung: Rung, prompt: Prompt, max_tokens: int | None, *, logprobs: bool
    ) -> RungAnswer:
        asks = logprobs and rung.name not in self._silent
        body = request_of(rung, prompt.messages, max_tokens=max_tokens, logprobs=asks)
        client = self._clients[rung.name]
        began = time.monotonic()
        try:
            data = await client.ask("POST", "/chat/completions", body)
        except Refused as error:
            if not asks or error.status in FINAL:
                raise
            plain = {name: value for name, value in body.items() if name != "logprobs"}
            data = await client.ask("POST", "/chat/completions", plain)
            self._silent.add(rung.name)
        if client.key is not None:
            data = client.key.hide_in_data(data)
        return reply_of(data, time.monotonic() - began)


def _origin(url: str | None) -> tuple[str, str]:
    parts = urlsplit(url or "")
    return parts.scheme, parts.netloc


@dataclass(frozen=True)
class AskedRungs:
    """The rungs of a ladder, asked for many replies at once; an `AsksRungs`."""

    servers: RungServers
    portal: BlockingPortal
    at_once: int
    """Replies to be asked for at once, of all rungs together."""

    def replies(self, asked: Sequence[AskedReply]) -> Iterator[tuple[int, RungAnswer]]:
        """Ask for each and yield the replies as they come, with their numbers in `asked`."""

        async def ask(one: AskedReply) -> RungAnswer:
            return await self.servers.ask(
                one.rung, one.prompt, max_tokens=one.rung.max_tokens, logprobs=True
            )

        return asked_each(self.portal, asked, ask, self.at_once)


@contextmanager
def open_rungs(ladder: Ladder, *, concurrency: int, **how: Any) -> Iterator[AskedRungs]:
    """Open the servers of a ladder to record replies; `how` is as of `RungServers`.

    Raises
    ------
    ModelError
        A rung without a model or a server, or a key that is not there.
    """
    places = len({rung.base_url for rung in ladder.rungs})
    with start_blocking_portal() as portal:
        opened = partial(RungServers.opened, ladder, concurrency=concurrency, climbs=False, **how)
        servers = portal.call(opened)
        try:
            yield AskedRungs(servers, portal, concurrency * places)
        finally:
            portal.call(servers.aclose)
