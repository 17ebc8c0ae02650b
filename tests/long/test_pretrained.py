"""A pretrained model, SmolLM2-135M-Instruct: thinking under words of its own, without markers.

`tests/long/setup-smollm2.sh` prepares the model; without it the tests are skipped.  The prompt's
examples show how to think: one line that holds the answer, then two that say it again, then the
closer.  The sums are easy enough for so small a model to get most of them right.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.server import NAME, VllmServer, environment
from tests.material import Call
from tests.missing import skip_without

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

SETUP = Path(__file__).with_name("setup-smollm2.sh")
OPEN, CLOSE = "Let us think step by step.", " The answer is"
"""A closer of plain words begins with the space that the model writes before it."""
MARKERS = ("--think-tags", OPEN, CLOSE)
HOW = (*MARKERS, "--cue", " ", "--temperature", "0", "--schedule", "grid")
CAPS = ("--max-think", "64", "--cap", "8", "--answer-cap", "16")
PRICE = ("--price", "1/0.1/1")
"""The paper's."""
EXAMPLES = ((12, 5), (7, 6), (24, 8))
N_SUMS, N_FRESH = 120, 24
N_GSM8K = 40
"""Word problems that are asked, of GSM8K's own test file where one is given."""


@pytest.fixture(scope="module")
def model() -> Path:
    said = subprocess.run([SETUP, "--path"], check=True, capture_output=True, text=True)
    home = Path(said.stdout.strip())
    if not (home / "finished").exists():
        skip_without("SmolLM2")
    return home


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A real vLLM server with the model."""
    home = environment()
    if home is None:
        skip_without("a vLLM environment")
    memory = ("--kv-cache-memory-bytes", str(2**28))  # a token takes 45 KiB
    server = VllmServer(home, tmp_path_factory.mktemp("vllm"), memory, model=model)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    monkeypatch.chdir(tmp_path)
    return Call(capsys)


def document(call: Call, *words: str | Path, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    code, out, err = call(*words, "--json", "--quiet")
    assert code in codes, out + err
    found: dict[str, Any] = json.loads(out)
    return found


def ask(a: int, b: int) -> str:
    return f"What is {a} + {b}?"


def think(a: int, b: int) -> str:
    s = a + b
    return f"{a} + {b} = {s}. Adding {b} to {a} gives {s}. The sum of {a} and {b} is {s}."


def write_sums() -> None:
    """Write the prompt, sums to assess, and others to run."""
    shown = [
        f"Question: {ask(a, b)}\n{OPEN} {think(a, b)}{CLOSE} {a + b}.\n\n" for a, b in EXAMPLES
    ]
    say = "Answer the last question in the same way as the others.\n\n"
    Path("prompt.txt").write_text(say + "".join(shown) + "Question: {question}")
    every = [(a, b) for a in range(2, 30) for b in range(2, 10) if (a, b) not in EXAMPLES]
    pairs = random.Random(18).sample(every, N_SUMS + N_FRESH)
    for name, part in (("sums.jsonl", pairs[:N_SUMS]), ("fresh.jsonl", pairs[N_SUMS:])):
        rows = [{"question": ask(a, b), "gold": str(a + b)} for a, b in part]
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def follow_the_chain(call: Call, *engine: str) -> None:
    """Check, assess, certify and run with the sums, wherever the model runs.

    The costs are those of a stack that forks the running request: thinking is a line or two here,
    so that anything that is read again costs more than a stop saves.
    """
    write_sums()
    how = (*HOW, *CAPS, "--prompt-template", "prompt.txt", *engine)
    checked = document(call, "preflight", "sums.jsonl", *how)
    status = {check["name"]: check["status"] for check in checked["checks"]}
    assert status["markers"] == status["agreement"] == status["cue"] == "pass", checked
    assert checked["accuracy"] > 0.3
    options = ("--out", "run", "--no-preflight", "--no-report", "--serving", "kv-fork", *PRICE)
    assessed = document(call, "assess", "sums.jsonl", "--alpha", "0.1", *how, *options)
    counts = {name: share["count"] for name, share in assessed["profile"].items()}
    assert counts["harmful"] + counts["oscillating"] > assessed["split"]["fit"] / 2
    assert assessed["recommendation"]["policy"] != "full-budget", assessed["headline"]
    certified = document(call, "calibrate", "run", "--alpha", "0.1", "--out", "policy.joblib")
    assert certified["certified"], certified["headline"]
    words = ("run", "policy.joblib", "fresh.jsonl", "--out", "lines.jsonl", "--compare-full")
    ran = document(call, *words, *MARKERS, *engine)
    assert ran["questions"] == N_FRESH
    assert ran["stopped"] > 0
    assert ran["accuracy"] >= ran["full"]["accuracy"] - 0.1


def test_thinking_under_plain_words_is_certified_to_stop_early(call: Call, model: Path) -> None:
    follow_the_chain(call, "--model", str(model), "--device", "cpu", "--dtype", "float32")


def test_the_same_at_a_vllm_server(call: Call, model: Path, served: VllmServer) -> None:
    server = ("--engine", "openai", "--base-url", served.base_url, "--model", NAME)
    follow_the_chain(call, *server, "--tokenizer", str(model), "--concurrency", "8")
    # With a prefix cache a trace is shorter than what another request reads.
    cached = ("--serving", "prefix-cache", *PRICE, "--no-report")
    assessed = document(call, "assess", "run", "--alpha", "0.1", *cached)
    assert assessed["recommendation"]["policy"] == "full-budget"


def test_preflight_says_when_the_model_does_not_write_the_closer(call: Call, model: Path) -> None:
    write_sums()
    words = ("preflight", "sums.jsonl", *HOW, *CAPS, "--model", str(model))
    code, out, _ = call(*words, "--json", "--quiet")
    assert code == 5
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    for name in ("marker-ids", "template"):
        assert checks[name]["status"] == "pass", out
    assert checks["markers"]["status"] == "fail"
    assert "the space" in checks["markers"]["advice"]


def write_like_gsm8k(path: Path) -> Path:
    """Write word problems in the form of GSM8K's test file."""
    lines = []
    for n in range(2, 2 + N_GSM8K):
        asked = f"Ann has {n} apples. She buys 3 bags of {n} apples. How many has she now?"
        told = f"She buys 3*{n}=<<3*{n}={3 * n}>>{3 * n}.\nShe has {4 * n} apples.\n#### {4 * n}"
        lines.append(json.dumps({"question": asked, "answer": told}) + "\n")
    path.write_text("".join(lines))
    return path


