"""Transfer of a frozen policy to another workload or model, and what it is worth there.

Three ways to come by a rule on a target: the source's rule with its threshold (zero-shot), the
source's rule with a threshold certified on the target (target-calibrated), and a rule chosen and
certified on the target alone (target-trained).  Knows no files and no log of looks.

References
----------
Paper, Section "Transfer, Robustness, and Cross-Family Checks" and Appendix "Transfer Protocols".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from stopadvisor.assessment.choice import Choice, Settings
from stopadvisor.certification.calibration import Calibration, recalibrate
from stopadvisor.certification.export import policy_content
from stopadvisor.certification.verdicts import Verdict, verdict_on
from stopadvisor.certification.verification import questions_seen, scorer_of
from stopadvisor.ground.arrays import IntArray
from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.triggers import trigger_of
from stopadvisor.probes.grouping import calibration_rows, in_groups_of
from stopadvisor.probes.outcomes import CalibrationQuestions, GradedTable
from stopadvisor.probes.trajectories import profile, trajectory
from stopadvisor.rules.families import FIXED_BUDGET, display_threshold
from stopadvisor.rules.outcomes import Outcome, measure_rule
from stopadvisor.rules.schedules import GridSchedule, schedule_of
from stopadvisor.rules.scorer import Scorer
from stopadvisor.runs.access import open_test
from stopadvisor.runs.look_log import Look
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bootstrap import Interval
from stopadvisor.workload.questions import PARTS

__all__ = [
    "TARGET_CALIBRATED",
    "TransferComparison",
    "TransferRow",
    "calibrate_transfer",
    "check_comparison",
    "check_transfer",
    "compare_transfers",
    "target_view",
    "transferred_content",
]

TARGET_CALIBRATED = "target-calibrated"
_CALIBRATION, _TEST = PARTS.index("calibration"), PARTS.index("test")

Protocol = Literal["zero-shot", "target-calibrated", "target-trained"]


@dataclass(frozen=True)
class TransferRow:
    """One way to come by a rule, and what the rule did on the target's test questions."""

    protocol: Protocol
    family: str | None
    """None: nothing was certified, so that nothing is stopped."""
    budgets: tuple[int, ...]
    threshold: float | None
    """As people know it."""
    labels_used: int
    """Target questions whose labels made the rule or its certificate."""
    certified: bool
    """On the target."""
    reason: str | None
    """Why there is no certificate on the target."""
    verdict: Verdict | None
    """What the test questions say about a risk of alpha; for the rule without a certificate."""
    outcome: Outcome
    risk_ci95: tuple[float, float]
    """Exact, for this row alone."""


@dataclass(frozen=True)
class TransferComparison:
    """The three protocols at equal total labels, on the same test questions."""

    rows: tuple[TransferRow, ...]
    labels: int
    """Target questions outside the test part that count: what each protocol may use."""
    n_test: int
    n_seen: int
    """Test traces left out because they made the source policy."""


# --- Target-calibrated ----------------------------------------------------------------------------


def check_transfer(content: Mapping[str, Any], target: Source) -> Scorer:
    """Say whether a policy can be calibrated on a target; looks at no outcome.

    Returns the source's scorer, over the target's columns.

    Raises
    ------
    PolicyError
        It never stops, holds no testing order, was not probed for, or was fitted or calibrated on
        questions of the target: their labels would be used twice.
    """
    if "ladder" in content:
        raise PolicyError("the policy climbs a ladder: assess and calibrate the target by itself")
    table = target.table
    scorer = scorer_of(content, table, along_order=bool(content["order"]))
    if not content["order"]:
        raise PolicyError(
            "the policy holds no testing order of its thresholds, so that it cannot be calibrated "
            "again"
        )
    if table.reference == "last-checkpoint" and content["family"] != FIXED_BUDGET:
        last, schedule = int(table.budgets[-1]), schedule_of(trigger_of(content))
        if not isinstance(schedule, GridSchedule) or schedule.positions[-1] != last:
            raise PolicyError(
                f"under the last-checkpoint reference the policy must probe at the target's last "
                f"budget, {last}; it probes {schedule.describe()}"
            )
    # The source's calibration decided which sequence was exported, so it counts as fitting.
    shared = questions_seen(content, table, workload_sha256=target.workload_sha256)
    if shared:
        raise PolicyError(
            f"{len(shared)} questions of {target.folder} fitted or calibrated this policy, e.g. "
            f"{min(shared)!r}: calibrate it on other questions"
        )
    return scorer


def target_view(target: Source) -> Source:
    """The target with everything outside the test part for calibration: nothing is fitted."""
    target = target.without_repeats()
    parts = np.where(target.parts == _TEST, _TEST, _CALIBRATION).astype(np.int8)
    return replace(target, parts=parts)


def calibrate_transfer(
    content: Mapping[str, Any], target: Source, questions: CalibrationQuestions, settings: Settings
) -> Calibration:
    """Certify a threshold of the source's rule on every target question outside the test part.

    The source policy's `content` gives its scorer, its checkpoints and its thresholds in testing
    order; `questions` are those of `target_view`.  One sequence is tested, at the whole of delta.
    """
    scorer = check_transfer(content, target)
    order = np.array(content["order"], dtype=np.float64)
    return recalibrate(scorer, order, questions, settings)


