"""What an installation must do: without extras, or with the one that is named.

`python .ci/smoke.py [EXTRA]` with the interpreter of the environment where the package is
installed; the checkout itself is not on its path.  Every module is imported, the extra's commands
are tried in an empty folder.  Fails loudly, prints what it tried.
"""

from __future__ import annotations

import io
import json
import os
import pkgutil
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
POLICY = ROOT / "policies" / "choice.joblib"
OF_TRANSFORMERS = {"transformers", "tokenizers", "safetensors", "huggingface_hub"}
"""Comes with three extras."""
NOWHERE = "http://127.0.0.1:9/v1"
"""Port 9 discards; nothing listens there."""


def call(*words: object, code: int = 0, stderr: bool = False) -> str:
    """Return what the command line prints; it must end with this exit code.

    Every module is imported already, which a process for each command would do again.
    """
    from stopadvisor.cli.main import main

    line = [str(word) for word in words]
    print("$ stopadvisor", *line, flush=True)
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said) if stderr else nullcontext():
        ended = main(line)
    assert ended == code, f"ended with {ended}, not {code}:\n{said.getvalue()}"
    return said.getvalue()


def document(*words: object) -> Any:
    """Return what a command prints with --json."""
    return json.loads(call(*words, "--json"))


# --- What each extra is for -----------------------------------------------------------------------


def without_extras() -> None:
    """Certify made-up probes; read the policies; say what the model would need."""
    import stopadvisor

    assert document("plan", "--alpha", "0.05")["calibration_labels"] > 0
    for path in sorted(POLICY.parent.glob("*.joblib")):
        assert stopadvisor.load_policy(path).start() is not None
        assert document("inspect", path)["digest_valid"]
    sample = document("samples")
    words = ("assess", sample["workloads"][0], "--model", sample["model"], "--json")
    assert "pip install 'stopadvisor[hf]'" in call(*words, code=2)
    simulated()
    call("calibrate", "--alpha", "0.15", "--despite", "advice", "--quiet")
    assert document("inspect")["certificate"]


def simulated() -> None:
    """Assess made-up probes."""
    file = ROOT / "samples" / "recorded" / "free-form.npz"
    call("assess", file, "--families", "confidence", "--quiet")


def hf() -> None:
    """The README's first commands, outside a checkout."""
    call("samples")
    call("assess", "samples/arithmetic.jsonl", "--model", "samples/tiny-reasoner", "--quiet")
    assert "Certified." in call("calibrate", "--alpha", "0.15", "--quiet")


def report() -> None:
    """`assess` writes the page where it can."""
    simulated()
    (page,) = Path("runs").glob("*/report.html")
    assert "<svg" in page.read_text(encoding="utf-8")


def openai() -> None:
    """Everything but a server."""
    call("samples", "--quiet")
    render()
    words = ("--engine", "openai", "--base-url", NOWHERE, "--model", "m", "--patience", "1")
    tokenizer = ("--tokenizer", "samples/tiny-reasoner")
    said = call("preflight", "samples/choice.jsonl", *words, *tokenizer, "--json", code=1)
    assert "cannot reach the server" in said


def render() -> None:
    """A chat template is rendered by a package that transformers does not bring."""
    from stopadvisor.engines.model_files import load_tokenizer

    tokenizer = load_tokenizer("samples/tiny-reasoner").tokenizer
    text = tokenizer.apply_chat_template([{"role": "user", "content": "6 + 7"}], tokenize=False)
    assert "6 + 7" in text


