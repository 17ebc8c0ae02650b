"""Writing a policy of an older schema anew under the present one.

Knows no file: contents come in and go out.
"""

from __future__ import annotations

from typing import Any

from stopadvisor.errors import PolicyError
from stopadvisor.policy.frozen import Policy, build_policy
from stopadvisor.policy.golden import replay_golden
from stopadvisor.policy.schema import POLICY_SCHEMA
from stopadvisor.policy.stepper import StopRule

__all__ = ["upgraded"]


def upgraded(policy: Policy) -> dict[str, Any]:
    """Build a policy's content anew under the present schema.

    Rule, stops and certificate are the same; golden decisions and digest are made anew.
    """
    found = policy.content["schema"]
    if found == POLICY_SCHEMA:
        raise PolicyError(
            f"has policy schema {POLICY_SCHEMA} already: there is nothing to write anew"
        )
    content = build_policy(policy.content)
    # The old file's own examples show that the new one decides as it did.
    replay_golden(StopRule.from_content(content), policy.content["golden"])
    return content
