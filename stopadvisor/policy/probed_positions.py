"""Check that a run was probed where a policy probes; if not, name the command that does so."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import Policy
from stopadvisor.probes.table import NO_PROBE
from stopadvisor.probes.trigger import MarkerTrigger, recorded_positions
from stopadvisor.runs.sources import Source

__all__ = ["check_probed"]


def check_probed(policy: Policy, file: str, source: Source) -> None:
    """Refuse a run that lacks probes at the policy's positions.

    Raises
    ------
    PolicyError
        Positions are missing; the message says how to probe them.
    """
    problem = _problem(policy, source)
    if problem is None:
        return
    if source.manifest is not None and policy.terms.model is not None:
        workload = shlex.quote(source.manifest["workload"]["path"])
        command = f"stopadvisor probe {workload} --like {shlex.quote(file)}"
        problem += f": `{command}` probes where the policy does"
    raise PolicyError(problem)


def _problem(policy: Policy, source: Source) -> str | None:
    table, trigger, folder = source.table, policy.trigger, source.folder
    if trigger.kind == "grid" and table.is_grid:
        probed = table.budgets.tolist()
        missing = [budget for budget in trigger.positions if budget not in probed]
        if not missing:
            return None
        at = "there" if len(missing) == len(trigger.positions) else f"at {_listed(missing)}"
        return (
            f"the policy probes at {_listed(trigger.positions)} thinking tokens, {folder} does "
            f"not {at}; its budgets are {_listed(probed)}"
        )
    if isinstance(trigger, MarkerTrigger):
        if table.marker_positions is None:
            return f"the policy probes where a marker begins, {folder} looked for no markers"
        plan = {} if source.manifest is None else source.manifest["plan"]
        if plan and {tuple(ids) for ids in plan.get("markers", ())} != set(trigger.markers):
            return f"the policy probes at other markers than {folder}"
    for i, length in enumerate(table.trace_tokens.tolist()):
        row = () if table.marker_positions is None else table.marker_positions[i].tolist()
        asked = recorded_positions(trigger, length, [at for at in row if at != NO_PROBE])
        missing = sorted(set(asked).difference(table.positions[i].tolist()))
        if missing:
            return (
                f"the policy probes question {table.ids[i]!r} at {_listed(asked)} thinking tokens, "
                f"{folder} does not at {_listed(missing)}"
            )
    return None


def _listed(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last
