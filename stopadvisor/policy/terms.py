"""The fields of a policy file, as one tree of frozen classes.

Annotations state each field's type and range; `fields.parse` enforces them.  Checks between fields
are in `consistency`, `claims` and `evidence`.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from stopadvisor.rules.climb import RUNG_FEATURES, Climb
from stopadvisor.rules.families import FAMILIES, RUNG_FAMILIES
from stopadvisor.rules.features import (
    FEATURES,
    LOGPROB_FEATURES,
    OPEN_FEATURES,
    POSITION_FEATURES,
    LinearModel,
)
from stopadvisor.runs.ladder import MOST_RUNGS, MOST_SAMPLES, Ladder, Rung

__all__ = [
    "LADDER_TRIGGER", "MIXED_TASKS", "EngineTerms", "GoldenDecision", "GoldenExample",
    "GoldenStep", "LadderTerms", "ModelTerms", "PolicyTerms", "ProbeTerms", "SamplingTerms",
    "TokenText", "TriggerTerms", "trigger_of", "trigger_terms",
]  # fmt: skip

MIXED_TASKS = "mixed"
"""`task` of a policy whose questions each name their own."""
MOST_GRID_POSITIONS = 1024
_MOST_MARKERS = 1024
_MOST_GOLDEN = 32
_MOST_STEPS = 1024
_LOGPROB_FAMILIES = ("confidence", "entropy", "confidence-leap", "deer", "rung-confidence")


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
    """A text and its token ids."""

    text: str
    """The decoded text."""
    ids: tuple[TokenId, ...] | None
    """Token ids, as the model sees them; null if not recorded."""


@dataclass(frozen=True)
class ProbeTerms:
    """How an answer is forced."""

    SPARSE: ClassVar[bool] = True

    closer: TokenText
    """The text that closes the thinking."""
    cue: TokenText
    """The text that asks for the answer, after the closer or, if open, after the thinking."""
    cap: TokenCount
    """Limit on the tokens of a forced answer."""
    answer_cap: TokenCount | None
    """Limit on the tokens of a visible answer; null if not recorded."""
    stop_ids: tuple[TokenId, ...] | None
    """Tokens that end an answer."""
    open_cue: bool = False
    """Whether the cue is written into the open thinking, with no closer before it."""


@dataclass(frozen=True)
class TriggerTerms:
    """Where a trace is probed."""

    kind: Literal["grid", "stride", "marker", "none", "ladder"]
    """`grid`: at `budgets`; `stride`: every N tokens; `marker`: just before markers; `none`: only
    at `stop_at`; `ladder`: nowhere, whole replies are judged instead."""
    every: TokenCount | None
    """Tokens from one position to the next."""
    first: TokenId | None
    """First position of a stride; null: `every`."""
    cap: TokenId | None
    """Last possible position of a stride."""
    min_gap: TokenCount | None
    """A marker fewer tokens than this after the last probe, or the start, is skipped."""
    max_probes: TokenCount | None
    """Limit on the probes of a trace, not counting `stop_at`."""
    max_markers: TokenCount | None
    """Only this many markers of a trace count, the first ones, skipped ones included."""
    markers: Annotated[tuple[tuple[TokenId, ...], ...], Most(_MOST_MARKERS)]
    """Token ids of each marker; empty for other kinds, and in a policy from recorded answers, which
    cannot be served."""
    stop_at: TokenId | None
    """Every trace that gets here is stopped, whatever its score; null for no such position."""


@dataclass(frozen=True)
class LadderTerms(Ladder):
    """Which replies of cheaper rungs to ask for, and when to serve one."""

    rungs: Annotated[tuple[Rung, ...], Most(MOST_RUNGS)]
    """The rungs of `ladder.toml` in climbing order, the reference last, without addresses and keys
    of servers."""
    asked: Annotated[tuple[TokenId, ...], Most(MOST_RUNGS * MOST_SAMPLES)]
    """Numbers, from 0, of the replies to ask for before the reference; a rung has `repeat` of
    them."""
    path: Annotated[tuple[tuple[float, ...], ...], Most(_MOST_STEPS)]
    """Thresholds of each step, one per reply in `asked`, from the boldest step to the most careful.
    `decision_threshold` is the number of the step in use, from 1."""
    on_give_up: Literal["escalate", "reply"] | None = None
    """What a score below the step's `give_up` level does: ask the reference next, or serve the
    reply, marked as given up.  Null: climb on as usual."""
    give_up: tuple[float, ...] | None = None
    """One level for each step of `path`; null without `on_give_up`."""

    def climb(self, family: str | None, model: LinearModel | None = None) -> Climb:
        """The rule, with the `model` of a learned one where it scores replies."""
        names = tuple(self.columns[k].name for k in (*self.asked, -1))
        give_up = self.give_up or ()
        return Climb(str(family), names, self.asked, self.path, model, self.on_give_up, give_up)


@dataclass(frozen=True)
class MarkerTerms:
    """Backtracking markers."""

    phrases: tuple[Name, ...]
    """The phrases that are counted."""
    rule: Line
    """How they are counted, in words."""


@dataclass(frozen=True)
class DrawnTerms:
    """Sampling as it was done: the plan's settings over the model's own."""

    temperature: float
    """Sampling temperature; 0 takes the likeliest token."""
    top_k: int
    """Draw among the likeliest k tokens; 0 for all."""
    top_p: float
    """Draw among the likeliest tokens that together hold this probability."""
    min_p: float
    """Draw among tokens at least this likely, relative to the likeliest."""
    repetition_penalty: float
    """Divides positive and multiplies negative logits of tokens already in the sequence."""


@dataclass(frozen=True)
class SamplingTerms:
    """How thinking is sampled."""

    greedy: bool
    """Whether the likeliest token is taken."""
    temperature: Annotated[float, Condition("a number > 0", lambda value: value > 0)] | None
    """Sampling temperature; null for the model's own."""
    seed: int
    """Sampling seed."""
    recorded: Sha256 | None = None
    """SHA-256 of the traces, if thinking was recorded elsewhere; the other fields then mean
    nothing."""
    drawn: DrawnTerms | None = None
    """Sampling settings that a server must reproduce; null if not recorded."""


