"""Settings from the caller or, where the caller sets none, from the run's assessment.

`assess` has a default for each; `calibrate` and `report` take what is not set from
``assessment.json``.  This module knows no command line, and decides nothing about probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from stopadvisor.assessment.choice import Settings
from stopadvisor.ground.constants import LARGE_ALPHA
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.rules.costs import Weights
from stopadvisor.rules.losses import Guarantee, LossName

__all__ = ["SettingsOverrides", "alpha_remark", "asked_alpha", "large_alpha"]


@dataclass(frozen=True)
class SettingsOverrides:
    """What the caller sets; None leaves a setting open."""

    alpha: float | None = None
    delta: float | None = None
    serving: str | None = None
    weights: Weights | None = None
    families: tuple[str, ...] | None = None
    loss: LossName | None = None
    also: tuple[Guarantee, ...] | None = None

    def settings(
        self,
        assessed: Mapping[str, Any] | None = None,
        *,
        defaults: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Settings:
        """Complete settings: the caller's, else the assessment's, else the defaults.

        `assessed` is an ``assessment.json``, `more` are further fields of `Settings`.  `defaults`
        are those of the source (`runs.prices.default_settings`), where the assessment says nothing.

        Raises
        ------
        CalibrationError
            A value outside its range.
        ProbeError
            The assessment lacks fields that every assessment has.
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
        values = {**(defaults or {}), **values}
        values |= {name: value for name, value in given.items() if value is not None}
        return Settings(**values, **more)


_ONLY = (("bound", "exact"), ("multiplicity", "fixed-sequence"), ("group_claim", "groups"))
"""Settings of 0.1.0 that can have no other value any more."""


def _of_assessment(document: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"alpha": document["alpha"], "delta": document["delta"]}
    if values["alpha"] is None:  # assessed without one
        del values["alpha"]
    if document["protocol"] == "deploy":
        settings = {k: v for k, v in document["settings"].items() if (k, v) not in _ONLY}
        if gone := settings.keys() - {f.name for f in fields(Settings)}:
            raise KeyError(*sorted(gone))
        settings["serving"] = document["recommendation"]["serving"]
        settings["weights"] = Weights(**settings["weights"])
        settings["families"] = tuple(settings["families"])
        settings["also"] = tuple(Guarantee(**limit) for limit in settings.get("also", ()))
        values |= settings
    return values


def asked_alpha(alpha: float | None, assessed: Mapping[str, Any] | None) -> float:
    """The risk asked for: here, or else when the run was assessed.

    Raises
    ------
    CalibrationError
        Neither says one.
    """
    if alpha is None and assessed is not None:
        alpha = assessed["alpha"]
    if alpha is None:
        raise CalibrationError(
            "say --alpha, the largest share of all questions that may lose a right answer; in "
            "production begin with 0.01 to 0.05"
        )
    return alpha


def alpha_remark(alpha: float, accuracy: float) -> str | None:
    """A remark on an alpha that is large compared with the full-thinking accuracy."""
    if alpha <= LARGE_ALPHA * accuracy:
        return None
    lost = f"{alpha / accuracy:.0%}" if accuracy else "more than all"
    return (
        f"alpha = {alpha:g} is {lost} of the full-thinking accuracy ({accuracy:.3f}): that share "
        "of the right answers may be lost"
    )


def large_alpha(alpha: float, accuracy: float, basis: str) -> str | None:
    """Why `calibrate` goes no further with an alpha this large, where it is; else None."""
    if alpha <= LARGE_ALPHA * accuracy:
        return None
    most = f"{LARGE_ALPHA * accuracy:.3f}"
    lost = f"{alpha / accuracy:.0%} of the right answers" if alpha < accuracy else "all of them"
    return (
        f"full thinking gets {accuracy:.1%} of the questions right ({basis}), and alpha = "
        f"{alpha:g} of all questions is {lost}, more than {LARGE_ALPHA:.0%}: take an alpha up to "
        f"{most}, limit the fall of accuracy (--loss drop), or pass --despite large-alpha"
    )
