"""Study `transfer`: every run's rule on every other run.

Paper, Appendix "Transfer Protocols" and Section "Transfer, Robustness, and Cross-Family Checks":
gain over fixed budgets of the learned rule, zero-shot, target-calibrated and target-trained.  The
deploy side takes each run's exported policy and measures savings and losses of the three on the
target's test questions, as `calibrate --from --compare` does; it certifies nothing, because
nothing here is entered in a ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from stopadvisor.assessment.assess import calibration_size
from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.certification.calibration import Calibration, calibrate
from stopadvisor.certification.transfer import TransferComparison, calibrate_transfer, compare
from stopadvisor.errors import CalibrationError, PolicyError, StudyError
from stopadvisor.paper.transfer_gains import Learner, transfer_gains
from stopadvisor.policy.frozen import load_policy
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import paper_setting, paper_views, study_settings
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table

__all__ = ["run"]

_POLICY = "policy.joblib"

_GAINS = (
    Column("source", "From"),
    Column("target", "To"),
    Column("type", "Type"),
    Column("source_gain", "At source"),
    Column("zero_shot_gain", "Zero-shot"),
    Column("target_calibrated_gain", "Target-calibrated"),
    Column("target_trained_gain", "Target-trained"),
)
_SAVINGS = (
    Column("source", "From"),
    Column("target", "To"),
    Column("protocol", "Protocol"),
    Column("family", "Rule"),
    Column("saving_pct", "Saves (test)", "%"),
    Column("saving_low", "95% low", "%"),
    Column("saving_high", "high", "%"),
    Column("risk", "Risk (test)", "share"),
    Column("risk_low", "95% low", "share"),
    Column("risk_high", "high", "share"),
    Column("would_certify", "Certifies"),
    Column("labels", "Labels"),
    Column("questions", "Questions"),
    Column("checkpoints", "Checkpoints"),
    Column("accuracy", "Accuracy", "share"),
    Column("full_accuracy", "Full acc.", "share"),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """All pairs of the runs given.

    Parameters
    ----------
    sources : sequence of Source
        Two or more.
    options : StudyOptions

    Raises
    ------
    StopAdvisorError
        One run only, too few questions, or labels of one class only.
    """
    if len(sources) < 2:
        raise StudyError(f"a transfer needs two runs or more, got {len(sources)}")
    views = paper_views(sources)
    learners = [Learner.build(view.table, paper_setting(view)) for view in views]
    gains: list[tuple[Cell, ...]] = []
    reasons: list[str] = []
    for a, b in permutations(range(len(sources)), 2):
        found = transfer_gains(learners[a], learners[b])
        gains.append(
            (
                views[a].label,
                views[b].label,
                _kind(sources[a], sources[b]),
                learners[a].peak_gain,
                found.zero_shot,
                found.target_calibrated,
                found.target_trained,
            )
        )
        if a < b and _named(sources[a]) & _named(sources[b]):
            reasons.append(
                f"{views[a].label} and {views[b].label} share questions: between them the paper's "
                "gains are those of another model or decoding on questions already seen"
            )
    savings = _deploy_rows(sources, views, study_settings(options, boosted=True), reasons)
    return StudyResult(
        "transfer",
        'Appendix "Transfer Protocols"',
        ("paper", "deploy"),
        (
            Table(
                "gains",
                "Gain of the learned rule on the target's test questions",
                _GAINS,
                tuple(gains),
                "accuracy above fixed budgets at equal thinking; thresholds are those of peak gain",
            ),
            Table(
                "savings",
                f"Exported policies on the target's test questions, {options.serving}",
                _SAVINGS,
                tuple(savings),
                "certifies: its labels would; there is no certificate, for no look is entered here",
            ),
        ),
        (*basis_remarks(views), *reasons),
    )


def _named(source: Source) -> set[str]:
    """Keys of questions; an archive's are row numbers and name nothing elsewhere."""
    return set() if source.is_archive else set(source.table.keys)


def _kind(source: Source, target: Source) -> str:
    """What lies between two runs, as far as their manifests say."""
    if source.manifest is None or target.manifest is None:
        return "unknown"
    same_model = source.model == target.model
    same_task = bool(_named(source) & _named(target))
    if same_model and same_task:
        return "same task and model"
    if same_model:
        return "cross-task"
    return "cross-model" if same_task else "cross-task and -model"


# --- Exported policies ----------------------------------------------------------------------------


def _deploy_rows(
    sources: Sequence[Source], views: Sequence[View], settings: Settings, reasons: list[str]
) -> list[tuple[Cell, ...]]:
    """Savings of every exported policy on every other run; adds why some have none."""
    policies = {}
    for source, view in zip(sources, views, strict=True):
        if not (source.folder / _POLICY).exists():
            reasons.append(f"{view.label}: no {_POLICY}, so that nothing of it is transferred")
            continue
        policy = load_policy(source.folder / _POLICY)
        if policy.kind == "stop":
            policies[view.label] = policy.content
        else:
            reasons.append(f"{view.label}: its policy never stops, so that nothing is transferred")
    rows: list[tuple[Cell, ...]] = []
    for target, view in zip(sources, views, strict=True):
        contents = {name: c for name, c in policies.items() if name != view.label}
        if not contents or view.basis != "all":
            continue
        try:
            choice, trained = _trained(target, settings)
        except CalibrationError as error:
            reasons.append(f"{view.label}: no deploy side as a target: {error}")
            continue
        for name, content in contents.items():
            try:
                moved = calibrate_transfer(content, target, settings)
                found = compare(content, target, moved, choice, trained)
            except (CalibrationError, PolicyError) as error:
                reasons.append(f"{name} on {view.label}: {error} (see `probe --like POLICY`)")
                continue
            rows.extend((name, view.label, *row) for row in _compared(found))
    return rows


def _trained(target: Source, settings: Settings) -> tuple[Choice, Calibration]:
    calibration = target.part("calibration")
    choice = choose(target.part("fit"), calibration_size(calibration), settings)
    return choice, calibrate(choice, calibration)


def _compared(found: TransferComparison) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for row in found.rows:
        outcome, spread = row.outcome, row.outcome.saving_interval
        rows.append(
            (
                row.protocol,
                row.family,
                outcome.total_saving_pct,
                None if spread is None else spread.low,
                None if spread is None else spread.high,
                outcome.risk,
                *row.risk_ci95,
                row.certified,
                row.labels_used,
                outcome.n,
                len(row.budgets),
                outcome.accuracy,
                outcome.full_correct / outcome.n,
            )
        )
    return rows
