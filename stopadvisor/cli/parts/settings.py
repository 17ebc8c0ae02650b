"""Options for what to certify and how to count costs, declared once for all commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click

from stopadvisor.assessment.settings import Settings, SettingsOverrides
from stopadvisor.certification.certify import Despite
from stopadvisor.cli.parts.declare import (
    COUNT,
    SHARE,
    Decorator,
    Parsed,
    declare,
    is_default,
    option,
    pop_settings,
)
from stopadvisor.ground.constants import DEFAULT_DELTA
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.ground.json_text import read_object
from stopadvisor.rules.climb import OnGiveUp
from stopadvisor.rules.costs import MONEY, REGIMES, Weights
from stopadvisor.rules.losses import LOSSES, Guarantee
from stopadvisor.rules.model_shape import PRESETS, model_shape
from stopadvisor.rules.roofline import ACCELERATORS, DEFAULT_IN_FLIGHT
from stopadvisor.rules.serving_profile import SERVING_PROFILE, read_serving_profile
from stopadvisor.runs.prices import LOCAL_GPU, PriceRequest

__all__ = [
    "DELTA", "DESPITE", "GUARANTEES", "PRICING", "overrides", "price_request",
    "setting_options",
]  # fmt: skip


def overrides(params: dict[str, Any]) -> SettingsOverrides:
    """Take the settings out of click's parameters; the first loss is the main one."""
    limits, names = params.pop("alpha"), params.pop("loss", ())
    also: tuple[Guarantee, ...] | None = None
    if isinstance(limits, tuple):
        overall = {limit.loss: limit for limit in limits if limit.category is None}
        names = names or tuple(overall)
        if set(names) != set(overall):
            raise click.UsageError(
                f"--alpha limits {', '.join(overall)}, and --loss names {', '.join(names)}: name "
                "the same losses in both"
            )
        within = (limit for limit in limits if limit.category is not None)
        first, *others = [*(overall[name] for name in names), *within]
        alpha, also = first.alpha, tuple(others)
    else:
        if len(names) > 1:
            example = ",".join(f"{name}=0.05" for name in names)
            raise click.UsageError(f"several losses take a limit each: --alpha {example}")
        alpha, also = limits, () if names else None  # with --loss no other limit is taken over
    if is_default("families"):  # the default of a ladder differs from the one shown
        params["families"] = None
    loss = names[0] if names else None
    result = pop_settings(SettingsOverrides, params, alpha=alpha, loss=loss, also=also)
    result.check()
    return result


def _limits(text: str) -> float | tuple[Guarantee, ...]:
    """Parse one limit, or one for each loss and category."""
    if "=" not in text:
        return _limit(text)
    limits = []
    for part in map(str.strip, _NEXT_LIMIT.split(text)):
        category, limited = None, part
        if part.startswith("category="):
            category, _, limited = part.removeprefix("category=").rpartition(":")
            if not category:
                raise ValueError(
                    "expected category=NAME:LOSS=LIMIT such as category=algebra:lost=0.08"
                )
        name, _, limit = limited.partition("=")
        if name not in LOSSES or not limit:
            raise ValueError(f"expected LOSS=LIMIT with one of {', '.join(LOSSES)}")
        limits.append(Guarantee(LOSSES[name].name, _limit(limit), category))
    overall = [limit.loss for limit in limits if limit.category is None]
    if twice := [name for name in overall if overall.count(name) > 1]:
        raise ValueError(f"expected one limit for {twice[0]}")
    if not overall:
        raise ValueError("expected a limit for all questions too, such as lost=0.05")
    return tuple(limits)


