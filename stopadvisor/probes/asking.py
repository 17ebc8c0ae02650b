"""What goes into an engine and what comes back: prompts and a plan, raw traces and checks.

This module knows no model and grades nothing.
"""

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
"""Where traces are probed: at the same budgets, at a fixed stride, or also before markers.  A pilot
settles ``auto`` before anything is probed: markers where there are some, else a stride."""
Status = Literal["pass", "warn", "fail"]
"""How a check of preflight came out."""
OPEN = "open:"
"""Begins a cue that is written into the open thinking, without a closer before it."""


def is_open_cue(cue: str) -> bool:
    """Whether a cue goes into the open thinking."""
    return cue.startswith(OPEN)


def cue_text(cue: str) -> str:
    """What a cue writes."""
    return cue.removeprefix(OPEN)


def plan_cue(text: str, *, is_open: bool) -> str:
    """The cue of a plan that writes this text."""
    return OPEN + text if is_open else text


@dataclass(frozen=True)
class Prompt:
    """One question as the engine sees it."""

    key: str
    """Content hash of the question; with the plan's seed and `sample` it seeds the sampling."""
    messages: tuple[Mapping[str, str], ...]
    """Chat messages, prompt template already applied."""
    sample: int = 0
    """Number of the trace, where a question has several."""
    recorded: RecordedTrace | None = None
    """What was thought before; None where the model is to think."""


@dataclass(frozen=True)
class ProbePlan:
    """How traces are generated and probed; part of the manifest."""

    budgets: tuple[int, ...]
    """Thinking tokens at which to probe, strictly increasing; empty to draw traces only.

    Of a ``stride`` all its positions up to `max_think`; of a ``marker`` schedule those between
    which markers are probed.
    """
    cue: str
    """Text written after the closed thinking, before the forced answer; after `OPEN`, a text that
    is written into the open thinking."""
    cap: int = PROBE_CAP
    """Most tokens of a forced answer."""
    max_think: int = 8192
    """Thinking is cut here; production must use the same cap."""
    answer_cap: int = 512
    """Most tokens of the natural, visible answer."""
    greedy: bool = False
    """Take the likeliest token; otherwise the model's own generation settings rule."""
    temperature: float | None = None
    """Overrides the temperature of the model's own generation settings."""
    entropy: str = "full"
    """`full`, or `top-k:K` to measure as a server that returns K log-probabilities would."""
    seed: int = 0
    on_stop: OnStop = "probe"
    """``answer``: the visible answer after every live prefix is decoded too, up to `answer_cap`."""
    schedule: Schedule = "grid"
    """All but a ``grid`` probe inside each trace only: fewer probes where it is short."""
    every: int | None = None
    """Distance of the budgets, where they are a stride; None where they were named."""
    markers: tuple[tuple[int, ...], ...] = ()
    """Token ids of each marker before which a ``marker`` schedule probes."""
    min_gap: int = 1
    """Fewest tokens between two probes at markers, and before the first."""
    max_markers: int = 32
    """Only this many markers of a trace are probed, or passed over for `min_gap`."""
    max_probes: int | None = None
    """Most probes at markers, of a policy's trigger; None: no limit of their own."""

    def __post_init__(self) -> None:
        if any(b < 0 for b in self.budgets) or any(
            b <= a for a, b in zip(self.budgets, self.budgets[1:], strict=False)
        ):
            raise ProbeError(
                f"budgets must be >= 0 and strictly increasing, got {list(self.budgets)!r}"
            )
        for name, options in (("on_stop", get_args(OnStop)), ("schedule", get_args(Schedule))):
            if getattr(self, name) not in options:
                found = getattr(self, name)
                raise ProbeError(f"{name} must be one of {', '.join(options)}, got {found!r}")
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
        """Plain values for the manifest, without what a grid and on-stop ``probe`` do not need.

        Runs are named by them, and were so before there was anything else.
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
        """The same traces, probed at these budgets alone."""
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
    """Thinking tokens really in the prefix: min(budget, trace length)."""
    text: str
    """Decoded answer without the tokens that ended it."""
    mean_logprob: float
    """Mean log-probability (nats) of the answer's tokens, the ending token left out."""
    mean_entropy: float
    """Mean entropy (nats) of the answer's next-token distributions, the ending one left out."""
    probe_tokens: int
    """Decoded tokens, the ending one included."""
    markers: int
    """Backtracking markers in the prefix's text."""
    ended: bool
    """The trace was over before this budget (trace length <= budget)."""
    tail_mass: float | None = None
    """Mean probability outside the top k; None when the entropy is over the full vocabulary."""
    visible_text: str | None = None
    """Visible answer after thinking closed here; None without one, or where the trace is over."""
    visible_tokens: int = 0
    """Its tokens, closer and ending token included, as `RawTrace.natural_tokens`; 0 if none."""
    closed_by_itself: bool | None = None
    """The model closed its thinking right after the forced answer; None unless the cue is open."""
    characters: int | None = None
    """Characters of `RawTrace.thinking` before it; None where the engine does not count them."""


