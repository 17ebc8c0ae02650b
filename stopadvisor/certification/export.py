"""From a calibration to the content of a policy file, and what to expect of it.

Everything that decides a stop in production is copied from the manifest of the run; everything
that was shown about it, from the calibration.  Knows the policy's fields, but no file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from stopadvisor._version import __version__
from stopadvisor.answers.normal_form import GRADER, NORMALIZER
from stopadvisor.assessment.choice import Settings
from stopadvisor.certification.calibration import Calibration, ExportedRule
from stopadvisor.certification.expectation import (
    Expectation,
    differs_limit,
    expectation,
    served_features,
)
from stopadvisor.engines.sampling import Sampling
from stopadvisor.ground.constants import MARKERS, PROBE_CAP
from stopadvisor.ground.fields import plain
from stopadvisor.policy.frozen import MIXED_TASKS, policy_source
from stopadvisor.policy.triggers import LADDER_TRIGGER, trigger_content
from stopadvisor.probes.asking import ProbePlan, cue_text
from stopadvisor.probes.grouping import calibration_rows, group_sizes
from stopadvisor.probes.markers import RULE
from stopadvisor.probes.table import GradedBy
from stopadvisor.probes.trajectories import Profile
from stopadvisor.probes.trigger import GridTrigger, Trigger
from stopadvisor.rules.climb import Climb
from stopadvisor.rules.costs import Serving
from stopadvisor.rules.drift import drift_features
from stopadvisor.rules.families import FIXED_BUDGET, display_threshold
from stopadvisor.rules.outcomes import Outcome, measure_rule
from stopadvisor.rules.schedules import GridSchedule
from stopadvisor.rules.scorer import Scorer
from stopadvisor.runs.access import open_test
from stopadvisor.runs.archives import SIMULATED
from stopadvisor.runs.imported import IMPORTED
from stopadvisor.runs.look_log import Look, timestamp
from stopadvisor.runs.manifest import engine_of, recorded_sampling, versions_of
from stopadvisor.runs.sources import Source
from stopadvisor.stats.intervals import exact_interval
from stopadvisor.workload.questions import PARTS

_STACKS: tuple[Serving, ...] = ("kv-fork", "prefix-cache", "black-box")
"""Other serving stacks for which a policy says what it saves."""
_MOST_STORED = 2000
"""Calibration questions whose features go into the file, for drift to be measured against."""
_PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "transformers")

__all__ = ["HeldOut", "held_out", "policy_content"]


@dataclass(frozen=True)
class HeldOut:
    """What the exported rule did on the test part, which nothing has touched before."""

    outcome: Outcome
    risk_ci95: tuple[float, float]
    accuracy_ci95: tuple[float, float]


def held_out(rule: ExportedRule, settings: Settings, source: Source) -> HeldOut | None:
    """Measure the exported rule on the test part.

    None where the split has no test part.

    Notes
    -----
    What counts is what counted in calibration, one question of each group.
    """
    table = open_test(source)
    if table.n_questions == 0:
        return None
    scorer = rule.scorer
    table = table.take(calibration_rows(table))
    loss = settings.counted_on(table.graded_by)
    outcome = measure_rule(
        scorer,
        rule.threshold,
        table,
        settings.costing,
        loss=loss,
        rng=np.random.default_rng(source.seed),
    )
    return HeldOut(outcome, outcome.risk_ci95, exact_interval(outcome.correct, outcome.n))


def _expected(
    rule: ExportedRule,
    test: HeldOut | None,
    found: Expectation,
    settings: Settings,
    graded_by: GradedBy,
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "weights": plain(settings.weights),
        "cache_block": settings.cache_block,
        "fit_total_saving_pct": rule.fit_saving_pct,
        "fit_risk": rule.fit_risk,
        "calibration_n": found.outcome.n // rule.certificate.traces,
        # What has no label is lost in the table; the share of a sample is that of its labels.
        "calibration_risk": found.outcome.risk
        if rule.certificate.differing is None
        else rule.certificate.risk,
        "calibration_total_saving_pct": found.outcome.total_saving_pct,
        "calibration_total_saving_band95": list(found.saving_band95),
        "calibration_think_saving_pct": found.outcome.think_saving_pct,
        "calibration_uncut_saving_pct": found.outcome.uncut_saving_pct,
        "calibration_accuracy": found.outcome.accuracy,
        "calibration_full_accuracy": found.outcome.full_accuracy,
        "graded_by": graded_by if graded_by == "agreement" else None,
        "loss": settings.loss,
        "calibration_answer_saving_pct": found.outcome.answer_saving_pct,
    }
    if test is not None:
        outcome = test.outcome
        spread = outcome.saving_interval
        fields |= {
            "test_n": outcome.n,
            "test_total_saving_pct": outcome.total_saving_pct,
            "test_total_saving_ci95": None if spread is None else [spread.low, spread.high],
            "test_think_saving_pct": outcome.think_saving_pct,
            "test_uncut_saving_pct": outcome.uncut_saving_pct,
            "test_risk": outcome.risk,
            "test_risk_ci95": list(test.risk_ci95),
            "test_accuracy": outcome.accuracy,
            "test_accuracy_ci95": list(test.accuracy_ci95),
            "test_full_accuracy": outcome.full_accuracy,
            "test_answer_saving_pct": outcome.answer_saving_pct,
        }
    return fields


def _by_serving(
    rule: ExportedRule, settings: Settings, source: Source, calibration: Calibration
) -> dict[str, float]:
    """Net saving under each serving stack, on test questions where there are any."""
    table = open_test(source)
    if table.n_questions == 0:
        table = calibration.entered
    rows = table.take(calibration_rows(table))
    names = dict.fromkeys((settings.serving, *(() if source.ladder else _STACKS)))
    return {
        serving: measure_rule(
            rule.scorer,
            rule.threshold,
            rows,
            replace(settings.costing, serving=serving),
            loss=settings.counted_on(table.graded_by),
        ).total_saving_pct
        for serving in names
    }


def policy_content(
    source: Source,
    settings: Settings,
    full_accuracy: float,
    calibration: Calibration,
    profile: Profile,
    look: Look | None,
    *,
    created: str | None = None,
) -> dict[str, Any]:
    """Fields of the frozen policy, ready for `policy.build_policy`.

    Parameters
    ----------
    settings : Settings
        Risk target and costs.
    full_accuracy : float
        Full-thinking accuracy on the questions that the rule was chosen on.
    calibration : Calibration
        With a rule: kind ``stop``; without: kind ``full-budget``.
    profile : Profile
        Of the fit questions.
    look : Look, optional
        None where none was taken: then there is no rule.
    created : str, optional
        In ISO 8601; by default when the look was taken.
    """
    rule = calibration.rule
    manifest = source.manifest
    grading = {} if manifest is None else manifest["grading"]
    if "grader_sha256" in grading and source.graded_by != "gold":
        grading = {}  # it was never asked
    table = source.table
    fields: dict[str, Any] = {
        "kind": "stop" if rule else "full-budget",
        "on_stop": table.on_stop,
        "markers": {"phrases": list(MARKERS), "rule": RULE},
        "normalizer": NORMALIZER,
        "grader": grading.get("grader", GRADER),
        "entropy_source": table.entropy_source,
        "serving": settings.serving,
        "profile": {
            name: {"count": s.count, "share": s.share, "ci95": list(s.ci95)}
            for name, s in profile.shares.items()
        },
        "workload_sha256": source.workload_sha256,
        "versions": {"stopadvisor": __version__, **versions_of(*_PACKAGES)},
        # The look's own, so that the same calibration gives the same digest.
        "created": created or (look.created if look else timestamp()),
        "split": _split(source),
    }
    fields |= _rule_fields(rule, source)
    tasks = set(table.tasks)
    fields["task"] = tasks.pop() if len(tasks) == 1 else MIXED_TASKS
    fields |= _bound_to(source)
    if rule is None:
        return fields | {"certificate": None, "expected": None, "calibration_features": None}
    assert look is not None  # what was certified took one
    certificate, few = rule.certificate, calibration.labelled is not None
    function = None
    if "grader_sha256" in grading:
        function = {"name": grading["grader"], "sha256": grading["grader_sha256"]}
    answers = None if table.on_stop == "probe" or manifest is None else manifest["plan"]
    fields["certificate"] = {  # what is null, or lost answers, is left out of the file
        "alpha": settings.alpha,
        "delta": look.delta,
        "confidence": look.confidence,
        "bound": "exact",
        "multiplicity": "fixed-sequence",
        "n": certificate.n,
        "losses": certificate.losses,
        "upper": certificate.upper,
        "reference": table.reference,
        "looks": look.number,
        "looks_elsewhere": look.elsewhere,
        "planned_looks": look.planned,
        "earlier_deltas": look.earlier or None,
        "ledger_head": look.head,
        "provenance": {
            "probes_sha256": source.fingerprint(answers=settings.reads_answers),
            "labels_sha256": source.labels_fingerprint(),
        },
        "chain_delta": certificate.delta,
        "conditional": False,
        "alpha_over_full_accuracy": settings.alpha / full_accuracy,
        "truncated_share": calibration.truncated_share,
        "max_think": fields["max_think"],
        "differs_upper": differs_limit(rule, calibration.first, look.delta),
        "loss": settings.loss,
        "gained": certificate.gained,
        "traces": 2 if calibration.traces == 2 else None,
        "both": certificate.both,
        "one": certificate.one,
        "none": certificate.none,
        "guarantees": certificate.guarantees or None,
        "group_claim": "groups" if group_sizes(table).max() > 1 else None,
        "grader": function,
        "labelled": calibration.labelled,
        "differing": certificate.differing,
        "planned_labels": certificate.planned_labels,
        "on_stop": None if answers is None else "answer",
        "answer_cap": None if answers is None else answers["answer_cap"],
    }
    stored = drift_features(rule.scorer, calibration.first)
    # Evenly spaced: the first ones of a sorted workload would look like drift.
    spaced = np.linspace(0, len(stored) - 1, min(len(stored), _MOST_STORED)).astype(int)
    fields["calibration_features"] = stored[spaced].tolist()
    entered = calibration.entered if certificate.traces == calibration.traces else calibration.first
    found = expectation(rule, entered, settings, seed=source.seed)
    fields["expected"] = {
        **_expected(
            rule,
            # Few labels say nothing of test questions, and accuracies of none.
            None if few else held_out(rule, settings, source),
            found,
            settings,
            "agreement" if few else calibration.entered.graded_by,
        ),
        "saving_by_serving": _by_serving(rule, settings, source, calibration),
    }
    fields["served"] = served_features(rule, calibration.first)
    return fields


def _rule_fields(rule: ExportedRule | None, source: Source) -> dict[str, Any]:
    no_model: dict[str, Any] = {
        "features": [],
        "mean": [],
        "scale": [],
        "coef": [],
        "intercept": None,
    }
    if rule is None:
        nothing = dict.fromkeys(("family", "threshold", "decision_threshold", "trigger"))
        rungs = {} if source.ladder is None else {"ladder": _rungs(source)}
        return nothing | {"budgets": [], "order": []} | no_model | rungs
    scorer = rule.scorer
    return {
        "family": scorer.family,
        "threshold": display_threshold(scorer.family, rule.threshold),
        "decision_threshold": rule.threshold,
        **_where(rule, source),
        "order": rule.order.tolist(),
        **no_model,
        # A model's fields are named as in the policy: standardisation and weights, or trees.
        **({} if (model := _model(scorer)) is None else asdict(model)),
    }


def _model(scorer: Scorer) -> Any:
    """What was fitted, which a ladder's path holds by itself."""
    schedule = scorer.schedule
    return schedule.model if isinstance(schedule, Climb) else scorer.model


