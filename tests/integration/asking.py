"""Requests to a vLLM with a policy in it, and their comparison with the local engine."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Reply, Request, policy_plan
from stopadvisor.serving.responder import forced_content
from tests.integration.conftest import AT_ONCE
from tests.integration.server import NAME, VllmServer

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["Seen", "ask", "ask_all", "busy", "client_at", "differing", "gauges", "metrics"]


@dataclass(frozen=True)
class Seen:
    """A reply as its client sees it."""

    reasoning: str
    content: str | None
    finish: str
    usage: dict[str, Any]
    header: str


def client_at(port: int) -> AsyncOpenAI:
    """The official client of a server on this machine, without retries."""
    from openai import AsyncOpenAI  # takes most of a second, and every worker collects this file

    url = f"http://127.0.0.1:{port}/v1"
    return AsyncOpenAI(base_url=url, api_key="none", max_retries=0)


async def ask(client: AsyncOpenAI, request: Request, *, stream: bool) -> Seen:
    messages: Any = list(request.prompt.messages)
    if not stream:
        raw = await client.chat.completions.with_raw_response.create(model=NAME, messages=messages)
        header, reply = raw.headers["x-stopadvisor"], raw.parse()
        (choice,) = reply.choices
        assert choice.message.model_extra is not None
        assert reply.usage is not None
        reasoning, usage = choice.message.model_extra["reasoning_content"], reply.usage.model_dump()
        return Seen(reasoning, choice.message.content, choice.finish_reason, usage, header)
    reasoning, content, finish, usage = "", "", "", {}
    chunks = await client.chat.completions.create(
        model=NAME, messages=messages, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in chunks:
        if chunk.usage is not None:
            usage = chunk.usage.model_dump()
        for part in chunk.choices:
            reasoning += (part.delta.model_extra or {}).get("reasoning_content") or ""
            content += part.delta.content or ""
            finish = part.finish_reason or finish
    header = chunks.response.headers["x-stopadvisor"]
    return Seen(reasoning, content or None, finish, usage, header)


def ask_all(
    port: int, requests: list[Request], *, stream: bool, at_once: int = AT_ONCE
) -> list[Seen]:
    async def run() -> list[Seen]:
        places = asyncio.Semaphore(at_once)
        async with client_at(port) as client:

            async def one(request: Request) -> Seen:
                async with places:
                    return await ask(client, request, stream=stream)

            return list(await asyncio.gather(*map(one, requests)))

    return asyncio.run(run())


@contextmanager
def busy(server: VllmServer, *, processors: int) -> Iterator[None]:
    """Pause the server's process again and again, and keep some CPUs busy.

    Meanwhile its engine process goes on, so many outputs wait to be fetched, and vLLM merges them.
    """
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processors)
    ]
    over = threading.Event()

    def pause() -> None:
        while not over.wait(0.02):
            os.kill(server.pid, signal.SIGSTOP)
            over.wait(0.06)
            os.kill(server.pid, signal.SIGCONT)

    pauses = threading.Thread(target=pause)
    pauses.start()
    try:
        yield
    finally:
        over.set()
        pauses.join()
        for loop in loops:
            loop.kill()
            loop.wait()


def differing(policy: Policy, seen: list[Seen], replayed: list[Reply]) -> list[int]:
    """Return the numbers of replies that differ from the local engine's."""
    cue = policy_plan(policy).cue
    differ = []
    for number, (found, reply) in enumerate(zip(seen, replayed, strict=True)):
        text, details = reply.text, found.usage["stopadvisor"]
        if reply.finish == "stopped":
            assert text is not None
            text = forced_content(cue, text)
        alike = (
            found.reasoning == reply.thinking
            and found.content == text
            and found.finish == ("length" if reply.finish == "length" else "stop")
            and details["budget"] == reply.budget
            and details["probes"] == reply.n_probes
            and details["probe_tokens"] == reply.probe_tokens
            and found.header == f"policy; reason=covered; digest={policy.digest[:8]}"
            and (details["discarded_tokens"] > 0) == (reply.finish != "stop")
        )
        differ += [] if alike else [number]
    return differ


def metrics(server: VllmServer) -> dict[str, float]:
    """Return the server's metrics, summed by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    found: dict[str, float] = {}
    for name, value in re.findall(r"^([\w:]+)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE):
        found[name] = found.get(name, 0.0) + float(value)
    return found


def gauges(server: VllmServer) -> dict[str, float]:
    found = metrics(server)
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return {name: found[name] for name in (*names, "stopadvisor_requests_in_flight")}
