"""The sheet of `label`: how far the labels carry, and what is left to do."""

from __future__ import annotations

from stopadvisor.certification.labelling import LabelCounts, LabelledRun
from stopadvisor.report.sheet import Fact, Sheet
from stopadvisor.report.words import listed, percent, plural, share, shell_quote

__all__ = ["label_counts", "label_sheet", "more_labels"]


def more_labels(labels: LabelCounts) -> str:
    """Return what more labels would buy."""
    if not labels.more_labels:
        return "no further label can change what is certified"
    count = plural(labels.more_labels, "more label")
    return f"about {count}: {labels.more_saving_pp:+.1f} points of saving"


def label_counts(labels: LabelCounts) -> str:
    """Return how many labels there are, and what became of them."""
    text = f"{labels.used} used of {labels.asked} asked for"
    if labels.workload:
        text += f", and {labels.workload} that came with the workload"
    lost = [
        f"{n} {what}"
        for n, what in (
            (labels.cannot_tell, "nobody could tell"),
            (labels.disagreeing, "with two answers"),
        )
        if n
    ]
    return text + (f"; {' and '.join(lost)} count as lost" if lost else "")


def label_sheet(run: LabelledRun) -> Sheet:
    """Return what there is, and what to do next."""
    saving = run.certified_saving_pct
    headline = f"These labels certify nothing yet at {share(run.alpha)} lost."
    if saving > 0:
        headline = (
            f"These labels certify at most {share(run.alpha)} lost. Fit questions put the saving "
            f"at {percent(saving)}."
        )
    facts: list[Fact] = [("labels", label_counts(run.labels))]
    if len(run.labellers) > 1:
        counts = ", ".join(f"{name or 'unnamed'} {n}" for name, n in run.labellers.items())
        facts.append(("labellers", counts))
    if run.disagreements:
        facts.append(("two answers", listed(run.disagreements)))
    facts += [
        ("more", more_labels(run.labels)),
        ("counted", f"{run.n} calibration questions, labelled or not"),
        ("file", str(run.file)),
    ]
    if saving > 0:
        text = "`calibrate` measures it again, on questions that did not choose the rule"
        facts.append(("saving", text))
    asked = f"{shell_quote(run.run)} --alpha {run.alpha:g}"
    command = f"stopadvisor calibrate {asked} --loss lost"
    if run.exported is not None:
        exported = "nothing: no question is left to ask"
        if run.n_exported:
            exported = f"{plural(run.n_exported, 'question')} to {run.exported}; fill in gold"
            command = f"stopadvisor label {asked} --import {shell_quote(run.exported)}"
        facts.append(("exported", exported))
    return Sheet(headline, "good" if saving > 0 else "doubtful", tuple(facts), command)
