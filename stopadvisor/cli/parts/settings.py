"""The options that say what is to be certified and how costs are counted.

Declared once for all commands: `assess` shows its defaults in the help, `calibrate` and `verify`
where they take over what is not given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from stopadvisor.assessment.requirements import Settings
from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.cli.parts.declare import (
    SHARE,
    Decorator,
    Parsed,
    declare,
    is_open,
    option,
    pop_settings,
)
from stopadvisor.ground.constants import DEFAULT_DELTA
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules.costs import MONEY, REGIMES, Weights
from stopadvisor.rules.losses import LOSSES, LOST, Guarantee
from stopadvisor.rules.serving_profile import SERVING_PROFILE, read_serving_profile

__all__ = [
    "ALPHA",
    "DELTA",
    "DESPITE",
    "GUARANTEES",
    "overridden",
    "overrides",
    "setting_options",
    "weights_of",
]


def overrides(params: dict[str, Any]) -> SettingsOverrides:
    """Take what was asked for out of click's parameters."""
    alpha, *also = _guarantees(params)
    first, limit = alpha
    if is_open("families"):  # a ladder has others than those shown
        params["families"] = None
    found = pop_settings(
        SettingsOverrides,
        params,
        weights=weights_of(params.pop("price")),
        alpha=limit,
        loss=first,
        # Who names a loss names all limits.
        also=tuple(Guarantee(*each) for each in also) or (None if first is None else ()),
    )
    found.settings()  # values out of their range are refused here, before any work
    return found


def overridden(params: dict[str, Any]) -> dict[str, bool]:
    """Take `--despite` out of click's parameters: fields of a `CertifyRequest`."""
    despite = params.pop("despite")
    return {
        "despite_advice": "advice" in despite,
        "allow_truncated": "truncated" in despite,
        "allow_large_alpha": "large-alpha" in despite,
    }


