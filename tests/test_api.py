"""The Python API does what the commands do, and results show themselves as their sheets."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stopadvisor
from stopadvisor.cli.main import main
from stopadvisor.ground.errors import CalibrationError, GraderError, ProbeError, WorkloadError
from stopadvisor.ground.results import to_document
from stopadvisor.report.html.page import sheet_html
from stopadvisor.report.sheet import Section, Sheet
from stopadvisor.report.sheets.verify import verify_sheet
from stopadvisor.rules.costs import MONEY, Weights
from stopadvisor.rules.losses import Guarantee
from tests.engines.rung_server import ladder_toml, rung_server, say
from tests.material import make_run
from tests.runs.test_replies import written


def lenient(question: str, gold: str, answer: str) -> bool:
    """Find every answer right."""
    return True


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("api") / "run", 300)


@pytest.mark.slow
def test_results_are_those_of_the_commands(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = stopadvisor.assess(run, alpha=0.3, families=["confidence"], quiet=True)
    words = ["--alpha", "0.3", "--families", "confidence", "--no-report", "--json", "--quiet"]
    assert main(["assess", str(run), *words]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(to_document(found)))
    assert f"<strong>{escape(found.headline)}" in (found._repr_html_() or "")

    certified = stopadvisor.calibrate(found.run, alpha=0.3, despite=["advice", "large-alpha"])
    words = ["--despite", "advice", "--despite", "large-alpha", "--json", "--quiet"]
    assert main(["calibrate", str(run), "--alpha", "0.3", *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["digest"] == certified.digest == stopadvisor.load_policy(certified.policy).digest
    assert escape(certified.headline) in (certified._repr_html_() or "")

    fresh = make_run(tmp_path / "fresh", 500)
    checked = stopadvisor.verify(certified.policy, fresh)
    assert checked.n > 200
    assert escape(verify_sheet(checked).headline) in (checked._repr_html_() or "")


@pytest.mark.slow
def test_a_ladder_is_recorded_and_assessed(tmp_path: Path) -> None:
    rungs = [
        {"name": "small", "model": "tiny", "price": [1.0, 0.5, 1.0]},
        {"name": "large", "model": "big", "price": [10.0, 1.0, 10.0]},
    ]
    lines = [{"id": f"q{k}", "question": f"Say {k}", "gold": str(k)} for k in range(100)]
    work = written(tmp_path / "work.jsonl", lines)
    with rung_server(say) as server:
        file = ladder_toml(tmp_path / "ladder.toml", rungs, server.url)
        found = stopadvisor.assess(
            work, ladder=file, families=["cap"], alpha=0.1, out=tmp_path / "run", quiet=True
        )
    assert found.recommendation.family == "cap"
    assert [rung.name for rung in found.rungs or ()] == ["small", "large"]
    again = stopadvisor.assess(found.run, families=["rung"], on_give_up="reply", quiet=True)
    assert again.settings.families == ("rung",)
    with pytest.raises(CalibrationError, match="families must be among"):
        stopadvisor.calibrate(found.run, alpha=0.1, families=["confidence"])


def test_a_sheet_is_escaped() -> None:
    evil = "<script>alert(1)</script>&\x1b[2J"
    sections = (Section(evil, (evil,), ((evil,),), (evil,)), Section(rows=((evil, evil),)))
    text = sheet_html(Sheet(evil, facts=((evil, evil),), command=evil, sections=sections))
    assert "<script" not in text
    assert "\x1b" not in text
    assert text.count("&lt;script&gt;") == 10


def test_what_makes_no_sense_is_refused_before_any_work(run: Path) -> None:
    with pytest.raises(CalibrationError, match="alpha"):
        stopadvisor.assess(run, alpha=5)
    with pytest.raises(CalibrationError, match="leave loss out, got 'lost'"):
        stopadvisor.assess(run, alpha={"drop": 0.1}, loss="lost")
    with pytest.raises(CalibrationError, match="need each other"):
        stopadvisor.assess(run, base_url="http://host:8000/v1")
    with pytest.raises(CalibrationError, match="engine must be 'hf' or 'openai', got 'vllm'"):
        stopadvisor.assess(run, engine="vllm")  # type: ignore[arg-type]
    for name, wrong in {"max_think": 0, "samples": 0, "limit": 0, "seed": -1}.items():
        with pytest.raises(ProbeError, match=f"{name} must be at least {wrong + 1}, got {wrong}"):
            stopadvisor.assess(run, **{name: wrong})  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match="families must be among"):
        stopadvisor.assess(run, families=["cap", "confidence"])
    with pytest.raises(CalibrationError, match="leave out max_think, model"):
        stopadvisor.assess("w.jsonl", ladder="ladder.toml", model="m", max_think=9)
    with pytest.raises(CalibrationError, match="leave out temperature"):
        stopadvisor.assess("w.jsonl", ladder="ladder.toml", temperature=0)
    with pytest.raises(WorkloadError, match="is already recorded"):
        stopadvisor.assess(run, ladder="ladder.toml")
    with pytest.raises(
        WorkloadError, match=r"no such file .* a JSONL workload, a run directory or a raw.npz"
    ):
        stopadvisor.assess("missing.jsonl")


def test_parameters_become_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[SimpleNamespace] = []

    def enough(probing: Any, engine: Any, wanted: Any, _: object, **more: Any) -> None:
        seen.append(SimpleNamespace(probing=probing, engine=engine, wanted=wanted, **more))
        raise WorkloadError("enough")

    monkeypatch.setattr("stopadvisor.api.assess_target", enough)

    def asked(**words: Any) -> tuple[SimpleNamespace, set[str]]:
        with pytest.raises(WorkloadError, match="enough"):
            stopadvisor.assess("w.jsonl", quiet=True, **words)
        return seen[-1], set(seen[-1].given)

    plain, given = asked()
    assert (given, plain.pricing) == (set(), None)
    assert (plain.engine.base_url, plain.engine.ladder) == ((), None)
    assert (plain.wanted.alpha, plain.wanted.loss, plain.wanted.also) == (None, None, None)
    for temperature, greedy in ((0, True), (0.7, False)):
        drawn, given = asked(temperature=temperature, samples=2, out="o")
        assert (drawn.probing.greedy, drawn.probing.samples) == (greedy, 2)
        assert (drawn.probing.temperature or 0, drawn.probing.out) == (temperature, Path("o"))
        assert given == {"greedy", "samples", "out"} | ({"temperature"} if temperature else set())
    urls = ("http://a/v1", "http://b/v1")
    for at in (urls[0], [*urls]):
        served, _ = asked(engine="openai", base_url=at, model="m", gpu="l4")
        assert served.engine.base_url == urls[: 1 if isinstance(at, str) else 2]
        assert (served.engine.model, served.pricing and served.pricing.gpu) == ("m", "l4")
    limits = {"drop": 0.1, "lost": 0.2}
    wanted = asked(alpha=limits, price=(1, 0.1, 4), families=["entropy"])[0].wanted
    assert (wanted.alpha, wanted.loss, wanted.also) == (0.1, "drop", (Guarantee("lost", 0.2),))
    assert (wanted.weights, wanted.families) == (Weights(1, 0.1, 4, MONEY), ("entropy",))
    assert asked(loss="differs")[0].wanted.also == ()
    with pytest.raises(CalibrationError, match="need each other"):
        stopadvisor.assess("w.jsonl", engine="openai")
    with pytest.raises(CalibrationError, match="alpha names its losses"):
        stopadvisor.assess("w.jsonl", alpha={})


@pytest.mark.slow
def test_a_grader_is_a_function_that_another_process_finds(tmp_path: Path) -> None:
    with pytest.raises(GraderError, match="of a module that another process can import"):
        stopadvisor.assess(tmp_path, grader=lambda *_: True)
    # The run's own grader is checked against the function's name: so it was found.
    probed = make_run(tmp_path / "graded", 60)
    with pytest.raises(stopadvisor.StopAdvisorError, match=r"tests\.test_api:lenient"):
        stopadvisor.assess(probed, grader=lenient)
