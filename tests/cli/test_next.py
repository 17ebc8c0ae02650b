"""Each command printed after `next` runs as printed, from assess to a watched server."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from prometheus_client import CollectorRegistry

from stopadvisor.engines.hf import load_engine
from stopadvisor.policy.frozen import load_policy, save_policy
from stopadvisor.serving.audits import AuditedReply, Auditor, FullThinking
from stopadvisor.serving.metrics import Metrics
from stopadvisor.serving.vllm import plugin_settings
from tests.engines.online_policies import TINY_REASONER, rule
from tests.material import Call, make_run, write_easiest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_draws")]


class Became(BaseException):
    """The process became another one."""


def following(text: str) -> list[str]:
    """Words of the command that a screen or a remark names."""
    (line,) = re.findall(r"^ *next:? +stopadvisor (.*)$", text, re.MULTILINE)
    return shlex.split(line)


@pytest.mark.usefixtures("sums")
def test_from_assess_to_a_watched_server(
    call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    became: list[Mapping[str, str]] = []

    def execve(path: str, argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
        became.append(environment)
        raise Became

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(plugin_settings, "version", lambda name: "0.32.0")
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    wanted = ("--families", "confidence", "--serving", "vllm", "--price", "0/0/1")
    code, out, _ = call("assess", "runs/sums", *wanted, "--alpha", "0.2")
    assert code == 0
    assert following(out)[:4] == ["calibrate", "runs/sums", "--alpha", "0.2"]
    code, out, err = call(*following(out))
    assert code == 0, err
    serve = following(out)
    assert serve[:3] == ["serve", "runs/sums/policy.joblib", "--shadow"]
    assert following(call("inspect", serve[1])[1]) == serve
    assert "--reasoning-parser" in serve
    # As probed here; by itself vLLM would halve it, and refuse the policy.
    assert serve[serve.index("--dtype") + 1] == "float32"
    for expected in ("serve", "monitor"):
        with pytest.raises(Became):
            call(*serve)
        serve = following(capsys.readouterr().err)
        assert serve[0] == expected
    # What the second server writes, `monitor` reads.
    settings = plugin_settings.settings_of(became[-1])
    assert settings.audit is not None
    assert not settings.shadow
    _serve_a_few(
        Auditor(
            load_policy(settings.policy),
            settings.audit,
            Metrics(CollectorRegistry()),
            lambda _: None,
        )
    )
    code, out, err = call(*serve)
    assert code == 0, err


def _serve_a_few(auditor: Auditor) -> None:
    async def finish() -> FullThinking:
        return FullThinking("42", 90)

    async def work() -> None:
        for number in range(200):
            auditor.served(AuditedReply(str(number), 30, "42", "numeric", 40, 12), finish)
            await asyncio.sleep(0)
        await auditor.drain(10)

    asyncio.run(work())


def test_labels_keep_their_options(call: Call) -> None:
    make_run(Path("run"), 300, gold=False, fractions=(0.4, 0.6, 0.0))
    asked = ("--families", "confidence", "--labels", "20", "--despite", "advice")
    code, out, err = call("label", "run", "--alpha", "0.1", *asked, "--export", "a sheet.csv")
    assert code == 0, err
    words = following(out)
    assert words[-2:] == ["--import", "a sheet.csv"]
    assert set(asked) <= {*words}
    code, out, err = call(*words)
    assert code == 0, err
    words = following(out)
    assert set(asked) <= {*words}
    assert call(*words)[0] in (0, 3)


def test_after_labelling_only_the_limits_of_its_look_are_suggested(call: Call) -> None:
    make_run(Path("run"), 300, gold=False, fractions=(0.4, 0.6, 0.0))
    asked = ("--families", "confidence", "--serving", "kv-fork")
    assess = ("assess", "run", *asked)
    _, out, _ = call(*assess)
    assert "`calibrate` can promise" in out
    code, _, err = call("label", "run", "--alpha", "0.1", *asked, "--export", "sheet.csv")
    assert code == 0, err
    _, out, _ = call(*assess, "--alpha", "0.2")
    assert "`calibrate` can promise" not in out
    assert following(out) == ["calibrate", "run", "--alpha", "lost=0.1"]
    code, _, err = call(*following(out))
    assert code in (0, 3), err
    _, out, _ = call(*assess, "--serving", "prefix-cache")
    assert "  next " not in out, "the look was for another stack"


@pytest.mark.integration
def test_a_policy_is_tried_and_then_served(
    call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_easiest(Path("my sums.jsonl"), 80)
    shutil.copytree(TINY_REASONER, "llm/our model")
    engine = load_engine("llm/our model", device="cpu")
    monkeypatch.setattr("stopadvisor.engines.engine_settings.start_engine", lambda options: engine)
    short = ("--limit", "2", "--max-think", "64", "--budgets", "0,32", "--no-preflight")
    asked = ("--model", "llm/our model", *short)
    code, _, err = call("probe", "my sums.jsonl", *asked, "--out", "run")
    assert code == 0, err
    Path("run/stopadvisor.toml").write_text('[assess]\nmodel = "llm/our model"\n', encoding="utf-8")
    policy = rule(engine, "run-stability", 2.0, budgets=[0, 32, 64])
    save_policy(policy, "run/policy.joblib")
    code, out, err = call("inspect", "run/policy.joblib")
    assert code == 0, err
    words = following(out)
    assert words == [
        *("run", "run/policy.joblib", "my sums.jsonl", "--compare-full"),
        *("--model", "llm/our model"),
    ]
    # Without the comparison the next command adds it, with all that it needs.
    words.remove("--compare-full")
    alone = ("--limit", "2", "--dtype", "float32")
    code, out, err = call(*words, *alone)
    assert code == 0, err
    assert {*words, *alone, "--compare-full"} < {*following(out)}
    code, out, err = call(*following(out))
    assert code == 0, err
    assert "Against full thinking" in out
    serve = following(out)
    assert serve == ["serve", "run/policy.joblib", "--shadow", "--", "llm/our model"]
    monkeypatch.setattr(os, "execve", _became)
    monkeypatch.setattr(plugin_settings, "version", lambda name: "0.32.0")
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    with pytest.raises(Became):
        call(*serve)


def _became(*words: object) -> NoReturn:
    raise Became
