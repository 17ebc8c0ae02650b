"""What `preflight` prints: the verdict on every check, and the comparison of cues.

Formats finished reports and computes nothing.
"""

from __future__ import annotations

from stopadvisor.collection.cues import CueComparison
from stopadvisor.collection.markers import MarkerFindings
from stopadvisor.collection.preflight import PreflightReport
from stopadvisor.report.text.screen import Screen, Tone
from stopadvisor.report.words import interval, plural, share

__all__ = ["show_cues", "show_report"]


def show_report(report: PreflightReport, screen: Screen) -> None:
    """The verdict, then what was seen of each check and what to do about it."""
    verdicts: dict[str, tuple[str, Tone]] = {
        "pass": ("Preflight passed: budgets, thinking markers and answer cue work", "good"),
        "warn": ("Preflight passed with warnings: read them before you probe", "doubtful"),
        "fail": ("Preflight failed: measuring would mislead", "bad"),
    }
    text, tone = verdicts[report.status]
    screen.headline(f"{text} ({plural(report.n_questions, 'fit question')}).", tone)
    screen.facts(
        (c.name, f"{c.status}: {c.detail}" + (f" -> {c.advice}" if c.advice else ""))
        for c in report.checks
    )
    _show_words(report.marker_words, screen)
    if report.cost is not None:
        screen.text(f"Probing takes {report.cost}.")


def _show_words(found: MarkerFindings, screen: Screen) -> None:
    """The words with which sentences begin where the model turns back, if there are any."""
    said = [word for word in found.words if word.sentences]
    if not said:
        return
    screen.table(
        f"Sentences that begin with a marker, {plural(found.n_traces, 'trace')}",
        ("word", "", "per 1,000", "place", "without"),
        (
            (
                word.text,
                "used" if word.used else "",
                f"{word.per_1000:.1f}",
                share(word.median_place),
                share(word.without),
            )
            for word in said
        ),
        left=2,
    )
    screen.text(
        "per 1,000 thinking tokens; place: median share of the trace before it; without: traces "
        "that hold none; used: --schedule marker probes before it."
    )


def show_cues(cues: CueComparison, own: str, screen: Screen) -> None:
    """The paper's template table: what each cue makes of the same thinking."""
    screen.table(
        f"Cues at the end of thinking, {cues.n_questions} fit questions",
        ("cue", "", "right", "95 %", "agree", "probe", "thinking"),
        (
            (
                f"{row.name} *" if row.cue == own else row.name,
                row.status,
                share(row.forced_accuracy),
                interval(row.ci95, 100),
                share(row.agreement),
                f"{row.mean_probe_tokens:.1f}",
                f"{row.mean_think_tokens:.0f}",
            )
            for row in cues.rows
        ),
        left=2,
    )
    screen.text(
        "* in use; probe and thinking in mean tokens; agree: forced answers that are the natural "
        f"ones, of which {share(cues.natural_accuracy)} are right."
    )
    same = min(row.same_traces for row in cues.rows)
    screen.text(
        "Traces were drawn anew for each cue, under the same seeds"
        + (", and are the same." if same == 1 else f"; {share(same)} or more are the same.")
    )
