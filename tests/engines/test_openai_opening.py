"""What the openai engine needs installed: transformers for the tokenizer, and no torch."""

from __future__ import annotations

import subprocess
import sys
from http.server import BaseHTTPRequestHandler

import pytest

from stopadvisor.engines.openai import open_servers
from stopadvisor.ground.errors import ModelError
from tests.engines.conftest import Pauses
from tests.engines.fake_server import FakeServer, fake_server

PROBE = """
import importlib.util
import sys

real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name in sys.argv[2:] else real(name, package)
)
sys.modules.update(dict.fromkeys(sys.argv[2:]))  # importing them fails, as where they are missing

from stopadvisor.ground.constants import CUES
from stopadvisor.engines.openai import open_servers
from stopadvisor.probes.asking import ProbePlan, Prompt

engine = open_servers("tiny-reasoner", [sys.argv[1]], concurrency=2)
entropy = engine.capabilities.entropy
plan = ProbePlan(budgets=(0, 4), cue=CUES["terse"], max_think=100, entropy=entropy)
(trace,) = engine.probe([Prompt("k", ({"role": "user", "content": "3+4"},))], plan)
engine.close()
print([probe.text for probe in trace.probes])
"""


@pytest.mark.integration
def test_it_runs_without_torch_and_says_nothing_of_it() -> None:
    with fake_server() as server:
        words = [sys.executable, "-c", PROBE, server.url, "torch"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[' 5', ' 5']"
    assert done.stderr == ""


@pytest.mark.parametrize("package", ["httpx2", "anyio", "transformers"])
def test_a_missing_package_is_named_with_its_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "stopadvisor.engines.errors.importlib.util.find_spec",
        lambda name: None if name == package else object(),
    )
    with pytest.raises(ModelError, match=f"needs {package}, which is not installed: pip install"):
        open_servers("tiny-reasoner", [FakeServer(port=9).url])


class Busy(FakeServer):
    """Cannot cut texts into tokens just now."""

    def post(self, to: BaseHTTPRequestHandler) -> None:
        if to.path == "/tokenize":
            to.send_error(503)
        else:
            super().post(to)


def test_a_tokenizer_that_the_server_does_not_show_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, pauses: Pauses
) -> None:
    monkeypatch.setattr("stopadvisor.engines.http.client.OPENING_TIMEOUT", 0.3)
    with Busy() as server:
        open_servers("tiny-reasoner", [server.url], concurrency=1, retry_timeout=60).close()
    assert sum(pauses.taken) == pytest.approx(0.3)
