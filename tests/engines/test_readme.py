"""The snippets of `stopadvisor/engines/README.md` run as they stand there, but for the address."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from stopadvisor.policy.frozen import load_policy, save_policy
from tests.engines.fake_server import fake_server
from tests.engines.test_openai_online import engine_at, policy_of

ROOT = Path(__file__).parents[2]
README = (ROOT / "stopadvisor" / "engines" / "README.md").read_text(encoding="utf-8")
LOCAL, SERVED = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def run(snippet: str) -> None:
    exec(compile(snippet, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.integration
def test_the_local_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(ROOT / "policies" / "arithmetic.joblib", tmp_path / "policy.joblib")
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    run(LOCAL)
    answer, budget, thought, probed = capsys.readouterr().out.split()
    assert re.fullmatch(r"\d{1,2}", answer)
    assert int(budget) in load_policy("policy.joblib").content["budgets"]
    assert int(thought) >= int(budget)
    assert int(probed) > 0


def test_the_example_at_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with fake_server() as server:
        with engine_at(server) as engine:
            save_policy(policy_of(engine).content, tmp_path / "policy.joblib")
        run(SERVED.replace("http://127.0.0.1:8000/v1", server.url))
    answer, *_ = capsys.readouterr().out.split()
    assert answer in ("5", "7")


def test_every_module_named_there_exists() -> None:
    names = re.search(r"## Where is what\n(.*)", README, re.DOTALL)
    assert names is not None
    for folder, named in re.findall(r"^\| `?([\w ]+)/?`? \|(.*)\|$", names[1], re.MULTILINE):
        here = ROOT / "stopadvisor" / "engines" / (folder if " " not in folder else "")
        for module in re.findall(r"`(\w+)`", named):
            assert (here / f"{module}.py").is_file(), f"{folder}: {module}"