@dataclass(frozen=True)
class RawTrace:
    """One trace with its probes, ungraded."""

    prompt_tokens: int
    """Prompt tokens including the thinking opener."""
    suffix_tokens: int
    """Tokens of closer + cue that each probe adds to its prefix; of an open cue, its own."""
    trace_tokens: int
    """Thinking tokens up to the model's own closer, or the cap."""
    finish: Literal["stop", "length"]
    thinking: str
    """The thinking as text."""
    natural_text: str | None
    """Visible answer after the closed thinking; None when the thinking was never closed."""
    natural_tokens: int
    """Decoded tokens of the visible answer, closer and ending token included; 0 if none."""
    probes: tuple[RawProbe, ...]
    thinking_ids: tuple[int, ...] = ()
    """The thinking as token ids."""
    marker_positions: tuple[int, ...] | None = None
    """Thinking tokens before each marker, probed or not; None where none were looked for."""


@dataclass(frozen=True)
class Check:
    """One thing that preflight tried."""

    name: str
    """What was tried."""
    status: Status
    """`pass`, `warn` or `fail`."""
    detail: str
    """What was seen."""
    advice: str = ""
    """What to do about it; empty when it passed."""


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do, as it states itself."""

    entropy: str = "full"
    """Source of entropies where the user names none: ``full``, ``top-k:K`` or ``none``."""
    batched: bool = True
    """Prompts must come in batches that fit into memory; otherwise all may come at once."""


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
"""Parameters and variables of `apply_chat_template` that only the code that renders may set: with
another template or conversation the template's hash would stand and mean something else.  Every
``return_…`` is reserved too."""


def reserved_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Give the names that nobody but the rendering code may set, sorted; usually none."""
    return sorted(name for name in arguments if name in _RESERVED or name.startswith("return_"))


class Engine(Protocol):
    """What probing needs of a model, wherever it runs."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    @property
    def remarks(self) -> list[str]:
        """What the user should know, one line each, in the order it came up; may grow."""

    def identity(self) -> dict[str, Any]:
        """What decides the outcome: model, tokenizer, template, engine, dtype, markers (JSON)."""

    def suffix_ids(self, cue: str) -> list[int]:
        """Tokens that ask for the answer: the closer, unless the cue is open, then the cue."""

    def temperature(self, plan: ProbePlan) -> float:
        """Temperature under which this plan's traces are generated; 0 takes the likeliest token."""

    def auto_batch_size(self, plan: ProbePlan) -> int:
        """Prompts at once, where the user does not say."""

    def longest_thinking(self, prompts: Sequence[Prompt], plan: ProbePlan) -> int | None:
        """Thinking tokens that the context leaves between each prompt and an answer, if known."""

    def encode(self, text: str) -> list[int]:
        """Return a text's token ids, nothing added."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return token ids as text, special tokens left out."""

    def prompt_checks(self, prompts: Sequence[Prompt]) -> list[Check]:
        """Check thinking markers and chat template on these prompts, without generating a token."""

    def engine_checks(self, prompt: Prompt, plan: ProbePlan) -> list[Check]:
        """Check what can go wrong with this kind of engine alone, by trying it."""

    def probe_each(
        self,
        prompts: Sequence[Prompt],
        plan: ProbePlan,
        on_tokens: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[int, RawTrace]]:
        """Generate one trace per prompt and probe it where `positions.trace_positions` says.

        Where a prompt brings a recorded trace, that one is read instead; all bring one or none.

        Yields the number of each prompt with its trace, in the order in which they are finished.
        `on_tokens` is called with the number of further tokens, where the engine sees them come.

        Raises
        ------
        OutOfMemory
            The batch is too large; fewer prompts at once may fit.
        """

    def close(self) -> None:
        """Give back connections and threads, if it holds any."""
