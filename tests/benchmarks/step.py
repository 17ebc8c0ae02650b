"""CPU time of one step of a policy, compared with scikit-learn's pipeline.

Run from the repository root: ``python -m tests.benchmarks.step [--questions N]``.  A step is
everything the stepper does online: normalising the raw answer, features, score and decision.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from stopadvisor.policy.frozen import load_policy
from stopadvisor.rules.families import FAMILIES
from tests.policy_content import anywhere_content, family_content, policy_from

REPEATS = 7
ANSWERS = (" 41", " 42", " 42.", " 42", "\\boxed{42}", " 42")


def microseconds(work: Callable[[], int]) -> float:
    """Best of several runs; `work` says how many steps it made."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        steps = work()
        best = min(best, (time.process_time() - start) / steps)
    return best * 1e6


def stepper_time(n: int, family: str, *, raw: bool = True, where: str | None = None) -> float:
    """One step of a policy that never stops, so that each of `n` questions has all checkpoints."""
    never = {"confidence": 0.0, "deer": 0.0, "entropy": 1.0, "fixed-budget": 512.0}
    content = family_content(family, never.get(family, 600.0))
    if where is not None:
        content = anywhere_content(where, family, decision_threshold=600.0, threshold=1.0)
    policy = policy_from(content)
    positions = policy.trigger.positions or range(20, 200, 20)
    rng = random.Random(0)
    questions: list[list[dict[str, Any]]] = [
        [
            {
                "answer": answer,
                "normalized": None if raw else "42",
                "mean_logprob": -rng.expovariate(2.0),
                "mean_entropy": rng.expovariate(2.0),
                "markers": float(j),
                "think_tokens": budget,
            }
            for j, (answer, budget) in enumerate(zip(ANSWERS, positions, strict=False))
        ]
        for _ in range(n)
    ]

    def work() -> int:
        for steps in questions:
            observe = policy.start().observe
            for step in steps:
                observe(**step)
        return sum(map(len, questions))

    return microseconds(work)


def pipeline_time() -> float:
    """`predict_proba` of the fitted scikit-learn pipeline on one row of eight features."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 8))
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, rows[:, 0] > 0)
    row = rows[:1]

    def work() -> int:
        for _ in range(200):
            pipeline.predict_proba(row)
        return 200

    return microseconds(work)


def loading_time() -> float:
    """Milliseconds to load and check a bundled policy, the slowest of them."""
    files = sorted((Path(__file__).parents[2] / "policies").glob("*.joblib"))

    def load(file: Path) -> int:
        load_policy(file)
        return 1

    return max(microseconds(partial(load, file)) for file in files) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=2000)
    n = parser.parse_args().questions
    learned = stepper_time(n, "learned")
    for family in FAMILIES:
        print(f"{family:16} {stepper_time(n, family):7.2f} us per step")
    for where in ("stride", "marker"):
        at = stepper_time(n, "learned", where=where)
        print(f"{'learned':16} {at:7.2f} us per step, features of positions, {where}")
    normalised = stepper_time(n, "learned", raw=False)
    print(f"{'learned':16} {normalised:7.2f} us, answer normalised before")
    print(f"loading          {loading_time():7.2f} ms per bundled policy, the slowest")
    if importlib.util.find_spec("sklearn") is None:
        print("scikit-learn is not installed: no comparison")
        return
    pipeline = pipeline_time()
    print(
        f"scikit-learn     {pipeline:7.2f} us per row, {pipeline / learned:.0f} times the stepper"
    )


if __name__ == "__main__":
    main()
