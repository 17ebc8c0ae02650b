"""Build the content of a policy from a calibration and the run's manifest.

The rule and its certificate come from the calibration, the model and prompt that it is bound to
from the manifest.  Expected figures are measured on the questions that certified the rule.  They
are estimates, not claims; the saving has a simultaneous band, because the same questions chose the
threshold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from stopadvisor._version import __version__
from stopadvisor.answers.normal_form import GRADER, NORMALIZER
from stopadvisor.assessment.choice import Settings
from stopadvisor.certification.calibration import Calibration, ExportedRule
from stopadvisor.engines.sampling import Sampling
from stopadvisor.ground.arrays import FloatArray, IntArray
from stopadvisor.ground.constants import MARKERS, PROBE_CAP
from stopadvisor.ground.errors import CalibrationError, PolicyError
from stopadvisor.policy.claims import CertificateTerms, GraderTerms, GuaranteeTerms
from stopadvisor.policy.evidence import ExpectedTerms, ProfileShare, ServedTerms, SplitTerms
from stopadvisor.policy.file import MAX_BYTES, NO_DIGEST, POLICY_SCHEMA, sealed
from stopadvisor.policy.frozen import MIXED_TASKS, build_policy, policy_source
from stopadvisor.policy.terms import (
    LADDER_TRIGGER,
    DrawnTerms,
    EngineTerms,
    LadderTerms,
    MarkerTerms,
    ModelTerms,
    PolicyTerms,
    ProbeTerms,
    SamplingTerms,
    TokenText,
    trigger_terms,
)
from stopadvisor.probes.asking import ProbePlan, cue_text
from stopadvisor.probes.grouping import calibration_rows, group_numbers, has_groups
from stopadvisor.probes.markers import RULE
from stopadvisor.probes.outcomes import CalibrationQuestions, GradedTable
from stopadvisor.probes.trajectories import Profile
from stopadvisor.probes.trigger import ListedTrigger, Trigger
from stopadvisor.rules.climb import Climb
from stopadvisor.rules.costs import CACHE_BLOCK, Serving
from stopadvisor.rules.drift import drift_features
from stopadvisor.rules.families import FIXED_BUDGET, display_threshold
from stopadvisor.rules.losses import DIFFERS
from stopadvisor.rules.outcomes import Outcome, measure, measure_rule
from stopadvisor.rules.scorer import Scorer
from stopadvisor.runs.access import open_test
from stopadvisor.runs.imported import IMPORTED
from stopadvisor.runs.look_log import Look, timestamp
from stopadvisor.runs.manifest import engine_of, recorded_sampling, versions_of
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bounds import upper_limit
from stopadvisor.stats.intervals import exact_interval, saving_band
from stopadvisor.workload.questions import PARTS

_STACKS: tuple[Serving, ...] = ("kv-fork", "prefix-cache", "black-box")
"""Other serving stacks for which a policy gives its saving."""
_MOST_STORED = 2000
"""Most calibration questions whose features are stored, to measure drift against."""
_MOST_SERVED = 500
"""Most calibration questions whose stops are stored; drift too small to show with this many does
not matter."""
_RULE_BYTES = 2**20
"""Room for a rule with its certificate, stored features and golden examples."""
_MOST_BLOCKS = 1000
"""Most blocks of questions that are resampled together."""
_FIGURES = (
    "total_saving_pct", "think_saving_pct", "uncut_saving_pct", "accuracy", "full_accuracy",
    "answer_saving_pct",
)  # fmt: skip
"""Expected figures, measured on calibration questions and on test questions."""
_PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "transformers")

__all__ = [
    "check_policy_terms", "differs_limit", "expectation", "policy_terms", "served_features",
]  # fmt: skip


def expectation(
    rule: ExportedRule, entered: CalibrationQuestions, settings: Settings, *, seed: int
) -> tuple[Outcome, tuple[float, float]]:
    """Measure an exported rule on the calibration questions that certified it.

    Also return the 95 % band of its net saving (percent) at its threshold; see `saving_band`.
    """
    view = rule.scorer.view(entered)
    curve = rule.scorer.curve(view, rule.order)
    costs, full = rule.scorer.costs(view, settings.costing), settings.costing.full(entered)
    index = rule.certificate.index
    groups = group_numbers(entered)
    n_blocks = min(int(groups.max()) + 1, _MOST_BLOCKS)
    blocks = groups % n_blocks
    band = saving_band(
        curve.totals(costs, blocks, n_blocks),
        np.bincount(blocks, full, n_blocks).astype(np.float64),
        rng=np.random.default_rng(seed),
    )
    outcome = measure(view, curve.stops(index), costs, full, loss=settings.counted)
    low, high = band[:, index]
    return outcome, (float(low), float(high))


def _expected(
    rule: ExportedRule,
    entered: CalibrationQuestions,
    calibration: Calibration,
    settings: Settings,
    source: Source,
) -> ExpectedTerms:
    """Measure the rule on the questions that certified it, and on the test part if there is one.

    One question per group counts, in the test part too.
    """
    found, band = expectation(rule, entered, settings, seed=source.seed)
    test = open_test(source)
    test = test.take(calibration_rows(test)) if test.n_questions else test
    elsewhere: GradedTable = test if test.n_questions else calibration.entered
    # Only calibration questions have labels, and only where replies differ: that gives no test
    # figures and no accuracy.
    few = calibration.labelled is not None
    by_agreement = few or calibration.entered.graded_by == "agreement"
    expected = ExpectedTerms(
        weights=settings.weights,
        cache_block=CACHE_BLOCK,
        fit_total_saving_pct=rule.fit_saving_pct,
        fit_risk=rule.fit_risk,
        calibration_n=found.n // rule.certificate.traces,
        # The table counts unlabelled replies as lost; a sample of labels estimates the risk.
        calibration_risk=found.risk
        if rule.certificate.differing is None
        else rule.certificate.risk,
        calibration_total_saving_band95=band,
        graded_by="agreement" if by_agreement else None,
        loss=settings.loss,
        saving_by_serving=_by_serving(rule, settings, source, elsewhere),
        **found.figures("calibration", *_FIGURES),
    )
    if few or not test.n_questions:
        return expected
    loss, rng = settings.counted_on(test.graded_by), np.random.default_rng(source.seed)
    found = measure_rule(rule.scorer, rule.threshold, test, settings.costing, loss=loss, rng=rng)
    return replace(
        expected,
        test_accuracy_ci95=exact_interval(found.correct, found.n),
        **found.figures("test", "n", "risk", "risk_ci95", "total_saving_ci95", *_FIGURES),
    )


def _by_serving(
    rule: ExportedRule, settings: Settings, source: Source, table: GradedTable
) -> dict[str, float]:
    """Net saving under each serving stack."""
    rows, loss = table.take(calibration_rows(table)), settings.counted_on(table.graded_by)
    names = dict.fromkeys((settings.serving, *(() if source.ladder else _STACKS)))
    costings = {name: replace(settings.costing, serving=name) for name in names}
    return {
        name: measure_rule(rule.scorer, rule.threshold, rows, costing, loss=loss).total_saving_pct
        for name, costing in costings.items()
    }


def policy_terms(
    source: Source,
    settings: Settings,
    full_accuracy: float,
    calibration: Calibration,
    profile: Profile,
    look: Look | None,
) -> PolicyTerms:
    """Content of a policy, for `policy.build_policy`; without a rule it never stops.

    `full_accuracy` and `profile` describe the questions that the rule was chosen on.  Without a
    look there is no rule, and the policy is as old as the run; an archive's as of now.
    """
    shares = {
        name: ProfileShare(each.count, each.share, each.ci95)
        for name, each in profile.shares.items()
    }
    # The time of the look or run: the same calibration gives the same digest.
    terms = _never_stopping(source, settings, shares, None if look is None else look.created)
    rule = calibration.rule
    if rule is None:
        return terms
    assert look is not None  # nothing is certified without one
    entered = calibration.entered
    if rule.certificate.traces != calibration.traces:
        entered = calibration.first
    stored = drift_features(rule.scorer, calibration.first)
    # Evenly spaced: in a sorted workload the first rows are unlike the rest.
    spaced = np.linspace(0, len(stored) - 1, min(len(stored), _MOST_STORED)).astype(int)
    return replace(
        terms,
        kind="stop",
        family=rule.scorer.family,
        threshold=display_threshold(rule.scorer.family, rule.threshold),
        decision_threshold=rule.threshold,
        order=tuple(rule.order.tolist()),
        **_where(rule, source),
        **_model(rule.scorer),
        certificate=_certificate(terms, source, settings, full_accuracy, calibration, look),
        expected=_expected(rule, entered, calibration, settings, source),
        calibration_features=tuple(map(tuple, stored[spaced].tolist())),
        served=served_features(rule, calibration.first),
    )


def _never_stopping(
    source: Source, settings: Settings, shares: Mapping[str, ProfileShare], created: str | None
) -> PolicyTerms:
    table, tasks = source.table, set(source.table.tasks)
    ids = {}  # keys of questions and of their groups, as `verify` leaves out both
    for i, name in enumerate(PARTS):
        part = table.take(source.parts == i)
        ids[name] = tuple(sorted({*part.keys, *part.group_ids}))
    began = timestamp() if source.manifest is None else source.manifest["created"]
    return PolicyTerms(
        schema=POLICY_SCHEMA,
        digest=NO_DIGEST,
        kind="full-budget",
        **_NO_RULE,
        on_stop=table.on_stop,
        ladder=None if source.ladder is None else _ladder(source),
        markers=MarkerTerms(MARKERS, RULE),
        task=tasks.pop() if len(tasks) == 1 else MIXED_TASKS,
        normalizer=NORMALIZER,
        grader=_grading(source).get("grader", GRADER),
        entropy_source=table.entropy_source,
        **_bound_to(source),
        serving=settings.serving,
        created=created or began,
        versions={"stopadvisor": __version__, **versions_of(*_PACKAGES)},
        workload_sha256=source.workload_sha256,
        profile=shares,
        split=SplitTerms(source.seed, source.fractions, **ids),
        golden=(),
    )


def check_policy_terms(source: Source, settings: Settings) -> None:
    """Refuse a run with values that no policy can hold, before a look is spent."""
    policy = build_policy(_never_stopping(source, settings, {}, None))
    size = len(sealed(policy.content)[0])
    if size > MAX_BYTES - _RULE_BYTES:
        raise PolicyError(
            f"the ids of {source.table.n_questions} questions take {size} bytes, and a policy with "
            f"its rule has at most {MAX_BYTES}: assess fewer questions"
        )


_NO_RULE: dict[str, Any] = {
    **dict.fromkeys(("family", "decision_threshold", "threshold", "trigger", "intercept", "trees")),
    **dict.fromkeys(("budgets", "features", "mean", "scale", "coef", "order"), ()),
    **dict.fromkeys(("certificate", "expected", "calibration_features", "served")),
}


def _grading(source: Source) -> Mapping[str, Any]:
    grading: Mapping[str, Any] = {} if source.manifest is None else source.manifest["grading"]
    asked = "grader_sha256" not in grading or source.graded_by == "gold"
    return grading if asked else {}


def _certificate(
    terms: PolicyTerms,
    source: Source,
    settings: Settings,
    full_accuracy: float,
    calibration: Calibration,
    look: Look,
) -> CertificateTerms:
    rule, grading, manifest = calibration.rule, _grading(source), source.manifest
    assert rule is not None  # only such policies have a certificate
    certified = rule.certificate
    function = None
    if "grader_sha256" in grading:
        function = GraderTerms(grading["grader"], grading["grader_sha256"])
    answers = None
    if source.table.on_stop != "probe" and manifest is not None:
        answers = manifest["plan"]["answer_cap"]
    limits = zip(settings.guarantees, certified.guarantees or (certified,), strict=True)
    guarantees = tuple(
        GuaranteeTerms(
            loss=limit.loss,
            alpha=shown.alpha,
            n=shown.n,
            lost=shown.losses,
            gained=shown.gained or 0,
            upper=shown.upper,
            category=limit.category,
            both=shown.both,
            one=shown.one,
            none=shown.none,
        )
        for limit, shown in limits
    )
    return CertificateTerms(
        alpha=settings.alpha,
        delta=look.delta,
        confidence=look.confidence,
        bound="exact",
        multiplicity="fixed-sequence",
        n=certified.n,
        losses=certified.losses,
        upper=certified.upper,
        reference=source.table.reference,
        looks=look.number,
        looks_elsewhere=look.elsewhere,
        planned_looks=look.planned,
        earlier_deltas=look.earlier or None,
        ledger_head=look.head,
        provenance={
            "probes_sha256": source.fingerprint(answers=settings.reads_answers),
            "labels_sha256": source.labels_fingerprint(),
        },
        chain_delta=certified.delta,
        conditional=False,
        alpha_over_full_accuracy=settings.alpha / full_accuracy,
        truncated_share=calibration.truncated_share,
        max_think=terms.max_think,
        differs_upper=differs_limit(rule, calibration.first, look.delta),
        loss=settings.loss,
        gained=certified.gained,
        traces=2 if calibration.traces == 2 else None,
        both=certified.both,
        one=certified.one,
        none=certified.none,
        guarantees=guarantees if len(guarantees) > 1 else None,
        group_claim="groups" if has_groups(source.table) else None,
        grader=function,
        labelled=calibration.labelled,
        differing=certified.differing,
        planned_labels=certified.planned_labels,
        on_stop=None if answers is None else "answer",
        answer_cap=answers,
    )


def _model(scorer: Scorer) -> dict[str, Any]:
    """Fields of the fitted model: standardisation and weights."""
    schedule = scorer.schedule
    model = schedule.model if isinstance(schedule, Climb) else scorer.model
    return {} if model is None else dict(vars(model))


def _where(rule: ExportedRule, source: Source) -> dict[str, Any]:
    """Fields that say where the policy probes or stops; for a ladder, which replies it requests."""
    schedule, family = rule.scorer.schedule, rule.scorer.family
    if isinstance(schedule, Climb):
        gives_up = {"on_give_up": schedule.on_give_up, "give_up": schedule.give_up or None}
        ladder = _ladder(source, asked=schedule.columns, path=schedule.path, **gives_up)
        return {"trigger": LADDER_TRIGGER, "ladder": ladder}
    trigger: Trigger
    if family == FIXED_BUDGET:
        stop = int(rule.threshold)
        trigger = ListedTrigger((stop,), stop)
    elif isinstance(schedule, ListedTrigger):
        trigger = schedule.as_stride()
    else:
        # A run from recorded answers has no markers in its plan.
        plan = {} if source.manifest is None else source.manifest["plan"]
        trigger = replace(schedule, markers=tuple(map(tuple, plan.get("markers", ()))))
    where, budgets = trigger_terms(trigger, family=family)
    return {"trigger": where, "budgets": budgets}


def _ladder(source: Source, **climbed: Any) -> LadderTerms:
    assert source.ladder is not None
    rungs = tuple(rung.terms for rung in source.ladder.rungs)
    return LadderTerms(rungs, **{"asked": (), "path": (), **climbed})


def _bound_to(source: Source) -> dict[str, Any]:
    """Fields that bind the policy to a model, an engine and a prompt; archives name no model.

    A ladder's policy is bound to its rungs, and to the prompt unless the replies were imported.
    """
    manifest = source.manifest
    nothing: dict[str, Any] = {
        **dict.fromkeys(("model", "engine", "probe", "sampling", "max_think", "prompt_template")),
        "chat_template_kwargs": {},
    }
    open_cue = source.table.closed_by_itself is not None
    if manifest is None:
        probe = ProbeTerms(_NO_TEXT, _NO_TEXT, PROBE_CAP, None, None, open_cue)
        return nothing | {"probe": probe}
    template = manifest["prompt_template"] or manifest["prompt_templates"]
    if source.ladder is not None:
        asked_here = manifest["engine"]["engine"] != IMPORTED
        return nothing | {"prompt_template": template if asked_here else None}
    engine, plan = manifest["engine"], manifest["plan"]
    bound = policy_source(engine_of(manifest))
    return {
        "model": None if source.model is None else ModelTerms(**bound["model"]),
        "engine": EngineTerms(**bound["engine"]),
        "probe": ProbeTerms(
            closer=TokenText(**(engine.get("think_close") or vars(_NO_TEXT))),
            cue=TokenText(cue_text(plan["cue"]), manifest.get("cue_ids")),
            cap=plan["cap"],
            answer_cap=plan["answer_cap"],
            stop_ids=engine.get("stop_ids"),
            open_cue=open_cue,
        ),
        "prompt_template": template,
        "chat_template_kwargs": engine.get("chat_template_kwargs") or {},
        "sampling": SamplingTerms(
            plan["greedy"],
            plan["temperature"],
            plan["seed"],
            recorded=recorded_sampling(manifest).get("recorded"),
            drawn=_drawn(manifest),
        ),
        "max_think": plan["max_think"],
    }


_NO_TEXT = TokenText("", None)


def _drawn(manifest: Mapping[str, Any]) -> DrawnTerms | None:
    """Sampling that the plan and the model's own settings resulted in, for servers to match.

    None if traces were imported, or the run does not record the model's settings.
    """
    settings = (manifest["engine"] or {}).get("generation_config")
    if settings is None or recorded_sampling(manifest):
        return None
    asked = {name: manifest["plan"][name] for name in ("greedy", "temperature")}
    plan = ProbePlan((), cue="", cap=1, max_think=1, **asked)
    return DrawnTerms(**asdict(Sampling.of(SimpleNamespace(**settings), plan)))


# --- Reference for traffic ------------------------------------------------------------------------


def differs_limit(rule: ExportedRule, entered: CalibrationQuestions, delta: float) -> float | None:
    """One-sided Clopper-Pearson limit of the share of replies that differ from full thinking's.

    Pointwise, at the certified threshold, which the same questions chose.  None if the probes hold
    no answers to compare.
    """
    view = rule.scorer.view(entered)
    try:
        counts = DIFFERS.of(view)
    except CalibrationError:
        return None
    curve = rule.scorer.curve(view, np.array([rule.threshold]))
    differing = int(curve.totals(counts)[0, 0].round())
    return upper_limit(differing, view.n_questions, delta)


def served_features(rule: ExportedRule, entered: CalibrationQuestions) -> ServedTerms:
    """Stops, prompt lengths and first confidences of calibration questions, evenly spaced.

    For a ladder `stop` is the number of the reply served, -1 for the reference.
    """
    n = entered.n_questions
    spaced: IntArray = np.linspace(0, n - 1, min(n, _MOST_SERVED)).astype(np.int64)
    climb = rule.scorer.schedule
    if isinstance(climb, Climb):
        column, _ = climb.at(entered, rule.threshold)
        served = np.where(column == entered.n_checkpoints - 1, -1, column)
        return ServedTerms(_values(served[spaced]), _values(entered.prompt_tokens[spaced]))
    view = rule.scorer.view(entered)
    stops = rule.scorer.stops(view, rule.threshold)
    positions = np.broadcast_to(view.padded_positions, (view.n_questions, view.n_checkpoints))
    never = np.full((view.n_questions, 1), -1)
    where = np.hstack([positions, never])[np.arange(view.n_questions), stops]
    found = None
    if rule.scorer.asking.before and view.n_checkpoints:
        first = view.mean_logprob[:, 0][spaced]
        known = view.live[:, 0][spaced] & np.isfinite(first)
        found = _values(first[known])
    return ServedTerms(_values(where[spaced]), _values(view.prompt_tokens[spaced]), found)


def _values(numbers: FloatArray | IntArray) -> tuple[float, ...]:
    return tuple(numbers.astype(float).tolist())
