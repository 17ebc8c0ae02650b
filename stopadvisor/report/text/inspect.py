"""What `inspect` prints: what a policy does, what was shown about it, what it is bound to.

Formats the document and computes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

from stopadvisor.report.headline import expected_effect, policy_headline
from stopadvisor.report.screen import Screen
from stopadvisor.report.text.calibrate import evidence, expectation, meaning, pointwise
from stopadvisor.report.words import listed, number, plural, share, shell_quote
from stopadvisor.rules.families import rule_name

__all__ = ["show_policy"]

Document = Mapping[str, Any]

_STOPS_WHEN = {
    "confidence": "the trial answer's confidence (exp of its mean log-probability) is at least",
    "entropy": "minus the mean entropy of the trial answer (nats) is at least",
    "run-stability": "the same trial answer has come this often in a row:",
    "confidence-leap": "the confidence in the trial answer leaps up by at least",
    "agreement": "the trial answer has stayed the same for so many thinking tokens:",
    "agreement-scaled": (
        "the tokens for which the trial answer has stayed the same, over the root of the position, "
        "reach"
    ),
    "learned-keeps": "the estimated probability that stopping loses nothing is at least",
}
_STOPS_WHEN["deer"] = _STOPS_WHEN["confidence"]
_REVISION = 24
"""Characters of a model's revision or hash that are shown."""
_FOREIGN = (AttributeError, KeyError, TypeError, ValueError, IndexError)
"""Of an expectation that another program wrote; a policy's schema leaves it open."""
_LEARNED = "the estimated probability that the trial answer is right is at least"


def show_policy(document: Document, out: TextIO, *, verbose: bool = False) -> None:
    """Print a policy in words."""
    screen = Screen(out)
    if document["kind"] == "full-budget":
        screen.headline("Never stops early: every question thinks to its end, without a probe.")
    else:
        screen.headline(_headline(document))
        screen.facts(_rule(document))
    if document["family"] == "fixed-budget":
        _settings(screen, document)
    if document["certificate"]:
        screen.title("Promise")
        screen.text(str(document["certificate"]["claim"]))
        screen.facts(_certificate(document, verbose=verbose))
    else:
        screen.items("Promise", ["None: nothing was certified, so nothing is stopped."])
    if document["expected"]:
        screen.title("Expected")
        screen.facts(_expected(document))
    if document["features"]:
        _features(screen, document)
    screen.title("Bound to")
    screen.facts(_bound(document))
    if made := _made_from(document):
        screen.title("Made from")
        screen.facts(made)
    screen.title("File")
    screen.facts(
        [
            ("path", document["policy"]),
            (
                "digest",
                f"{document['digest'][:16]}..., undamaged; its test decisions come out right",
            ),
            ("created", document["created"]),
            *_signature(document),
        ]
    )
    if document["kind"] == "stop" and document["model"] is not None:
        policy = shell_quote(document["policy"])
        screen.command(f"stopadvisor run {policy} WORKLOAD --compare-full")


def _headline(document: Document) -> str:
    """What the policy saves and loses; by which rule it stops where that was not measured."""
    try:
        if document["certificate"] and expected_effect(document["expected"], document["serving"]):
            return policy_headline(document["expected"], document["serving"])
    except _FOREIGN:
        pass
    certified = "Certified" if document["certificate"] else "Not certified"
    return f"{certified}: stops early by {rule_name(document['family'])}, {_where(document)}."


def _signature(document: Document) -> list[tuple[str, str]]:
    signature = document["signature"]
    if signature is None:
        return []
    if signature["key_sha256"] is None:
        return [("signature", f"not checked: --key KEY.pub checks {signature['file']}")]
    return [("signed by", f"{signature['key_sha256']} (SHA-256 of the public key)")]


def _where(document: Document) -> str:
    trigger = document["trigger"]
    return {
        "grid": f"at {plural(len(document['budgets']), 'checkpoint')}",
        "stride": f"every {trigger['every']} thinking tokens",
        "marker": "where a marker begins",
        "none": f"at {trigger['stop_at']} thinking tokens",
    }[trigger["kind"]]


def _rule(document: Document) -> list[tuple[str, str]]:
    reply = {
        "probe": "the trial answer itself (a forced answer)",
        "answer": "the visible answer that the model writes after closing its thinking",
    }[document["on_stop"]]
    trigger, family = document["trigger"], document["family"]
    rows = []
    if family != "fixed-budget":
        when = _STOPS_WHEN.get(family, _LEARNED)
        rows = [
            ("stops", f"when {when} {number(document['threshold'])}"),
            ("probe at", _positions(document)),
        ]
    if trigger["stop_at"] is not None:
        least = "" if family == "fixed-budget" else "at the latest "
        rows.append(("stops all", f"{least}at {trigger['stop_at']} thinking tokens"))
    return [*rows, ("reply", reply)]


