"""Whether a run was probed where a policy probes; if not, the command that probes it so.

Looks at no outcome.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import Policy
from stopadvisor.probes.table import NO_PROBE
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger, recorded_positions
from stopadvisor.runs.sources import Source

__all__ = ["check_probed"]


def check_probed(policy: Policy, file: str, source: Source) -> None:
    """Refuse probes that were not taken where the policy takes its own.

    Raises
    ------
    PolicyError
        Budgets are missing; says how to probe at them.
    """
    table, trigger = source.table, policy.trigger
    if trigger.kind == "grid" and table.is_grid:
        problem = _missing_budgets(trigger, source)
    elif trigger.needs_ids and table.marker_positions is None:
        problem = f"the policy probes where a marker begins, {source.folder} looked for no markers"
    elif isinstance(trigger, MarkerTrigger) and _other_markers(trigger, source):
        problem = f"the policy probes at other markers than {source.folder}"
    else:
        problem = _missing_positions(trigger, source)
    if problem is None:
        return
    if source.manifest is not None and policy.terms.model is not None:
        workload = shlex.quote(source.manifest["workload"]["path"])
        command = f"stopadvisor probe {workload} --like {shlex.quote(file)}"
        problem += f": `{command}` probes where the policy does"
    raise PolicyError(problem)


def _missing_budgets(trigger: ListedTrigger, source: Source) -> str | None:
    probed = source.table.budgets.tolist()
    missing = [budget for budget in trigger.positions if budget not in probed]
    if not missing:
        return None
    at = "there" if len(missing) == len(trigger.positions) else f"at {_listed(missing)}"
    return (
        f"the policy probes at {_listed(trigger.positions)} thinking tokens, {source.folder} does "
        f"not {at}; its budgets are {_listed(probed)}"
    )


def _other_markers(trigger: MarkerTrigger, source: Source) -> bool:
    if source.manifest is None:
        return False
    found = source.manifest["plan"].get("markers", ())
    return {tuple(ids) for ids in found} != set(trigger.markers)


def _missing_positions(trigger: Trigger, source: Source) -> str | None:
    """Look for a question that was not probed where the trigger probes it."""
    table = source.table
    for i, length in enumerate(table.trace_tokens.tolist()):
        row = () if table.marker_positions is None else table.marker_positions[i].tolist()
        markers = [position for position in row if position != NO_PROBE]
        probed = set(table.positions[i].tolist())
        asked = recorded_positions(trigger, length, markers)
        missing = [position for position in asked if position not in probed]
        if missing:
            return (
                f"the policy probes question {table.ids[i]!r} at {_listed(asked)} thinking tokens, "
                f"{source.folder} does not at {_listed(missing)}"
            )
    return None


def _listed(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last
