"""The summary of `run` on the screen.  Formats a finished document and computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from stopadvisor.policy.promises import promised
from stopadvisor.report.headline import change_words, run_effect
from stopadvisor.report.screen import Screen
from stopadvisor.report.words import (
    BRACKETS,
    COMMON_STACK,
    explained,
    interval,
    percent,
    plural,
    share,
    shell_quote,
)

__all__ = ["show_summary"]

Document = Mapping[str, Any]
_SERVING = {
    None: f"this machine, by {explained('kv-fork')}",
    "resume": "a server; thinking was resumed after each probe, which reads it from the prefix "
    "cache where the server keeps one",
    "overlap": "a server; thinking streamed on while a probe ran, and was broken off at a stop",
}
"""What answered, and what a probe took there, by `serving`."""


def show_summary(document: Document, out: TextIO, *, model: str | None = None) -> None:
    """Print what `run` did, from its document.

    Parameters
    ----------
    model : str, optional
        What was loaded, as it was named: a folder has no other name for who serves it.
    """
    screen = Screen(out)
    screen.headline(document["headline"])
    screen.facts(_facts(document))
    policy, workload = map(shell_quote, (document["policy"], document["workload"]))
    if document["kind"] == "stop" and not document["full"]:
        screen.command(f"stopadvisor run {policy} {workload} --compare-full")
    elif document["kind"] == "stop" and (document["server_saving_pct"] or 0) < 0:
        screen.note(
            "Not to be served as it is: by its own figures this policy costs "
            f"{percent(-document['server_saving_pct'])} more than full thinking on vLLM's prefix "
            f"cache. Assess with `--serving {COMMON_STACK}` for that stack."
        )
    elif document["kind"] == "stop":
        # Where a server answered the gateway stands before it, elsewhere vLLM is started.
        server = f"-- {shell_quote(model or document['model'])}"
        if document["serving"]:
            server = "--upstream URL"
        screen.command(f"stopadvisor serve {policy} {server}")
    if document["full"]:
        screen.title("Against full thinking, in the same run")
        screen.facts(_against_full(document))
    if document["against"]:
        screen.title(f"Against the recorded probes of {document['against']['run']}")
        screen.facts(_against_run(document["against"]))


def _facts(document: Document) -> Iterator[tuple[str, str]]:
    mean = document["mean_tokens"]
    if document["questions"]:
        if document["full"] and document["kind"] == "stop":
            count = plural(document["questions"], "question")
            yield "answered", f"{count}, {share(document['stopped_share'])} of them stopped early"
        yield (
            "tokens",
            f"{mean['think']:.1f} thinking, {mean['probe']:.1f} probing and "
            f"{mean['visible']:.1f} visible answer per question",
        )
    if document["escapes"]["replies"]:
        yield "escapes", _escapes(document["escapes"])
    if document["new"]:
        yield "time", f"{document['seconds']:.1f} s for {plural(document['new'], 'new question')}"
    else:
        yield "new", "none: all of them had been answered before"
    if document["kind"] == "stop":
        yield "stack", _SERVING[document["serving"]]
    if document["labelled"]:
        yield "accuracy", f"{share(document['accuracy'])} of {document['labelled']} with gold"
    if not document["certified"] and document["kind"] == "stop":
        yield "promise", "none: the certificate does not cover these answers"
    yield "answers", document["out"]


def _escapes(escapes: Document) -> str:
    depths = ", ".join(
        f"{d['escaped']} of {d['stopped']}{'' if place else ' stops'} "
        + (f"from {d['least']}" if d["most"] is None else f"at {d['least']} to {d['most']}")
        + (" tokens on" if d["most"] is None else " tokens")
        for place, d in enumerate(escapes["by_depth"])
    )
    return (
        f"the model reasoned on after {plural(escapes['replies'], 'stop')}, for "
        f"{plural(escapes['tokens'], 'token')} that are counted above: {depths}"
    )


def _against_full(document: Document) -> Iterator[tuple[str, str]]:
    full = document["full"]
    yield (
        "tokens",
        f"{_saved(full['token_saving_pct'], 'fewer')} decoded, probes included; "
        f"{_saved(full['think_saving_pct'], 'fewer')} of thinking",
    )
    if document["certified"]:
        yield (
            "measure",
            "decoded tokens; the saving that `calibrate` states counts prompts and what probes "
            "read too, at the costs of its stack",
        )
    if full["time_saving_pct"] is not None:
        yield (
            "time",
            f"{_saved(full['time_saving_pct'], 'less')}: {full['seconds']:.1f} s instead of "
            f"{full['full_seconds']:.1f} s for {plural(full['timed_questions'], 'question')}",
        )
    promise = ""
    if document["certified"]:
        promise = f"; the promise is at most {promised(document['alpha'])}"
    if document["loss"] == "differs" or not full["labelled"]:
        yield (
            "differs",
            f"{share(full['differing_share'])} {interval(full['differing_ci95'], 100)} of "
            f"{full['questions']} questions got another reply than full thinking's"
            + promise
            * (document["loss"] == "differs"),
        )
    if full["labelled"]:
        change = change_words(run_effect(full))
        text = f"{share(full['full_accuracy'])} -> {share(full['accuracy'])}, {change}"
        yield "accuracy", text
        promise *= document["loss"] != "differs"
        yield "lost", f"{_lost(full)}: right with full thinking, wrong when stopped{promise}"
    unmet = full["unmet"]
    if unmet["labelled"] and unmet["labelled"] != full["labelled"]:
        yield "of new", f"{_lost(unmet)} that had no part in choosing or certifying the policy"
    yield BRACKETS


def _saved(saving: float, word: str) -> str:
    return f"{percent(saving)} {word}" if saving >= 0 else f"{percent(-saving)} more"


def _lost(figures: Document) -> str:
    return (
        f"{share(figures['risk'])} {interval(figures['risk_ci95'], 100)} of "
        f"{figures['labelled']} questions"
    )


def _against_run(against: Document) -> Iterator[tuple[str, str]]:
    yield (
        "stops",
        f"{against['differing_stops']} of {against['questions']} differ "
        f"({share(against['differing_stops_share'])})",
    )
    yield "answers", f"{against['differing_answers']} differ"
    if against["examples"]:
        yield "such as", ", ".join(against["examples"])
