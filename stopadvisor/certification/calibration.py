"""Test a finished choice on calibration questions, and return the certified rule or a refusal.

The test shares no question with `choose`, so the certificate holds for the exported rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.assessment.choice import Choice, Settings
from stopadvisor.assessment.limits import allowed, counted_rows, most_of
from stopadvisor.assessment.rated import SIMPLER_WITHIN, counted_labels, rank_of
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.certification.labelling import may_be_lost, tested_deltas
from stopadvisor.certification.looks import entering_rows, unseen_rows
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.probes.outcomes import CalibrationQuestions, GradedTable, require_calibration
from stopadvisor.rules.losses import LOST, Guarantee
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.adaptive_labels import AskingPlan
from stopadvisor.stats.bounds import (
    Certified,
    NotCertified,
    StopCurve,
    last_passed,
    max_losses,
    upper_limit,
)
from stopadvisor.stats.trinomial import drop_limit, risk_of_pairs

__all__ = [
    "Calibration", "Counts", "ExportedRule", "calibrate", "cannot_exclude", "certify_counts",
    "counts_of", "labels_to_name", "recalibrate", "without_figures",
]  # fmt: skip

_FAILED = (
    "no threshold that saves anything passed the test. A failed look shows no figure, so another "
    "one may follow; with --looks 1 it shows all figures, and no other may follow"
)
_NO_SAVING = (
    "every threshold that could be certified costs more than full thinking: its probes eat the "
    "saving"
)


@dataclass(frozen=True)
class ExportedRule:
    """A scorer with its certified threshold."""

    scorer: Scorer
    threshold: float
    """Linear scale."""
    order: FloatArray  # (n_thresholds,)
    """Thresholds in the order in which they were tested, linear scale."""
    certificate: Certified
    fit_saving_pct: float | None
    """Net saving on fit questions (percent), out of fold; None for a rule fitted elsewhere."""
    fit_risk: float | None


@dataclass(frozen=True)
class Calibration:
    """A certified rule or a refusal, and the questions that were counted."""

    rule: ExportedRule | None
    refusal: NotCertified | None
    """Set exactly when there is no rule."""
    tested: tuple[tuple[str, Certified | NotCertified], ...]
    """Family and outcome of each sequence."""
    entered: CalibrationQuestions
    """Traces of calibration questions that the test used."""
    labelled: int | None = None
    """Number of its questions with gold; None if all have it."""
    traces: int = 1
    """Traces per question; with two, `entered` holds all first ones, then all second ones."""

    @property
    def first(self) -> CalibrationQuestions:
        """First trace of each counted question."""
        if self.traces == 1:
            return self.entered
        return self.entered.take(np.arange(self.entered.n_questions // self.traces))

    @property
    def truncated_share(self) -> float:
        """Share of the traces in `entered` that were cut off."""
        return float(self.entered.truncated.mean())


def calibrate(
    choice: Choice, calibration_table: CalibrationQuestions, plan: AskingPlan | None = None
) -> Calibration:
    """Test the chosen sequences on calibration questions and pick the rule to export.

    If few questions have a label, `plan` says which labels count at each threshold.

    Notes
    -----
    The advised sequence is tested at all of delta, a second one at the part that the exact test of
    the first leaves: by the union bound, any false certificate has probability at most delta.  Of
    the certified rules that save on fit questions the cheapest is exported, unless a simpler one is
    within the margin that the advice uses.
    """
    require_calibration(calibration_table)
    rows = unseen_rows(choice, calibration_table)
    table = _entering(calibration_table, rows.ravel())
    traces, counted = rows.shape
    tested: list[tuple[str, Certified | NotCertified]] = []
    certified: list[tuple[ThresholdSequence, Certified]] = []
    needs: list[NotCertified] = []
    deltas = choice.deltas(counted, traces) if plan is None else tested_deltas(choice, plan)
    for sequence, delta in zip(choice.sequences, deltas, strict=True):
        if tested and (delta == 0 or max_losses(counted, choice.settings.alpha, delta) < 0):
            continue  # too little delta is left for a second test
        view = sequence.scorer.view(table)
        curve, saves = sequence.scorer.curve(view, sequence.thresholds), sequence.saves
        result, need = _certify_rule(
            curve, view, saves, traces, choice.settings, delta, sequence, plan
        )
        tested.append((sequence.scorer.family, result))
        if need is not None:
            needs.append(need)
        if isinstance(result, Certified) and saves[result.index]:
            certified.append((sequence, result))
    found = Calibration(None, None, tuple(tested), table, traces=traces)
    if not certified:
        return replace(found, refusal=_refusal(choice, tested, needs))
    sequence, certificate = _pick(choice, certified)
    rule = ExportedRule(
        sequence.scorer,
        float(sequence.thresholds[certificate.index]),
        sequence.thresholds,
        certificate,
        float(sequence.savings[certificate.index]),
        float(sequence.losses[certificate.index]) / choice.n_fit,
    )
    return replace(found, rule=rule)


def recalibrate(
    scorer: Scorer, order: FloatArray, calibration_table: CalibrationQuestions, settings: Settings
) -> Calibration:
    """Calibrate a rule that was fitted elsewhere, at all of delta.

    `scorer` is the source policy's, over this table's columns, and `order` its thresholds in
    testing order.  Nothing is fitted here, so every question outside the test part is used.

    Notes
    -----
    The calibration questions also decide whether the rule saves anything and whether alpha is below
    the full-thinking accuracy.  That can only withhold a certified rule, so it adds no error.

    Paper, Appendix "Transfer Protocols" (target-calibrated).
    """
    require_calibration(calibration_table)
    rows = entering_rows(calibration_table, settings)
    table = _entering(calibration_table, rows.ravel())
    view = scorer.view(table)
    curve = scorer.curve(view, order)
    costs = scorer.costs(view, settings.costing)
    saves = curve.totals(costs)[0] < settings.costing.full(table).sum()
    result, _ = _certify_rule(curve, view, saves, len(rows), settings, settings.delta)
    tested = ((scorer.family, result),)
    refusal = result if isinstance(result, NotCertified) else None
    accuracy = float(table.full_correct.mean())
    if settings.limits_accuracy and settings.alpha >= accuracy:
        refusal = NotCertified(
            f"alpha must be below the full-thinking accuracy ({accuracy:.3f} on calibration "
            f"questions), got {settings.alpha:g}: always being wrong would meet it",
            None,
            None,
        )
    elif isinstance(result, Certified) and not saves[result.index]:
        refusal = NotCertified(_NO_SAVING, None, None)
    rule = None
    if refusal is None:
        assert isinstance(result, Certified)  # anything else is a refusal
        rule = ExportedRule(scorer, float(order[result.index]), order, result, None, None)
    return Calibration(rule, refusal, tested, table, traces=len(rows))


def without_figures(
    calibration: Calibration, settings: Settings, choice: Choice | None = None
) -> Calibration:
    """Remove every figure of its look from a failed calibration.

    Later looks may depend on the failure, but on nothing else that the look showed.
    """
    refusal = NotCertified(_FAILED, *labels_to_name(settings, choice))
    tested = tuple(
        (family, NotCertified("it failed", None, None)) for family, _ in calibration.tested
    )
    return replace(calibration, refusal=refusal, tested=tested)


def labels_to_name(settings: Settings, choice: Choice | None) -> tuple[int | None, float | None]:
    """Labels needed, and the risk they assume: that on fit questions, or 0 without a choice.

    None if no rule saves anything: no number of labels would help.
    """
    if choice and choice.saves_nothing:
        return None, None
    expected = 0.0 if choice is None else choice.risk_to_expect
    # A drop needs more labels the more answers turn right, too: its mean alone says too little.
    shares = () if choice is None or settings.is_plain else choice.shares_to_expect
    return counted_labels(settings, settings.delta, shares or expected), expected


def _entering(table: CalibrationQuestions, rows: IntArray) -> CalibrationQuestions:
    """Select rows, without a copy if they are the whole table."""
    return table if np.array_equal(rows, np.arange(table.n_questions)) else table.take(rows)


def _first_risk(
    curve: StopCurve, table: GradedTable, saves: BoolArray, settings: Settings
) -> float | None:
    """Mean loss at the most careful threshold that saves; only for advice on labels."""
    useful = np.flatnonzero(saves)
    if not useful.size or not table.n_questions:
        return None
    losses = curve.totals(settings.counted.of(table))[0, useful[0]]
    return min(max(float(losses), 0.0) / table.n_questions, 0.999)


def _certify_rule(
    curve: StopCurve,
    view: GradedTable,
    saves: BoolArray,
    traces: int,
    settings: Settings,
    delta: float,
    sequence: ThresholdSequence | None = None,
    plan: AskingPlan | None = None,
) -> tuple[Certified | NotCertified, NotCertified | None]:
    """Test a rule; if no saving is certified, also return the labels that it would take.

    Labels are counted at the larger of the fit and calibration risks; with several limits, at each
    loss's share of fit questions.  That is advice, no claim.  None if no threshold saves anything,
    so that more labels would not help.
    """
    few = False
    if plan is not None and plan.is_sample:
        differs, lost = curve.each(may_be_lost(view)), curve.each(LOST.of(view) > 0)
        found = plan.certify(differs, lost, settings.alpha, delta)
    else:
        counts = counts_of(curve, view, settings, traces)
        found = certify_counts(counts, delta)
        few = len(counts) == 1 and counts[0].is_plain and counts[0].most(delta)[0] < 0
    if isinstance(found, Certified) and saves[found.index]:
        return found, None
    known = None if sequence is None else sequence.useful_risk
    risks = [k for k in (known, _first_risk(curve, view, saves, settings)) if k is not None]
    if not risks:
        return found, None
    # So few questions hardly measure the risk: name the fewest that could certify anything.
    expected = 0.0 if few else min(max(risks), 0.999)
    shares = None if sequence is None or settings.is_plain else sequence.useful_shares
    labels = counted_labels(settings, delta, shares or expected)
    need = NotCertified(_NO_SAVING, labels, expected)
    if isinstance(found, Certified):
        return found, need
    refused = replace(need, reason=found.reason)
    return refused, refused


def _refusal(
    choice: Choice, tested: list[tuple[str, Certified | NotCertified]], needs: list[NotCertified]
) -> NotCertified:
    """Combine the refusals; `needs` says how many labels a certified saving would take."""
    if not any(sequence.saves.any() for sequence in choice.sequences):
        return NotCertified(_NO_SAVING, None, None)
    refused = [r for _, r in tested if isinstance(r, NotCertified)]
    known = [need for need in needs if need.labels_needed is not None]
    least = min(known, key=lambda need: need.labels_needed or 0, default=None)
    reason = refused[0].reason if len(refused) == len(tested) else _NO_SAVING
    if least is None:
        return NotCertified(reason, None, None)
    return replace(least, reason=reason)


def _pick(
    choice: Choice, certified: list[tuple[ThresholdSequence, Certified]]
) -> tuple[ThresholdSequence, Certified]:
    """Take the rule cheapest on fit questions, or a simpler one within the margin of the advice."""

    def saving(pair: tuple[ThresholdSequence, Certified]) -> float:
        return float(pair[0].savings[pair[1].index])

    best = max(certified, key=saving)
    lead = choice.margin if rank_of(best[0].scorer.family) == 2 else SIMPLER_WITHIN
    near = [pair for pair in certified if saving(pair) >= saving(best) - lead]
    return min(near, key=lambda pair: rank_of(pair[0].scorer.family))


# --- A drop, several losses, categories, two traces -----------------------------------------------


@dataclass(frozen=True)
class Counts:
    """Counts of one guarantee on calibration questions, along the thresholds."""

    guarantee: Guarantee
    n: int
    lost: IntArray  # (n_thresholds,)
    """Questions that count 1; with two traces, those where both count 1."""
    gained: IntArray  # (n_thresholds,)
    """Questions that count -1; with two traces, those where neither counts 1."""
    traces: int = 1
    """Traces counted per question; 2 only for losses of 0 or 1."""

    @property
    def is_plain(self) -> bool:
        """Whether the binomial test applies: one trace per question, no gains."""
        return self.guarantee.counted.is_binary and self.traces == 1

    def most(self, delta: float) -> IntArray:
        """Most lost that pass, by the number gained; one entry if gains do not count."""
        return most_of(self.guarantee, self.n, delta, self.traces)

    def passed(self, delta: float) -> BoolArray:
        """Whether this limit alone passes, (n_thresholds,)."""
        return self.lost <= allowed(self.most(delta), self.gained)

    def at(self, index: int, delta: float) -> Certified:
        """Certificate of this limit at one threshold."""
        lost, gained = int(self.lost[index]), int(self.gained[index])
        n, alpha = self.n, self.guarantee.alpha
        if self.traces == 2:
            upper = min(risk_of_pairs(lost, gained, n, delta), alpha)
            one = n - lost - gained
            found = Certified(index, alpha, delta, n, 2 * lost + one, upper)
            return replace(found, both=lost, one=one, none=gained)
        if self.guarantee.counted.is_binary:
            return Certified(index, alpha, delta, n, lost, upper_limit(lost, n, delta))
        # Bisection may end slightly above alpha, which the test has rejected.
        upper = max(min(drop_limit(lost, gained, n, delta), alpha), 0.0)
        return Certified(index, alpha, delta, n, lost, upper, gained)


def counts_of(
    curve: StopCurve, view: GradedTable, settings: Settings, traces: int = 1
) -> list[Counts]:
    """Count every guarantee along the thresholds.

    With two traces per question, the view holds all first ones, then all second ones in the same
    order; a drop counts only first traces.
    """
    counts, n = [], view.n_questions // traces
    for guarantee in settings.guarantees:
        rows, values = counted_rows(view, guarantee), guarantee.counted.of(view)
        rows = rows[rows < n]
        if traces == 2 and guarantee.counted.is_binary:
            is_lost = curve.each(values > 0).reshape(2, n, -1)[:, rows]
            both, none = is_lost.all(axis=0), ~is_lost.any(axis=0)
            counts.append(Counts(guarantee, rows.size, both.sum(axis=0), none.sum(axis=0), traces))
            continue
        values = values * np.isin(np.arange(view.n_questions), rows)[:, None]
        lost, gained = (
            curve.totals(np.maximum(part, 0))[0].round().astype(np.int64)
            for part in (values, -values)
        )
        counts.append(Counts(guarantee, rows.size, lost, gained))
    return counts


def certify_counts(counts: list[Counts], delta: float) -> Certified | NotCertified:
    """Find the last threshold before the first at which some limit fails.

    Each limit is tested at all of delta (intersection-union test): if one is broken at a threshold,
    its own test passes there with probability at most delta.
    """
    passed = np.array([each.passed(delta) for each in counts])  # (n_losses, n_thresholds)
    last = last_passed(np.logical_and.reduce(passed))
    if last < 0:
        return NotCertified(_why(counts, passed[:, 0], delta), None, None)
    certified = tuple(each.at(last, delta) for each in counts)
    return replace(certified[0], guarantees=certified if len(certified) > 1 else ())


def _why(counts: list[Counts], passed: BoolArray, delta: float) -> str:
    """Say why the most careful threshold fails; `passed`, (n_losses,), says which limits pass."""
    failed = counts[int(np.argmin(passed))]
    guarantee, n, lost = failed.guarantee, failed.n, int(failed.lost[0])
    if len(counts) == 1 and failed.is_plain:
        most = int(failed.most(delta)[0])
        if most < 0:
            return cannot_exclude(n, guarantee.alpha, delta)
        return (
            f"the most careful threshold already loses {lost} of {n} calibration questions; at "
            f"most {most} are allowed"
        )
    what = "differ" if guarantee.loss == "differs" else "lost"
    gained = "" if guarantee.counted.is_binary else f" and {int(failed.gained[0])} gained"
    if failed.traces == 2:
        gained = f" with both replies and {n - int((failed.lost + failed.gained)[0])} with one"
    return (
        f"at the most careful threshold {lost} of {n} calibration questions {what}{gained}: that "
        f"does not exclude more than {guarantee} at confidence {1 - delta:g}"
    )


def cannot_exclude(n: int, alpha: float, delta: float) -> str:
    """Say why so few questions can show nothing, whatever the answers."""
    return (
        f"{n} calibration questions cannot exclude a risk above {alpha:g} at confidence "
        f"{1 - delta:g} by the exact test, not even with no loss"
    )
