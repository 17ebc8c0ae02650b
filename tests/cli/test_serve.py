"""`serve`: what vLLM is started with, and what is refused before it is."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NoReturn, TextIO

import pytest

from stopadvisor.cli import serve
from stopadvisor.cli.main import main
from stopadvisor.policy.frozen import save_policy
from stopadvisor.serving.audit_log import find_series, replay
from stopadvisor.serving.gateway import server
from stopadvisor.serving.serve_settings import GatewaySettings, Timeouts
from stopadvisor.serving.vllm import plugin_settings
from tests.benchmarks.gateway import running_gateway
from tests.engines.fake_server import fake_server
from tests.material import Call
from tests.policy_content import certificate_content, example_content, policy_from
from tests.serving.gateways import chat_body, save_policy_of, until

Started = tuple[Sequence[str], Mapping[str, str]]
"""The words and the environment of a process."""


class Became(BaseException):
    """The process would be another now."""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    save_policy(policy_from(example_content()), tmp_path / "p.joblib")
    return tmp_path / "p.joblib"


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """What the process became; vLLM is there."""
    found: list[Started] = []

    def execve(path: str, argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
        assert path == argv[0]
        found.append((argv, environment))
        raise Became

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(plugin_settings, "version", lambda name: "0.32.0")
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    return found


def test_it_becomes_vllm_with_the_policy(policy: Path, become: list[Started]) -> None:
    with pytest.raises(Became):
        main(["serve", str(policy), "--shadow", "--", "model", "--port", "8001", "--shadow-x"])
    ((argv, environment),) = become
    assert argv[:5] == [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve"]
    assert argv[5:] == ["model", "--port", "8001", "--shadow-x", "--scheduling-policy", "priority"]
    assert environment["VLLM_PLUGINS"] == "other,stopadvisor"
    told = plugin_settings.settings_of(environment)
    assert (told.policy, told.shadow, told.any_text) == (policy, True, False)


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        (("stopadvisor", "routes"), "resolver,tpu,stopadvisor"),
        (("stopadvisor", "resolver"), "'resolver' also adds endpoints"),
        (("routes",), "vLLM would serve without the policy: no installed package declares"),
    ],
)
def test_other_plugins_stay_where_none_was_named(
    endpoints: tuple[str, ...],
    expected: str,
    policy: Path,
    become: list[Started],
    monkeypatch: pytest.MonkeyPatch,
    call: Call,
) -> None:
    """vLLM loads them all until `VLLM_PLUGINS` is set, but for those that add endpoints."""
    groups = {
        "vllm.general_plugins": ["resolver"],
        "vllm.platform_plugins": ["tpu"],
        "vllm.endpoint_plugins": endpoints,
    }

    def declared(*, group: str) -> list[EntryPoint]:
        return [EntryPoint(name, "a:b", group) for name in groups.get(group, ())]

    monkeypatch.setattr(serve, "entry_points", declared)
    monkeypatch.delenv("VLLM_PLUGINS")
    words = ["serve", str(policy), "--", "model"]
    if " " in expected:
        assert expected in call.refused(*words)
        return
    with pytest.raises(Became):
        main(words)
    assert become[0][1]["VLLM_PLUGINS"] == expected


def test_a_scheduling_policy_of_ones_own_stays(policy: Path, become: list[Started]) -> None:
    with pytest.raises(Became):
        main(["serve", str(policy), "--", "model", "--scheduling-policy=fcfs"])
    assert become[0][0][5:] == ["model", "--scheduling-policy=fcfs"]


def test_it_says_how_questions_are_to_be_asked(
    policy: Path, become: list[Started], capsys: pytest.CaptureFixture[str]
) -> None:
    """Else an application that sends bare questions learns of it from a header alone."""
    for words, wanted in (((), True), (("--any-text",), False)):
        with pytest.raises(Became):
            main(["serve", str(policy), *words, "--", "model"])
        shown = capsys.readouterr().err
        assert (r'covers questions asked as "{question}\n\nGive the answer' in shown) == wanted
    assert len(become) == 2


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        ([], True),
        (["--port", "1"], True),
        (["--reasoning-parser", "qwen3"], False),
        (["--reasoning_parser=qwen3"], False),
        (["--structured-outputs-config", '{"reasoning_parser": "qwen3"}'], False),
        (["--config", "vllm.yaml"], False),
    ],
)
def test_a_missing_reasoning_parser_is_noted_before_vllm_loads_the_model(
    words: list[str],
    noted: bool,
    policy: Path,
    become: list[Started],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(Became):
        main(["serve", str(policy), "--", "model", *words])
    assert ("without --reasoning-parser NAME" in capsys.readouterr().err) == noted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["{policy}"],
            "expected POLICY -- MODEL [VLLM OPTION]... or POLICY --upstream URL, got no MODEL",
        ),
        (["{policy}", "--", "--port", "1"], "expected POLICY -- MODEL [VLLM OPTION]"),
        (["missing.joblib", "--", "model"], "missing.joblib"),
        (["{policy}", "--require-signature", "none.pub", "--", "model"], "none.pub"),
    ],
)
def test_what_is_refused(
    words: list[str], message: str, policy: Path, become: list[Started], call: Call
) -> None:
    assert message in call.refused(*(word.format(policy=policy) for word in words), command="serve")
    assert not become


def test_without_vllm_it_says_what_to_install(policy: Path, call: Call) -> None:
    """As in the environment of these tests."""
    assert "pip install 'stopadvisor[vllm]'" in call.refused("serve", policy, "--", "model")


# --- The gateway ----------------------------------------------------------------------------------


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[GatewaySettings]:
    """With which settings a gateway was to be started."""
    found: list[GatewaySettings] = []

    def begin(settings: GatewaySettings, err: TextIO) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr(server, "serve", begin)
    return found


def test_before_servers_it_is_a_gateway(policy: Path, begun: list[GatewaySettings]) -> None:
    words = ["serve", str(policy), "--upstream", "http://a/v1", "--upstream", "http://b/v1"]
    assert main([*words, "--shadow", "--listen", "127.0.0.1:9", "--request-timeout", "3"]) == 0
    (settings,) = begun
    assert (settings.upstreams, settings.policy) == (("http://a/v1", "http://b/v1"), policy)
    assert (settings.shadow, settings.port, settings.host) == (True, 9, "127.0.0.1")
    assert settings.timeouts == Timeouts(total=3.0)
    assert settings.audit is None
    assert main([*words, "--audit", "0.5"]) == 0
    assert begun[1].audit is not None
    # Where the page of serving asks for metrics, and deployments expect it.
    assert (begun[1].host, begun[1].port) == ("127.0.0.1", 8080)
    assert begun[1] == replace(
        GatewaySettings(policy, upstreams=("http://a/v1", "http://b/v1")), audit=begun[1].audit
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--upstream", "http://a/v1", "--", "model"], "expected --upstream or a model, got both"),
        (["--listen", "a:9", "--", "model"], "--listen belongs to --upstream, got no --upstream"),
        (["--on-alarm", "exit", "--", "model"], "--on-alarm belongs to --audit, got no --audit"),
        (["--upstream", "http://a/v1", "--audit-log", "logs"], "--audit-log belongs to --audit"),
        (["--upstream", "http://a/v1", "--listen", "a:65536"], "expected HOST:PORT"),
        (["--upstream", "ftp://a"], "must look like http://host:8000/v1"),
        (["--upstream", "http://k@a/v1"], "must not hold a user name or password"),
        (["--upstream", "http://a/v1", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["--upstream", "http://a/v1", "--require-signature", "none.pub"], "none.pub"),
    ],
)
def test_gateways_that_are_refused(
    words: list[str], message: str, policy: Path, call: Call
) -> None:
    assert message in call.refused("serve", policy, *words)


WITHOUT_TORCH = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
"""
"""What a process runs first.  The extra `serve` brings no torch, and importing it takes longest."""


