"""Labelling for people: a question with its answers, how far the labels carry, and what is left.

Formats, and reads no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from stopadvisor.report.documents.label import LabelDocument
from stopadvisor.report.documents.parts import LabelFields
from stopadvisor.report.screen import Screen
from stopadvisor.report.words import listed, percent, plural, share, shell_quote

__all__ = ["KEYS", "label_counts", "more_labels", "show_labels", "show_question"]

KEYS = "n neither, c cannot tell, u undo, q quit"


def show_question(
    screen: Screen, title: str, question: str, answers: Sequence[str], progress: str
) -> None:
    """Print one question with a key for each of its answers."""
    screen.title(title)
    screen.text(question)
    screen.facts((f"[{key}]", answer) for key, answer in enumerate(answers, start=1))
    screen.text(progress)
    screen.text(KEYS)


def more_labels(labels: LabelFields) -> str:
    """What more labels would buy."""
    count, points = labels["more_labels"], labels["more_saving_pp"]
    if not count:
        return "no further label can change what is certified"
    return f"about {plural(count, 'more label')}: {points:+.1f} points of saving"


def label_counts(labels: LabelFields) -> str:
    """How many labels there are, and what became of them."""
    found = f"{labels['used']} used of {labels['asked']} asked for"
    if labels["workload"]:
        found += f", and {labels['workload']} that came with the workload"
    lost = [
        f"{n} {what}"
        for n, what in (
            (labels["cannot_tell"], "nobody could tell"),
            (labels["disagreeing"], "with two answers"),
        )
        if n
    ]
    return found + (f"; {' and '.join(lost)} count as lost" if lost else "")


def show_labels(document: LabelDocument, out: TextIO) -> None:
    """Print what there is, and what to do next."""
    screen, labels = Screen(out), document["labels"]
    saving, alpha = document["certified_saving_pct"], document["alpha"]
    screen.headline(
        f"These labels certify at most {share(alpha)} lost. Fit questions put the saving at "
        f"{percent(saving)}."
        if saving > 0
        else f"These labels certify nothing yet at {share(alpha)} lost.",
        "good" if saving > 0 else "doubtful",
    )
    rows = [
        ("labels", label_counts(labels)),
        ("more", more_labels(labels)),
        ("counted", f"{document['n']} calibration questions, labelled or not"),
        ("file", document["file"]),
    ]
    if len(document["labellers"]) > 1:
        each = ", ".join(f"{name or 'unnamed'} {n}" for name, n in document["labellers"].items())
        rows.insert(1, ("labellers", each))
    if document["disagreements"]:
        rows.insert(2, ("two answers", listed(document["disagreements"])))
    if saving > 0:
        text = "`calibrate` measures it afresh, on questions that did not choose the rule"
        rows.append(("saving", text))
    exported = document["n_exported"] or 0
    if document["exported"] is not None:
        to = f"{plural(exported, 'question')} to {document['exported']}; fill in gold"
        rows.append(("exported", to if exported else "nothing: no question is left to ask"))
    screen.facts(rows)
    asked = f"{shell_quote(document['run'])} --alpha {alpha:g}"
    if exported:
        file = shell_quote(str(document["exported"]))
        screen.command(f"stopadvisor label {asked} --import {file}")
    else:
        screen.command(f"stopadvisor calibrate {asked} --loss lost")
