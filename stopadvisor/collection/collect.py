"""The probing loop: ask the engine batch by batch, grade, append.

Batches depend only on the workload's order: a resumed run batches the same questions together as an
uninterrupted one and, in float32, writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

from stopadvisor.answers.grading import Grades
from stopadvisor.collection.grades import grade_traces
from stopadvisor.engines import OutOfMemory
from stopadvisor.ground.errors import EngineError, ProbeError
from stopadvisor.ground.progress import Progress
from stopadvisor.probes.asking import Engine, ProbePlan, Prompt, RawTrace
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.probes.trigger import probed_positions
from stopadvisor.runs.directory import RunDirectory, keep_thinking
from stopadvisor.runs.manifest import describe_workload
from stopadvisor.runs.replies import ReplyRecord
from stopadvisor.workload.questions import Question, Workload, render_messages

__all__ = [
    "ask_all", "check_grading", "collect", "finished_records", "make_prompts", "say_what_is_kept",
]  # fmt: skip


@contextmanager
def say_what_is_kept(run: RunDirectory, progress: Progress) -> Iterator[None]:
    """Say where the collected data are if the block is interrupted or the engine fails."""
    try:
        yield
    except (KeyboardInterrupt, EngineError) as error:
        why = "interrupted: " if isinstance(error, KeyboardInterrupt) else ""
        progress.remark(
            f"{why}what was collected is kept in {run.path}; the same command goes on from there"
        )
        raise


# --- Asking the engine ----------------------------------------------------------------------------


def make_prompts(
    questions: Sequence[Question], template: str | None, sample: int = 0
) -> list[Prompt]:
    """One prompt per question, with the prompt template applied."""
    return [
        Prompt(
            q.key,
            tuple(render_messages(q, template)),
            sample,
            q.traces[sample] if q.traces else None,
        )
        for q in questions
    ]


def _probe(
    engine: Engine, prompts: Sequence[Prompt], plan: ProbePlan, progress: Progress
) -> Iterator[tuple[int, RawTrace]]:
    """Probe prompts, and report tokens as the engine reports them, otherwise trace by trace."""
    reported = decoded = 0

    def report(tokens: int) -> None:
        nonlocal reported
        reported += tokens
        progress.advance(0, tokens)

    open_prompts = set(range(len(prompts)))
    for number, trace in engine.probe_each(prompts, plan, report):
        decoded += sum(probe.probe_tokens + probe.visible_tokens for probe in trace.probes)
        if prompts[number].recorded is None:
            decoded += trace.trace_tokens + trace.natural_tokens
        if decoded > reported:
            report(decoded - reported)
        open_prompts.discard(number)
        yield number, trace
    if open_prompts:
        raise EngineError(
            f"the engine must answer {len(prompts)} prompts, got "
            f"{len(prompts) - len(open_prompts)} traces"
        )


def _batch(
    engine: Engine,
    prompts: Sequence[Prompt],
    plan: ProbePlan,
    progress: Progress,
    old: Set[int] = frozenset(),
) -> dict[int, RawTrace]:
    """Probe one batch and count its traces as they come, except the `old` ones."""
    traces: dict[int, RawTrace] = {}
    try:
        for number, trace in _probe(engine, prompts, plan, progress):
            traces[number] = trace
            progress.advance(int(number not in old), 0)
    except OutOfMemory:  # all of them are asked again
        progress.advance(-len(traces.keys() - old), 0)
        raise
    return traces


def ask_all(
    engine: Engine,
    prompts: Sequence[Prompt],
    plan: ProbePlan,
    *,
    batch_size: int,
    progress: Progress,
) -> list[RawTrace]:
    """Probe a few questions for pilot and preflight; batches are halved when memory runs out."""
    size = batch_size if engine.capabilities.batched else len(prompts)
    traces: dict[int, RawTrace] = {}
    while len(traces) < len(prompts):
        first = len(traces)
        try:
            batch = _batch(engine, prompts[first : first + size], plan, progress)
            traces |= {first + number: trace for number, trace in batch.items()}
        except OutOfMemory as error:
            size = _halve(size, error, progress)
    return [traces[number] for number in range(len(prompts))]


def _check_probes(
    questions: Sequence[Question], traces: Sequence[RawTrace], plan: ProbePlan
) -> None:
    """Refuse traces that were probed elsewhere than the plan says, before anything is written."""
    for question, trace in zip(questions, traces, strict=True):
        probed = tuple(p.budget for p in trace.probes)
        wanted = probed_positions(plan, trace.trace_tokens, trace.marker_positions)
        if probed != wanted:
            raise EngineError(
                f"the engine must probe at budgets {list(wanted)}, got {list(probed)} "
                f"for question {question.id!r}"
            )


def _halve(batch_size: int, error: OutOfMemory, progress: Progress) -> int:
    if batch_size == 1:
        raise error
    smaller = batch_size // 2
    progress.remark(f"out of memory with {batch_size} questions at once; going on with {smaller}")
    return smaller


# --- Collecting -----------------------------------------------------------------------------------


def collect(
    engine: Engine,
    workload: Workload,
    run: RunDirectory,
    *,
    batch_size: int,
    grader: Grades,
    template: str | None = None,
    limit: int | None = None,
    samples: int = 1,
    repeated: Sequence[Question] = (),
    progress: Progress | None = None,
) -> int:
    """Probe the traces that the run lacks, and return their number.

    The caller holds the run's lock.

    Batch k of a sample is questions [k·b, (k+1)·b) of the workload.  A partly done batch is probed
    again as a whole, but only its missing lines are appended.  An interrupt keeps every finished
    batch.  An engine that takes all questions at once gets only the missing ones, and each is
    appended as it finishes.

    If `samples` is 1, the `repeated` questions get a second trace.  Batches are halved when memory
    runs out.
    """
    progress = progress or Progress()
    questions = workload.questions[:limit]
    records = finished_records(run, workload, progress)
    done = {(record.id, record.sample) for record in records}
    by_sample = _questions_by_sample(questions, samples, repeated)
    wanted = {(q.id, sample) for sample, members in enumerate(by_sample) for q in members}
    already = len(wanted & done)
    grading = dict(grader.identity)
    # A user's function must match even if nothing is missing; our own rules may differ in version.
    mixes = already < len(wanted) or grader.reads_questions
    if done and mixes:
        check_grading(run, grading, "use --regrade to grade all its answers alike")
    if not done:
        run.annotate(grading=grading)
    asked = sum(sample < 2 for _, sample in done | wanted)
    run.annotate(workload=describe_workload(workload), batch_size=batch_size, asked=asked)
    if already < len(wanted) and (remark := run.note_versions(engine.identity())):
        progress.remark(remark)
    progress.begin("probing", len(wanted), already)
    job = _Job(run, run.plan, grader, template, progress)
    if not engine.capabilities.batched:
        pairs = [(q, sample) for sample, members in enumerate(by_sample) for q in members]
        job.all_at_once(engine, [(q, sample) for q, sample in pairs if (q.id, sample) not in done])
    else:
        for sample, members in enumerate(by_sample):
            batch_size = job.in_batches(engine, members, sample, done, batch_size)
    return len(wanted) - already


def _questions_by_sample(
    questions: Sequence[Question], samples: int, repeated: Sequence[Question]
) -> list[list[Question]]:
    """The questions of each sample, in the workload's order."""
    by_sample = [list(questions)] * samples
    if samples == 1 and repeated:
        twice = {q.key for q in repeated}
        first = {q.key: q.id for q in reversed(questions)}  # one of equal questions is enough
        by_sample.append([q for q in questions if q.key in twice and first[q.key] == q.id])
    return by_sample


