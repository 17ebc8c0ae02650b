"""What a request costs outside the model: put into form, followed through its session, judged.

Run from the repository root: ``python -m tests.benchmarks.request_overhead [--rounds N]``.  The
rival is the plain way to keep a policy's dict safe: copy it whole for every request that reads it.
A request is one prompt whose trace passes every checkpoint of a grid by the shipped trees and never
stops.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path

from stopadvisor.policy.frozen import Policy, load_policy
from stopadvisor.policy.requests import make_requests
from stopadvisor.policy.session import AskProbe, Session, Think
from stopadvisor.probes.trigger import ListedTrigger
from tests.policy_content import policy_from, trigger_content

POLICY = Path(__file__).parents[2] / "policies" / "arithmetic.joblib"
PROMPT = "Compute 86 + 6 - 9 modulo 100."
ANSWERS = (" 41", " 42", " 42.", " 42", "\\boxed{42}", " 42")
CLOSER_TOKENS = 2
GRID = (28, 56, 84, 112, 140, 168)


def never_stopping(path: Path) -> Policy:
    """The shipped rule on a grid, its threshold out of reach: the longest way of a request."""
    content = load_policy(path).content
    content |= {"decision_threshold": 600.0, "threshold": 1.0, "order": []}
    content |= trigger_content(ListedTrigger(GRID))
    return policy_from(content)


def through_session(policy: Policy) -> int:
    """All checkpoints of one trace, as an engine drives them; returns how many."""
    session = Session(policy, closer_tokens=CLOSER_TOKENS)
    while True:
        event = session.next_event()
        if isinstance(event, AskProbe):
            session.judge(
                answer=ANSWERS[event.index % len(ANSWERS)],
                mean_logprob=-0.5,
                mean_entropy=0.4,
                markers=float(event.index),
            )
        elif isinstance(event, Think) and event.until is not None:
            session.receive(event.until - session.drawn)
        else:
            return session.probes


def through_stepper(policy: Policy) -> int:
    """The same checkpoints by the stepper alone."""
    stepper = policy.start()
    for index, budget in enumerate(policy.budgets):
        stepper.observe(
            think_tokens=budget,
            answer=ANSWERS[index % len(ANSWERS)],
            mean_logprob=-0.5,
            mean_entropy=0.4,
            markers=float(index),
        )
    return len(policy.budgets)


def request(policy: Policy) -> int:
    """One request, as `connect` and `run` handle it."""
    make_requests([PROMPT], policy)
    return through_session(policy)


def request_with_copy(policy: Policy, content: dict[str, object]) -> int:
    """The same by the plain alternative: whoever reads the dict gets a copy of his own."""
    copy.deepcopy(content)
    return request(policy)


def microseconds(
    works: dict[str, Callable[[], int]], repeats: int, rounds: int
) -> dict[str, float]:
    """Least CPU time for one unit of work; all kinds of work in turn in every round."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            start = time.process_time()
            units = sum(work() for _ in range(repeats))
            found[name].append((time.process_time() - start) / units)
    return {name: 1e6 * min(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    policy = never_stopping(POLICY)
    content = policy.content
    steps = len(policy.budgets)
    whole = microseconds(
        {
            "copied": lambda: request_with_copy(policy, content) // steps,
            "read once": lambda: request(policy) // steps,
        },
        50,
        rounds,
    )
    print(f"{POLICY.name}: {POLICY.stat().st_size / 1000:.0f} kB, {steps} checkpoints")
    for name, time_taken in whole.items():
        print(f"request, content {name:10} {time_taken:9.1f} us outside the model")
    print(f"copied / read once      {whole['copied'] / whole['read once']:9.1f} times")
    step = microseconds(
        {
            "session": lambda: through_session(policy),
            "stepper alone": lambda: through_stepper(policy),
        },
        500,
        rounds,
    )
    for name, time_taken in step.items():
        print(f"{name:24}{time_taken:8.2f} us per checkpoint")
    print(f"session / stepper alone {step['session'] / step['stepper alone']:9.2f} times")


if __name__ == "__main__":
    main()
