"""A verification for people: the verdict, the figures behind it, then categories and drift.

Reads the document that `verify --json` prints, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from stopadvisor.cli.screen import Screen, interval, percent, share

__all__ = ["show_verification"]

Document = Mapping[str, Any]

_DRIFTED = 0.05
_SAID = {
    "confirmed": "Confirmed: fresh questions alone certify the risk.",
    "contradicted": "Contradicted: the risk is above alpha. Stop using this policy.",
    "silent": "Silent: fresh questions neither confirm nor contradict the certificate.",
}


def show_verification(document: Document, out: TextIO) -> None:
    """Print what `verify` found."""
    screen = Screen(out)
    screen.headline(_SAID[document["verdict"]])
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
    rows = [
        (
            "lost",
            f"{document['losses']} of {document['n']} {whom}, {share(document['risk'])}; alpha is "
            f"{share(document['alpha'])}",
        ),
        (
            "limits",
            f"{share(document['lower'])} and {share(document['upper'])}, each one-sided at {level}",
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
        rows.append(
            (
                "left out",
                f"{document['n_met_before']} traces of questions that fitted or calibrated the "
                f"policy, {document['n_repeated']} further traces of a question",
            )
        )
    return rows


def _power(document: Document) -> str:
    text = (
        f"{share(document['power_to_confirm'])} to confirm at the risk the policy expects, "
        f"{share(document['expected_risk'])}; "
    )
    if document["detectable_risk"] is None:
        return text + "too few questions to contradict any risk"
    return text + f"four in five to contradict a risk of {share(document['detectable_risk'])}"


def _drift(screen: Screen, document: Document) -> None:
    moved = [row for row in document["drift"] if row["adjusted_p"] < _DRIFTED]
    if not moved:
        screen.title("Drift")
        screen.text("No feature has moved since calibration (Holm over all of them, 5 %).")
        return
    screen.table(
        "Features that moved since calibration (Holm over all of them, 5 %)",
        ("feature", "distance", "adjusted p"),
        [(row["feature"], f"{row['distance']:.3f}", f"{row['adjusted_p']:.4f}") for row in moved],
    )
