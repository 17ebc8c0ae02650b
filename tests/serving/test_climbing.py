"""Climbing for real, on loopback: as the replay says, whatever a cheap rung does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from stopadvisor.engines.openai.climbing import climb
from stopadvisor.engines.openai.rung_servers import RungServers
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.policy.frozen import load_policy, save_policy
from stopadvisor.policy.requests import Request, RungAnswer
from stopadvisor.probes.asking import Prompt
from stopadvisor.rules.climb import Climb
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.ladder import Ladder, Rung, read_ladder
from stopadvisor.runs.sources import open_source
from tests.engines.rung_server import ladder_toml, rung_server, say
from tests.policy.test_climber import policy_of
from tests.policy_content import (
    GIVES_UP,
    example_content,
    family_content,
    ladder_content,
    policy_from,
)
from tests.policy_content import SERVED_RUNGS as RUNGS
from tests.runs.test_replies import written
from tests.schemas import check_valid

N = 12


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [{"id": f"q{k}", "question": f"Say {k}", "gold": str(k)} for k in range(N)]
    written(tmp_path / "work.jsonl", lines)
    saved("cap", rungs=RUNGS)
    return tmp_path


def saved(family: str, **ladder: Any) -> None:
    save_policy(policy_from(ladder_content(family, ladder)), "policy.json", format="json")


def ladder_at(folder: Path, url: str, **changes: str) -> str:
    return ladder_toml(folder / "ladder.toml", RUNGS, url, **changes)


def run(capsys: pytest.CaptureFixture[str], ladder: str, *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    command = ["run", "policy.json", "work.jsonl", "--ladder", ladder, "--out", "out.jsonl"]
    assert main([*command, *words, "--json", "--quiet"]) == code
    found = capsys.readouterr()
    return json.loads(found.out) if code == 0 else found.out


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def test_each_question_climbs_as_the_replay_says(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy("policy.json")
    with rung_server(say) as server:
        found = run(capsys, ladder_at(files, server.url), "--compare-full")
        again = run(capsys, ladder_at(files, server.url), "--compare-full")
    assert (again["new"], again["climbed"]) == (0, found["climbed"])
    check_valid("run", found)
    spent = 0.0
    for line in lines_of(files):
        question = f"Say {line['id'][1:]}"
        small = say("tiny", question)
        climber = policy.climb()
        serve = climber.observe(
            finished=True, completion_tokens=small.tokens, answer=small.text.split()[-1].rstrip(".")
        ).serve
        way = line["climbed"]
        assert way["rung"] == ("small" if serve else "large")
        asked = [each["name"] for each in way["asked"]]
        assert asked == (["small"] if serve else ["small", "large"])
        # An abandoned reply costs its prompt and what it decoded up to the cap.
        price = 8 + 2 * 0.5 + min(small.tokens, 500)
        price += 0 if serve else 8 * 10 + 2 * 1 + 300 * 10
        assert sum(each["price"] for each in way["asked"]) == pytest.approx(price)
        assert line["correct"] == (serve is False or small.tokens < 500)
        assert line["full"]["correct"]
        spent += price
    limits = {(body["model"], body.get("max_tokens")) for body in server.asked}
    assert limits == {("tiny", 500), ("big", None)}
    assert {body["reasoning_effort"] for body in server.asked if body["model"] == "big"} == {"high"}
    full = 8 * 10 + 2 + 3000
    assert found["climbed"]["price"] == pytest.approx(spent / N)
    assert found["climbed"]["full_price"] == pytest.approx(full)
    assert found["climbed"]["price_saving_pct"] == pytest.approx(100 * (1 - spent / (N * full)))
    small, large_share = found["climbed"]["rungs"]
    assert (small["asked"], small["down"]) == (N, 0)
    assert small["share"] == small["served"] / N
    assert found["climbed"]["gave_up"] == 0
    assert 0 < small["served"] < N
    assert small["served"] + large_share["served"] == N == small["served"] + large_share["asked"]


def test_the_next_command_compares_and_then_serves(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rung_server(say) as server:
        words = ["policy.json", "work.jsonl", "--ladder", ladder_at(files, server.url)]
        said = []
        for more in (["--out", "out.jsonl"], ["--out", "out-compared.jsonl", "--compare-full"]):
            assert main(["run", *words, *more, "--quiet"]) == 0
            said.append(" ".join(capsys.readouterr().out.split()))
    given = f"--ladder {words[-1]}"
    compared = "run policy.json work.jsonl --compare-full --out out-compared.jsonl"
    assert f"stopadvisor {compared} {given}" in said[0]
    assert f"stopadvisor serve policy.json --shadow {given}" in said[1]


@pytest.mark.parametrize("fault", ["500", "strange"])
def test_a_cheap_rung_that_fails_is_climbed_past(
    files: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    with rung_server(say, tiny=fault) as server:
        found = run(capsys, ladder_at(files, server.url), "--patience", "0")
    small, large = found["climbed"]["rungs"]
    assert (small["served"], small["down"], large["served"]) == (0, N, N)
    assert found["accuracy"] == 1.0
    for line in lines_of(files):
        first, last = line["climbed"]["asked"]
        assert (first["name"], last["name"]) == ("small", "large")
        assert first["price"] == 0
        assert (server.url if fault == "500" else "no chat completion") in first["down"]
        assert last["down"] is None


def test_a_server_without_a_cache_serves(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with rung_server(say, tiny="no-cache") as server:
        found = run(capsys, ladder_at(files, server.url))
    small = found["climbed"]["rungs"][0]
    assert small["down"] == 0 < small["served"]


@pytest.mark.parametrize("middle", [True, False])
def test_an_outage_that_the_promise_does_not_cover_is_said(
    files: Path, capsys: pytest.CaptureFixture[str], middle: bool
) -> None:
    """A middle rung then answers what the small one did; the reference alone loses nothing."""
    between = [{**RUNGS[0], "name": "middle", "model": "other"}] if middle else []
    rungs = [RUNGS[0], *between, RUNGS[1]]
    asked = [*range(len(rungs) - 1)]
    saved("cap", rungs=rungs, asked=asked, path=[[-500.0] * len(asked)])
    with rung_server(say, tiny="500") as server:
        ladder = ladder_toml(files / "ladder.toml", rungs, server.url)
        words = ["run", "policy.json", "work.jsonl", "--ladder", ladder, "--out", "out.jsonl"]
        assert main([*words, "--patience", "0"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "rung small was down, and was climbed past" in said
    assert ("the promise does not cover what a middle rung answers" in said) == middle


def test_questions_that_are_given_up_are_counted(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The small model is as unsure everywhere."""
    saved("rung-confidence", **GIVES_UP, on_give_up="reply")
    with rung_server(say) as server:
        ladder = ladder_toml(files / "ladder.toml", GIVES_UP["rungs"], server.url)
        found = run(capsys, ladder)
        words = ["run", "policy.json", "work.jsonl", "--ladder", ladder, "--out", "out.jsonl"]
        assert main(words) == 0
    check_valid("run", found)
    small, middle, _ = found["climbed"]["rungs"]
    assert found["climbed"]["gave_up"] == N
    assert (small["asked"], small["served"], middle["asked"]) == (N, N, 0)
    assert all(line["climbed"]["gave_up"] for line in lines_of(files))
    assert f"gave up {N} questions, 100" in " ".join(capsys.readouterr().out.split())


