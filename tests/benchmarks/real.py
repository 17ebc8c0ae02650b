"""Certified savings on traces of real models, against simple rules at the same risk.

Run from the repository root: ``python -m tests.benchmarks.real [--half develop|report|all] [--json
FILE]``.  Reads `samples/recorded/real` and nothing else; takes about ten minutes of CPU time.

*Contestants.*  A certified fixed budget (T thinking tokens, from the largest to the smallest, every
64); k equal answers in a row, k from the largest, asked every 64 to 512 tokens, how often is chosen
on fit questions; confidence at each "Wait" (DEER), where log-probabilities were recorded; and
StopAdvisor.  Each is tested by the exact binomial test at the whole of delta, thresholds in a fixed
sequence.  StopAdvisor's way of choosing was worked out on the half ``develop`` alone, but for the
lead that a learned rule needs over simpler ones, which was compared on all questions.

*Splits.*  With ``--half all``: 160 of the 500 questions of MATH-500 choose, 240 certify, the other
100 measure.  With "Wait" 400 questions were recorded: 128, 192 and 80.  A half is too small for
that, and certificates of fewer questions would say little of what 240 allow.  So there 160 (128)
questions choose, all others of the half are a small population, 240 (192) draws with replacement
from it certify, and the rule is measured on the whole population.  A question belongs to the half
``develop`` where the first byte of sha256 of its name (such as ``math500/0007``) is even, to
``report`` otherwise: rules are worked out on the first and reported on the second and on all.

*One trace a question.*  Split number s takes pass s mod 3, which holds one trace of each question;
passes are never mixed, and neither are models.  Intervals resample questions.

*AMC23 and AIME24* are harder, and 70 questions are too few to certify on.  They are no part of any
split.  Rules certified on MATH-500 are measured on them, to show what a certificate does not cover:
other questions.

*Costs.*  A decoded token counts 1, a token that is read 1 or .25: the prompt once, and 8 tokens
that ask for an answer at each probe.  A reply after a stop is the forced answer.  Full thinking
pays its thinking and its own answer.  The last cells price the stack ``vllm`` on an H100 by the
models' shapes, 32 requests in flight; the fixed budget there is StopAdvisor's own.

*Broken certificates.*  20 frozen fits and 50 calibrations of each, drawn with replacement from all
questions outside fit, whose true risk is known; exits with 1 where more are broken than delta
explains.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # before numpy is imported
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from stopadvisor.ground.arrays import BoolArray, FloatArray  # noqa: E402
from stopadvisor.rules.families import FIXED_BUDGET  # noqa: E402
from stopadvisor.studies.rivals import Trial, draw_split  # noqa: E402
from tests.benchmarks.real_advisor import StopAdvisor  # noqa: E402
from tests.benchmarks.real_rivals import (  # noqa: E402
    AGREEMENT_EVERY,
    Agreement,
    Contestant,
    OneSequence,
    agreement,
    confidence_at_waits,
    fixed_budget,
)
from tests.benchmarks.real_traces import HALVES, MODELS, PASSES, WAIT_MODEL, load_traces, load_waits  # noqa: E402
from tests.benchmarks.real_trial import Broken, Sizes, broken, draw_from_population, run_trial  # noqa: E402

DELTA = 0.05
ALPHAS = (0.05, 0.10)
PREFILLS: tuple[float | None, ...] = (1.0, 0.25, None)
SIZES = {False: Sizes(160, 240), True: Sizes(128, 192)}
"""By whether "Wait" was asked."""
FIXED, AGREEING, WAITING, OURS = "fixed budget", "k equal answers", "sure at Wait", "StopAdvisor"
SIMPLE = (FIXED, AGREEING, WAITING)


@dataclass(frozen=True)
class Cell:
    """One model, one risk, one way of pricing."""

    model: str
    with_waits: bool
    alpha: float
    prefill: float | None
    """Price of a token that is read; None: inside vLLM on an H100, as StopAdvisor computes it."""

    @property
    def name(self) -> str:
        """As the table shows it."""
        signal = "text and confidence" if self.with_waits else "text alone"
        priced = f"prefill {self.prefill:g}" if self.prefill is not None else "vllm on an H100"
        return f"{self.model}, {signal}, α = {self.alpha:g}, {priced}"

    def contestants(self, number: int) -> dict[str, Contestant]:
        """Everyone, on one pass over the questions."""
        traces = load_traces(self.model, number, with_waits=self.with_waits)
        waits = load_waits(number) if self.with_waits else None
        if self.prefill is None:
            ours = StopAdvisor(traces, waits, self.alpha, DELTA, 1.0, self.model)
            return {FIXED: replace(ours, families=(FIXED_BUDGET,)), OURS: ours}
        equal = tuple(agreement(traces, self.prefill, every) for every in AGREEMENT_EVERY)
        found: dict[str, Contestant] = {
            FIXED: OneSequence(fixed_budget(traces, self.prefill), self.alpha, DELTA),
            AGREEING: Agreement(equal, self.alpha, DELTA),
        }
        if waits is not None:
            sure = confidence_at_waits(traces, waits, self.prefill)
            found[WAITING] = OneSequence(sure, self.alpha, DELTA)
        found[OURS] = StopAdvisor(traces, waits, self.alpha, DELTA, self.prefill)
        return found

    def full_cost(self, number: int) -> FloatArray:
        """Cost of full thinking on one pass, (n_questions,)."""
        traces = load_traces(self.model, number, with_waits=self.with_waits)
        if self.prefill is not None:
            return traces.full_cost(self.prefill)
        waits = load_waits(number) if self.with_waits else None
        return StopAdvisor(traces, waits, self.alpha, DELTA, 1.0, self.model).full_cost


def cells() -> Iterator[Cell]:
    """All of them; "Wait" was asked of one model."""
    for with_waits, models in ((False, MODELS), (True, (WAIT_MODEL,))):
        for model in models:
            for alpha in ALPHAS:
                for prefill in PREFILLS:
                    yield Cell(model, with_waits, alpha, prefill)


def measure(cell: Cell, half: str, n_splits: int, fits: int, draws: int) -> dict[str, Any]:
    """The document of one cell."""
    make = cell.contestants
    passes = tuple(
        load_traces(cell.model, number, with_waits=cell.with_waits) for number in range(len(PASSES))
    )
    rows, sizes = passes[0].rows_of(half), SIZES[cell.with_waits]
    draw = draw_split if half == "all" else draw_from_population
    splits = [draw(rows, sizes.fit, sizes.calibration, number) for number in range(n_splits)]
    full = tuple(map(cell.full_cost, range(len(PASSES))))
    trial = run_trial(passes, splits, make, full)
    failures: dict[str, Broken] = {}
    if fits and cell.prefill == PREFILLS[0]:  # prices choose rules, they do not break certificates
        failures = broken(
            passes, rows, sizes, make, fits=fits, draws=draws, alpha=cell.alpha, delta=DELTA
        )
    return _document(cell, trial, failures, ~passes[0].certified)


def _document(
    cell: Cell, trial: Trial, failures: dict[str, Broken], shifted: BoolArray
) -> dict[str, Any]:
    simple = [name for name in trial.cost if name in SIMPLE]
    best = max(simple, key=lambda name: trial.saving(name).mean)
    rules = {}
    at_shift = replace(trial, held_out=np.broadcast_to(shifted, trial.held_out.shape))
    for name in trial.cost:
        rules[name] = {
            "saving_pct": asdict(trial.saving(name)),
            "uncut_saving_pct": asdict(trial.saving(name, uncut=True)),
            "lost_pct": 100 * trial.lost_share(name),
            "certified_splits_pct": 100 * trial.stopping_share(name),
            "ahead_of_best_simple_pp": asdict(trial.saving(name, best)),
            "uncut_ahead_of_best_simple_pp": asdict(trial.saving(name, best, uncut=True)),
            "broken": asdict(failures[name]) | {"ok": failures[name].ok} if failures else None,
            "amc_aime": None
            if cell.with_waits
            else {
                "saving_pct": at_shift.saving(name).mean,
                "lost_pct": 100 * at_shift.lost_share(name),
            },
        }
    return asdict(cell) | {"name": cell.name, "best_simple": best, "rules": rules}


# --- What people see ------------------------------------------------------------------------------


def _table(document: dict[str, Any]) -> str:
    shown = "" if document["with_waits"] else "AMC/AIME: saving, lost"
    lines = [
        document["name"],
        f"  {'':16} {'saving':>7} {'uncut':>7} {'lost':>6} {'stops':>6}"
        f"  {'ahead of ' + document['best_simple']:>26}  {'broken':14} {shown}".rstrip(),
    ]
    for name, rule in document["rules"].items():
        ahead, failed, shifted = (rule["ahead_of_best_simple_pp"], rule["broken"], rule["amc_aime"])
        against = ""
        if name != document["best_simple"]:
            against = f"{ahead['mean']:+.1f} [{ahead['low']:+.1f}, {ahead['high']:+.1f}]"
        share = f"{100 * failed['count'] / failed['certificates']:.1f} %" if failed else ""
        other = f"{shifted['saving_pct']:.1f}, {shifted['lost_pct']:.1f}" if shifted else ""
        lines.append(
            f"  {name:16} {rule['saving_pct']['mean']:7.1f} {rule['uncut_saving_pct']['mean']:7.1f}"
            f" {rule['lost_pct']:6.1f} {rule['certified_splits_pct']:6.0f}  {against:>26}"
            f"  {share + ('' if not failed or failed['ok'] else ' TOO MANY'):14} {other}".rstrip()
        )
    return "\n".join(lines)


def _summary(documents: list[dict[str, Any]]) -> str:
    lines = ["mean over cells"]
    kinds = ((False, "text alone"), (True, "text and confidence"))
    for (with_waits, words), inside in product(kinds, (False, True)):
        here = [
            d
            for d in documents
            if d["with_waits"] == with_waits and (d["prefill"] is None) == inside
        ]
        if not here:
            continue
        best = [d["rules"][d["best_simple"]]["saving_pct"]["mean"] for d in here]
        words += ", vllm on an H100" * inside
        line = f"  {words}: better simple rule {sum(best) / len(best):.1f}"
        for name in here[0]["rules"]:
            mean = sum(d["rules"][name]["saving_pct"]["mean"] for d in here) / len(here)
            line += f", {name} {mean:.1f}"
        lines.append(line)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.real", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--half", choices=(*HALVES, "all"), default="all", help="which questions")
    parser.add_argument("--splits", type=int, default=30, help="of the questions (default 30)")
    parser.add_argument(
        "--fits", type=int, default=20, help="frozen for the check of certificates; 0 for none"
    )
    parser.add_argument("--draws", type=int, default=50, help="calibrations of each frozen fit")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    start, documents = time.process_time(), []
    for cell in cells():
        documents.append(measure(cell, options.half, options.splits, options.fits, options.draws))
        print(_table(documents[-1]), flush=True)
    print(_summary(documents))
    spent = time.process_time() - start
    print(f"half {options.half}, {options.splits} splits, {spent:.0f} s CPU")
    if options.json:
        settings = {"half": options.half, "splits": options.splits, "delta": DELTA}
        options.json.write_text(json.dumps({**settings, "cells": documents}, indent=1) + "\n")
    failed = [
        (d["name"], name)
        for d in documents
        for name, rule in d["rules"].items()
        if rule["broken"] and not rule["broken"]["ok"]
    ]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
