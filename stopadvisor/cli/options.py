"""Options that several commands share, and what they become: plain frozen values.

The decorators know click; the dataclasses do not, so that everything behind them runs without a
command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stopadvisor.cli.server import ServerOptions, server_options
from stopadvisor.constants import CUES, PROBE_CAP

if TYPE_CHECKING:
    from stopadvisor.probes.plan import Engine, OnStop, ProbePlan

__all__ = [
    "CHAT_TEMPLATE_OPTION",
    "DEFAULT_MODEL",
    "OutputOptions",
    "ProbeOptions",
    "in_use",
    "load_engine",
    "model_options",
    "output_options",
    "probe_options",
]

DEFAULT_MODEL = "Qwen/Qwen3-8B"
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class OutputOptions:
    """How a command speaks."""

    json: bool = False
    quiet: bool = False

    @classmethod
    def take(cls, params: dict[str, Any]) -> OutputOptions:
        """Take this class's fields out of click's parameters."""
        return cls(**{f.name: params.pop(f.name) for f in fields(cls)})


@dataclass(frozen=True)
class ProbeOptions:
    """What to ask of which model: everything that ends in the run's manifest, and how to get there.

    Built by hand it needs a workload only; the rest has the command line's defaults.
    """

    workload: Path
    model: str = DEFAULT_MODEL
    out: Path | None = None
    """The run directory; None for one under ``runs/``."""
    budgets: tuple[int, ...] | None = None
    """None: chosen by a pilot."""
    max_think: int | None = None
    """None: the plan's own cap, or less where the model's context leaves less."""
    cap: int = PROBE_CAP
    answer_cap: int = 512
    cue: str = CUES["terse"]
    on_stop: OnStop = "probe"
    greedy: bool = False
    temperature: float | None = None
    samples: int = 1
    """Traces per question; those of a question share its part of the split."""
    seed: int = 0
    batch_size: int | None = None
    """None: the engine's own, halved when memory runs out."""
    device: str = "auto"
    dtype: str = "auto"
    limit: int | None = None
    entropy: str = "auto"
    """``auto``: the whole vocabulary here, a server's log-probabilities there."""
    think_open: str | None = None
    think_close: str | None = None
    prompt_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    split: tuple[float, float, float] = (0.4, 0.4, 0.2)
    preflight: bool = True
    regrade: bool = False
    like: Path | None = None
    """The policy that says how to probe; None where the options do."""
    server: ServerOptions = field(default_factory=ServerOptions)
    output: OutputOptions = OutputOptions()

    @classmethod
    def take(cls, params: dict[str, Any], workload: Path) -> ProbeOptions:
        """Take this class's fields out of click's parameters; what is left is the command's own.

        Raises
        ------
        click.UsageError
            Options contradict each other.
        """
        server = ServerOptions.take(params)
        names = {f.name for f in fields(cls)} - {"workload", "server", "output"}
        values = {name: params.pop(name) for name in names & params.keys()}
        if values["greedy"] and values["temperature"] is not None:
            raise click.UsageError("--greedy and --temperature exclude each other")
        if values["greedy"] and values["samples"] > 1:
            raise click.UsageError(
                f"--greedy draws one and the same trace each time, got --samples "
                f"{values['samples']}: use --temperature"
            )
        budgets, max_think = values["budgets"], values["max_think"]
        if budgets and max_think and budgets[-1] > max_think:
            raise click.UsageError(
                f"--budgets must end at --max-think {max_think} or before, got {budgets[-1]}"
            )
        return cls(workload=workload, server=server, output=OutputOptions.take(params), **values)

    def settled(self, engine: Engine) -> ProbeOptions:
        """The same, with what is left to the engine as this engine has it."""
        if self.entropy != "auto":
            return self
        return replace(self, entropy=getattr(engine, "entropy", "full"))

    def plan(self) -> ProbePlan:
        """The plan as asked for: without budgets, and with the longest cap, where both are auto.

        `collect.thinking_cap` and a pilot settle what is auto, `settled` the entropy.
        """
        from stopadvisor.probes.plan import ProbePlan

        return ProbePlan(
            budgets=self.budgets or (),
            cue=self.cue,
            cap=self.cap,
            max_think=self.max_think or ProbePlan.max_think,
            answer_cap=self.answer_cap,
            greedy=self.greedy,
            temperature=self.temperature,
            entropy="full" if self.entropy == "auto" else self.entropy,
            seed=self.seed,
            on_stop=self.on_stop,
        )


