"""The first sentence of a result: what stopping saves, what that costs, and on which stack.

It uses the strongest figures available: of test questions, else of calibration questions, else of
fit questions out of fold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.assessment.choice import FitRule
from stopadvisor.assessment.recommendation import fit_questions_to_tell, overthinks, two_digits
from stopadvisor.certification.check_policy import CheckedPolicy
from stopadvisor.paper.analysis import Assessed, AssessedByPaper
from stopadvisor.policy.shown import Expected, promised
from stopadvisor.report.words import (
    COMMON_STACK,
    advised_rule,
    bracketed,
    cost_noun,
    kind_rules,
    on_stack,
    percent,
    plural,
    points,
    share,
    whole_percent,
)
from stopadvisor.rules.costs import LADDER, SECONDS
from stopadvisor.serving.answer_summary import AnswerSummary, TimedComparison

__all__ = [
    "Effect", "accuracy_words", "answers_label", "assessed_effect", "assessed_headline",
    "calibrated_headline", "capacity_facts", "change_words", "expected_effect",
    "gain_against_advice", "other_stacks", "questions_to_tell", "run_effect", "run_headline",
    "saving_words", "sentence", "verified_effect", "verified_headline",
]  # fmt: skip

_LARGE_GAIN = 5.0
"""Gain in accuracy, in points, that makes the headline even where stopping costs more."""
DECODED = "decoded tokens"
"""Unit of `run`, which counts neither prompts nor the tokens that a probe reads."""


@dataclass(frozen=True)
class Effect:
    """What one rule saves and costs, measured on one set of questions."""

    saving_pct: float
    """Net saving under `serving`; negative where stopping costs more."""
    serving: str
    risk: float | None
    """Mean of `loss`: share of the questions that are lost, whose reply differs, or the drop."""
    accuracy: float | None
    """With stopping; None without gold."""
    full_accuracy: float | None
    n: int
    """Number of questions."""
    whose: str
    """The questions in words, such as ``57 test questions``."""
    think_pct: float | None = None
    saving_range: tuple[float, float] | None = None
    """95 % interval."""
    risk_range: tuple[float, float] | None = None
    savings: Mapping[str, float | None] = field(default_factory=dict)
    """Net saving of the same rule by serving stack."""
    unit: str | None = None
    """Unit of the cost; None means the paper's tokens."""
    loss: str = "lost"
    """What `risk` counts: ``lost``, ``differs`` or ``drop``."""
    saving_lower: float | None = None
    """One-sided 95 % limit of the saving, where there is no range."""

    @property
    def is_timed(self) -> bool:
        """Whether costs are seconds that `profile-serving` measured."""
        return self.unit == SECONDS

    @property
    def may_save_nothing(self) -> bool:
        """Whether the interval of the saving includes 0."""
        low = self.saving_lower if self.saving_range is None else self.saving_range[0]
        return low is not None and low <= 0

    @property
    def change(self) -> float | None:
        """Change of accuracy, in points; None without gold."""
        if self.accuracy is None or self.full_accuracy is None:
            return None
        # From the rounded figures on screen, so that they add up.
        return round(round(100 * self.accuracy, 1) - round(100 * self.full_accuracy, 1), 1)

    @property
    def gained(self) -> float | None:
        """Share of the questions that stopping turns from wrong to right."""
        if self.accuracy is None or self.full_accuracy is None or self.risk is None:
            return None
        if self.loss != "lost":
            return None
        return max(0.0, self.accuracy - self.full_accuracy + self.risk)

    @property
    def overthinks(self) -> bool:
        """Whether stopping makes more answers right than chance explains."""
        if self.gained is None or self.risk is None:
            return False
        return overthinks(self.gained * self.n, self.risk * self.n)

    @property
    def from_to(self) -> str:
        """Accuracy of full thinking and with stopping, such as ``84.3 to 95.7%``."""
        return f"{share(self.full_accuracy).removesuffix('%')} to {share(self.accuracy)}"


# --- The sentence ---------------------------------------------------------------------------------


