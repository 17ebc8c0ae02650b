"""Results as JSON documents: the exact fields that other programs read.

Every command's JSON is built here, from finished results, of plain values that `json` can write
without NaN.  It formats and computes nothing, and knows no screen: `cli.screen` prints these same
documents for people, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stopadvisor.assessment.assess import Assessment
from stopadvisor.assessment.choice import Choice, FitPoint
from stopadvisor.assessment.recommendation import operating_point
from stopadvisor.certification.calibration import Calibration
from stopadvisor.engines.openai.regime import RegimeMeasure
from stopadvisor.paper.assess import PaperAssessment
from stopadvisor.paper.protocol import OperatingPoint, PaperResult
from stopadvisor.policy.frozen import Policy
from stopadvisor.probes.trajectories import Profile
from stopadvisor.rules.costs import REGIMES, ServingCost
from stopadvisor.runs.ledger import Look
from stopadvisor.stats.bounds import Certified, NotCertified

__all__ = [
    "assessment_document",
    "calibration_document",
    "certification_document",
    "look_remarks",
    "matched_points",
    "policy_document",
]

SCHEMA = 1
SERVING_FIELDS = (
    "saving_pct",
    "tokens",
    "money_per_1000",
    "probes",
    "break_even_probes",
    "break_even_cached_price",
)
"""What the deploy protocol tells of a serving regime."""
PAPER_REGIMES = REGIMES[:3]
"""The regimes that every assessment prices; ``overlap`` is added where it is the one asked for."""


def _profile(profile: Profile) -> dict[str, Any]:
    return {
        name: {"count": s.count, "share": s.share, "ci95": list(s.ci95)}
        for name, s in profile.shares.items()
    }


# --- assess ---------------------------------------------------------------------------------------


def assessment_document(
    assessment: Assessment, remarks: Sequence[str] = (), server: RegimeMeasure | None = None
) -> dict[str, Any]:
    """What `assess --json` prints and ``assessment.json`` holds.

    It carries no time and nothing of a calibration question under the deploy protocol, so that the
    same fit questions give the same bytes.
    """
    source, choice = assessment.source, assessment.choice
    advice = assessment.recommendation
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "protocol": assessment.protocol,
        "alpha": assessment.alpha,
        "delta": assessment.delta,
        "run": str(source.folder),
        "workload": {
            "n_questions": assessment.n_questions,
            "n_checkpoints": source.table.n_checkpoints,
            "budgets": source.table.budgets.tolist(),
            "full_reference": assessment.reference,
            "truncated_share": assessment.truncated_share,
            "model": source.model,
            "engine": source.engine,
            "sha256": source.workload_sha256,
        },
        "split": dict(assessment.split),
        "profile": _profile(assessment.profile),
        "regime": {
            "predicted": assessment.profile.predicted,
            "stability": assessment.profile.stability,
            "basis": assessment.basis,
        },
    }
    if choice and choice.fit.table.on_stop == "answer":
        document["workload"]["on_stop"] = "answer"
    if isinstance(assessment, PaperAssessment):
        document |= _of_paper(assessment.paper)
    else:
        assert choice is not None  # the deploy protocol makes one
        document |= _of_fit(choice)
    document["recommendation"] = {
        "policy": advice.policy,
        "family": advice.family,
        "schedule": None if advice.schedule is None else list(advice.schedule),
        "serving": advice.serving,
        "reasons": list(advice.reasons),
    }
    if choice:
        document |= {
            "fit_full_accuracy": choice.full_accuracy,
            "fit_saving_lower_pct": choice.saving_lower,
            "chance_to_certify": choice.chance,
            "settings": _settings(choice),
        }
    else:
        document["full_accuracy"] = assessment.full_accuracy
    document["remarks"] = list(remarks)
    if server is not None:
        names = ("regime", "cache_block", "basis", "read_cost", "reason")
        document["server"] = {name: getattr(server, name) for name in names}
    return document


def _settings(choice: Choice) -> dict[str, Any]:
    """What `calibrate` takes over, so that it tests what was advised."""
    settings = choice.settings
    return {
        "serving": settings.serving,
        "weights": asdict(settings.weights),
        "cache_block": settings.cache_block,
        "bound": settings.bound,
        "multiplicity": settings.multiplicity,
        "families": list(settings.families),
    }


def _of_fit(choice: Choice) -> dict[str, Any]:
    spread, settings = choice.delta_saving_pp, choice.settings
    point = operating_point(choice)
    rows = {row.serving: row for row in choice.serving}
    named = [*PAPER_REGIMES, *({settings.serving} - set(PAPER_REGIMES))]
    at = None
    if point is not None:
        budgets = ", ".join(map(str, point.schedule))
        at = (
            f"{point.family} at threshold {point.threshold:.4g}, probing at {budgets} thinking "
            "tokens; fit questions, out of fold"
        )
    return {
        "matched_risk": [
            {
                "alpha": settings.alpha,
                "learned": _fit_point(choice.learned),
                "scalar": _fit_point(choice.scalar),
                "delta_saving_pp": None
                if spread is None
                else {"median": spread.median, "ci95": [spread.low, spread.high]},
                "verdict": choice.verdict,
            }
        ],
        "serving": {
            "operating_point": at,
            **{name: _serving(rows.get(name)) for name in named},
        },
    }


def _serving(row: ServingCost | None) -> dict[str, Any]:
    """One rule under one regime, per request; all null where no rule is advised."""
    if row is None:
        return dict.fromkeys(SERVING_FIELDS)
    money, full = row.money_per_1000, row.full_money_per_1000
    values = (
        row.saving_pct,
        {"decoded": row.decoded, "cached": row.cached, "prefilled": row.prefilled},
        None if money is None else {"policy": money, "full": full},
        row.probes,
        row.break_even_probes,
        row.break_even_cached,
    )
    return dict(zip(SERVING_FIELDS, values, strict=True))


def _fit_point(point: FitPoint | None) -> dict[str, Any] | None:
    if point is None:
        return None
    visible = point.fit_answer_saving_pct
    return {
        "feasible": point.feasible,
        "family": point.family,
        "threshold": point.threshold,
        "candidates": point.candidates,
        "schedule": list(point.schedule),
        "fit_risk": point.fit_risk,
        "fit_accuracy": point.fit_accuracy,
        "fit_think_saving_pct": point.fit_think_saving_pct,
        "fit_total_saving_pct": point.fit_total_saving_pct,
        **({} if visible is None else {"fit_answer_saving_pct": visible}),
    }


def _of_paper(paper: PaperResult) -> dict[str, Any]:
    return {
        "matched_risk": [
            {
                "alpha": row.alpha,
                "learned": _paper_point(row.learned),
                "scalar": _paper_point(row.scalar),
                "delta_saving_pp": {
                    "median": row.delta_saving_pp.median,
                    "ci95": [row.delta_saving_pp.low, row.delta_saving_pp.high],
                },
                "verdict": row.verdict,
            }
            for row in paper.matched_risk
        ],
        "serving": {
            "operating_point": f"learned at its peak-gain threshold {paper.serving.threshold:g}, "
            "probing at every checkpoint; all questions, out of fold",
            **{name: {"saving_pct": paper.serving.saving_pct[name]} for name in PAPER_REGIMES},
        },
    }


def _paper_point(point: OperatingPoint) -> dict[str, Any]:
    return {
        "feasible": point.feasible,
        "family": point.family,
        "threshold": point.threshold,
        "candidates": point.candidates,
        "test_risk": point.test_risk,
        "test_accuracy": point.test_accuracy,
        "think_saving_pct": point.think_saving_pct,
        "total_saving_pct": point.total_saving_pct,
    }


# --- calibrate ------------------------------------------------------------------------------------


def calibration_document(
    assessment: Assessment,
    calibration: Calibration,
    look: Look,
    content: Mapping[str, Any],
    policy_path: Path,
    remarks: Sequence[str] = (),
) -> dict[str, Any]:
    """What `calibrate --json` prints and ``calibration.json`` holds.

    Parameters
    ----------
    assessment : Assessment
        Of the fit questions, under the settings that were calibrated.
    calibration : Calibration
    look : Look
    content : mapping
        Of the policy as written to `policy_path`.
    policy_path : Path
    remarks : sequence of str
    """
    choice = assessment.choice
    assert choice is not None  # calibration follows the deploy protocol
    advice = assessment.recommendation
    point = operating_point(choice)
    return {
        **certification_document(
            assessment.source.folder,
            choice.settings.alpha,
            calibration,
            look,
            conditional=choice.settings.conditional,
            content=content,
            policy_path=policy_path,
        ),
        "advised_family": advice.family,
        "advised_schedule": None if advice.schedule is None else list(advice.schedule),
        "advised_fit_total_saving_pct": None
        if advice.family is None or point is None
        else point.fit_total_saving_pct,
        "profile": _profile(assessment.profile),
        "remarks": list(remarks),
    }


def certification_document(
    folder: Path,
    alpha: float,
    calibration: Calibration,
    look: Look,
    *,
    conditional: bool,
    content: Mapping[str, Any],
    policy_path: Path,
) -> dict[str, Any]:
    """What every way of calibrating reports: certificate or refusal, and the policy written.

    Parameters
    ----------
    folder : Path
        Of the run that was calibrated on.
    alpha : float
    calibration : Calibration
    look : Look
    conditional : bool
        Whether alpha is a share of the questions that full thinking gets right; a refusal, which
        has no certificate to say so, is worded by it.
    content : mapping
        Of the policy as written to `policy_path`.
    policy_path : Path
    """
    refusal = calibration.refusal
    return {
        "schema": SCHEMA,
        "protocol": "deploy",
        "run": str(folder),
        "alpha": alpha,
        "delta": look.delta,
        "conditional": conditional,
        "confidence": look.confidence,
        "look": {
            "number": look.number,
            "planned": look.planned,
            "spent": look.spent,
            "elsewhere": look.elsewhere,
        },
        "certified": calibration.rule is not None,
        "policy": str(policy_path),
        "kind": content["kind"],
        "family": content["family"],
        "schedule": content["budgets"] or None,
        "threshold": content["threshold"],
        "serving": content["serving"],
        **({"on_stop": "answer"} if content["on_stop"] == "answer" else {}),
        "certificate": content["certificate"],
        "refusal": None
        if refusal is None
        else {
            "reason": refusal.reason,
            "labels_needed": refusal.labels_needed,
            "assumed_risk": refusal.assumed_risk,
        },
        "tested": [
            _tested_document(family, result, calibration.n_counted)
            for family, result in calibration.tested
        ],
        "expected": content["expected"],
    }


def matched_points(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each side of an assessment's matched-risk rows, its figures under one set of names.

    The document names them for the questions they are of: fit questions, or under the paper's
    protocol test questions.
    """
    of, prefix = ("test", "") if document["protocol"] == "paper" else ("fit", "fit_")
    for row in document["matched_risk"]:
        for side in ("learned", "scalar"):
            point = row[side]
            if point is not None:
                yield {
                    "alpha": row["alpha"],
                    "side": side,
                    **{name: point[name] for name in ("family", "feasible", "threshold")},
                    "risk": point[f"{of}_risk"],
                    "accuracy": point[f"{of}_accuracy"],
                    "think_saving_pct": point[f"{prefix}think_saving_pct"],
                    "total_saving_pct": point[f"{prefix}total_saving_pct"],
                }


