"""Exception types and the exit code each one ends the command line with.

One base class; a message names the thing at fault, what was required and what was found.  Only
``cli.main`` turns these into process exit codes.
"""

from __future__ import annotations

__all__ = [
    "CalibrationError",
    "EngineError",
    "GraderError",
    "ModelError",
    "NothingToChoose",
    "OutputError",
    "PolicyError",
    "PreflightError",
    "ProbeError",
    "StopAdvisorError",
    "StudyError",
    "UndecidedError",
    "WorkloadError",
]


class StopAdvisorError(Exception):
    """Base of every error the tool raises on purpose."""

    exit_code = 1


class WorkloadError(StopAdvisorError):
    """A workload file cannot be used as it is."""

    exit_code = 2


class ProbeError(StopAdvisorError):
    """A run directory or a published archive cannot be used as it is."""

    exit_code = 2


class GraderError(StopAdvisorError):
    """A grader of the user's cannot be had, or does what none may do."""

    exit_code = 2


class CalibrationError(StopAdvisorError):
    """The request for a certificate makes no sense on these data."""

    exit_code = 2


class NothingToChoose(CalibrationError):
    """What was measured leaves no rule to choose; `assess` takes it for advice."""


class PolicyError(StopAdvisorError):
    """A policy file is refused, or does not fit the probes it meets."""

    exit_code = 2


class UndecidedError(PolicyError):
    """The entropy of a forced answer is not known well enough to decide on it."""


class StudyError(StopAdvisorError):
    """A study cannot be made of these runs."""

    exit_code = 2


class OutputError(StopAdvisorError):
    """A result cannot be written where it was asked for."""

    exit_code = 2


class EngineError(StopAdvisorError):
    """The model stopped working in the middle of the job."""

    exit_code = 1


class ModelError(EngineError):
    """The model cannot be used at all: unknown, too large, or of a kind not supported."""

    exit_code = 2


class PreflightError(StopAdvisorError):
    """The engine, the markers or the cue do not do what probing needs."""

    exit_code = 5
