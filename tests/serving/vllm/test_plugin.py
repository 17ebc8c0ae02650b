"""The plugin as vLLM calls it: it takes over the chat route, or the process ends with one line."""

from __future__ import annotations

import asyncio
import logging
import sys
from argparse import Namespace
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stopadvisor.engines import model_files
from stopadvisor.policy.frozen import save_policy
from stopadvisor.serving import metrics, serve_settings
from stopadvisor.serving.metrics import Metrics
from stopadvisor.serving.vllm import adapter, plugin_settings, route
from stopadvisor.serving.vllm.adapter import VllmEngine
from stopadvisor.serving.vllm.plugin import StopAdvisorPlugin
from stopadvisor.serving.vllm.route import _ROUTE, MarkedReplies
from tests.serving.vllm.fake_engine import FACTS, FakeEngine, loaded, policy_of


async def original(request: Any, raw_request: Any) -> str:
    """vLLM's own."""
    return f"{request} passed on"


@dataclass
class App:
    """The part of a FastAPI application that the plugin uses."""

    routes: list[Any] = field(
        default_factory=lambda: [
            SimpleNamespace(path="/health", methods={"GET"}),
            SimpleNamespace(path="/v1/completions", methods={"POST"}),
            SimpleNamespace(path="/v1/chat/completions", methods={"GET"}),
            SimpleNamespace(
                path="/v1/chat/completions",
                methods={"POST"},
                endpoint=original,
                dependencies=["checked"],
                responses={200: {}},
            ),
        ]
    )
    added: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list)
    state: Any = None

    def add_middleware(self, kind: Any, **more: Any) -> None:
        assert more == {"server": self, "state": self.state}

    def add_api_route(self, path: str, endpoint: Any, **more: Any) -> None:
        self.added.append((path, endpoint, more))
        self.routes.append(SimpleNamespace(path=path, endpoint=endpoint))


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_policy(policy_of(), tmp_path / "p.joblib")
    monkeypatch.setenv("STOPADVISOR_POLICY", str(tmp_path / "p.joblib"))
    monkeypatch.setattr(plugin_settings, "version", lambda name: "0.32.0")


