"""`assess` costs as the run's own server was measured, unless another regime is asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from stopadvisor.runs.server_regime import RegimeMeasure, Repeated, classify_regime, write_regime
from stopadvisor.runs.sources import Source
from tests.material import CERTIFY, Call, caller, make_run

FAST = ("--families", "entropy,confidence", "--no-report")


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("probed") / "run", 300)


@pytest.fixture
def run(tmp_path: Path, probed: Path) -> Path:
    return shutil.copytree(probed, tmp_path / "run")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(capsys, "assess")


def _server(block: int | None, *, says: bool = True, per_token: float = 1e-3) -> list[Repeated]:
    """Prompts sent twice to a server with such a cache."""
    rows = []
    for tokens in (101, 334, 727, 1001):
        cached = (tokens - 1) // block * block if block else 0
        seconds = (0.01 + per_token * tokens, 0.01 + per_token * (tokens - cached))
        rows.append(Repeated(tokens, cached if says else None, *seconds))
    return rows


def _assessed(call: Call, *words: str | Path) -> tuple[dict[str, Any], list[str]]:
    """The document, and those of its remarks that are about the server."""
    code, out, err = call(*words, *FAST, "--json", "--quiet")
    assert (code, err) == (0, "")
    document = json.loads(out)
    return document, [r for r in document["remarks"] if "server" in r or "regime" in r]


@pytest.mark.parametrize(
    ("repeated", "serving", "block", "said"),
    [
        pytest.param(_server(32), "prefix-cache", 32, "in blocks of 32 tokens", id="blocks"),
        pytest.param(_server(1), "kv-fork", 1, "token by token", id="token by token"),
        pytest.param(_server(None), "black-box", 16, "none came from the cache", id="nothing"),
        pytest.param(
            _server(16, says=False), "prefix-cache", 16, "16 tokens are taken for granted",
            id="seconds alone",
        ),
        pytest.param(
            _server(None, says=False, per_token=0), "black-box", 16, "is not clear", id="mute"
        ),
    ],
)  # fmt: skip
def test_costs_are_those_of_the_measured_server(
    call: Call, run: Path, repeated: list[Repeated], serving: str, block: int, said: str
) -> None:
    write_regime(run, classify_regime(repeated))
    document, remarks = _assessed(call, run)
    assert document["recommendation"]["serving"] == serving
    assert document["settings"]["serving"] == serving
    assert document["settings"]["cache_block"] == block
    assert document["server"]["regime"] == classify_regime(repeated).regime
    (remark,) = remarks
    assert said in remark


def test_a_server_that_was_not_measured_is_not_trusted_to_keep_anything(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source, "engine", "openai")
    document, (remark,) = _assessed(call, run)
    assert document["settings"]["serving"] == "black-box"
    assert "was not measured" in remark
    assert "costs are those of black-box" in remark
    document, (remark,) = _assessed(call, run, "--serving", "prefix-cache")
    assert "costs are those of prefix-cache" in remark


@pytest.mark.parametrize(
    ("words", "serving", "block", "said"),
    [
        (["--serving", "black-box"], "black-box", 32, "costs are those of black-box, as asked"),
        (["--serving", "kv-fork"], "kv-fork", 32, "costs are those of kv-fork, as asked"),
    ],
)  # fmt: skip
def test_what_is_asked_for_overrules_the_measure(
    call: Call, run: Path, words: list[str], serving: str, block: int, said: str
) -> None:
    write_regime(run, classify_regime(_server(32)))
    document, (remark,) = _assessed(call, run, *words)
    assert document["settings"]["serving"] == serving
    assert document["settings"]["cache_block"] == block
    assert "this server is prefix-cache, as measured" in remark
    assert said in remark


@pytest.mark.parametrize(
    "measure",
    [classify_regime(_server(32)), classify_regime(_server(0))],
    ids=lambda measure: str(measure.regime),
)
def test_calibrate_certifies_under_the_measured_regime(
    run: Path, capsys: pytest.CaptureFixture[str], measure: RegimeMeasure
) -> None:
    write_regime(run, measure)
    assert main(["assess", str(run), *FAST, "--price", "0/0/1", "--quiet"]) == 0
    capsys.readouterr()
    code = main(["calibrate", *CERTIFY, str(run), "--json", "--quiet"])
    assert code in (0, 3)
    assert json.loads(capsys.readouterr().out)["serving"] == measure.regime


def test_the_screen_says_what_the_server_is(call: Call, run: Path) -> None:
    code, out, _ = call(run, *FAST, "--quiet")
    assert code == 0
    assert "as measured" not in out
    write_regime(run, classify_regime(_server(32)))
    code, out, _ = call(run, *FAST, "--quiet")
    assert code == 0
    assert "server prefix-cache, as measured: 98% of the tokens" in " ".join(out.split())


def test_a_damaged_measure_is_one_line(call: Call, run: Path) -> None:
    (run / "serving.json").write_text("{}", encoding="utf-8")
    code, out, err = call(run, *FAST)
    assert (code, out) == (2, "")
    assert "serving.json: not a measure of a server" in err
