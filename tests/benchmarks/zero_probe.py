"""What two signals that cost no probe add at markers: the closer's probability, and the entropy.

Run from the repository root: ``python -m tests.benchmarks.zero_probe [--questions N] [FILE]``; the
default, 300 questions, takes half a minute of CPU time.  The bundled model thinks in full and is
probed before each "Hold on", "Wait" and "Alternatively" and at every fourth token.  One forward
pass over what it thought gives the distribution of the next token before each of these words: the
log-probability of closing the thinking there, by the closer's first token, and the entropy.

*Rules.*  ``probed`` reads what a learned rule of StopAdvisor reads at these words, ``both`` the two
signals as well.  ``free`` reads how far the thinking is and the two signals, and asks for an answer
only where it stops; ``place`` is the same without the signals.  These four are logistic regressions
of "nothing is lost by stopping here", and score each question by a model that never saw it; once
with the few features of StopAdvisor's learned rules and their ridge of 1, once with the many and
their ridge of 30.  ``budget`` stops after a fixed number of tokens.

*Savings.*  Percent of what full thinking costs, at the last threshold that the exact binomial test
passes on all questions at delta = .05.  Intervals draw questions anew, each resample takes its own
thresholds, and differences are paired.  The models are not fitted anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import mannwhitneyu

from stopadvisor.answers.grading import Grader
from stopadvisor.arrays import BoolArray, FloatArray
from stopadvisor.assessment.sequences import FULL_FEATURES, SHORT_FEATURES, FeatureSet
from stopadvisor.collection.collect import ask_all, make_prompts
from stopadvisor.collection.labels import grade_traces
from stopadvisor.collection.markers import sentence_ids
from stopadvisor.constants import CUES, N_FOLDS
from stopadvisor.engines.hf import load_engine
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.plan import ProbePlan, Prompt, RawTrace
from stopadvisor.probes.records import graded_table
from stopadvisor.progress import NullProgress
from stopadvisor.rules.costs import PAPER_WEIGHTS, Asking, Serving, full_counts, stopped_counts
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.losses import lost_correct
from stopadvisor.rules.schedules import GridSchedule, MarkerSchedule, grid_positions
from stopadvisor.rules.scores import fit_logistic, scalar_scores
from stopadvisor.stats.bootstrap import interval, resample_counts
from stopadvisor.stats.bounds import StopCurve, max_losses
from stopadvisor.workload.questions import Question, read_workload

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
WORDS = ("Hold on", "Wait", "Alternatively")
EVERY = 4
"""Thinking tokens between two fixed budgets."""
MAX_THINK = 448
BATCH = 50
ALPHAS = (0.05, 0.10, 0.15)
DELTA = 0.05
REGIMES: tuple[Serving, ...] = ("kv-fork", "prefix-cache")
RESAMPLES = 2000
PAIRS = (("both", "probed"), ("free", "probed"), ("free", "place"), ("free", "budget"))

SIGNALS = ("closer_logprob", "next_entropy")
PLACE = ("log_position", "marker_density")
"""What is known before a word without a probe and without a distribution."""


@dataclass(frozen=True)
class Thresholds:
    """A rule at each of its thresholds, careful ones first."""

    lost: FloatArray  # (n_questions, n_thresholds)
    cost: FloatArray  # (n_questions, n_thresholds)


def draw(
    engine: HfEngine, questions: Sequence[Question]
) -> tuple[GradedTable, list[Prompt], list[RawTrace]]:
    """Think about the questions in full, and probe at markers and at every fixed budget."""
    markers = sorted({ids for word in WORDS for ids in sentence_ids(engine, word)})
    plan = ProbePlan(
        budgets=(),
        cue=CUES["terse"],
        max_think=MAX_THINK,
        schedule="marker",
        markers=tuple(markers),
    ).with_stride(EVERY)
    prompts = make_prompts(questions, None)
    traces = ask_all(engine, prompts, plan, batch_size=BATCH, progress=NullProgress())
    with Grader() as grader:
        records = grade_traces(questions, traces, grader, entropy="full")
    table = graded_table(records)
    return GradedTable.of(table, table.outcomes), prompts, traces


def free_signals(
    engine: HfEngine, prompts: Sequence[Prompt], traces: Sequence[RawTrace], view: GradedTable
) -> FloatArray:
    """Read `SIGNALS` off one forward pass a question; shape (n_questions, n_probes, 2).

    0 where there is no probe.
    """
    import torch  # after `load_engine`, which says how its threads wait

    closer = engine.chat.closer.ids[0]
    found = np.zeros((*view.positions.shape, len(SIGNALS)))
    for row, (prompt, trace) in enumerate(zip(prompts, traces, strict=True)):
        before = engine.chat.prompt_ids(prompt.messages)
        columns = np.flatnonzero(view.live[row])
        # What stands before a marker predicts it.
        last = torch.tensor(len(before) + view.positions[row, columns] - 1)
        ids = torch.tensor([[*before, *trace.thinking_ids]])
        with torch.inference_mode():
            logits = engine.model(input_ids=ids, use_cache=False, logits_to_keep=last).logits[0]
        logprobs = logits.float().log_softmax(dim=-1)  # (n_columns, vocabulary)
        found[row, columns, 0] = logprobs[:, closer].numpy()
        found[row, columns, 1] = -(logprobs.exp() * logprobs).sum(dim=-1).numpy()
    return found


def nothing_lost(view: GradedTable) -> BoolArray:
    """Whether a stop loses nothing, shape (n_questions, n_probes); what `learned-keeps` learns."""
    return view.stop_correct | ~view.full_correct[:, None]


def learned(view: GradedTable, x: FloatArray, names: Sequence[str], ridge: float) -> FloatArray:
    """Score where nothing is lost, by models that never saw the question."""
    rows, keeps = view.live, nothing_lost(view)
    share = rows / np.maximum(rows.sum(axis=1, keepdims=True), 1)
    folds = np.arange(view.n_questions) % N_FOLDS
    scores = np.zeros(rows.shape)
    for fold in range(N_FOLDS):
        held = folds == fold
        train = rows & ~held[:, None]
        weights = share[train] * train.sum() / share[train].sum()
        model = fit_logistic(x[train], keeps[train], names, weights=weights, ridge=ridge)
        scores[held] = model.scores(x[held])
    return scores


def along(view: GradedTable, scores: FloatArray, serving: Serving, *, asks: bool) -> Thresholds:
    """Measure a rule at every threshold; `asks` says whether it probes before it stops."""
    thresholds = np.unique(scores[view.live])[::-1]
    curve = StopCurve.build(scores, view.live, thresholds)
    counts = stopped_counts(view, serving, asking=Asking(before=asks))
    every = np.arange(view.n_questions)
    lost = lost_correct(view.correct_online, view.full_correct)
    return Thresholds(
        curve.totals(lost, every, view.n_questions),
        curve.totals(counts.weighed(PAPER_WEIGHTS), every, view.n_questions),
    )


def savings(rule: Thresholds, full: FloatArray, alpha: float, counts: FloatArray) -> FloatArray:
    """Percent saved at the last threshold that passes, in each resample; shape (n_resamples,)."""
    most = max_losses(len(full), alpha, DELTA)
    over = np.column_stack([counts @ rule.lost > most + 0.5, np.ones(len(counts), dtype=bool)])
    last = over.argmax(axis=1) - 1
    whole = counts @ full
    cost = (counts @ rule.cost)[np.arange(len(counts)), np.maximum(last, 0)]
    # What costs more than full thinking is not exported.
    cost = np.where(last < 0, whole, np.minimum(cost, whole))
    return np.asarray(100 * (1 - cost / whole))


def area(values: FloatArray, keeps: BoolArray) -> float:
    """Area under the ROC curve; .5 says nothing."""
    rank = mannwhitneyu(values[keeps], values[~keeps]).statistic
    return float(rank / (keeps.sum() * (~keeps).sum()))


def show(rules: Mapping[str, Thresholds], full: FloatArray) -> None:
    """Print what each rule saves at each alpha, and the differences that matter."""
    rng = np.random.default_rng(len(full))
    counts = np.vstack([np.ones(len(full)), resample_counts(len(full), RESAMPLES, rng=rng)])
    for alpha in ALPHAS:
        saved = {name: savings(rule, full, alpha, counts) for name, rule in rules.items()}
        print(f"  alpha {alpha:.2f}: " + ", ".join(f"{n} {s[0]:.1f}" for n, s in saved.items()))
        for name, other in PAIRS:
            apart = saved[name] - saved[other]
            spread = interval(apart[1:])
            print(
                f"    {name + ' - ' + other:15} {apart[0]:+6.1f} "
                f"[{spread.low:+.1f}, {spread.high:+.1f}]"
            )


def compare(
    view: GradedTable, grid: GradedTable, signals: FloatArray, features: FeatureSet
) -> None:
    """Fit every rule with these features, and print what they save in each way of serving."""

    def scored(names: Sequence[str], *, with_signals: bool) -> FloatArray:
        x = feature_array(view, names=names)
        if with_signals:
            x, names = np.concatenate([x, signals], axis=2), (*names, *SIGNALS)
        return learned(view, x, names, features.ridge)

    probed = [*features.names, "answer_log_odds"]
    if features is FULL_FEATURES:
        probed.append("answer_entropy")
    rules = {
        "probed": (view, scored(probed, with_signals=False), True),
        "both": (view, scored(probed, with_signals=True), True),
        "free": (view, scored(PLACE, with_signals=True), False),
        "place": (view, scored(PLACE, with_signals=False), False),
        "budget": (grid, scalar_scores("fixed-budget", grid), False),
    }
    full = full_counts(view).weighed(PAPER_WEIGHTS)
    for serving in REGIMES:
        print(f"{serving}, ridge {features.ridge:g}: % saved; differences with 95 % intervals")
        show(
            {n: along(v, scores, serving, asks=asks) for n, (v, scores, asks) in rules.items()},
            full,
        )


def main() -> None:
    """Draw, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", nargs="?", type=Path, default=SAMPLES / "arithmetic.jsonl")
    parser.add_argument("--questions", type=int, default=300)
    options = parser.parse_args()
    engine = load_engine(str(SAMPLES / "tiny-reasoner"), device="cpu")
    questions = read_workload(options.workload).questions[: options.questions]
    table, prompts, traces = draw(engine, questions)

    view = MarkerSchedule(1, MAX_THINK).view(table)
    grid = GridSchedule(grid_positions(table)).view(table)
    signals = free_signals(engine, prompts, traces, view)
    keeps = nothing_lost(view)
    print(
        f"{len(questions)} questions, full thinking right {100 * table.full_correct.mean():.1f} %, "
        f"{view.live.sum(axis=1).mean():.2f} markers a question, stopping there loses "
        f"{100 * (~keeps)[view.live].mean():.1f} %"
    )
    for number in range(min(2, view.n_checkpoints)):
        here = view.live[:, number]
        known = [*np.moveaxis(signals[:, number], 1, 0), view.mean_logprob[:, number]]
        areas = [area(values[here], keeps[here, number]) for values in known]
        print(
            f"marker {number + 1}, {here.sum()} questions, area under the ROC curve: "
            f"closer {areas[0]:.2f}, entropy {areas[1]:.2f}, the probe's confidence {areas[2]:.2f}"
        )
    for features in (SHORT_FEATURES, FULL_FEATURES):
        compare(view, grid, signals, features)


if __name__ == "__main__":
    main()
