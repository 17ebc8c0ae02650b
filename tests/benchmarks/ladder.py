"""Savings that a ladder certifies on public recordings.

Run from the repository root: ``python -m tests.benchmarks.ladder --data DIR [--splits N]``, where
DIR holds ``replies-r1-qwen-32b-math500.jsonl``, and next to it ``real/`` the replies of the smaller
model to the same questions.

*A small model first.*  DeepSeek-R1-Distill-Qwen-7B before 32B on MATH-500: 160 of the 500 questions
choose the rule, 240 certify it by the exact test at δ = 0.05, the other 100 measure it.  Split
number s takes draw s mod 3 of both models.  A token counts the parameters of its model (7 and 32
billion), a prompt's tokens too.

*Votes of 16*, where DIR holds ``votes-*.jsonl``: samples of one model until the leader leads by d,
from 16 to 1, on AIME24 and AIME25 as a known population of 60 questions, 60 labels drawn with
replacement, 16 of the 128 recorded samples drawn for each; the rule is given, and the saving and
the risk are those of the population.

Exits with 1 where more certificates are broken than δ explains.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stopadvisor.assessment.choice import choose
from stopadvisor.assessment.settings import Settings
from stopadvisor.certification.calibration import calibrate
from stopadvisor.ground.arrays import IntArray
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules.climb import Climb
from stopadvisor.rules.costs import LADDER, MONEY, Weights
from stopadvisor.rules.families import RUNG_FAMILIES
from stopadvisor.rules.losses import LOSSES, LossName
from stopadvisor.rules.outcomes import measure_rule
from stopadvisor.rules.scorer import Scorer
from stopadvisor.runs.ladder import Ladder, Rung
from stopadvisor.runs.replies import ReplyRecord, RungReply, reply_table
from stopadvisor.stats.bounds import max_losses

DELTA = 0.05
SMALL = Rung("R1-7B", (7.0, 0.7, 7.0))
LARGE = Rung("R1-32B", (32.0, 3.2, 32.0))
SEEDS = ((42, 45), (43, 46), (44, 47))
"""Seeds of the small model's replies: 400 questions of the first seed, 100 of the second."""
CELLS: tuple[tuple[LossName, float], ...] = (
    ("lost", 0.05),
    ("lost", 0.10),
    ("drop", 0.05),
    ("drop", 0.10),
)
SAMPLES = 16


def _reply(name: str, code: int, tokens: int, *, finished: bool, prompt: int = 0) -> RungReply:
    answer = str(code) if code else ""
    return RungReply(name, answer, answer, code == 1, finished, prompt, 0, tokens, None)


def _table(lines: Sequence[tuple[str, tuple[RungReply, ...]]], ladder: Ladder) -> OpenQuestions:
    records = [ReplyRecord(name, name, None, "exact", None, "", found) for name, found in lines]
    return reply_table(records, ladder)