def look_remarks(look: Look, n_earlier: int) -> list[str]:
    """What looks before this one mean for its certificate."""
    found = []
    if n_earlier:
        found.append(
            f"these calibration questions were looked at before ({n_earlier} recorded); every "
            "further look leaves a certificate less confidence"
        )
    if look.elsewhere:
        found.append(
            f"{look.elsewhere} further look(s) are on record, at other questions of this run or at "
            "these questions in runs beside it: each certificate holds by itself, but the best of "
            "several tries does not"
        )
    return found


def _tested_document(family: str, result: Certified | NotCertified, n: int) -> dict[str, Any]:
    """One chain that calibration tested."""
    row: dict[str, Any] = {"family": family, "certified": isinstance(result, Certified)}
    if isinstance(result, Certified):
        return row | {
            "position": result.position,
            "n": result.n,
            "losses": result.losses,
            "upper": result.upper,
            "reason": None,
            "labels_needed": None,
        }
    return row | {
        "position": None,
        "n": n,
        "losses": None,
        "upper": None,
        "reason": result.reason,
        "labels_needed": result.labels_needed,
    }


# --- inspect --------------------------------------------------------------------------------------


def policy_document(policy: Policy, path: Path) -> dict[str, Any]:
    """What `inspect --json` prints: a policy without its golden decisions and question ids."""
    content = policy.content
    summary = policy.summary()
    del summary["features"]
    return {
        "schema": SCHEMA,
        "policy": str(path),
        "digest_valid": True,  # a policy whose digest is wrong is not loaded
        **summary,
        "features": _features(content),
        "probe": content["probe"],
        "sampling": content["sampling"],
        "normalizer": content["normalizer"],
        "grader": content["grader"],
        "workload_sha256": content["workload_sha256"],
    }


def _features(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Features by weight: the size of the coefficient, or how many splits of trees ask for it."""
    rows = [
        {"name": name, "coef": None, "mean": None, "scale": None, "splits": None}
        for name in content["features"]
    ]
    if content["family"] == "learned-boosted":
        for k, row in enumerate(rows):
            row["splits"] = sum(tree["feature"].count(k) for tree in content["trees"])
        return sorted(rows, key=lambda row: -row["splits"])
    for k, row in enumerate(rows):
        row |= {name: content[name][k] for name in ("coef", "mean", "scale")}
    return sorted(rows, key=lambda row: -abs(row["coef"]))
