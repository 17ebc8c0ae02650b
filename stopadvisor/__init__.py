"""StopAdvisor measures, certifies and exports when a reasoning model may stop thinking early.

The public names, each imported when it is first used, so that `import stopadvisor` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stopadvisor.archives import read_archive
    from stopadvisor.errors import (
        CalibrationError,
        EngineError,
        ModelError,
        OutputError,
        PolicyError,
        PreflightError,
        ProbeError,
        StopAdvisorError,
        WorkloadError,
    )
    from stopadvisor.policy import Policy, load_policy
    from stopadvisor.probes import ProbeTable
    from stopadvisor.runs import RunDirectory
    from stopadvisor.stepper import Decision, Stepper
    from stopadvisor.workload import Question, Workload, read_workload

__version__ = "0.1.0"

__all__ = [
    "CalibrationError",
    "Decision",
    "EngineError",
    "ModelError",
    "OutputError",
    "Policy",
    "PolicyError",
    "PreflightError",
    "ProbeError",
    "ProbeTable",
    "Question",
    "RunDirectory",
    "Stepper",
    "StopAdvisorError",
    "Workload",
    "WorkloadError",
    "__version__",
    "load_policy",
    "read_archive",
    "read_workload",
]

_HOMES = {
    "Decision": "stepper",
    "Policy": "policy",
    "ProbeTable": "probes",
    "Question": "workload",
    "RunDirectory": "runs",
    "Stepper": "stepper",
    "Workload": "workload",
    "load_policy": "policy",
    "read_archive": "archives",
    "read_workload": "workload",
}
"""Module of each public name that is not in ``errors``."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    return globals().setdefault(name, getattr(home, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
