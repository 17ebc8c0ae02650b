"""Real early exit at a real server, held against the local engine, token by token."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.engines.openai.engine import OpenAiEngine
from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import OnStop, Reply, Request, make_requests, policy_plan
from tests.engines.online_policies import rule
from tests.material import easiest

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

BUDGETS = [0, 16, 43, 64, 129]
N_QUESTIONS = 16


def _policy(local: HfEngine, family: str, threshold: float, **changes: Any) -> Policy:
    own = {"budgets": BUDGETS, "entropy_source": "top-k:20"}
    return rule(local, family, threshold, **(own | changes))


def _requests(policy: Policy) -> list[Request]:
    return make_requests(easiest(N_QUESTIONS), policy)


def _untimed(replies: dict[int, Reply]) -> list[dict[str, Any]]:
    return [asdict(replace(replies[i], seconds=0.0)) for i in range(len(replies))]


@pytest.mark.parametrize(
    ("family", "threshold", "on_stop"),
    [
        pytest.param("run-stability", 2.0, "probe", id="run-stability"),
        pytest.param("entropy", -0.3, "probe", id="entropy"),
        pytest.param("run-stability", 2.0, "answer", id="visible answers"),
    ],
)
def test_a_server_gives_the_replies_of_the_local_engine(
    local: HfEngine, remote: OpenAiEngine, family: str, threshold: float, on_stop: OnStop
) -> None:
    policy = _policy(local, family, threshold)
    asked = _requests(policy)
    here = dict(local.serve(asked, policy_plan(policy), policy, on_stop=on_stop))
    there = dict(remote.serve(asked, remote.policy_plan(policy), policy, on_stop=on_stop))
    assert _untimed(there) == _untimed(here)
    stops = {reply.stopped_at for reply in there.values()}
    assert len(stops) >= 3, "stops at several checkpoints, or the comparison shows little"


def test_full_thinking_is_that_of_the_local_engine(local: HfEngine, remote: OpenAiEngine) -> None:
    policy = _policy(local, "run-stability", 2.0)
    asked = _requests(policy)
    here = dict(local.serve(asked, policy_plan(policy), None))
    there = dict(remote.serve(asked, remote.policy_plan(policy), None))
    assert _untimed(there) == _untimed(here)
    assert all(reply.n_probes == 0 for reply in there.values())


def test_a_prompt_that_does_not_fit_is_refused_and_the_others_are_answered(
    local: HfEngine, remote: OpenAiEngine
) -> None:
    policy = _policy(local, "run-stability", 2.0)
    few = _requests(policy)[:3]
    long = replace(
        few[0],
        prompt=replace(few[0].prompt, messages=({"role": "user", "content": "7 + " * 900 + "1"},)),
    )
    replies: list[int] = []

    def ask() -> None:
        asked = [*few, long]
        for number, _ in remote.serve(
            asked, policy_plan(policy, at_server=True), policy, batch_size=1
        ):
            replies.append(number)

    with pytest.raises(ModelError, match="leaves no room for thinking"):
        ask()
    assert replies == [0, 1, 2]