def serve() -> None:
    """A gateway lives, is not ready before its upstream is, and ends when it is told to."""
    call("samples", "--quiet")
    render()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("serve", POLICY, "--upstream", NOWHERE, "--listen", f"127.0.0.1:{port}")
    print("$ stopadvisor", *words, flush=True)
    line = [sys.executable, "-m", "stopadvisor", *map(str, words)]
    with subprocess.Popen(line, stderr=subprocess.DEVNULL) as gateway:
        try:
            until = time.monotonic() + 120
            while not _answers(f"http://127.0.0.1:{port}/healthz"):
                assert gateway.poll() is None, f"ended with {gateway.returncode}"
                assert time.monotonic() < until, "nothing listens after two minutes"
                time.sleep(0.2)
            assert not _answers(f"http://127.0.0.1:{port}/readyz")
        finally:
            gateway.terminate()
        assert gateway.wait(120) == 0


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def datasets() -> None:
    """A benchmark from a copy."""
    rows = [{"question": f"What is {n} + 2?", "answer": f"So.\n#### {n + 2}"} for n in range(9)]
    Path("copy.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows), encoding="utf-8")
    found = document(
        "import", "dataset", "gsm8k", "-n", "5", "--from", "copy.jsonl", "-o", "out.jsonl"
    )
    assert found["n_questions"] == 5


def imports() -> None:
    """Read a packed log."""
    logs = ROOT / "tests" / "testdata" / "imports"
    found = document("import", "inspect", logs / "inspect" / "sums.eval", "-o", "sums.jsonl")
    assert found["n_traces"] > 0


def sign() -> None:
    """Sign a policy, and require the signature; a policy without one is refused."""
    for words in (
        ("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "own.pem"),
        ("ec", "-in", "own.pem", "-pubout", "-out", "own.pub"),
    ):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    call("inspect", POLICY, "--require-signature", "own.pub", code=2, stderr=True)
    simulated()
    words = ("--alpha", "0.15", "--despite", "advice", "--quiet")
    call("calibrate", *words, "--sign", "own.pem", "--out", "own.joblib")
    call("inspect", "own.joblib", "--require-signature", "own.pub")


TRIES: dict[str, Callable[[], None]] = {
    "": without_extras,
    "datasets": datasets,
    "import": imports,
    "hf": hf,
    "openai": openai,
    "report": report,
    "serve": serve,
    "sign": sign,
}
"""By extra; `vllm` takes a server's environment, and has tests in `tests/integration`."""


# --- Every environment ----------------------------------------------------------------------------


def is_installed(name: str) -> bool:
    """Whether what a distribution is imported as is there."""
    own = {"scikit-learn": "sklearn", "backports-zstd": "backports.zstd"}
    try:
        return find_spec(own.get(name, name.replace("-", "_"))) is not None
    except ModuleNotFoundError:  # not even the package that it would lie in
        return False


def check_packages(extra: str) -> None:
    """An extra brings its packages, and nothing needs those of another one to be imported.

    Raises
    ------
    AssertionError
        A package of the extra is missing, or a module misses something that no extra brings.
    """
    import stopadvisor

    wanted, every = set(), set()
    for line in requires("stopadvisor") or []:
        requirement, _, condition = line.replace("'", '"').partition(";")
        name = re.split(r"[^\w-]", requirement)[0]
        if 'python_version < "3.14"' in condition and sys.version_info >= (3, 14):
            continue
        if not condition or f'extra == "{extra}"' in condition:
            wanted.add(name)
        if 'extra == "dev"' not in condition:
            every.add(name)
    others = every - wanted
    missing = sorted(name for name in wanted if not is_installed(name))
    assert not missing, f"not installed: {', '.join(missing)}"
    found = sorted(name for name in others if is_installed(name))
    assert extra or not found, f"no clean environment: {', '.join(found)}"
    absent = OF_TRANSFORMERS | {name.replace("-", "_") for name in others.difference(found)}
    for module in pkgutil.walk_packages(stopadvisor.__path__, "stopadvisor."):
        if module.name.rpartition(".")[2] == "__main__":
            continue
        try:
            import_module(module.name)
        except ModuleNotFoundError as error:
            name = (error.name or "").partition(".")[0]
            assert name in absent, f"{module.name} misses {name}, which no extra brings"


def main(extra: str) -> None:
    """Try everything once."""
    import stopadvisor

    package = Path(stopadvisor.__file__).resolve().parent
    assert package != ROOT / "stopadvisor", f"{package} is the checkout"
    assert (package / "py.typed").exists(), "the package lost its mark for type checkers"
    subprocess.run([sys.executable, "-m", "stopadvisor", "--help"], check=True)
    check_packages(extra)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        TRIES[extra]()
        os.chdir(ROOT)
    print(f"{package} works {f'with the extra {extra}' if extra else 'without extras'}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [""]))
