"""`simulate`, and what the other commands say of simulated probes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stopadvisor.policy.frozen import load_policy
from stopadvisor.probes.simulation import PRESETS
from tests.material import CERTIFY, Call, caller
from tests.policy_content import certificate_in

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(capsys)


def test_what_was_written_is_said(tmp_path: Path, call: Call) -> None:
    words = ("simulate", "-n", "40", "--seed", "3", "-o", tmp_path / "run")
    code, out, _ = call(*words)
    assert code == 0
    assert out.startswith("Simulated 40 questions: nothing was measured.")
    assert f"stopadvisor assess {tmp_path / 'run'}" in out
    code, out, _ = call(*words[:-1], tmp_path / "raw.npz", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["simulated"] is True
    assert (found["n_questions"], found["seed"], found["signal"]) == (40, 3, 1.6)
    assert found["full_reference"] == "last-checkpoint"
    law = PRESETS["free-form"]
    assert found["budgets"] == list(law.budgets)
    assert {k: v for k, v in found["shares"].items() if v} == law.shares


@pytest.mark.parametrize("words", [("--profile", "early=0.5"), ("-n", "0")], ids=" ".join)
def test_bad_requests_end_with_exit_code_2(
    tmp_path: Path, call: Call, words: tuple[str, ...]
) -> None:
    code, out, err = call("simulate", *words, "-o", tmp_path / "run")
    assert (code, out) == (2, "")
    assert words[-1].rpartition("=")[2] in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["run", "raw.npz"])
def test_all_that_comes_of_it_is_marked(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    call("simulate", "--profile", "early-solved", "-n", "400", "-o", name)
    code, out, err = call("assess", name)
    assert code == 0
    assert "simulated probes: no model was asked" in err
    assert "simulated probes: no model was asked" in " ".join(out.split())
    code, out, err = call("assess", name, "--json")
    found = json.loads(out)
    assert found["workload"]["engine"] == "simulated"
    assert found["workload"]["model"] is None
    assert any("simulated" in remark for remark in found["remarks"])
    assert "simulated" in found["recommendation"]["reasons"][0]

    code, out, _ = call("calibrate", *CERTIFY, found["run"], "--alpha", "0.15")
    assert code == 0
    (path,) = tmp_path.rglob("policy.joblib")
    policy = load_policy(path)
    content = policy.content
    assert content["model"] is None
    assert content["engine"]["name"] == "simulated"
    claim = certificate_in(policy)["claim"]
    assert claim.endswith("it holds for the simulator alone.")
    assert "made from simulated probes" in call("inspect", path)[1]

    (tmp_path / "some.jsonl").write_text('{"question": "1+1?", "gold": "2"}\n', encoding="utf-8")
    code, _, err = call("run", path, "some.jsonl", "--model", "none")
    assert code == 2
    assert "bound to no model" in err

    call("simulate", "--profile", "early-solved", "-n", "400", "--seed", "1", "-o", f"new-{name}")
    code, out, err = call("verify", path, f"new-{name}", "--json")
    assert code == 0
    assert json.loads(out)["verdict"] != "contradicted"


def test_the_papers_protocol_marks_it_too(tmp_path: Path, call: Call) -> None:
    call("simulate", "-n", "300", "-o", tmp_path / "raw.npz")
    words = ("--protocol", "paper", "--out", tmp_path / "results", "--json")
    code, out, _ = call("assess", tmp_path / "raw.npz", *words)
    assert code == 0
    assert "simulated" in json.loads(out)["recommendation"]["reasons"][0]


def test_a_study_marks_it_too(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call("simulate", "-n", "200", "-o", "raw.npz")
    code, out, _ = call("study", "calibration", "raw.npz", "--set", "resamples=100", "--json")
    assert code == 0
    assert "Simulated probes, measured on no model" in out


@pytest.mark.integration
def test_recorded_samples_need_no_model(tmp_path: Path) -> None:
    """Both commands of the README beside them, in a process that then holds no torch."""
    code = (
        "import sys\n"
        "from stopadvisor.cli.main import main\n"
        "assert main(['assess', sys.argv[1], '--no-report']) == 0\n"
        "assert main(['calibrate', '--alpha', '0.15', '--despite', 'large-alpha']) in (0, 3)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    file = ROOT / "samples" / "recorded" / "unsolved.npz"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "simulated" in done.stdout
    # Its confidence knows where to stop, although the mix speaks for full thinking.
    assert "Stop early" in done.stdout
