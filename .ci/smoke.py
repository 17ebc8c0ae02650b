"""What an installation without extras must do: help, samples, a plan, a certificate, a policy.

`python .ci/smoke.py` with the interpreter of the environment where the package is installed; the
checkout itself is not on its path.  Fails loudly, prints what it tried.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("torch", "transformers", "httpx2", "matplotlib", "jinja2", "datasets")


def is_there(name: str) -> bool:
    """Whether a package could be imported."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a test hides it
        return False


def call(*words: str, code: int = 0) -> str:
    """Return what the command line prints; it must end with this exit code."""
    print("$ stopadvisor", *words, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "stopadvisor", *words], stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == code, f"ended with {done.returncode}, not {code}:\n{done.stdout}"
    return done.stdout


def main() -> None:
    """Try everything once."""
    import stopadvisor

    found = Path(stopadvisor.__file__).resolve()
    assert ROOT / "stopadvisor" not in found.parents, f"{found} is the checkout"
    present = [name for name in EXTRAS if is_there(name)]
    assert not present, f"not an environment without extras: {', '.join(present)} are there"
    assert (found.parent / "py.typed").exists(), "the package lost its mark for type checkers"

    assert "calibrate" in call("--help")
    assert json.loads(call("plan", "--json"))["calibration_labels"] > 0
    for path in sorted((ROOT / "policies").glob("*.joblib")):
        policy = stopadvisor.load_policy(path)
        assert policy.start() is not None
        assert json.loads(call("inspect", str(path), "--json"))["digest_valid"]
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        sample = json.loads(call("samples", "--json"))
        words = ("assess", sample["workloads"][0], "--model", sample["model"], "--json")
        assert "pip install 'stopadvisor[hf]'" in call(*words, code=2)
        call("simulate", "-n", "400", "-o", "runs/simulated", "--quiet")
        call("assess", "runs/simulated", "--families", "confidence", "--no-report", "--quiet")
        call("calibrate", "--alpha", "0.15", "--despite-advice", "--quiet")
        assert json.loads(call("inspect", "--json"))["certificate"]
    print(f"{found.parent} works without extras")


if __name__ == "__main__":
    main()
