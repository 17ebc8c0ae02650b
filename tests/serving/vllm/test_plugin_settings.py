"""What the plugin is told, which files it loads, and which vLLM it takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stopadvisor.ground.errors import ModelError, PolicyError
from stopadvisor.policy.frozen import save_policy
from stopadvisor.serving.serve_settings import ServeSettings, load_policies
from stopadvisor.serving.vllm.plugin_settings import check_vllm, is_tried, settings_of, variables_of
from tests.serving.vllm.fake_engine import policy_of


def test_settings_come_back_from_the_environment(tmp_path: Path) -> None:
    settings = ServeSettings(
        tmp_path / "p.joblib", shadow=True, require_signature=(tmp_path / "a", tmp_path / "b")
    )
    assert settings_of(variables_of(settings)) == settings
    plain = ServeSettings(tmp_path / "p.joblib", any_text=True)
    assert settings_of(variables_of(plain)) == plain


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({}, "STOPADVISOR_POLICY: expected a policy's file or a folder, got none"),
        (
            {"STOPADVISOR_POLICY": "p", "STOPADVISOR_SHADOW": "yes"},
            "STOPADVISOR_SHADOW: expected 0 or 1, got 'yes'",
        ),
    ],
)
def test_bad_settings(found: dict[str, str], message: str) -> None:
    with pytest.raises(PolicyError) as refused:
        settings_of(found)
    assert str(refused.value) == message


def test_a_file_or_a_folder_of_policies(tmp_path: Path) -> None:
    policy = policy_of()
    for name in ("b.json", "a.joblib"):
        save_policy(policy, tmp_path / name, format="json" if "json" in name else "joblib")
    (tmp_path / "notes.txt").write_text("no policy")
    found = load_policies(ServeSettings(tmp_path))
    assert [path.name for path, _ in found] == ["a.joblib", "b.json"]
    assert {loaded.digest for _, loaded in found} == {policy.digest}
    ((_, one),) = load_policies(ServeSettings(tmp_path / "b.json"))
    assert one.digest == policy.digest
    with pytest.raises(PolicyError, match=r"key\.pub"):
        load_policies(ServeSettings(tmp_path, require_signature=(tmp_path / "key.pub",)))
    (tmp_path / "none").mkdir()
    with pytest.raises(PolicyError, match="expected a policy"):
        load_policies(ServeSettings(tmp_path / "none"))


@pytest.mark.parametrize(
    ("version", "tried"),
    [("0.31.0", True), ("0.32.3+cpu", True), ("0.33.1.dev5+g12", False), ("0.320.0", False)],
)
def test_newer_versions_are_let_in_for_the_self_test(version: str, tried: bool) -> None:
    assert check_vllm(version) == version
    assert is_tried(version) == tried


@pytest.mark.parametrize("version", ["0.30.9", "0.9.1"])
def test_older_versions_are_refused(version: str) -> None:
    with pytest.raises(ModelError) as refused:
        check_vllm(version)
    assert f"takes no older one, got {version}" in str(refused.value)
    assert os.linesep not in str(refused.value)