def test_word_problems_in_gsm8ks_own_form(call: Call, model: Path) -> None:
    pytest.importorskip("datasets")
    given = os.environ.get("STOPADVISOR_GSM8K")
    source = Path(given) if given else write_like_gsm8k(Path("test.jsonl"))
    made = ("import", "dataset", "gsm8k", "--from", source, "-n", str(N_GSM8K), "-o", "gsm8k.jsonl")
    document(call, *made)
    Path("prompt.txt").write_text(
        "Answer the last question in the same way as the others.\n\n"
        "Question: Tom has 3 boxes of 4 pens and loses 2 pens. How many pens are left?\n"
        f"{OPEN} 3 boxes of 4 pens are 12 pens. 12 - 2 = 10.{CLOSE} 10.\n\n"
        "Question: A book costs $8 and a pen costs $2. What do 2 books and 3 pens cost?\n"
        f"{OPEN} 2 books cost $16. 3 pens cost $6. 16 + 6 = 22.{CLOSE} 22.\n\n"
        "Question: {question}"
    )
    how = (*HOW, "--max-think", "96", "--cap", "8", "--answer-cap", "16")
    words = (*how, "--prompt-template", "prompt.txt", "--model", str(model))
    options = ("--out", "run", "--no-preflight", "--no-report", "--split", "60/40/0")
    assessed = document(call, "assess", "gsm8k.jsonl", *words, *options)
    counts = {name: share["count"] for name, share in assessed["profile"].items()}
    assert sum(counts.values()) == assessed["split"]["fit"]
    assert counts["unsolved"] > sum(counts.values()) / 2
    assert assessed["recommendation"]["policy"] == "full-budget"
