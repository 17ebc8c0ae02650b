"""What is watched of a policy's traffic: limits of its certificate, and features of calibration.

Settled before the first request.  Knows no records; `monitoring` takes them in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stopadvisor.errors import PolicyError
from stopadvisor.policy.frozen import Policy
from stopadvisor.stats.sequential import AuditTest, requests_to_alarm

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
    """Share of replies that may differ before it is a warning: alpha itself where the loss is
    `differs`, else what was calibrated of this rule."""
    delta: float
    share: float
    """Of requests that are audited."""
    change: float

    @property
    def needs_gold(self) -> bool:
        """Whether differing replies are an early warning, and only gold can break the promise."""
        return self.loss != "differs"

    def tests(self) -> dict[str, AuditTest]:
        """By what they watch: `differs`, and the loss of the certificate where it needs gold."""
        found = {"differs": AuditTest(self.differs_limit, self.delta, self.share, self.change)}
        if self.needs_gold:
            gains = self.loss == "drop"
            found[self.loss] = AuditTest(self.alpha, self.delta, self.share, self.change, gains)
        return found

    def delay(self, times: int) -> float | None:
        """Median requests until differing replies raise an alarm; None: it may never come.

        Their risk being `times` the limit from the first request on.
        """
        test = self.tests()["differs"]
        if times * test.alpha >= 1:
            return None
        found = requests_to_alarm(test, times * test.alpha, self.share)
        return found if math.isfinite(found) else None


def watch_settings(
    policy: Policy, *, share: float, change: float = 1e6, differs_limit: float | None = None
) -> WatchSettings:
    """What to watch for a policy.

    Parameters
    ----------
    share : float
        Of requests that are audited.
    differs_limit : float, optional
        For a certificate that needs gold: the share of replies that may differ.  The policy's own
        calibrated limit where none is given.

    Raises
    ------
    PolicyError
        The policy promises nothing, or does not say how many replies may differ.
    CalibrationError
        A number is out of range.
    """
    certificate = policy.content["certificate"]
    if certificate is None:
        raise PolicyError("the policy never stops and promises nothing: there is nothing to watch")
    loss = str(certificate.get("loss", "lost"))
    alpha = float(certificate["alpha"])
    if loss == "differs":
        differs_limit = alpha
    elif differs_limit is None:
        limit = certificate.get("differs_upper")
        if limit is None:
            raise PolicyError(
                f"the policy promises {loss!r} and does not say how many replies may differ from "
                "full thinking: calibrate it again, or give --differs-limit"
            )
        differs_limit = float(limit)
    settings = WatchSettings(
        policy.digest, loss, alpha, differs_limit, float(certificate["delta"]), share, change
    )
    settings.tests()  # refuses numbers out of range
    return settings


def drift_reference(policy: Policy) -> Mapping[str, Sequence[float]]:
    """What calibration questions were like, by names of `WATCHED`; empty where it is not held."""
    found = policy.content["served"] or {}
    return {name: found[name] for name in WATCHED if found.get(name)}
