"""StopAdvisor measures, certifies and exports when a reasoning model may stop thinking early.

The public names, each imported when it is first used, so that `import stopadvisor` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stopadvisor._version import __version__

if TYPE_CHECKING:
    from stopadvisor.api import assess, calibrate, verify
    from stopadvisor.ground.errors import (
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
    from stopadvisor.policy.frozen import Policy, load_policy
    from stopadvisor.policy.stepper import Decision, Stepper
    from stopadvisor.probes.table import ProbeTable
    from stopadvisor.runs.archives import read_archive
    from stopadvisor.runs.directory import RunDirectory
    from stopadvisor.workload.questions import Question, Workload, read_workload

__all__ = [
    "CalibrationError", "Decision", "EngineError", "ModelError", "OutputError", "Policy",
    "PolicyError", "PreflightError", "ProbeError", "ProbeTable", "Question", "RunDirectory",
    "Stepper", "StopAdvisorError", "Workload", "WorkloadError", "__version__", "assess",
    "calibrate", "load_policy", "read_archive", "read_workload", "verify",
]  # fmt: skip

_MODULES = {
    **dict.fromkeys(("assess", "calibrate", "verify"), "api"),
    **dict.fromkeys(("Policy", "load_policy"), "policy.frozen"),
    **dict.fromkeys(("Decision", "Stepper"), "policy.stepper"),
    **dict.fromkeys(("Question", "Workload", "read_workload"), "workload.questions"),
    "ProbeTable": "probes.table", "RunDirectory": "runs.directory", "read_archive": "runs.archives",
}  # fmt: skip
"""Module of each public name that is not in ``ground.errors``."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULES.get(name, 'ground.errors')}")
    return globals().setdefault(name, getattr(module, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