@dataclass(frozen=True)
class _Job:
    """Asks the engine for traces, grades them and appends them to the run."""

    run: RunDirectory
    plan: ProbePlan
    grader: Grades
    template: str | None
    progress: Progress

    def in_batches(
        self,
        engine: Engine,
        questions: Sequence[Question],
        sample: int,
        done: set[tuple[str, int]],
        batch_size: int,
    ) -> int:
        """Ask for one trace per question, batch by batch; return the final batch size."""
        start = 0  # always a multiple of batch_size
        while start < len(questions):
            members = questions[start : start + batch_size]
            old = {number for number, q in enumerate(members) if (q.id, sample) in done}
            if len(old) == len(members):
                start += batch_size
                continue
            try:
                prompts = make_prompts(members, self.template, sample)
                traces = _batch(engine, prompts, self.plan, self.progress, old)
            except OutOfMemory as error:
                batch_size = _halve(batch_size, error, self.progress)
                self.run.annotate(batch_size=batch_size)
                start -= start % batch_size
                continue
            graded = self._grade(members, [traces[n] for n in range(len(members))], sample)
            fresh = [record for record in graded if (record.id, sample) not in done]
            self.run.append(fresh)
            done.update((record.id, sample) for record in fresh)
            start += batch_size
        return batch_size

    def all_at_once(self, engine: Engine, asked: Sequence[tuple[Question, int]]) -> None:
        """Ask all questions at once, and append each trace as soon as it arrives."""
        prompts = [make_prompts([q], self.template, sample)[0] for q, sample in asked]
        for number, trace in _probe(engine, prompts, self.plan, self.progress):
            question, sample = asked[number]
            # One by one: grading mathematics may be far slower than the server, and an interrupt
            # must lose no graded trace.
            self.run.append(self._grade([question], [trace], sample))
            self.progress.advance(1, 0)

    def _grade(
        self, questions: Sequence[Question], traces: Sequence[RawTrace], sample: int
    ) -> list[ProbeRecord]:
        """Grade traces, and store the thinking of each question's first one."""
        _check_probes(questions, traces, self.plan)
        if sample == 0:
            keep_thinking(self.run.path, questions, traces)
        return grade_traces(
            questions, traces, self.grader, entropy=self.plan.entropy, sample=sample
        )


