"""What a policy says: one tree of frozen classes, read once from the file and asked by everybody.

Each field states its type and range; `fields.parse` makes the tree and refuses the rest.  What must
hold between fields is for `consistency`, `claims` and `evidence`.  Knows no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from stopadvisor.answers.normal_form import TASKS
from stopadvisor.ground.fields import (
    Condition,
    Line,
    Most,
    Name,
    Positive,
    Sha256,
    TokenCount,
    TokenId,
    matching,
    one_of,
)
from stopadvisor.policy.claims import CertificateTerms
from stopadvisor.policy.evidence import ExpectedTerms, ProfileShare, ServedTerms, SplitTerms
from stopadvisor.probes.asking import OnStop
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger, stride
from stopadvisor.rules.climb import RUNG_FEATURES
from stopadvisor.rules.families import FAMILIES, RUNG_FAMILIES
from stopadvisor.rules.features import FEATURES, LOGPROB_FEATURES, OPEN_FEATURES, POSITION_FEATURES
from stopadvisor.runs.ladder import MOST_RUNGS, MOST_SAMPLES

__all__ = [
    "LADDER_TRIGGER", "MIXED_TASKS", "EngineTerms", "GoldenExample", "LadderTerms", "ModelTerms",
    "PolicyTerms", "ProbeTerms", "SamplingTerms", "TokenText", "TriggerTerms", "reads_logprobs",
    "trigger_of", "trigger_terms",
]  # fmt: skip

MIXED_TASKS = "mixed"
"""`task` of a policy whose questions each bring their own."""
MOST_GRID_POSITIONS = 1024
_MOST_MARKERS = 1024
_MOST_GOLDEN = 32
_MOST_STEPS = 1024
_LOGPROB_FAMILIES = ("confidence", "entropy", "confidence-leap", "deer", "rung-confidence")


def reads_logprobs(family: str | None, features: Sequence[str]) -> bool:
    """Whether a rule reads log-probability or entropy: its probes' entropy source matters then."""
    return family in _LOGPROB_FAMILIES or not set(features).isdisjoint(LOGPROB_FEATURES)


def _is_timestamp(value: str) -> bool:
    try:
        return bool(datetime.fromisoformat(value))
    except ValueError:
        return False


_Features = Annotated[
    str, one_of(*dict.fromkeys((*FEATURES, *POSITION_FEATURES, *OPEN_FEATURES, *RUNG_FEATURES)))
]
_Task = Annotated[str, one_of(*TASKS, MIXED_TASKS)]
_Template = Annotated[
    Any,
    Condition(
        "a string, a dict of strings by task, or null",
        lambda value: (
            value is None
            or type(value) is str
            or (type(value) is dict and all(type(text) is str for text in value.values()))
        ),
    ),
]
_Arguments = Annotated[Any, Condition("a dict", lambda value: type(value) is dict)]


@dataclass(frozen=True)
class TokenText:
    """A text and the token ids that stand for it."""

    text: str
    """As decoded."""
    ids: tuple[TokenId, ...] | None
    """As the model sees it; null where not recorded."""


@dataclass(frozen=True)
class ProbeTerms:
    """How an answer is forced."""

    SPARSE: ClassVar[bool] = True

    closer: TokenText
    """Closes the thinking."""
    cue: TokenText
    """Follows the closer, or the thinking, and asks for the answer."""
    cap: TokenCount
    """Most tokens of a forced answer."""
    answer_cap: TokenCount | None
    """Most tokens of a visible answer; null where it was not recorded."""
    stop_ids: tuple[TokenId, ...] | None
    """Tokens that end an answer."""
    open_cue: bool = False
    """Whether the cue stands in the open thinking, without a closer before it."""