def _limit(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError("expected a number such as 0.05, or lost=0.05,drop=0.02") from error


def _price(text: str) -> Weights:
    """Parse three prices, or read a serving profile."""
    try:
        if text.endswith(".json"):
            return read_serving_profile(Path(text)).weights
        prefilled, cached, decoded = map(float, text.split("/"))
        return Weights(prefilled, cached, decoded, MONEY)
    except CalibrationError as error:
        raise ValueError(str(error)) from error
    except ValueError as error:
        raise ValueError(
            "expected three prices per million tokens such as 0.5/0.05/2, or a .json file of "
            "`profile-serving`"
        ) from error


class _Stack(click.Choice[str]):
    """A serving stack; the old name of one is refused with the new name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "overlap":
            self.fail("overlap is now called vllm: say --serving vllm", param, ctx)
        return super().convert(value, param, ctx)


_NEXT_LIMIT = re.compile(rf",(?=\s*(?:{'|'.join((*LOSSES, 'category'))})=)")
_FAMILIES = Parsed(
    "name,name,...", lambda text: tuple(dict.fromkeys(map(str.strip, text.split(","))))
)
_DEFAULTS = Settings()
_OPTIONS: dict[str, tuple[str, Any, Any, str]] = {
    "alpha": (
        "Certificate", Parsed("limit|loss=limit,...", _limits), None,
        "Largest share of questions that may lose a right answer, or "
        "lost=0.05,drop=0.02,category=NAME:lost=0.08.",
    ),
    "delta": ("Certificate", float, _DEFAULTS.delta, "Probability that the certificate is wrong."),
    "serving": (
        "Serving costs", _Stack(REGIMES), None,
        "Your serving stack, which decides what a probe costs.",
    ),
    "price": (
        "Serving costs", Parsed("in/cached/out|file", _price), None,
        "Money per million input, cached and output tokens, or a file of `profile-serving` "
        "(seconds).",
    ),
    "on-give-up": (
        "Certificate", click.Choice(get_args(OnGiveUp)), _DEFAULTS.on_give_up,
        "For a ladder: when all cheap rungs seem to be wrong, ask the reference at once, or serve "
        "the cheap reply, marked as such.",
    ),
    "families": (
        "Certificate", _FAMILIES, ",".join(_DEFAULTS.families),
        "Rules to compare.",
    ),
}  # fmt: skip
"""By name: section, type, default and help."""
_SHOWN = {"serving": "vllm", "price": f"{SERVING_PROFILE} in the model's folder, else computed"}
"""Shown for defaults that depend on the run."""

GUARANTEES = option("Certificate")(
    "--loss",
    type=click.Choice(list(LOSSES)),
    multiple=True,
    show_default="lost; no gold: differs; ladder: drop",
    help="What alpha limits: lost answers, replies that differ from full thinking's, or the drop "
    "in accuracy.  [repeatable]",
)
"""Option of the promised losses, for commands that certify."""

DESPITE = option("Certificate")(
    "--despite",
    type=click.Choice(get_args(Despite)),
    multiple=True,
    help="Certify although the advice is full thinking, more than 10 % of the traces were cut off, "
    "or alpha is more than 20 % of the full-thinking accuracy.  [repeatable]",
)

DELTA = click.option("--delta", type=SHARE, default=DEFAULT_DELTA, help="One minus the confidence.")
"""For commands that take it from no assessment."""


def setting_options(
    names: Sequence[str] = tuple(_OPTIONS),
    *,
    otherwise: str | None = None,
    asked: Sequence[str] = (),
) -> Decorator:
    """Declare the options of `SettingsOverrides`, or some of them.

    Parameters
    ----------
    names : sequence of str
        The options, without dashes.
    otherwise : str, optional
        Shown as the default if the command takes missing values from elsewhere.
    asked : sequence of str
        Options without a default.
    """
    declared = []
    for name in names:
        section, kind, default, text = _OPTIONS[name]
        declared.append(
            option(section)(
                f"--{name}",
                *(["weights"] if name == "price" else []),
                type=kind,
                default=default if otherwise is None else None,
                show_default=name not in asked and (otherwise or _SHOWN.get(name, True)),
                help=text,
            )
        )
    return declare(*declared)


# --- Computed prices ------------------------------------------------------------------------------


def _model_config(text: str) -> str:
    """Refuse a config that gives no price, before anything is probed."""
    try:
        if text not in PRESETS:
            model_shape(read_object(Path(text), CalibrationError))
    except CalibrationError as error:
        raise ValueError(str(error)) from error
    return text


PRICING = declare(
    option("Serving costs")(
        "--gpu",
        type=click.Choice([*ACCELERATORS, LOCAL_GPU], case_sensitive=False),
        metavar="NAME",
        show_default="local, else h100",
        help="Compute what tokens cost inside an engine on this accelerator, from the model's "
        "config; the stack is then vllm unless --serving names another. One of "
        f"{', '.join(ACCELERATORS)}, or local.",
    ),
    option("Serving costs")(
        "--in-flight",
        type=COUNT,
        show_default=str(DEFAULT_IN_FLIGHT),
        help="Requests in flight at once, for computed prices; capped at what fits into memory.",
    ),
    option("Serving costs")(
        "--tensor-parallel",
        type=COUNT,
        show_default="as many as hold the model",
        help="Accelerators that share the model, for computed prices.",
    ),
    option("Serving costs")(
        "--model-config",
        type=Parsed("file|size", _model_config),
        metavar=f"FILE|{'|'.join(PRESETS)}",
        show_default="the run's model, else 8b",
        help="config.json of the model, or the size of a dense one, for computed prices.",
    ),
)
"""Each of them asks for computed prices even if there is a serving profile."""


def price_request(params: dict[str, Any]) -> PriceRequest | None:
    """Take the options of `PRICING` out of click's parameters; None if none was given."""
    names = ("gpu", "in_flight", "tensor_parallel", "model_config")
    given = {name: params.pop(name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    return PriceRequest(**given) if given else None