def sentence(effect: Effect) -> str:
    """Say in one sentence what stopping saves and costs."""
    saving, on = effect.saving_pct, on_stack(effect.serving)
    noun = cost_noun(effect.unit)
    saves = f"{whole_percent(saving)} of {noun}{on}"
    costs = f"{whole_percent(-saving)} more than full thinking{on}"
    if effect.is_timed:
        costs = f"{whole_percent(-saving)} more of {noun} than full thinking{on}"
    does = f"saves {saves}" if saving >= 0 else f"costs {costs}"
    if effect.unit == DECODED:
        fewer = "fewer" if saving >= 0 else "more"
        does = f"decodes {whole_percent(abs(saving))} {fewer} tokens{on}"
    if effect.overthinks:
        raises = f"Stopping raises accuracy from {effect.from_to}: this model overthinks."
        return f"{raises} It {does}."
    price = _price(effect, " for" if saving >= 0 else ", and takes")
    unsure = " (may be nothing)" if saving >= 0 and effect.may_save_nothing else ""
    return f"{does[0].upper()}{does[1:]}{unsure}{price}."


def _price(effect: Effect, verb: str) -> str:
    """Say what the saving costs: accuracy, or without gold replies that differ."""
    change = effect.change
    if change is None:
        if effect.risk is None:
            return ""
        what = "questions lost"
        if effect.loss == "differs":
            what = "replies that differ from full thinking"
        return f"{verb} {share(effect.risk)} of {what}"
    if change < 0:
        return f"{verb} {points(-change)} of accuracy"
    if change == 0:
        return f"; accuracy stays at {share(effect.accuracy)}"
    remark = "" if effect.gained is None else ", which may be chance"
    return f"; accuracy rises from {effect.from_to}{remark}"


# --- Its parts, for facts and cards ---------------------------------------------------------------


def saving_words(effect: Effect) -> str:
    """Return the saving with its interval, and the share of the thinking it saves."""
    spread = f" {bracketed(effect.saving_range)}" if effect.saving_range else ""
    text = f"{percent(effect.saving_pct)}{spread} of {cost_noun(effect.unit)}"
    return text if effect.think_pct is None else f"{text}, {percent(effect.think_pct)} of thinking"


def accuracy_words(effect: Effect) -> str:
    """Return accuracy before and after, and the shares that turn wrong and right."""
    lost = "-" if effect.risk is None else share(effect.risk)
    spread = f" {bracketed(effect.risk_range, 100)}" if effect.risk_range else ""
    if effect.change is None:
        what = "turn wrong" if effect.loss == "lost" else "get a reply other than full thinking's"
        return f"{lost}{spread} of the questions {what}"
    text = f"{share(effect.full_accuracy)} -> {share(effect.accuracy)}, {change_words(effect)}"
    if effect.risk is None:
        return text
    if effect.loss == "differs":
        return f"{text}; {lost}{spread} get a reply other than full thinking's"
    if effect.gained is None:
        return text
    return f"{text}: {lost}{spread} turn wrong (lost), {share(effect.gained)} turn right"


def answers_label(effect: Effect) -> str:
    """Return the label of the fact whose value is `accuracy_words`."""
    if effect.change is not None:
        return "accuracy"
    return "differs" if effect.loss == "differs" else "loses"


def capacity_facts(effect: Effect) -> Iterator[tuple[str, str]]:
    """Yield a saving of capacity as a number of requests, if costs are time."""
    if effect.is_timed:
        served = 100 / (1 - effect.saving_pct / 100) - 100
        fewer = "more" if served >= 0 else "fewer"
        yield "capacity", f"the same hardware serves {whole_percent(abs(served))} {fewer} requests"


def other_stacks(effect: Effect) -> list[str]:
    """Return what the same rule saves on each other serving stack."""
    phrases = []
    for name, saving in effect.savings.items():
        if name != effect.serving and saving is not None:
            does = f"saves {percent(saving)}"
            if round(saving, 1) < 0:
                does = f"costs {percent(-saving)} more than full thinking"
            in_vllm = name == COMMON_STACK and effect.serving != "vllm"
            phrases.append(f"{does} under {name}{' (as in vLLM)' * in_vllm}")
    return phrases