def test_a_reference_that_fails_is_an_error(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rung_server(say, big="500") as server:
        ladder = ladder_at(files, server.url)
        error = run(capsys, ladder, "--patience", "0", code=1)
        assert "500" in error
        kept = len(lines_of(files))
        server.faults.clear()
        found = run(capsys, ladder)
    assert found["questions"] == N
    assert found["new"] == N - kept


@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        ({"model": "other"}, (), "calibrated with model 'tiny' of rung 'small'"),
        ({"api_key_env": "NOT_SET_ANYWHERE"}, (), "NOT_SET_ANYWHERE, which is not set"),
        ({}, ("--on-stop", "probe"), "--on-stop: this policy climbs a ladder"),
    ],
)
def test_what_does_not_fit_is_refused(
    files: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    words: tuple[str, ...],
    message: str,
) -> None:
    ladder = ladder_at(files, "http://127.0.0.1:9/v1", **changes)
    assert message in run(capsys, ladder, *words, code=2)
    assert not (files / "out.jsonl").exists() or not lines_of(files)


def test_a_policy_that_climbs_takes_a_ladder(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "policy.json", "work.jsonl", "--quiet"]) == 2
    assert "policy climbs a ladder: name its servers by --ladder" in capsys.readouterr().err


# --- A rung with a policy of its own --------------------------------------------------------------


@pytest.fixture
def stopped(files: Path) -> str:
    """Digest of the policy that stops the small model, which the other policy names."""
    save_policy(policy_from(example_content()), "small.json", format="json")
    save_policy(policy_from(family_content("confidence")), "changed.json", format="json")
    digest = load_policy("small.json").digest
    saved("cap", rungs=[{**RUNGS[0], "policy_digest": digest}, RUNGS[1]])
    return digest


