"""What commands print that write files: a benchmark, samples, made-up probes, a profile, a page.

Formats documents and computes nothing.
"""

from __future__ import annotations

from typing import TextIO

from stopadvisor.report.documents.profile_serving import GoodputFields, ProfileServingDocument
from stopadvisor.report.documents.program import SamplesDocument
from stopadvisor.report.documents.written import (
    ImportDocument,
    ImportLogDocument,
    ReportDocument,
    SimulateDocument,
    WorkloadDocument,
)
from stopadvisor.report.headline import gains, goodput_headline
from stopadvisor.report.screen import Screen
from stopadvisor.report.words import listed, number, percent, plural, share, shell_quote

__all__ = [
    "show_import",
    "show_import_log",
    "show_profile",
    "show_report_file",
    "show_samples",
    "show_simulation",
    "show_workload",
]


def show_workload(document: WorkloadDocument, out: TextIO) -> None:
    """Print which benchmark was written, and from where."""
    screen = Screen(out)
    count = plural(document["n_questions"], "question")
    screen.headline(f"{count} of {document['benchmark']}, task {document['task']}.")
    source = f"{document['source']}, split {document['split']}"
    screen.facts(
        [
            ("written to", document["out"]),
            ("drawn from", f"{document['available']} of {source}"),
            ("seed", str(document["seed"])),
        ]
    )
    screen.command(f"stopadvisor preflight {shell_quote(document['out'])} --model MODEL")


def show_samples(document: SamplesDocument, out: TextIO) -> None:
    """Print where the samples lie, and the first command to try."""
    screen = Screen(out)
    screen.headline(f"Written to {document['out']}: a tiny model, and workloads for it.")
    workloads = document["workloads"]
    screen.facts([("model", document["model"]), ("workloads", ", ".join(workloads))])
    words = ("assess", workloads[0], "--model", document["model"])
    screen.command(" ".join(("stopadvisor", *map(shell_quote, words))))


def show_simulation(document: SimulateDocument, out: TextIO) -> None:
    """Print which probes were drawn, and that nothing was measured."""
    screen = Screen(out)
    count = plural(document["n_questions"], "question")
    screen.headline(f"Simulated {count}: nothing was measured.")
    shares = document["shares"].items()
    kinds = [f"{kind.replace('_', ' ')} {share(value)}" for kind, value in shares if value]
    screen.facts(
        [
            ("written to", document["out"]),
            ("expected", ", ".join(kinds)),
            ("probed at", f"{listed(document['budgets'])} thinking tokens"),
            ("signal", f"{document['signal']:g} in log-odds; seed {document['seed']}"),
        ]
    )
    screen.command(f"stopadvisor assess {shell_quote(document['out'])}")


def show_import_log(document: ImportLogDocument, out: TextIO) -> None:
    """Print what was read of a program's log."""
    screen = Screen(out)
    n, gold, traces = (document[k] for k in ("n_questions", "n_gold", "n_traces"))
    screen.headline(f"{plural(n, 'question')}, {plural(traces, 'recorded trace')}.")
    tasks = ", ".join(f"{task} {count}" for task, count in document["tasks"].items())
    cut = f", {document['n_cut']} of them cut" if document["n_cut"] else ""
    without = document["n_without_thinking"]
    rest = f"; {without} without their thinking" if without else ""
    screen.facts(
        [
            ("written to", document["out"]),
            ("read from", listed(document["sources"])),
            ("gold", "none" if not gold else "of all" if gold == n else f"of {gold}"),
            ("task", tasks),
            ("traces", f"{traces}{cut}{rest}"),
        ]
    )
    where = shell_quote(document["out"])
    all_traced = traces and not (document["n_without_thinking"] or document["n_untraced"])
    traced = f" --traces {where}" if all_traced else ""
    screen.command(f"stopadvisor assess {where}{traced} --model MODEL")


