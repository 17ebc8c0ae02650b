"""A server that is profiled: costs that come back, goodput under a policy, and going on later."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.errors import ModelError, PolicyError
from stopadvisor.policy.frozen import load_policy
from stopadvisor.progress import NullProgress
from stopadvisor.report.headline import gains, goodput_headline
from stopadvisor.rules.serving_profile import ServingProfile, Slo
from stopadvisor.serving.goodput import ReplaySettings
from stopadvisor.serving.measured import MeasuredFile
from stopadvisor.serving.profiling import ProfileSettings, find_questions
from stopadvisor.serving.server_measurement import ServerOptions, measure_server
from stopadvisor.serving.server_profile import profile_server
from tests.serving.virtual_server import Costs, VirtualServer, run_virtually

ROOT = Path(__file__).resolve().parents[2]
POLICY = load_policy(ROOT / "policies" / "arithmetic.joblib")
BATCHES = (1, 8)
QUESTIONS = find_questions(
    ProfileSettings(BATCHES, questions=40, workload=ROOT / "samples" / "arithmetic.jsonl")
)
REPLAY = ReplaySettings(Slo(e2e=1.0), POLICY, minutes=4.0, block=100)


def profiled(
    server: VirtualServer, file: Path, replay: ReplaySettings | None = None, **header: Any
) -> ServingProfile:
    """Profile a server whose time is made up."""

    async def work() -> ServingProfile:
        async with server:
            kept = MeasuredFile(file, header)
            progress = NullProgress()
            return await profile_server(
                server, QUESTIONS, BATCHES, replay, kept, progress, engine="vllm", device="here"
            )

    return run_virtually(work())


def test_a_server_is_measured_without_a_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stopadvisor.serving.load.LoadServer", lambda *_, metrics: VirtualServer())
    monkeypatch.setattr("stopadvisor.serving.server_measurement.asyncio.run", run_virtually)
    options = ServerOptions("vllm", "http://gpu:8000/v1/", slo=Slo(e2e=1.0))
    kept = tmp_path / "kept.jsonl"
    found = measure_server(options, ProfileSettings(BATCHES), "tiny", kept, NullProgress())
    assert (found.engine, found.device, found.goodput) == ("vllm", "http://gpu:8000/v1/", None)
    assert not kept.exists(), "without a policy there is nothing to go on with"
    with pytest.raises(PolicyError, match="no such policy file"):
        replace(options, policy=tmp_path / "none.joblib").replay()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "profile.measured.jsonl"


def test_the_costs_of_a_server_come_back(file: Path) -> None:
    costs = Costs()
    found = profiled(VirtualServer(), file)
    assert found.misfit is not None
    assert found.misfit < 0.1
    assert found.per_request_seconds == pytest.approx(costs.request, rel=0.25)
    assert found.per_token_seconds.prefilled == pytest.approx(costs.prefilled, rel=0.1)
    assert found.per_token_seconds.cached < 0.2 * found.per_token_seconds.prefilled
    decoded = [row.seconds for row in found.decoded_by_batch]
    assert decoded == pytest.approx([costs.decoded(batch) for batch in BATCHES], rel=0.15)
    assert found.round_trip_seconds == pytest.approx(costs.request + costs.decoded(1), rel=0.1)
    assert (found.at_batch, found.goodput, found.weights.unit) == (8, None, "seconds")


def test_what_a_server_does_not_say_is_not_cheap(file: Path) -> None:
    found = profiled(VirtualServer(says_cached=False), file)
    assert found.per_token_seconds.cached == found.per_token_seconds.prefilled


@pytest.mark.slow
def test_a_policy_that_halves_the_tokens_nearly_doubles_the_rate(file: Path) -> None:
    found = profiled(VirtualServer(policy=POLICY), file, REPLAY)
    goodput = found.goodput
    assert goodput is not None
    assert goodput.turns >= 10
    # By the work of a step 1.8; the shorter a question, the longer it may wait, too.
    assert 1.4 < goodput.ratio < 2.8
    assert goodput.ratio_ci95[0] < 2 < goodput.ratio_ci95[1] < 4
    assert (goodput.full.decoded, goodput.stopped.decoded) == (60, 30)
    assert goodput.policy == POLICY.digest
    assert found.weights.unit == "seconds at your SLO"
    document = found.to_dict()["goodput"]
    assert gains(document)
    assert goodput_headline(document).endswith("at your SLO, with 50% fewer decoded tokens.")
    assert ServingProfile.from_dict(json.loads(json.dumps(found.to_dict())), "it") == found


@pytest.mark.slow
def test_a_policy_whose_probes_cost_what_it_saves_is_said_to_save_nothing(file: Path) -> None:
    # Twelve requests for twenty tokens less: each costs 2 ms beside the step's share.
    server = VirtualServer(policy=POLICY, stopped=40, probes=12)
    found = profiled(server, file, REPLAY)
    assert found.goodput is not None
    assert found.goodput.stopped.decoded < found.goodput.full.decoded
    assert found.goodput.ratio_ci95[1] < 1
    assert not found.goodput.saves
    assert goodput_headline(found.to_dict()["goodput"]).startswith("Saves nothing: ")


@pytest.mark.slow
def test_what_was_measured_is_not_measured_again(file: Path) -> None:
    first = VirtualServer(policy=POLICY)
    short = replace(REPLAY, minutes=2.0)
    few = profiled(first, file, short, slo="same")
    lines = file.read_text(encoding="utf-8").splitlines()
    second = VirtualServer(policy=POLICY)
    more = profiled(second, file, short, slo="same")
    again = file.read_text(encoding="utf-8").splitlines()
    assert again[: len(lines)] == lines
    assert {json.loads(line)["kind"] for line in again[len(lines) :]} == {"block"}
    assert few.goodput is not None
    assert more.goodput is not None
    assert more.goodput.turns > few.goodput.turns
    assert more.per_token_seconds == few.per_token_seconds


def test_an_interrupted_measurement_goes_on(file: Path) -> None:
    def stop_at(asked: int) -> None:
        if asked == 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profiled(VirtualServer(before=stop_at), file)
    kept = len(MeasuredFile(file, {}).measurements)
    assert 0 < kept < 24
    server = VirtualServer()
    assert profiled(server, file).misfit is not None
    assert len(MeasuredFile(file, {}).measurements) == 24


def test_other_settings_are_not_mixed(file: Path) -> None:
    MeasuredFile(file, {"slo": {"e2e": 1.0}, "seed": 0})
    with pytest.raises(ModelError, match="was measured with another slo: name another --out"):
        MeasuredFile(file, {"slo": {"e2e": 2.0}, "seed": 0})
    file.write_text("[1]\n", encoding="utf-8")
    with pytest.raises(ModelError, match="is damaged"):
        MeasuredFile(file, {"slo": None})


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("", "expected a reply of route 'passthrough', got 'no header X-StopAdvisor"),
        ("shadow; reason=covered; digest=", "expected a reply of route 'passthrough'"),
        (f"policy; digest={POLICY.digest[:8]}", "expected a reply of route 'passthrough'"),
    ],
    ids=["no policy", "in shadow", "past nothing"],
)
def test_a_server_without_the_policy_is_refused(header: str, words: str, file: Path) -> None:
    with pytest.raises(ModelError, match=words):
        profiled(VirtualServer(policy=POLICY, header=header), file, REPLAY)


def test_another_policy_is_refused(file: Path) -> None:
    other = load_policy(ROOT / "policies" / "choice.joblib")
    with pytest.raises(ModelError, match=f"another policy than {POLICY.digest[:8]}"):
        profiled(VirtualServer(policy=other), file, REPLAY)


def test_limits_that_are_never_met_give_no_ratio(file: Path) -> None:
    hopeless = replace(REPLAY, slo=Slo(ttft=1e-4), minutes=1.0)
    with pytest.raises(ModelError, match="do not show where the limits are met: raise --minutes"):
        profiled(VirtualServer(policy=POLICY), file, hopeless)


def test_time_that_is_made_up_takes_none() -> None:
    async def sleep() -> float:
        await asyncio.sleep(1e6)
        return asyncio.get_running_loop().time()

    assert run_virtually(sleep()) == 1e6