def with_policy(folder: Path, url: str, **changes: Any) -> str:
    rungs = [{**RUNGS[0], "policy": "small.json", **changes}, RUNGS[1]]
    return ladder_toml(folder / "ladder.toml", rungs, url)


@pytest.mark.slow
def test_a_rung_with_a_policy_is_asked_whole_and_judged(
    files: Path, stopped: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with rung_server(say) as server:
        server.under = stopped
        ladder = with_policy(files, server.url)
        found = run(capsys, ladder)
        bodies = [body for body in server.asked if body["model"] == "tiny"]
        many = [{"id": f"m{k}", "question": f"Say {k}", "gold": str(k)} for k in range(60)]
        work = str(written(files / "many.jsonl", many))
        assert main(["probe", work, "--ladder", ladder, "--out", "run", "--quiet"]) == 0
        asked = len(server.asked)
        Path("small.json").rename("moved.json")  # the digest names it, and not its place
        ladder = with_policy(files, server.url, policy="moved.json")
        assert main(["probe", work, "--ladder", ladder, "--out", "run", "--quiet"]) == 0
        assert len(server.asked) == asked
    assert not {"max_tokens", "logprobs"} & {name for body in bodies for name in body}
    short = [k for k in range(N) if say("tiny", f"Say {k}").tokens <= 500]
    assert found["climbed"]["rungs"][0]["served"] == len(short)
    # What is not served was not abandoned: all its tokens are paid, in the replay as well.
    for line in lines_of(files):
        tokens = say("tiny", f"Say {line['id'][1:]}").tokens
        assert line["climbed"]["asked"][0]["completion_tokens"] == tokens
    source = open_source(Path("run"))
    climb = Climb("cap", ("small", "large"), (0,), ((-500.0,),))
    spent = climb.view(source.table).rungs.spent.price[:, 0]  # type: ignore[union-attr]
    for record, price in zip(RunDirectory.load(Path("run")).replies(), spent, strict=True):
        tokens = record.rungs[0].completion_tokens
        assert price == 8 + 2 * 0.5 + tokens + (0 if tokens <= 500 else 8 * 10 + 2 + 3000)
    assert source.ladder is not None
    assert source.ladder.rungs[0].policy_digest == stopped


def test_a_reply_under_no_policy_is_climbed_past(
    files: Path, stopped: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with rung_server(say) as server:
        found = run(capsys, with_policy(files, server.url), "--patience", "0")
    assert found["climbed"]["rungs"][0]["down"] == N
    for line in lines_of(files):  # it was decoded all the same, and is paid for
        first, tokens = line["climbed"]["asked"][0], say("tiny", f"Say {line['id'][1:]}").tokens
        assert first["down"] == f"expected a reply under policy {stopped[:8]}, got none"
        assert (first["completion_tokens"], first["price"]) == (tokens, 8 + 2 * 0.5 + tokens)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "other.json"}, "rung 'small': policy other.json: "),
        ({"policy": "policy.json"}, "the policy climbs a ladder"),
        ({"policy_digest": "0" * 64}, "expected digest 00000000, got "),
        ({"policy": "changed.json"}, "the policy was calibrated with policy_digest '"),
        ({"max_tokens": 9}, "'rung[0].max_tokens': expected nothing with a policy"),
        ({"temperature": 0.5}, "'rung[0].temperature': expected nothing with a policy"),
    ],
)
def test_a_policy_that_cannot_be_a_rungs_is_refused(
    files: Path,
    stopped: str,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    message: str,
) -> None:
    assert message in run(capsys, with_policy(files, "http://127.0.0.1:9/v1", **changes), code=2)


def test_the_reference_has_no_policy(files: Path) -> None:
    rungs = [RUNGS[0], {**RUNGS[1], "policy": "small.json"}]
    with pytest.raises(WorkloadError, match="none on the reference"):
        read_ladder(Path(ladder_toml(files / "ladder.toml", rungs, "http://127.0.0.1:9/v1")))


def test_samples_of_a_model_here_are_asked_for_by_their_numbers() -> None:
    ladder = Ladder((Rung("vote", (1.0, 0.0, 1.0), repeat=4, engine="hf", model="m"),))
    policy = policy_of(ladder, "rung-agreement", (0, 1, 2), 2.0)

    async def ask(rung: Rung, prompt: Prompt, most: int | None) -> RungAnswer:
        return RungAnswer(finished=True, text=f"The answer is {prompt.sample}.")

    async def climbed() -> list[str]:
        servers = RungServers(ladder, concurrency=4, local=ask)
        found = await climb(servers, policy, Request(Prompt("key", ()), "exact"))
        return [reply.text for reply in found.asked]

    assert asyncio.run(climbed()) == [f"The answer is {k}." for k in range(4)]