@dataclass(frozen=True)
class TriggerTerms:
    """Where a trace is probed."""

    kind: Literal["grid", "stride", "marker", "none", "ladder"]
    """At `budgets`, every N tokens, just before a marker, or not at all: at one position
    alone, or because whole replies are asked, those of `ladder`."""
    every: TokenCount | None
    """Tokens from one position to the next."""
    first: TokenId | None
    """First position of a stride; null: `every`."""
    cap: TokenId | None
    """No position of a stride lies beyond it."""
    min_gap: TokenCount | None
    """A marker that comes fewer tokens after the last probe is passed over."""
    max_probes: TokenCount | None
    """Most probes of a trace, not counting `stop_at`."""
    max_markers: TokenCount | None
    """Only this many markers of a trace count, from its beginning, those passed over too."""
    markers: Annotated[tuple[tuple[TokenId, ...], ...], Most(_MOST_MARKERS)]
    """Token ids of each marker; empty where the kind is another, and in a policy from recorded
    answers, which cannot be served."""
    stop_at: TokenId | None
    """Whoever still thinks here is stopped, whatever the score; null: nobody is."""


@dataclass(frozen=True)
class LadderTerms:
    """Replies of cheaper rungs, asked one after the other, and when one is served."""

    rungs: Annotated[tuple[Mapping[str, Any], ...], Most(MOST_RUNGS)]
    """As in `ladder.toml`, in the order of climbing, the reference last.  Where a server is, and
    its key, is not in the file."""
    asked: Annotated[tuple[TokenId, ...], Most(MOST_RUNGS * MOST_SAMPLES)]
    """Replies that are asked before the reference, counted from 0: a rung has `repeat` of them."""
    path: Annotated[tuple[tuple[float, ...], ...], Most(_MOST_STEPS)]
    """Thresholds of each step, one for each reply of `asked`; from bold to careful.
    `decision_threshold` is the number of the step that is served, from 1."""
    on_give_up: Literal["escalate", "reply"] | None = None
    """What is done about a reply whose score lies below the step's level of `give_up`: the
    reference is asked next, or the reply is served, marked as given up.  Null: it is climbed past
    as any other."""
    give_up: tuple[float, ...] | None = None
    """A level for each step of `path`; null with `on_give_up`."""


@dataclass(frozen=True)
class MarkerTerms:
    """Backtracking markers."""

    phrases: tuple[Name, ...]
    """What is counted."""
    rule: Line
    """How it is counted, in words."""


@dataclass(frozen=True)
class DrawnTerms:
    """What a plan and the model's own settings made of sampling, as `engines.sampling.Sampling`."""

    temperature: float
    """0 takes the likeliest token."""
    top_k: int
    """Draw among the likeliest k tokens; 0 for all."""
    top_p: float
    """Draw among the likeliest tokens that together hold this probability."""
    min_p: float
    """Draw among tokens at least this likely, relative to the likeliest."""
    repetition_penalty: float
    """Divides positive and multiplies negative logits of tokens that stand in the sequence."""


@dataclass(frozen=True)
class SamplingTerms:
    """How thinking is drawn."""

    greedy: bool
    """Whether the likeliest token is taken."""
    temperature: Annotated[float, Condition("a number > 0", lambda value: value > 0)] | None
    """Of the draw; null for the model's own."""
    seed: int
    """Of the draw."""
    recorded: Sha256 | None = None
    """Of the traces, where thinking was recorded; the other fields count for nothing then."""
    drawn: DrawnTerms | None = None
    """What a server must draw like; null where that was not recorded."""


@dataclass(frozen=True)
class ModelTerms:
    """The model that the policy is bound to."""

    name: Line
    """As it was loaded or served."""
    revision: Line | None
    """A commit, or a hash over the files."""
    tokenizer_sha256: Line | None
    """Over the tokenizer."""
    template_sha256: Line | None
    """Over the chat template."""


@dataclass(frozen=True)
class EngineTerms:
    """What ran the model at calibration."""

    name: Line
    """`hf` or `openai`."""
    version: Line | None
    """Of the library or server; several, where one went on with the run of another."""
    dtype: Line | None
    """Of the weights."""
    quantization: Line | None
    """Of the weights."""
    attention: Line | None
    """Implementation of attention."""
    device: Line | None
    """What it ran on."""


