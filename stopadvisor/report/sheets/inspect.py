"""Sheets of `inspect`: one policy with its certificate, or the differences of two."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from stopadvisor.ground.fields import plain
from stopadvisor.policy.shown import Certificate, Expected, InspectedPolicy
from stopadvisor.policy.terms import TriggerTerms
from stopadvisor.report.comparison import PolicyComparison
from stopadvisor.report.headline import calibrated_headline
from stopadvisor.report.sheet import Fact, Section, Sheet
from stopadvisor.report.sheets.calibrate import evidence, expectation_facts, meaning, pointwise
from stopadvisor.report.words import listed, number, plural, share, shell_quote
from stopadvisor.rules.families import rule_name
from stopadvisor.runs.ladder import Rung

__all__ = ["comparison_sheet", "inspect_sheet"]

_STOPS_WHEN = {
    "confidence": "the trial answer's confidence (exp of its mean log-probability) is at least",
    "entropy": "minus the mean entropy of the trial answer (nats) is at least",
    "run-stability": "the same trial answer has come this often in a row:",
    "confidence-leap": "the confidence in the trial answer leaps up by at least",
    "agreement": "the thinking tokens for which the trial answer has stayed the same reach",
    "agreement-scaled": (
        "the tokens for which the trial answer has stayed the same, over the root of the position, "
        "reach"
    ),
    "learned-keeps": "the estimated probability that stopping loses nothing is at least",
}
_STOPS_WHEN["deer"] = _STOPS_WHEN["confidence"]
_REVISION = 24
"""Most characters shown of a model's revision."""
_LEARNED = "the estimated probability that the trial answer is right is at least"


def inspect_sheet(
    shown: InspectedPolicy,
    *,
    verbose: bool = False,
    workload: Path | None = None,
    model: str | None = None,
) -> Sheet:
    """Return a policy in words.

    `workload` and `model` complete the next command: the questions of the policy's run, and the
    model's place if it is not the name in the policy.
    """
    expected, command, file = shown.expected, None, shell_quote(shown.policy)
    if shown.serve_with is not None:
        command = f"stopadvisor serve {file} --shadow {shlex.join(shown.serve_with)}"
    elif shown.kind == "stop" and shown.ladder is None and shown.model and workload is not None:
        command = f"stopadvisor run {file} {shell_quote(workload)} --compare-full"
        command += "" if model is None else f" --model {shell_quote(model)}"
    return Sheet(
        _headline(shown, expected),
        facts=tuple(_rule(shown)),
        command=command,
        sections=tuple(_sections(shown, expected, verbose=verbose)),
    )


def comparison_sheet(compared: PolicyComparison) -> Sheet:
    """Return the differences between two policies."""
    changes = compared.changes
    headline = "Two calibrations of the same rule: nothing differs in what it does."
    if compared.same:
        headline = "The same policy."
    elif changes:
        stops = (
            "both stop at the same places"
            if compared.same_stops
            else "they stop at different places"
        )
        headline = f"B differs from A in {plural(len(changes), 'point')}; {stops}."
    sections = []
    if changes:
        rows = tuple((row.what, f"{row.before} -> {row.after}") for row in changes)
        sections.append(Section("In A -> in B", rows=rows))
    return Sheet(
        headline,
        "good" if compared.same else None,
        tuple(
            (name, f"{side.policy} (digest {side.digest[:8]}, of {side.created[:10]})")
            for name, side in (("A", compared.a), ("B", compared.b))
        ),
        sections=tuple(sections),
    )


