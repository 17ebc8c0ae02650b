"""What is watched of a policy's traffic: limits of its certificate, and features of calibration.

Settled before the first request.  Knows no records; `monitoring` takes them in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import Policy
from stopadvisor.stats.sequential import AuditTest

__all__ = ["WATCHED", "WatchSettings", "drift_reference", "watch_settings"]

WATCHED: tuple[str, ...] = ("stop", "prompt_tokens", "first_logprob")
"""Features of a request that are compared with those of calibration, as records name them."""


@dataclass(frozen=True)
class WatchSettings:
    """What is watched; settled before the first request, and written into each log."""

    digest: str
    """Of the policy."""
    loss: str
    """Of the certificate: `lost`, `differs` or `drop`."""
    alpha: float
    """What the certificate promises of this loss."""
    differs_limit: float
    """Share of replies that may differ before there is an early warning: what calibration saw of
    this rule.  Alpha itself where the loss is `differs`."""
    delta: float
    """Largest probability of ever raising a false alarm of the promise or a false early warning,
    the two together."""
    share: float
    """Of requests that are audited."""
    change: float
    """Mean requests until a false alarm of change, at least."""

    @property
    def needs_gold(self) -> bool:
        """Whether only gold shows a broken promise, and differing replies are an early warning."""
        return self.loss != "differs"

    def tests(self) -> dict[str, AuditTest]:
        """By what they watch: `differs`, and the loss of the certificate where it needs gold.

        Two tests share delta, and each of two change detectors takes twice as long to a false
        alarm, so that delta holds for the policy however many tests it has.
        """
        losses = ("differs", self.loss) if self.needs_gold else ("differs",)
        limits = {"differs": self.differs_limit, self.loss: self.alpha}
        return {
            loss: AuditTest(
                limits[loss],
                self.delta / len(losses),
                self.share,
                self.change * len(losses),
                gains=loss == "drop",
            )
            for loss in losses
        }


def watch_settings(
    policy: Policy, *, share: float, change: float = 1e6, differs_limit: float | None = None
) -> WatchSettings:
    """What to watch for a policy; `differs_limit` in place of its own calibrated one.

    Raises
    ------
    PolicyError
        The policy promises nothing, or does not say how many replies may differ.
    CalibrationError
        A number is out of range.
    """
    certificate = policy.terms.certificate
    if certificate is None:
        raise PolicyError("the policy never stops and promises nothing: there is nothing to watch")
    loss, alpha = certificate.loss, certificate.alpha
    if loss == "differs":
        differs_limit = alpha
    elif differs_limit is None:
        differs_limit = certificate.differs_upper
        if differs_limit is None:
            raise PolicyError(
                f"the policy promises {loss!r} and does not say how many replies may differ from "
                "full thinking: calibrate it again"
            )
    settings = WatchSettings(
        policy.digest, loss, alpha, differs_limit, certificate.delta, share, change
    )
    settings.tests()  # refuses numbers out of range
    return settings


def drift_reference(policy: Policy) -> Mapping[str, Sequence[float]]:
    """What calibration questions were like, by names of `WATCHED`; empty where it is not held."""
    served = policy.terms.served
    held = {name: getattr(served, name, None) for name in WATCHED}
    return {name: values for name, values in held.items() if values}
