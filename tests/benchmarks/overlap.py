"""Early exit at a server three ways: thinking resumed after each probe, overlapping, and in full.

Run: python -m tests.benchmarks.overlap [--base-url URL --model NAME] [--questions 50]

Without a server of your own it starts vLLM on the bundled model (tests/integration/setup-vllm.sh
builds it).  The three take turns over the same questions, greedily, under one rule (stop when an
answer comes the second time); medians of the rounds are printed, and ratios within a round, as
all three then meet the same machine.  The client shares it with the server.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from stopadvisor.constants import CUES
from stopadvisor.engines.openai import load_engine
from stopadvisor.engines.openai.engine import OpenAiEngine
from stopadvisor.policy.frozen import Policy, build_policy, policy_source
from stopadvisor.policy.requests import Reply, make_requests, policy_plan
from stopadvisor.workload.questions import read_workload
from tests.benchmarks.openai import served
from tests.integration.server import NAME, ROOT
from tests.policy_content import family_content

CONCURRENCY = 8
ROUNDS = 5
BUDGETS = [0, 16, 43, 64, 129]
WAYS = ("full", "resume", "overlap")


def policy_at(engine: OpenAiEngine, budgets: list[int]) -> Policy:
    """A rule that reads answers alone, bound to the model that is served."""
    identity = engine.identity()
    own: dict[str, Any] = {
        **policy_source(identity),
        "budgets": budgets,
        "probe": {
            "closer": identity["think_close"],
            "cue": {"text": CUES["terse"], "ids": None},
            "cap": 48,
            "answer_cap": None,
            "stop_ids": identity["stop_ids"],
        },
        "sampling": {"greedy": True, "temperature": None, "seed": 5},
        "chat_template_kwargs": {},
        "entropy_source": "none",
        "max_think": 400,
    }
    return Policy(build_policy(family_content("run-stability", 2.0) | own))


def answered(engine: OpenAiEngine, policy: Policy, questions: int, way: str) -> list[Reply]:
    """Replies of one pass; in order."""
    workload = read_workload(ROOT / "samples" / "arithmetic.jsonl")
    asked = make_requests(workload.questions[:questions], policy)
    plan = policy_plan(policy, at_server=True)
    if way == "full":
        replies = dict(engine.serve(asked, plan, None))
    else:
        how: Any = way
        replies = dict(engine.serve(asked, plan, policy, serving=how))
    return [replies[i] for i in range(len(asked))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url")
    parser.add_argument("--model", default=NAME)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu: dict[str, list[float]] = {way: [] for way in WAYS}
    tokens: dict[str, list[int]] = {way: [] for way in WAYS}
    replies: dict[str, list[Reply]] = {}
    with served(options.base_url, options.model) as (url, model):
        engine = load_engine(model, [url], concurrency=CONCURRENCY)
        policy = policy_at(engine, [int(b) for b in options.budgets.split(",")])
        for way in WAYS:  # every prefix into the server's cache, as for all rounds
            answered(engine, policy, options.questions, way)
        for turn in range(ROUNDS):
            for way in WAYS[turn % 3 :] + WAYS[: turn % 3]:
                began, spent = time.perf_counter(), time.process_time()
                replies[way] = answered(engine, policy, options.questions, way)
                seconds[way].append(time.perf_counter() - began)
                cpu[way].append(time.process_time() - spent)
                tokens[way].append(sum(reply.decoded_tokens for reply in replies[way]))
        engine.close()
    stops = [[reply.stopped_at for reply in replies[way]] for way in ("resume", "overlap")]
    differ = sum(one != other for one, other in zip(*stops, strict=True))
    stopped = sum(stop is not None for stop in stops[0])
    print(
        f"{options.questions} questions, {stopped} stopped, {differ} stops differ, "
        f"concurrency {CONCURRENCY}, {ROUNDS} rounds"
    )
    for way in WAYS:
        wait = statistics.median(reply.seconds for reply in replies[way])
        print(
            f"{way:8} {statistics.median(seconds[way]):6.2f} s  "
            f"{statistics.median(tokens[way]):7.0f} tokens decoded  "
            f"{statistics.median(cpu[way]):.2f} s of the client's own CPU  "
            f"{wait:.3f} s the median question of the last round"
        )
    for one, other in (("overlap", "resume"), ("overlap", "full"), ("resume", "full")):
        ratios = [a / b for a, b in zip(seconds[one], seconds[other], strict=True)]
        by_round = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        saved = statistics.median(tokens[one]) / statistics.median(tokens[other])
        print(
            f"{one} / {other}: time {statistics.median(ratios):.2f} (by round {by_round}), "
            f"tokens {saved:.2f}"
        )


if __name__ == "__main__":
    main()
