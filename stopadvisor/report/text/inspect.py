"""What `inspect` prints: what a policy does, what was shown about it, what it is bound to.

Formats the document and computes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TextIO

from stopadvisor.report.text.calibrate import evidence, expectation
from stopadvisor.report.text.screen import Screen
from stopadvisor.report.words import listed, number, plural, share
from stopadvisor.rules.families import rule_name

__all__ = ["show_policy"]

Document = Mapping[str, Any]

_STOPS_WHEN = {
    "confidence": "the forced answer's confidence (exp of its mean log-probability) is at least",
    "entropy": "minus the mean entropy of the forced answer (nats) is at least",
    "run-stability": "the same answer has come this often in a row:",
    "confidence-leap": "the confidence leap reaches",
}
_REVISION = 24
"""Characters of a model's revision or hash that are shown."""
_LEARNED = "the estimated probability that the forced answer is right is at least"


def show_policy(document: Document, out: TextIO) -> None:
    """Print a policy in words."""
    screen = Screen(out)
    if document["kind"] == "full-budget":
        screen.headline("Full budget: never stops early, asks for no probe.")
    else:
        count = plural(len(document["budgets"]), "checkpoint")
        screen.headline(f"Stops early by {rule_name(document['family'])}, at {count}.")
        screen.facts(_rule(document))
    if document["certificate"]:
        screen.items("Certificate", [_claim(document["certificate"])])
        screen.facts(_certificate(document["certificate"]))
    else:
        screen.items("Certificate", ["None: nothing was certified, so nothing is stopped."])
    if document["expected"]:
        screen.title("Expected")
        screen.facts(_expected(document))
    if document["features"]:
        _features(screen, document)
    screen.title("Bound to")
    screen.facts(_bound(document))
    screen.title("File")
    screen.facts(
        [
            ("path", document["policy"]),
            ("digest", f"{document['digest'][:16]}..., valid; golden decisions replay"),
            ("created", document["created"]),
        ]
    )


def _rule(document: Document) -> list[tuple[str, str]]:
    when = _STOPS_WHEN.get(document["family"], _LEARNED)
    reply = {
        "probe": "the forced answer itself",
        "answer": "the visible answer that the model writes after closing its thinking",
    }[document["on_stop"]]
    return [
        ("stops", f"when {when} {number(document['threshold'])}"),
        ("probe at", f"{listed(document['budgets'])} thinking tokens"),
        ("reply", reply),
        ("serving", document["serving"]),
    ]


def _expected(document: Document) -> list[tuple[str, str]]:
    """In words where it is what `calibrate` writes; the schema of a policy leaves it open."""
    expected = document["expected"]
    try:
        return expectation(expected, document["serving"])
    except (KeyError, TypeError, ValueError, IndexError):
        return [(name, json.dumps(value)) for name, value in expected.items()]


def _claim(certificate: Document) -> str:
    claim = certificate.get("claim")
    if claim is not None:
        return str(claim)
    return f"At most {share(certificate['alpha'])} of all questions are lost."


def _looks(certificate: Document) -> str:
    # More than the number is not held by the policy's schema.
    elsewhere = certificate.get("looks_elsewhere")
    return f"{certificate['looks']}" + (f", and {elsewhere} elsewhere" if elsewhere else "")


def _certificate(certificate: Document) -> list[tuple[str, str]]:
    rows = [
        ("evidence", evidence(certificate)),
        ("upper", f"{share(certificate['upper'])} at this threshold alone (not the claim)"),
        ("reference", f"full thinking = {certificate['reference']}"),
        ("looks", _looks(certificate)),
    ]
    # More than the fields above is not held by the policy's schema.
    if isinstance(transfer := certificate.get("transfer"), str):
        source = str(certificate.get("source_digest"))[:8]
        rows.append(("transfer", f"{transfer}: the rule of policy {source}"))
    if isinstance(ratio := certificate.get("alpha_over_full_accuracy"), float):
        alpha = share(certificate["alpha"])
        if certificate.get("conditional"):
            rows.append(("alpha", f"{alpha} of the questions that full thinking gets right"))
        else:
            rows.append(("alpha", f"{alpha}, {share(ratio)} of the full-thinking accuracy"))
    if isinstance(cut := certificate.get("truncated_share"), float):
        rows.append(("truncated", f"{share(cut)} of the calibration traces"))
    return rows


def _features(screen: Screen, document: Document) -> None:
    if document["family"] == "learned-boosted":
        rows = [(row["name"], str(row["splits"])) for row in document["features"]]
        screen.table("Features by number of splits", ("feature", "splits"), rows)
        return
    screen.table(
        "Features by weight",
        ("feature", "coefficient", "mean", "scale"),
        [
            (row["name"], f"{row['coef']:+.4f}", f"{row['mean']:.4f}", f"{row['scale']:.4f}")
            for row in document["features"]
        ],
    )


def _bound(document: Document) -> list[tuple[str, str]]:
    model, engine = document["model"], document["engine"]
    rows = []
    if model is None:
        origin = "a published archive" if engine is None else f"{engine['name']} probes"
        rows.append(("model", f"none: made from {origin}, it suits no model as it is"))
    else:
        revision = model["revision"] or "revision unknown"
        shown = f"{revision[:_REVISION]}..." if len(revision) > _REVISION else revision
        rows.append(("model", f"{model['name']} ({shown})"))
    if engine is not None:
        details = [engine[key] for key in ("version", "dtype", "device") if engine[key]]
        rows.append(("engine", ", ".join([engine["name"], *details])))
    if document["max_think"] is not None:
        rows.append(("cap", f"{document['max_think']} thinking tokens"))
    rows.append(("task", f"{document['task']}; entropy: {document['entropy_source']}"))
    counts = document["n_questions"]
    if counts is not None:
        rows.append(
            (
                "questions",
                f"{counts['fit']} fit, {counts['calibration']} calibration, {counts['test']} test",
            )
        )
    return rows