def _sections(
    shown: InspectedPolicy, expected: Expected | None, *, verbose: bool
) -> Iterator[Section]:
    if shown.family == "fixed-budget":
        yield _settings(shown)
    if shown.certificate is None:
        text = "None: nothing was certified, so nothing is stopped."
        yield Section("Promise", texts=(text,))
    else:
        yield Section("Promise", texts=(shown.certificate.claim,))
        rows = tuple(_certificate(shown, shown.certificate, expected, verbose=verbose))
        yield Section(rows=rows)
    if expected is not None:
        yield Section("Expected", rows=tuple(expectation_facts(expected, shown.serving)))
    if shown.features:
        yield _features(shown)
    yield Section("Bound to", rows=tuple(_bound(shown)))
    if made := tuple(_made_from(shown)):
        yield Section("Made from", rows=made)
    signed, signature = [], shown.signature
    if signature is not None and signature.key_sha256 is None:
        unchecked = f"not checked: --require-signature KEY.pub checks {signature.file}"
        signed.append(("signature", unchecked))
    elif signature is not None:
        signed.append(("signed by", f"{signature.key_sha256} (SHA-256 of the public key)"))
    yield Section(
        "File",
        rows=(
            ("path", str(shown.policy)),
            ("digest", f"{shown.digest[:16]}...; file check: OK"),
            ("created", shown.created),
            *signed,
        ),
    )


def _headline(shown: InspectedPolicy, expected: Expected | None) -> str:
    """Say what the policy saves and loses, or how it stops if that was not measured."""
    trigger = shown.trigger
    if shown.kind != "stop" or trigger is None:
        if shown.ladder is not None:
            return "Never climbs: the reference answers every question."
        return "Never stops early: every question thinks to its end, without a probe."
    if shown.certificate and expected:
        return calibrated_headline(expected, shown.serving)
    where = {
        "grid": f"at {plural(len(shown.budgets), 'checkpoint')}",
        "stride": f"every {trigger.every} thinking tokens",
        "marker": "where a marker begins",
        "none": f"at {trigger.stop_at} thinking tokens",
        "ladder": f"serving {_served(shown)}",
    }[trigger.kind]
    certified = "Certified" if shown.certificate else "Not certified"
    return f"{certified}: stops early by {rule_name(str(shown.family))}, {where}."


def _served(shown: InspectedPolicy) -> str:
    """The rungs in order and their thresholds, in words."""
    ladder = shown.ladder
    return "" if ladder is None else ladder.climb(shown.family).describe(shown.decision_threshold)


def _rung(rung: Rung) -> str:
    """Return the model of a rung, how it is asked, and the price of its tokens."""
    named = plain(replace(rung, model=None)).items()
    words = [rung.model or "model not recorded"]
    words += [f"{name} {value}" for name, value in named if name not in ("name", "price")]
    return f"{', '.join(words)}; price {' / '.join(f'{price:g}' for price in rung.price)}"


def _rule(shown: InspectedPolicy) -> Iterator[Fact]:
    trigger, family = shown.trigger, shown.family
    if trigger is None:
        return
    if shown.ladder is not None:
        yield "serves", _served(shown)
        yield "climbs", "where a reply does not pass, was cut, or its server is down"
        return
    if family != "fixed-budget":
        when = _STOPS_WHEN.get(str(family), _LEARNED)
        yield "stops", f"when {when} {number(shown.threshold)}"
        yield "probe at", _positions(shown, trigger)
    if trigger.stop_at is not None:
        least = "" if family == "fixed-budget" else "at the latest "
        yield "stops all", f"{least}at {trigger.stop_at} thinking tokens"
    reply = {
        "probe": "the trial answer itself (a forced answer)",
        "answer": "the visible answer that the model writes after closing its thinking",
    }
    yield "reply", reply[shown.on_stop]


def _positions(shown: InspectedPolicy, trigger: TriggerTerms) -> str:
    if trigger.kind == "grid":
        return f"{listed(shown.budgets)} thinking tokens"
    if trigger.kind == "stride":
        first = trigger.every if trigger.first is None else trigger.first
        return f"every {trigger.every} thinking tokens, from {first} up to {trigger.cap}"
    spellings = plural(len(trigger.markers), "spelling")
    if not trigger.markers:
        spellings = "known from a recording only by position, so it cannot be served"
    text = (
        f"markers ({spellings}), at least {trigger.min_gap} tokens after the last probe, at most "
        f"{plural(trigger.max_probes or 0, 'time')}"
    )
    if trigger.max_markers is not None:
        text += f"; only the first {plural(trigger.max_markers, 'marker')} of a trace"
    return text


