"""The options that say what is to be certified, shared by `assess` and `calibrate`.

`assess` has defaults for all of them; `calibrate` takes what is not given from the assessment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from stopadvisor.assessment.choice import Settings
from stopadvisor.constants import ALPHA_WARN
from stopadvisor.errors import ProbeError
from stopadvisor.rules.costs import MONEY, REGIMES, Weights
from stopadvisor.rules.serving_profile import read_serving_profile
from stopadvisor.stats.bounds import Bound, Multiplicity

__all__ = ["PRICE", "SettingsOverrides", "alpha_remark", "setting_options"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class SettingsOverrides:
    """What the command line gave; None where it gave nothing."""

    alpha: float | None = None
    delta: float | None = None
    serving: str | None = None
    cache_block: int | None = None
    weights: Weights | None = None
    bound: str | None = None
    multiplicity: str | None = None
    families: tuple[str, ...] | None = None

    @classmethod
    def take(cls, params: dict[str, Any]) -> SettingsOverrides:
        """Take this class's fields out of click's parameters."""
        profile = params.pop("serving_profile")
        params["weights"] = params.pop("price")
        if profile is not None:
            if params["weights"] is not None:
                raise click.UsageError("--price and --serving-profile exclude each other")
            params["weights"] = read_serving_profile(profile).weights
        return cls(**{f.name: params.pop(f.name) for f in fields(cls)})

    def settings(self, assessed: Mapping[str, Any] | None = None, **more: Any) -> Settings:
        """Complete settings: what was asked, else what was assessed, else the defaults.

        Parameters
        ----------
        assessed : mapping, optional
            An ``assessment.json``.

        Raises
        ------
        CalibrationError
            A value outside its range.
        ProbeError
            The assessment does not hold what an assessment holds.
        """
        values: dict[str, Any] = {}
        if assessed is not None:
            try:
                values = _of_assessment(assessed)
            except (KeyError, TypeError, AttributeError) as error:
                raise ProbeError(
                    f"{assessed.get('run')}: assessment.json is damaged ({error!r}); assess again"
                ) from error
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        values |= {name: value for name, value in given.items() if value is not None}
        return Settings(**values, **more)


def _of_assessment(document: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "alpha": document["alpha"],
        "delta": document["delta"],
        "serving": document["recommendation"]["serving"],
    }
    if document["protocol"] == "deploy":
        settings = dict(document["settings"])
        settings["weights"] = Weights(**settings["weights"])
        settings["families"] = tuple(settings["families"])
        values |= settings
    return values


def alpha_remark(alpha: float, accuracy: float) -> str | None:
    """What to say of an alpha that is large beside the full-thinking accuracy."""
    if alpha <= ALPHA_WARN * accuracy:
        return None
    lost = f"{alpha / accuracy:.0%}" if accuracy else "more than all"
    return (
        f"alpha = {alpha:g} is {lost} of the full-thinking accuracy ({accuracy:.3f}): that share "
        "of the right answers may be lost"
    )


# --- What only the parser knows -------------------------------------------------------------------


class _Price(click.ParamType[Any]):
    name = "in/cached/out"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            prefilled, cached, decoded = (float(part) for part in value.split("/"))
        except ValueError:
            self.fail(
                f"expected three prices per million tokens such as 0.5/0.05/2, got {value!r}",
                param,
                ctx,
            )
        return Weights(prefilled, cached, decoded, MONEY)


PRICE = _Price()
"""Type of ``--price``: weights out of IN/CACHED/OUT."""


class _Families(click.ParamType[Any]):
    name = "name,name,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(dict.fromkeys(part.strip() for part in value.split(",")))


_HELPS = {
    "alpha": "Most lost correct answers, as a share of all questions.",
    "delta": "Error probability of the certificate.",
    "serving": "Who pays for a probe: your serving stack.",
    "cache-block": "Tokens per block of the prefix cache.",
    "price": "Money per million input, cached and output tokens; by default the paper's weights.",
    "serving-profile": "Count costs in seconds, as `profile-serving` measured them.",
    "bound": "Test of the risk.",
    "multiplicity": "How several thresholds share the error probability.",
    "families": "Rules to compare.",
}


def setting_options(*, defaults: bool) -> Callable[[_Function], _Function]:
    """Add the options of `SettingsOverrides`; without defaults, help points to the assessment."""
    own = Settings()
    values: dict[str, Any] = {
        "alpha": own.alpha,
        "delta": own.delta,
        "serving": own.serving,
        "cache-block": own.cache_block,
        "price": None,
        "serving-profile": None,
        "bound": own.bound,
        "multiplicity": own.multiplicity,
        "families": ",".join(own.families),
    }
    types: dict[str, Any] = {
        "alpha": float,
        "delta": float,
        "serving": click.Choice(REGIMES),
        "cache-block": click.IntRange(min=1),
        "price": PRICE,
        "serving-profile": click.Path(path_type=Path),
        "bound": click.Choice(get_args(Bound)),
        "multiplicity": click.Choice(get_args(Multiplicity)),
        "families": _Families(),
    }

    def add(function: _Function) -> _Function:
        for name in reversed(_HELPS):
            function = click.option(
                f"--{name}",
                type=types[name],
                default=values[name] if defaults else None,
                help=_HELPS[name],
                show_default=True if defaults else "as assessed",
            )(function)
        return function

    return add
