"""The sheet of `promote`: which policy is in use now, and the way back."""

from __future__ import annotations

from stopadvisor.policy.promises import promised
from stopadvisor.policy.run_policies import Promotion
from stopadvisor.report.sheet import Fact, Sheet
from stopadvisor.report.words import shell_quote

__all__ = ["promote_sheet"]


def promote_sheet(promotion: Promotion) -> Sheet:
    """Return what is in use now."""
    same = promotion.previous_digest == promotion.digest
    if promotion.promise is not None:
        promise = promotion.promise
    elif promotion.alpha is not None:
        promise = f"at most {promised(promotion.alpha)} lost"
    else:
        promise = "none: it never stops"
    facts: list[Fact] = [
        ("promise", promise),
        ("served as", f"{promotion.current}, a copy of it"),
        ("digest", f"{promotion.digest[:16]}..."),
    ]
    back = None if same else promotion.previous_policy
    if back is not None:
        facts.append(("before", str(back)))
    return Sheet(
        f"{promotion.policy} is in use {'already' if same else 'now'}.",
        "good",
        tuple(facts),
        None if back is None else f"stopadvisor promote {shell_quote(back)}",
        "way back",
    )
