"""What the plugin is told, which files it loads, and which vLLM it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import save_policy
from stopadvisor.serving.serve_settings import AuditSettings, ServeSettings, load_policies
from stopadvisor.serving.vllm import plugin_settings
from stopadvisor.serving.vllm.plugin_settings import check_vllm, is_tried, settings_of, variables_of
from tests.serving.vllm.fake_engine import policy_of


def test_settings_come_back_from_the_environment(tmp_path: Path) -> None:
    settings = ServeSettings(
        tmp_path / "p.joblib", shadow=True, require_signature=(tmp_path / "a", tmp_path / "b")
    )
    assert settings_of(variables_of(settings)) == settings
    plain = ServeSettings(tmp_path / "p.joblib", any_text=True)
    assert settings_of(variables_of(plain)) == plain
    audit = AuditSettings(0.02, tmp_path, on_alarm="shadow")
    audited = ServeSettings(tmp_path / "policy.joblib", audit=audit)
    assert settings_of(variables_of(audited)) == audited
    with pytest.raises(PolicyError, match="expected the settings of audits as JSON"):
        settings_of({**variables_of(audited), "STOPADVISOR_AUDIT": "{}"})


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
def test_newer_versions_are_let_in_for_the_self_test(
    version: str, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_settings, "version", lambda package: version)
    assert check_vllm() == version
    assert is_tried(version) == tried
