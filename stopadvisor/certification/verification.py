"""Verify a frozen policy on fresh probes.

Questions that fitted or calibrated the policy cannot confirm it and are left out.  The caller
checks that the probes come from the model that the policy is bound to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from stopadvisor.certification.verdicts import LimitVerdict, Verdict, limit_verdicts, of_values
from stopadvisor.ground.arrays import BoolArray, IntArray
from stopadvisor.ground.errors import PolicyError, ProbeError
from stopadvisor.policy.terms import PolicyTerms, trigger_of
from stopadvisor.probes.grouping import calibration_rows, in_groups_of, second_traces
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.table import GradedBy, ProbeTable, Reference
from stopadvisor.probes.trigger import ListedTrigger
from stopadvisor.rules.climb import Climb
from stopadvisor.rules.costs import PAPER_WEIGHTS, Costing, Serving, Weights
from stopadvisor.rules.drift import Drift, drift_features, drift_names, feature_drift
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.features import LOGPROB_FEATURES, LinearModel
from stopadvisor.rules.losses import DIFFERS, LOSSES
from stopadvisor.rules.outcomes import measure
from stopadvisor.rules.scorer import Schedule, Scorer, grid_view
from stopadvisor.runs.archives import names_questions
from stopadvisor.stats.intervals import exact_interval, paired_difference

__all__ = [
    "CategoryRisk", "Fresh", "Verification", "costing", "fresh_questions", "questions_seen",
    "scorer_of", "under_reference", "verify",
]  # fmt: skip

Table = TypeVar("Table", bound=ProbeTable)


@dataclass(frozen=True)
class CategoryRisk:
    """Lost-correct risk within one category; the certificate covers all questions together."""

    category: str | None
    """Its name; null for questions without one."""
    n: int
    """Fresh questions in it."""
    losses: int
    """Lost questions."""
    ci95: tuple[float, float]
    """Exact interval of the share lost; at 95 % simultaneous over all categories (Bonferroni)."""


@dataclass(frozen=True)
class Fresh:
    """Traces of a table that may confirm or contradict a policy."""

    rows: IntArray
    """First trace of one question per unseen group; then, if two traces count, the second ones in
    the same order."""
    n_seen: int
    """Traces left out because their question or group fitted or calibrated the policy."""
    n_repeated: int
    """Traces left out because another trace of their question or group counts."""
    traces: int = 1
    """Traces per question that count."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What fresh probes say about a certificate."""

    verdict: Verdict
    """`confirmed`, `contradicted` or `silent`."""
    alpha: float
    """The certified limit."""
    delta: float
    """Error probability of each one-sided limit."""
    n_left_out: int
    """Traces left out."""
    n_met_before: int
    """Traces left out because their question or group made the policy."""
    n_repeated: int
    """Traces left out because another trace of their question or group counts."""
    n: int
    """Fresh questions counted."""
    losses: int
    """Lost questions; lost replies if two traces count."""
    risk: float
    """Share lost; for a drop, minus the share gained."""
    lower: float
    """One-sided lower confidence limit of the risk."""
    upper: float
    """One-sided upper confidence limit of the risk."""
    expected_risk: float
    """Risk that calibration measured; if replies that differ stand for lost ones, the upper limit
    of their share."""
    power_to_confirm: float
    """Probability of a confirmation at that risk."""
    detectable_risk: float | None
    """Risk that would be contradicted four times in five; null for a drop, for two traces, if
    replies that differ stand for lost ones, or if there are too few questions for any."""
    graded_by: GradedBy
    """How answers are graded.  By `agreement`, if gold is missing, an answer is right if it equals
    full thinking's: then accuracies are shares that agree, and risks shares that differ."""
    accuracy: float
    """Accuracy with stopping."""
    full_accuracy: float
    """Accuracy of full thinking."""
    accuracy_difference: float
    """Stopping minus full thinking."""
    accuracy_difference_ci95: tuple[float, float]
    """Its 95 % score interval; with two traces, as wide as if the second repeated the first."""
    serving: str
    """The serving regime for which the saving is computed."""
    unit: str
    """Unit of the costs."""
    total_saving_pct: float
    """Net saving."""
    total_saving_ci95: tuple[float, float] | None
    """Its 95 % interval; null if nothing was stopped."""
    think_saving_pct: float
    """Thinking tokens saved."""
    truncated_share: float
    """Share of the traces that were cut off."""
    category_scope: Literal["marginal"] = "marginal"
    """The certificate covers all questions together."""
    categories: tuple[CategoryRisk, ...]
    """Lost questions by category, from the first trace of each; for a drop, without the gains."""
    drift: tuple[Drift, ...]
    """Features of first traces against those of calibration questions; empty if the policy stores
    none."""
    loss: Literal["differs", "drop"] | None = None
    """The loss that was counted and compared with alpha; lost answers if missing.  Without gold,
    replies that differ stand for lost ones, and for a drop."""
    gained: int | None = None
    """Only for a drop: questions that stopping made right."""
    traces: int | None = None
    """Only if two traces of each question count; `losses` then counts replies."""
    limits: tuple[LimitVerdict, ...] | None = None
    """Only if the certificate limits several losses at once."""
    on_stop: Literal["answer"] | None = None
    """Only with `--on-stop answer`."""
    answer_saving_pct: float | None = None
    """Only with `--on-stop answer`: saving in tokens of the visible answer."""