def load_engine(options: ProbeOptions) -> Engine:
    """Load the model that the options name.

    Raises
    ------
    ModelError
        There is no such model, it does not fit here, the server cannot be used, or packages are
        missing.
    """
    chat: dict[str, Any] = {
        "think_open": options.think_open,
        "think_close": options.think_close,
        "chat_template_kwargs": options.chat_template_kwargs,
    }
    if options.server.engine == "openai":
        return options.server.load(options.model, **chat)
    from stopadvisor.engines import hf

    return hf.load_engine(options.model, device=options.device, dtype=options.dtype, **chat)


def in_use(engine: Engine) -> AbstractContextManager[Any]:
    """Close an engine at the end, if it is one that is closed."""
    return closing(cast(Any, engine)) if hasattr(engine, "close") else nullcontext()


# --- What only the parser knows -------------------------------------------------------------------


class _Parsed(click.ParamType[Any]):
    """A click type from a function that raises ValueError with what it expected."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"{error}, got {value!r}", param, ctx)


def _budgets(text: str) -> tuple[int, ...] | None:
    if text == "auto":
        return None
    try:
        budgets = tuple(int(part) for part in text.split(","))
    except ValueError:
        budgets = ()
    rising = all(a < b for a, b in pairwise(budgets))
    if not budgets or budgets[0] < 0 or not rising:
        raise ValueError("expected `auto` or increasing numbers of tokens such as 0,64,128")
    return budgets


def _count(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("expected `auto` or a whole number >= 1")
    return int(text)


def _entropy(text: str) -> str:
    kind, _, k = text.partition(":")
    named = text in ("auto", "full", "none")
    if not named and not (kind == "top-k" and k.isdecimal() and int(k) >= 1):
        raise ValueError("expected `auto`, `full`, `none` or `top-k:K` with K >= 1")
    return text


def _split(text: str) -> tuple[float, float, float]:
    from stopadvisor.workload.questions import parse_split

    return parse_split(text)


def _template(text: str) -> str:
    named = "\n" not in text and "{question}" not in text
    if named:
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"expected a text with {{question}} or a readable file: {error}"
            ) from error
    if "{question}" not in text:
        raise ValueError("expected a text that contains {question}")
    return text


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"expected a JSON object ({error})") from error
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    return value


_OUTPUT = (
    click.option("--json", is_flag=True, help="Print the result as one JSON object."),
    click.option("--quiet", is_flag=True, help="No progress and no remarks on stderr."),
)

_MODEL = (
    click.option("--device", default="auto", help="cpu, cuda, cuda:1, ..."),
    click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        default="auto",
        help="Precision of the model.",
    ),
    click.option("--think-open", metavar="TEXT", help="Opener of thinking, where not recognised."),
    click.option("--think-close", metavar="TEXT", help="Closer of thinking, where not recognised."),
)

CHAT_TEMPLATE_OPTION = click.option(
    "--chat-template-kwargs",
    type=_Parsed("json", _json_object),
    default="{}",
    help='Passed to the chat template, such as {"enable_thinking": true}.',
)

_PROBE = (
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        help="Run directory; by default one under runs/, named for workload, model and settings.",
    ),
    click.option(
        "--budgets",
        type=_Parsed("auto|N,N,...", _budgets),
        default="auto",
        help="Thinking tokens at which to probe; auto scales the paper's grid to a pilot's traces.",
    ),
    click.option(
        "--max-think",
        type=_Parsed("auto|N", _count),
        default="auto",
        help="Cut thinking here; use production's own cap. auto: 8192, or what the context leaves.",
    ),
    click.option(
        "--cap",
        type=click.IntRange(min=1),
        default=ProbeOptions.cap,
        help="Most tokens of a forced answer.",
    ),
    click.option(
        "--answer-cap",
        type=click.IntRange(min=1),
        default=ProbeOptions.answer_cap,
        help="Most tokens of the visible answer after thinking.",
    ),
    click.option(
        "--cue",
        type=_Parsed("text", lambda text: CUES.get(text, text)),
        default="terse",
        help=f"Words that force the answer: a text, or {', '.join(CUES)}.",
    ),
    click.option(
        "--on-stop",
        type=click.Choice(["probe", "answer"]),
        default=ProbeOptions.on_stop,
        help="What a stop gives: the forced answer, or a visible one behind the closed thinking.",
    ),
    click.option("--greedy", is_flag=True, help="Take the likeliest token instead of sampling."),
    click.option(
        "--temperature",
        type=click.FloatRange(min=0, min_open=True),
        help="Sample with this temperature instead of the model's own.",
    ),
    click.option(
        "--samples",
        type=click.IntRange(min=1),
        default=ProbeOptions.samples,
        help="Traces per question; the first alone enters the certificate.",
    ),
    click.option(
        "--seed", type=click.IntRange(min=0), default=0, help="Seed of the traces and the split."
    ),
    click.option(
        "--batch-size",
        type=_Parsed("auto|N", _count),
        default="auto",
        help="Questions at once; auto halves when memory runs out.",
    ),
    click.option(
        "--limit", type=click.IntRange(min=1), help="Only the first N questions; raise it later."
    ),
    click.option(
        "--entropy",
        type=_Parsed("auto|full|top-k:K|none", _entropy),
        default="auto",
        help="Entropy over the vocabulary, or over the K likeliest tokens as servers give it; "
        "none where they give no log-probabilities. auto: full here, what a server gives there.",
    ),
    click.option(
        "--prompt-template",
        type=_Parsed("text|file", _template),
        help="User message with {question}; by default it asks for the task's answer form.",
    ),
    CHAT_TEMPLATE_OPTION,
    click.option(
        "--split",
        type=_Parsed("fit/cal/test", _split),
        default="40/40/20",
        help="Shares of the parts; drawn once, when probing starts.",
    ),
    click.option(
        "--preflight/--no-preflight",
        default=True,
        help="Prove first that budgets, markers and cue work.",
    ),
    click.option(
        "--regrade",
        is_flag=True,
        help="Grade recorded answers again, by the workload's gold and today's rules.",
    ),
)


def output_options(function: _Function) -> _Function:
    """Add `--json` and `--quiet`."""
    for option in reversed(_OUTPUT):
        function = option(function)
    return function


def model_options(
    default: str | None, show_default: str | bool = True, *, served: bool = True
) -> Callable[[_Function], _Function]:
    """Add `--model`, and where and how it runs if it is loaded here."""
    name = click.option(
        "--model",
        default=default,
        show_default=show_default,
        envvar="STOPADVISOR_MODEL",
        show_envvar=True,
        help="Model name on the Hugging Face hub, or a folder"
        + ("; of a server, the name it serves." if served else "."),
    )

    def add(function: _Function) -> _Function:
        for option in reversed((name, *_MODEL)):
            function = option(function)
        return function

    return add


def probe_options(function: _Function) -> _Function:
    """Add the options of `ProbeOptions`, `--json` and `--quiet` among them."""
    function = output_options(function)
    function = server_options(function)
    for option in reversed(_PROBE):
        function = option(function)
    return model_options(DEFAULT_MODEL)(function)
