"""Study `transfer`: every run's rule on every other run.

Paper, Appendix "Transfer Protocols" and Section "Transfer, Robustness, and Cross-Family Checks":
gain over fixed budgets of the learned rule, zero-shot, target-calibrated and target-trained.  For
deployment it takes each run's exported policy and measures savings and losses of the three on the
target's test questions; it certifies nothing, because nothing here is entered as a look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from stopadvisor.assessment.assess import calibration_size
from stopadvisor.assessment.choice import choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.certification.transfer import calibrate_transfer, compare, target_view
from stopadvisor.ground.errors import CalibrationError, PolicyError
from stopadvisor.paper.transfer_gains import Learner, transfer_gains
from stopadvisor.policy.frozen import load_policy
from stopadvisor.runs.access import View, basis_remarks, open_all, unsealed_calibration
from stopadvisor.runs.sources import Source
from stopadvisor.studies.runner import paper_setting, paper_views, study_settings
from stopadvisor.studies.study import Outline, Row, StudyOptions, StudyResult, layout
from stopadvisor.workload.questions import PARTS

__all__ = ["OUTLINE", "run"]

_POLICY = "policy.joblib"

# fmt: off
_GAINS = layout("gains", "Gain of the learned rule on the target's test questions",
    "accuracy above fixed budgets at equal thinking; thresholds are those of peak gain",
    source="From", target="To", type="Type", source_gain="At source", zero_shot_gain="Zero-shot",
    target_calibrated_gain="Target-calibrated", target_trained_gain="Target-trained")
_SAVINGS = layout("savings", "Exported policies on the target's test questions, {serving}",
    "certifies: its labels would; there is no certificate, for no look is entered here",
    source="From", target="To", protocol="Protocol", family="Rule",
    saving_pct=("Saves (test)", "%"), saving_ci=("95% low", "%"), risk=("Risk (test)", "share"),
    risk_ci=("95% low", "share"),
    would_certify="Certifies", labels="Labels", questions="Questions", checkpoints="Checkpoints",
    accuracy=("Accuracy", "share"), full_accuracy=("Full acc.", "share"))
# fmt: on
OUTLINE = Outline(
    "transfer", 'Appendix "Transfer Protocols"', (_GAINS, _SAVINGS), ("paper", "deploy")
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Every ordered pair of the runs given, of which there are two or more."""
    views = paper_views(sources)
    found = [*_gains(sources, views), *_savings(sources, views, options)]
    return OUTLINE.result(found, options, basis_remarks(views))


def _gains(sources: Sequence[Source], views: Sequence[View]) -> Iterator[Row | str]:
    learners = [Learner.build(view.table, paper_setting(view)) for view in views]
    for a, b in permutations(range(len(sources)), 2):
        found = transfer_gains(learners[a], learners[b])
        yield _GAINS.row(
            source=views[a].label,
            target=views[b].label,
            type=_kind(sources[a], sources[b]),
            source_gain=learners[a].peak_gain,
            zero_shot_gain=found.zero_shot,
            target_calibrated_gain=found.target_calibrated,
            target_trained_gain=found.target_trained,
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
    same_task = bool(_keys(source) & _keys(target))
    if source.model == target.model:
        return "same task and model" if same_task else "cross-task"
    return "cross-model" if same_task else "cross-task and -model"


def _savings(
    sources: Sequence[Source], views: Sequence[View], options: StudyOptions
) -> Iterator[Row | str]:
    """Savings of every exported policy on every other run, and why some have none."""
    policies: dict[str, Mapping[str, Any]] = {}
    settings = study_settings(options)
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
            calibration = unsealed_calibration(target)
            choice = choose(target.part("fit"), calibration_size(calibration), settings)
            trained = calibrate(choice, calibration)
            calibrates = target_view(target).parts == PARTS.index("calibration")
            outside_test = open_all(target).take(calibrates).as_calibration()
        except CalibrationError as error:
            yield f"{view.label}: no target under the deploy protocol: {error}"
            continue
        for name, content in contents.items():
            try:
                moved = calibrate_transfer(content, target, outside_test, settings)
                rows = compare(content, target, moved, choice, trained).rows
            except (CalibrationError, PolicyError) as error:
                yield f"{name} on {view.label}: {error} (see `probe --like POLICY`)"
                continue
            for row in rows:
                yield _SAVINGS.row(
                    source=name,
                    target=view.label,
                    protocol=row.protocol,
                    family=row.family,
                    saving_pct=row.outcome.total_saving_pct,
                    saving_ci=row.outcome.saving_interval,
                    risk=row.outcome.risk,
                    risk_ci=row.risk_ci95,
                    would_certify=row.certified,
                    labels=row.labels_used,
                    questions=row.outcome.n,
                    checkpoints=len(row.budgets),
                    accuracy=row.outcome.accuracy,
                    full_accuracy=row.outcome.full_accuracy,
                )
