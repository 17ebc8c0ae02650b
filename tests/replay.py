"""Run recorded probes through the online stepper, as production would see them."""

from __future__ import annotations

import lzma
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stopadvisor.policy.frozen import MIXED_TASKS, Policy
from stopadvisor.policy.session import AskProbe, Ended, Session, Stop
from stopadvisor.policy.stepper import Stepper, StopRule
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.probes.table import EMPTY_ANSWER, ProbeTable
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger
from stopadvisor.rules.features import LinearModel
from stopadvisor.rules.scorer import Schedule, Scorer
from tests.policy_content import example_terms, trigger_content

__all__ = [
    "POLICIES", "RecordedRule", "committed_run", "recorded_stop", "replayed", "rule_of",
    "stand_in_ids", "stops", "walked",
]  # fmt: skip

POLICIES = Path(__file__).parents[1] / "policies"


@dataclass(frozen=True)
class RecordedRule:
    """A policy that reads `stand_in_ids`, because recorded traces have no token ids."""

    policy: Policy

    @property
    def trigger(self) -> Trigger:
        """The policy's trigger, for stand-ins."""
        found = self.policy.trigger
        return replace(found, markers=((1,),)) if isinstance(found, MarkerTrigger) else found

    @property
    def needs_markers(self) -> bool:
        """Whether it reads the number of markers."""
        return self.policy.needs_markers

    def start(self, task: str | None = None) -> Stepper:
        """Begin a trace."""
        return self.policy.start(task)


def stand_in_ids(trace_tokens: int, markers: Sequence[int]) -> list[int]:
    """Stand in for the ids of a trace that was recorded with the positions of its markers only."""
    return [int(at in markers) for at in range(trace_tokens)]


def recorded_stop(
    policy: Policy, record: ProbeRecord, *, piece: int = 10_000, closer: int = 1
) -> Stop | None:
    """Replay recorded probes, with tokens in pieces; returns the stop, None if it never stops."""
    task = record.task if policy.terms.task == MIXED_TASKS else None
    session = Session(RecordedRule(policy), closer_tokens=closer, on_stop=policy.on_stop, task=task)
    ids = stand_in_ids(record.trace_tokens + closer, record.marker_positions or ())
    probed = {checkpoint.budget: checkpoint for checkpoint in record.checkpoints}
    while not isinstance(event := session.next_event(), Stop | Ended):
        if isinstance(event, AskProbe):
            row = probed[event.position]
            assert not row.ended
            session.judge(
                normalized=row.normalized,
                mean_logprob=row.mean_logprob,
                mean_entropy=row.mean_entropy,
                markers=row.markers,
                closed_by_itself=row.closed_by_itself,
            )
        else:
            session.receive(ids[session.drawn : session.drawn + piece])
            if session.drawn >= record.trace_tokens + closer:
                session.end(record.trace_tokens, cut=record.finish == "length")
    return event if isinstance(event, Stop) else None


def committed_run(name: str, folder: Path) -> Path:
    """A sample's committed probes as a run directory."""
    folder.mkdir(exist_ok=True)
    probes = POLICIES / "probes"
    (folder / "manifest.json").write_bytes((probes / f"{name}.manifest.json").read_bytes())
    packed = (probes / f"{name}.probes.jsonl.xz").read_bytes()
    (folder / "probes.jsonl").write_bytes(lzma.decompress(packed))
    return folder


def rule_of(
    schedule: Schedule, family: str, model: LinearModel | None, threshold: float
) -> StopRule:
    """The stepper's rule for a scorer and a threshold on the linear scale."""
    trigger: Trigger
    if isinstance(schedule, ListedTrigger):
        trigger = schedule.as_stride()
    else:
        assert isinstance(schedule, MarkerTrigger)
        trigger = replace(schedule, markers=((0,),))  # scores do not depend on ids
    no_model: dict[str, Any] = {"features": [], "mean": [], "scale": [], "coef": []}
    no_model["intercept"] = None
    terms = example_terms(
        family=family,
        task="exact",
        **trigger_content(trigger),
        **no_model | ({} if model is None else asdict(model)),
    )
    return StopRule.of(replace(terms, decision_threshold=threshold))  # may be infinite


def walked(
    view: ProbeTable, rule: StopRule, i: int, most: int | None = None
) -> list[tuple[float, bool]]:
    """Score and decision at the probes of a question, at most `most`, until it stops."""
    stepper, found = Stepper(rule), []
    # Nobody would probe after the trace's end.
    for j in np.flatnonzero(view.live[i])[:most].tolist():
        code = int(view.answer_codes[i, j])
        decision = stepper.observe(
            think_tokens=int(view.think_tokens[i, j]),
            normalized="" if code == EMPTY_ANSWER else str(code),
            mean_logprob=float(view.mean_logprob[i, j]),
            mean_entropy=float(view.mean_entropy[i, j]),
            markers=float(view.markers[i, j]),
            closed_by_itself=(
                None if view.closed_by_itself is None else bool(view.closed_by_itself[i, j])
            ),
        )
        found.append((decision.score, decision.stop))
        if decision.stop:
            break
    return found


def replayed(
    table: ProbeTable, family: str, schedule: tuple[int, ...], model: LinearModel | None
) -> list[list[float]]:
    """Scores at the live checkpoints among some columns, by a rule that never stops."""
    view = table.select(schedule)
    rule = rule_of(ListedTrigger(tuple(view.budgets.tolist())), family, model, math.inf)
    return [[score for score, _ in walked(view, rule, i)] for i in range(view.n_questions)]


def stops(table: ProbeTable, scorer: Scorer, threshold: float) -> list[int]:
    """Column of the scorer's view at which each question stops; the number of columns for never."""
    view = scorer.view(table)
    rule = rule_of(scorer.schedule, scorer.family, scorer.model, threshold)
    walks = [walked(view, rule, i) for i in range(view.n_questions)]
    return [len(walk) - 1 if walk and walk[-1][1] else view.n_checkpoints for walk in walks]
