"""Groups of several questions on the command line: from a workload to a verified policy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from tests.material import CERTIFY, Call, caller
from tests.scripted import ScriptedEngine, write_sums

pytestmark = pytest.mark.slow

WORDS = ["--budgets", "0,8,16,32,64", "--max-think", "256", "--quiet", "--no-preflight"]
ASKED = [*CERTIFY, "--alpha", "0.3", "--families", "confidence", "--json"]


def probe(folder: Path, name: str, n: int, start: int = 0) -> Path:
    """A run of sums, three or one to a group."""
    path = write_sums(folder / f"{name}.jsonl", n, start=start)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for i, row in enumerate(rows):
        row["group"] = f"{name} {i // 6}" if i % 6 < 3 else f"{name} {i // 6}, {i % 6}"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert main(["probe", str(path), *WORDS, "--out", str(folder / name)]) == 0
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("groups")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "stopadvisor.engines.engine_settings.start_engine", lambda options: ScriptedEngine()
        )
        probe(made, "one", 480)
        probe(made, "other", 240, start=1000)
    return made


@pytest.fixture
def call(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    for name in ("one", "other"):
        shutil.copytree(folder / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return caller(capsys)


def document(call: Call, *words: str) -> dict[str, Any]:
    code, out, err = call(*words)
    assert code == 0, out + err
    found: dict[str, Any] = json.loads(out)
    return found


def test_one_of_each_group_is_certified_shown_and_verified(call: Call) -> None:
    words = ["--alpha", "0.3", "--families", "confidence", "--json"]
    document(call, "assess", "one", *words)
    certificate = document(call, "calibrate", "one", *CERTIFY, "--alpha", "0.3", "--json")[
        "certificate"
    ]
    assert (certificate["bound"], certificate["group_claim"]) == ("exact", "groups")
    assert "in at most 30 % of all groups" in certificate["claim"]
    code, text, _ = call("inspect", "one/policy.joblib")
    assert code == 0
    assert "calibration questions, one of each group, lost (exact test" in " ".join(text.split())
    verified = document(call, "verify", "one/policy.joblib", "other", "--json")
    assert verified["n"] == 160
    assert "groups" not in verified
