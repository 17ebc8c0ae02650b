"""Study `transfer`: every run's rule on every other run.

Paper, Appendix "Transfer Protocols" and Section "Transfer, Robustness, and Cross-Family Checks":
gain of the learned rule over fixed budgets, zero-shot, target-calibrated and target-trained.  For
deployment it takes each run's exported policy and measures the same three on the target's test
questions; it certifies nothing, because nothing here is recorded as a look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np
from scipy.special import expit

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.certification.transfer import TARGET_CALIBRATED, calibrate_transfer, target_view
from stopadvisor.certification.verification import questions_seen, scorer_of
from stopadvisor.ground.arrays import FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError, PolicyError
from stopadvisor.paper.peaks import Peak, fixed_budgets, learned_peak, peak, peak_thresholds
from stopadvisor.paper.protocol import PaperSetting, paper_split
from stopadvisor.policy.frozen import load_policy
from stopadvisor.policy.terms import PolicyTerms
from stopadvisor.probes.grouping import calibration_rows, in_groups_of
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.outcomes import Outcome, measure_rule
from stopadvisor.rules.schedules import GridSchedule
from stopadvisor.rules.scorer import Scorer
from stopadvisor.rules.scores import fit_logistic
from stopadvisor.runs.access import open_all, open_test, unsealed_calibration
from stopadvisor.runs.sources import Source
from stopadvisor.stats.intervals import Interval
from stopadvisor.studies.registry import paper_setting, paper_views, study_settings
from stopadvisor.studies.tables import Outline, Row, StudyOptions, StudyReport, View, layout
from stopadvisor.workload.questions import PARTS

__all__ = ["OUTLINES", "fresh_test"]

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


def _run(sources: Sequence[Source], options: StudyOptions) -> StudyReport:
    """Transfer between every ordered pair of the runs."""
    views = paper_views(sources)
    rows = [*_gains(sources, views), *_savings(sources, views, options)]
    return _OUTLINE.result(rows, options, views)


# --- The paper's gains ----------------------------------------------------------------------------


def _gains(sources: Sequence[Source], views: Sequence[View]) -> Iterator[Row | str]:
    """Gains on the target's test questions.

    Paper, Appendix "Transfer Protocols".  Features are those of its text, the budget as a fraction
    of the last one, so that grids of different length can be compared.
    """
    settings = [paper_setting(view) for view in views]
    features = [feature_array(view.table) for view in views]
    models = [  # fitted on all questions of a workload; they score other workloads only
        fit_logistic(f.reshape(-1, f.shape[-1]), setting.correct.ravel(), solver="lbfgs")
        for f, setting in zip(features, settings, strict=True)
    ]
    peaks = [learned_peak(setting) for setting in settings]
    for a, b in permutations(range(len(sources)), 2):
        target = settings[b]
        calibration, test = paper_split(len(target.correct))
        moved = expit(models[a].scores(features[b]))
        # At the threshold with the highest gain on calibration questions.
        calibrated, trained = (
            _peak(target, scores, test, _peak(target, scores, calibration).threshold).gain
            for scores in (moved, target.scores["learned"])
        )
        yield _GAINS.row(
            source=views[a].label,
            target=views[b].label,
            type=_kind(sources[a], sources[b]),
            source_gain=peaks[a].gain,
            zero_shot_gain=_peak(target, moved, test, peaks[a].threshold).gain,
            target_calibrated_gain=calibrated,
            target_trained_gain=trained,
        )
        if a < b and _keys(sources[a]) & _keys(sources[b]):
            yield (
                f"{views[a].label} and {views[b].label} share questions: between them the paper's "
                "gains are those of another model or decoding on questions already seen"
            )


def _peak(
    setting: PaperSetting, scores: FloatArray, rows: IntArray, threshold: float | None = None
) -> Peak:
    """The threshold with the highest gain on some questions, or what a given one gains there."""
    return peak(
        scores[rows],
        setting.costs.thinking[rows],
        setting.correct[rows],
        peak_thresholds("learned", scores[rows]) if threshold is None else np.array([threshold]),
        fixed_budgets(setting, rows),
    )


def _keys(source: Source) -> set[str]:
    """Keys of questions; none of an archive, whose rows may have no names."""
    return set() if source.is_archive else set(source.table.keys)


def _kind(source: Source, target: Source) -> str:
    """How two runs differ, as far as their manifests say."""
    if source.manifest is None or target.manifest is None:
        return "unknown"
    same_task = bool(_keys(source) & _keys(target))
    if source.model == target.model:
        return "same task and model" if same_task else "cross-task"
    return "cross-model" if same_task else "cross-task and -model"


# --- Savings of exported policies -----------------------------------------------------------------


def _savings(
    sources: Sequence[Source], views: Sequence[View], options: StudyOptions
) -> Iterator[Row | str]:
    """Savings of every exported policy on every other run, and why a pair has none.

    Departs from the paper: each protocol may use every label outside the test part, and the table
    says how many it used.
    """
    policies: dict[str, PolicyTerms] = {}
    settings = study_settings(options)
    for source, view in zip(sources, views, strict=True):
        if not (source.folder / _POLICY).exists():
            yield f"{view.label}: no {_POLICY}, so that nothing of it is transferred"
            continue
        policy = load_policy(source.folder / _POLICY)
        if policy.kind == "stop":
            policies[view.label] = policy.terms
        else:
            yield f"{view.label}: its policy never stops, so that nothing is transferred"
    for target, view in zip(sources, views, strict=True):
        others = {name: each for name, each in policies.items() if name != view.label}
        if not others or view.basis != "all":
            continue
        try:
            calibration = unsealed_calibration(target)
            choice = choose(target.part("fit"), calibration_rows(calibration).size, settings)
            trained = calibrate(choice, calibration)
            calibrates = target_view(target).parts == PARTS.index("calibration")
            outside_test = open_all(target).take(calibrates).as_calibration()
        except CalibrationError as error:
            yield f"{view.label}: no target under the deploy protocol: {error}"
            continue
        for name, terms in others.items():
            try:
                moved = calibrate_transfer(terms, target, outside_test, settings)
                test = fresh_test(terms, target)
                zero_shot = scorer_of(terms, test), float(terms.decision_threshold or 0.0)
            except (CalibrationError, PolicyError) as error:
                yield f"{name} on {view.label}: {error} (see `probe --like POLICY`)"
                continue
            n_fit = calibration_rows(target.part("fit")).size
            n_moved, n_trained = (c.first.n_questions for c in (moved, trained))
            rules = (moved.rule, trained.rule)
            served = [None if r is None else (r.scorer, r.threshold) for r in rules]
            for protocol, rule, labels in (
                # Its certificate covers the source's questions and model, not these.
                ("zero-shot", zero_shot, 0),
                (TARGET_CALIBRATED, served[0], n_moved),
                ("target-trained", served[1], n_fit + n_trained),
            ):
                outcome = _on_test(rule, test, settings, seed=target.seed)
                schedule = None if rule is None else rule[0].schedule
                yield _SAVINGS.row(
                    source=name,
                    target=view.label,
                    protocol=protocol,
                    family=None if rule is None else rule[0].family,
                    saving_pct=outcome.total_saving_pct,
                    saving_ci=outcome.saving_interval,
                    risk=outcome.risk,
                    risk_ci=outcome.risk_ci95,
                    would_certify=rule is not None and rule is not zero_shot,
                    labels=labels,
                    questions=outcome.n,
                    checkpoints=len(schedule.positions)
                    if isinstance(schedule, GridSchedule)
                    else 0,
                    accuracy=outcome.accuracy,
                    full_accuracy=outcome.full_accuracy,
                )


def fresh_test(terms: PolicyTerms, target: Source) -> GradedTable:
    """Test questions that the source policy has not seen, one trace of each group."""
    table = target.part("test")
    seen = questions_seen(terms, table, workload_sha256=target.workload_sha256)
    rows = np.flatnonzero(~in_groups_of(table, seen))
    if not rows.size:
        raise PolicyError(
            "a comparison needs test questions that the source policy has not seen: "
            f"{target.folder} holds {table.n_questions} test traces, none of them fresh"
        )
    return open_test(target).take(rows[calibration_rows(table.take(rows))])


def _on_test(
    rule: tuple[Scorer, float] | None, test: GradedTable, settings: Settings, *, seed: int
) -> Outcome:
    """What a rule does on test questions; None stands for full thinking."""
    if rule is None:
        right = int(test.full_correct.sum())
        return Outcome(test.n_questions, 0, right, right, 0.0, 0.0, Interval(0.0, (0.0, 0.0)))
    rng = np.random.default_rng(seed)
    return measure_rule(*rule, test, settings.costing, loss=settings.counted, rng=rng)


_OUTLINE = Outline(
    "transfer",
    'Appendix "Transfer Protocols"',
    (_GAINS, _SAVINGS),
    run=_run,
    protocols=("paper", "deploy"),
)
OUTLINES = (_OUTLINE,)
