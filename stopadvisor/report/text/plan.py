"""A plan for people: the labels that a certificate takes, and the chance they give.

Reads the document that `plan --json` prints, so that both say the same.
"""

from __future__ import annotations

from typing import TextIO

from stopadvisor.assessment.recommendation import probability_words
from stopadvisor.report.documents.plan import PlanDocument
from stopadvisor.report.text.assess import show_label_savings
from stopadvisor.report.text.screen import Screen
from stopadvisor.report.words import plural, share

__all__ = ["show_plan"]


def show_plan(document: PlanDocument, out: TextIO) -> None:
    """Print the plan."""
    screen = Screen(out)
    risk = document["expected_risk"]
    promise = f"alpha = {document['alpha']:g} at confidence {1 - document['delta']:g}"
    if document["calibration_labels"] is None:
        screen.headline(f"No number of labels is planned for {promise}.")
        screen.text(
            f"The expected risk, {risk:g}, must lie below alpha."
            if risk >= document["alpha"]
            else f"An expected risk of {risk:g} is so close to alpha that it would take more than "
            "a million."
        )
        show_label_savings(screen, document.get("label_savings", []))
        return
    screen.headline(f"{plural(document['calibration_labels'], 'calibration label')} for {promise}.")
    shares = "/".join(f"{100 * part:g}" for part in document["split"])
    reached = document["power_reached"]
    assert reached is not None  # where there is a number
    rows = [
        ("in all", f"about {document['total_labels']} labelled questions (split {shares})"),
        (
            "chance",
            f"{probability_words(reached)} to certify, if the risk is {risk:g}; with more labels "
            f"never below {share(document['power'])}",
        ),
    ]
    if document["chains"] > 1:
        rows.append(
            (
                "one rule",
                f"{document['one_chain_calibration_labels']} where learned or scalar rules are "
                "tested alone (calibrate --families)",
            )
        )
    rows.append(("counted", "one label per independent question: groups and copies count once"))
    screen.facts(rows)
    show_label_savings(screen, document.get("label_savings", []))