def transferred_content(
    content: Mapping[str, Any],
    target: Source,
    calibration: Calibration,
    settings: Settings,
    look: Look,
) -> dict[str, Any]:
    """Fields of the transferred policy, ready for `policy.build_policy`.

    The rule is the source's, with the target's threshold; everything that it is bound to, and all
    that was shown about it, is the target's.  As fit questions it names those of the source, so
    that they can never confirm it.
    """
    entered = calibration.first
    shape = profile(trajectory(entered), rng=np.random.default_rng(target.seed))
    accuracy = float(entered.full_correct.mean())
    fields = policy_content(target_view(target), settings, accuracy, calibration, shape, look)
    if not look.opened:
        fields["profile"] = None  # of calibration questions, and a failed look shows nothing
    source_model = content["model"]
    # Rows of another archive are no names: they would be taken for rows of this one.
    named = source_model is not None or content["workload_sha256"] == target.workload_sha256
    if named and content["split"] is not None:
        seen = {*content["split"]["fit"], *content["split"]["calibration"]}
        fields["split"]["fit"] = sorted(seen)
    if fields["certificate"] is not None:
        fields["certificate"] |= {
            "transfer": TARGET_CALIBRATED,
            "source_digest": content["digest"],
            "source_model": None if source_model is None else source_model["name"],
        }
    return fields


# --- The comparison -------------------------------------------------------------------------------


def check_comparison(content: Mapping[str, Any], target: Source) -> tuple[IntArray, int]:
    """Test questions on which the protocols can be compared; looks at no outcome.

    Returns
    -------
    rows : ndarray of int
        Of the test part; one trace per group, none that the source policy has seen.
    n_seen : int
        Traces left out because it has.
    """
    table = target.part("test")
    seen = questions_seen(content, table, workload_sha256=target.workload_sha256)
    fresh = ~in_groups_of(table, seen)
    if not fresh.any():
        raise PolicyError(
            "a comparison needs test questions that the source policy has not seen: "
            f"{target.folder} holds {table.n_questions} test traces, none of them fresh"
        )
    rows = np.flatnonzero(fresh)
    return rows[calibration_rows(table.take(rows))], int((~fresh).sum())


def compare_transfers(
    content: Mapping[str, Any],
    target: Source,
    transferred: Calibration,
    choice: Choice,
    trained: Calibration,
) -> TransferComparison:
    """Put the three protocols side by side on the target's test questions.

    `content` is the source policy's, and `transferred` comes from `calibrate_transfer`: all labels
    outside the test part calibrate.  `choice` was made on the target's fit questions; `trained` is
    its calibration on the target's calibration questions.

    Notes
    -----
    Departs from the paper, which compares the gain at equal *test* data but lets the protocols use
    different numbers of labels: here all may use the same ones, and the table says what they used.
    """
    settings = choice.settings
    rows_compared, n_seen = check_comparison(content, target)
    test = open_test(target).take(rows_compared)
    seed = target.seed
    zero_shot = _row(
        "zero-shot",
        (scorer_of(content, test), content["decision_threshold"]),
        test,
        settings,
        labels_used=0,
        reason="its certificate is about the source's questions and model, not about these",
        judged=True,
        seed=seed,
    )
    labels = transferred.first.n_questions
    n_fit = calibration_rows(target.part("fit")).size
    rows = [zero_shot]
    found: tuple[tuple[Protocol, Calibration, int], ...] = (
        ("target-calibrated", transferred, labels),
        ("target-trained", trained, n_fit + trained.first.n_questions),
    )
    for name, calibration, used in found:
        rule = calibration.rule
        rows.append(
            _row(
                name,
                None if rule is None else (rule.scorer, rule.threshold),
                test,
                settings,
                labels_used=used,
                reason=None if calibration.refusal is None else calibration.refusal.reason,
                seed=seed,
            )
        )
    return TransferComparison(tuple(rows), labels, test.n_questions, n_seen)


def _row(
    protocol: Protocol,
    rule: tuple[Scorer, float] | None,
    test: GradedTable,
    settings: Settings,
    *,
    labels_used: int,
    reason: str | None,
    judged: bool = False,
    seed: int,
) -> TransferRow:
    budgets: tuple[int, ...] = ()
    if rule is None:
        right = int(test.full_correct.sum())
        outcome = Outcome(test.n_questions, 0, right, right, 0.0, 0.0, Interval(0.0, 0.0, 0.0))
        family, threshold = None, None
    else:
        scorer, linear = rule
        outcome = measure_rule(
            scorer,
            linear,
            test,
            settings.costing,
            loss=settings.counted,
            rng=np.random.default_rng(seed),
        )
        family, threshold = scorer.family, display_threshold(scorer.family, linear)
        if isinstance(scorer.schedule, GridSchedule):
            budgets = scorer.schedule.positions
    return TransferRow(
        protocol,
        family,
        budgets,
        threshold,
        labels_used,
        reason is None,
        reason,
        verdict_on(outcome.losses, outcome.n, settings.alpha, settings.delta) if judged else None,
        outcome,
        outcome.risk_ci95,
    )
