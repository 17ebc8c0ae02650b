"""A server of chat completions on loopback, whose models say what a function says."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.engines.fake_server import Listener

__all__ = ["RungServer", "Said", "ladder_toml", "number_of", "rung_server", "say"]

HUGE = 10**400
"""No float holds it."""


@dataclass(frozen=True)
class Said:
    """What a model would say if nobody cut it."""

    text: str
    tokens: int
    prompt_tokens: int = 10
    logprob: float | None = None


def number_of(question: str) -> int:
    """The number that a question asks for, as in ``Say 7``."""
    return int(question.split("Say ")[1].split()[0])


def say(model: str, question: str) -> Said:
    """``tiny`` is long, and wrong, on some questions; ``big`` never is, and thinks aloud."""
    number = number_of(question)
    if model == "big":
        return Said(f"<think>1 + 1</think>The answer is {number}.", 300)
    tokens = 10 + zlib.crc32(question.encode()) % 900
    return Said(f"The answer is {number if tokens < 500 else 10**6}.", tokens, logprob=-0.2)


def ladder_toml(path: Path, rungs: Sequence[Mapping[str, Any]], *urls: str, **changes: str) -> str:
    """Write a ladder's file, each rung at its server, the last URL for all that follow."""
    text = ""
    for number, rung in enumerate(rungs):
        given = {**rung, "base_url": urls[min(number, len(urls) - 1)], **changes}
        text += "[[rung]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in given.items())
    path.write_text(text)
    return str(path)


@dataclass(kw_only=True)
class RungServer(Listener):
    """Answers ``/v1/chat/completions``; a fault is what a model does instead."""

    say: Callable[[str, str], Said]
    """Of a model and a question."""
    faults: dict[str, str] = field(default_factory=dict)
    """By model: ``500``, ``400``, ``no-logprobs``, ``no-cache``, ``slow``, ``broken`` or
    ``strange``; ``logprob`` or ``count`` with 400 digits."""

    under: str | None = None
    """Digest of the policy that it answers under, so its header says."""
    keys: list[str] = field(default_factory=list)
    """Header ``Authorization`` of each that was asked."""

    def post(self, to: BaseHTTPRequestHandler) -> None:
        body = json.loads(to.rfile.read(int(to.headers["Content-Length"])))
        self.keys.append(to.headers.get("Authorization", ""))
        status, data = self.answer(body)
        to.send_response(status)
        kind = "text/event-stream" if body.get("stream") else "application/json"
        to.send_header("Content-Type", kind)
        to.send_header("Content-Length", str(len(data)))
        if self.under is not None:
            to.send_header("X-StopAdvisor", f"policy; reason=covered; digest={self.under[:8]}")
        to.end_headers()
        to.wfile.write(data)

    def answer(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """Status and bytes of an answer."""
        self.asked.append(body)
        fault = self.faults.get(body["model"])
        if fault in ("500", "400"):
            return int(fault), b'{"error": {"message": "no"}}'
        if fault == "no-logprobs" and "logprobs" in body:
            return 400, b'{"error": {"message": "logprobs is not supported"}}'
        if fault == "slow":
            time.sleep(30.0)
        if fault == "strange":
            return 200, b'{"choices": [{"message": {"content": 7}}], "usage": {}}'
        try:
            said = self.say(body["model"], body["messages"][-1]["content"])
        except ValueError as error:
            return 400, json.dumps({"error": {"message": str(error)}}).encode()
        most = body.get("max_tokens") or said.tokens
        cut = said.tokens > most
        logprobs = None
        if body.get("logprobs") or fault == "logprob":
            logprob = -HUGE if fault == "logprob" else said.logprob or 0.0
            logprobs = {"content": [{"token": "x", "logprob": logprob}]}
        message = {"role": "assistant", "content": "" if cut else said.text}
        found = {
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": "length" if cut else "stop",
                    "logprobs": logprobs,
                }
            ],
            "usage": {
                "prompt_tokens": said.prompt_tokens,
                "completion_tokens": HUGE if fault == "count" else min(said.tokens, most),
                "prompt_tokens_details": None if fault == "no-cache" else {"cached_tokens": 2},
            },
        }
        if body.get("stream"):
            deltas = [
                {"role": "assistant", "content": word} for word in message["content"].split(" ")
            ]
            chunks = [json.dumps({"choices": [{"index": 0, "delta": each}]}) for each in deltas]
            return 200, "".join(f"data: {each}\n\n" for each in (*chunks, "[DONE]")).encode()
        data = json.dumps(found).encode()
        return 200, data[:40] if fault == "broken" else data


def rung_server(say: Callable[[str, str], Said], **faults: str) -> RungServer:
    """A server that runs within ``with``."""
    return RungServer(say=say, faults=faults)
