"""A verification for people: the verdict, the figures behind it, then categories and drift.

Reads the document that `verify --json` prints, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from stopadvisor.assessment.recommendation import probability_words
from stopadvisor.report.text.screen import Screen, Tone
from stopadvisor.report.words import interval, percent, plural, share

__all__ = ["show_verification"]

Document = Mapping[str, Any]

_DRIFTED = 0.05
_SAID: dict[str, tuple[str, Tone]] = {
    "confirmed": ("Confirmed: fresh questions alone certify the risk.", "good"),
    "contradicted": ("Contradicted: the risk is above alpha. Stop using this policy.", "bad"),
    "silent": (
        "Silent: fresh questions neither confirm nor contradict the certificate.",
        "doubtful",
    ),
}


def show_verification(document: Document, out: TextIO) -> None:
    """Print what `verify` found."""
    screen = Screen(out)
    screen.headline(*_SAID[document["verdict"]])
    screen.facts(_facts(document))
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
        screen.text(
            "The certificate is marginal: it is about all questions together, not about each "
            "category."
        )
    if document["drift"]:
        _drift(screen, document)


def _facts(document: Document) -> list[tuple[str, str]]:
    level = share(1 - document["delta"])
    whom = "questions that full thinking gets right" if document["conditional"] else "questions"
    if "groups" in document:
        whom += f" in {document['groups']} groups"
    rows = [
        (
            "lost",
            f"{document['losses']} of {document['n']} {whom}, {share(document['risk'])}; alpha is "
            f"{share(document['alpha'])}",
        ),
        (
            "risk",
            f"at least {share(document['lower'])} and at most {share(document['upper'])}, each "
            f"limit one-sided at {level}",
        ),
        ("power", _power(document)),
        (
            "accuracy",
            f"{share(document['full_accuracy'])} -> {share(document['accuracy'])}, difference "
            f"{100 * document['accuracy_difference']:+.1f} pp "
            f"{interval(document['accuracy_difference_ci95'], 100)}",
        ),
        (
            "saves",
            f"{percent(document['total_saving_pct'])} {interval(document['total_saving_ci95'])} "
            f"of the cost under {document['serving']} ({document['unit']}), "
            f"{percent(document['think_saving_pct'])} of the thinking",
        ),
    ]
    if document["n_left_out"]:
        met, repeated = document["n_met_before"], document["n_repeated"]
        texts = [
            *([f"{plural(met, 'trace')} of questions that made the policy"] if met else []),
            *([f"{plural(repeated, 'further trace')} of a question"] if repeated else []),
        ]
        rows.append(("left out", ", ".join(texts)))
    return rows


def _power(document: Document) -> str:
    text = (
        f"chance {probability_words(document['power_to_confirm'])} to confirm, if the risk is what "
        f"the policy expects, {share(document['expected_risk'])}; "
    )
    if document["detectable_risk"] is None:
        return text + "too few questions to contradict any risk"
    return (
        text + f"a risk of {share(document['detectable_risk'])} would be contradicted four times "
        "in five"
    )


def _drift(screen: Screen, document: Document) -> None:
    moved = [row for row in document["drift"] if row["adjusted_p"] < _DRIFTED]
    if not moved:
        screen.title("Drift")
        by = plural(document["n"], "question")
        screen.text(
            f"No feature is shown to have moved since calibration, by {by} (Holm over all of them, "
            "5 %)."
        )
        return
    screen.table(
        "Features that moved since calibration (Holm over all of them, 5 %)",
        ("feature", "distance", "adjusted p"),
        [(row["feature"], f"{row['distance']:.3f}", f"{row['adjusted_p']:.4f}") for row in moved],
    )
