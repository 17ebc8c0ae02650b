"""The bundled archives of simulated probes: whatever comes of them says that no model was asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stopadvisor.policy.frozen import load_policy
from tests.material import CERTIFY, Call
from tests.policy_content import certificate_in

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "samples" / "recorded"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    return Call(capsys)


@pytest.mark.slow
def test_all_that_comes_of_them_is_marked(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = RECORDED / "early-solved.npz"
    code, out, err = call("assess", file)
    assert code == 0
    assert "simulated probes: no model was asked" in err
    assert "simulated probes: no model was asked" in " ".join(out.split())
    found = call.json("assess", file)
    assert found["workload"]["engine"] == "simulated"
    assert found["workload"]["model"] is None
    assert any("simulated" in remark for remark in found["remarks"])
    assert "simulated" in found["recommendation"]["reasons"][0]

    code, out, _ = call("calibrate", *CERTIFY, found["run"], "--alpha", "0.15")
    assert code == 0
    (path,) = tmp_path.rglob("policy.joblib")
    policy = load_policy(path)
    assert policy.content["model"] is None
    assert policy.content["engine"]["name"] == "simulated"
    assert certificate_in(policy)["claim"].endswith("it holds for the simulator alone.")
    assert "made from simulated probes" in call("inspect", path)[1]

    (tmp_path / "some.jsonl").write_text('{"question": "1+1?", "gold": "2"}\n', encoding="utf-8")
    assert "bound to no model" in call.refused("run", path, "some.jsonl", "--model", "none")

    code, out, _ = call("study", "calibration", file, "--set", "resamples=100", "--json")
    assert code == 0
    assert "Simulated probes, measured on no model" in out


@pytest.mark.integration
def test_they_need_no_model(tmp_path: Path) -> None:
    """Both commands of the README beside them, in a process that then holds no torch."""
    code = (
        "import sys\n"
        "from stopadvisor.cli.main import main\n"
        "assert main(['assess', sys.argv[1], '--no-report']) == 0\n"
        "assert main(['calibrate', '--alpha', '0.15', '--despite', 'large-alpha']) in (0, 3)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(RECORDED / "unsolved.npz")],
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


def test_they_are_small() -> None:
    assert sum(file.stat().st_size for file in RECORDED.iterdir()) < 1_000_000
