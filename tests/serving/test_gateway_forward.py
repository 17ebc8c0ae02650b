"""Forwarding in simulated time: time-outs, second tries, and where a stream ends."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from aiohttp import (
    ClientConnectorError,
    ClientPayloadError,
    ConnectionTimeoutError,
    ServerDisconnectedError,
)
from prometheus_client import CollectorRegistry

from stopadvisor.serving.gateway.forward import BrokenReply, Forwarder
from stopadvisor.serving.gateway.intake import Incoming, Refusal, Target
from stopadvisor.serving.gateway.pool import Pool, Upstream
from stopadvisor.serving.metrics import Log, Metrics
from stopadvisor.serving.serve_settings import Timeouts
from tests.serving.virtual_server import run_virtually

FOREVER = 1e6
EVENTS = {"Content-Type": "text/event-stream"}
CHUNKED = EVENTS | {"Transfer-Encoding": "chunked"}
JSON = {"Content-Type": "application/json"}


@dataclass
class Reply:
    """An upstream's reply: each piece comes some seconds after the one before."""

    pieces: Sequence[tuple[float, bytes]] = ((0.0, b"{}"),)
    headers: Mapping[str, str] = field(default_factory=lambda: CHUNKED)
    status: int = 200
    begins: float = 0.0
    """Seconds until its head."""

    async def __aenter__(self) -> Reply:
        await asyncio.sleep(self.begins)
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    @property
    def content(self) -> Reply:
        return self

    @property
    def content_type(self) -> str:
        return self.headers["Content-Type"]

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        return [(name.encode(), value.encode()) for name, value in self.headers.items()]

    def raise_for_status(self) -> None:
        assert self.status < 400

    async def iter_any(self) -> AsyncIterator[bytes]:
        for seconds, piece in self.pieces:
            await asyncio.sleep(seconds)
            yield piece


@dataclass
class Session:
    """Stands in for a client session; its requests get the next replies or errors in turn."""

    replies: list[Reply | Exception]
    asked: list[bool]
    fresh: bool

    def request(self, method: str, url: object, **options: Any) -> Reply:
        assert options["allow_redirects"] is False
        assert options["data"] == (b"sent" if method == "POST" else None)
        self.asked.append(self.fresh)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


@dataclass
class Forwarded:
    """What came of a request."""

    pool: Pool
    asked: list[bool] = field(default_factory=list)
    """For each try, whether it was on a new connection."""
    sent: bytes = b""
    more: list[bool] = field(default_factory=list)
    """For each message sent, whether others follow."""
    error: Exception | None = None
    seconds: float = 0.0

    @property
    def refusal(self) -> tuple[int, str]:
        assert isinstance(self.error, Refusal)
        return self.error.status, self.error.text


def forwarded(
    *replies: Reply | Exception,
    path: str = "/chat/completions",
    upstreams: int = 1,
    failures: int = 0,
    **fields: Any,
) -> Forwarded:
    """Forward one request to upstreams that answer with these replies; by default in 600 s."""
    metrics, log = Metrics(CollectorRegistry()), Log(io.StringIO())
    urls = [f"http://{number}/v1" for number in range(upstreams)]
    check = cast(Any, None)
    pool = Pool(urls, check=check, glance=check, every=10.0, metrics=metrics, log=log)
    found, left = Forwarded(pool), list(replies)
    for upstream in pool.all:
        upstream.is_up, upstream.failures = True, failures

    async def send(message: Any) -> None:
        found.sent += message.get("body", b"")
        found.more.append(message.get("more_body", True))

    async def go() -> None:
        forwarder = Forwarder(pool, Timeouts(), None)
        await forwarder.aclose()
        forwarder._http = cast(Any, Session(left, found.asked, fresh=False))
        forwarder._fresh = cast(Any, Session(left, found.asked, fresh=True))
        request = Incoming("POST", Target(path), (), bytearray(b"sent"), ends=600.0, **fields)
        try:
            await forwarder.forward(request, send)
        except (Refusal, BrokenReply) as error:
            found.error = error
        found.seconds = asyncio.get_running_loop().time()

    run_virtually(go())
    assert all(upstream.in_flight == 0 for upstream in pool.all)
    whole = [found.error is not None] if found.more else []
    assert found.more == [True] * (len(found.more) - 1) + whole
    return found


