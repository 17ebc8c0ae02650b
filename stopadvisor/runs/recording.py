"""Forced answers that were recorded elsewhere, read into checked and labelled records.

Every question keeps the positions of its own probes.  Answers without labels are graded by gold,
and stay ungraded in a line with neither.  Knows no run directory and no model.
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
from typing import Any, NoReturn

from stopadvisor.answers.function_grader import Grades
from stopadvisor.answers.normal_form import (
    NORMALIZER,
    TASKS,
    check_gold,
    extract_natural,
    guess_task,
    normalize,
)
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.probes.records import Checkpoint, ProbeRecord
from stopadvisor.workload.lines import messages_field, read_rows, refuse, text_field
from stopadvisor.workload.questions import ASSUMED_TASK, content_key, name_key

__all__ = [
    "SUFFIX_TOKENS",
    "RecordedObject",
    "Recording",
    "question_key",
    "read_recording",
    "task_of",
]

SUFFIX_TOKENS = 12
"""Tokens of closer and cue in front of a forced answer, unless the user says otherwise."""

_FINISH = ("stop", "length")
_UNCERTAINTY = ("mean_logprob", "mean_entropy")
_ROUNDING = 1e-6
"""How far above 0 a log-probability may lie that was added up in single precision."""
_LABELS_AS_RECORDED = {"normalizer": NORMALIZER, "grader": "recorded"}
"""Grading of a run with recorded labels: their rules are unknown."""
_NATURAL = -1
"""Number of the natural answer among those of checkpoints."""


@dataclass(frozen=True)
class Recording:
    """A file of recorded answers as labelled records."""

    path: Path
    sha256: str
    """Of the file's bytes."""
    records: tuple[ProbeRecord, ...]
    """In the order of the file, each with the positions of its own probes."""
    n_graded: int
    """Answers without a recorded label, graded by gold."""
    grading: Mapping[str, str]
    """Normalizer and grader of the answers, as a manifest holds them."""
    positions_are_markers: bool = False
    """No line has `marker_positions`, and most positions differ between questions: these are taken
    for the positions of markers."""

    @property
    def n_ungraded(self) -> int:
        """Lines with neither labels nor gold."""
        return sum(not record.is_graded for record in self.records)

    @property
    def longest(self) -> int:
        """Thinking tokens of the longest trace."""
        return max(record.trace_tokens for record in self.records)

    @property
    def budgets(self) -> tuple[int, ...]:
        """Positions of every question's probes; empty unless all questions share them."""
        grids = {tuple(c.budget for c in record.checkpoints) for record in self.records}
        return grids.pop() if len(grids) == 1 else ()

    @property
    def entropy_source(self) -> str:
        """``full``, or ``none`` where no log-probability and no entropy was recorded."""
        return next(c.entropy_source for record in self.records for c in record.checkpoints)


def read_recording(
    path: str | Path, grader: Grades, *, suffix_tokens: int = SUFFIX_TOKENS, cap: int | None = None
) -> Recording:
    """Read and check recorded forced answers, one trace a line.

    Fields of a line: `id`, `trace_tokens`, `finish` (``stop``, or ``length`` where thinking was
    cut), `natural_answer` (null for none), `natural_correct`, `natural_answer_tokens`, and
    `checkpoints`, each with `budget` (thinking tokens before it), `answer`, `correct`,
    `probe_tokens` and, where known, `mean_logprob`, `mean_entropy` (nats) and `markers`.  A label
    may be left out where the line has `gold`, and all of them where it has none.  Optional: `task`,
    `category`, `group`, `sample`, `prompt_tokens`, `marker_positions`, and `key`, `question` or
    `messages`, which identify the question; else its id does.  If no line has `marker_positions`
    and most positions differ between questions, something in the thinking must have called for an
    answer there: these positions count as the markers'.  Other fields are ignored, so the lines of
    a ``probes.jsonl`` can be read as well; their `entropy_source` is kept.

    Parameters
    ----------
    grader : Grades
        Grades answers that come without a label.  One that reads questions is a function of the
        user's and grades all answers: no line may bring labels, and each that has gold needs
        `question` or `messages`.
    suffix_tokens : int
        Tokens of closer and cue in front of each forced answer.
    cap : int, optional
        The cap on thinking; longer traces are refused.

    Raises
    ------
    WorkloadError
        The file cannot be read, or a line is not as it should be; the message gives ``FILE:LINE``
        and the field.
    """
    path = Path(path)
    data, rows = read_rows(path)
    source = _entropy_source(rows)
    drafts = [
        _Draft.of(RecordedObject(where, row), source, suffix_tokens, cap) for where, row in rows
    ]
    _check_together(path, drafts)
    markers = _unshared_positions([draft.record for draft in drafts])
    if markers is not None:
        drafts = [draft.at_markers(places) for draft, places in zip(drafts, markers, strict=True)]
    records, n_graded = _label(drafts, grader)
    recorded = any(draft.has_labels for draft in drafts)
    grading = _LABELS_AS_RECORDED if recorded else dict(grader.identity)
    sha256 = hashlib.sha256(data).hexdigest()
    return Recording(path, sha256, records, n_graded, grading, markers is not None)


