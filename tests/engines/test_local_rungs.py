"""The bundled reasoner after its sibling, both loaded here: `run` serves what the replay says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.answers.normal_form import extract_natural
from stopadvisor.cli.main import main
from stopadvisor.engines import OutOfMemory
from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.ground.fields import plain
from stopadvisor.policy.frozen import load_policy, save_policy
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.ladder import read_ladder
from stopadvisor.runs.sources import open_source
from tests.generate import ROOT
from tests.material import write_easiest
from tests.policy_content import ladder_content, policy_from

pytestmark = [pytest.mark.slow, pytest.mark.integration]

N = 5
CAP = 123
"""Tokens; some replies of the sibling are longer."""


@pytest.mark.parametrize("n", [32, pytest.param(300, marks=pytest.mark.long)])
def test_two_models_here_climb_as_the_replay_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    ladder = ["--ladder", "samples/ladder.toml", "--limit", str(n), "--quiet"]
    recorded = ["--out", "run", "--split", "60/40/0", "--no-preflight"]
    assert main(["probe", "samples/hard.jsonl", *recorded, *ladder]) == 0
    replies = {record.id: record.rungs for record in RunDirectory.load(Path("run")).replies()}
    assert len(replies) == n
    content = ladder_content("cap", task="numeric")
    rungs = [plain(rung.terms) for rung in read_ladder(Path("samples/ladder.toml")).rungs]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_bytes())
    content |= {
        "prompt_template": manifest["prompt_templates"],
        "ladder": {"rungs": rungs, "asked": [0], "path": [[-900.0], [-float(CAP)], [-40.0]]},
    }
    save_policy(policy_from(content), "policy.json", format="json")
    words = ["run", "policy.json", "samples/hard.jsonl", "--out", "out.jsonl"]
    assert main([*words, *ladder]) == 0
    served = {"tinier": 0, "tiny": 0}
    for line in (tmp_path / "out.jsonl").read_text().splitlines():
        answered = json.loads(line)
        small, large = replies[answered["id"]]
        climber = load_policy("policy.json").climb()
        tokens = min(small.completion_tokens, CAP)
        serve = climber.observe(
            answer=small.answer,
            finished=small.finished and small.completion_tokens <= CAP,
            completion_tokens=tokens,
        ).serve
        way = answered["climbed"]
        assert way["rung"] == ("tinier" if serve else "tiny")
        wanted = small if serve else large
        text = answered["answer"] or ""
        assert (extract_natural("numeric", text) or "") == wanted.answer
        spent = [tokens] if serve else [tokens, large.completion_tokens]
        assert [each["completion_tokens"] for each in way["asked"]] == spent
        served[way["rung"]] += 1
    assert min(served.values()) > 0

    # What a request takes is the time of the replies that the advised cap would have asked for.
    assert main(["assess", "run", "--alpha", "0.3", "--no-report", "--quiet"]) == 0
    found = json.loads((tmp_path / "run" / "assessment.json").read_bytes())
    fit = [replies[name] for name in open_source(Path("run")).part("fit").ids]
    times = [[reply.seconds or 0.0 for reply in rungs] for rungs in fit]
    assert min(map(min, times)) > 0
    alone = [row["request_seconds"] for row in found["rungs"]]
    assert alone == pytest.approx([sum(each) / len(fit) for each in zip(*times, strict=True)])
    cap = float(found["matched_risk"][0]["scalar"]["where"].split(" within ")[1].split()[0])
    took = 0.0
    for (small, _), (first, second) in zip(fit, times, strict=True):
        took += first * min(1, cap / small.completion_tokens)
        if not (small.finished and small.completion_tokens <= cap):
            took += second
    assert found["request_seconds"] == pytest.approx(took / len(fit))


def test_a_rung_here_is_stopped_by_its_own_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("samples", "policies"):
        (tmp_path / name).symlink_to(ROOT / name)
    rung = {"engine": "hf", "model": "samples/tiny-reasoner", "price": [1.0, 0.1, 1.0]}
    first = {**rung, "name": "stopped", "policy": "policies/arithmetic.joblib"}
    last = {**rung, "name": "whole", "max_tokens": 150}
    text = "".join(
        "[[rung]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in row.items())
        for row in (first, last)
    )
    (tmp_path / "ladder.toml").write_text(text)
    work = [str(write_easiest(Path("work.jsonl"), 70)), "--limit", str(N), "--quiet"]
    recorded = ["--ladder", "ladder.toml", "--out", "run", "--no-preflight"]
    serve = HfEngine.serve

    def serve_one(self: HfEngine, *words: Any, batch_size: int) -> Any:
        if batch_size > 1:
            raise OutOfMemory("more than one does not fit")
        return serve(self, *words, batch_size=batch_size)

    with monkeypatch.context() as patch:
        patch.setattr(HfEngine, "serve", serve_one)
        assert main(["probe", *work, *recorded]) == 0
    model = ["--model", "samples/tiny-reasoner", "--out", "out.jsonl"]
    assert main(["run", "policies/arithmetic.joblib", *work, *model]) == 0
    answers = {a["id"]: a for a in map(json.loads, Path("out.jsonl").read_text().splitlines())}
    digest = load_policy("policies/arithmetic.joblib").digest
    run = RunDirectory.load(Path("run"))
    assert run.manifest["ladder"][0]["policy_digest"] == digest
    assert len(run.replies()) == N
    for record in run.replies():
        answer, (short, whole) = answers[record.id], record.rungs
        assert short.normalized == answer["normalized"]
        names = ("think_tokens", "probe_tokens", "visible_tokens")
        assert short.completion_tokens == sum(answer[name] for name in names)
        assert short.finished
        assert whole.completion_tokens <= 150
    # Another model than the policy's is refused before it is asked.
    (tmp_path / "ladder.toml").write_text(text.replace("tiny-reasoner", "tinier-reasoner", 1))
    capsys.readouterr()
    assert main(["probe", *work, "--ladder", "ladder.toml", "--out", "other"]) == 2
    assert "rung 'stopped': its policy: " in capsys.readouterr().err
