"""A scripted completion server over real HTTP.

Answers ``/v1/completions`` on token ids as vLLM does, with the tiny reasoner's tokenizer, and
misbehaves on request in ways that are too rare to test on a real server.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from stopadvisor.engines.chat import Chat
from stopadvisor.ground.constants import CUES
from stopadvisor.probes.asking import cue_text, is_open_cue

TINY = Path(__file__).parent.parent.parent / "samples" / "tiny-reasoner"
BREAKS = ("cut-short", "cut-line", "abort-short", "error-short")
"""Faults after a stream's third token: the connection closes, possibly within a line, or an event
reports that the server aborts."""
FAULTS = ("429", "500", "truncated", "no-choices", "null-choice", "abort", "close", "hang")


@cache
def words() -> Chat:
    """The tiny reasoner's tokenizer and markers."""
    from transformers import PreTrainedTokenizerFast  # `AutoTokenizer` would import torch

    return Chat.of(PreTrainedTokenizerFast.from_pretrained(str(TINY)))


def ids_of(text: str) -> list[int]:
    """Return the token ids of a text."""
    return [int(i) for i in words().tokenizer.encode(text, add_special_tokens=False)]


def end_id() -> int:
    """Return the token id that ends a generation."""
    return int(words().tokenizer.eos_token_id)


@dataclass
class Story:
    """The texts that the model generates."""

    thinking: str = "3+4=7\nSo 7\nWait, 3+4=7\nSo 7\n"
    visible: str = "Final answer: 7"
    forced: Callable[[int], str] = lambda tokens: " 7\n" if tokens > 8 else " 5\n"
    """Forced answer by the number of thinking tokens before it."""
    cue: str = CUES["terse"]
    """With the prefix `OPEN`, forced answers follow thinking that is not closed."""

    def after(self, generated: Sequence[int]) -> list[int]:
        """Return everything that it would generate after these tokens."""
        closer, cue = list(words().closer.ids), ids_of(cue_text(self.cue))
        said, thinking = list(generated), ids_of(self.thinking)
        if is_open_cue(self.cue):
            for at in range(len(thinking) + 1):
                rest = said[at + len(cue) :]
                if said[: at + len(cue)] == [*thinking[:at], *cue]:
                    return [*ids_of(self.forced(at)), end_id()][len(rest) :]
        cut = next((i for i in range(len(said)) if said[i : i + len(closer)] == closer), None)
        if cut is None:
            whole = [*thinking, *closer, *ids_of(self.visible), end_id()]
            return whole[len(said) :]
        rest = said[cut + len(closer) :]
        if rest[: len(cue)] == cue:
            return [*ids_of(self.forced(cut)), end_id()][len(rest) - len(cue) :]
        return [*ids_of(self.visible), end_id()][len(rest) :]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request, client_address  # tests include clients that hang up


@dataclass(kw_only=True)
class Listener:
    """An HTTP server on loopback; subclasses define its answers."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the requests so far."""
    headers: list[dict[str, str]] = field(default_factory=list)
    port: int = 0
    _server: ThreadingHTTPServer | None = None

    def get(self, to: BaseHTTPRequestHandler) -> None:
        """Answer a GET."""
        _send(to, 404, {"detail": "Not Found"})

    def post(self, to: BaseHTTPRequestHandler) -> None:
        """Answer a POST."""
        _send(to, 404, {"detail": "Not Found"})

    @property
    def url(self) -> str:
        """Value for ``--base-url``."""
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Start listening, on the previous port if there was one."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # otherwise a body is delayed by 40 ms

            def do_GET(self) -> None:
                fake.get(self)

            def do_POST(self) -> None:
                fake.post(self)

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        self._server = _Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