def _entropy_source(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The `entropy_source` of all lines; else ``full`` if any has an uncertainty, or ``none``."""
    named: str | None = None
    known = False
    for where, row in rows:
        probes = row.get("checkpoints")
        for probe in probes if isinstance(probes, list) else ():
            if not isinstance(probe, Mapping):
                continue  # refused with its place, when it is read
            known = known or any(probe.get(name) is not None for name in _UNCERTAINTY)
            source = text_field(dict(probe), "entropy_source", where)
            named = named or source
            if source not in (None, named):
                refuse(where, "entropy_source", f"{named!r} as before", source)
    return named or ("full" if known else "none")


@dataclass(frozen=True)
class RecordedObject:
    """One object of the file, and its name in messages."""

    where: str
    fields: dict[str, Any]
    prefix: str = ""

    def refuse(self, name: str, expected: str, got: Any, *, shown: bool = False) -> NoReturn:
        """Refuse one of its fields."""
        refuse(self.where, self.prefix + name, expected, got, shown=shown)

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number that is not negative."""
        value = self.fields.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or value < 0:  # a bool is no number
            self.refuse(name, "a whole number >= 0", value)
        return int(value)

    def number(self, name: str, expected: str, low: float, high: float) -> float | None:
        """A number between two limits; None where it was not recorded."""
        value = self.fields.get(name)
        if value is None:
            return None
        number = float(value) if type(value) is int or isinstance(value, Decimal) else math.nan
        if not (math.isfinite(number) and low <= number <= high):
            self.refuse(name, expected, value)
        return number

    def label(self, name: str) -> bool | None:
        """Whether an answer is right; None where it was not recorded."""
        value = self.fields.get(name)
        if value is not None and type(value) is not bool:
            self.refuse(name, "true or false", value)
        return value

    def answer(self, name: str) -> str | None:
        """What the model wrote, as text even if it is a number; None if it wrote nothing."""
        value = self.fields.get(name)
        if type(value) is int or isinstance(value, Decimal):
            return str(value)
        if value is not None and not isinstance(value, str):
            self.refuse(name, "text", value)
        return value


@dataclass(frozen=True)
class _Draft:
    """A record some of whose labels are still missing."""

    line: RecordedObject
    record: ProbeRecord
    unlabelled: tuple[int, ...]
    """Numbers of the answers without a label: of checkpoints, or `_NATURAL`."""
    has_labels: bool
    """Whether any answer came with its label."""

    @classmethod
    def of(cls, line: RecordedObject, source: str, suffix_tokens: int, cap: int | None) -> _Draft:
        where, row = line.where, line.fields
        name = text_field(row, "id", where)
        if name is None:
            refuse(where, "id", "a name for the question", None)
        gold = text_field(row, "gold", where, decimals=True)
        natural, natural_correct = line.answer("natural_answer"), line.label("natural_correct")
        has_labels = natural_correct is not None or _labels_a_probe(row)
        task = task_of(row, gold, where, "exact" if has_labels else ASSUMED_TASK)
        trace = line.whole("trace_tokens")
        if cap is not None and trace > cap:
            line.refuse("trace_tokens", f"at most the cap on thinking (--max-think {cap})", trace)
        if row.get("finish") not in _FINISH:
            line.refuse("finish", "'stop' or 'length'", row.get("finish"))
        markers = _marker_positions(line, trace)
        graded = has_labels or gold is not None
        checkpoints, unlabelled = _checkpoints(
            line, task, gold, trace, markers, source, graded=graded
        )
        if natural_correct is None and natural is not None:
            unlabelled = (_NATURAL, *unlabelled)
            _need_gold(line, "natural_correct", gold, graded=graded)
        if not graded:
            checkpoints = tuple(replace(c, correct=None) for c in checkpoints)
            unlabelled = ()
        record = ProbeRecord(
            id=name,
            key=question_key(row, name, where),
            group=text_field(row, "group", where),
            sample=line.whole("sample", 0),
            task=task,
            category=text_field(row, "category", where),
            gold=gold or ("" if graded else None),
            prompt_tokens=line.whole("prompt_tokens", 0),
            suffix_tokens=suffix_tokens,
            trace_tokens=trace,
            finish=row["finish"],
            natural_answer=natural,
            natural_correct=bool(natural_correct) if graded else None,
            natural_answer_tokens=line.whole("natural_answer_tokens"),
            checkpoints=checkpoints,
            marker_positions=markers,
        )
        return cls(line, record, unlabelled, has_labels)

    def at_markers(self, positions: tuple[int, ...]) -> _Draft:
        """Return the line with these positions of markers, and their counts where it has none."""
        counted = (row.get("markers") for row in self.line.fields["checkpoints"])
        checkpoints = tuple(
            replace(c, markers=bisect.bisect_left(positions, c.budget)) if given is None else c
            for c, given in zip(self.record.checkpoints, counted, strict=True)
        )
        record = replace(self.record, marker_positions=positions, checkpoints=checkpoints)
        return replace(self, record=record)


def question_key(row: dict[str, Any], name: str, where: str) -> str:
    """A line's `key`, else the hash of its question, else that of its id."""
    key = text_field(row, "key", where)
    if key is not None:
        return key
    if row.get("question") is None and row.get("messages") is None:
        return name_key(name)
    return content_key(messages_field(row, where)[0])


def _labels_a_probe(row: Mapping[str, Any]) -> bool:
    probes = row.get("checkpoints")
    rows = probes if isinstance(probes, list) else []  # refused with its place, when it is read
    return any(isinstance(p, Mapping) and p.get("correct") is not None for p in rows)


def task_of(row: dict[str, Any], gold: str | None, where: str, default: str) -> str:
    """Kind of answer of a line; refuses an unknown one, and gold that does not fit it."""
    task = text_field(row, "task", where) or (default if gold is None else guess_task(gold))
    if task not in TASKS:
        refuse(where, "task", f"one of {', '.join(TASKS)}", task)
    if gold is not None:
        try:
            check_gold(task, gold)
        except ValueError as error:
            raise WorkloadError(f"{where}: field 'gold': {error}") from None
    return task


def _need_gold(line: RecordedObject, name: str, gold: str | None, *, graded: bool) -> None:
    """Refuse a line that lacks this label, has others, and has no gold to grade by."""
    if gold is None and graded:
        line.refuse(
            name,
            "true or false, or 'gold' in the line to grade by",
            "neither, as the line has other labels",
            shown=True,
        )


def _marker_positions(line: RecordedObject, trace: int) -> tuple[int, ...] | None:
    places = line.fields.get("marker_positions")
    if places is None:
        return None
    expected = f"increasing whole numbers from 0 to trace_tokens ({trace})"
    if not isinstance(places, list) or any(type(p) is not int for p in places):
        line.refuse("marker_positions", expected, places)
    rising = all(a < b for a, b in pairwise(places))
    if not rising or (places and not 0 <= places[0] <= places[-1] <= trace):
        line.refuse("marker_positions", expected, places)
    return tuple(places)


def _checkpoints(
    line: RecordedObject,
    task: str,
    gold: str | None,
    trace: int,
    markers: Sequence[int] | None,
    source: str,
    *,
    graded: bool,
) -> tuple[tuple[Checkpoint, ...], tuple[int, ...]]:
    """The forced answers of a line, and the numbers of those without a label."""
    rows = line.fields.get("checkpoints")
    if not isinstance(rows, list):
        line.refuse("checkpoints", "a list of forced answers", rows)
    checkpoints: list[Checkpoint] = []
    unlabelled = []
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            line.refuse(f"checkpoints[{number}]", "an object", row)
        probe = RecordedObject(line.where, row, f"checkpoints[{number}].")
        budget = probe.whole("budget")
        if checkpoints and budget <= checkpoints[-1].budget:
            before = checkpoints[-1].budget
            probe.refuse("budget", f"more thinking tokens than before ({before})", budget)
        answer = probe.answer("answer") or ""
        normalized = normalize(task, answer)
        correct = probe.label("correct")
        if correct is None and normalized:
            _need_gold(probe, "correct", gold, graded=graded)
            unlabelled.append(number)
        logprob = probe.number("mean_logprob", "a number <= 0", -math.inf, _ROUNDING)
        seen = bisect.bisect_left(markers or (), budget)
        counted = probe.number("markers", "a number >= 0", 0, math.inf)
        checkpoints.append(
            Checkpoint(
                budget=budget,
                answer=answer,
                normalized=normalized,
                correct=bool(correct),
                mean_logprob=None if logprob is None else min(logprob, 0.0),
                mean_entropy=probe.number("mean_entropy", "a number >= 0", 0, math.inf),
                entropy_source=source,
                probe_tokens=probe.whole("probe_tokens"),
                markers=seen if counted is None else counted,
                ended=budget >= trace,
                closed_by_itself=probe.label("closed_by_itself"),
            )
        )
    return tuple(checkpoints), tuple(unlabelled)


def _check_together(path: Path, drafts: Sequence[_Draft]) -> None:
    """Refuse lines that contradict each other."""
    traces: dict[tuple[str, int], str] = {}
    ids: dict[str, _Draft] = {}
    keys: dict[str, _Draft] = {}
    for draft in drafts:
        record, line = draft.record, draft.line
        first = traces.setdefault((record.id, record.sample), line.where)
        if first != line.where:
            sample = f"sample {record.sample} of {record.id!r}"
            line.refuse("id", f"a trace once, {sample} stands in line {_number(first)} too", sample)
        for name, known in (("key", ids.setdefault(record.id, draft)), *_of_one_key(keys, draft)):
            ours, theirs = getattr(record, name), getattr(known.record, name)
            if ours != theirs:
                here = f"{theirs!r} as for the same question in line {_number(known.line.where)}"
                line.refuse(name, here, ours)
        if (record.marker_positions is None) != (drafts[0].record.marker_positions is None):
            line.refuse(
                "marker_positions",
                f"it in every line or in none, as in line {_number(drafts[0].line.where)}",
                line.fields.get("marker_positions"),
            )
    if not any(draft.record.checkpoints for draft in drafts):
        raise WorkloadError(f"{path}: field 'checkpoints': expected forced answers, got none")


def _unshared_positions(records: Sequence[ProbeRecord]) -> list[tuple[int, ...]] | None:
    """Find each record's positions at which some question that was still thinking was not asked.

    Returns
    -------
    list of tuple, or None
        Positions of each record, in order.  None if `marker_positions` are recorded, or if most
        positions are shared: then it is a grid, in which some answers may be missing.
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
    # Positions where only one trace thinks on are never shared.
    shared = {p for p, n in times.items() if n == thinking_on[p] > 1}
    return [tuple(p for p in positions if p not in shared) for positions in asked]


def _of_one_key(keys: dict[str, _Draft], draft: _Draft) -> list[tuple[str, _Draft]]:
    first = keys.setdefault(draft.record.key, draft)
    return [(name, first) for name in ("group", "task", "gold")]


def _number(where: str) -> str:
    return where.rpartition(":")[2]


def _label(drafts: Sequence[_Draft], grader: Grades) -> tuple[tuple[ProbeRecord, ...], int]:
    """Fill in the labels that were not recorded; also return how many there are."""
    items: list[tuple[str, str, str | None]] = []
    asked: list[str] = []
    for draft in drafts:
        record = draft.record
        if grader.reads_questions and (draft.unlabelled or draft.has_labels):
            asked += [_question(draft)] * len(draft.unlabelled)
        for number in draft.unlabelled:
            if number == _NATURAL:
                assert record.natural_answer is not None  # else there is nothing to label
                answer = extract_natural(record.task, record.natural_answer)
            else:
                answer = record.checkpoints[number].answer
            assert record.gold is not None
            items.append((record.task, record.gold, answer))
    verdicts = iter(grader.grade_many(items, asked))
    labelled = []
    for draft in drafts:
        graded = {number: next(verdicts) for number in draft.unlabelled}
        right = {number: verdict is True for number, verdict in graded.items()}
        record = draft.record
        if right:
            record = replace(
                record,
                cannot_tell=list(graded.values()).count(None),
                natural_correct=right.get(_NATURAL, record.natural_correct),
                checkpoints=tuple(
                    replace(c, correct=right[k]) if k in right else c
                    for k, c in enumerate(record.checkpoints)
                ),
            )
        labelled.append(record)
    return tuple(labelled), len(items)


def _question(draft: _Draft) -> str:
    """The question of a line, for a function that grades all answers; refuses recorded labels."""
    line = draft.line
    if draft.has_labels:
        expected = "no label, here or in 'checkpoints', because --grader says what is right"
        line.refuse("natural_correct", expected, "recorded labels", shown=True)
    return str(messages_field(line.fields, line.where)[0][-1]["content"])