@pytest.mark.usefixtures("told")
def test_the_route_takes_the_place_of_the_original() -> None:
    app = App()
    StopAdvisorPlugin().attach_router(app)
    ((path, endpoint, more),) = app.added
    assert (path, more["methods"]) == ("/v1/chat/completions", ["POST"])
    left = ["/health", "/v1/completions", path, path]  # the last but one is for GET
    assert [route.path for route in app.routes] == left, "vLLM 0.31 leaves its own"
    assert app.routes[-1].endpoint is endpoint
    assert (more["dependencies"], more["responses"]) == (["checked"], {200: {}})
    assert endpoint.__wrapped__ is original, "vLLM reads and checks requests by its signature"

    class Route:
        async def answer(self, raw_request: Any, pass_on: Any) -> Any:
            return await pass_on()

    state = SimpleNamespace(stopadvisor=Route())
    raw = SimpleNamespace(app=SimpleNamespace(state=state))
    assert asyncio.run(endpoint("a request", raw)) == "a request passed on"


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"STOPADVISOR_POLICY": ""}, 2, "expected a policy's file or a folder, got none"),
        ({"STOPADVISOR_POLICY": "/none.joblib"}, 2, "/none.joblib"),
        ({"STOPADVISOR_SHADOW": "2"}, 2, "expected 0 or 1, got '2'"),
        ({"version": "0.30.4"}, 2, "takes no older one, got 0.30.4"),
        ({"version": "0.9.1"}, 2, "takes no older one, got 0.9.1"),
        ({"missing": "stopadvisor.serving.serve_settings"}, 2, "does not fit this environment"),
        ({"routes": "none"}, 2, "expected vLLM's own route POST /v1/chat/completions, got none"),
    ],
)
def test_whatever_is_wrong_ends_the_process_in_one_line(
    changes: dict[str, str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """vLLM would silently serve without a plugin that raises."""
    app = App()
    for name, value in changes.items():
        if name == "version":
            monkeypatch.setattr(plugin_settings, "version", lambda name, found=value: found)
        elif name == "missing":
            monkeypatch.setitem(sys.modules, value, None)
        elif name == "routes":
            app.routes.pop()
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        StopAdvisorPlugin().attach_router(app)
    assert ended.value.code == code
    said = capsys.readouterr().err
    assert said.startswith("stopadvisor: ")
    assert message in said
    assert len(said.splitlines()) == 1


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(("version", "warns"), [("0.32.0", False), ("0.99.0", True)])
def test_a_server_that_starts_answers_under_the_policy(
    version: str, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def passes(*_: Any) -> None: ...

    monkeypatch.setattr(plugin_settings, "version", lambda name: version)
    monkeypatch.setattr(model_files, "load_tokenizer", lambda *_, **__: loaded())
    monkeypatch.setattr(adapter, "facts_of", lambda *_: FACTS)
    monkeypatch.setattr(adapter, "VllmEngine", lambda client: client)
    monkeypatch.setattr(metrics, "Metrics", lambda: Metrics(CollectorRegistry()))
    monkeypatch.setattr(serve_settings, "reload_on_hangup", lambda reload: None)
    monkeypatch.setattr(route, "try_engine", passes)
    plugin, state = StopAdvisorPlugin(), SimpleNamespace()
    plugin.attach_router(App())
    given = Namespace(enable_prompt_tokens_details=True)
    with caplog.at_level(logging.WARNING, "vllm.stopadvisor"):
        asyncio.run(plugin.init_state(FakeEngine(), state, given))
    assert state.stopadvisor.digest == policy_of().digest[:8]
    assert state.stopadvisor.shows_cached
    assert any("is newer than was tried" in text for text in caplog.messages) == warns


class Foreseen(Exception):
    """vLLM has a handler for it."""


@pytest.mark.parametrize(
    ("path", "status", "value"),
    [
        ("/passed", 200, "passthrough; reason=n; digest=12345678"),
        ("/refused", 400, "passthrough; reason=error; digest=12345678"),
        ("/failed", 500, "policy; reason=error; digest=12345678"),
        ("/broken", 200, "passthrough; reason=error; digest=12345678"),
        ("/other", 500, None),
    ],
)
def test_every_reply_carries_the_header(path: str, status: int, value: str | None) -> None:
    async def passed(request: Request) -> Response:
        return JSONResponse({}, headers={"X-StopAdvisor": "passthrough; reason=n; digest=12345678"})

    async def refused(request: Request) -> Response:
        raise Foreseen

    async def failed(request: Request) -> Response:
        request.scope[_ROUTE] = "policy"
        raise RuntimeError("unforeseen")

    class Broken(Response):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise RuntimeError("unforeseen")

    async def broken(request: Request) -> Response:
        return Broken()

    async def handle(request: Request, error: Exception) -> Response:
        code = 400 if isinstance(error, Foreseen) else 500
        return JSONResponse({"error": type(error).__name__}, status_code=code)

    handlers = {"/passed": passed, "/refused": refused, "/failed": failed, "/broken": broken}
    app = Starlette(
        routes=[
            *(Route(f"{at}/v1/chat/completions", handler) for at, handler in handlers.items()),
            Route("/other", failed),
        ],
        exception_handlers={Foreseen: handle, Exception: handle},
    )
    app.state.stopadvisor = SimpleNamespace(digest="12345678")
    app.add_middleware(MarkedReplies, server=app, state=app.state)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    full = path if path == "/other" else f"{path}/v1/chat/completions"
    scope = {"type": "http", "method": "GET", "path": full, "headers": [], "query_string": b""}
    with suppress(RuntimeError):  # the server logs it
        asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == status
    headers = dict(sent[0]["headers"])
    assert headers.get(b"x-stopadvisor") == (None if value is None else value.encode())
    assert [message["type"] for message in sent].count("http.response.start") == 1


def test_outputs_come_when_they_are_waited_for() -> None:
    """The interval counts from the last token delivered; at 1 vLLM counts differently."""
    state = SimpleNamespace(stream_interval=64, sent_tokens_offset=12)
    processor = SimpleNamespace(external_req_ids={"a": ["a-x"]}, request_states={"a-x": state})
    engine = object.__new__(VllmEngine)  # without vLLM
    engine._client = SimpleNamespace(output_processor=processor)
    for tokens, interval in ((44, 32), (13, 2), (5, 2)):
        engine.wait("a", tokens)
        assert state.stream_interval == interval
    engine.wait("gone", 7)
    assert processor.external_req_ids == {"a": ["a-x"]}
