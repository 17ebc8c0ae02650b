"""What `monitor` prints: whether the promise is kept, and how soon it would show.

Formats the document and computes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TextIO

from stopadvisor.report.documents.monitor import MonitorDocument
from stopadvisor.report.screen import Screen
from stopadvisor.report.words import plural, share

__all__ = ["fact_rows", "show_monitoring", "verdict_sentence"]

_DRIFT = {
    "stop": "where requests stop",
    "prompt_tokens": "the length of prompts",
    "first_logprob": "the first answer's confidence",
}


def verdict_sentence(document: MonitorDocument) -> str:
    """The result in one sentence."""
    alarm = document["alarm"]
    if document["verdict"] == "no-audits":
        return "Nothing was audited: nothing can be said."
    if alarm is None:
        return "No alarm: nothing speaks against the promise so far."
    when = datetime.fromtimestamp(alarm["time"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    at = f"at request {alarm['request']}, {when}"
    promise = next(w for w in document["watched"] if w["watch"] == alarm["watch"])
    if promise["is_promise"]:
        return f"ALARM: the promise is broken ({at})."
    return f"ALARM: more replies differ from full thinking than were calibrated ({at})."


def show_monitoring(document: MonitorDocument, out: TextIO) -> None:
    """Print the verdict and what it rests on."""
    screen = Screen(out)
    tone = {"alarm": "bad", "no-alarm": "good", "no-audits": "doubtful"}
    screen.headline(verdict_sentence(document), tone[document["verdict"]])  # type: ignore[arg-type]
    screen.facts(fact_rows(document))
    if document["alarm"] is not None:
        screen.text(
            "It stays on until somebody resets it by name (monitor --reset NAME), which begins a "
            "new test. Until then serve with --shadow, or the policy that was in use before "
            "(stopadvisor promote)."
        )
    if document["remarks"]:
        screen.items("Remarks", document["remarks"])


def fact_rows(document: MonitorDocument) -> list[tuple[str, str]]:
    """What the verdict rests on, name and text."""
    rows = [("promise", document["claim"])]
    for watch in document["watched"]:
        name = "promise" if watch["is_promise"] else "early warning"
        counted = "differ" if watch["watch"] == "differs" else f"count as {watch['watch']}"
        rows.append(
            (
                "evidence",
                f"{name}, at most {share(watch['limit'])} of replies {counted}: "
                f"{watch['e_value']:.3g} of {1 / document['delta']:.4g}; since a change "
                f"{watch['detector']:.3g} of {document['change']:.3g}",
            )
        )
    rows.append(
        (
            "requests",
            f"{document['requests']}, {document['stopped']} stopped; "
            f"{document['audits']} audited ({share(document['share'])} are picked)",
        )
    )
    found = f"{document['differing']} of {document['resolved']} stopped and audited replies differ"
    if document["unresolved"]:
        found += f"; {document['unresolved']} without a result, {document['shed']} of them given up"
    if document["upper"] is not None:
        found += (
            f"; of all replies at most {share(document['upper'])} do, at confidence "
            f"{100 * (1 - document['delta']):g} % and if the risk has not changed"
        )
    rows.append(("differing", found))
    if document["gold"]:
        rows.append(
            ("gold", f"{plural(document['gold'], 'audit')}, loss {document['gold_losses']}")
        )
    rows += [("delay", _delay(document)), ("cost", _cost(document)), ("drift", _drift(document))]
    return rows


def _delay(document: MonitorDocument) -> str:
    parts = []
    for one in document["delay"]:
        times = {2: "a doubling", 3: "three times"}[one["times"]]
        requests = one["requests"]
        parts.append(
            f"{times} the limit may never be noticed"
            if requests is None
            else f"{times} takes about {float(f'{requests:.2g}'):,.0f} requests to notice"
        )
    return (
        f"at this share {', '.join(parts)}; a false alarm ever: at most {share(document['delta'])}"
    )


def _cost(document: MonitorDocument) -> str:
    decoded, audits = document["decoded_tokens"], document["audit_tokens"]
    if not decoded:
        return "no tokens were counted"
    text = f"audits decoded {audits} tokens, {share(audits / decoded)} on top of {decoded} served"
    saved = document["saved_tokens"]
    if saved is not None:
        text += f"; stopping saved about {saved:.0f}, {share(saved / (decoded + saved))}"
    return text


def _drift(document: MonitorDocument) -> str:
    changed = [f"{_DRIFT[n]} (request {at})" for n, at in document["drifted"].items()]
    if changed:
        return f"the traffic changed: {', '.join(changed)}; that alone says nothing of the risk"
    if not document["drift"]:
        return "not watched: the policy holds nothing to compare with"
    names = ", ".join(_DRIFT[name] for name in document["drift"])
    return f"no change seen in {names}"
