"""Exceptions, each with its exit code on the command line.

A message names the thing at fault, what was required, and what was there instead.
"""

from __future__ import annotations

__all__ = [
    "CalibrationError", "EngineError", "GraderError", "ModelError", "NothingToChoose",
    "OutputError", "PolicyError", "PreflightError", "ProbeError", "StopAdvisorError",
    "StudyError", "UndecidedError", "WorkloadError",
]  # fmt: skip


class StopAdvisorError(Exception):
    """Base of all errors that the package raises on purpose."""

    exit_code = 1


class WorkloadError(StopAdvisorError):
    """A workload file cannot be used as it is."""

    exit_code = 2


class ProbeError(StopAdvisorError):
    """A run directory or a published archive cannot be used as it is."""

    exit_code = 2


class GraderError(StopAdvisorError):
    """A user's grader cannot be loaded, or breaks the rules of graders."""

    exit_code = 2


class CalibrationError(StopAdvisorError):
    """The request for a certificate makes no sense on these data."""

    exit_code = 2


class NothingToChoose(CalibrationError):
    """The measurements leave no rule to choose; `assess` reports this as its advice."""


class PolicyError(StopAdvisorError):
    """A policy file is refused, or does not fit the probes."""

    exit_code = 2


class UndecidedError(PolicyError):
    """The entropy of a forced answer is not known precisely enough to decide."""


class StudyError(StopAdvisorError):
    """A study cannot be made of these runs."""

    exit_code = 2


class OutputError(StopAdvisorError):
    """A result cannot be written where it should be."""

    exit_code = 2


class EngineError(StopAdvisorError):
    """The model failed in the middle of the job."""

    exit_code = 1


class ModelError(EngineError):
    """The model cannot be used at all: unknown, too large, or of a kind not supported."""

    exit_code = 2


class PreflightError(StopAdvisorError):
    """Engine, markers or cue do not work as probing needs them to."""

    exit_code = 5
