"""Certifying the rule of another policy here, on every question outside the test part.

The steps are those of `certify`, but nothing is chosen: the source's rule keeps its order of
thresholds.  Whoever calls holds the run's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.settings import large_alpha
from stopadvisor.certification.calibration import (
    Calibration,
    counted_traces,
    entering_rows,
    require_gold,
)
from stopadvisor.certification.certify import CertifyRequest
from stopadvisor.certification.looks import (
    TakenLook,
    named_settings,
    plan_look,
    take,
    without_shown_fit,
    without_used,
)
from stopadvisor.certification.refusals import without_figures
from stopadvisor.certification.transfer import (
    calibrate_transfer,
    check_transfer,
    target_view,
    transferred_content,
)
from stopadvisor.certification.verification import costing
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.policy.frozen import Policy, build_policy
from stopadvisor.policy.probed_positions import check_probed
from stopadvisor.runs.look_log import Look, record_result
from stopadvisor.runs.sources import Source, read_assessment

__all__ = ["TransferCertification", "certify_transfer"]


@dataclass(frozen=True)
class TransferCertification:
    """What was tested of the source's rule here, and the policy that follows from it."""

    source: Policy
    settings: Settings
    calibration: Calibration
    look: Look
    content: Mapping[str, Any]
    """Of the transferred policy; one that never stops where nothing was certified."""
    remarks: tuple[str, ...]
    """What the reader should know before trusting the policy."""


def certify_transfer(
    policy: Policy, file: str, source: Source, request: CertifyRequest
) -> TransferCertification:
    """Certify a threshold of the rule of another policy, which lies in `file`.

    The caller holds the lock of the `source`.

    Raises
    ------
    PolicyError
        The policy cannot be carried over.
    CalibrationError
        Settings out of range, or too few questions.
    ProbeError
        The run's assessment or log of looks cannot be read.
    """
    asked = _settings(policy, source, request)
    if not request.allow_large_alpha:
        _check_alpha(policy, source, asked)
    traces = len(counted_traces(target_view(source).part("calibration"), asked))
    asked = replace(asked, traces=traces)
    requested = _request(policy, asked)
    if request.fresh:
        view = without_used(source, ("fit", "calibration"))
    else:
        view = without_shown_fit(source, requested)
    n_shown = 0 if request.fresh else source.table.n_questions - view.table.n_questions
    table = target_view(view).part("calibration")
    require_gold(asked, table)
    plan = plan_look(view, table, requested, delta=asked.delta, looks=request.looks)
    settings = replace(asked, delta=plan.test_delta)
    check_probed(policy, file, view)
    check_transfer(policy.content, view)
    entering_rows(table, settings)
    taken = take(plan)
    calibration = calibrate_transfer(policy.content, view, taken.questions, settings)
    look = record_result(source.folder, taken.look, certified=calibration.rule is not None)
    if not look.opened:
        calibration = without_figures(calibration, settings)
    content = build_policy(transferred_content(policy.content, view, calibration, settings, look))
    return TransferCertification(
        policy, settings, calibration, look, content, tuple(_remarks(policy, view, taken, n_shown))
    )


def _settings(policy: Policy, source: Source, request: CertifyRequest) -> Settings:
    """The request's settings; costs are the policy's own where neither user nor run sets others."""
    settings, overrides = request.settings(source), request.overrides
    if overrides.serving is not None or read_assessment(source.folder) is not None:
        return settings
    own = costing(policy.content)
    return replace(
        settings,
        serving=own.serving,
        weights=overrides.weights or own.weights,
        cache_block=own.cache_block,
    )


def _check_alpha(policy: Policy, source: Source, settings: Settings) -> None:
    """Refuse a large alpha by what is known of full thinking without opening a question."""
    assessed, expected = read_assessment(source.folder), policy.terms.expected
    if not settings.limits_accuracy:
        return
    if assessed is not None and "fit_full_accuracy" in assessed:
        known, basis = assessed["fit_full_accuracy"], "fit questions"
    elif expected is not None:
        known, basis = expected.calibration_full_accuracy, "where the policy was calibrated"
    else:
        return
    if said := large_alpha(settings.alpha, known, basis):
        raise CalibrationError(said)


def _request(policy: Policy, settings: Settings) -> dict[str, Any]:
    """What the log names of a look at every question outside the test part."""
    asked = {"protocol": "transfer", "policy": policy.digest, **named_settings(settings)}
    del asked["delta"], asked["families"]  # no family is chosen
    return asked


def _remarks(policy: Policy, target: Source, taken: TakenLook, n_shown: int) -> list[str]:
    found = list(taken.remarks)
    source = policy.terms
    if n_shown:
        found.append(
            f"{n_shown} fit questions were left out: their outcomes were shown before, so that "
            "policy and alpha could have been chosen by them (--from before assess uses them too)"
        )
    differs = source.entropy_source != target.table.entropy_source
    if differs and policy.reads_logprobs:
        found.append(
            f"the policy's entropies were '{source.entropy_source}', here they are "
            f"'{target.table.entropy_source}': the certificate holds, the rule may suit less"
        )
    if source.model is None and source.workload_sha256 != target.workload_sha256:
        found.append(
            "the policy comes from an archive, which does not name its questions: that none of "
            "these fitted it cannot be checked"
        )
    return found
