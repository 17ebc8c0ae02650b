"""A ladder from recorded replies to advice, and what refuses its run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stopadvisor.cli.main import main
from tests.runs.test_replies import reply, written

LADDER = """
[[rung]]
name = "small"
price = [1, 0.1, 1]

[[rung]]
name = "large"
price = [10, 1, 10]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that is right where it is short, and a large one that always is."""
    folder = tmp_path_factory.mktemp("ladder")
    rng = np.random.default_rng(0)
    lines = []
    for number in range(400):
        tokens = int(rng.integers(10, 1000))
        right = tokens < 700 or rng.random() < 0.3
        rungs = [reply("small", "1" if right else "2", tokens), reply("large", "1", 500)]
        lines.append({"id": f"q{number}", "gold": "1", "rungs": rungs})
    (folder / "ladder.toml").write_text(LADDER)
    file = written(folder / "lines.jsonl", lines)
    ladder, out = str(folder / "ladder.toml"), folder / "run"
    assert (
        main(["import", "replies", str(file), "--ladder", ladder, "-o", str(out), "--quiet"]) == 0
    )
    return out


def test_the_cap_that_tells_right_from_wrong_is_advised(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["assess", str(run), "--alpha", "0.05", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["recommendation"]["family"] == "cap"
    assert found["recommendation"]["serving"] == "ladder"
    assert found["settings"]["loss"] == "drop"
    cap = found["matched_risk"][0]["scalar"]
    assert cap["where"].startswith("small where it ends by itself within ")
    assert cap["fit_risk"] <= 0.05
    small, large = found["rungs"]
    assert (small["name"], large["name"]) == ("small", "large")
    assert large["saving_pct"] == 0
    assert large["risk"] == 0
    # Always the small one is cheaper, and loses too much.
    assert small["saving_pct"] > cap["fit_total_saving_pct"] > 40
    assert small["risk"] > 0.1
    assert found["serving"]["ladder"]["saving_pct"] == pytest.approx(cap["fit_total_saving_pct"])


def test_the_screen_says_what_is_counted_and_why(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["assess", str(run), "--alpha", "0.05", "--quiet"]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "Serve small where it ends by itself within" in screen
    assert "Each rung for everybody" in screen
    assert "Counted: the drop of accuracy." in screen
    assert "a policy that climbs cannot be certified yet" in screen
    assert "calibrate" not in screen


@pytest.mark.parametrize(
    "command",
    [
        ["calibrate", "{run}", "--alpha", "0.05"],
        ["report", "{run}"],
        ["assess", "{run}", "--protocol", "paper"],
        ["study", "frontier", "{run}"],
        ["assess", "{run}", "--price", "1/1/1"],
    ],
    ids=lambda words: " ".join(words),
)
def test_what_takes_probes_refuses_a_ladder_in_one_line(
    run: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(run=run) for word in command]) == 2
    error = capsys.readouterr().err
    assert "ladder" in error
    assert "Traceback" not in error


def test_replies_need_a_ladder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "lines.jsonl", [{"id": "q"}])
    assert main(["import", "replies", str(file), "-o", str(tmp_path / "run")]) == 2
    assert "--ladder" in capsys.readouterr().err