def _where(rule: ExportedRule, source: Source) -> dict[str, Any]:
    """Where the policy probes, and where it stops anyway; of a ladder which replies it asks."""
    schedule, family = rule.scorer.schedule, rule.scorer.family
    if isinstance(schedule, Climb):
        ladder = {"asked": schedule.columns, "path": schedule.path}
        return {"trigger": LADDER_TRIGGER, "budgets": [], "ladder": _rungs(source) | ladder}
    trigger: Trigger
    if family == FIXED_BUDGET:
        stop = int(rule.threshold)
        trigger = GridTrigger((stop,), stop)
    elif isinstance(schedule, GridSchedule):
        trigger = schedule.trigger()
    else:
        trigger = schedule.trigger(_marker_ids(source))
    return trigger_content(trigger, family=family)


def _rungs(source: Source) -> dict[str, Any]:
    assert source.ladder is not None
    rungs = [rung.to_policy() for rung in source.ladder.rungs]
    return {"rungs": rungs, "asked": (), "path": ()}


def _marker_ids(source: Source) -> list[list[int]]:
    """Token ids of the markers before which the run was probed; recorded answers name none."""
    plan = {} if source.manifest is None else source.manifest["plan"]
    return [list(ids) for ids in plan.get("markers", ())]


def _bound_to(source: Source) -> dict[str, Any]:
    """What the policy is bound to; archives and simulations name no model, recordings need not.

    Of a ladder its rungs say it, and the prompt where its replies were not recorded elsewhere.
    """
    manifest = source.manifest
    if source.ladder is not None:
        assert manifest is not None
        asked_here = manifest["engine"]["engine"] != IMPORTED
        template = manifest["prompt_template"] or manifest["prompt_templates"]
        nothing = dict.fromkeys(("model", "engine", "probe", "sampling", "max_think"))
        return nothing | {
            "prompt_template": template if asked_here else None,
            "chat_template_kwargs": {},
        }
    open_cue = {} if source.table.closed_by_itself is None else {"open_cue": True}
    if manifest is None:
        nothing = dict.fromkeys(("dtype", "quantization", "attention", "device"))
        simulator = {"name": SIMULATED, "version": __version__, **nothing}
        return {
            "model": None,
            "engine": simulator if source.simulated else None,
            "probe": {
                "closer": {"text": "", "ids": None},
                "cue": {"text": "", "ids": None},
                "cap": PROBE_CAP,
                "answer_cap": None,
                "stop_ids": None,
                **open_cue,
            },
            "prompt_template": None,
            "chat_template_kwargs": {},
            "sampling": None,
            "max_think": None,
        }
    engine, plan = manifest["engine"], manifest["plan"]
    bound = policy_source(engine_of(manifest))
    return {
        "model": None if source.model is None else bound["model"],
        "engine": bound["engine"],
        "probe": {
            "closer": engine.get("think_close") or {"text": "", "ids": None},
            "cue": {"text": cue_text(plan["cue"]), "ids": manifest.get("cue_ids")},
            "cap": plan["cap"],
            "answer_cap": plan["answer_cap"],
            "stop_ids": engine.get("stop_ids"),
            **open_cue,
        },
        "prompt_template": manifest["prompt_template"] or manifest["prompt_templates"],
        "chat_template_kwargs": engine.get("chat_template_kwargs") or {},
        "sampling": {
            "greedy": plan["greedy"],
            "temperature": plan["temperature"],
            "seed": plan["seed"],
            **recorded_sampling(manifest),
            **_drawn(manifest),
        },
        "max_think": plan["max_think"],
    }


def _drawn(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling that the plan and the model's own settings made, for servers to match.

    Nothing where traces were recorded, or a run does not name the model's settings.
    """
    settings = (manifest["engine"] or {}).get("generation_config")
    if settings is None or recorded_sampling(manifest):
        return {}
    asked = {name: manifest["plan"][name] for name in ("greedy", "temperature")}
    plan = ProbePlan((), cue="", cap=1, max_think=1, **asked)
    return {"drawn": asdict(Sampling.of(SimpleNamespace(**settings), plan))}


def _split(source: Source) -> dict[str, Any]:
    """Which questions, and which groups, were in each part; `verify` refuses both."""
    ids: dict[str, list[str]] = {}
    for i, name in enumerate(PARTS):
        part = source.table.take(source.parts == i)
        ids[name] = sorted({*part.keys, *part.group_ids})
    return {"seed": source.seed, "fractions": list(source.fractions), **ids}
