"""Sheets of `plan` and `label`: labels needed for a certificate, and what given labels certify."""

from __future__ import annotations

from collections.abc import Sequence

from stopadvisor.assessment.promises import LabelNeed, LabelPlan, LabelRow
from stopadvisor.assessment.recommendation import probability_words
from stopadvisor.certification.labelling import LabelCounts, LabelledRun
from stopadvisor.policy.shown import promised
from stopadvisor.report.sheet import Fact, Section, Sheet
from stopadvisor.report.words import listed, percent, plural, share, shell_quote
from stopadvisor.rules.losses import LOST

__all__ = [
    "label_counts", "label_need_sections", "label_savings", "label_sheet", "more_labels",
    "plan_sheet",
]  # fmt: skip

_PROMISES = {
    "lost": "at most {} are lost",
    "differs": "at most {} of replies differ",
    "drop": "accuracy falls by at most {}",
}


def plan_sheet(plan: LabelPlan, *, saves_nothing: bool = False) -> Sheet:
    """Return the sheet of `plan`; `saves_nothing` as in `plan_labels`."""
    loss = plan.loss or LOST.name
    promise = (
        f"to promise that {_PROMISES[loss].format(promised(plan.alpha))}, "
        f"with confidence {promised(1 - plan.delta)}"
    )
    sections = (
        *label_savings(plan.label_savings or ()),
        *label_need_sections(plan.label_needs or ()),
    )
    if saves_nothing:
        return Sheet("No rule saves anything here, so no number of labels would help.")
    if plan.calibration_labels is None or plan.power_reached is None:
        most = "20,000" if loss == "drop" else "a million"
        too_close = plan.expected_risk < plan.alpha
        why = f"so close to the promise that more than {most} would be needed"
        reason = Section(
            texts=(
                f"{share(plan.expected_risk)} are expected to be lost, "
                f"{why if too_close else 'which must be less than promised'}.",
            )
        )
        return Sheet(f"No number of labels is enough {promise}.", sections=(reason, *sections))
    risk = f"{share(plan.expected_risk + (plan.gained or 0.0))} are lost"
    risk += f" and {share(plan.gained)} gained" if plan.gained else ""
    shares = "/".join(f"{100 * part:g}" for part in plan.split)
    facts: list[Fact] = [
        (
            "of them",
            f"{plural(plan.calibration_labels, 'calibration label')} certify, the others choose "
            f"the rule (split {shares}: fit, calibration, test)",
        ),
        (
            "probability",
            f"{probability_words(plan.power_reached)} that they do, if {risk}; with more "
            f"labels {'hardly ever' if loss == 'drop' else 'never'} below {share(plan.power)}",
        ),
    ]
    if (twice := plan.two_traces_calibration_labels) is not None:
        facts.append(
            (
                "two traces",
                f"{plural(twice, 'calibration label')} would do with two traces of each question "
                "(probe --samples 2), if half of the replies that are lost are lost again",
            )
        )
    facts.append(("counted", "one label per independent question: groups and copies count once"))
    headline = f"About {plan.total_labels} labelled questions are needed {promise}."
    return Sheet(headline, facts=tuple(facts), sections=sections)


def label_savings(rows: Sequence[LabelRow]) -> tuple[Section, ...]:
    """Return the table of savings by number of labels; nothing without rows."""
    if not rows:
        return ()
    return (
        Section(
            "What more labels would buy (forecast of the saving that calibration certifies)",
            ("labels", "of them for calibration", "saving", ""),
            tuple(
                (
                    str(row.labels),
                    str(row.calibration),
                    percent(row.saving_pct),
                    "here" if row.is_here else "",
                )
                for row in rows
            ),
            left=0,
        ),
    )


def label_need_sections(rows: Sequence[LabelNeed]) -> tuple[Section, ...]:
    """Return the table of gold labels for a promise about lost answers; nothing without rows."""
    if not rows:
        return ()
    return (
        Section(
            "What gold labels would buy: a promise about lost answers (simulated calibrations)",
            ("if of the replies that differ", "labels", "saving", "with half of them"),
            tuple(
                (
                    "(promise about replies that differ)"
                    if row.lost_of_differing is None
                    else f"{share(row.lost_of_differing)} are lost",
                    f"about {row.labels}" if row.labels else "0",
                    percent(row.saving_pct),
                    "" if row.half_saving_pct is None else percent(row.half_saving_pct),
                )
                for row in rows
            ),
            (
                "Only a question whose reply differs can be lost, so few labels will do; "
                "`stopadvisor label` asks for them, and with --labels N for a sample. Nobody "
                "knows beforehand which share of those is lost.",
            ),
        ),
    )


def more_labels(labels: LabelCounts) -> str:
    """Say what more labels would buy."""
    if not labels.more_labels:
        return "no further label can change what is certified"
    count = plural(labels.more_labels, "more label")
    return f"about {count}: {labels.more_saving_pp:+.1f} points of saving"


def label_counts(labels: LabelCounts) -> str:
    """Say how many labels there are, and how many of them count as lost."""
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
    text += f"; {' and '.join(lost)} count as lost" if lost else ""
    if labels.neither:
        text += f"; {labels.neither} equal no recorded answer, so they count as not lost"
    return text


def label_sheet(run: LabelledRun, options: str = "") -> Sheet:
    """Return the sheet of `label`; the next command repeats `options`."""
    saving = run.certified_saving_pct
    none = not run.labels.asked + run.labels.workload
    certify = "The run without labels certifies" if none else "These labels certify"
    headline = f"{certify} nothing yet at {share(run.alpha)} lost."
    if saving > 0:
        headline = (
            f"{certify} at most {share(run.alpha)} lost. Fit questions put the saving "
            f"at {percent(saving)}."
        )
    facts: list[Fact] = [("labels", label_counts(run.labels))]
    if len(run.labellers) > 1:
        counts = ", ".join(f"{name or 'unnamed'} {n}" for name, n in run.labellers.items())
        facts.append(("labellers", counts))
    if run.disagreements:
        facts.append(("two answers", listed(run.disagreements)))
    counted = f"{run.n} calibration questions, labelled or not"
    if run.sampled is not None:
        counted = (
            f"{run.n} calibration questions; of the replies that differ the first {run.sampled} "
            "labelled, in an order fixed beforehand"
        )
    facts += [("more", more_labels(run.labels)), ("counted", counted), ("file", str(run.file))]
    if saving > 0:
        text = "`calibrate` measures it again, on questions that did not choose the rule"
        facts.append(("saving", text))
    asked = f"{shell_quote(run.run)} --alpha {run.alpha:g}{options and ' '}{options}"
    command = f"stopadvisor calibrate {asked} --loss lost"
    if run.exported is not None:
        exported = "nothing: no question is left to ask"
        if run.n_exported:
            exported = f"{plural(run.n_exported, 'question')} to {run.exported}; fill in gold"
            command = f"stopadvisor label {asked} --import {shell_quote(run.exported)}"
        facts.append(("exported", exported))
    return Sheet(headline, "good" if saving > 0 else "doubtful", tuple(facts), command)