@dataclass
class FakeServer(Listener):
    """A scripted server; its fields may be changed while it runs."""

    story: Story = field(default_factory=Story)
    model: str = "tiny-reasoner"
    root: str | None = str(TINY)
    context: int | None = 1024
    top_limit: int = 20
    returns_ids: bool = True
    refuses: Callable[[dict[str, Any]], int] = lambda body: 0
    """Status with which it refuses a completion; 0 answers it."""
    counts_cached: bool = True
    sends_end: bool = True
    """Whether ending tokens are among the ids, as with vLLM."""
    obeys_stop: bool = True
    """Whether it supports stop texts; it always supports stop ids."""
    at_most: int | None = None
    """Its own limit on the tokens of an answer, below `max_tokens`."""
    ignores_limits: bool = False
    """Ignores `max_tokens` and stop ids."""
    tokenizes: bool = True
    """Whether it has ``/tokenize``."""
    chat: str | None = None
    """Field of streamed deltas that holds the reasoning; None disables chat."""
    judges: Callable[[str], str] | None = None
    """Reply to a chat that is not streamed, by its last message."""
    key: str | None = None
    echoes_key: bool = False
    says: str = "Incorrect API key provided:"
    """Text before a key that it repeats."""
    preface: bytes = b""
    """First bytes of a streamed completion."""
    faults: list[str] = field(default_factory=list)
    """Faults of the next completions, one each."""
    always: str | None = None
    """Fault of every completion."""
    delay: float = 0.0
    pace: float = 0.0
    """Seconds per token of a stream or of a judge's reply."""
    waits_at: int | None = None
    """Number of events after which a stream pauses until the client hangs up."""
    client_left: threading.Event = field(default_factory=threading.Event)
    """Set once a client has hung up on a paused stream."""
    streamed: list[int] = field(default_factory=list)
    """Tokens sent so far, by stream."""
    most_at_once: int = 0
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def forget(self) -> None:
        """Start new records; running streams still write to the old ones."""
        self.asked, self.streamed, self.client_left = [], [], threading.Event()

    def get(self, to: BaseHTTPRequestHandler) -> None:
        if not self._allowed(to):
            return
        if to.path == "/v1/models":
            entry = {"id": self.model, "root": self.root, "max_model_len": self.context}
            _send(to, 200, {"object": "list", "data": [entry]})
        elif to.path == "/version":
            _send(to, 200, {"version": "0.0.1"})
        else:
            _send(to, 404, {"detail": "Not Found"})

    def post(self, to: BaseHTTPRequestHandler) -> None:
        body = json.loads(to.rfile.read(int(to.headers["Content-Length"])))
        if not self._allowed(to):
            return
        if to.path == "/tokenize" and self.tokenizes:
            _send(to, 200, {"tokens": ids_of(body["prompt"])})
            return
        chat = to.path == "/v1/chat/completions" and (self.chat or self.judges)
        if not chat and to.path != "/v1/completions":
            _send(to, 404, {"detail": "Not Found"})
            return
        with self._lock:
            self.asked.append(body)
            self.headers.append(dict(to.headers))
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            fault = self.always or (self.faults.pop(0) if self.faults else None)
        try:
            time.sleep(self.delay)
            self._complete(to, body, fault)
        finally:
            with self._lock:
                self._at_once -= 1

    def _allowed(self, to: BaseHTTPRequestHandler) -> bool:
        sent = to.headers.get("Authorization", "")
        if self.key is None or sent == f"Bearer {self.key}":
            return True
        said = f"{self.says} {sent}" if self.echoes_key else "unauthorized"
        _send(to, 401, {"error": {"message": said}})
        return False

    def _complete(
        self, to: BaseHTTPRequestHandler, body: dict[str, Any], fault: str | None
    ) -> None:
        if fault == "429":
            _send(to, 429, {"error": {"message": "busy"}}, {"Retry-After": "1"})
        elif fault == "500":
            said = f"broken {to.headers.get('Authorization')}" if self.echoes_key else "broken"
            _send(to, 500, {"error": {"message": said}})
        elif fault == "no-choices":
            _send(to, 200, {"choices": []})
        elif fault == "null-choice":
            _send(to, 200, {"choices": [None]})
        elif fault == "abort":  # as a server does that is shutting down
            choice = {"text": "", "token_ids": [], "finish_reason": "abort"}
            _send(to, 200, {"choices": [choice], "usage": {"prompt_tokens": 1}})
        elif fault == "close":
            to.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "hang":
            time.sleep(2.0)
            to.close_connection = True
        elif status := self.refuses(body):
            _send(to, status, {"error": {"message": "not here"}})
        elif (body.get("logprobs") or 0) > self.top_limit > 0:
            _send(to, 400, {"error": {"message": f"at most {self.top_limit} logprobs"}})
        elif self.judges:
            text = body["messages"][-1]["content"]
            decoded = body.get("max_tokens", 1)
            time.sleep(self.pace * decoded)
            usage = {"prompt_tokens": len(text.split()), "completion_tokens": decoded}
            reply = {"message": {"content": self.judges(text)}}
            _send(to, 200, {"choices": [reply], "usage": usage})
        elif "messages" in body:
            self._stream(to, *self._chat(body), fault)
        elif body.get("stream"):
            self._stream(to, *self._pieces(self._answer(body)), fault)
        else:
            data = json.dumps(self._answer(body)).encode()
            _send_bytes(to, 200, data, cut=fault == "truncated")

    def _pieces(self, answer: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Split an answer into one choice per token, as vLLM streams it; also return its usage."""
        (choice,) = answer["choices"]
        ids = choice.get("token_ids", ids_of(choice["text"]))
        pieces: list[dict[str, Any]] = []
        for token in ids:
            text = words().decode([token])
            pieces.append({"text": text, "token_ids": [token], "finish_reason": None})
        pieces = pieces or [{"text": ""}]
        pieces[-1]["finish_reason"] = choice["finish_reason"]
        return pieces, answer["usage"]

    def _chat(self, body: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return a chat's streamed choices and its usage."""
        prompt = words().prompt_ids(body["messages"])
        said = self.story.after([])
        thinks = True
        pieces: list[dict[str, Any]] = []
        text, reason = "", "length"
        for token in said[: body.get("max_tokens", 500)][: self.at_most]:
            piece = words().decode([token])
            field = str(self.chat if thinks else "content")
            if token == end_id() or any(stop in piece for stop in body.get("stop", ())):
                reason = "stop"
                break
            text += "" if thinks else piece
            if token == words().closer.ids[0]:
                thinks, piece = False, ""
            pieces.append({"delta": {field: piece}, "finish_reason": None})
        pieces = [{"delta": None}, *pieces, {"delta": {}, "finish_reason": reason}]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(pieces) - 2}
        return pieces, usage

    def _stream(
        self,
        to: BaseHTTPRequestHandler,
        pieces: list[dict[str, Any]],
        usage: dict[str, Any],
        fault: str | None,
    ) -> None:
        """Stream an answer."""
        streamed, left = self.streamed, self.client_left
        number = len(streamed)
        streamed.append(0)
        _begin_stream(to)
        if "text" in pieces[0]:
            to.wfile.write(self.preface)
        for i, piece in enumerate(pieces):
            if (i == 3 and fault in BREAKS) or fault == "truncated":
                self._break(to, str(fault))
                return
            if i == self.waits_at and _hangs_up(to.connection):
                left.set()
                return
            time.sleep(self.pace)
            so_far = {"prompt_tokens": usage["prompt_tokens"]}
            _send_event(to, {"choices": [piece], "usage": so_far})
            streamed[number] = i + 1
        _send_event(to, {"choices": [], "usage": usage})
        to.wfile.write(b": a comment\n\ndata: [DONE]\n\n")

    def _break(self, to: BaseHTTPRequestHandler, fault: str) -> None:
        if fault == "abort-short":
            _send_event(to, {"choices": [{"text": "", "token_ids": [], "finish_reason": "abort"}]})
        elif fault == "error-short":
            _send_event(to, {"error": {"message": "out of luck"}})
        elif fault == "cut-line":
            to.wfile.write(b'data: {"choices": [{"te')

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        opener = words().opener.ids[0]
        begun = len(prompt) - prompt[::-1].index(opener) if opener in prompt else len(prompt)
        ids = self.story.after(prompt[begun:])
        said: list[int] = []
        reason = "length"
        if self.ignores_limits:
            body = {**body, "max_tokens": body["max_tokens"] + 5, "stop_token_ids": []}
        for token in ids[: body["max_tokens"]][: self.at_most]:
            said.append(token)
            if token in {end_id(), *body.get("stop_token_ids", ())}:
                reason = "stop"
                break
            text = words().decode(said)
            if self.obeys_stop and any(stop in text for stop in body.get("stop", ())):
                reason = "stop"
                break
        shown = said
        if not self.sends_end and said and said[-1] == end_id():
            shown = said[:-1]
        text = words().decode(shown)
        for stop in body.get("stop", ()) if self.obeys_stop else ():
            text = text.partition(stop)[0]
        choice: dict[str, Any] = {"text": text, "finish_reason": reason}
        if self.returns_ids:
            choice["token_ids"] = shown
        k = body.get("logprobs")
        if k and self.top_limit:
            choice["logprobs"] = {
                "tokens": [f"token_id:{i}" if "token_ids" in choice else "x" for i in shown],
                "token_logprobs": [logprob(i) for i in shown],
                "top_logprobs": [
                    {f"token_id:{1000 + n}": logprob(i) - 1.0 - n for n in range(1, k)}
                    | {f"token_id:{i}": logprob(i)}
                    for i in shown
                ],
            }
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": len(shown)}
        if self.counts_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": len(prompt) // 32 * 32}
        return {"choices": [choice], "usage": usage}