@pytest.mark.slow
def test_a_gateway_that_is_killed_comes_back_with_its_audits_and_drains(tmp_path: Path) -> None:
    """kill -9 under load and a torn line lose no count; after SIGHUP, SIGTERM still drains."""
    policy, folder = tmp_path / "p.json", tmp_path / "audits"
    words = ("--audit", "1", "--audit-log", str(folder))
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    bare = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with fake_server(chat="reasoning_content", pace=0.002) as upstream:
        certificate = certificate_content(loss="differs")
        digest = save_policy_of(upstream, policy, certificate=certificate).digest
        before = policy.read_bytes()

        def ask(url: str) -> str | None:
            """Return the text of a whole reply; None where the connection breaks off."""
            client = http.client.HTTPConnection(url.split("/")[2], timeout=20)
            try:
                kind = {"Content-Type": "application/json"}
                client.request("POST", "/v1/chat/completions", json.dumps(chat_body()), kind)
                reply = client.getresponse()
                assert reply.getheader("X-StopAdvisor", "").startswith("policy; reason=covered")
                content: str = json.load(reply)["choices"][0]["message"]["content"]
            except (OSError, http.client.HTTPException):
                return None
            finally:
                client.close()
            return content

        with (
            running_gateway(policy, upstream.url, *words, environment=bare) as (url, pid),
            ThreadPoolExecutor(8) as threads,
        ):
            asked = [threads.submit(ask, url) for _ in range(80)]
            until(lambda: sum(one.done() for one in asked) >= 16)
            os.kill(pid, signal.SIGKILL)
        replies = [one.result() for one in asked]
        (log,) = folder.iterdir()
        with log.open("a") as file:
            file.write('{"kind":"requ')
        with running_gateway(policy, upstream.url, *words, environment=bare) as (url, pid):
            replies += [ask(url) for _ in range(5)]
            os.kill(pid, signal.SIGHUP)
            until(lambda: '"reload"' in (tmp_path / "gateway.log").read_text())
    lines = (tmp_path / "gateway.log").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert {"upstream-up", "ready", "request", "draining"} < {*events}
    assert events[-1] == "stopped"
    assert replies[-1] is not None
    assert set(replies) == {replies[-1], None}
    assert policy.read_bytes() == before
    monitor, (remark,) = replay(find_series([folder], digest))
    assert remark.endswith("torn, left out")
    assert monitor.counts["requests"] >= len(replies) - replies.count(None) - 8, "those under way"
    assert monitor.counts["resolved"] > 0