@dataclass(frozen=True)
class ModelTerms:
    """The model that the policy is bound to."""

    name: Line
    """Name under which it was loaded or served."""
    revision: Line | None
    """A commit, or a hash of the files."""
    tokenizer_sha256: Line | None
    """SHA-256 of the tokenizer."""
    template_sha256: Line | None
    """SHA-256 of the chat template."""


@dataclass(frozen=True)
class EngineTerms:
    """The engine that ran the model at calibration."""

    name: Line
    """`hf` or `openai`."""
    version: Line | None
    """Version of the library or server; several if one continued another's run."""
    dtype: Line | None
    """Data type of the weights."""
    quantization: Line | None
    """Quantisation of the weights."""
    attention: Line | None
    """Attention implementation."""
    device: Line | None
    """Device it ran on."""


@dataclass(frozen=True)
class GoldenStep:
    """Input of one checkpoint."""

    answer: str
    """A forced answer, as decoded."""
    normalized: str
    """Its normal form."""
    mean_logprob: float
    """Mean over the answer's tokens, in nats."""
    mean_entropy: float
    """Mean over the answer's tokens, in nats."""
    markers: float
    """Markers in the prefix."""
    think_tokens: TokenId
    """Thinking tokens in the prefix."""
    closed_by_itself: bool | None = None
    """Whether the model closed its thinking right after the answer; only if a feature reads it."""


@dataclass(frozen=True)
class GoldenDecision:
    """The decision that must follow."""

    stop: bool
    """Whether to stop."""
    score: float
    """The score that was compared."""


@dataclass(frozen=True)
class GoldenExample:
    """An example trajectory with its decisions."""

    task: Annotated[str, one_of(*TASKS)]
    """Task of this example."""
    steps: tuple[GoldenStep, ...]
    """Inputs, checkpoint by checkpoint."""
    decisions: tuple[GoldenDecision, ...]
    """One decision for each step."""


