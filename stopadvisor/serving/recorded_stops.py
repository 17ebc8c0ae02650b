"""Real stops compared with those that recorded probes give.

A replay asks a trace at the policy's own positions: those of a marker trigger follow from where the
record says that markers stand.
In float32, and with the same prompts in the batch, they are the same but for scores that rounding
carries over the threshold.  Elsewhere the share that differs is how far a certificate from recorded
probes may be off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stopadvisor.answers.normal_form import extract_natural, normalize
from stopadvisor.ground.errors import ProbeError
from stopadvisor.policy.frozen import MIXED_TASKS, Policy, Stepper
from stopadvisor.policy.session import AskProbe, Session, Stop
from stopadvisor.probes.plan import OnStop
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.probes.trigger import Trigger, on_stand_ins, stand_in_ids
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.serving.answer_file import AnswerRecord
from stopadvisor.serving.answer_summary import AgainstProbes

__all__ = ["compare_stops", "recorded_stop"]

_MOST_EXAMPLES = 10


@dataclass(frozen=True)
class _RecordedRule:
    """A policy whose trigger reads `stand_in_ids`."""

    policy: Policy

    @property
    def trigger(self) -> Trigger:
        return on_stand_ins(self.policy.trigger)

    @property
    def needs_markers(self) -> bool:
        return self.policy.needs_markers

    def start(self, task: str | None = None) -> Stepper:
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
        _RecordedRule(policy), closer_tokens=1, on_stop=on_stop or policy.on_stop, task=task
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
