"""The sheet of `preflight`: the verdict on every check, and the comparison of cues."""

from __future__ import annotations

from stopadvisor.collection.cues import CueComparison
from stopadvisor.collection.markers import MarkerFindings
from stopadvisor.collection.model_checks import PreflightReport
from stopadvisor.report.sheet import Fact, Section, Sheet, Tone
from stopadvisor.report.words import bracketed, plural, share

__all__ = ["preflight_sheet"]

_FIRST = ("fail", "warn", "pass")
_LABEL = {"fail": "FAILED: ", "warn": "warning: ", "pass": "ok: "}
_VERDICTS: dict[str, tuple[str, Tone]] = {
    "pass": ("Ready to probe: budgets, thinking markers and answer cue work", "good"),
    "warn": ("Ready to probe, with warnings: read them first", "doubtful"),
    "fail": ("Not ready to probe: results measured like this would mislead", "bad"),
}


def preflight_sheet(report: PreflightReport, cue: str) -> Sheet:
    """Return the verdict, what was seen of each check, and what to do about it.

    Parameters
    ----------
    cue : str
        The cue in use, which the comparison of cues marks.
    """
    text, tone = _VERDICTS[report.status]
    facts: list[Fact] = []
    # What has to be read comes first.
    for check in sorted(report.checks, key=lambda check: _FIRST.index(check.status)):
        facts.append((check.name, f"{_LABEL[check.status]}{check.detail}"))
        if check.advice:
            facts.append(("  to do", check.advice))
    cost = () if report.cost is None else (Section(texts=(f"Probing takes {report.cost}.",)),)
    return Sheet(
        f"{text} (tried on {plural(report.n_questions, 'question')}).",
        tone,
        tuple(facts),
        sections=(
            *_words(report.marker_words),
            *cost,
            *(() if report.cues is None else (_cues(report.cues, cue),)),
        ),
    )


def _words(markers: MarkerFindings) -> tuple[Section, ...]:
    """The words that begin sentences where the model turns back, if there are any."""
    seen = [word for word in markers.words if word.sentences]
    if not seen:
        return ()
    return (
        Section(
            f"Words with which the model turns back, in {plural(markers.n_traces, 'trace')}",
            ("word", "", "per 1,000 tokens", "place", "traces without"),
            tuple(
                (
                    word.text,
                    "used" if word.used else "",
                    f"{word.per_1000:.1f}",
                    share(word.median_place),
                    share(word.without),
                )
                for word in seen
            ),
            (
                "Sentences that begin with the word; place: the share of the thinking before it, "
                "median; used: probe --schedule marker asks just before it.",
            ),
            left=2,
        ),
    )


def _cues(cues: CueComparison, used: str) -> Section:
    """The paper's template table: what each cue makes of the same thinking."""
    same = min(row.same_traces for row in cues.rows)
    drawn = ", and are the same." if same == 1 else f"; {share(same)} or more are the same."
    return Section(
        f"Cues at the end of thinking, {cues.n_questions} fit questions",
        ("cue", "", "right", "95 % interval", "agree", "probe", "thinking"),
        tuple(
            (
                f"{row.name} *" if row.cue == used else row.name,
                row.status,
                share(row.forced_accuracy),
                bracketed(row.ci95, 100),
                share(row.agreement),
                f"{row.mean_probe_tokens:.1f}",
                f"{row.mean_think_tokens:.0f}",
            )
            for row in cues.rows
        ),
        (
            "* in use; right: forced answers at the end of thinking; agree: those that equal the "
            f"model's own answers, of which {share(cues.natural_accuracy)} are right; probe and "
            "thinking: mean tokens.",
            f"Traces were drawn again for each cue, under the same seeds{drawn}",
        ),
        left=2,
    )
