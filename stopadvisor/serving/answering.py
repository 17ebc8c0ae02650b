"""Answer a workload's questions, each thinking only as long as a policy lets it.

The use case of `run`: policy and questions are read and compared with the engine, what is
missing is answered into a file, and the result summarises all its answers.  Where a question's
probes are on record, its real stop is compared with the recorded one.  Knows no command line,
no JSON document and no screen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from stopadvisor.answers.function_grader import Grades, described, open_graders
from stopadvisor.answers.normal_form import extract_natural, normalize
from stopadvisor.ground.errors import EngineError, PolicyError, ProbeError
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.frozen import MIXED_TASKS, Policy, Stepper, load_policy
from stopadvisor.policy.probed_positions import check_probed
from stopadvisor.policy.requests import ThinkingMode, make_requests, policy_plan
from stopadvisor.policy.session import AskProbe, Session, Stop
from stopadvisor.policy.terms import PolicyTerms
from stopadvisor.probes.asking import OnStop, ProbePlan
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.probes.trigger import Trigger, on_stand_ins, stand_in_ids
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from stopadvisor.serving.answer_file import AnswerFile, AnswerRecord
from stopadvisor.serving.answer_pass import Answering, AnsweringEngine, AnswerPass
from stopadvisor.serving.answer_summary import (
    AgainstProbes,
    AnswerSummary,
    MeanTokens,
    TimedComparison,
    climbs_of,
    compare_full,
    mean_of,
)
from stopadvisor.workload.questions import Workload, read_workload

__all__ = [
    "AnswerSettings",
    "OpenEngineOf",
    "RecordedRule",
    "answer_workload",
    "compare_stops",
    "recorded_stop",
]

OpenEngineOf = Callable[[Policy], AbstractContextManager[Answering]]
"""Loads the model that a policy is for, when it is entered, and closes it at the end: an
`AnsweringEngine`, or the servers of a ladder for a policy that climbs."""

_WHOLE_REPLIES = ProbePlan((), cue="", cap=1, max_think=1)
"""Of a ladder, which forces no answer."""


@dataclass(frozen=True)
class AnswerSettings:
    """Which policy, over which questions, and how."""

    policy: Path
    workload: Path
    out: Path | None = None
    """The answers' file; None for one under ``runs/``."""
    compare_full: bool = False
    """Ask every question without stopping too."""
    against: Path | None = None
    """A run with recorded probes of the same questions."""
    on_stop: OnStop | None = None
    """None: the policy's own."""
    batch_size: int | None = None
    """None: what fits, halved when memory runs out."""
    limit: int | None = None
    """Only the first questions, this many."""
    answer_cap: int | None = None
    """None: the one that was certified, else the default."""
    serving: ThinkingMode | None = None
    """None: overlap at a server where the policy was chosen for vllm."""
    grader: str | None = None
    """``MODULE:FUNCTION`` that says what is right; None: compare with gold."""
    require_signature: tuple[Path, ...] = ()
    """Public keys, of which one must have signed the policy; without any it may be unsigned."""


def answer_workload(
    settings: AnswerSettings, open_engine: OpenEngineOf, progress: Progress
) -> AnswerSummary:
    """Answer what the file of answers lacks, and sum up all of it.

    `open_engine` is called when policy, questions and recorded probes were not refused.

    Raises
    ------
    PolicyError
        The file is refused, or the policy is bound to something else than what is opened.
    WorkloadError
        The questions cannot be used.
    ProbeError
        The run of `against` cannot be compared with.
    ModelError, EngineError
        The model cannot be used, or fails; answers up to then are in the file.
    OutputError
        The file cannot be written, or holds answers under other settings.
    GraderError
        The grader cannot be had, or does what none may do.
    """
    policy = load_policy(settings.policy, require_signature=settings.require_signature or None)
    if policy.ladder:
        _check_climbing(settings)
    else:
        policy_plan(policy, answer_cap=settings.answer_cap)  # refused before a model is loaded
    task = policy.terms.task
    workload = read_workload(
        settings.workload, default_task=None if task == MIXED_TASKS else task, assumed=None
    )
    make_requests(workload.questions, policy)
    recorded = RunDirectory.load(settings.against) if settings.against else None
    if settings.against is not None:
        check_probed(policy, str(settings.policy), open_source(settings.against))
    with open_graders(settings.grader) as graders, open_engine(policy) as engine:
        plan, remarks, serving = _WHOLE_REPLIES, list[str](), None
        if not policy.ladder:
            of_trace = cast("AnsweringEngine", engine)
            plan = of_trace.policy_plan(policy, answer_cap=settings.answer_cap)
            remarks = _check_engine(of_trace, policy, settings)
            serving = of_trace.thinking_mode(policy, settings.serving, remarks)
        on_stop = settings.on_stop or policy.on_stop
        path = settings.out or Path("runs") / f"{workload.name}-{policy.digest[:8]}.jsonl"
        if any(question.gold is not None for question in workload.questions):
            remarks += _graded_otherwise(policy, graders.right)
        setting = _setting(policy, engine.identity(), plan, on_stop, serving, graders.right)
        with AnswerFile.open(path, setting) as file:
            answer_pass = AnswerPass(
                policy,
                plan,
                engine,
                on_stop,
                serving,
                file,
                graders.right,
                progress,
                compare_full=settings.compare_full,
                asked_size=settings.batch_size,
            )
            _answer(answer_pass, workload, settings, remarks, progress)
            for remark in graders.right.remarks():
                remarks.append(remark)
                progress.remark(f"note: {remark}")
            wanted = {question.id for question in workload.questions[: settings.limit]}
            lines = [line for line in file.lines if line.id in wanted]
            against = None
            if recorded is not None:
                against = compare_stops(policy, lines, recorded, on_stop)
            return _summed_up(settings, answer_pass, lines, engine.name, against, tuple(remarks))