def _guarantees(params: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Losses with their limits, the first of all questions first; None where it is left open."""
    limits, names = params.pop("alpha"), params.pop("loss", ())
    if not isinstance(limits, _Limits):
        if len(names) > 1:
            raise click.UsageError(
                "several losses take a limit each: --alpha "
                + ",".join(f"{name}=0.05" for name in names)
            )
        return [(names[0] if names else None, limits)]
    of_all = limits.of_all
    names = names or tuple(of_all)
    if set(names) != set(of_all):
        raise click.UsageError(
            f"--alpha limits {', '.join(of_all)}, and --loss names {', '.join(names)}: name the "
            "same losses in both"
        )
    return [*((name, of_all[name]) for name in names), *limits.within]


class _Limits(NamedTuple):
    """What several limits hold for."""

    of_all: dict[str, float]
    """By loss, of all questions."""
    within: list[tuple[str, float, str]]
    """Loss, limit and category."""


def _limits(text: str) -> float | _Limits:
    """One limit, or one for each loss and category."""
    if "=" not in text:
        return _limit(text)
    limits = _Limits({}, [])
    for part in _NEXT_LIMIT.split(text):
        if part.lstrip().startswith("category="):
            limits.within.append(_category(part.lstrip()))
            continue
        name, limit = _loss_and_limit(part)
        if name in limits.of_all:
            raise ValueError(f"expected one limit for {name}")
        limits.of_all[name] = limit
    if not limits.of_all:
        raise ValueError("expected a limit for all questions too, such as lost=0.05")
    return limits


def _limit(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError("expected a number such as 0.05, or lost=0.05,drop=0.02") from error


def _loss_and_limit(text: str) -> tuple[str, float]:
    name, _, limit = text.strip().partition("=")
    if name not in LOSSES or not limit:
        raise ValueError(f"expected LOSS=LIMIT with one of {', '.join(LOSSES)}")
    return name, _limit(limit)


def _category(text: str) -> tuple[str, float, str]:
    """A loss, its limit and the category that it is of."""
    whom, _, limited = text.removeprefix("category=").rpartition(":")
    if not whom or not text.startswith("category="):
        raise ValueError("expected category=NAME:LOSS=LIMIT such as category=algebra:lost=0.08")
    return (*_loss_and_limit(limited), whom)


def weights_of(price: Weights | Path | None) -> Weights | None:
    """Prices as named, or out of the serving profile that is named."""
    return read_serving_profile(price).weights if isinstance(price, Path) else price


def _price(text: str) -> Weights | Path:
    try:
        prefilled, cached, decoded = (float(part) for part in text.split("/"))
    except ValueError as error:
        if not text.endswith(".json"):
            raise ValueError(
                "expected three prices per million tokens such as 0.5/0.05/2, or a .json file of "
                "`profile-serving`"
            ) from error
        if not Path(text).is_file():
            raise ValueError("expected a file of `profile-serving`") from error
        return Path(text)
    try:
        return Weights(prefilled, cached, decoded, MONEY)
    except CalibrationError as error:
        raise ValueError(str(error)) from error


def _families(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


class _Stack(click.Choice[str]):
    """A serving stack; one that had another name is answered with the new one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "overlap":
            self.fail("overlap is called vllm: say --serving vllm", param, ctx)
        return super().convert(value, param, ctx)


_NEXT_LIMIT = re.compile(rf",(?=\s*(?:{'|'.join((*LOSSES, 'category'))})=)")
_OWN = Settings()
_OPTIONS: dict[str, tuple[str, Any, Any, str]] = {
    "alpha": (
        "Certificate", Parsed("limit|loss=limit,...", _limits), _OWN.alpha,
        "Largest share of questions that may lose a right answer, or "
        "lost=0.05,drop=0.02,category=NAME:lost=0.08.",
    ),
    "delta": ("Certificate", float, _OWN.delta, "Probability that the certificate is wrong."),
    "serving": (
        "Serving costs", _Stack(REGIMES), None,
        "Your serving stack: what a probe costs.",
    ),
    "price": (
        "Serving costs", Parsed("in/cached/out|file", _price), None,
        "Money per million input, cached and output tokens, or a file of `profile-serving` "
        f"(seconds). Else assess takes {SERVING_PROFILE} in the model's folder, or computes them.",
    ),
    "families": (
        "Certificate", Parsed("name,name,...", _families), ",".join(_OWN.families),
        "Rules to compare.",
    ),
}  # fmt: skip
"""By name: section of the help, type, default, and help."""
_SHOWN = {"serving": "vllm, or as measured"}
"""Defaults that follow from the run."""

GUARANTEES = declare(
    option("Certificate")(
        "--loss",
        type=click.Choice(list(LOSSES)),
        multiple=True,
        show_default=LOST.name,
        help="What alpha limits: lost answers, replies that differ from full thinking's, or the "
        "drop of accuracy.  [repeatable]",
    )
)
"""What is promised, for commands that certify."""

DESPITE = option("Certificate")(
    "--despite",
    type=click.Choice(["advice", "truncated", "large-alpha"]),
    multiple=True,
    help="Certify although the advice is full thinking, more than 10 % of the traces were cut off, "
    "or alpha is more than 20 % of the full-thinking accuracy.  [repeatable]",
)

ALPHA = click.option(
    "--alpha", type=SHARE, show_default="as the run was assessed", help="Risk to certify."
)
DELTA = click.option("--delta", type=SHARE, default=DEFAULT_DELTA, help="One minus the confidence.")
"""For commands that take no assessment."""


def setting_options(
    names: Sequence[str] = tuple(_OPTIONS),
    *,
    otherwise: str | None = None,
    asked: Sequence[str] = (),
) -> Decorator:
    """Add the options of `SettingsOverrides`, or some of them.

    Parameters
    ----------
    names : sequence of str
        Of the options, without their dashes.
    otherwise : str, optional
        Where values come from that are not given, for the help; None for defaults of their own.
    asked : sequence of str
        Those without any default: the command asks for them, or does without.
    """
    found = []
    for name in names:
        section, kind, default, text = _OPTIONS[name]
        shown: bool | str | None = name not in asked
        if shown:
            shown = otherwise or _SHOWN.get(name, True)
        found.append(
            option(section)(
                f"--{name}",
                type=kind,
                default=default if otherwise is None and name not in asked else None,
                show_default=shown,
                help=text,
            )
        )
    return declare(*found)
