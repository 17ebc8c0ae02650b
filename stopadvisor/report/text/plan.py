"""A plan for people: the labels that a certificate takes, and the probability they give.

Reads the document that `plan --json` prints, so that both say the same.
"""

from __future__ import annotations

from typing import TextIO

from stopadvisor.assessment.recommendation import probability_words
from stopadvisor.policy.promises import loss_name, promised
from stopadvisor.report.documents.plan import PlanDocument
from stopadvisor.report.screen import Screen
from stopadvisor.report.text.assess import show_label_needs, show_label_savings
from stopadvisor.report.words import plural, share

__all__ = ["show_plan"]


_PROMISES = {
    "lost": "at most {} are lost",
    "differs": "at most {} of replies differ",
    "drop": "accuracy falls by at most {}",
}


def _expected(document: PlanDocument) -> str:
    """The share lost; of a drop with what is gained."""
    text = share(document["expected_risk"])
    if "expected_gain" not in document:
        return text
    return f"{text}, less {share(document['expected_gain'])} gained,"


def show_plan(document: PlanDocument, out: TextIO) -> None:
    """Print the plan."""
    screen = Screen(out)
    risk = document["expected_risk"]
    promise = (
        f"to promise that {_PROMISES[loss_name(document)].format(promised(document['alpha']))}, "
        f"with confidence {promised(1 - document['delta'])}"
    )
    if document["calibration_labels"] is None:
        screen.headline(f"No number of labels is enough {promise}.")
        screen.text(
            f"{_expected(document)} are expected to be lost, which must be less than that."
            if risk - document.get("expected_gain", 0.0) >= document["alpha"]
            else f"{_expected(document)} are expected to be lost, so close to it that more than "
            f"{'20,000' if loss_name(document) == 'drop' else 'a million'} would be needed."
        )
        show_label_savings(screen, document.get("label_savings", []))
        show_label_needs(screen, document.get("label_needs", []))
        return
    screen.headline(f"About {document['total_labels']} labelled questions are needed {promise}.")
    shares = "/".join(f"{100 * part:g}" for part in document["split"])
    reached = document["power_reached"]
    assert reached is not None  # where there is a number
    rows = [
        (
            "of them",
            f"{plural(document['calibration_labels'], 'calibration label')} certify, the others "
            f"choose the rule (split {shares}: fit, calibration, test)",
        ),
        (
            "probability",
            f"{probability_words(reached)} that they do, if {_expected(document)} are lost; with "
            f"more labels never below {share(document['power'])}",
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
    show_label_needs(screen, document.get("label_needs", []))