def finished_records(
    run: RunDirectory, workload: Workload, progress: Progress
) -> Sequence[ProbeRecord | ReplyRecord]:
    """Repair a run's files, and return its records; ProbeError if they are of other questions."""
    if note := run.repair():
        progress.remark(note)
    records = run.all_records()
    _check_questions(run, records, workload, progress)
    return records


def _check_questions(
    run: RunDirectory,
    records: Sequence[ProbeRecord | ReplyRecord],
    workload: Workload,
    progress: Progress,
) -> None:
    asked = {q.id: q for q in workload.questions}
    groups = {q.key: q.group for q in workload.questions}
    unknown = relabelled = 0
    for record in records:
        if record.group != groups.get(record.key, record.group):
            raise ProbeError(
                f"{run.path} was split with group {record.group!r} for question {record.id!r}, got "
                f"{groups[record.key]!r} in {workload.path}: a split is never drawn again; choose "
                "another --out"
            )
        question = asked.get(record.id)
        if question is None:
            unknown += 1
        elif question.key != record.key:
            raise ProbeError(
                f"{run.path} holds another question under the id {record.id!r} than "
                f"{workload.path}: ids must keep their questions; choose another --out"
            )
        else:
            relabelled += question.gold != record.gold
    if records and unknown == len(records):
        raise ProbeError(
            f"{run.path} holds answers to another workload, it has no question in common with "
            f"{workload.path}; choose another --out"
        )
    if unknown:
        progress.remark(f"{unknown} questions of the run are not in {workload.path}; they are kept")
    if relabelled:
        progress.remark(
            f"gold of {relabelled} questions has changed since; the run keeps the old "
            "labels until it is graded again (--regrade)"
        )


def check_grading(run: RunDirectory, grading: Mapping[str, str], advice: str) -> None:
    """Refuse to grade a run in two ways; ProbeError ends with the `advice`."""
    recorded = run.manifest["grading"]
    if recorded != grading:
        raise ProbeError(
            f"{run.path} was graded with {_versions(recorded)}, this call grades with "
            f"{_versions(grading)}: {advice}"
        )


def _versions(grading: Mapping[str, str]) -> str:
    shown = {name.replace("_", " "): version[:60] for name, version in sorted(grading.items())}
    return ", ".join(f"{name} {version}" for name, version in shown.items())
