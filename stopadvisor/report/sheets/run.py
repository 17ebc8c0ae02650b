"""The sheet of `run`: the answers, and what stopping changed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from stopadvisor.policy.shown import promised
from stopadvisor.report.headline import change_words, run_effect, run_headline
from stopadvisor.report.sheet import Fact, Section, Sheet
from stopadvisor.report.words import (
    BRACKETS,
    COMMON_STACK,
    bracketed,
    explained,
    percent,
    plural,
    share,
    shell_quote,
)
from stopadvisor.serving.answer_summary import AnswerSummary, FullComparison, TimedComparison

__all__ = ["run_sheet"]

_SERVING = {
    None: f"this machine, by {explained('kv-fork')}",
    "resume": "a server; thinking was resumed after each probe, which reads it from the prefix "
    "cache where the server keeps one",
}
"""What answered and how it probed, by `serving`."""


def run_sheet(summary: AnswerSummary, *, given: str = "", server: Sequence[str] = ()) -> Sheet:
    """Return the sheet.

    Parameters
    ----------
    given : str
        Options of this call that the next command must repeat.
    server : sequence of str
        Arguments of `serve` after the policy; by default the model, for vLLM to start.  Empty if
        the gateway cannot serve the ladder, because the model of a rung runs here.
    """
    command, footnote = None, ""
    policy, workload = map(shell_quote, (summary.policy, summary.workload))
    if summary.kind == "stop" and summary.full is None:
        # Another file: questions answered in `out` would not be asked again with full thinking.
        out = Path(summary.out)
        compared = shell_quote(out.with_stem(f"{out.stem}-compared"))
        command = f"stopadvisor run {policy} {workload} --compare-full --out {compared} {given}"
        command = command.rstrip()
    elif summary.kind == "stop" and (summary.server_saving_pct or 0) < 0:
        footnote = (
            "Do not serve it as it is: by its own figures this policy costs "
            f"{percent(-(summary.server_saving_pct or 0))} more than full thinking on vLLM's "
            f"prefix cache. Assess with `--serving {COMMON_STACK}` for that stack."
        )
    elif summary.kind == "stop" and (server or summary.climbed is None):
        command = (
            f"stopadvisor serve {policy} --shadow {shlex.join(server or ('--', summary.model))}"
        )
    sections = []
    if summary.climbed is not None:
        names = ("rung", "asked", "answered", "share", "down")
        rows = [
            (r.name, str(r.asked), str(r.served), share(r.share), str(r.down))
            for r in summary.climbed.rungs
        ]
        sections.append(Section("Rungs, in the order of climbing", names, tuple(rows)))
    if summary.full is not None:
        whom = "full thinking" if summary.climbed is None else "the reference alone"
        against = tuple(_against_full(summary, summary.full))
        sections.append(Section(f"Against {whom}, in the same run", rows=against))
    return Sheet(
        run_headline(summary),
        facts=tuple(_facts(summary)),
        command=command,
        sections=tuple(sections),
        footnote=footnote,
    )


def _facts(summary: AnswerSummary) -> Iterator[Fact]:
    mean = summary.mean_tokens
    if summary.questions:
        if summary.full is not None and summary.kind == "stop":
            count = plural(summary.questions, "question")
            yield "answered", f"{count}, {share(summary.stopped_share)} of them stopped early"
        yield (
            "tokens",
            f"{mean.visible:.1f} of the reply and {mean.probe:.1f} of replies climbed past, per "
            "question"
            if summary.climbed is not None
            else f"{mean.think:.1f} thinking, {mean.probe:.1f} probing and "
            f"{mean.visible:.1f} visible answer per question",
        )
    if summary.new:
        yield "time", f"{summary.seconds:.1f} s for {plural(summary.new, 'new question')}"
    else:
        yield "new", "none: all of them were answered before"
    if (climbed := summary.climbed) is not None:
        text = f"{climbed.price:.4g} per question, replies climbed past included"
        if climbed.price_saving_pct is not None:
            saved = _saved(climbed.price_saving_pct, "less")
            text += f"; {saved} than the reference alone ({climbed.full_price:.4g})"
        yield "price", text
        if climbed.gave_up:
            count = plural(climbed.gave_up, "question")
            yield "gave up", f"{count}, {share(climbed.gave_up / summary.questions)} of all"
    elif summary.kind == "stop":
        yield "stack", _SERVING[summary.serving]
    if summary.labelled:
        yield "accuracy", f"{share(summary.accuracy)} of {summary.labelled} with gold"
    if not summary.certified and summary.kind == "stop":
        yield "promise", "none: the certificate does not cover these answers"
    yield "answers", summary.out


def _against_full(summary: AnswerSummary, full: TimedComparison) -> Iterator[Fact]:
    climbs = summary.climbed is not None  # tokens of several models do not add up
    if not climbs:
        yield (
            "tokens",
            f"{_saved(full.token_saving_pct, 'fewer')} decoded, probes included; "
            f"{_saved(full.think_saving_pct, 'fewer')} of thinking",
        )
    if summary.certified and not climbs:
        yield (
            "measure",
            "decoded tokens; the saving that `calibrate` states counts prompts and what probes "
            "read too, at the costs of its stack",
        )
    if full.time_saving_pct is not None:
        yield (
            "time",
            f"{_saved(full.time_saving_pct, 'less')}: {full.seconds:.1f} s instead of "
            f"{full.full_seconds:.1f} s for {plural(full.timed_questions, 'question')}",
        )
    promise = ""
    if summary.certified and summary.alpha is not None:
        promise = f"; the promise is at most {promised(summary.alpha)}"
    if summary.loss == "differs" or not full.labelled:
        yield (
            "differs",
            f"{share(full.differing_share)} {bracketed(full.differing_ci95, 100)} of "
            f"{full.questions} questions got a reply other than full thinking's"
            f"{promise if summary.loss == 'differs' else ''}",
        )
    if full.labelled:
        change = change_words(run_effect(full))
        text = f"{share(full.full_accuracy)} -> {share(full.accuracy)}, {change}"
        yield "accuracy", text
        promise *= summary.loss != "differs"
        what = (
            "by the reference, wrong as served"
            if climbs
            else "with full thinking, wrong when stopped"
        )
        yield "lost", f"{_lost(full)}: right {what}{promise}"
    unmet = full.unmet
    if unmet.labelled and unmet.labelled != full.labelled:
        yield "of new", f"{_lost(unmet)} that had no part in choosing or certifying the policy"
    yield BRACKETS


def _saved(saving: float | None, word: str) -> str:
    if saving is None:
        return "-"
    return f"{percent(saving)} {word}" if saving >= 0 else f"{percent(-saving)} more"


def _lost(figures: FullComparison) -> str:
    return (
        f"{share(figures.risk)} {bracketed(figures.risk_ci95, 100)} of {figures.labelled} questions"
    )