def change_words(effect: Effect) -> str:
    """Return the change of accuracy with its sign."""
    return f"{effect.change:+.1f} points" if effect.change else "unchanged"


# --- From results ---------------------------------------------------------------------------------


def assessed_effect(run: AssessedRun) -> Effect | None:
    """Return the effect of the advised rule on fit questions; None if that is full thinking."""
    rule = advised_rule(run)
    if rule is None:
        return None
    costs = run.serving.by_stack
    return replace(
        _fit_effect(run, rule),
        think_pct=None if LADDER in costs else rule.fit_think_saving_pct,
        saving_lower=run.fit_saving_lower_pct,
        savings={name: cost.saving_pct for name, cost in costs.items()},
    )


def _fit_effect(run: AssessedRun, rule: FitRule) -> Effect:
    """Return the effect of a compared rule on fit questions, out of fold."""
    by_agreement = run.workload.graded_by == "agreement"
    return Effect(
        rule.fit_total_saving_pct or 0.0,
        run.recommendation.serving,
        rule.fit_risk,
        None if by_agreement else rule.fit_accuracy,
        None if by_agreement else run.fit_full_accuracy,
        run.split.fit,
        f"{run.split.fit} fit questions",
        unit=run.settings.weights.unit,
        loss=run.settings.loss or "lost",
    )


def expected_effect(expected: Expected, serving: str) -> Effect:
    """Return the effect of a policy on test questions, or without any on calibration questions."""
    by_agreement = expected.graded_by == "agreement"
    names = ("n", "total_saving_pct", "think_saving_pct", "risk", "accuracy", "full_accuracy")
    on_test, on_calibration = (
        {name: getattr(expected, f"{part}_{name}") for name in names}
        for part in ("test", "calibration")
    )
    is_tested = None not in on_test.values()
    figures = on_test if is_tested else on_calibration
    return Effect(
        figures["total_saving_pct"],
        serving,
        figures["risk"],
        None if by_agreement else figures["accuracy"],
        None if by_agreement else figures["full_accuracy"],
        figures["n"],
        f"{figures['n']} {'test' if is_tested else 'calibration'} questions",
        None if serving == LADDER else figures["think_saving_pct"],
        expected.test_total_saving_ci95 if is_tested else expected.calibration_total_saving_band95,
        expected.test_risk_ci95 if is_tested else None,
        expected.saving_by_serving or {},
        expected.weights.unit,
        expected.loss or "lost",
    )


def assessed_headline(result: Assessed) -> str:
    """Return the first sentence of an assessment."""
    advice = result.recommendation
    on = " on vLLM" if advice.serving == "vllm" else on_stack(advice.serving)
    keep = f"Don't stop early{on}: no saving shown."
    if advice.serving == LADDER:
        keep = "Don't climb, serve the reference: no saving shown."
    if isinstance(result, AssessedByPaper):
        rule = result.advised
        if rule is None:
            return keep
        return (
            f"By the paper's analysis: saves {whole_percent(rule.total_saving_pct)} of all "
            f"tokens and loses {share(rule.test_risk)} of the test questions."
        )
    effect = gain_against_advice(result)
    if effect is not None:
        return sentence(effect)
    effect = assessed_effect(result)
    if effect is not None:
        return sentence(effect)
    if questions_to_tell(result) is not None:
        does = "climbing" if advice.serving == LADDER else f"stopping early{on}"
        return f"Too few questions to tell whether {does} saves anything."
    return keep


