"""Read forced answers that were recorded elsewhere into checked and graded records.

Every question keeps its own probe positions.  Answers without labels are graded by gold, and stay
ungraded in lines with neither.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from stopadvisor.answers.grading import Grades
from stopadvisor.answers.normal_form import NORMALIZER, TASKS, guess_task, normalize
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.ground.fields import MOST_TOKENS
from stopadvisor.probes.records import Checkpoint, Graded, ProbeRecord
from stopadvisor.runs.verdicts import grade_records
from stopadvisor.workload.lines import messages_field, read_rows, refuse, text_field
from stopadvisor.workload.questions import ASSUMED_TASK, content_key, name_key, require_usable_gold

__all__ = [
    "LABELS_AS_RECORDED", "ROUNDING", "SUFFIX_TOKENS", "Recorded", "RecordedObject",
    "Recording", "check_questions", "label_or_gold", "question_fields", "read_recording",
]  # fmt: skip

SUFFIX_TOKENS = 12
"""Default number of tokens of closer and cue before a forced answer."""

_FINISH = ("stop", "length")
_UNCERTAINTY = ("mean_logprob", "mean_entropy")
ROUNDING = 1e-6
"""How far above 0 a log-probability may be after sums in single precision."""
LABELS_AS_RECORDED = {"normalizer": NORMALIZER, "grader": "recorded"}
"""Grading of a run whose labels were recorded, by rules that we do not know."""

_Record = TypeVar("_Record", bound=Graded)


@dataclass(frozen=True)
class Recorded(Generic[_Record]):
    """A file of recorded answers as graded records."""

    path: Path
    sha256: str
    """SHA-256 of the file's bytes."""
    records: tuple[_Record, ...]
    """In the order of the file."""
    n_graded: int
    """Answers without a recorded label, graded by gold."""
    grading: Mapping[str, str]
    """Versions of normalizer and grader, as the manifest holds them."""

    @property
    def n_ungraded(self) -> int:
        """Lines with neither labels nor gold."""
        return sum(not record.is_graded for record in self.records)


@dataclass(frozen=True)
class Recording(Recorded[ProbeRecord]):
    """Recorded forced answers, each record with the positions of its own probes."""

    positions_are_markers: bool = False
    """No line has `marker_positions`, and most positions differ between questions, so they are
    taken for marker positions."""

    @property
    def longest(self) -> int:
        """Thinking tokens of the longest trace."""
        return max(record.trace_tokens for record in self.records)

    @property
    def budgets(self) -> tuple[int, ...]:
        """Probe positions, if all questions share them; else empty."""
        grids = {tuple(c.budget for c in record.checkpoints) for record in self.records}
        return grids.pop() if len(grids) == 1 else ()

    @property
    def entropy_source(self) -> str:
        """What entropies are over; ``none`` if neither they nor log-probabilities were recorded."""
        return next(c.entropy_source for record in self.records for c in record.checkpoints)


def read_recording(
    path: str | Path, grader: Grades, *, suffix_tokens: int = SUFFIX_TOKENS, cap: int | None = None
) -> Recording:
    """Read and check recorded forced answers, one trace a line.

    ``stopadvisor import probes --help`` lists the fields of a line.  Others are ignored, so that a
    ``probes.jsonl`` can be read too.  A line with gold may leave out labels; one without gold may
    leave out all of them.  If no line has `marker_positions` and most positions differ between
    questions, something in the thinking must have triggered the probes: their positions are taken
    for those of markers.

    `grader` grades answers without a label.  A user's function, which reads the question, grades
    all answers: no line may have labels, and lines with gold need `question` or `messages`.  Each
    forced answer follows `suffix_tokens` of closer and cue.  Traces of more than `cap` thinking
    tokens are refused.

    Raises
    ------
    WorkloadError
        The file cannot be read, or a field is missing or malformed; the message gives
        ``FILE:LINE`` and the field.
    """
    path = Path(path)
    data, rows = read_rows(path)
    source = _entropy_source(rows)
    lines = [RecordedObject(where, row) for where, row in rows]
    records = [_record(line, source, suffix_tokens, cap) for line in lines]
    _check_together(path, lines, records)
    markers = _unshared_positions(records)
    if markers is not None:
        records = list(map(_at_markers, lines, records, markers))
    questions = _questions(lines, records) if grader.reads_questions else {}
    graded, n_graded = grade_records(records, grader, questions)
    recorded = any(_brings_labels(line) for line in lines)
    grading = LABELS_AS_RECORDED if recorded else dict(grader.identity)
    sha256 = hashlib.sha256(data).hexdigest()
    return Recording(path, sha256, tuple(graded), n_graded, grading, markers is not None)


