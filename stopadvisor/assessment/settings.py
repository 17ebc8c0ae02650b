"""Settings of a certificate: the caller's, else those in the run's ``assessment.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from stopadvisor.ground.constants import DEFAULT_ALPHA, DEFAULT_DELTA, LARGE_ALPHA
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.probes.table import GradedBy
from stopadvisor.rules.climb import OnGiveUp
from stopadvisor.rules.costs import (
    CACHE_BLOCK,
    LADDER,
    PAPER_WEIGHTS,
    REGIMES,
    Costing,
    Serving,
    Weights,
)
from stopadvisor.rules.families import FAMILIES, FIXED_BUDGET, RUNG_FAMILIES, STOP_SCALARS
from stopadvisor.rules.losses import DIFFERS, DROP, LOSSES, LOST, Guarantee, Loss, LossName
from stopadvisor.stats.binomial import check_level

__all__ = [
    "Settings", "SettingsOverrides", "alpha_remark", "asked_alpha", "large_alpha",
]  # fmt: skip

_DEFAULT_FAMILIES = ("learned", "learned-keeps", *STOP_SCALARS, FIXED_BUDGET)


@dataclass(frozen=True)
class Settings:
    """The risk limit, its confidence, and how costs are counted."""

    alpha: float = DEFAULT_ALPHA
    delta: float = DEFAULT_DELTA
    serving: Serving = "kv-fork"
    weights: Weights = PAPER_WEIGHTS
    families: tuple[str, ...] = _DEFAULT_FAMILIES
    allow_truncated: bool = False
    seed: int = 0
    loss: LossName = "lost"
    """The loss that `alpha` limits."""
    also: tuple[Guarantee, ...] = ()
    """Further limits for the same rule, each tested at the whole of delta."""
    traces: int = 1
    """Traces of each calibration question that a loss of 0 or 1 will count: 1 or 2."""
    on_give_up: OnGiveUp = "escalate"
    """For a ladder: what to do when every cheap rung is expected to be wrong."""

    def __post_init__(self) -> None:
        check_level("alpha", self.alpha)
        check_level("delta", self.delta)
        if self.serving not in (*REGIMES, LADDER):
            raise CalibrationError(f"serving must be one of {REGIMES}, got {self.serving!r}")
        known: tuple[str, ...] = RUNG_FAMILIES if self.serving == LADDER else FAMILIES
        unknown = [f for f in self.families if f not in known]
        if unknown or not self.families:
            raise CalibrationError(f"families must be among {known}, got {self.families!r}")
        asked = [(g.loss, g.category) for g in self.guarantees]
        if len({*asked}) < len(asked):
            said = ", ".join(map(str, self.guarantees))
            raise CalibrationError(f"each loss takes one limit, got {said}")

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """All limits of the rule, starting with that of `alpha`."""
        return (Guarantee(self.loss, self.alpha), *self.also)

    @property
    def counted(self) -> Loss:
        """The loss that `alpha` limits."""
        return LOSSES[self.loss]

    def guarantees_on(self, graded_by: GradedBy) -> tuple[Guarantee, ...]:
        """All limits, on losses that these questions can count: differing replies without gold.

        Every lost reply differs, so this errs on the safe side.
        """
        if graded_by == "gold":
            return self.guarantees
        return tuple(
            replace(each, loss=DIFFERS.name) if each.counted.needs_gold else each
            for each in self.guarantees
        )

    def counted_on(self, graded_by: GradedBy) -> Loss:
        """The loss that `alpha` limits, as in `guarantees_on`."""
        return self.guarantees_on(graded_by)[0].counted

    @property
    def costing(self) -> Costing:
        """How costs are counted."""
        return Costing(self.serving, self.weights)

    @property
    def is_plain(self) -> bool:
        """Whether the only limit is on one loss of 0 or 1, over all questions."""
        return not self.also and self.counted.is_binary

    @property
    def is_lost(self) -> bool:
        """Whether the only limit is on lost answers."""
        return self.is_plain and self.loss == LOST.name

    @property
    def limits_accuracy(self) -> bool:
        """Whether `alpha` only makes sense well below the full-thinking accuracy."""
        return self.counted.needs_gold

    @property
    def reads_answers(self) -> bool:
        """Whether some loss compares answers, not just grades."""
        return any(each.counted.reads_answers for each in self.guarantees)


@dataclass(frozen=True)
class SettingsOverrides:
    """Settings given by the caller; None leaves a setting open."""

    alpha: float | None = None
    delta: float | None = None
    serving: str | None = None
    weights: Weights | None = None
    families: tuple[str, ...] | None = None
    loss: LossName | None = None
    also: tuple[Guarantee, ...] | None = None
    on_give_up: OnGiveUp | None = None

    def check(self) -> None:
        """Refuse values out of range before any work; raises CalibrationError.

        Without a source it is unknown whether families of ladders or of traces may be named.
        """
        climbs = self.families is not None and {*self.families} <= {*RUNG_FAMILIES}
        replace(self, on_give_up=None).settings(defaults={"serving": LADDER} if climbs else None)

    def settings(
        self,
        assessed: Mapping[str, Any] | None = None,
        *,
        defaults: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Settings:
        """Complete settings: the caller's, else the assessment's, else the source's defaults.

        `assessed` is an ``assessment.json``, `defaults` come from `runs.prices.default_settings`,
        and `more` are further fields of `Settings`.
        """
        values: dict[str, Any] = {}
        if assessed is not None:
            try:
                values = _of_assessment(assessed)
            except (KeyError, TypeError, AttributeError) as error:
                raise ProbeError(
                    f"{assessed.get('run')}: assessment.json is damaged ({error!r}); assess again"
                ) from error
        if self.on_give_up == "reply" and defaults and defaults["serving"] != LADDER:
            raise CalibrationError(
                "--on-give-up reply: only a rule that climbs a ladder gives up, and these are "
                "probes of one trace"
            )
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        values = {**(defaults or {}), **values}
        values |= {name: value for name, value in given.items() if value is not None}
        return Settings(**values, **more)


def _of_assessment(document: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"alpha": document["alpha"], "delta": document["delta"]}
    if values["alpha"] is None:  # assessed without one
        del values["alpha"]
    if document["protocol"] == "deploy":
        constant = ("cache_block", CACHE_BLOCK)
        settings = {k: v for k, v in document["settings"].items() if (k, v) != constant}
        if gone := settings.keys() - {f.name for f in fields(Settings)}:
            raise KeyError(*sorted(gone))
        settings["serving"] = document["recommendation"]["serving"]
        settings["weights"] = Weights(**settings["weights"])
        settings["families"] = tuple(settings["families"])
        settings["also"] = tuple(Guarantee(**limit) for limit in settings.get("also", ()))
        values |= settings
    return values


def asked_alpha(alpha: float | None, assessed: Mapping[str, Any] | None) -> float:
    """Return alpha as given or as assessed; CalibrationError if neither names one."""
    if alpha is None and assessed is not None:
        alpha = assessed["alpha"]
    if alpha is None:
        raise CalibrationError(
            "say --alpha, the largest share of all questions that may lose a right answer, or "
            "without gold get another reply; in production begin with 0.01 to 0.05; `stopadvisor "
            "assess` says what each promise would buy"
        )
    return alpha


def alpha_remark(alpha: float, accuracy: float) -> str | None:
    """Remark on an alpha that is large compared with the full-thinking accuracy; else None."""
    if alpha <= LARGE_ALPHA * accuracy:
        return None
    lost = f"{alpha / accuracy:.0%}" if accuracy else "more than all"
    return (
        f"alpha = {alpha:g} is {lost} of the full-thinking accuracy ({accuracy:.3f}): that share "
        "of the right answers may be lost"
    )


def large_alpha(settings: Settings, accuracy: float, basis: str) -> str | None:
    """Reason why `calibrate` refuses an alpha this large; None if it does not."""
    alpha = settings.alpha
    if alpha <= LARGE_ALPHA * accuracy:
        return None
    most = f"{LARGE_ALPHA * accuracy:.3f}"
    looser = "" if settings.loss == DROP.name else ", limit the fall of accuracy (--loss drop)"
    lost = f"{alpha / accuracy:.0%} of the right answers" if alpha < accuracy else "all of them"
    return (
        f"full thinking gets {accuracy:.1%} of the questions right ({basis}), and alpha = "
        f"{alpha:g} of all questions is {lost}, more than {LARGE_ALPHA:.0%}: take an alpha up to "
        f"{most}{looser}, or pass --despite large-alpha"
    )
