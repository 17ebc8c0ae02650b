"""A verification for people: the verdict, the figures behind it, then categories and drift.

Reads the document that `verify --json` prints, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from stopadvisor.assessment.recommendation import probability_words
from stopadvisor.policy.promises import counted, loss_name, promise_of, promised
from stopadvisor.report.headline import Effect, change_words, saving_words, verified_effect
from stopadvisor.report.screen import Screen, Tone
from stopadvisor.report.words import BRACKETS, explained, interval, plural, share, shell_quote

__all__ = ["show_verification"]

Document = Mapping[str, Any]

_DRIFTED = 0.05
_MEANS = {
    "confirmed": "these questions alone certify the promise: go on serving the policy",
    "contradicted": "more is lost than was promised: serve full thinking, and calibrate anew",
    "silent": "these questions are too few, or too close to the promise, to decide: "
    "probe more of them",
}
_OF_OTHERS = {
    "confirmed": "for it the promise rests on these fresh questions alone.",
    "contradicted": "the promise does not speak of it, and is broken there.",
    "silent": "the promise does not speak of it.",
}
"""What follows from drift, by verdict."""
_TONES: dict[str, Tone] = {"confirmed": "good", "contradicted": "bad", "silent": "doubtful"}


def show_verification(document: Document, out: TextIO, *, verbose: bool = False) -> None:
    """Print what `verify` found."""
    screen = Screen(out)
    screen.headline(document["headline"], _TONES[document["verdict"]])
    screen.facts(_facts(document, verbose=verbose))
    if command := _next(document):
        screen.command(command)
    if document["categories"]:
        screen.table(
            "Lost by category (intervals hold for all of them at once)",
            ("", "questions", "lost", "share", "95 % interval"),
            [
                (
                    "(none)" if row["category"] is None else row["category"],
                    str(row["n"]),
                    str(row["losses"]),
                    share(row["losses"] / row["n"]),
                    interval(row["ci95"], 100),
                )
                for row in document["categories"]
            ],
        )
        screen.text("The promise is about all questions together, not about each category.")
    if document["drift"]:
        _drift(screen, document)


def _means(document: Document) -> str:
    if document["verdict"] == "silent" and _moved(document):
        return "these questions decide nothing, and differ from those of calibration (see Drift)"
    return _MEANS[document["verdict"]]


def _next(document: Document) -> str | None:
    """What to do where the policy cannot simply go on; None where it can."""
    if document["verdict"] == "confirmed":
        return None
    if document["verdict"] == "silent" and not _moved(document):
        return f"stopadvisor probe WORKLOAD --like {shell_quote(document['policy'])}"
    return f"stopadvisor assess {shell_quote(document['run'])} --alpha {document['alpha']:g}"


_NAMES = {"lost": "lost", "differs": "different", "drop": "drop"}
"""Of what was counted, by loss."""


def _limits(document: Document) -> list[tuple[str, str]]:
    """Each of several limits by itself."""
    return [
        (
            "limit",
            f"{promise_of(row)}: {row['verdict']} ({counted({**row, 'losses': row['lost']}, '')})",
        )
        for row in document.get("limits", ())
    ]


def _facts(document: Document, *, verbose: bool) -> list[tuple[str, str]]:
    whom = "questions that full thinking gets right" if document["conditional"] else "questions"
    if "groups" in document:
        whom += f" in {document['groups']} groups"
    gained = f" lost and {document['gained']} gained" if "gained" in document else ""
    effect = verified_effect(document)
    rows = [
        ("means", _means(document)),
        (
            _NAMES[loss_name(document)],
            f"{document['losses']} of {document['n']} {whom}{gained}, "
            f"{share(document['risk'])}; the promise allows {promised(document['alpha'])}",
        ),
        *_limits(document),
        *_accuracy(document, effect),
        ("saves", saving_words(effect)),
        ("stack", explained(document["serving"])),
    ]
    if verbose or document["verdict"] == "silent":
        level = share(1 - document["delta"])
        rows += [
            (
                "limits",
                f"lost are at least {share(document['lower'])} and at most "
                f"{share(document['upper'])}, each limit one-sided at {level}",
            ),
            ("power", _power(document)),
        ]
    if document["n_left_out"]:
        met, repeated = document["n_met_before"], document["n_repeated"]
        texts = [
            *([f"{plural(met, 'trace')} of questions that made the policy"] if met else []),
            *([f"{plural(repeated, 'further trace')} of a question"] if repeated else []),
        ]
        rows.append(("left out", ", ".join(texts)))
    return [*rows, BRACKETS]


def _accuracy(document: Document, effect: Effect) -> list[tuple[str, str]]:
    """What becomes of the accuracy, or what stands for right answers where gold is missing."""
    if effect.change is None:
        return [("no gold", "a reply counts as right where it is what full thinking answers")]
    spread = interval(document["accuracy_difference_ci95"], 100)
    change = f"{share(document['full_accuracy'])} -> {share(document['accuracy'])}"
    return [("accuracy", f"{change}, {change_words(effect)} {spread}")]


def _power(document: Document) -> str:
    text = (
        f"so many questions confirm with a probability of "
        f"{probability_words(document['power_to_confirm'])} if {share(document['expected_risk'])} "
        "are lost, as in calibration; "
    )
    if document["detectable_risk"] is None:
        return text + "they are too few to contradict anything"
    return f"{text}they contradict four times in five if {share(document['detectable_risk'])} are"


def _moved(document: Document) -> list[Document]:
    return [row for row in document["drift"] if row["adjusted_p"] < _DRIFTED]


def _drift(screen: Screen, document: Document) -> None:
    moved = _moved(document)
    if not moved:
        screen.title("Drift")
        by = plural(document["n"], "question")
        screen.text(
            f"Questions and answers look as they did in calibration: no feature is shown to have "
            f"moved, by {by} (all tested together at 5 %)."
        )
        return
    screen.table(
        "Features that moved since calibration (all tested together at 5 %)",
        ("feature", "distance (0 to 1)", "adjusted p"),
        [(row["feature"], f"{row['distance']:.3f}", f"{row['adjusted_p']:.4f}") for row in moved],
    )
    screen.text(f"This traffic is not what was calibrated: {_OF_OTHERS[document['verdict']]}")