def _entropy_source(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The named `entropy_source`; else ``full`` if any probe has an uncertainty, or ``none``."""
    named: str | None = None
    known = False
    for where, row in rows:
        for probe in _probes_of(row):
            known = known or any(probe.get(name) is not None for name in _UNCERTAINTY)
            source = text_field(probe, "entropy_source", where)
            named = named or source
            if source not in (None, named):
                refuse(where, "entropy_source", f"{named!r} as before", source)
    return named or ("full" if known else "none")


def _probes_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objects among a line's checkpoints; anything else is refused later."""
    probes = row.get("checkpoints")
    return [p for p in probes if isinstance(p, dict)] if isinstance(probes, list) else []


def _brings_labels(line: RecordedObject) -> bool:
    """Whether any answer of a line has a label."""
    rows = [{"correct": line.fields.get("natural_correct")}, *_probes_of(line.fields)]
    return any(row.get("correct") is not None for row in rows)


@dataclass(frozen=True)
class RecordedObject:
    """One object of the file, with checked access to its fields."""

    where: str
    fields: dict[str, Any]
    prefix: str = ""

    def refuse(self, name: str, expected: str, got: Any, *, shown: bool = False) -> NoReturn:
        """Raise the error for one of its fields."""
        refuse(self.where, self.prefix + name, expected, got, shown=shown)

    def whole(self, name: str, default: int | None = None) -> int:
        """A non-negative whole number; required unless there is a `default`."""
        value = self.fields.get(name)
        if value is None and default is not None:
            return default
        # `type`, because a bool is an int
        if type(value) is not int or not 0 <= value <= MOST_TOKENS:
            self.refuse(name, f"a whole number from 0 to {MOST_TOKENS}", value)
        return int(value)

    def number(self, name: str, expected: str, low: float, high: float) -> float | None:
        """A number from `low` to `high`; None if it was not recorded."""
        value = self.fields.get(name)
        if value is None:
            return None
        is_number = type(value) is int or isinstance(value, Decimal)
        number = float(Decimal(value)) if is_number else math.nan  # a huge int becomes infinite
        if not (math.isfinite(number) and low <= number <= high):
            self.refuse(name, expected, value)
        return number

    def logprob(self) -> float | None:
        """The mean log-probability; None if it was not recorded."""
        value = self.number("mean_logprob", "a number <= 0", -math.inf, ROUNDING)
        return None if value is None else min(value, 0.0)

    def label(self, name: str) -> bool | None:
        """Whether an answer is right; None if it was not recorded."""
        value = self.fields.get(name)
        if value is not None and type(value) is not bool:
            self.refuse(name, "true or false", value)
        return value

    def answer(self, name: str) -> str | None:
        """The model's answer, a number as text; None if it wrote nothing."""
        value = self.fields.get(name)
        if type(value) is int or isinstance(value, Decimal):
            return str(value)
        if value is not None and not isinstance(value, str):
            self.refuse(name, "text", value)
        return value


# --- A line --------------------------------------------------------------------------------------


def question_fields(line: RecordedObject, *, labelled: bool) -> dict[str, Any]:
    """The fields about the question, which every record has.

    `labelled` says whether any of the line's answers has a label.  The key is the line's own, else
    a hash of its question, else of its id.  `gold` is None in a line with neither gold nor labels,
    and empty in one with only labels.
    """
    where, row = line.where, line.fields
    name, key, gold, task = (
        text_field(row, field, where, decimals=field == "gold")
        for field in ("id", "key", "gold", "task")
    )
    if name is None:
        line.refuse("id", "a name for the question", None)
    if key is None:
        known = row.get("question") is not None or row.get("messages") is not None
        key = content_key(messages_field(row, where)[0]) if known else name_key(name)
    if task is None:
        task = "exact" if labelled else ASSUMED_TASK
        task = task if gold is None else guess_task(gold)
    if task not in TASKS:
        line.refuse("task", f"one of {', '.join(TASKS)}", task)
    if gold is not None:
        require_usable_gold(task, gold, where)
    return {
        "id": name,
        "key": key,
        "group": text_field(row, "group", where),
        "task": task,
        "category": text_field(row, "category", where),
        "gold": gold or ("" if labelled else None),
    }


def label_or_gold(
    line: RecordedObject, name: str, question: Mapping[str, Any], *, answered: bool
) -> bool | None:
    """A recorded label; None if gold has to decide, or if the line has neither.

    Without a label a missing answer (not `answered`) is wrong, and any other is refused in a line
    that has other labels and no gold.
    """
    label = line.label(name)
    if label is not None or question["gold"] is None:
        return label
    if not answered:
        return False
    if not question["gold"]:
        line.refuse(
            name,
            "true or false, or 'gold' in the line to grade by",
            "neither in a line with other labels",
            shown=True,
        )
    return None


def _record(line: RecordedObject, source: str, suffix_tokens: int, cap: int | None) -> ProbeRecord:
    """The record of a line, with None for labels that gold has to decide."""
    row, question = line.fields, question_fields(line, labelled=_brings_labels(line))
    natural, trace = line.answer("natural_answer"), line.whole("trace_tokens")
    if cap is not None and trace > cap:
        line.refuse("trace_tokens", f"at most the cap on thinking (--max-think {cap})", trace)
    if row.get("finish") not in _FINISH:
        line.refuse("finish", "'stop' or 'length'", row.get("finish"))
    markers, tokens = _marker_positions(line, trace), line.whole("natural_answer_tokens")
    right = label_or_gold(line, "natural_correct", question, answered=natural is not None)
    silent = tokens > 0 and row["finish"] == "stop" and not (natural or "").strip()
    if silent and question["gold"] is not None and row.get("natural_correct") is None:
        # Taken for a wrong answer, it would hide that stopping loses a right one.
        line.refuse("natural_answer", f"the text of {tokens} natural_answer_tokens", natural)
    return ProbeRecord(
        **question,
        sample=line.whole("sample", 0),
        prompt_tokens=line.whole("prompt_tokens", 0),
        suffix_tokens=suffix_tokens,
        trace_tokens=trace,
        finish=row["finish"],
        natural_answer=natural,
        natural_correct=right,
        natural_answer_tokens=tokens,
        checkpoints=_checkpoints(line, question, trace, markers, source),
        marker_positions=markers,
    )


def _at_markers(
    line: RecordedObject, record: ProbeRecord, positions: tuple[int, ...]
) -> ProbeRecord:
    """The record with these marker positions, and marker counts where none were recorded."""
    checkpoints = tuple(
        replace(c, markers=bisect.bisect_left(positions, c.budget))
        if row.get("markers") is None
        else c
        for c, row in zip(record.checkpoints, line.fields["checkpoints"], strict=True)
    )
    return replace(record, marker_positions=positions, checkpoints=checkpoints)


def _marker_positions(line: RecordedObject, trace: int) -> tuple[int, ...] | None:
    places = line.fields.get("marker_positions")
    if places is None:
        return None
    is_list = isinstance(places, list) and all(type(p) is int and 0 <= p <= trace for p in places)
    if not is_list or any(a >= b for a, b in pairwise(places)):
        expected = f"increasing whole numbers from 0 to trace_tokens ({trace})"
        line.refuse("marker_positions", expected, places)
    return tuple(places)


def _checkpoints(
    line: RecordedObject,
    question: Mapping[str, Any],
    trace: int,
    markers: Sequence[int] | None,
    source: str,
) -> tuple[Checkpoint, ...]:
    rows = line.fields.get("checkpoints")
    if not isinstance(rows, list):
        line.refuse("checkpoints", "a list of forced answers", rows)
    checkpoints: list[Checkpoint] = []
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            line.refuse(f"checkpoints[{number}]", "an object", row)
        probe = RecordedObject(line.where, row, f"checkpoints[{number}].")
        budget = probe.whole("budget")
        if checkpoints and budget <= checkpoints[-1].budget:
            before = checkpoints[-1].budget
            probe.refuse("budget", f"more thinking tokens than before ({before})", budget)
        answer = probe.answer("answer") or ""
        normalized = normalize(question["task"], answer)
        counted = probe.number("markers", "a number >= 0", 0, math.inf)
        checkpoints.append(
            Checkpoint(
                budget=budget,
                answer=answer,
                normalized=normalized,
                correct=label_or_gold(probe, "correct", question, answered=bool(normalized)),
                mean_logprob=probe.logprob(),
                mean_entropy=probe.number("mean_entropy", "a number >= 0", 0, math.inf),
                entropy_source=source,
                probe_tokens=probe.whole("probe_tokens"),
                markers=bisect.bisect_left(markers or (), budget) if counted is None else counted,
                ended=budget >= trace,
                closed_by_itself=probe.label("closed_by_itself"),
            )
        )
    return tuple(checkpoints)


# --- The lines together --------------------------------------------------------------------------


def check_questions(lines: Sequence[RecordedObject], records: Sequence[Any]) -> None:
    """Refuse lines that disagree on a question, which in two groups would count twice."""
    first: dict[str, dict[str, int]] = {"id": {}, "key": {}}
    for n, (line, record) in enumerate(zip(lines, records, strict=True)):
        for of, name in (("id", "key"), ("key", "group"), ("key", "task"), ("key", "gold")):
            known = first[of].setdefault(getattr(record, of), n)
            ours, theirs = getattr(record, name), getattr(records[known], name)
            if ours != theirs:
                here = f"{theirs!r} as for the same question in {lines[known].where}"
                line.refuse(name, here, ours)


def _check_together(
    path: Path, lines: Sequence[RecordedObject], records: Sequence[ProbeRecord]
) -> None:
    """Refuse lines that contradict each other."""
    check_questions(lines, records)
    traces: dict[tuple[str, int], int] = {}
    for n, (line, record) in enumerate(zip(lines, records, strict=True)):
        known = traces.setdefault((record.id, record.sample), n)
        if known != n:
            sample = f"sample {record.sample} of {record.id!r}"
            other = f"{sample} is in line {_number(lines[known])} too"
            line.refuse("id", f"a trace once, {other}", sample)
        if (record.marker_positions is None) != (records[0].marker_positions is None):
            line.refuse(
                "marker_positions",
                f"it in every line or in none, as in line {_number(lines[0])}",
                line.fields.get("marker_positions"),
            )
    for (question, number), n in traces.items():
        # Without its first trace, which enters the test, a question would count nowhere.
        if number and (question, number - 1) not in traces:
            before = f"sample {number - 1} of {question!r} in the file, too"
            lines[n].refuse("sample", before, number)
    if not any(record.checkpoints for record in records):
        raise WorkloadError(f"{path}: field 'checkpoints': expected forced answers, got none")


def _number(line: RecordedObject) -> str:
    return line.where.rpartition(":")[2]


def _unshared_positions(records: Sequence[ProbeRecord]) -> list[tuple[int, ...]] | None:
    """Positions of each record at which some other question that was still thinking has no probe.

    None if `marker_positions` are recorded, or if most positions are shared: then it is a grid in
    which some answers may be missing.
    """
    if records[0].marker_positions is not None:
        return None
    lengths = sorted(record.trace_tokens for record in records)
    asked = [
        tuple(c.budget for c in record.checkpoints if c.budget < record.trace_tokens)
        for record in records
    ]
    times = Counter(chain.from_iterable(asked))
    thinking_on = {p: len(lengths) - bisect.bisect_right(lengths, p) for p in times}
    n_unshared = sum(n for p, n in times.items() if n < thinking_on[p])
    if 2 * n_unshared <= times.total():
        return None
    # A position that only one trace reaches cannot be shared.
    shared = {p for p, n in times.items() if n == thinking_on[p] > 1}
    return [tuple(p for p in positions if p not in shared) for positions in asked]


def _questions(lines: Sequence[RecordedObject], records: Sequence[ProbeRecord]) -> dict[str, str]:
    """Texts of the questions with gold, by key, for a user's function; no line may have labels."""
    texts = {}
    for line, record in zip(lines, records, strict=True):
        if _brings_labels(line):
            expected = "no label, here or in 'checkpoints', because --grader says what is right"
            line.refuse("natural_correct", expected, "recorded labels", shown=True)
        if record.gold:
            texts[record.key] = messages_field(line.fields, line.where)[0][-1]["content"]
    return texts