@dataclass(frozen=True)
class GoldenStep:
    """What comes in at one checkpoint."""

    answer: str
    """A forced answer, as decoded."""
    normalized: str
    """What it must normalise to."""
    mean_logprob: float
    """Mean over the answer's tokens, in nats."""
    mean_entropy: float
    """Mean over the answer's tokens, in nats."""
    markers: float
    """Markers in the prefix."""
    think_tokens: TokenId
    """Thinking tokens in the prefix."""
    closed_by_itself: bool | None = None
    """The model closed its thinking right after the answer; where the feature of this name is
    read."""


@dataclass(frozen=True)
class GoldenDecision:
    """What must come out."""

    stop: bool
    """What must be decided."""
    score: float
    """What the score must be."""


@dataclass(frozen=True)
class GoldenExample:
    """A trajectory with its decisions."""

    task: Annotated[str, one_of(*TASKS)]
    """Of this example."""
    steps: tuple[GoldenStep, ...]
    """What comes in, checkpoint by checkpoint."""
    decisions: tuple[GoldenDecision, ...]
    """What must come out, one for each step."""


@dataclass(frozen=True, kw_only=True)
class PolicyTerms:
    """Everything in a policy's file, in its order: what decides first, what it rests on last."""

    schema: int
    """Version of these fields; a change of their meaning raises it."""
    digest: Sha256
    """Over the text with zeros in its place; finds damage, and is no signature."""
    kind: Literal["stop", "full-budget"]
    """Whether it can stop a request; `full-budget` asks no probe and thinks to the end."""
    family: Annotated[str, one_of(*FAMILIES, *RUNG_FAMILIES)] | None
    """Which score decides; null for `full-budget`."""
    decision_threshold: float | None
    """Stop when the score reaches it."""
    threshold: float | None
    """For people: `decision_threshold` as a probability or confidence, where it is one."""
    on_stop: OnStop
    """What a stopped request gets: the forced answer, or a visible one written after the closer."""
    trigger: TriggerTerms | None
    """Where to probe; null for `full-budget`."""
    ladder: LadderTerms | None = None
    """Which replies are asked, where they are those of a ladder; nothing is asked but the reference
    by `full-budget`."""
    budgets: Annotated[tuple[TokenId, ...], Most(MOST_GRID_POSITIONS)]
    """Thinking tokens at which to probe, strictly increasing; for a trigger of kind `grid` only."""
    probe: ProbeTerms | None
    """How an answer is forced; its texts are empty where probes came from an archive."""
    features: tuple[_Features, ...]
    """Features that a learned score reads, in the order in which its terms are added."""
    mean: tuple[float, ...]
    """Of each feature; linear families only."""
    scale: tuple[Positive, ...]
    """What each feature is divided by once its mean is subtracted; linear families only."""
    coef: tuple[float, ...]
    """Weight of each scaled feature; linear families only."""
    intercept: float | None
    """What a learned score begins with."""
    markers: MarkerTerms
    """Backtracking markers, for the feature `marker_density`."""
    task: _Task
    """How answers are normalised; `mixed`: each request names its own task."""
    normalizer: Line
    """Version of the normal form by which answers are compared."""
    grader: Line
    """What graded the calibration questions; of a function `certificate.grader` has the hash."""
    entropy_source: Annotated[
        str, matching("full|none|top-k:[1-9][0-9]{0,6}", "'full', 'top-k:K' with K >= 1, or 'none'")
    ]
    """Which part of the vocabulary entropies are taken over."""
    prompt_template: _Template
    """Text around a question, with `{question}` in it, or one by task; null for none."""
    chat_template_kwargs: _Arguments
    """Arguments of the model's chat template; `chat_template` and its like are refused."""
    sampling: SamplingTerms | None
    """How thinking is drawn; null where probes came from an archive."""
    max_think: TokenCount | None
    """Most thinking tokens of a request."""
    model: ModelTerms | None
    """What it is bound to; null where probes came from an archive."""
    engine: EngineTerms | None
    """What ran the model; under another one the policy serves, with a remark."""
    certificate: CertificateTerms | None
    """What was shown; null only for `full-budget`."""
    expected: ExpectedTerms | None
    """Risk and saving, for reading."""
    serving: Literal["vllm", "kv-fork", "prefix-cache", "black-box", "ladder"]
    """How probes are paid for in `expected`."""
    created: Annotated[str, Condition("a date and time in ISO 8601", _is_timestamp)]
    """When it was built."""
    versions: Mapping[str, Line | None]
    """Of the packages that built it."""
    workload_sha256: Sha256 | None
    """Over the workload's file."""
    profile: Mapping[str, ProfileShare] | None
    """Kinds of fit questions, for reading."""
    trees: Annotated[Any, Condition("null", lambda value: value is None)]
    """Null: of a family that is gone."""
    order: tuple[float, ...]
    """Thresholds in the order in which they were to be tested, for a transfer."""
    split: SplitTerms | None
    """Which questions made the policy, so that fresh ones can be recognised."""
    calibration_features: tuple[tuple[float, ...], ...] | None
    """Features of some calibration questions, to compare with fresh ones."""
    served: ServedTerms | None
    """What the rule does on some calibration questions, to compare with traffic."""
    golden: Annotated[tuple[GoldenExample, ...], Most(_MOST_GOLDEN)]
    """Examples that every reader replays before it serves."""

    @property
    def reads_logprobs(self) -> bool:
        """Whether the rule reads log-probability or entropy, and not answers alone."""
        return reads_logprobs(self.family, self.features)

    @property
    def grading(self) -> dict[str, str]:
        """What graded the calibration questions, as a run's manifest says it."""
        found = {"normalizer": self.normalizer, "grader": self.grader}
        function = None if self.certificate is None else self.certificate.grader
        return found if function is None else {**found, "grader_sha256": function.sha256}


