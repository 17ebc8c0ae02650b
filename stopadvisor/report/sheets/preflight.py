"""The sheet of `preflight`: the verdict on every check."""

from __future__ import annotations

from stopadvisor.collection.markers import MarkerFindings
from stopadvisor.collection.model_checks import PreflightReport
from stopadvisor.report.sheet import Fact, Section, Sheet, Tone
from stopadvisor.report.words import plural, share

__all__ = ["preflight_sheet"]

_FIRST = ("fail", "warn", "pass")
_LABEL = {"fail": "FAILED: ", "warn": "warning: ", "pass": "ok: "}
_VERDICTS: dict[str, tuple[str, Tone]] = {
    "pass": ("Ready to probe: thinking markers and answer cue work", "good"),
    "warn": ("Ready to probe, with warnings: read them first", "doubtful"),
    "fail": ("Not ready to probe: results measured like this would mislead", "bad"),
}


def preflight_sheet(report: PreflightReport) -> Sheet:
    """Return the verdict, what was seen of each check, and what to do about it."""
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
        sections=(*_words(report.marker_words), *cost),
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
