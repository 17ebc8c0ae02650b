"""Sheets of `preflight` and of commands that write files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from stopadvisor.collection.model_checks import Preflight, PreflightReport
from stopadvisor.collection.probe_settings import ProbeSummary
from stopadvisor.policy.run_policies import Promotion
from stopadvisor.policy.shown import promised
from stopadvisor.report.saved import WrittenPage
from stopadvisor.report.sheet import Fact, Section, Sheet, Tone
from stopadvisor.report.words import listed, percent, plural, share, shell_quote
from stopadvisor.rules.serving_profile import ServingProfile
from stopadvisor.runs.imported import (
    ImportedDataset,
    ImportedLog,
    ImportedProbes,
    ImportedReplies,
    ImportedRun,
)
from stopadvisor.runs.replies import RungReplies
from stopadvisor.runs.samples import Samples

__all__ = [
    "import_dataset_sheet", "import_log_sheet", "import_probes_sheet", "import_replies_sheet",
    "preflight_sheet", "probe_sheet", "profile_serving_sheet", "promote_sheet", "report_sheet",
    "samples_sheet",
]  # fmt: skip


def samples_sheet(samples: Samples) -> Sheet:
    """Return the sheet of `samples`."""
    workloads = [str(path) for path in samples.workloads]
    words = ("assess", workloads[0], "--model", str(samples.model))
    return Sheet(
        f"Written to {samples.out}: a tiny model, and workloads for it.",
        facts=(("model", str(samples.model)), ("workloads", ", ".join(workloads))),
        command=" ".join(("stopadvisor", *map(shell_quote, words))),
    )


def import_dataset_sheet(dataset: ImportedDataset) -> Sheet:
    """Return the sheet of `import dataset`."""
    return Sheet(
        f"{plural(dataset.n_questions, 'question')} of {dataset.benchmark}, task {dataset.task}.",
        facts=(
            _asking(f"preflight {shell_quote(dataset.out)}"),
            ("written to", str(dataset.out)),
            ("drawn from", f"{dataset.available} of {dataset.source}, split {dataset.split}"),
            ("seed", str(dataset.seed)),
        ),
    )


def import_log_sheet(log: ImportedLog) -> Sheet:
    """Return the sheet of an imported log."""
    n, gold, traces = log.n_questions, log.n_gold, log.n_traces
    cut = f", {log.n_cut} of them cut" if log.n_cut else ""
    without = log.n_without_thinking
    rest = f"; {without} without their thinking" if without else ""
    where = shell_quote(log.out)
    all_traced = traces and not (without or log.n_untraced)
    return Sheet(
        f"{plural(n, 'question')}, {plural(traces, 'recorded trace')}.",
        facts=(
            _asking(f"assess {where}" + f" --traces {where}" * bool(all_traced)),
            ("written to", str(log.out)),
            ("read from", listed([str(source) for source in log.sources])),
            ("gold", "none" if not gold else f"all {n}" if gold == n else f"{gold} of {n}"),
            ("task", ", ".join(f"{task} {count}" for task, count in log.tasks.items())),
            ("traces", f"{traces}{cut}{rest}"),
        ),
    )


def _asking(words: str) -> Fact:
    """Return the next step in words: without the model it is not a command to copy."""
    return "next", f"stopadvisor {words}, with --model and your model's name or folder"


def import_probes_sheet(probes: ImportedProbes, grader: str | None = None) -> Sheet:
    """Return the sheet of `import probes`; without a named grader, gold decided."""
    answers = plural(probes.n_probes, "forced answer")
    places = "each question's own positions"
    if probes.budgets is not None:
        places = f"{listed(probes.budgets)} tokens"
    return Sheet(
        f"{plural(probes.n_questions, 'question')}, {answers}.",
        facts=(
            ("written to", str(probes.run)),
            ("read from", str(probes.source)),
            ("probed at", places),
            (
                "traces",
                f"{probes.n_traces}, {probes.n_truncated} of them cut; at most "
                f"{probes.max_think} tokens",
            ),
            ("graded", _graded(probes, probes.n_traces, "trace", grader or "gold")),
            ("model", probes.model or "none: a policy is bound to no model"),
        ),
        command=f"stopadvisor assess {shell_quote(probes.run)}",
    )


def import_replies_sheet(replies: ImportedReplies) -> Sheet:
    """Return the sheet of `import replies`."""
    return Sheet(
        f"{plural(replies.n_questions, 'question')}, {plural(len(replies.rungs), 'rung')}; the "
        f"reference is {replies.rungs[-1].name}.",
        facts=(
            ("written to", str(replies.run)),
            ("read from", str(replies.source)),
            ("graded", _graded(replies, replies.n_questions, "question")),
        ),
        sections=(_rungs(replies.rungs),),
        command=f"stopadvisor assess {shell_quote(replies.run)}",
    )


def _rungs(rungs: Sequence[RungReplies]) -> Section:
    names: tuple[str, ...] = ("rung", "replies", "cut", "right", "tokens")
    rows: list[tuple[str, ...]] = [
        (r.name, str(r.replies), str(r.cut), share(r.accuracy), f"{r.mean_tokens:.0f}")
        for r in rungs
    ]
    if all(r.accuracy is None for r in rungs):
        names, rows = (*names[:3], "tokens"), [(*row[:3], row[-1]) for row in rows]
    return Section("Rungs, in the order of climbing", names, tuple(rows))


def _graded(run: ImportedRun, lines: int, noun: str, by: str = "gold") -> str:
    ungraded = run.n_ungraded
    if ungraded == lines:
        return "none: a reply will count as right if it agrees with full thinking"
    text = plural(run.n_graded, "label") + f" by {by}, the others as recorded"
    return f"{text}; {plural(ungraded, noun)} with neither" if ungraded else text


_FIRST = ("fail", "warn", "pass")
_LABEL = {"fail": "FAILED: ", "warn": "warning: ", "pass": "ok: "}
_VERDICTS: dict[str, tuple[str, Tone]] = {
    "pass": ("Ready to probe: thinking markers and answer cue work", "good"),
    "warn": ("Ready to probe, with warnings: read them first", "doubtful"),
    "fail": ("Not ready to probe: results measured like this would mislead", "bad"),
}
_VERDICTS_ON_RUNGS: dict[str, tuple[str, Tone]] = {
    "pass": ("Ready to record: every rung answers", "good"),
    "warn": ("Ready to record, with warnings: read them first", "doubtful"),
    "fail": ("Not ready to record: a rung does not answer", "bad"),
}


def preflight_sheet(report: Preflight) -> Sheet:
    """Return the sheet of `preflight`: the verdict, then the checks, failures first."""
    verdicts = _VERDICTS if isinstance(report, PreflightReport) else _VERDICTS_ON_RUNGS
    text, tone = verdicts[report.status]
    facts: list[Fact] = []
    for check in sorted(report.checks, key=lambda check: _FIRST.index(check.status)):
        facts.append((check.name, f"{_LABEL[check.status]}{check.detail}"))
        if check.advice:
            facts.append(("  to do", check.advice))
    headline = f"{text} (tried on {plural(report.n_questions, 'question')})."
    sections = tuple(_thinking(report)) if isinstance(report, PreflightReport) else ()
    return Sheet(headline, tone, tuple(facts), sections=sections)


def _thinking(report: PreflightReport) -> Iterator[Section]:
    """Yield the words with which the model turns back, and what probing takes."""
    markers = report.marker_words
    if rows := [
        (
            word.text,
            "used" if word.used else "",
            f"{word.per_1000:.1f}",
            share(word.median_place),
            share(word.without),
        )
        for word in markers.words
        if word.sentences
    ]:
        yield Section(
            f"Words with which the model turns back, in {plural(markers.n_traces, 'trace')}",
            ("word", "", "per 1,000 tokens", "place", "traces without"),
            tuple(rows),
            (
                "Sentences that begin with the word; place: the share of the thinking before "
                "it, median; used: probe --schedule marker asks just before it.",
            ),
            left=2,
        )
    if report.cost is not None:
        yield Section(texts=(f"Probing takes {report.cost}.",))


def probe_sheet(summary: ProbeSummary) -> Sheet:
    """Return the sheet of `probe`."""
    split, n = summary.split, plural(summary.questions, "question")
    facts = [
        ("run", str(summary.run)),
        (
            "parts",
            f"{split.fit} fit, {split.calibration} calibration, {split.test} test: fit chooses a "
            "rule, calibration certifies it, test checks it",
        ),
    ]
    if summary.rungs:
        title = f"Replies of every rung to {n}, {summary.new} of them now."
        return Sheet(title, facts=tuple(facts), sections=(_rungs(summary.rungs),))
    several = "" if summary.traces == summary.questions else f" in {summary.traces} traces"
    places = f"{listed(summary.budgets)} thinking tokens" if summary.budgets else ""
    if summary.every is not None:
        places = f"every {summary.every} thinking tokens"
    cut = f"{share(summary.truncated_share)} of the traces"
    facts += [
        ("probed at", places),
        ("markers", ", ".join(summary.markers)),
        ("cut off", f"{cut}, at {summary.max_think} thinking tokens"),
    ]
    return Sheet(
        f"Probed {n}{several}, {summary.new} of them now.",
        facts=tuple(fact for fact in facts if fact[1]),
    )


def report_sheet(page: WrittenPage) -> Sheet:
    """Return the sheet of `report`."""
    states = {True: "certified", False: "calibrated, nothing certified", None: "not calibrated yet"}
    return Sheet(
        "Report written.",
        facts=(
            ("file", f"{page.report} ({page.bytes / 1000:.0f} kB)"),
            ("of", str(page.run)),
            ("state", states[page.certified]),
        ),
    )


def promote_sheet(promotion: Promotion) -> Sheet:
    """Return the sheet of `promote`."""
    same = promotion.previous_digest == promotion.digest
    if promotion.promise is not None:
        promise = promotion.promise
    elif promotion.alpha is not None:
        promise = f"at most {promised(promotion.alpha)} lost"
    else:
        promise = "none: it never stops"
    facts: list[Fact] = [
        ("promise", promise),
        ("served as", f"{promotion.current}, a copy of it"),
        ("digest", f"{promotion.digest[:16]}..."),
    ]
    back = None if same else promotion.previous_policy
    if back is not None:
        facts.append(("before", str(back)))
    return Sheet(
        f"{promotion.policy} is in use {'already' if same else 'now'}.",
        "good",
        tuple(facts),
        None if back is None else f"stopadvisor promote {shell_quote(back)}",
        "way back",
    )


def profile_serving_sheet(profile: ServingProfile, file: Path) -> Sheet:
    """Return the sheet of `profile-serving`; `file` holds the profile."""
    seconds = profile.per_token_seconds
    return Sheet(
        f"{profile.model} on {profile.device}",
        facts=(
            ("request", f"{1e6 * profile.per_request_seconds:.0f} µs each"),
            ("prefilled", f"{1e6 * seconds.prefilled:.2f} µs per token"),
            ("cached", f"{1e6 * seconds.cached:.3f} µs per token read again"),
            ("decoded", f"{1e6 * seconds.decoded:.1f} µs per token, {profile.at_batch} at once"),
            ("fit", f"off by {percent(100 * profile.misfit)} of the seconds measured"),
            ("profile", str(file)),
        ),
        command=f"stopadvisor assess RUN --price {shell_quote(file)}",
        sections=(
            Section(
                "Decoding, by requests in flight",
                ("at once", "µs per token"),
                tuple((str(b.batch), f"{1e6 * b.seconds:.1f}") for b in profile.decoded_by_batch),
                left=0,
            ),
        ),
    )