def _positions(document: Document) -> str:
    trigger = document["trigger"]
    every = trigger["every"]
    if trigger["kind"] == "grid":
        return f"{listed(document['budgets'])} thinking tokens"
    if trigger["kind"] == "stride":
        first = every if trigger["first"] is None else trigger["first"]
        return f"every {every} thinking tokens, from {first} up to {trigger['cap']}"
    spellings = plural(len(trigger["markers"]), "spelling")
    if not trigger["markers"]:
        spellings = "known from a recording by position alone, so that it cannot be served"
    text = (
        f"markers ({spellings}), at least {trigger['min_gap']} "
        f"tokens after the last probe, at most {plural(trigger['max_probes'], 'time')}"
    )
    if trigger["max_markers"] is not None:
        text += f"; of a trace the first {plural(trigger['max_markers'], 'marker')}"
    return text if every is None else f"{text}; where none comes, every {every} tokens"


def _settings(screen: Screen, document: Document) -> None:
    """Say how engines serve a fixed budget by themselves, or why they cannot."""
    if not document["engine_settings"]:
        screen.items(
            "Engine settings",
            [
                "None: the certified reply is the forced answer. An engine that ends the thinking "
                "goes on with a visible one, which --on-stop answer certifies."
            ],
        )
        return
    screen.title("Engine settings")
    rows = []
    for setting in document["engine_settings"]:
        fields = json.dumps(setting["request"])[1:-1]
        words = [f"{fields} in each request"] if fields else []
        words.append(f"{' '.join(setting['server'])} at the server")
        rows.append((setting["engine"], "; ".join(words)))
    screen.facts(rows)
    screen.text(
        "The certificate covers an engine that closes the thinking there as the policy does, with "
        "its closer and no message before it."
    )


def _expected(document: Document) -> list[tuple[str, str]]:
    """In words where it is what `calibrate` writes; the schema of a policy leaves it open."""
    expected = document["expected"]
    try:
        return expectation(expected, document["serving"])
    except _FOREIGN:
        return [(name, json.dumps(value)) for name, value in expected.items()]


def _looks(certificate: Document) -> str:
    # More than the number is not held by the policy's schema.
    elsewhere = certificate.get("looks_elsewhere")
    text = f"number {certificate['looks']} at these calibration questions"
    return text + (f", and {elsewhere} elsewhere" if elsewhere else "")


def _certificate(document: Document, *, verbose: bool) -> list[tuple[str, str]]:
    certificate = document["certificate"]
    rows = [("evidence", evidence(certificate)), ("look", _looks(certificate))]
    if verbose:
        reference = "its own visible answer at the end of thinking"
        if certificate["reference"] != "natural":
            reference = "the forced answer at the last checkpoint"
        rows += [("limit", pointwise(certificate)), ("full thinking", f"means {reference}")]
    # More than the fields above is not held by the policy's schema.
    if isinstance(transfer := certificate.get("transfer"), str):
        source = str(certificate.get("source_digest"))[:8]
        rows.append(("transfer", f"{transfer}: the rule of policy {source}"))
    with suppress(*_FOREIGN):
        rows += meaning(certificate, document["expected"], document["serving"])
    if isinstance(cut := certificate.get("truncated_share"), float):
        rows.append(("cut off", f"{share(cut)} of the calibration traces, at the cap"))
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


def _made_from(document: Document) -> list[tuple[str, str]]:
    """Hashes to hold against a run's own; more than the workload's is not in every policy."""
    certificate = document["certificate"] or {}
    provenance = certificate.get("provenance")
    hashes = provenance if isinstance(provenance, Mapping) else {}
    found = (
        ("workload", document["workload_sha256"]),
        ("thinking", document["sampling"].get("recorded")),
        ("probes", hashes.get("probes_sha256")),
        ("labels", hashes.get("labels_sha256")),
        ("ledger", certificate.get("ledger_head")),
    )
    rows = [(name, f"{value[:16]}...") for name, value in found if isinstance(value, str)]
    version = document["versions"].get("stopadvisor")
    return [*rows, ("written by", f"stopadvisor {version}")] if version else rows


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