def scorer_of(terms: PolicyTerms, table: ProbeTable, *, along_order: bool = False) -> Scorer:
    """Scorer of a policy: computes what its stepper does, for a whole table at once.

    With `along_order` it covers every threshold of the policy's testing order.  Under the
    last-checkpoint reference its view ends with the table's last checkpoint, where full thinking
    answers, wherever the policy stops.  PolicyError if the policy never stops, or a question lacks
    a probe that it needs.
    """
    if terms.family is None:
        raise PolicyError("a full-budget policy never stops: it has no rule to look at")
    if terms.ladder is not None:
        climb = terms.ladder.climb(terms.family, _linear(terms))
        return _on(Scorer(terms.family, climb, None), table)
    if terms.family == FIXED_BUDGET and along_order:
        # Its thresholds are positions.
        schedule: Schedule = ListedTrigger(tuple(int(t) for t in reversed(terms.order)))
    else:
        schedule = trigger_of(terms)
    scorer = _on(Scorer(terms.family, schedule, _linear(terms)), table)
    if table.reference == "last-checkpoint" and isinstance(schedule, ListedTrigger):
        last = int(table.budgets[-1])
        positions = (*(at for at in schedule.positions if at < last), last)
        scorer = replace(scorer, schedule=replace(schedule, positions=positions))
    return scorer


def _on(scorer: Scorer, table: ProbeTable) -> Scorer:
    """Return the scorer if the table has its probes."""
    try:
        scorer.view(table)
    except ProbeError as error:
        verb = "asks" if isinstance(scorer.schedule, Climb) else "probes"
        raise PolicyError(f"the policy {verb} {scorer.schedule.describe()}: {error}") from error
    return scorer


def _linear(terms: PolicyTerms) -> LinearModel | None:
    if not terms.features:
        return None
    return LinearModel(terms.features, terms.mean, terms.scale, terms.coef, terms.intercept or 0.0)


def questions_seen(
    terms: PolicyTerms, table: ProbeTable, *, workload_sha256: str | None = None
) -> frozenset[str]:
    """Keys of the table's questions that fitted or calibrated the policy.

    `workload_sha256` is that of the table's workload.  An archive without ids names its questions
    by row, which identifies nothing in another archive.
    """
    split = terms.split
    if split is None:
        return frozenset()
    elsewhere = workload_sha256 not in (None, terms.workload_sha256)
    used = {*split.fit, *split.calibration}
    if terms.model is None and elsewhere and not names_questions(used):
        return frozenset()
    named = zip(table.keys, table.group_ids, strict=True)
    return frozenset(key for key, group in named if key in used or group in used)


