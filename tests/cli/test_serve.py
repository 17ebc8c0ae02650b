"""`serve`: what vLLM is started with, and what is refused before it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from stopadvisor.cli.main import main
from stopadvisor.policy.frozen import build_policy, save_policy
from stopadvisor.serving.vllm import settings
from tests.policy_content import example_content


class Became(BaseException):
    """The process would be another now."""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    save_policy(build_policy(example_content()), tmp_path / "p.joblib")
    return tmp_path / "p.joblib"


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[str], Mapping[str, str]]]:
    """What the process became; vLLM is there."""
    found: list[tuple[Sequence[str], Mapping[str, str]]] = []

    def execve(path: str, argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
        assert path == argv[0]
        found.append((argv, environment))
        raise Became

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(settings, "version", lambda name: "0.32.0")
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    return found


def test_it_becomes_vllm_with_the_policy(
    policy: Path, become: list[tuple[Sequence[str], Mapping[str, str]]]
) -> None:
    with pytest.raises(Became):
        main(["serve", str(policy), "--shadow", "--", "model", "--port", "8001", "--shadow-x"])
    ((argv, environment),) = become
    assert argv[:4] == [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
    assert argv[4:] == ["model", "--port", "8001", "--shadow-x", "--scheduling-policy", "priority"]
    assert environment["VLLM_PLUGINS"] == "other,stopadvisor"
    told = settings.PluginSettings.of_environment(environment)
    assert (told.policy, told.shadow, told.any_text) == (policy, True, False)


def test_a_scheduling_policy_of_ones_own_stays(
    policy: Path, become: list[tuple[Sequence[str], Mapping[str, str]]]
) -> None:
    with pytest.raises(Became):
        main(["serve", str(policy), "--", "model", "--scheduling-policy=fcfs"])
    assert become[0][0][4:] == ["model", "--scheduling-policy=fcfs"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{policy}"], "expected POLICY -- MODEL [VLLM OPTION]..., got no MODEL"),
        (["{policy}", "--", "--port", "1"], "expected POLICY -- MODEL [VLLM OPTION]"),
        (["missing.joblib", "--", "model"], "missing.joblib"),
        (["{policy}", "--require-signature", "none.pub", "--", "model"], "none.pub"),
    ],
)
def test_what_is_refused(
    words: list[str],
    message: str,
    policy: Path,
    become: list[tuple[Sequence[str], Mapping[str, str]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", *(word.format(policy=policy) for word in words)]) == 2
    assert not become
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_without_vllm_it_says_what_to_install(
    policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the environment of these tests."""
    assert main(["serve", str(policy), "--", "model"]) == 2
    said = capsys.readouterr().err
    assert "pip install 'stopadvisor[vllm]'" in said
    assert len(said.splitlines()) == 1
