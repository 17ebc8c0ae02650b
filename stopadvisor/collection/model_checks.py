"""The preflight: check that thinking tags, cue and caps suit the model before anything is measured.

The model thinks about up to sixteen fit questions, and is probed before its thinking, after a few
tokens and at the end.  Wrong tags or a brittle cue then fail a check instead of spoiling results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stopadvisor.answers.grading import Graders, Grades
from stopadvisor.answers.normal_form import extract_forced, extract_natural, normalize
from stopadvisor.collection.collect import ask_all, make_prompts
from stopadvisor.collection.markers import MarkerFindings, count_words
from stopadvisor.collection.pilot import (
    NO_MARKERS,
    ProbeCost,
    SettledPlan,
    expected_cost,
    trial_plan,
)
from stopadvisor.ground.constants import TRUNCATED_WARN
from stopadvisor.ground.errors import PreflightError
from stopadvisor.ground.progress import Progress
from stopadvisor.ground.results import to_document
from stopadvisor.probes.asking import Check, Engine, ProbePlan, RawProbe, RawTrace, Status
from stopadvisor.probes.trigger import marker_positions
from stopadvisor.runs.storage import write_json_atomically
from stopadvisor.workload.questions import Question

__all__ = [
    "PREFLIGHT_QUESTIONS", "CueExample", "Preflight", "PreflightReport", "WrongExample", "checked",
    "keep_checks", "run_preflight", "with_shortage", "worst",
]  # fmt: skip

PREFLIGHT_QUESTIONS = 16

FAIL_BELOW, WARN_BELOW = 0.5, 0.9
"""Shares of good traces or answers below which a check fails or warns."""
ACCURACY_WARN = 0.2
"""Share of right answers below which prompt, template, gold or grader is probably wrong."""
CAP_WARN = 0.1
"""Share of forced answers that may reach the cap."""
EXAMPLES = 3
SHOWN = 200
"""Characters shown of a question."""

_SEVERITY: tuple[Status, ...] = ("pass", "warn", "fail")


@dataclass(frozen=True)
class CueExample:
    """A question whose forced answer at the end of thinking differs from the natural one."""

    id: str
    """The question."""
    natural: str
    """The answer after full thinking."""
    forced: str
    """The forced answer."""


@dataclass(frozen=True)
class WrongExample:
    """A wrongly answered question, to show what went wrong."""

    id: str
    """The question."""
    question: str
    """The beginning of its last message."""
    gold: str
    """The right answer."""
    answer: str | None
    """The answer extracted from the reply; None if there was none."""


@dataclass(frozen=True)
class Preflight:
    """`preflight --ladder --json`, and `preflight.json` of a ladder: checks of its rungs."""

    status: Status
    """The worst of the checks."""
    checks: tuple[Check, ...]
    """All checks."""
    n_questions: int
    """Fit questions asked."""


@dataclass(frozen=True)
class PreflightReport(Preflight):
    """`preflight --json` and `preflight.json`: all checks on one engine, plan and workload."""

    agreement: float | None
    """Share of finished traces whose forced and natural answers agree; null if none finished."""
    examples: tuple[CueExample, ...]
    """Some questions whose answers differ."""
    accuracy: float | None
    """Share of right answers at the end of thinking, of questions with gold; null without gold."""
    wrong: tuple[WrongExample, ...]
    """Some wrong answers."""
    marker_words: MarkerFindings
    """Words with which the model begins sentences when it doubts or checks."""
    cost: ProbeCost | None
    """Tokens that the plan's probes will decode; null until a pilot has chosen where to probe."""


def run_preflight(
    engine: Engine,
    questions: Sequence[Question],
    settled: SettledPlan,
    graders: Graders,
    *,
    template: str | None = None,
    batch_size: int = PREFLIGHT_QUESTIONS,
    named: Sequence[str] | None = None,
    progress: Progress,
) -> PreflightReport:
    """Try the engine, the thinking tags and the cue on the first 16 fit questions.

    A failed check is a result here, not an exception.  Traces of the plan's pilot are reused if
    they cover these questions.  If it counted no marker words, the `named` or the usual ones are
    counted.
    """
    questions, plan = questions[:PREFLIGHT_QUESTIONS], settled.plan
    prompts, trial = make_prompts(questions, template), trial_plan(plan)
    traces = settled.pilot[: len(prompts)]
    if len(traces) < len(prompts) or any(
        tuple(probe.budget for probe in trace.probes) != trial.budgets for trace in traces
    ):
        progress.begin("preflight", len(prompts))
        traces = ask_all(engine, prompts, trial, batch_size=batch_size, progress=progress)
    final = [trace.probes[-1] for trace in traces]
    forced = [probe for trace in traces for probe in trace.probes]
    words = settled.markers or count_words(engine, traces, named)
    agreement, share, examples = _agreement(questions, traces, final, graders.equal)
    of_gold, accuracy, wrong = _accuracy(questions, traces, final, graders.right)
    checks = (
        _markers(traces, plan),
        *engine.prompt_checks(prompts),
        _truncation(traces, plan),
        _cue(questions, final),
        _answer_cap(forced, plan),
        agreement,
        *of_gold,
        _marker_words(words, traces, plan),
        *engine.engine_checks(prompts[0], plan),
    )
    return PreflightReport(
        status=worst(checks),
        checks=checks,
        agreement=share,
        examples=examples,
        accuracy=accuracy,
        wrong=wrong,
        n_questions=len(questions),
        marker_words=words,
        cost=expected_cost(plan, traces, sum(p.probe_tokens for p in forced) / len(forced)),
    )


