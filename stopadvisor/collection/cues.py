"""What the answer cue does: whether forced answers are the natural ones, cue by cue.

A brittle cue looks like a weak model: the paper saw one take the accuracy of forced answers from
0.924 to 0.230.  Knows fit questions alone, no files and no particular engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stopadvisor.answers.function_grader import Grades
from stopadvisor.answers.normal_form import extract_forced, extract_natural, normalize
from stopadvisor.collection.collect import ask_all, make_prompts
from stopadvisor.collection.labels import grade_traces
from stopadvisor.ground.errors import EngineError
from stopadvisor.ground.progress import NullProgress, Progress
from stopadvisor.probes.asking import Engine, ProbePlan, RawProbe, RawTrace, Status
from stopadvisor.stats.intervals import exact_interval
from stopadvisor.workload.questions import Question

__all__ = [
    "CUE_QUESTIONS",
    "CueAgreement",
    "CueComparison",
    "CueExample",
    "CueRow",
    "agreement",
    "below",
    "compare_cues",
]

CUE_QUESTIONS = 64
AGREEMENT_FAIL, AGREEMENT_WARN = 0.5, 0.9


@dataclass(frozen=True)
class CueExample:
    """A question whose forced answer at the end of its thinking is not its natural one."""

    id: str
    """Of the question."""
    natural: str
    """The answer after full thinking."""
    forced: str
    """The forced answer."""


@dataclass(frozen=True)
class CueAgreement:
    """Forced answers at the end of thinking against what the model says by itself."""

    share: float | None
    """Of finished traces, those whose two answers agree; None without any."""
    examples: tuple[CueExample, ...] = ()
    """Where they do not."""

    @property
    def status(self) -> Status:
        """Whether the cue may be used; it may not where nothing could be compared."""
        if self.share is None:
            return "fail"
        return below(self.share, fail=AGREEMENT_FAIL, warn=AGREEMENT_WARN)


def below(share: float, *, fail: float, warn: float) -> Status:
    """Judge a share that should be large."""
    return "fail" if share < fail else "warn" if share < warn else "pass"


def agreement(
    questions: Sequence[Question],
    traces: Sequence[RawTrace],
    final: Sequence[RawProbe],
    grader: Grades,
) -> CueAgreement:
    """Compare what is forced at the end of thinking with what the model says by itself."""
    pairs: list[tuple[Question, str, str]] = []
    for question, trace, probe in zip(questions, traces, final, strict=True):
        if trace.finish == "stop" and trace.natural_text is not None:
            natural = extract_natural(question.task, trace.natural_text) or ""
            pairs.append((question, natural, extract_forced(question.task, probe.text)))
    if not pairs:
        return CueAgreement(None)
    same = [bool(a) and normalize(q.task, a) == normalize(q.task, b) for q, a, b in pairs]
    # Equal values in unequal spelling exist in math alone; there the grader decides.
    unsure = [i for i, (q, a, _) in enumerate(pairs) if not same[i] and a and q.task == "math"]
    verdicts = grader.grade_many([("math", pairs[i][1], pairs[i][2]) for i in unsure])
    for i, equivalent in zip(unsure, verdicts, strict=True):
        same[i] = equivalent is True
    examples = tuple(
        CueExample(q.id, a, b) for (q, a, b), equal in zip(pairs, same, strict=True) if not equal
    )
    return CueAgreement(sum(same) / len(same), examples)


# --- Several cues on the same traces --------------------------------------------------------------


@dataclass(frozen=True)
class CueRow:
    """What one cue does at the end of thinking."""

    name: str
    """Of the cue."""
    cue: str
    """Its text."""
    status: Status
    """Of the agreement: pass, warn or fail."""
    forced_accuracy: float | None
    """Share of forced answers at the end of thinking that are right; None without any gold."""
    ci95: tuple[float, float] | None
    """Its exact (Clopper-Pearson) interval."""
    agreement: float | None
    """Share of finished traces whose forced and natural answers agree; None without any."""
    mean_probe_tokens: float
    """Tokens of a forced answer."""
    mean_think_tokens: float
    """Tokens of thinking."""
    same_traces: float
    """Share of the traces that are those of the first cue."""


@dataclass(frozen=True)
class CueComparison:
    """Several cues on the same fit questions."""

    n_questions: int
    """Fit questions asked."""
    natural_accuracy: float | None
    """Share of visible answers after full thinking that are right; None without any gold."""
    rows: tuple[CueRow, ...]
    """One for each cue."""


def compare_cues(
    engine: Engine,
    questions: Sequence[Question],
    plan: ProbePlan,
    cues: Mapping[str, str],
    *,
    grader: Grades,
    right: Grades | None = None,
    template: str | None = None,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> CueComparison:
    """Force an answer at the end of the same thinking with each cue.

    Parameters
    ----------
    questions
        Fit questions, never others: outcomes are shown.
    plan
        How traces are drawn; its budgets and its cue are replaced.
    grader
        Decides whether two answers are equivalent.
    right
        Decides what is right; None for the same.
    cues
        Texts by name.

    Raises
    ------
    EngineError
        There is no question to ask, or the engine answers for fewer than it was asked.

    Notes
    -----
    An engine probes the trace that it has just generated, so each cue takes traces of its own,
    under the same seeds.  Where the engine is reproducible they are the same traces;
    `CueRow.same_traces` says how many were.

    References
    ----------
    Paper, Appendix "Prompt and Decoding Robustness".
    """
    if not questions:
        raise EngineError("comparing cues needs at least one fit question, got none")
    prompts = make_prompts(questions, template)
    progress = progress or NullProgress()
    progress.begin("comparing cues", len(cues) * len(prompts))
    rows: list[CueRow] = []
    first: list[str] = []
    natural: float | None = None
    for name, cue in cues.items():
        asked = replace(plan.at_budgets(plan.max_think), cue=cue)
        traces = ask_all(engine, prompts, asked, batch_size=batch_size, progress=progress)
        records = grade_traces(questions, traces, right or grader, entropy=plan.entropy)
        thinking = [trace.thinking for trace in traces]
        first = first or thinking
        graded = [r for r in records if r.is_graded]
        n_right = sum(bool(r.checkpoints[-1].correct) for r in graded)
        if graded:
            natural = sum(bool(r.natural_correct) for r in graded) / len(graded)
        final = [trace.probes[-1] for trace in traces]
        agreed = agreement(questions, traces, final, grader)
        rows.append(
            CueRow(
                name=name,
                cue=cue,
                status=agreed.status,
                forced_accuracy=n_right / len(graded) if graded else None,
                ci95=exact_interval(n_right, len(graded)) if graded else None,
                agreement=agreed.share,
                mean_probe_tokens=sum(p.probe_tokens for p in final) / len(final),
                mean_think_tokens=sum(t.trace_tokens for t in traces) / len(traces),
                same_traces=sum(a == b for a, b in zip(first, thinking, strict=True)) / len(first),
            )
        )
    return CueComparison(len(questions), natural, tuple(rows))
