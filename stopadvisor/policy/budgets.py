"""Whether a run was probed where a policy probes; if not, the command that probes it so.

Looks at no outcome.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stopadvisor.errors import PolicyError
from stopadvisor.policy.frozen import Policy
from stopadvisor.runs.sources import Source

__all__ = ["check_budgets"]


def check_budgets(policy: Policy, file: str, source: Source) -> None:
    """Refuse probes that were not taken where the policy takes its own.

    Parameters
    ----------
    file : str
        Where the policy lies, for the message.
    source : Source
        The probes.

    Raises
    ------
    PolicyError
        Budgets are missing; says how to probe at them.
    """
    probed = source.table.budgets.tolist()
    missing = [budget for budget in policy.budgets if budget not in probed]
    if not missing:
        return
    at = "there" if len(missing) == len(policy.budgets) else f"at {_listed(missing)}"
    text = (
        f"the policy probes at {_listed(policy.budgets)} thinking tokens, {source.folder} does "
        f"not {at}; its budgets are {_listed(probed)}"
    )
    if source.manifest is not None and policy.content["model"] is not None:
        workload = shlex.quote(source.manifest["workload"]["path"])
        command = f"stopadvisor probe {workload} --like {shlex.quote(file)}"
        text += f": `{command}` probes where the policy does"
    raise PolicyError(text)


def _listed(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last