def worst(checks: Sequence[Check]) -> Status:
    """The worst status of some checks."""
    return max((check.status for check in checks), key=_SEVERITY.index)


def with_shortage(report: Preflight, shortage: str | None) -> Preflight:
    """The report, headed by a warning if there are too few questions."""
    if shortage is None:
        return report
    advice = "add questions: `probe` and `assess` refuse so few"
    checks = (Check("questions", "warn", shortage, advice), *report.checks)
    return replace(report, status=worst(checks), checks=checks)


def keep_checks(report: Preflight, file: Path, progress: Progress) -> None:
    """Write a report, and show its warnings.

    Raises
    ------
    PreflightError
        A check failed.
    """
    write_json_atomically(file, to_document(report))
    lines = {
        status: [f"{c.name}: {c.detail}; {c.advice}" for c in report.checks if c.status == status]
        for status in _SEVERITY
    }
    for line in lines["warn"]:
        progress.remark(f"preflight: {line}")
    if lines["fail"]:
        raise PreflightError("preflight failed: " + " | ".join(lines["fail"]))


def _below(share: float) -> Status:
    """Status of a share that should be large."""
    return "fail" if share < FAIL_BELOW else "warn" if share < WARN_BELOW else "pass"


def checked(name: str, status: Status, detail: str, advice: str) -> Check:
    """A check, with advice only if it did not pass."""
    return Check(name, status, detail, "" if status == "pass" else advice)


def _markers(traces: Sequence[RawTrace], plan: ProbePlan) -> Check:
    """The model thinks, and closes its thinking."""
    thinking = sum(t.trace_tokens > 0 for t in traces)
    closed = sum(t.finish == "stop" and t.natural_text is not None for t in traces)
    ended = sum(t.finish == "stop" for t in traces) - closed
    detail = f"{thinking}/{len(traces)} traces contain thinking, {closed}/{len(traces)} close it"
    if closed == 0:
        return Check(
            "markers",
            "fail",
            f"{detail} within {plan.max_think} tokens",
            "check --think-tags against the model's chat template, or raise --max-think; a closer "
            "of plain words begins with the space that the model writes before it",
        )
    if ended:
        return checked(
            "markers",
            _below(1 - ended / len(traces)),
            f"{detail}, {ended} end without closing it, and so without an answer",
            "choose a closer (--think-tags) that the model writes, with the space before it, or "
            "ask for it in --prompt-template",
        )
    return checked(
        "markers",
        _below(thinking / len(traces)),
        detail,
        "switch thinking on (--chat-template-kwargs), or check --think-tags",
    )


def _truncation(traces: Sequence[RawTrace], plan: ProbePlan) -> Check:
    cut = sum(t.finish == "length" for t in traces)
    return checked(
        "truncation",
        "warn" if cut / len(traces) > TRUNCATED_WARN else "pass",
        f"{cut}/{len(traces)} traces are cut at {plan.max_think} tokens",
        "raise --max-think to production's cap: calibrate refuses more than 10 % cut traces",
    )


def _cue(questions: Sequence[Question], final: Sequence[RawProbe]) -> Check:
    """Forced answers parse as answers of their task."""
    unlike = [
        p.text for q, p in zip(questions, final, strict=True) if not normalize(q.task, p.text)
    ]
    parsed = len(final) - len(unlike)
    seen = f", but not {unlike[0][:60]!r}" if unlike else ""
    return checked(
        "cue",
        _below(parsed / len(final)),
        f"{parsed}/{len(final)} forced answers parse{seen}",
        "choose another --cue",
    )


def _answer_cap(probes: Sequence[RawProbe], plan: ProbePlan) -> Check:
    full = sum(p.probe_tokens == plan.cap for p in probes)
    return checked(
        "answer-cap",
        "warn" if full / len(probes) > CAP_WARN else "pass",
        f"{full}/{len(probes)} forced answers reach the cap of {plan.cap} tokens",
        "raise --cap, or choose a --cue that the model answers briefly",
    )