@dataclass(frozen=True, kw_only=True)
class PolicyTerms:
    """All fields of a policy file, in its order: the rule first, its evidence last."""

    schema: int
    """Version of these fields, raised when their meaning changes."""
    digest: Sha256
    """SHA-256 of the text with zeros in place of the digest; detects damage, but is no
    signature."""
    kind: Literal["stop", "full-budget"]
    """Whether it can stop a request; `full-budget` never probes and thinks to the end."""
    family: Annotated[str, one_of(*FAMILIES, *RUNG_FAMILIES)] | None
    """The score that decides; null for `full-budget`."""
    decision_threshold: float | None
    """Stop when the score reaches it."""
    threshold: float | None
    """`decision_threshold` for people: as a probability or a confidence, if it is one."""
    on_stop: OnStop
    """What a stopped request gets: the forced answer, or a visible one written after the closer."""
    trigger: TriggerTerms | None
    """Where to probe; null for `full-budget`."""
    ladder: LadderTerms | None = None
    """The ladder, for a policy that climbs one; `full-budget` asks only its reference."""
    budgets: Annotated[tuple[TokenId, ...], Most(MOST_GRID_POSITIONS)]
    """Thinking tokens at which to probe, strictly increasing; for a trigger of kind `grid` only."""
    probe: ProbeTerms | None
    """How an answer is forced; its texts are empty if probes came from an archive."""
    features: tuple[_Features, ...]
    """Features that a learned score reads, in the order in which its terms are added."""
    mean: tuple[float, ...]
    """Mean of each feature; learned families only."""
    scale: tuple[Positive, ...]
    """Divisor of each feature after its mean is subtracted; learned families only."""
    coef: tuple[float, ...]
    """Weight of each scaled feature; learned families only."""
    intercept: float | None
    """Intercept of a learned score."""
    markers: MarkerTerms
    """Backtracking markers, for the feature `marker_density`."""
    task: _Task
    """How answers are normalised; `mixed`: each request names its own task."""
    normalizer: Line
    """Version of the normal form in which answers are compared."""
    grader: Line
    """What graded the calibration questions; for a function, `certificate.grader` has its hash."""
    entropy_source: Annotated[
        str, matching("full|none|top-k:[1-9][0-9]{0,6}", "'full', 'top-k:K' with K >= 1, or 'none'")
    ]
    """The part of the vocabulary that entropies are computed over."""
    prompt_template: _Template
    """Text around a question, containing `{question}`, or one such text per task; null for none."""
    chat_template_kwargs: _Arguments
    """Arguments for the model's chat template; reserved ones such as `chat_template` are
    refused."""
    sampling: SamplingTerms | None
    """How thinking is sampled; null if probes came from an archive."""
    max_think: TokenCount | None
    """Cap on the thinking tokens of a request."""
    model: ModelTerms | None
    """The model it is bound to; null if probes came from an archive."""
    engine: EngineTerms | None
    """The engine of calibration; under another one, the policy serves with a remark."""
    certificate: CertificateTerms | None
    """What was certified; null only for `full-budget`."""
    expected: ExpectedTerms | None
    """Expected risk and saving, for display only."""
    serving: Literal["vllm", "kv-fork", "prefix-cache", "black-box", "ladder"]
    """The serving stack whose costs `expected` assumes."""
    created: Annotated[str, Condition("a date and time in ISO 8601", _is_timestamp)]
    """When it was built."""
    versions: Mapping[str, Line | None]
    """Versions of the packages that built it."""
    workload_sha256: Sha256 | None
    """SHA-256 of the workload file."""
    profile: Mapping[str, ProfileShare] | None
    """Trajectory types of the fit questions, for display only."""
    trees: Annotated[Any, Condition("null", lambda value: value is None)]
    """Null; left over from a family that was removed."""
    order: tuple[float, ...]
    """Thresholds in testing order, for a transfer."""
    split: SplitTerms | None
    """The questions that the policy was made from, so that fresh ones can be recognised."""
    calibration_features: tuple[tuple[float, ...], ...] | None
    """Features of some calibration questions, to compare with fresh ones."""
    served: ServedTerms | None
    """What the rule does on some calibration questions, to compare with traffic."""
    golden: Annotated[tuple[GoldenExample, ...], Most(_MOST_GOLDEN)]
    """Examples that every reader must replay before it serves."""

    @property
    def reads_logprobs(self) -> bool:
        """Whether the rule reads log-probability or entropy, not only answers."""
        of_features = not set(self.features).isdisjoint(LOGPROB_FEATURES)
        return self.family in _LOGPROB_FAMILIES or of_features

    @property
    def grading(self) -> dict[str, str]:
        """What graded the calibration questions, as in a run's manifest."""
        versions = {"normalizer": self.normalizer, "grader": self.grader}
        function = None if self.certificate is None else self.certificate.grader
        return versions if function is None else {**versions, "grader_sha256": function.sha256}


# --- Where it probes ------------------------------------------------------------------------------

_NOTHING: dict[str, Any] = dict.fromkeys(field.name for field in fields(TriggerTerms))
LADDER_TRIGGER = TriggerTerms(**_NOTHING | {"kind": "ladder", "markers": ()})
"""`trigger` of a policy that climbs a ladder: no trace is probed."""


def trigger_terms(
    trigger: Trigger, *, family: str | None = None
) -> tuple[TriggerTerms, tuple[int, ...]]:
    """Fields `trigger` and `budgets` of a policy with this trigger.

    Parameters
    ----------
    family : str, optional
        For ``fixed-budget`` the kind is ``none``: the trigger has only its last position.
    """
    if isinstance(trigger, MarkerTrigger):
        return TriggerTerms(**_NOTHING | vars(trigger) | {"kind": "marker"}), ()
    kind = "none" if family == "fixed-budget" else trigger.kind
    named = {"kind": kind, "markers": (), "stop_at": trigger.stop_at}
    if kind == "stride":
        at = trigger.positions
        named |= {"every": trigger.every, "first": at[0], "cap": at[-1]}
    return TriggerTerms(**_NOTHING | named), trigger.positions if kind == "grid" else ()


def trigger_of(terms: PolicyTerms) -> Trigger:
    """The trigger of a checked policy; it has no positions if the policy never stops a trace."""
    trigger = terms.trigger
    if trigger is None or trigger.kind == "ladder":
        return ListedTrigger(())
    stop_at = trigger.stop_at
    if trigger.kind == "grid":
        return ListedTrigger(terms.budgets, stop_at)
    if trigger.kind == "none" and stop_at is not None:
        return ListedTrigger((stop_at,), stop_at)
    if trigger.kind == "stride":
        assert trigger.every is not None  # required by `check_trigger`, like those below
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
