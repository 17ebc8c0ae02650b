"""Early exit at a real server gives the local engine's replies, token by token.

`test_gateway` compares a rule that reads answers; these read entropies, or write visible answers.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from stopadvisor.policy.requests import OnStop, Reply, make_requests
from tests.engines.online_policies import rule
from tests.material import easiest

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine
    from stopadvisor.engines.openai.engine import OpenAiEngine

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

BUDGETS = [0, 16, 43, 64, 129]
N_QUESTIONS = 16


def _untimed(replies: dict[int, Reply]) -> list[dict[str, Any]]:
    return [asdict(replace(replies[i], seconds=0.0)) for i in range(len(replies))]


@pytest.mark.parametrize(
    ("family", "threshold", "on_stop"),
    [
        pytest.param("entropy", -0.3, "probe", id="entropy"),
        pytest.param("run-stability", 2.0, "answer", id="visible answers"),
    ],
)
def test_a_server_gives_the_replies_of_the_local_engine(
    local: HfEngine, remote: OpenAiEngine, family: str, threshold: float, on_stop: OnStop
) -> None:
    changes = {"budgets": BUDGETS, "entropy_source": "top-k:20", "max_think": 200}
    policy = rule(local, family, threshold, **changes)
    asked = make_requests(easiest(N_QUESTIONS), policy)
    here, there = (
        dict(engine.serve(asked, replace(engine.policy_plan(policy), on_stop=on_stop), policy))
        for engine in (local, remote)
    )
    assert _untimed(there) == _untimed(here)
    stops = {reply.stopped_at for reply in there.values()}
    assert len(stops) >= 3, "stops at several checkpoints, or the comparison shows little"
