"""Certify the rule of another policy on this run, with every question outside the test part.

The source's rule keeps its testing order, and one of its thresholds is certified on the target (the
paper's target-calibrated transfer).

References
----------
Paper, Section "Transfer, Robustness, and Cross-Family Checks" and Appendix "Transfer Protocols".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.settings import large_alpha
from stopadvisor.certification.calibration import Calibration, recalibrate, without_figures
from stopadvisor.certification.certify import Certification, CertifyRequest, check_replies
from stopadvisor.certification.check_policy import check_kind, check_probed
from stopadvisor.certification.export import check_policy_terms, policy_terms
from stopadvisor.certification.looks import (
    counted_traces,
    entering_rows,
    named_settings,
    plan_look,
    require_gold,
    take,
    without_shown_fit,
    without_used,
)
from stopadvisor.certification.verification import costing, questions_seen, scorer_of
from stopadvisor.ground.errors import CalibrationError, PolicyError
from stopadvisor.policy.frozen import Policy, build_policy
from stopadvisor.policy.terms import PolicyTerms, trigger_of
from stopadvisor.probes.trajectories import profile, trajectory
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.scorer import Scorer
from stopadvisor.runs.archives import names_questions
from stopadvisor.runs.look_log import Look, record_result
from stopadvisor.runs.sources import Source, read_assessment
from stopadvisor.workload.questions import PARTS

__all__ = [
    "TARGET_CALIBRATED", "certify_transfer", "check_transfer", "target_view", "transferred_terms",
]  # fmt: skip

TARGET_CALIBRATED = "target-calibrated"
_CALIBRATION, _TEST = PARTS.index("calibration"), PARTS.index("test")


def check_transfer(terms: PolicyTerms, target: Source) -> Scorer:
    """Return the source's scorer over the target's columns, if the policy can be calibrated there.

    Reads no outcome.  PolicyError if the policy never stops or has no testing order, if the target
    lacks probes that it needs, or if questions of the target fitted or calibrated it: their labels
    would be used twice.
    """
    table = target.table
    scorer = scorer_of(terms, table, along_order=bool(terms.order))
    if not terms.order:
        raise PolicyError(
            "the policy has no testing order of its thresholds, so it cannot be calibrated again"
        )
    if table.reference == "last-checkpoint" and terms.family != FIXED_BUDGET:
        last, schedule = int(table.budgets[-1]), trigger_of(terms)
        if schedule.positions is None or schedule.positions[-1] != last:
            raise PolicyError(
                f"under the last-checkpoint reference the policy must probe at the target's last "
                f"budget, {last}; it probes {schedule.describe()}"
            )
    # The source's calibration questions also chose the exported sequence: they count as fit.
    shared = questions_seen(terms, table, workload_sha256=target.workload_sha256)
    if shared:
        raise PolicyError(
            f"{len(shared)} questions of {target.folder} fitted or calibrated this policy, e.g. "
            f"{min(shared)!r}: calibrate it on other questions"
        )
    return scorer


def target_view(target: Source) -> Source:
    """Move every question outside the test part to the calibration part: nothing is fitted."""
    target = target.without_repeats()
    parts = np.where(target.parts == _TEST, _TEST, _CALIBRATION).astype(np.int8)
    return replace(target, parts=parts)


def transferred_terms(
    terms: PolicyTerms, target: Source, calibration: Calibration, settings: Settings, look: Look
) -> PolicyTerms:
    """Content of the transferred policy, for `policy.build_policy`.

    The rule is the source's; threshold, model and certificate are the target's.  The source's
    questions are listed as fit questions, so that they never confirm it.
    """
    entered = calibration.first
    shape = profile(trajectory(entered), rng=np.random.default_rng(target.seed))
    accuracy = float(entered.full_correct.mean())
    made = policy_terms(target_view(target), settings, accuracy, calibration, shape, look)
    if not look.opened:
        made = replace(made, profile=None)  # it describes questions that a failed look must hide
    # Row numbers of another archive would be mistaken for rows of this one.
    named = not _is_nameless(terms) or terms.workload_sha256 == target.workload_sha256
    if named and terms.split is not None and made.split is not None:
        seen = {*terms.split.fit, *terms.split.calibration}
        made = replace(made, split=replace(made.split, fit=tuple(sorted(seen))))
    if made.certificate is None:
        return made
    certificate = replace(
        made.certificate,
        transfer=TARGET_CALIBRATED,
        source_digest=terms.digest,
        source_model=None if terms.model is None else terms.model.name,
    )
    return replace(made, certificate=certificate)


# --- With a look ----------------------------------------------------------------------------------


def certify_transfer(
    policy: Policy, file: str, source: Source, request: CertifyRequest
) -> Certification:
    """Certify a threshold of the rule of another policy, which was read from `file`.

    The caller holds the lock of the `source`.  PolicyError if the policy cannot be transferred or
    climbs another ladder; otherwise raises as `certify.certify`.
    """
    check_kind(policy.terms, source)
    asked = _settings(policy, source, request)
    if "large-alpha" not in request.despite:
        _check_alpha(policy, source, asked)
    traces = len(counted_traces(target_view(source).part("calibration"), asked))
    asked = replace(asked, traces=traces)
    # The log does not record settings that matter only when a rule is chosen.
    requested = {"protocol": "transfer", "policy": policy.digest, **named_settings(asked)}
    for name in ("families", "on_give_up"):
        requested.pop(name, None)
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
    scorer = check_transfer(policy.terms, view)
    entering_rows(table, settings)
    check_replies(view, table, settings)
    check_policy_terms(view, settings)
    taken = take(plan)
    order = np.array(policy.terms.order, dtype=np.float64)
    calibration = recalibrate(scorer, order, taken.questions, settings)
    look = record_result(source.folder, taken.look, certified=calibration.rule is not None)
    if not look.opened:
        calibration = without_figures(calibration, settings)
    made = build_policy(transferred_terms(policy.terms, view, calibration, settings, look))
    remarks = list(taken.remarks)
    if n_shown:
        remarks.append(
            f"{n_shown} fit questions were left out: their outcomes were shown before, so policy "
            "and alpha could have been chosen by them (--from before assess uses them too)"
        )
    if _is_nameless(policy.terms) and policy.terms.workload_sha256 != view.workload_sha256:
        remarks.append(
            "the policy comes from an archive, which does not name its questions: that none of "
            "these fitted it cannot be checked"
        )
    return Certification(settings, calibration, look, made, tuple(remarks), source=policy)


def _settings(policy: Policy, source: Source, request: CertifyRequest) -> Settings:
    """Complete the settings; costs are the policy's own unless the user or the run sets others."""
    settings, overrides = request.settings(source), request.overrides
    is_set = overrides.serving is not None or source.ladder is not None
    if is_set or read_assessment(source.folder) is not None:
        return settings
    own = costing(policy.terms)
    return replace(settings, serving=own.serving, weights=overrides.weights or own.weights)


def _check_alpha(policy: Policy, source: Source, settings: Settings) -> None:
    """Refuse a large alpha, by an accuracy that is known without opening a question."""
    assessed, expected = read_assessment(source.folder), policy.terms.expected
    if not settings.limits_accuracy:
        return
    if assessed is not None and "fit_full_accuracy" in assessed:
        known, basis = assessed["fit_full_accuracy"], "fit questions"
    elif expected is not None:
        known, basis = expected.calibration_full_accuracy, "where the policy was calibrated"
    else:
        return
    if said := large_alpha(settings, known, basis):
        raise CalibrationError(said)


def _is_nameless(terms: PolicyTerms) -> bool:
    """Whether the policy was made from an archive that names its questions only by row."""
    if terms.model is not None or terms.split is None:
        return False
    return not names_questions([*terms.split.fit, *terms.split.calibration])