def logprob(token: int) -> float:
    """Return the log-probability of a generated token."""
    return -0.1 - 0.01 * (token % 7)


def _send(
    to: BaseHTTPRequestHandler,
    status: int,
    data: dict[str, Any],
    headers: dict[str, str] | None = None,
) -> None:
    _send_bytes(to, status, json.dumps(data).encode(), headers)


def _send_bytes(
    to: BaseHTTPRequestHandler,
    status: int,
    data: bytes,
    headers: dict[str, str] | None = None,
    *,
    cut: bool = False,
) -> None:
    data = data[: len(data) // 2] if cut else data
    to.send_response(status)
    for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
        to.send_header(name, value)
    to.end_headers()
    to.wfile.write(data)


def _hangs_up(connection: socket.socket, patience: float = 30.0) -> bool:
    """Whether the client closes the connection within `patience` seconds."""
    readable, _, _ = select.select([connection], [], [], patience)
    try:
        return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
    except ConnectionResetError:
        return True


def _begin_stream(to: BaseHTTPRequestHandler) -> None:
    to.send_response(200)
    to.send_header("Content-Type", "text/event-stream")
    to.send_header("Connection", "close")
    to.end_headers()
    to.close_connection = True


def _send_event(to: BaseHTTPRequestHandler, event: dict[str, Any]) -> None:
    to.wfile.write(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")


def fake_server(**settings: Any) -> FakeServer:
    """Return a server that runs inside a ``with`` block."""
    return FakeServer(**settings)