def _settings(shown: InspectedPolicy) -> Section:
    """Return settings by which engines stop at a fixed budget themselves, or why there are none."""
    rows = []
    for setting in shown.engine_settings:
        fields = json.dumps(setting.request)[1:-1]
        request = f"{fields} in each request; " if fields else ""
        rows.append((setting.engine, f"{request}{' '.join(setting.server)} at the server"))
    text = (
        "The certificate covers an engine that closes the thinking there as the policy does, with "
        "its closer and no message before it."
        if rows
        else "None: the certified reply is the forced answer. An engine that ends the thinking "
        "writes a visible one instead, which --on-stop answer certifies."
    )
    return Section("Engine settings", rows=tuple(rows), texts=(text,))


def _certificate(
    shown: InspectedPolicy, certificate: Certificate, expected: Expected | None, *, verbose: bool
) -> Iterator[Fact]:
    yield "evidence", evidence(certificate)
    elsewhere = certificate.looks_elsewhere
    also = f", and {elsewhere} elsewhere" if elsewhere else ""
    yield "look", f"number {certificate.looks} at these calibration questions{also}"
    if verbose:
        reference = "its own visible answer at the end of thinking"
        if certificate.reference != "natural":
            reference = "the forced answer at the last checkpoint"
        yield "limit", pointwise(certificate)
        yield "full thinking", f"means {reference}"
    if certificate.transfer is not None:
        source = str(certificate.source_digest)[:8]
        yield "transfer", f"{certificate.transfer}: the rule of policy {source}"
    if expected is not None:
        yield from meaning(certificate, expected, shown.serving)
    what = "calibration traces, at the cap"
    if shown.ladder is not None:
        what = "reference's replies to calibration questions"
    yield "cut off", f"{share(certificate.truncated_share)} of the {what}"


def _features(shown: InspectedPolicy) -> Section:
    return Section(
        "Features by weight",
        ("feature", "coefficient", "mean", "scale"),
        tuple(
            (row.name, f"{row.coef:+.4f}", f"{row.mean:.4f}", f"{row.scale:.4f}")
            for row in shown.features
        ),
    )


def _made_from(shown: InspectedPolicy) -> Iterator[Fact]:
    """Yield hashes to compare with a run's; not every policy has all of them."""
    certificate = shown.certificate
    hashes = (None if certificate is None else certificate.provenance) or {}
    for name, value in (
        ("workload", shown.workload_sha256),
        ("thinking", shown.sampling.get("recorded")),
        ("probes", hashes.get("probes_sha256")),
        ("labels", hashes.get("labels_sha256")),
        ("look", None if certificate is None else certificate.ledger_head),
    ):
        if value:
            yield name, f"{value[:16]}..."
    if version := shown.versions.get("stopadvisor"):
        yield "written by", f"stopadvisor {version}"


def _bound(shown: InspectedPolicy) -> Iterator[Fact]:
    model, engine, counts = shown.model, shown.engine, shown.n_questions
    for rung in () if shown.ladder is None else shown.ladder.rungs:
        yield rung.name, _rung(rung)
    if model is None and shown.ladder is None:
        origin = "a published archive" if engine is None else f"{engine.name} probes"
        yield "model", f"none: made from {origin}, it fits no model as it is"
    elif model is not None:
        revision = model.revision or "revision unknown"
        text = f"{revision[:_REVISION]}..." if len(revision) > _REVISION else revision
        yield "model", f"{model.name} ({text})"
    if engine is not None:
        details = (engine.name, engine.version, engine.dtype, engine.device)
        yield "engine", ", ".join(filter(None, details))
    if shown.max_think is not None:
        yield "cap", f"{shown.max_think} thinking tokens"
    yield "task", f"{shown.task}; entropy: {shown.entropy_source}"
    for text in dict.fromkeys(shown.prompt_template.values()):
        yield "asked as", json.dumps(text, ensure_ascii=False)
    if counts is not None:
        yield (
            "questions",
            f"{counts.fit} fit, {counts.calibration} calibration, {counts.test} test",
        )