def show_import(document: ImportDocument, out: TextIO) -> None:
    """Print what was read, and how much of it."""
    screen = Screen(out)
    probes = plural(document["n_probes"], "forced answer")
    screen.headline(f"{plural(document['n_questions'], 'question')}, {probes}.")
    budgets = document["budgets"]
    places = "positions of each question's own" if budgets is None else f"{listed(budgets)} tokens"
    traces, cut = document["n_traces"], document["n_truncated"]
    screen.facts(
        [
            ("written to", document["run"]),
            ("read from", document["source"]),
            ("probed at", places),
            ("traces", f"{traces}, {cut} of them cut; at most {document['max_think']} tokens"),
            ("graded", _graded(document)),
            ("model", document["model"] or "none: a policy is bound to no model"),
        ]
    )
    screen.command(f"stopadvisor assess {shell_quote(document['run'])}")


def _graded(document: ImportDocument) -> str:
    """What says which answers are right."""
    ungraded, traces = document["n_ungraded"], document["n_traces"]
    if ungraded == traces:
        return "none: a reply will count by whether it agrees with full thinking"
    said = plural(document["n_graded"], "label") + " by gold, the others as recorded"
    return f"{said}; {plural(ungraded, 'trace')} with neither" if ungraded else said


def show_report_file(document: ReportDocument, out: TextIO) -> None:
    """Print where the page is, and what is on it."""
    screen = Screen(out)
    screen.headline("Report written.")
    words = {True: "certified", False: "calibrated, nothing certified", None: "not calibrated yet"}
    screen.facts(
        [
            ("file", f"{document['report']} ({document['bytes'] / 1000:.0f} kB)"),
            ("of", document["run"]),
            ("state", words[document["certified"]]),
        ]
    )


def show_profile(document: ProfileServingDocument, path: str, out: TextIO) -> None:
    """Print the seconds that were measured, and where they are kept."""
    screen = Screen(out)
    goodput = document["goodput"]
    if goodput is None:
        screen.headline(f"{document['model']} on {document['device']}")
    else:
        screen.headline(goodput_headline(goodput), "good" if gains(goodput) else "doubtful")
    seconds = document["per_token_seconds"]
    screen.facts(
        [
            ("request", f"{1e6 * document['per_request_seconds']:.0f} µs each"),
            ("prefilled", f"{1e6 * seconds['prefilled']:.2f} µs per token"),
            ("cached", f"{1e6 * seconds['cached']:.3f} µs per token that is read again"),
            (
                "decoded",
                f"{1e6 * seconds['decoded']:.1f} µs per token, {document['at_batch']} at once",
            ),
            ("fit", f"misses {percent(100 * (document['misfit'] or 0))} of the seconds measured"),
            ("profile", path),
        ]
    )
    if goodput is not None:
        _show_goodput(goodput, screen)
    screen.table(
        "Decoding, by requests in flight",
        ["at once", "µs per token", "KV block-seconds per token"],
        [
            (str(row["batch"]), f"{1e6 * row['seconds']:.1f}", number(row["kv_block_seconds"]))
            for row in document["decoded_by_batch"]
        ],
        left=0,
    )
    if document["rows"]:
        _show_questions(document, screen)
    screen.command(f"stopadvisor assess RUN --serving-profile {shell_quote(path)}")


def _show_goodput(goodput: GoodputFields, screen: Screen) -> None:
    limits = {name: limit for name, limit in goodput["slo"].items() if limit is not None}
    screen.table(
        "The highest rate at which "
        + ", ".join(f"{name} is within {limit:g} s" for name, limit in limits.items())
        + " for 99 of 100",
        ["", "questions/s", "decoded", "at once", "KV block-seconds", "blocks met"],
        [
            (
                name,
                f"{arm['rate']:.3g}",
                f"{arm['decoded']:.0f}",
                f"{arm['in_flight']:.1f}",
                number(arm["kv_block_seconds"]),
                f"{arm['met']} of {arm['blocks']}",
            )
            for name, arm in (("full thinking", goodput["full"]), ("policy", goodput["stopped"]))
        ],
    )


def _show_questions(document: ProfileServingDocument, screen: Screen) -> None:
    screen.table(
        "Per question, probes included; nothing is stopped",
        ["batch", "checkpoints", "seconds", "std", "peak memory"],
        [
            (
                str(row["batch"]),
                str(row["checkpoints"]) if row["checkpoints"] else "none",
                f"{row['seconds_per_question']:.3g}",
                "-" if row["std"] is None else f"{row['std']:.2g}",
                f"{row['peak_memory_gb']:.2f} GB",
            )
            for row in document["rows"]
        ],
        left=0,
    )