def _answer(
    answer_pass: AnswerPass,
    workload: Workload,
    settings: AnswerSettings,
    remarks: list[str],
    progress: Progress,
) -> None:
    """Answer what is missing; an interruption says what is kept."""
    questions, path = workload.questions[: settings.limit], answer_pass.file.path
    alone = answer_pass.file.uncompared(questions)
    if settings.compare_full and alone:
        remarks.append(
            f"{alone} questions were answered before, without full thinking to compare: "
            "--compare-full leaves them out, another --out asks them again"
        )
    for remark in remarks:
        progress.remark(f"note: {remark}")
    try:
        answer_pass.go(questions)
    except (KeyboardInterrupt, EngineError) as error:
        why = "interrupted: " if isinstance(error, KeyboardInterrupt) else ""
        progress.remark(
            f"{why}what was answered is kept in {path}; the same command goes on from there"
        )
        raise


def _summed_up(
    settings: AnswerSettings,
    answered: AnswerPass,
    lines: Sequence[AnswerRecord],
    model: str,
    against: AgainstProbes | None,
    remarks: tuple[str, ...],
) -> AnswerSummary:
    policy = answered.policy
    certificate = policy.terms.certificate
    graded = [line.correct for line in lines if line.correct is not None]
    stopped = sum(line.stopped for line in lines)
    return AnswerSummary(
        policy=str(settings.policy),
        digest=policy.digest,
        kind=policy.kind,
        family=policy.family,
        workload=str(settings.workload),
        model=model,
        out=str(answered.file.path),
        setting=answered.file.setting,
        on_stop=answered.on_stop,
        serving=answered.mode,
        server_saving_pct=_server_saving(policy.terms),
        certified=certificate is not None and answered.on_stop == policy.terms.on_stop,
        alpha=None if certificate is None else certificate.alpha,
        loss=None if certificate is None else certificate.loss,
        questions=len(lines),
        new=answered.new,
        seconds=round(answered.seconds, 3),
        stopped=stopped,
        stopped_share=stopped / len(lines) if lines else None,
        mean_tokens=MeanTokens(
            mean_of([line.think_tokens for line in lines]),
            mean_of([line.probe_tokens for line in lines]),
            mean_of([line.visible_tokens for line in lines]),
        ),
        labelled=len(graded),
        accuracy=mean_of(graded),
        full=_timed(answered, lines) if any(line.full for line in lines) else None,
        climbed=climbs_of(lines, tuple(dict.fromkeys(rung.name for rung in policy.ladder))),
        against=against,
        remarks=remarks,
    )


def _server_saving(terms: PolicyTerms) -> float | None:
    """Net saving of a policy on the stack that most people have, as its calibration measured it."""
    if terms.serving != "kv-fork" or terms.expected is None:
        return None
    return (terms.expected.saving_by_serving or {}).get("prefix-cache")


def _timed(answered: AnswerPass, lines: Sequence[AnswerRecord]) -> TimedComparison:
    """Compare with full thinking, and the times where this call answered both ways."""
    split = answered.policy.terms.split
    seen = set() if split is None else {*split.fit, *split.calibration}
    seconds, full_seconds = answered.seconds, answered.full_seconds
    timed = answered.new if answered.compare_full else 0
    return TimedComparison(
        **vars(compare_full(lines)),
        timed_questions=timed,
        seconds=round(seconds, 3) if timed else None,
        full_seconds=round(full_seconds, 3) if timed else None,
        time_saving_pct=100 * (1 - seconds / full_seconds) if timed and full_seconds else None,
        unmet=compare_full([line for line in lines if line.key not in seen]),
    )


def _check_climbing(settings: AnswerSettings) -> None:
    """Refuse what stops a trace, where whole replies are asked."""
    for name in ("against", "on_stop", "answer_cap", "serving"):
        if getattr(settings, name) is not None:
            raise PolicyError(
                f"--{name.replace('_', '-')}: this policy climbs a ladder, and stops no trace"
            )


# --- Before the first question --------------------------------------------------------------------