# --- Time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "lasts", "is_whole"),
    [
        ([50.0] * 11, 550.0, True),
        ([5.0] * 100, 500.0, True),
        ([50.0, 50.0, FOREVER], 160.0, False),
        ([50.0] * 20, 600.0, False),  # endless
    ],
)
@pytest.mark.parametrize("asked_for", [True, False])
def test_a_stream_goes_on_while_its_pieces_come_in_time(
    pieces: list[float], lasts: float, is_whole: bool, asked_for: bool
) -> None:
    """At most 60 s apart, and 600 s in all; even if the client asked for no stream."""
    reply = Reply([(0.0, b"0"), *((seconds, b"x") for seconds in pieces)])
    found = forwarded(reply, streams=asked_for)
    assert (found.error is None) == is_whole
    assert found.seconds == lasts
    assert is_whole or isinstance(found.error, BrokenReply)


def test_a_reply_that_is_no_stream_has_all_its_time() -> None:
    pieces = [(200.0, b"{"), (100.0, b"1"), (100.0, b"}")]
    found = forwarded(Reply(pieces, JSON, begins=150.0))
    assert (found.sent, found.error, found.seconds) == (b"{1}", None, 550.0)


@pytest.mark.parametrize(("streams", "seconds"), [(False, 600.0), (True, 120.0)])
def test_a_stream_begins_soon(streams: bool, seconds: float) -> None:
    found = forwarded(Reply(begins=FOREVER), streams=streams)
    assert (found.refusal, found.seconds) == ((504, "the upstream took too long"), seconds)
    assert found.pool.all[0].failures == 1


def test_a_request_whose_time_has_run_out_is_asked_nowhere_else() -> None:
    found = forwarded(Reply(begins=FOREVER), Reply(), upstreams=2)
    assert (found.refusal[0], found.asked, found.seconds) == (504, [False], 600.0)


# --- Failures -------------------------------------------------------------------------------------

CLOSED, LATE, BROKEN = ServerDisconnectedError(), ConnectionTimeoutError(), ClientPayloadError()
REFUSED = ClientConnectorError(cast(Any, None), OSError("refused"))
BUSY = Reply(((0.0, b"busy"),), JSON, 503)


@pytest.mark.parametrize(
    ("replies", "upstreams", "asked", "ends"),
    [
        ([CLOSED, Reply()], 1, [False, True], None),
        ([CLOSED, CLOSED], 1, [False, True], (502, "the upstream closed the connection")),
        ([LATE, Reply()], 1, [False, True], None),
        ([LATE, LATE], 1, [False, True], (502, "the upstream cannot be reached")),
        ([LATE, Reply()], 2, [False, False], None),
        ([CLOSED, CLOSED, Reply()], 2, [False, True, True], None),
        ([TimeoutError()], 1, [False], (504, "the upstream took too long")),
        ([BROKEN], 1, [False], (502, "the upstream broke off")),
        ([BROKEN, Reply()], 2, [False, False], None),
        ([REFUSED], 1, [False], (502, "the upstream cannot be reached")),
        ([REFUSED, Reply()], 2, [False, False], None),
        (
            [Reply(status=600)],
            1,
            [False],
            (502, "the upstream answered with an invalid HTTP status"),
        ),
        ([BUSY, Reply()], 2, [False, False], None),
        ([], 0, [], (503, "no upstream is in use")),
    ],
)
def test_a_request_is_tried_again_if_another_try_can_help(
    replies: list[Reply | Exception],
    upstreams: int,
    asked: list[bool],
    ends: tuple[int, str] | None,
) -> None:
    """At the same server on a new connection, once; and at each other server."""
    found = forwarded(*replies, upstreams=upstreams)
    assert found.asked == asked
    if ends is None:
        assert (found.error, found.sent) == (None, b"{}")
    else:
        assert found.refusal == ends
    if upstreams:
        assert found.pool.all[0].is_up == (replies[0] is not REFUSED)


