"""The bundled reasoner after its sibling, both loaded here: `run` serves what the replay says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stopadvisor.answers.normal_form import extract_natural
from stopadvisor.cli.main import main
from stopadvisor.policy.frozen import load_policy, save_policy
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.ladder import read_ladder
from tests.generate import ROOT
from tests.policy_content import ladder_content, policy_from

pytestmark = [pytest.mark.slow, pytest.mark.integration]

CAP = 123
"""Tokens; some replies of the sibling are longer."""


@pytest.mark.parametrize("n", [40, pytest.param(300, marks=pytest.mark.long)])
def test_two_models_here_climb_as_the_replay_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    ladder = ["--ladder", "samples/ladder.toml", "--limit", str(n), "--quiet"]
    assert main(["probe", "samples/hard.jsonl", "--out", "run", *ladder]) == 0
    replies = {record.id: record.rungs for record in RunDirectory.load(Path("run")).replies()}
    assert len(replies) == n
    content = ladder_content("cap", task="numeric")
    rungs = [rung.to_policy() for rung in read_ladder(Path("samples/ladder.toml")).rungs]
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