def fresh_questions(
    terms: PolicyTerms,
    table: ProbeTable,
    *,
    workload_sha256: str | None = None,
    alone: bool = False,
) -> Fresh:
    """Choose the traces that may confirm or contradict a policy; reads no outcome.

    `alone` counts only the first trace of each question, even where some have two.

    Raises
    ------
    CalibrationError
        As `grouping.second_traces`.
    PolicyError
        The policy has no certificate, no fresh question is left, the certificate covers visible
        answers and none were collected, or gold is missing and nothing can replace it.
    """
    certificate = terms.certificate
    if certificate is None:
        raise PolicyError("a full-budget policy has no certificate to verify")
    if terms.on_stop == "answer" and table.on_stop != "answer":
        raise PolicyError(
            "the policy's certificate is about visible answers (on-stop answer), these probes hold "
            "none: probe with --on-stop answer"
        )
    seen = questions_seen(terms, table, workload_sha256=workload_sha256)
    unseen = np.flatnonzero(~in_groups_of(table, seen))
    rows = unseen[calibration_rows(table.take(unseen))] if unseen.size else unseen
    if not rows.size:
        raise PolicyError(
            f"all {table.n_questions} traces belong to questions that fitted or calibrated this "
            "policy; fresh ones are required: stopadvisor probe NEW.jsonl --like POLICY "
            "--model FOLDER"
        )
    if certificate.guarantees is not None and table.take(rows).graded_by != "gold":
        raise PolicyError(
            "the certificate counts right and wrong answers, and some fresh questions have no "
            "gold: add it to the workload, and probe again with --regrade"
        )
    again = None
    if not alone and any(LOSSES[each.loss].is_binary for each in certificate.limits):
        again = second_traces(table, rows)
    both = rows if again is None else np.concatenate([rows, again])
    traces = both.size // rows.size
    return Fresh(both, table.n_questions - unseen.size, unseen.size - both.size, traces)


def verify(
    terms: PolicyTerms,
    fresh: Fresh,
    questions: GradedTable,
    *,
    serving: Serving | None = None,
    weights: Weights | None = None,
    delta: float | None = None,
    rng: np.random.Generator,
) -> Verification:
    """Compare a policy's certificate with what fresh labelled probes show.

    Parameters
    ----------
    terms : PolicyTerms
        A policy of kind ``stop``.
    questions : GradedTable
        Exactly the rows of `fresh`, probed at least where the policy probes.
    serving, weights, delta : optional
        Serving regime and prices of the saving, and error probability of each limit; by default
        the policy's own.

    Raises
    ------
    PolicyError
        The policy never stops, or a question was not probed where the policy probes.
    ProbeError
        The certificate's full reference needs natural answers and the probes hold none.

    Notes
    -----
    ``contradicted`` and ``confirmed`` are exact one-sided tests at delta each: the first has
    probability at most delta if the risk is at most alpha, the second if it is at least alpha.
    With several limits, ``confirmed`` needs every limit at delta (intersection-union test), and
    ``contradicted`` needs one at its share of delta (Bonferroni).

    If questions have no gold, replies that differ from full thinking are counted instead of lost
    ones.  Every lost reply differs, so few differing replies can confirm such a promise, but many
    cannot contradict it.
    """
    certificate = terms.certificate
    if certificate is None or terms.decision_threshold is None:
        raise PolicyError("a full-budget policy has no certificate to verify")
    questions = under_reference(certificate.reference, questions)
    scorer = scorer_of(terms, questions)
    probed = scorer.view(questions).with_on_stop(terms.on_stop)
    stops = scorer.stops(probed, terms.decision_threshold)
    own = costing(terms)
    asked = Costing(serving or own.serving, weights or own.weights)
    costs, full_cost = scorer.costs(probed, asked), asked.full(probed)
    promise = LOSSES[certificate.loss]
    loss = DIFFERS if promise.needs_gold and probed.graded_by != "gold" else promise
    outcome = measure(probed, stops, costs, full_cost, loss=loss, rng=rng)
    lost = np.take_along_axis(loss.of(probed), stops[:, None], axis=1)[:, 0]
    alpha, delta = certificate.alpha, delta or certificate.delta
    correct = np.column_stack([probed.correct_online, probed.full_correct])
    stopped = np.take_along_axis(correct, stops[:, None], axis=1)[:, 0]
    gains = int((stopped & ~probed.full_correct).sum())
    worse = int((probed.full_correct & ~stopped).sum())
    # Second traces repeat questions: figures that need independent ones use first traces only.
    n = lost.size // fresh.traces
    first = np.arange(n)
    traces = fresh.traces if loss.is_binary else 1
    values = lost[: n * traces].reshape(traces, n)
    limit, expected = certificate.first, certificate.risk
    if loss is not promise:  # no count of calibration is of them
        limit, expected = replace(limit, both=None), certificate.differs_upper or max(expected, 0.0)
    evidence = of_values(loss, values, delta, limit, expected)
    limits = limit_verdicts(certificate, probed, stops, delta, fresh.traces)
    verdict = evidence.verdict
    if limits:
        found = {limit.verdict for limit in limits}
        every: Verdict = "confirmed" if found == {"confirmed"} else "silent"
        verdict = "contradicted" if "contradicted" in found else every
    if verdict == "contradicted" and loss is not promise:
        verdict = "silent"
    gained = None if loss.is_binary else int((values < 0).sum())
    losses = int((values > 0).sum())
    return Verification(
        verdict=verdict,
        alpha=alpha,
        delta=delta,
        n_left_out=fresh.n_seen + fresh.n_repeated,
        n_met_before=fresh.n_seen,
        n_repeated=fresh.n_repeated,
        n=n,
        losses=losses,
        risk=(losses - (gained or 0)) / values.size,
        lower=evidence.lower,
        upper=evidence.upper,
        expected_risk=expected,
        power_to_confirm=evidence.power_to_confirm,
        detectable_risk=evidence.detectable_risk if loss is promise else None,
        graded_by=probed.graded_by,
        accuracy=outcome.accuracy,
        full_accuracy=outcome.full_accuracy,
        accuracy_difference=(gains - worse) / outcome.n,
        # As wide as if the second trace of a question always repeated its first.
        accuracy_difference_ci95=paired_difference(gains / fresh.traces, worse / fresh.traces, n),
        serving=asked.serving,
        unit=asked.weights.unit,
        total_saving_pct=outcome.total_saving_pct,
        total_saving_ci95=outcome.total_saving_ci95,
        think_saving_pct=outcome.think_saving_pct,
        truncated_share=float(probed.truncated.mean()),
        categories=_categories(probed.take(first), lost[:n] > 0),
        drift=_drift(terms, scorer, questions.take(first), rng),
        loss=None if loss.name == "lost" else loss.name,
        gained=gained,
        traces=None if traces == 1 else traces,
        limits=limits or None,
        on_stop=None if outcome.answer_saving_pct is None else "answer",
        answer_saving_pct=outcome.answer_saving_pct,
    )