def questions_to_tell(run: AssessedRun) -> int | None:
    """Return how many questions would show a saving if these are too few for that; else None."""
    cost, lower = run.serving.by_stack.get(run.recommendation.serving), run.fit_saving_lower_pct
    if run.recommendation.policy != "full-budget" or cost is None or cost.saving_pct is None:
        return None
    n = None if lower is None else fit_questions_to_tell(cost.saving_pct, lower, run.split.fit)
    return None if n is None else two_digits(n * run.workload.n_questions // run.split.fit)


def gain_against_advice(run: AssessedRun) -> Effect | None:
    """Return the effect of a rule that gains much accuracy but was not advised because it costs.

    The compared rule that gains most on fit questions, if the gain is more than chance explains, at
    least `_LARGE_GAIN` points, and no smaller than the extra cost in percent; else None.
    """
    if run.recommendation.policy != "full-budget":
        return None
    worth = [
        effect
        for effect in (_fit_effect(run, rule) for rule in kind_rules(run.matched_risk[0]))
        if effect.overthinks
        and effect.change is not None
        and effect.change >= max(_LARGE_GAIN, -effect.saving_pct)
    ]
    return max(worth, key=lambda effect: effect.change or 0.0, default=None)


def calibrated_headline(expected: Expected | None, serving: str) -> str:
    """Return the first sentence of a calibration or policy; `expected` is None if not certified."""
    if expected is None:
        return "Not certified. Keep full thinking."
    return f"Certified. {sentence(expected_effect(expected, serving))}"


def verified_effect(checked: CheckedPolicy) -> Effect:
    """Return the effect of a policy on fresh questions."""
    by_agreement = checked.graded_by == "agreement"
    return Effect(
        checked.total_saving_pct,
        checked.serving,
        checked.risk,
        None if by_agreement else checked.accuracy,
        None if by_agreement else checked.full_accuracy,
        checked.n,
        "fresh questions",
        None if checked.serving == LADDER else checked.think_saving_pct,
        checked.total_saving_ci95,
        unit=checked.unit,
        loss=checked.loss or "lost",
    )


def verified_headline(checked: CheckedPolicy) -> str:
    """Return the first sentence of a verification."""
    effect = verified_effect(checked)
    n, promise, risk = checked.n, promised(checked.alpha), share(checked.risk)
    replies = f"{n * (checked.traces or 1)} fresh replies"
    lost = f"{risk} of {n} fresh questions lost, promise {promise}."
    if effect.loss == "differs":
        lost = f"{risk} of {replies} differ, promise {promise}."
    elif checked.traces is not None:
        lost = f"{risk} of {replies} lost, promise {promise}."
    elif effect.loss == "drop":
        falls = f"at most -{points(100 * checked.alpha)}"
        lost = f"accuracy {change_words(effect)} on {n} fresh questions, promise {falls}."
    if checked.verdict == "contradicted":
        return f"Contradicted: {lost} Stop using this policy."
    confirmed = checked.verdict == "confirmed"
    verdict = "Confirmed" if confirmed else "Neither confirmed nor broken"
    return f"{verdict}: {lost} {sentence(effect)}"


def run_effect(full: TimedComparison) -> Effect:
    """Return the effect of stopping where one run answered with and without it."""
    return Effect(
        full.token_saving_pct or 0.0,
        "here",
        full.risk if full.labelled else full.differing_share,
        full.accuracy,
        full.full_accuracy,
        full.labelled,
        "questions of this run",
        unit=DECODED,
        loss="lost" if full.labelled else "differs",
    )


def run_headline(summary: AnswerSummary) -> str:
    """Return the first sentence of `run`, compared with full thinking if the run did that too."""
    full, asked = summary.full, plural(summary.questions, "question")
    if summary.kind == "full-budget":
        return f"Answered {asked} with full thinking: this policy never stops early."
    if summary.climbed is not None:
        rungs = ", ".join(f"{share(row.share)} by {row.name}" for row in summary.climbed.rungs)
        saving = summary.climbed.price_saving_pct
        saved = "" if saving is None else f" Saves {percent(saving)} of the price."
        return f"Answered {asked}: {rungs}.{saved}"
    if full is None or full.token_saving_pct is None:
        return f"Answered {asked}, {share(summary.stopped_share)} of them stopped early."
    time = full.time_saving_pct
    timed = ""
    if time is not None:
        change = f"{percent(time)} less" if time >= 0 else f"{percent(-time)} more"
        timed = f" Time: {change} for {full.timed_questions} questions."
    return sentence(run_effect(full)) + timed
