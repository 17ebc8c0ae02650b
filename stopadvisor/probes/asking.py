"""The engine interface: prompts and a plan go in, raw traces and checks come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, get_args

from stopadvisor.ground.constants import PROBE_CAP
from stopadvisor.ground.errors import ProbeError
from stopadvisor.workload.questions import RecordedTrace

__all__ = [
    "OPEN", "Capabilities", "Check", "Engine", "OnStop", "ProbePlan", "Prompt", "RawProbe",
    "RawTrace", "Schedule", "Status", "cue_text", "is_open_cue", "plan_cue", "reserved_arguments",
]  # fmt: skip

OnStop = Literal["probe", "answer"]
"""What a stopped request gets: the forced answer, or a visible one after the closed thinking."""
Schedule = Literal["auto", "grid", "stride", "marker"]
"""Where traces are probed: at given budgets, at a fixed stride, or also before markers.  A pilot
run turns ``auto`` into markers if there are any, else a stride."""
Status = Literal["pass", "warn", "fail"]
"""Result of a preflight check."""
OPEN = "open:"
"""Prefix of a cue that is written into the open thinking, with no closer before it."""


def is_open_cue(cue: str) -> bool:
    """Whether a cue is written into the open thinking."""
    return cue.startswith(OPEN)


def cue_text(cue: str) -> str:
    """The text of a cue."""
    return cue.removeprefix(OPEN)


def plan_cue(text: str, *, is_open: bool) -> str:
    """A plan's cue for this text."""
    return OPEN + text if is_open else text


@dataclass(frozen=True)
class Prompt:
    """One question as the engine sees it."""

    key: str
    """Content hash of the question; seeds the sampling, with the plan's seed and `sample`."""
    messages: tuple[Mapping[str, str], ...]
    """Chat messages, with the prompt template applied."""
    sample: int = 0
    """Number of the trace, if a question has several."""
    recorded: RecordedTrace | None = None
    """Recorded thinking to probe; None if the model is to think."""


