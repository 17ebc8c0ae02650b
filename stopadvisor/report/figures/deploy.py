"""Figures of the deploy protocol: fit questions out of fold, and calibration only once opened.

Everything is asked of the functions that made the assessment, so that pictures and documents give
the same numbers.  Outcomes of calibration questions come in as an `OpenedRisk` or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.choice import Choice, certification_chance, fit_limit
from stopadvisor.assessment.frontier import Frontier, chain_frontier, served_budget_frontier
from stopadvisor.assessment.sequences import FitData, ThresholdSequence, chain_of, score_out_of_fold
from stopadvisor.certification.verification import scorer_of
from stopadvisor.probes.grouping import calibration_rows
from stopadvisor.probes.outcomes import CalibrationQuestions, GradedTable
from stopadvisor.report.figures.data import (
    AlphaFigure,
    Curve,
    Figures,
    FrontierFigure,
    ReliabilityFigure,
    RiskFigure,
    fixed_at,
)
from stopadvisor.report.figures.signals import (
    Stops,
    Texts,
    checkpoint_accuracy,
    examples,
    signal_figures,
)
from stopadvisor.rules.families import SCALAR_FAMILIES, display_threshold
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.bounds import Bound, max_losses, upper_limit
from stopadvisor.stats.reliability import reliability

__all__ = ["OpenedRisk", "deploy_figures", "opened_risk"]

ALPHAS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.10, 0.125, 0.15, 0.175, 0.20, 0.25, 0.30)
"""Risk targets at which the saving is shown, beside the one asked for."""


@dataclass(frozen=True)
class OpenedRisk:
    """Losses of a calibrated rule on the questions that its look opened."""

    scorer: Scorer
    order: FloatArray  # (n_thresholds,) linear scale, as tested
    losses: FloatArray  # (n_thresholds,)
    n: int
    conditional: bool
    """Whether `n` counts only what full thinking gets right."""
    alpha: float
    delta: float
    """Of this chain."""
    bound: Bound
    position: int | None
    """Of the exported threshold; None where nothing was certified."""


@dataclass(frozen=True)
class _Rule:
    """A family on fit questions: its whole chain, and the scores it was made of."""

    chain: ThresholdSequence
    scores: FloatArray  # (n_questions, n_scheduled) linear scale, out of fold

    @property
    def family(self) -> str:
        return self.chain.scorer.family

    @classmethod
    def build(cls, fit: FitData, family: str, schedule: tuple[int, ...]) -> _Rule | None:
        found = score_out_of_fold(fit, family, schedule)
        return None if found is None else cls(chain_of(fit, *found), found[1])


# --- Calibration questions ------------------------------------------------------------------------


def opened_risk(
    choice: Choice,
    document: Mapping[str, Any],
    policy: Mapping[str, Any],
    table: CalibrationQuestions,
) -> OpenedRisk | None:
    """Risk of the calibrated rule along its thresholds.

    Parameters
    ----------
    choice : Choice
        Whose first chain stands in where nothing was certified.
    document : mapping
        A ``calibration.json``.
    policy : mapping
        Content of the policy that it names.
    table : CalibrationQuestions
        The questions that the look opened, and no others.

    Returns
    -------
    OpenedRisk or None
        None where the refused rule is not among those chosen here.
    """
    table = table.take(calibration_rows(table))
    certificate = document["certificate"]
    settings = choice.settings
    if certificate is not None:
        scorer = scorer_of(policy, table)
        order = np.array(policy["order"])
        position = int(np.flatnonzero(order == policy["decision_threshold"])[0])
        delta, bound = certificate["chain_delta"], certificate["bound"]
        conditional = certificate["conditional"]
    else:
        tested = document["tested"][0]["family"]
        chains = [c for c in choice.chains if c.scorer.family == tested]
        if not chains:
            return None
        scorer, order, position = chains[0].scorer, chains[0].thresholds, None
        # Looks that were planned share their delta; chains share what is left to one.
        look_delta = document["delta"] / (document["look"]["planned"] or 1)
        delta = look_delta * choice.chain_delta / settings.delta
        bound = settings.bound
        conditional = document.get("conditional", settings.conditional)
    n = int(table.full_correct.sum()) if conditional else table.n_questions
    if n == 0:
        return None
    losses = scorer.curve(table, order).totals(scorer.losses(table))[0].round()
    alpha = document["alpha"]
    return OpenedRisk(scorer, order, losses, n, conditional, alpha, delta, bound, position)


# --- The figures ----------------------------------------------------------------------------------


def deploy_figures(choice: Choice, opened: OpenedRisk | None, texts: Texts | None) -> Figures:
    """Everything that a report on a deploy assessment shows.

    Parameters
    ----------
    choice : Choice
    opened : OpenedRisk, optional
        What a look has opened.
    texts : Texts, optional
        Questions and answers of the run; archives hold none.
    """
    fit = choice.fit
    rules = _rules(choice)
    by_family = {rule.family: rule for rule in rules}
    learned = next((r for r in rules if r.chain.scorer.is_learned), None)
    rule, position = _shown(choice, by_family, opened)
    basis = f"{fit.table.n_questions} fit questions, out of fold"
    stops, stopped = None, ""
    if rule is not None:
        exported = opened is not None and opened.position is not None
        stopped = f"; stops are those of the {'exported' if exported else 'advised'} rule"
        stops = Stops(
            rule.family,
            rule.chain.scorer.schedule,
            _displayed(rule.family, rule.scores),
            display_threshold(rule.family, float(rule.chain.thresholds[position])),
            rule.chain.curve.stops(position),
        )
    probabilities = None if learned is None else expit(learned.scores)
    columns = () if learned is None else learned.chain.scorer.schedule
    return Figures(
        _frontier(choice, rules, rule, position, opened, basis),
        _risk(choice, by_family, opened, basis),
        _alphas(choice, by_family, basis),
        _reliability(fit.table, learned, probabilities, basis),
        checkpoint_accuracy(fit.table, f"{fit.table.n_questions} fit questions"),
        signal_figures(fit.table, probabilities, columns),
        basis,
        examples(fit.table, stops, texts),
        f"fit questions, scored out of fold{stopped}",
    )


def _rules(choice: Choice) -> tuple[_Rule, ...]:
    """The chains that calibration tests, untruncated, and the other scalars asked for."""
    wanted = [(c.scorer.family, c.scorer.schedule) for c in choice.chains]
    beside = wanted[-1][1]  # the scalar side's checkpoints, where there is one
    asked = [f for f in SCALAR_FAMILIES if f in choice.settings.families]
    wanted += [(f, beside) for f in asked if f not in dict(wanted)]
    found = [_Rule.build(choice.fit, family, schedule) for family, schedule in wanted]
    return tuple(rule for rule in found if rule is not None)


def _displayed(family: str, values: FloatArray) -> FloatArray:
    """Linear scores on the scale that people know."""
    if family == "confidence":
        return np.exp(values)
    return expit(values) if family.startswith("learned") else values


def _curve(name: str, frontier: Frontier, at: FloatArray, full_cost: float) -> Curve:
    return Curve(name, at, 100 * frontier.cost / full_cost, frontier.accuracy)


def _shown(
    choice: Choice, rules: Mapping[str, _Rule], opened: OpenedRisk | None
) -> tuple[_Rule | None, int]:
    """The rule and threshold to point at: the exported ones, or before a look the advised ones."""
    if opened is not None and opened.position is not None:
        same = _same_chain(rules, opened)
        if same is not None:
            return same, opened.position
    if choice.advised is None:
        return None, -1
    return rules[choice.advised.scorer.family], choice.advised_position


def _same_chain(rules: Mapping[str, _Rule], opened: OpenedRisk) -> _Rule | None:
    """The rule on fit questions that was calibrated; None where it was fitted elsewhere."""
    same = rules.get(opened.scorer.family)
    if same is None or same.chain.scorer.schedule != opened.scorer.schedule:
        return None
    agrees = np.array_equal(same.chain.thresholds[: opened.order.size], opened.order)
    return same if agrees else None


def _frontier(
    choice: Choice,
    rules: tuple[_Rule, ...],
    shown: _Rule | None,
    position: int,
    opened: OpenedRisk | None,
    basis: str,
) -> FrontierFigure:
    fit = choice.fit
    full_cost = float(fit.full_cost.mean())
    curves = []
    for rule in rules:
        at = np.array([display_threshold(rule.family, t) for t in rule.chain.thresholds])
        curves.append(_curve(rule.family, chain_frontier(fit, rule.chain), at, full_cost))
    served = served_budget_frontier(fit)
    fixed = _curve("fixed budget", served, served.at, full_cost)
    chosen = None
    if shown is not None:
        curve = next(c for c in curves if c.name == shown.family)
        chosen = (shown.family, float(curve.cost[position]), float(curve.accuracy[position]))
    exported = opened is not None and opened.position is not None
    return FrontierFigure(
        tuple(curves),
        fixed,
        chosen,
        "exported point" if exported else "advised point",
        fixed_at(fixed, chosen),
        choice.full_accuracy,
        f"cost per question under {fit.serving}",
        basis,
    )


def _risk(
    choice: Choice, rules: Mapping[str, _Rule], opened: OpenedRisk | None, basis: str
) -> RiskFigure | None:
    n_fit = choice.n_fit
    if opened is None:
        if choice.advised is None and not choice.chains:
            return None
        chain = rules[(choice.advised or choice.chains[0]).scorer.family].chain
        settings = choice.settings
        limit = fit_limit(n_fit, choice.n_calibration, settings, choice.full_accuracy)
        family = chain.scorer.family
        return RiskFigure(
            family,
            np.array([display_threshold(family, t) for t in chain.thresholds]),
            chain.losses / n_fit,
            None,
            None,
            "",
            settings.alpha,
            limit / n_fit if limit >= 0 else None,
            f"most that {choice.n_calibration} calibration questions can still certify",
            choice.advised_position if choice.advised is not None else None,
            "advised",
            n_fit,
            basis,
        )
    family = opened.scorer.family
    whom = " that full thinking gets right" if opened.conditional else ""
    same = _same_chain(rules, opened)
    counted = n_fit * (choice.full_accuracy if opened.conditional else 1)
    expected = None if same is None else same.chain.losses[: opened.order.size] / counted
    most = max_losses(opened.n, opened.alpha, opened.delta, opened.bound)
    upper = [upper_limit(int(k), opened.n, opened.delta, opened.bound) for k in opened.losses]
    return RiskFigure(
        family,
        np.array([display_threshold(family, t) for t in opened.order]),
        expected,
        opened.losses / opened.n,
        np.array(upper),
        "for this threshold alone",
        opened.alpha,
        most / opened.n if most >= 0 else None,
        f"most that passes the test ({most} of {opened.n})",
        opened.position,
        "exported",
        opened.n,
        f"{opened.n} calibration questions{whom}, opened by calibrate",
    )


def _alphas(choice: Choice, rules: Mapping[str, _Rule], basis: str) -> AlphaFigure:
    fit, settings = choice.fit, choice.settings
    accuracy = choice.full_accuracy
    shown = sorted({a for a in ALPHAS if a < accuracy} | {settings.alpha})
    full = float(fit.full_cost.sum())
    savings: dict[str, tuple[float | None, ...]] = {}
    chains = [rules[c.scorer.family].chain for c in choice.chains]
    chances = np.zeros(len(shown))
    for chain in chains:
        row: list[float | None] = []
        for k, alpha in enumerate(shown):
            asked = replace(settings, alpha=alpha)
            position = chain.position(
                fit_limit(choice.n_fit, choice.n_calibration, asked, accuracy)
            )
            row.append(None if position < 0 else 100 * (1 - float(chain.costs[position]) / full))
            chance = certification_chance(fit, chain, choice.n_calibration, asked)
            chances[k] = max(chances[k], chance)
        savings[chain.scorer.family] = tuple(row)
    return AlphaFigure(tuple(shown), savings, tuple(chances.tolist()), settings.alpha, basis)


def _reliability(
    table: GradedTable, learned: _Rule | None, probabilities: FloatArray | None, basis: str
) -> ReliabilityFigure | None:
    live = ~table.ended
    scores = {}
    if learned is not None and probabilities is not None:
        at = learned.chain.scorer.schedule
        inside = live[:, at]
        scores[learned.family] = reliability(
            probabilities[inside], table.stop_correct[:, at][inside]
        )
    if table.entropy_source != "none":
        scores["confidence"] = reliability(
            np.minimum(np.exp(table.mean_logprob[live]), 1.0), table.stop_correct[live]
        )
    return ReliabilityFigure(scores, basis) if scores else None
