"""A pretrained model, SmolLM2-135M-Instruct: thinking under words of its own, without markers.

`tests/long/setup-smollm2.sh` prepares the model; without it the tests are skipped.
"""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.material import Call, caller

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

SETUP = Path(__file__).with_name("setup-smollm2.sh")
OPEN, CLOSE = "Let us think step by step.", "The answer is"
HOW = ("--think-open", OPEN, "--think-close", CLOSE, "--cue", " ", "--max-think", "256")
N_SUMS = 56


@pytest.fixture(scope="module")
def model() -> Path:
    said = subprocess.run([SETUP, "--path"], check=True, capture_output=True, text=True)
    home = Path(said.stdout.strip())
    if not (home / "finished").exists():
        pytest.skip("no pretrained model: tests/long/setup-smollm2.sh prepares it")
    return home


@pytest.fixture
def call(
    tmp_path: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOPADVISOR_MODEL", str(model))
    return caller(capsys)


def write_easy_sums(path: Path, n: int = N_SUMS) -> Path:
    rng = random.Random(18)
    pairs = rng.sample([(a, b) for a in range(2, 60) for b in range(2, 10)], n)
    rows = [{"question": f"What is {a} + {b}?", "gold": str(a + b)} for a, b in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def document(call: Call, *words: str | Path, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    code, out, err = call(*words, "--json", "--quiet")
    assert code in codes, out + err
    found: dict[str, Any] = json.loads(out)
    return found


def test_preflight_says_how_many_traces_end_without_the_closer(call: Call) -> None:
    sums = write_easy_sums(Path("sums.jsonl"))
    report = document(call, "preflight", sums, *HOW, codes=(0, 5))
    checks = {check["name"]: check for check in report["checks"]}
    for name in ("marker-ids", "template", "budgets", "think-cap", "answer-cap", "numbers"):
        assert checks[name]["status"] == "pass", report
    assert "end without closing it" in checks["markers"]["detail"]


def test_the_advice_is_full_thinking_and_nothing_is_promised(call: Call) -> None:
    sums = write_easy_sums(Path("sums.jsonl"))
    options = ("--out", "run", "--no-preflight", "--no-report")
    assessed = document(call, "assess", sums, *HOW, *options)
    counts = {name: share["count"] for name, share in assessed["profile"].items()}
    assert sum(counts.values()) == assessed["split"]["fit"]
    assert counts["unsolved"] > sum(counts.values()) / 2
    assert assessed["recommendation"]["policy"] == "full-budget"
    code, _, err = call("calibrate", "run", "--alpha", "0.05", "--quiet")
    assert code == 2
    assert "--allow-large-alpha" in err