@dataclass(frozen=True)
class ProbePlan:
    """How traces are generated and probed; part of the manifest."""

    budgets: tuple[int, ...]
    """Thinking tokens at which to probe, strictly increasing; empty to draw traces only.

    For a ``stride``, all its positions up to `max_think`; for a ``marker`` schedule, positions that
    are probed in addition to markers.
    """
    cue: str
    """Text between the closed thinking and the forced answer; with the prefix `OPEN`, text that is
    written into the open thinking."""
    cap: int = PROBE_CAP
    """Limit on a forced answer, in tokens."""
    max_think: int = 8192
    """Cap on thinking tokens; production must use the same one."""
    answer_cap: int = 512
    """Limit on the natural, visible answer, in tokens."""
    greedy: bool = False
    """Take the likeliest token; otherwise the model's own generation settings apply."""
    temperature: float | None = None
    """Overrides the temperature of the model's own generation settings."""
    entropy: str = "full"
    """`full`, or `top-k:K` to measure as a server that returns K log-probabilities would."""
    seed: int = 0
    on_stop: OnStop = "probe"
    """What a stop replies with.  When probing, ``answer`` also decodes the visible answer after
    every prefix, up to `answer_cap`."""
    schedule: Schedule = "grid"
    """All schedules except ``grid`` probe only inside each trace."""
    every: int | None = None
    """Stride of the budgets; None if they were listed."""
    markers: tuple[tuple[int, ...], ...] = ()
    """Token ids of each marker before which a ``marker`` schedule probes."""
    min_gap: int = 1
    """Fewest tokens between two probes at markers, and before the first."""
    max_markers: int = 32
    """Only the first markers of a trace, up to this many, count; skipped ones included."""
    max_probes: int | None = None
    """Limit on probes at markers, from a policy's trigger; None for no limit."""

    def __post_init__(self) -> None:
        if any(b < 0 for b in self.budgets) or any(
            b <= a for a, b in zip(self.budgets, self.budgets[1:], strict=False)
        ):
            raise ProbeError(
                f"budgets must be >= 0 and strictly increasing, got {list(self.budgets)!r}"
            )
        for name, options in (("on_stop", get_args(OnStop)), ("schedule", get_args(Schedule))):
            if getattr(self, name) not in options:
                value = getattr(self, name)
                raise ProbeError(f"{name} must be one of {', '.join(options)}, got {value!r}")
        whole = ("cap", "max_think", "answer_cap", "every", "min_gap", "max_markers", "max_probes")
        for name in whole:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ProbeError(f"{name} must be >= 1, got {value!r}")
        if not all(self.markers):
            raise ProbeError(f"markers must have at least one token each, got {self.markers!r}")
        if self.temperature is not None and not self.temperature > 0:
            raise ProbeError(
                f"temperature must be > 0 (use greedy for 0), got {self.temperature!r}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the manifest, without fields that this plan does not use.

        Names of runs are derived from them, so old plans must keep the same values.
        """
        plan = asdict(self)
        unused = ["on_stop"] if self.on_stop == "probe" else []
        if self.schedule != "marker":
            unused += ["markers", "min_gap", "max_markers"]
        if self.schedule == "grid":
            unused += ["schedule", "every"]
        unused += ["max_probes"] if self.max_probes is None else []
        return {name: value for name, value in plan.items() if name not in unused}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProbePlan:
        """Read a plan back from the manifest.

        Raises
        ------
        ProbeError
            A value is not allowed.
        TypeError, KeyError
            A field is missing, or unknown.
        """
        markers = tuple(tuple(marker) for marker in data.get("markers", ()))
        return cls(**{**data, "budgets": tuple(data["budgets"]), "markers": markers})

    def at_budgets(self, *budgets: int) -> ProbePlan:
        """The same traces, probed only at these budgets."""
        return replace(self, schedule="grid", budgets=budgets, every=None, markers=())

    def with_stride(self, every: int) -> ProbePlan:
        """The same traces, probed at a fixed stride up to the cap on thinking."""
        budgets = tuple(range(every, self.max_think + 1, every))
        return replace(self, budgets=budgets, every=every)


@dataclass(frozen=True)
class RawProbe:
    """One forced answer, ungraded."""

    budget: int
    think_tokens: int
    """Thinking tokens in the prefix: min(budget, trace length)."""
    text: str
    """Decoded answer, without the tokens that ended it."""
    mean_logprob: float
    """Mean log-probability (nats) of the answer's tokens, without the ending token."""
    mean_entropy: float
    """Mean entropy (nats) of the answer's next-token distributions, without the ending one."""
    probe_tokens: int
    """Decoded tokens, including the ending one."""
    markers: int
    """Backtracking markers in the prefix's text."""
    ended: bool
    """Whether the trace had ended by this budget (trace length <= budget)."""
    tail_mass: float | None = None
    """Mean probability outside the top k; None if entropy is over the full vocabulary."""
    visible_text: str | None = None
    """Visible answer after closing the thinking here; None if not wanted or the trace is over."""
    visible_tokens: int = 0
    """Tokens of the visible answer, including closer and ending token; 0 if there is none."""
    closed_by_itself: bool | None = None
    """Whether the model closed its thinking right after the forced answer; None unless the cue is
    open."""
    characters: int | None = None
    """Characters of `RawTrace.thinking` before the probe; None if not counted."""


@dataclass(frozen=True)
class RawTrace:
    """One trace with its probes, ungraded."""

    prompt_tokens: int
    """Prompt tokens including the thinking opener."""
    suffix_tokens: int
    """Tokens that each probe adds to its prefix: closer and cue, or an open cue alone."""
    trace_tokens: int
    """Thinking tokens up to the model's own closer, or the cap."""
    finish: Literal["stop", "length"]
    thinking: str
    """The thinking as text."""
    natural_text: str | None
    """Visible answer after the closed thinking; None if the thinking was never closed."""
    natural_tokens: int
    """Decoded tokens of the visible answer, including closer and ending token; 0 if none."""
    probes: tuple[RawProbe, ...]
    thinking_ids: tuple[int, ...] = ()
    """The thinking as token ids."""
    marker_positions: tuple[int, ...] | None = None
    """Thinking tokens before each marker, probed or not; None if markers were not searched for."""


@dataclass(frozen=True)
class Check:
    """Result of one preflight check."""

    name: str
    """Name of the check."""
    status: Status
    """`pass`, `warn` or `fail`."""
    detail: str
    """What was observed."""
    advice: str = ""
    """What to do about it; empty if it passed."""


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do."""

    entropy: str = "full"
    """Default source of entropies: ``full``, ``top-k:K`` or ``none``."""
    batched: bool = True
    """Whether prompts must come in batches that fit into memory, instead of all at once."""


_RESERVED = frozenset(
    (
        *("chat_template", "conversation", "conversations", "messages", "tools", "documents"),
        *("add_generation_prompt", "continue_final_message", "tokenize", "tokenizer_kwargs"),
        *("sanitize_control_tokens", "padding", "truncation", "max_length", "self"),
        # Variables of every template: transformers lets arguments replace them.
        *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token"),
        *("mask_token", "raise_exception", "strftime_now"),
    )
)
"""Parameters and variables of `apply_chat_template` that only the rendering code may set: another
template or conversation would make the recorded template hash meaningless.  Names that begin with
``return_`` are reserved too."""


def reserved_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Return the arguments that only the rendering code may set, sorted; usually none."""
    return sorted(name for name in arguments if name in _RESERVED or name.startswith("return_"))


class Engine(Protocol):
    """What probing needs from a model, wherever it runs."""

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""

    @property
    def remarks(self) -> list[str]:
        """One-line remarks for the user, in order; the list may grow."""

    def identity(self) -> dict[str, Any]:
        """Everything that affects results: model, tokenizer, template, engine, dtype (JSON)."""

    def suffix_ids(self, cue: str) -> list[int]:
        """Tokens that ask for the answer: the closer, unless the cue is open, and the cue."""

    def temperature(self, plan: ProbePlan) -> float:
        """Sampling temperature of this plan's traces; 0 takes the likeliest token."""

    def auto_batch_size(self, plan: ProbePlan) -> int:
        """Default number of prompts in a batch."""

    def longest_thinking(self, prompts: Sequence[Prompt], plan: ProbePlan) -> int:
        """Thinking tokens that every prompt has room for, at most the plan's cap."""

    def encode(self, text: str) -> list[int]:
        """Return a text's token ids, with nothing added."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""

    def prompt_checks(self, prompts: Sequence[Prompt]) -> list[Check]:
        """Check thinking markers and chat template on these prompts, without generating."""

    def engine_checks(self, prompt: Prompt, plan: ProbePlan) -> list[Check]:
        """Run checks specific to this kind of engine."""

    def probe_each(
        self,
        prompts: Sequence[Prompt],
        plan: ProbePlan,
        on_tokens: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[int, RawTrace]]:
        """Generate one trace per prompt and probe it at `trigger.trace_positions`.

        If prompts come with recorded traces (all or none do), those are probed instead.

        Yields each prompt's number with its trace, in the order of completion.  `on_tokens` is
        called with the number of new tokens, if the engine sees them arrive.

        Raises
        ------
        OutOfMemory
            The batch is too large; a smaller one may fit.
        """

    def close(self) -> None:
        """Release connections and threads."""
