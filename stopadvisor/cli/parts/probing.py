"""The options of probing, shared by `probe`, `preflight` and `assess`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import click

from stopadvisor.cli.parts.declare import (
    COUNT,
    PATH,
    Parsed,
    Printed,
    declare,
    grader_option,
    is_given,
    option,
    pop_settings,
    printed,
)
from stopadvisor.cli.parts.model import CHAT_TEMPLATE, SERVER, check_engine_options, model_options
from stopadvisor.collection.probe_settings import ProbeSettings
from stopadvisor.engines.engine_settings import DEFAULT_MODEL
from stopadvisor.ground.constants import CUES, DEFAULT_CUE
from stopadvisor.probes.asking import OPEN, Schedule
from stopadvisor.workload.questions import TASKS, parse_split

__all__ = ["probe_options", "take_probing"]


def take_probing(
    params: dict[str, Any], workload: Path, *, like_policy: bool = False
) -> ProbeSettings:
    """Check the options of probing and take its settings out of click's parameters.

    With `like_policy` the schedule is not checked, because no option expresses every trigger of a
    policy.  A ladder names its own models and servers, and takes no option of probing.
    """
    if params["ladder"] is None:
        check_engine_options(params)
    elif given := [name for name in _TRACE_OPTIONS if is_given(name)]:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        raise click.UsageError(
            f"--ladder asks for whole replies, as its file says: leave out {names}"
        )
    temperature = params.pop("temperature")
    params["greedy"] = temperature == 0
    params["temperature"] = temperature or None
    params["preflight"] = not params.pop("no_preflight")
    params["batch_size"] = None if params["engine"] == "openai" else params["concurrency"]
    settings = pop_settings(ProbeSettings, params, workload=workload)
    if settings.greedy and settings.samples > 1:
        raise click.UsageError(
            f"--temperature 0 always draws the same trace, got --samples {settings.samples}"
        )
    budgets, max_think = settings.budgets, settings.max_think
    if budgets and max_think and budgets[-1] > max_think:
        raise click.UsageError(
            f"--budgets must end at --max-think {max_think} or before, got {budgets[-1]}"
        )
    if not like_policy:
        _check_schedule(settings)
    return settings


def _check_schedule(settings: ProbeSettings) -> None:
    """Refuse options that the schedule does not use."""
    schedule, budgets, every = settings.schedule, settings.budgets, settings.every
    if schedule == "stride" and budgets:
        raise click.UsageError("--schedule stride takes --every, not --budgets")
    if schedule == "marker" and budgets and every:
        raise click.UsageError(
            "--budgets and --every cannot be combined: besides its markers a run probes at one or "
            "the other"
        )
    if schedule == "grid" and every is not None:
        raise click.UsageError(f"--every needs --schedule stride or marker, got {schedule}")
    if schedule != "marker" and settings.markers is not None:
        raise click.UsageError(f"--markers needs --schedule marker, got {schedule}")


def _auto(name: str, parse: Callable[[str], Any]) -> Parsed:
    """A type with the extra value `auto`, read as None."""
    return Parsed(f"auto|{name}", lambda text: None if text == "auto" else parse(text))


def _words(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(words):
        raise ValueError("expected `auto` or words such as Wait,Hmm")
    return words


def _budgets(text: str) -> tuple[int, ...]:
    try:
        budgets = tuple(int(part) for part in text.split(","))
    except ValueError:
        budgets = ()
    rising = all(a < b for a, b in pairwise(budgets))
    if not budgets or budgets[0] < 0 or not rising:
        raise ValueError("expected `auto` or increasing numbers of tokens such as 0,64,128")
    return budgets


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("expected `auto` or a whole number >= 1")
    return int(text)


def _cue(text: str) -> str:
    if text == "all":  # compared all cues in release 0.1
        raise ValueError(f"expected one cue: a text, {', '.join(CUES)}, or open; try each")
    if text == OPEN.removesuffix(":"):
        return OPEN + DEFAULT_CUE
    return CUES.get(text, text)


def _entropy(text: str) -> str:
    kind, _, k = text.partition(":")
    named = text in ("auto", "full", "none")
    if not named and not (kind == "top-k" and k.isdecimal() and int(k) >= 1):
        raise ValueError("expected `auto`, `full`, `none` or `top-k:K` with K >= 1")
    return text


def _template(text: str) -> str:
    if "\n" not in text and "{question}" not in text:
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                "expected a text that contains {question}, or a readable file with such a text"
            ) from error
    if "{question}" not in text:
        raise ValueError("expected a text that contains {question}")
    return text


_model, _probing = option("Model"), option("Probing")

_PROBE = (
    click.option(
        "--out",
        type=PATH,
        help="Run directory; by default one under runs/, named for workload, model and settings.",
    ),
    _probing(
        "--budgets",
        type=_auto("N,N,...", _budgets),
        default="auto",
        help="Thinking tokens at which to probe; auto scales the paper's grid to a pilot's traces.",
    ),
    _probing(
        "--schedule",
        type=click.Choice(get_args(Schedule)),
        default=ProbeSettings.schedule,
        show_default="auto; grid where --budgets are named, and under --protocol paper",
        help="Where to probe: at --budgets (grid); every --every tokens (stride); or before each "
        "word with which the model turns back, such as Wait, and also at --budgets, else every "
        "--every tokens (marker). auto: marker if a pilot finds such words, else stride, spaced "
        "so that probing decodes at most 10 % of thinking.",
    ),
    _probing(
        "--every",
        type=_auto("N", _count),
        default="auto",
        help="Tokens from one probe of a stride to the next; auto: about 32 probes in a pilot's "
        "long traces.",
    ),
    _probing(
        "--markers",
        type=_auto("word,word,...", _words),
        default="auto",
        help="Words that are markers; auto: those with which the model begins sentences in a "
        "pilot.",
    ),
    _probing(
        "--max-think",
        type=_auto("N", _count),
        default="auto",
        help="Cut thinking here; use production's own cap. auto: 8192, or what the context leaves.",
    ),
    _probing(
        "--cap", type=COUNT, default=ProbeSettings.cap, help="Longest forced answer, in tokens."
    ),
    _probing(
        "--answer-cap",
        type=COUNT,
        default=ProbeSettings.answer_cap,
        help="Longest visible answer after thinking, in tokens.",
    ),
    _probing(
        "--cue",
        type=Parsed("text", _cue),
        default="terse",
        help=f"Words that force the answer: a text, or {', '.join(CUES)}; open, or open:TEXT, "
        "writes them into the thinking without closing it.",
    ),
    _probing(
        "--on-stop",
        type=click.Choice(["probe", "answer"]),
        default=ProbeSettings.on_stop,
        help="Reply of a stopped question: the forced answer, or a visible one written after it.",
    ),
    _model(
        "--temperature",
        type=click.FloatRange(min=0),
        show_default="the model's own",
        help="Sample with this temperature; 0 takes the likeliest token.",
    ),
    _probing(
        "--samples",
        type=COUNT,
        default=ProbeSettings.samples,
        help="Traces per question; two count in a certificate of lost or differing replies.",
    ),
    _probing(
        "--traces",
        metavar="FILE",
        type=PATH,
        show_default="none: the model thinks",
        help="Recorded thinking and replies of all questions, as `import` writes them: only forced "
        "answers are asked for.",
    ),
    _probing(
        "--task",
        type=click.Choice(TASKS),
        show_default="as gold says; math without any",
        help="Kind of answer for questions that name none.",
    ),
    _probing(
        "--seed", type=click.IntRange(min=0), default=0, help="Seed of the traces and the split."
    ),
    _probing("--limit", type=COUNT, help="Only the first N questions."),
    _probing(
        "--entropy",
        type=Parsed("auto|full|top-k:K|none", _entropy),
        default="auto",
        help="Entropy over the whole vocabulary (full), over the K likeliest tokens, as servers "
        "give it, or none. auto: full for a local model; at a server what it gives.",
    ),
    _model(
        "--prompt-template",
        type=Parsed("text|file", _template),
        help="User message with {question}; by default it asks for the task's answer form.",
    ),
    CHAT_TEMPLATE,
    _probing(
        "--split",
        type=Parsed("fit/cal/test", parse_split),
        show_default="40/60/0 up to 2,000 questions, 40/40/20 above",
        help="Shares of fit, calibration and test; split once, when probing starts.",
    ),
    _probing(
        "--no-preflight", is_flag=True, help="Skip the check that thinking markers and cue work."
    ),
    _probing(
        "--regrade",
        is_flag=True,
        help="Grade recorded answers again, by the workload's gold and this version's rules.",
    ),
    grader_option(_probing),
)


def probe_options(function: Callable[..., Printed]) -> Any:
    """Declare all options of probing, of the model or the ladder, and of output."""
    asked = model_options(DEFAULT_MODEL)(declare(*_PROBE, *SERVER)(printed(function)))
    return _RECORDED_LADDER(asked)


# --- Whole replies of several rungs ---------------------------------------------------------------

_TRACE_OPTIONS = (
    *("model", "engine", "base_url", "tokenizer", "api_key_env", "think_tags", "like", "schedule"),
    *("budgets", "every", "markers", "max_think", "cap", "answer_cap", "cue", "on_stop", "entropy"),
    *("temperature", "samples", "traces", "chat_template_kwargs", "regrade"),
)
"""Options that mean nothing for whole replies, or that ladder.toml sets."""

_RECORDED_LADDER = option("Probing")(
    "--ladder",
    metavar="LADDER.TOML",
    type=PATH,
    help="Ask every rung that this file names for a whole reply, instead of probing one model.",
)