def under_reference(reference: Reference, questions: Table) -> Table:
    """The questions under the certificate's full reference; ProbeError if they lack its answers.

    Do this before selecting the policy's own probes: under ``last-checkpoint`` full thinking
    answers at the table's last one, where the policy need not probe.
    """
    if questions.reference == reference:
        return questions
    if reference == "last-checkpoint" and not questions.is_grid:
        questions = grid_view(questions)
    return questions.with_reference(reference)


def costing(terms: PolicyTerms) -> Costing:
    """Serving regime and prices of the saving that a policy expects."""
    expected = terms.expected
    if expected is None:
        return Costing(terms.serving, PAPER_WEIGHTS)
    return Costing(terms.serving, expected.weights)


def _categories(table: GradedTable, lost: BoolArray) -> tuple[CategoryRisk, ...]:
    if all(category is None for category in table.categories):
        return ()
    tally: dict[str | None, list[int]] = {}
    for category, is_lost in zip(table.categories, lost.tolist(), strict=True):
        sums = tally.setdefault(category, [0, 0])
        sums[0] += 1
        sums[1] += is_lost
    level = 1 - 0.05 / len(tally)
    return tuple(
        CategoryRisk(name, n, losses, exact_interval(losses, n, level))
        for name, (n, losses) in sorted(tally.items(), key=lambda row: (row[0] is None, row[0]))
    )


def _drift(
    terms: PolicyTerms, scorer: Scorer, table: ProbeTable, rng: np.random.Generator
) -> tuple[Drift, ...]:
    stored = terms.calibration_features
    # A fixed budget probes only where it stops; calibration questions were probed everywhere.
    if not stored or terms.family == FIXED_BUDGET:
        return ()
    before = np.array(stored, dtype=np.float64)
    found = feature_drift(before, drift_features(scorer, table), drift_names(scorer), rng=rng)
    if table.entropy_source == terms.entropy_source or terms.reads_logprobs:
        return found
    # Under another entropy source, signals that the policy does not read differ without drift.
    return tuple(row for row in found if row.feature not in LOGPROB_FEATURES)
