"""Study `transfer`: every run's rule on every other run.

Paper, Appendix "Transfer Protocols" and Section "Transfer, Robustness, and Cross-Family Checks":
gain over fixed budgets of the learned rule, zero-shot, target-calibrated and target-trained.  The
deploy protocol takes each run's exported policy and measures savings and losses of the three on the
target's test questions; it certifies nothing, because nothing here is entered as a look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from stopadvisor.assessment.assess import calibration_size
from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.certification.calibration import Calibration, calibrate
from stopadvisor.certification.transfer import calibrate_transfer, compare, target_view
from stopadvisor.errors import CalibrationError, PolicyError, StudyError
from stopadvisor.paper.transfer_gains import Learner, transfer_gains
from stopadvisor.policy.frozen import load_policy
from stopadvisor.runs.access import View, basis_remarks, open_all, unsealed_calibration
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import paper_setting, paper_views, study_settings
from stopadvisor.studies.rows import Ends, Outline, Row, column, ends
from stopadvisor.studies.study import StudyOptions, StudyResult
from stopadvisor.workload.questions import PARTS

__all__ = ["OUTLINE", "run"]

_POLICY = "policy.joblib"


class _TransferGain(
    Row,
    table="gains",
    title="Gain of the learned rule on the target's test questions",
    note="accuracy above fixed budgets at equal thinking; thresholds are those of peak gain",
):
    source: str = column("From")
    target: str = column("To")
    type: str = column("Type")
    source_gain: float = column("At source")
    zero_shot_gain: float = column("Zero-shot", of="zero_shot")
    target_calibrated_gain: float = column("Target-calibrated", of="target_calibrated")
    target_trained_gain: float = column("Target-trained", of="target_trained")


class _TransferSaving(
    Row,
    table="savings",
    title="Exported policies on the target's test questions, {serving}",
    note="certifies: its labels would; there is no certificate, for no look is entered here",
):
    source: str = column("From")
    target: str = column("To")
    protocol: str = column("Protocol")
    family: str | None = column("Rule")
    saving_pct: float = column("Saves (test)", "%", of="outcome.total_saving_pct")
    saving_ci: Ends = ends("95% low", "%", of="outcome.saving_interval")
    risk: float = column("Risk (test)", "share", of="outcome.risk")
    risk_ci: Ends = ends("95% low", "share", of="risk_ci95")
    would_certify: bool = column("Certifies", of="certified")
    labels: int = column("Labels", of="labels_used")
    questions: int = column("Questions", of="outcome.n")
    checkpoints: int = column("Checkpoints")
    accuracy: float = column("Accuracy", "share", of="outcome.accuracy")
    full_accuracy: float = column("Full acc.", "share", of="outcome.full_accuracy")


OUTLINE = Outline("transfer", 'Appendix "Transfer Protocols"', (_TransferGain, _TransferSaving))


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Every ordered pair of the runs given, of which there are two or more."""
    if len(sources) < 2:
        raise StudyError(f"a transfer needs two runs or more, got {len(sources)}")
    views = paper_views(sources)
    found = [*_gains(sources, views)]
    found += _savings(sources, views, study_settings(options, boosted=True))
    return OUTLINE.result(found, options, basis_remarks(views))


def _gains(sources: Sequence[Source], views: Sequence[View]) -> Iterator[Row | str]:
    learners = [Learner.build(view.table, paper_setting(view)) for view in views]
    for a, b in permutations(range(len(sources)), 2):
        yield _TransferGain.of(
            transfer_gains(learners[a], learners[b]),
            source=views[a].label,
            target=views[b].label,
            type=_kind(sources[a], sources[b]),
            source_gain=learners[a].peak_gain,
        )
        if a < b and _keys(sources[a]) & _keys(sources[b]):
            yield (
                f"{views[a].label} and {views[b].label} share questions: between them the paper's "
                "gains are those of another model or decoding on questions already seen"
            )


def _keys(source: Source) -> set[str]:
    """Keys of questions; an archive's are row numbers and name nothing elsewhere."""
    return set() if source.is_archive else set(source.table.keys)


def _kind(source: Source, target: Source) -> str:
    """What lies between two runs, as far as their manifests say."""
    if source.manifest is None or target.manifest is None:
        return "unknown"
    same_model = source.model == target.model
    same_task = bool(_keys(source) & _keys(target))
    if same_model and same_task:
        return "same task and model"
    if same_model:
        return "cross-task"
    return "cross-model" if same_task else "cross-task and -model"


# --- Exported policies ----------------------------------------------------------------------------


def _savings(
    sources: Sequence[Source], views: Sequence[View], settings: Settings
) -> Iterator[Row | str]:
    """Savings of every exported policy on every other run, and why some have none."""
    policies: dict[str, Mapping[str, Any]] = {}
    for source, view in zip(sources, views, strict=True):
        if not (source.folder / _POLICY).exists():
            yield f"{view.label}: no {_POLICY}, so that nothing of it is transferred"
            continue
        policy = load_policy(source.folder / _POLICY)
        if policy.kind == "stop":
            policies[view.label] = policy.content
        else:
            yield f"{view.label}: its policy never stops, so that nothing is transferred"
    for target, view in zip(sources, views, strict=True):
        contents = {name: c for name, c in policies.items() if name != view.label}
        if not contents or view.basis != "all":
            continue
        try:
            choice, trained = _trained(target, settings)
            calibrates = target_view(target).parts == PARTS.index("calibration")
            outside_test = open_all(target).take(calibrates).as_calibration()
        except CalibrationError as error:
            yield f"{view.label}: no target under the deploy protocol: {error}"
            continue
        for name, content in contents.items():
            try:
                moved = calibrate_transfer(content, target, outside_test, settings)
                found = compare(content, target, moved, choice, trained)
            except (CalibrationError, PolicyError) as error:
                yield f"{name} on {view.label}: {error} (see `probe --like POLICY`)"
                continue
            for row in found.rows:
                yield _TransferSaving.of(
                    row, source=name, target=view.label, checkpoints=len(row.budgets)
                )


def _trained(target: Source, settings: Settings) -> tuple[Choice, Calibration]:
    calibration = unsealed_calibration(target)
    choice = choose(target.part("fit"), calibration_size(calibration), settings)
    return choice, calibrate(choice, calibration)