def _agreement(
    questions: Sequence[Question],
    traces: Sequence[RawTrace],
    final: Sequence[RawProbe],
    grader: Grades,
) -> tuple[Check, float | None, tuple[CueExample, ...]]:
    """Share of finished traces whose forced and natural answers agree, and some that differ."""
    pairs: list[tuple[Question, str, str]] = []
    for question, trace, probe in zip(questions, traces, final, strict=True):
        if trace.finish == "stop" and trace.natural_text is not None:
            natural = extract_natural(question.task, trace.natural_text) or ""
            pairs.append((question, natural, extract_forced(question.task, probe.text)))
    if not pairs:
        detail = "no trace ends with a visible answer to compare with"
        advice = "raise --max-think, or check --think-tags"
        return Check("agreement", "fail", detail, advice), None, ()
    same = [bool(a) and normalize(q.task, a) == normalize(q.task, b) for q, a, b in pairs]
    # In math, equal values may have different normal forms, so the grader decides.
    unsure = [i for i, (q, a, _) in enumerate(pairs) if not same[i] and a and q.task == "math"]
    verdicts = grader.grade_many([("math", pairs[i][1], pairs[i][2]) for i in unsure])
    for i, equivalent in zip(unsure, verdicts, strict=True):
        same[i] = equivalent is True
    differing = [
        CueExample(q.id, a, b) for (q, a, b), equal in zip(pairs, same, strict=True) if not equal
    ]
    share, examples = sum(same) / len(same), tuple(differing[:EXAMPLES])
    shown = "; ".join(
        f"{e.id}: forced {e.forced[:40]!r}, natural {e.natural[:40]!r}" for e in examples
    )
    check = checked(
        "agreement",
        _below(share),
        f"{share:.0%} of forced answers at the end of thinking are the natural ones"
        + (f" ({shown})" if shown else ""),
        "the cue changes what the model answers: choose another --cue or --prompt-template",
    )
    return check, share, examples


def _accuracy(
    questions: Sequence[Question],
    traces: Sequence[RawTrace],
    final: Sequence[RawProbe],
    grader: Grades,
) -> tuple[list[Check], float | None, tuple[WrongExample, ...]]:
    """Warn of a prompt template that gets nothing right, before hundreds of questions are probed.

    Also returns the share of right answers at the end of thinking, and some wrong ones; nothing if
    no question has gold.
    """
    asked: list[Question] = []
    items: list[tuple[str, str, str | None]] = []
    for question, trace, probe in zip(questions, traces, final, strict=True):
        if question.gold is None:
            continue
        if trace.finish == "stop" and trace.natural_text is not None:
            answer = extract_natural(question.task, trace.natural_text)
        else:  # thinking was cut
            answer = extract_forced(question.task, probe.text)
        asked.append(question)
        items.append((question.task, question.gold, answer))
    if not items:
        return [], None, ()
    verdicts = [v is True for v in grader.grade_many(items, [q.text for q in asked])]
    accuracy = sum(verdicts) / len(verdicts)
    wrong = [
        WrongExample(q.id, str(q.messages[-1]["content"])[:SHOWN], gold, answer)
        for q, (_, gold, answer), right in zip(asked, items, verdicts, strict=True)
        if not right
    ][:EXAMPLES]
    shown = "; ".join(
        f"{w.question[:60]!r}: gold {w.gold[:40]!r}, answered "
        + ("nothing readable" if w.answer is None else repr(w.answer[:40]))
        for w in wrong
    )
    low = accuracy < ACCURACY_WARN
    check = checked(
        "accuracy",
        "warn" if low else "pass",
        f"{accuracy:.0%} of {len(verdicts)} answers are right at the end of thinking"
        + (f" ({shown})" if low else ""),
        "check prompt, template, gold and grader before you probe",
    )
    return [check], accuracy, tuple(wrong)


def _marker_words(words: MarkerFindings, traces: Sequence[RawTrace], plan: ProbePlan) -> Check:
    """A plan that probes before markers has markers, and the traces contain some."""
    seen = ", ".join(f"{word.text} {word.per_1000:.1f}" for word in words.used)
    detail = f"{seen} per 1,000 thinking tokens; {words.without:.0%} of traces contain none"
    if plan.schedule != "marker":
        return Check("marker-words", "pass", detail if seen else "none of the usual words occurs")
    if not plan.markers:
        return Check("marker-words", "fail", NO_MARKERS, "no markers, no probes before them")
    held = sum(bool(marker_positions(plan.markers, trace.thinking_ids)) for trace in traces)
    return checked(
        "marker-words",
        "pass" if held else "warn",
        f"{held}/{len(traces)} traces contain a marker" + (f": {detail}" if seen else ""),
        "choose other words for --markers, or --schedule stride",
    )