# --- Where it probes ------------------------------------------------------------------------------

_NOTHING: dict[str, Any] = dict.fromkeys(field.name for field in fields(TriggerTerms))
LADDER_TRIGGER = TriggerTerms(**_NOTHING | {"kind": "ladder", "markers": ()})
"""Field `trigger` of a policy that climbs a ladder: no trace is probed."""


def trigger_terms(
    trigger: Trigger, *, family: str | None = None
) -> tuple[TriggerTerms, tuple[int, ...]]:
    """Fields `trigger` and `budgets` of a policy that probes so.

    Parameters
    ----------
    family : str, optional
        With ``fixed-budget`` the kind is ``none``: the trigger's last position is its only one.
    """
    if isinstance(trigger, MarkerTrigger):
        found = {field.name: getattr(trigger, field.name) for field in fields(trigger)}
        return TriggerTerms(**_NOTHING | found | {"kind": "marker"}), ()
    kind = "none" if family == "fixed-budget" else trigger.kind
    found = {"kind": kind, "markers": (), "stop_at": trigger.stop_at}
    if kind == "stride":
        at = trigger.positions
        found |= {"every": trigger.every, "first": at[0], "cap": at[-1]}
    return TriggerTerms(**_NOTHING | found), trigger.positions if kind == "grid" else ()


def trigger_of(terms: PolicyTerms) -> Trigger:
    """The trigger of a checked policy; of one that stops no trace a trigger without positions."""
    trigger = terms.trigger
    if trigger is None or trigger.kind == "ladder":
        return ListedTrigger(())
    stop_at = trigger.stop_at
    if trigger.kind == "grid":
        return ListedTrigger(terms.budgets, stop_at)
    if trigger.kind == "none" and stop_at is not None:
        return ListedTrigger((stop_at,), stop_at)
    if trigger.kind == "stride":
        assert trigger.every is not None  # `check_trigger` saw to these
        assert trigger.cap is not None
        return stride(trigger.every, trigger.cap, trigger.first, stop_at)
    assert trigger.min_gap is not None
    assert trigger.max_probes is not None
    return MarkerTrigger(
        markers=trigger.markers,
        min_gap=trigger.min_gap,
        max_probes=trigger.max_probes,
        max_markers=trigger.max_markers,
        stop_at=stop_at,
    )