def cascade(data: Path, draw: int) -> OpenQuestions:
    """One draw of both models to all questions."""
    small: dict[str, tuple[int, ...]] = {}
    for seed in SEEDS[draw]:
        file = np.load(data.parent / "real" / f"r1-qwen-7b__math500__seed{seed}.npz")
        names = ("full_code", "total_tokens", "truncated", "prompt_tokens")
        rows = zip(*(file[name].tolist() for name in names), strict=True)
        small.update(zip(file["question"].tolist(), rows, strict=True))
    lines = []
    for text in (data / "replies-r1-qwen-32b-math500.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line["seed"] != SEEDS[draw][0]:
            continue
        code, tokens, cut, prompt = small[line["id"]]
        first = _reply(SMALL.name, code, tokens, finished=not cut, prompt=prompt)
        ended = line["finished"]
        last = _reply(LARGE.name, line["code"], line["tokens"], finished=ended, prompt=prompt)
        lines.append((line["id"], (first, last)))
    return _table(lines, Ladder((SMALL, LARGE)))


@dataclass(frozen=True)
class Tried:
    """One split."""

    saving_pct: float
    """On the questions outside, 0 where nothing was certified."""
    rule: str
    always_pct: float
    """Saving of the small model for everybody, by the same test; 0 if it fails."""


def tried(table: OpenQuestions, seed: int, loss: LossName, alpha: float) -> Tried:
    """Choose, certify and measure on one split."""
    rows = np.random.default_rng(seed).permutation(table.n_questions)
    prompt, cached, decoded = LARGE.price
    prices = Weights(prompt, cached, decoded, MONEY)
    how = {"serving": LADDER, "weights": prices, "families": RUNG_FAMILIES}
    settings = Settings(alpha=alpha, delta=DELTA, loss=loss, **how)  # type: ignore[arg-type]
    choice = choose(table.take(rows[:160]).as_fit(), 240, settings)
    found = calibrate(choice, table.take(rows[160:400]).as_calibration())
    alone = replace(settings, families=("rung",))
    rival = calibrate(
        choose(table.take(rows[:160]).as_fit(), 240, alone),
        table.take(rows[160:400]).as_calibration(),
    )
    outside = table.take(rows[400:])
    savings = [
        0.0
        if each.rule is None
        else measure_rule(
            each.rule.scorer, each.rule.threshold, outside, settings.costing
        ).total_saving_pct
        for each in (found, rival)
    ]
    name = "-" if found.rule is None else found.rule.scorer.family
    return Tried(savings[0], name, savings[1])


def votes(data: Path, rng: np.random.Generator) -> OpenQuestions:
    """60 questions, 16 of their recorded samples each."""
    ladder = Ladder((Rung("vote", (0.0, 0.0, 1.0), repeat=SAMPLES),))
    lines = []
    for file in sorted(data.glob("votes-*.jsonl")):
        for text in file.read_text().splitlines():
            line = json.loads(text)
            picked = rng.choice(len(line["traces"]), SAMPLES, replace=False)
            found = (line["traces"][k] for k in picked.tolist())
            replies = tuple(_reply("vote", code, n, finished=True) for code, n in found)
            lines.append((line["id"], replies))
    return _table(lines, ladder)


def voted(table: OpenQuestions, loss: LossName, rng: np.random.Generator, draws: int) -> Any:
    """Saving and risk of the step that each draw of 60 labels certifies, of the population."""
    columns = tuple(range(SAMPLES - 1))
    path = tuple((float(d),) * len(columns) for d in range(1, SAMPLES + 1))
    scorer = Scorer(
        "rung-agreement", Climb("rung-agreement", ("vote",) * SAMPLES, columns, path), None
    )
    view = scorer.view(table)
    assert view.rungs is not None
    counts: IntArray = LOSSES[loss].of(view)[:, :-1]  # bold first, the reference last
    price = view.rungs.spent.price
    saving = 100 * (1 - price.sum(axis=0) / price[:, -1].sum())
    risk = counts.mean(axis=0)
    most = max_losses(60, 0.05, DELTA)
    found = []
    for _ in range(draws):
        rows = rng.integers(0, table.n_questions, 60)
        passes = (counts[rows].sum(axis=0) <= most)[::-1]  # from careful to bold
        last = len(passes) if passes.all() else int(passes.argmin())
        step = len(passes) - max(last, 1)
        found.append((saving[step], risk[step]))
    return np.array(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=30)
    options = parser.parse_args(argv)
    tables = [cascade(options.data, draw) for draw in range(len(SEEDS))]
    for draw, table in enumerate(tables):
        other = tables[(draw + 1) % len(tables)]
        lost = (table.full_correct & ~other.full_correct).mean()
        print(f"draw {draw}: {100 * lost:.1f} % of the reference lost against another draw of it")
    print("loss    alpha  certified  always small  rules")
    for loss, alpha in CELLS:
        rows = [tried(tables[s % 3], s, loss, alpha) for s in range(options.splits)]
        mean = np.mean([row.saving_pct for row in rows])
        rival = np.mean([row.always_pct for row in rows])
        names = sorted({row.rule for row in rows})
        print(
            f"{loss:7} {alpha:5.2f}  {mean:8.1f}%  {rival:11.1f}%  {', '.join(names)}", flush=True
        )
    broken = False
    if any(options.data.glob("votes-*.jsonl")):
        rng = np.random.default_rng(0)
        for loss, alpha in (("lost", 0.05), ("differs", 0.05)):
            found = np.concatenate(
                [voted(votes(options.data, rng), loss, rng, 100) for _ in range(10)]
            )
            share = float((found[:, 1] > alpha).mean())
            broken |= share > DELTA
            print(f"votes of 16, {loss}: {found[:, 0].mean():.1f} %, broken {100 * share:.1f} %")
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
