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


_FIRST = ("fail", "warn", "pass")
_SAID = {"fail": "FAILED: ", "warn": "warning: ", "pass": "ok: "}


def show_report(report: PreflightReport, screen: Screen) -> None:
    """The verdict, then what was seen of each check and what to do about it."""
    verdicts: dict[str, tuple[str, Tone]] = {
        "pass": ("Ready to probe: budgets, thinking markers and answer cue work", "good"),
        "warn": ("Ready to probe, with warnings: read them first", "doubtful"),
        "fail": ("Not ready to probe: what is measured like this would mislead", "bad"),
    }
    text, tone = verdicts[report.status]
    screen.headline(f"{text} (tried on {plural(report.n_questions, 'question')}).", tone)
    rows: list[tuple[str, str]] = []
    # What has to be read stands first.
    for c in sorted(report.checks, key=lambda check: _FIRST.index(check.status)):
        rows.append((c.name, f"{_SAID[c.status]}{c.detail}"))
        if c.advice:
            rows.append(("  to do", c.advice))
    screen.facts(rows)
    _show_words(report.marker_words, screen)
    if report.cost is not None:
        screen.text(f"Probing takes {report.cost}.")


def _show_words(found: MarkerFindings, screen: Screen) -> None:
    """The words with which sentences begin where the model turns back, if there are any."""
    said = [word for word in found.words if word.sentences]
    if not said:
        return
    screen.table(
        f"Words with which the model turns back, in {plural(found.n_traces, 'trace')}",
        ("word", "", "per 1,000 tokens", "place", "traces without"),
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
        "Sentences that begin with the word; place: the share of the thinking before it, median; "
        "used: probe --schedule marker asks just before it."
    )


def show_cues(cues: CueComparison, own: str, screen: Screen) -> None:
    """The paper's template table: what each cue makes of the same thinking."""
    screen.table(
        f"Cues at the end of thinking, {cues.n_questions} fit questions",
        ("cue", "", "right", "95 % interval", "agree", "probe", "thinking"),
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
        "* in use; right: forced answers at the end of thinking; agree: those that are what the "
        f"model answers by itself, of which {share(cues.natural_accuracy)} are right; probe and "
        "thinking: mean tokens."
    )
    same = min(row.same_traces for row in cues.rows)
    screen.text(
        "Traces were drawn anew for each cue, under the same seeds"
        + (", and are the same." if same == 1 else f"; {share(same)} or more are the same.")
    )