def _check_engine(engine: AnsweringEngine, policy: Policy, settings: AnswerSettings) -> list[str]:
    """Compare the policy with the engine; differences that are allowed become remarks."""
    remarks = policy.check_source(engine.identity(), engine.entropy_for(policy))
    if settings.on_stop not in (None, policy.on_stop) and policy.kind == "stop":
        remarks.append(
            f"--on-stop {settings.on_stop}: the certificate does not cover these answers, it was "
            f"shown for on-stop {policy.on_stop}"
        )
    return remarks


def _graded_otherwise(policy: Policy, grader: Grades) -> list[str]:
    """Remark on answers that another function grades than graded the policy's questions."""
    ours, mine = policy.terms.grading, dict(grader.identity)
    if mine == ours or not any("grader_sha256" in identity for identity in (ours, mine)):
        return []
    return [
        f"these answers are graded by {described(mine)}, the calibration questions were by "
        f"{described(ours)} (--grader)"
    ]


def _setting(
    policy: Policy,
    identity: Mapping[str, Any],
    plan: ProbePlan,
    on_stop: OnStop,
    serving: ThinkingMode | None,
    grader: Grades,
) -> str:
    """Name everything that decides the answers, their grades and costs, in eight digits."""
    decides = [policy.digest, identity, plan.answer_cap, on_stop]
    if grader.reads_questions:
        decides.append(dict(grader.identity))
    if serving == "overlap":
        decides.append(serving)
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:8]


_MOST_EXAMPLES = 10


@dataclass(frozen=True)
class RecordedRule:
    """A policy that reads `stand_in_ids`: of a recorded trace only its markers are known."""

    policy: Policy

    @property
    def trigger(self) -> Trigger:
        """When it asks, read off stand-ins."""
        return on_stand_ins(self.policy.trigger)

    @property
    def needs_markers(self) -> bool:
        """Whether it reads how many markers there were."""
        return self.policy.needs_markers

    def start(self, task: str | None = None) -> Stepper:
        """Begin with one trace."""
        return self.policy.start(task)


def recorded_stop(
    policy: Policy, record: ProbeRecord, on_stop: OnStop | None = None
) -> Stop | None:
    """Replay recorded probes; returns the stop, None for the natural end.

    `on_stop` is how it is served; the policy's own by default.
    """
    probed = {checkpoint.budget: checkpoint for checkpoint in record.checkpoints}
    task = record.task if policy.terms.task == MIXED_TASKS else None
    session = Session(
        RecordedRule(policy), closer_tokens=1, on_stop=on_stop or policy.on_stop, task=task
    )
    if not session.needs_ids:
        session.receive(record.trace_tokens)
    elif record.marker_positions is None:
        raise ProbeError("the policy probes where a marker begins, the run looked for no markers")
    else:
        session.receive(stand_in_ids(record.trace_tokens, record.marker_positions))
    session.end(record.trace_tokens, cut=record.finish == "length")
    while isinstance(event := session.next_event(), AskProbe):
        row = probed.get(event.position)
        if row is None:
            raise ProbeError(
                f"the policy probes at {event.position} thinking tokens, the run did not; its "
                f"budgets are {sorted(probed)}"
            )
        session.judge(
            normalized=row.normalized,
            mean_logprob=row.mean_logprob,
            mean_entropy=row.mean_entropy,
            markers=row.markers,
            closed_by_itself=row.closed_by_itself,
        )
    return event if isinstance(event, Stop) else None


def compare_stops(
    policy: Policy, lines: Sequence[AnswerRecord], run: RunDirectory, on_stop: OnStop | None = None
) -> AgainstProbes:
    """Compare real stops with those of a run's recorded probes, the first trace of each question.

    `on_stop` is how the lines were served; the policy's own by default.

    Raises
    ------
    ProbeError
        The run has no question in common, or did not probe where the policy does.
    """
    records = {record.key: record for record in run.records() if record.sample == 0}
    both = [(line, records[line.key]) for line in lines if line.key in records]
    if not both:
        raise ProbeError(f"{run.path}: has none of these questions: nothing to compare with")
    moved, answers = [], 0
    for line, record in both:
        stop = recorded_stop(policy, record, on_stop)
        position = None if stop is None else stop.position
        if position != line.budget:
            moved.append(line.id)
        if position is not None and line.budget is not None:
            row = next((c for c in record.checkpoints if c.budget == position), None)
            if row is None:
                raise ProbeError(
                    f"the policy stops everybody at {position} thinking tokens, where the run has "
                    "no probe to compare the answers with"
                )
            recorded = row.normalized
            if line.visible_tokens and row.visible_answer is not None:
                visible = extract_natural(record.task, row.visible_answer)
                recorded = normalize(record.task, visible or "")
            answers += recorded != line.normalized
        else:
            answers += position != line.budget
    return AgainstProbes(
        run=str(run.path),
        questions=len(both),
        differing_stops=len(moved),
        differing_stops_share=len(moved) / len(both),
        differing_answers=answers,
        examples=tuple(moved[:_MOST_EXAMPLES]),
    )