def test_a_server_is_said_to_be_busy_if_the_other_one_goes_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Pool.pick

    def pick(pool: Pool, tried: Collection[Upstream]) -> Upstream | None:
        found = own(pool, tried)
        pool.all[1].is_up = not tried  # it goes just after it was found
        return found

    monkeypatch.setattr(Pool, "pick", pick)
    found = forwarded(BUSY, upstreams=2)
    assert (found.refusal, found.asked) == ((503, "the upstream is busy"), [False])


@pytest.mark.parametrize(
    ("reply", "failures"),
    [(Reply(), 0), (Reply(status=404), 0), (Reply(status=500), 0), (BUSY, 2), (BROKEN, 2)],
)
def test_only_an_answer_ends_a_row_of_failures(reply: Reply | Exception, failures: int) -> None:
    found = forwarded(reply, failures=1)
    assert found.pool.all[0].failures == failures
    assert found.sent == (b"busy" if reply is BUSY else b"" if reply is BROKEN else b"{}")


# --- The end of a stream --------------------------------------------------------------------------

LINE = b'data: {"choices": [{"text": "7"}]}\n\n'
WHOLE = LINE + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("reply", "path", "is_whole"),
    [
        (Reply([(0.0, WHOLE)], EVENTS), "/chat/completions", True),
        (Reply([(0.0, LINE), (0.0, WHOLE[len(LINE) :])], EVENTS), "/completions", True),
        (Reply([(0.0, bytes([byte])) for byte in WHOLE], EVENTS), "/completions", True),
        (Reply([(0.0, WHOLE), (0.0, LINE)], EVENTS), "/chat/completions", False),
        (Reply([(0.0, LINE)], EVENTS), "/chat/completions", False),
        (Reply([(0.0, LINE)], EVENTS), "/completions", False),
        # Framed, of another kind, or with a status of its own: its end needs no word.
        (Reply([(0.0, LINE)], CHUNKED), "/completions", True),
        (Reply([(0.0, LINE)], EVENTS | {"Content-Length": "9"}), "/completions", True),
        (Reply([(0.0, LINE)], EVENTS | {"Content-Encoding": "gzip"}), "/completions", True),
        (Reply([(0.0, LINE)], EVENTS), "/responses", True),
        (Reply([(0.0, b"{}")], JSON), "/chat/completions", True),
        (Reply([(0.0, LINE)], EVENTS, 400), "/chat/completions", True),
    ],
)
def test_a_stream_whose_server_was_killed_is_not_taken_for_a_whole_one(
    reply: Reply, path: str, is_whole: bool
) -> None:
    found = forwarded(reply, path=path, streams=True)
    assert found.sent == b"".join(piece for _, piece in reply.pieces)
    assert (found.error is None) == is_whole


def test_looks_at_a_server_share_a_connection() -> None:
    asked: list[bool] = []

    async def look() -> Any:
        metrics, log, never = Metrics(CollectorRegistry()), Log(io.StringIO()), cast(Any, None)
        pool = Pool(["http://a"], check=never, glance=never, every=1.0, metrics=metrics, log=log)
        forwarder = Forwarder(pool, Timeouts(), None)
        await forwarder.aclose()
        for name, fresh in (("_http", False), ("_fresh", True)):
            setattr(forwarder, name, Session([Reply([(2.0, b"[1]")])], asked, fresh=fresh))
        return await forwarder.get(pool.all[0], "/models")

    assert run_virtually(look()) == [1]
    assert asked == [False]
