"""Several traces per question: one part, one unit everywhere, two of them in the certificate."""

from __future__ import annotations

from pathlib import Path

import pytest

from stopadvisor.cli.main import main
from stopadvisor.policy.frozen import load_policy
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.look_log import read_log
from stopadvisor.runs.sources import Source, open_source
from tests.material import CERTIFY, Call
from tests.scripted import ScriptedEngine, write_sums

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_draws")]

N = 240
WORDS = ["--budgets", "0,8,16,32,64", "--max-think", "256", "--quiet", "--no-preflight"]
FAST = ["--families", "confidence"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workload with its run `three`, of three samples a question."""
    made = tmp_path_factory.mktemp("samples")
    write_sums(made / "sums.jsonl", N)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "stopadvisor.engines.engine_settings.start_engine", lambda options: ScriptedEngine()
        )
        words = ["--out", str(made / "three"), "--temperature", "0.6", "--samples", "3"]
        assert main(["probe", str(made / "sums.jsonl"), *WORDS, *words]) == 0
    return made


@pytest.fixture
def three(folder: Path) -> Source:
    return open_source(folder / "three")


def test_certificate_and_expectation_count_questions(
    folder: Path, three: Source, call: Call
) -> None:
    assert call("assess", folder / "three", "--alpha", "0.3", *FAST)[0] == 0
    found = call.json("calibrate", *CERTIFY, folder / "three")
    counts = three.counts()
    assert found["certified"]
    content = load_policy(folder / "three" / "policy.joblib").content
    certificate = content["certificate"]
    assert certificate["n"] == counts["calibration"]
    pairs = [certificate[name] for name in ("both", "one", "none")]
    assert (certificate["traces"], found["traces"], sum(pairs)) == (2, 2, certificate["n"])
    assert certificate["losses"] == 2 * pairs[0] + pairs[1]
    (look,) = read_log(folder / "three").looks
    assert look.asked["traces"] == 2
    lines = RunDirectory.load(folder / "three").line_digests()
    assert {*look.lines} == {
        line
        for line, key, sample in zip(lines, three.table.keys, three.table.samples, strict=True)
        if sample < 2 and key in three.part("calibration").keys
    }
    assert content["expected"]["calibration_n"] == counts["calibration"]
    assert content["expected"].get("test_n", 0) == counts["test"]
    for i, part in enumerate(("fit", "calibration", "test")):
        keys = {k for k, p in zip(three.table.keys, three.parts, strict=True) if p == i}
        assert content["split"][part] == sorted(keys)
    assert content["sampling"]["temperature"] == 0.6


@pytest.mark.usefixtures("scripted")
def test_more_samples_continue_the_run(call: Call) -> None:
    words = ["probe", write_sums(Path("sums.jsonl"), 100), *WORDS, "--out", "run"]
    first = call.json(*words)
    second = call.json(*words, "--samples", "3")
    assert (first["questions"], first["traces"], first["new"]) == (100, 100, 100)
    assert (second["questions"], second["traces"], second["new"]) == (100, 300, 200)
    assert first["split"] == second["split"]
    assert "Probed 100 questions in 300 traces, 0 of them now." in call.screen(
        *words, "--samples", "3"
    )


def test_samples_of_a_model_that_never_draws_are_refused(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Greedy(ScriptedEngine):
        def temperature(self, plan: ProbePlan) -> float:
            return plan.temperature or 0.0

    monkeypatch.setattr(
        "stopadvisor.engines.engine_settings.start_engine", lambda options: Greedy()
    )
    file = write_sums(Path("sums.jsonl"), 100)
    words = ("probe", file, *WORDS, "--out", "run", "--samples", "3")
    assert "got --samples 3: give --temperature" in call.refused(*words)
    assert not Path("run").exists()
    assert call(*words, "--temperature", "0.6")[0] == 0
