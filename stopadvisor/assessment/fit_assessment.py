"""Assess a source: profile, evidence, serving costs, recommendation and remarks in one result.

Only outcomes of fit questions are read.  `paper.analysis` does the same on all questions, under the
paper's protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stopadvisor.assessment.assessed import (
    AssessedRun,
    AssessedSettings,
    AssessedWorkload,
    AssessmentResult,
    LoadSaving,
    PredictedRegime,
    Repeats,
    StackCosts,
)
from stopadvisor.assessment.candidates import AlwaysRung, always_rungs
from stopadvisor.assessment.choice import Choice, FitComparison, Settings, choose
from stopadvisor.assessment.promises import (
    LabelNeed,
    LabelRow,
    Promise,
    label_needs,
    promises,
    proposed,
)
from stopadvisor.assessment.rated import RulesOnFit
from stopadvisor.assessment.recommendation import Recommendation, recommend
from stopadvisor.assessment.sequences import FitData
from stopadvisor.assessment.settings import alpha_remark
from stopadvisor.ground.constants import MOST_TRUNCATED, SMALL_WORKLOAD, TRUNCATED_WARN
from stopadvisor.ground.errors import CalibrationError, NothingToChoose
from stopadvisor.policy.shown import promise_of
from stopadvisor.probes.grouping import calibration_rows
from stopadvisor.probes.outcomes import FitQuestions, GradedTable, require_fit
from stopadvisor.probes.table import GradedBy, ProbeTable, grid_positions
from stopadvisor.probes.trajectories import Profile, profile, trajectory
from stopadvisor.rules.costs import CACHE_BLOCK, LADDER, Weights
from stopadvisor.rules.losses import DIFFERS, LOST
from stopadvisor.rules.outcomes import StackCost, blind_stopping
from stopadvisor.rules.roofline import Prices
from stopadvisor.rules.scorer import grid_view
from stopadvisor.runs.imported import IMPORTED
from stopadvisor.runs.sources import Source
from stopadvisor.stats.intervals import exact_interval
from stopadvisor.workload.questions import PARTS, SMALLEST_PARTS, PartCounts

__all__ = [
    "REPLIES_CUT", "FitAssessment", "advice_profile", "assess", "check_labels", "cut_replies",
    "meaning_of_cut", "remark_on_reading", "remarks_on_promise", "remarks_on_sample",
    "words_on_cut",
]  # fmt: skip

_MISREAD_WARN = 0.2
"""Share of full replies that are wrong after a right answer, above which they may be misread."""
_CUT_WARN = 0.01


@dataclass(frozen=True)
class FitAssessment:
    """An assessment on fit questions; `result` is the document that is shown and saved."""

    source: Source
    profile: Profile
    recommendation: Recommendation
    choice: Choice
    repeats: Repeats | None = None
    """None if no question was sampled twice."""
    promises: tuple[Promise, ...] | None = None
    """Only if no alpha was given: what several would buy; the settings have the proposed one."""
    rungs: tuple[AlwaysRung, ...] = ()
    """Each rung of a ladder, always served; empty for probes of one trace."""

    @property
    def label_savings(self) -> tuple[LabelRow, ...]:
        """Expected saving by the number of labels; empty if no rule is advised."""
        counts = self.source.counts()
        share = counts["calibration"] / sum(counts.values())
        return tuple(
            LabelRow(n, round(n / share), saving_pct, is_here=n == self.choice.n_calibration)
            for n, saving_pct in self.choice.label_savings.items()
        )

    @cached_property
    def label_needs(self) -> tuple[LabelNeed, ...]:
        """Gold labels that a promise about lost answers would take; simulated on first access."""
        return label_needs(self.choice)

    def result(self, loads: Sequence[Weights] = ()) -> AssessedRun:
        """Content of ``assessment.json``: the same fit questions give the same bytes.

        `loads` are prices at other loads, for which the advised rule is priced too.  The caller
        adds the headline and remarks on the sample.
        """
        choice, settings, source = self.choice, self.choice.settings, self.source
        fit, counts = source.part("fit"), source.counts()
        graded_by = choice.fit.table.graded_by
        remarks = remarks_on_promise(source, settings.alpha, choice.full_accuracy, graded_by)
        remarks += remark_on_reading(choice.fit.table, source)
        if choice.n_fit < counts["fit"]:
            remarks.append(f"the choice was made on {choice.n_fit} of the fit questions")
        if self.recommendation.family == "cap" and source.ladder is not None:
            remarks += [
                f"{rung.name} ends its replies under its own policy, and none is abandoned at the "
                "cap: a longer one is paid for in full, then climbed past"
                for rung in source.ladder.rungs
                if rung.policy_digest is not None
            ]
        return AssessedRun(
            alpha=settings.alpha if self.promises is None else None,
            delta=settings.delta,
            run=str(source.folder),
            workload=AssessedWorkload.of(source, sum(counts.values()), fit, graded_by),
            split=PartCounts(**counts),
            profile=self.profile.shares,
            regime=PredictedRegime(self.profile.predicted, self.profile.stability, "fit"),
            recommendation=self.recommendation,
            remarks=tuple(remarks),
            matched_risk=(choice.comparison,),
            serving=_stack_costs(choice, loads),
            fit_full_accuracy=choice.full_accuracy,
            fit_saving_lower_pct=choice.saving_lower,
            label_savings=self.label_savings,
            label_needs=self.label_needs or None,
            repeats=self.repeats,
            rungs=self.rungs or None,
            given_up_share=choice.given_up_share,
            request_seconds=choice.request_seconds,
            chance_to_certify=choice.probability,
            settings=AssessedSettings(
                settings.serving,
                settings.weights,
                CACHE_BLOCK,
                settings.families,
                None
                if settings.loss == LOST.name and settings.serving != LADDER
                else settings.loss,
                settings.also or None,
                "reply" if settings.on_give_up == "reply" else None,
            ),
            asked=None if settings.is_lost else promise_of(settings.guarantees),
            promises=self.promises,
            counted=choice.n_calibration if choice.n_calibration < counts["calibration"] else None,
        )


def assess(
    source: Source, settings: Settings, *, propose: bool = False, traces: int | None = None
) -> FitAssessment:
    """Assess under the deploy protocol, from fit questions alone.

    If there is no rule to choose, the advice is full thinking.

    Parameters
    ----------
    propose : bool
        Compare what several alphas would buy, and assess at the proposed one instead of the
        settings' own.
    traces : int, optional
        Traces of each calibration question that will count; by default two if all have a second.

    Raises CalibrationError: a part has too few questions, or the families read signals that these
    probes lack.
    """
    fit, sealed, counts = source.part("fit"), source.part("calibration"), source.counts()
    counted = calibration_rows(sealed)
    for name, found in (("fit", counts["fit"]), ("calibration", counted.size)):
        if found < SMALLEST_PARTS[name]:
            shares = "/".join(f"{100 * f:g}" for f in source.fractions)
            raise CalibrationError(
                f"the {name} part needs at least {SMALLEST_PARTS[name]} questions, got {found} of "
                f"{sum(counts.values())} (split {shares}): label more questions"
            )
    rng = np.random.default_rng(source.seed)
    shape = advice_profile(fit, rng=rng)
    categories = Counter(sealed.take(counted).categories)
    if traces is None:
        traces = 1 + bool((sealed.samples == 1).sum() >= counted.size)
    settings = replace(settings, traces=traces)
    offered: tuple[Promise, ...] | None = () if propose else None
    try:
        check_labels(fit)
        # No rule may probe where another part's question (its first trace) was not probed.
        others = (source.parts != PARTS.index("fit")) & (source.table.samples == 0)
        rules = RulesOnFit.measure(fit, settings, source.table.take(others).observations)
        if propose:
            offered = promises(rules, counted.size, settings, categories=categories)
            settings = replace(settings, alpha=proposed(offered).alpha)
        choice = choose(rules, counted.size, settings, categories=categories)
    except NothingToChoose as error:  # the advice is full thinking
        nothing = FitComparison.empty(settings.alpha)
        fitted = FitData.build(fit, settings)
        choice = Choice(settings, fitted, counted.size, nothing, nothing=str(error))
    blind, sequence = None, choice.advised
    if sequence is not None and choice.advised_index >= 0 and shape.predicted == "full-budget":
        stops = sequence.curve.stops(choice.advised_index)
        blind = blind_stopping(sequence.view, stops, loss=choice.fit.loss, rng=rng)
    return FitAssessment(
        source,
        shape,
        recommend(shape, choice, blind),
        choice,
        repeats=_repeats(fit),
        promises=offered,
        rungs=always_rungs(choice.fit),
    )


def advice_profile(fit: FitQuestions, *, rng: np.random.Generator) -> Profile:
    """Profile of fit questions, one trace per group.

    Follows the positions that all questions share, or else each question's own.
    """
    require_fit(fit)
    table = fit.take(calibration_rows(fit))
    if grid_positions(table):
        table = grid_view(table)
    return profile(trajectory(table), rng=rng)


def check_labels(table: GradedTable) -> None:
    """Raise NothingToChoose if all answers are right, or all wrong: nothing can be learned."""
    correct = table.stop_correct
    if correct.all() or not correct.any():
        kind = "forced" if table.on_stop == "probe" else "visible"
        if table.graded_by == "agreement":
            found = "all" if correct.all() else "none"
            raise NothingToChoose(
                f"{found} of the {kind} answers {'are' if correct.all() else 'is'} what full "
                "thinking answers: both kinds are required to learn when to stop; check the cue "
                "with `stopadvisor preflight`"
            )
        found = "right" if correct.all() else "wrong"
        raise NothingToChoose(
            f"all {kind} answers are {found}: both right and wrong ones are required to learn "
            "when to stop; check gold answers and the cue with `stopadvisor preflight`"
        )


def _repeats(fit: FitQuestions) -> Repeats | None:
    """Compare the first two traces of each fit question; None if none has two."""
    second = {key: row for row, key in enumerate(fit.keys) if fit.samples[row] == 1}
    pairs = [
        (row, second[key])
        for row, key in enumerate(fit.keys)
        if fit.samples[row] == 0 and key in second
    ]
    # Copies of a question have the same key and count once.
    pairs = list({fit.keys[row]: (row, other) for row, other in pairs}.values())
    if not pairs:
        return None
    rows = np.array(pairs)  # (n_pairs, 2)
    answers = np.where(fit.truncated, -1, fit.full_codes)[rows]
    differing = int(((answers[:, 0] != answers[:, 1]) | (answers[:, 0] < 0)).sum())
    n = len(pairs)
    return Repeats(n, differing, differing / n, exact_interval(differing, n))


# --- Costs of serving -----------------------------------------------------------------------------


def _stack_costs(choice: Choice, loads: Sequence[Weights]) -> StackCosts:
    """Costs of the advised rule on every stack, and its saving at other loads."""
    point, rows, regime = choice.advised_point, choice.serving(), choice.settings.serving
    at = None
    if point is not None and point.threshold is not None:
        at = (
            f"{point.family} at threshold {point.threshold:.4g}, {point.where}; fit questions, out "
            "of fold"
        )
    by_load = []
    for weights in loads:
        row = choice.serving(weights).get(regime)
        if row is not None and row.saving_pct is not None:
            load = weights.in_flight or 1, Prices.of(weights).decoded, row.saving_pct
            by_load.append(LoadSaving(*load))
    return StackCosts(
        operating_point=at,
        prices=Prices.of(choice.settings.weights),
        by_load=tuple(by_load) or None,
        vllm=rows.get("vllm", _NO_COST) if regime == "vllm" else None,
        kv_fork=rows.get("kv-fork", _NO_COST),
        prefix_cache=rows.get("prefix-cache", _NO_COST),
        black_box=rows.get("black-box", _NO_COST),
        ladder=rows.get(LADDER),
    )


_NO_COST = StackCost(None, None, None, None, None, None, None, None)
"""The cost if no rule is advised."""


# --- Remarks --------------------------------------------------------------------------------------


def remarks_on_sample(source: Source, result: AssessmentResult) -> list[str]:
    """Remarks on the questions and traces."""
    found = [] if source.torn is None else [source.torn]
    cut, basis = result.workload.truncated_share, result.regime.basis
    if cut > TRUNCATED_WARN:
        differs = isinstance(result, AssessedRun) and (
            result.settings.loss == DIFFERS.name or result.workload.graded_by == "agreement"
        )
        found.append(
            f"{cut:.1%} of {words_on_cut(source.table)[0]} ({basis} questions); "
            f"{meaning_of_cut(differs)}, and calibrate refuses more than 10%"
        )
    n = sum(source.counts().values())
    if isinstance(result, AssessedRun) and n < SMALL_WORKLOAD and source.fractions[2]:
        how = "with another --out, " if source.is_archive else "in a run of its own, "
        found.append(
            f"{n} questions are few: {how}--split 40/60/0 would give calibration the test "
            "questions (expected figures then come from fit)"
        )
    return found


def words_on_cut(table: ProbeTable) -> tuple[str, str]:
    """Return what was cut off, by what, and the setting to raise."""
    if table.rungs is None:
        return "the traces were cut off by max-think", "--max-think"
    return "the reference's replies were cut", "its max_tokens, or its server's own limit"


def meaning_of_cut(differs: bool) -> str:
    """Say what a trace that was cut off means for a promise about differing or lost replies."""
    if differs:
        return "a stop there counts as one that differs"
    return "a question cut off cannot be lost"


REPLIES_CUT = (
    "the full replies reach the cap on visible answers: without their answers they count as wrong, "
    "and lost ones are not seen"
)


def cut_replies(table: ProbeTable, source: Source) -> float:
    """Share of full replies, graded by gold, that reach `--answer-cap` after thinking that ended.

    Production does not cut them there.  Imported replies were not cut by us.
    """
    cap = (source.manifest or {}).get("plan", {}).get("answer_cap")
    is_ours = cap and source.engine != IMPORTED and table.rungs is None
    if not is_ours or table.graded_by != "gold" or table.natural_tokens is None:
        return 0.0
    return float(((table.natural_tokens > cap) & ~table.truncated).mean())


def remark_on_reading(table: GradedTable, source: Source) -> list[str]:
    """Remark on full replies that are wrong suspiciously often: there nothing can be lost."""
    found, cut = [], cut_replies(table, source)
    if cut > _CUT_WARN:
        found.append(
            f"{cut:.0%} of {REPLIES_CUT}: calibrate refuses more than {MOST_TRUNCATED:.0%}; probe "
            "with a larger --answer-cap"
        )
    live = table.live if table.rungs is None else table.live & ~table.rungs.is_reference
    last = live.shape[1] - 1 - live[:, ::-1].argmax(axis=1)
    right = np.take_along_axis(live & table.stop_correct, last[:, None], axis=1)[:, 0]
    share = float((right & ~table.full_correct & ~table.truncated).mean())
    if share <= _MISREAD_WARN:
        return found
    return [
        *found,
        f"on {share:.0%} of the questions the full reply is wrong although the last answer before "
        "it is right: if full replies are misread, lost answers are not seen",
    ]


def remarks_on_promise(
    source: Source, alpha: float, accuracy: float, graded_by: GradedBy = "gold"
) -> list[str]:
    """Remarks on the promise and its basis."""
    found = []
    if graded_by == "agreement":
        found.append(
            "some fit questions have no gold: a reply counts as right if it equals full "
            "thinking's, in the profile, in every risk and in what rules learn"
        )
    elif remark := alpha_remark(alpha, accuracy):
        found.append(remark)
    if source.is_archive:
        found.append(
            "the archive holds no natural answers: the full reference is last-checkpoint, and a "
            "policy from it is bound to no model"
        )
    return found
