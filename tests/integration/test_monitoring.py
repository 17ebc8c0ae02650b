"""Monitoring in a real vLLM: harder traffic raises the alarm, and early exit ends."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stopadvisor.cli.main import main
from stopadvisor.policy.frozen import Policy, load_policy, save_policy
from stopadvisor.policy.requests import Request, make_requests, policy_plan
from stopadvisor.probes.trigger import ListedTrigger
from stopadvisor.serving.serve_settings import AuditSettings, ServeSettings
from stopadvisor.workload.questions import read_workload
from tests.integration.asking import ask_all
from tests.integration.conftest import POLICY
from tests.integration.server import ROOT, VllmServer, server_with
from tests.policy_content import policy_from, trigger_content
from tests.snippets import recorded_probes

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

BUDGET = 84
"""Stops few sums of three operands before their answer, and most sums of seven."""
LIMIT = 0.15


def fixed_budget(path: Path) -> Policy:
    """Save a policy with a fixed budget of 84 tokens for the bundled policy's model."""
    made = ("schema", "golden", "digest")
    content = {k: v for k, v in load_policy(POLICY).content.items() if k not in made}
    nothing = dict.fromkeys(("features", "mean", "scale", "coef"), ())
    content |= {name: list(value) for name, value in nothing.items()}
    content |= {"family": "fixed-budget", "intercept": None, "order": [float(BUDGET)]}
    content["certificate"] = {**content["certificate"], "differs_upper": LIMIT}
    content |= {"threshold": float(BUDGET), "decision_threshold": float(BUDGET)}
    content |= trigger_content(ListedTrigger((BUDGET,), BUDGET), family="fixed-budget")
    save_policy(policy_from(content), path)
    return load_policy(path)


def asked(policy: Policy, category: str, n: int) -> list[Request]:
    """Return n requests of one category, those about which the model thinks the least."""
    thought = {row["id"]: row["trace_tokens"] for row in map(json.loads, recorded_probes())}
    questions = read_workload(ROOT / "samples" / "arithmetic.jsonl").questions
    those = [question for question in questions if question.category == category]
    those.sort(key=lambda question: thought[question.id])
    return make_requests(those[:n], policy)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("monitored")


@pytest.fixture(scope="module")
def server(vllm_home: Path, folder: Path) -> Iterator[VllmServer]:
    fixed_budget(folder / "policy.joblib")
    audit = AuditSettings(0.8, folder / "audits", on_alarm="shadow", at_once=64)
    settings = ServeSettings(folder / "policy.joblib", audit=audit)
    with server_with(settings, vllm_home, folder) as server:
        yield server


def metric(server: VllmServer, name: str) -> float:
    url = server.base_url.removesuffix("/v1") + "/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(rf"^stopadvisor_{name}\S* (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def settled(words: list[str], requests: int, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the monitor's report once all audits have ended.

    It covers `requests` requests, or those up to the alarm: a policy in shadow mode is not audited.
    """
    until, before = time.monotonic() + 120, None
    while True:
        capsys.readouterr()
        main([*words, "--json"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        whole = found["requests"] >= requests or found["alarm"] is not None
        if whole and found["unresolved"] == found["shed"] and found == before:
            return found
        assert time.monotonic() < until, found
        before = found
        time.sleep(0.5)


def test_harder_traffic_raises_the_alarm_and_ends_the_stopping(
    server: VllmServer, folder: Path, local: HfEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(folder / "policy.joblib")
    words = ["monitor", str(folder / "policy.joblib"), str(folder / "audits")]

    easy = ask_all(server.port, asked(policy, "3 operands", 12), stream=False)
    assert {reply.header.partition(";")[0] for reply in easy} == {"policy"}
    quiet = settled(words, len(easy), capsys)
    assert (quiet["requests"], quiet["verdict"]) == (len(easy), "no-alarm")
    assert quiet["resolved"] > 5
    # A request that is not audited shows in the metric only with the next one that is.
    shown = 'audit_e_value{digest="[0-9a-f]{8}",watch="differs"}'
    while metric(server, shown) != pytest.approx(quiet["watched"][0]["e_value"], rel=1e-12):
        assert len(easy) < 28, "most are audited, and none was shown as the log has it"
        easy += ask_all(server.port, asked(policy, "3 operands", 1), stream=False)
        quiet = settled(words, len(easy), capsys)

    hard = asked(policy, "7 operands", 24)
    ways = [reply.header.partition(";")[0] for reply in ask_all(server.port, hard, stream=True)]
    rung = settled(words, len(easy) + len(hard), capsys)["alarm"]
    assert ways[0] == "policy"
    # After quiet traffic mostly the change detector; shadow mode then ends all evidence.
    assert rung["kind"] in ("change", "early-warning")
    assert metric(server, f'audit_alarm{{alarm="{rung["kind"]}",') == 1.0
    # In the shadow, replies are those of full thinking.
    requests = asked(policy, "3 operands", 4)
    after = ask_all(server.port, requests, stream=False)
    assert {reply.header.partition(";")[0] for reply in after} == {"shadow"}
    assert all(reply.usage["stopadvisor"]["budget"] is None for reply in after)
    whole = dict(local.serve(requests, policy_plan(policy), None))
    for number, reply in enumerate(after):
        assert (reply.reasoning, reply.content) == (whole[number].thinking, whole[number].text)

    assert main([*words, "--json"]) == 8
    found = json.loads(capsys.readouterr().out)
    assert found["alarm"]["watch"] == "differs"
    assert len(easy) < found["alarm"]["request"] <= len(easy) + len(hard)
    assert found["audit_tokens"] == metric(server, "audit_tokens_total")
    assert "Compute" not in next((folder / "audits").iterdir()).read_text()
