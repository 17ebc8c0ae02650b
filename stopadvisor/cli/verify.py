"""`stopadvisor verify`: hold a frozen policy against fresh labelled probes.

A contradiction is a result with its own exit code.  What is shown of a run's calibration questions
is entered in its ledger first, as everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import click
import numpy as np

from stopadvisor.certification.budgets import check_budgets
from stopadvisor.certification.verification import (
    costing,
    fresh_questions,
    scorer_of,
    verify,
)
from stopadvisor.cli.options import OUTPUT, PATH, OutputOptions, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.cli.settings import setting_options
from stopadvisor.constants import DEFAULT_DELTA, TRUNCATED_WARN
from stopadvisor.errors import PolicyError, ProbeError
from stopadvisor.policy.frozen import MIXED_TASKS, Policy, load_policy
from stopadvisor.report.documents.verify import VerifyDocument, verification_document
from stopadvisor.report.text.verify import show_verification
from stopadvisor.rules.costs import Serving, Weights
from stopadvisor.runs.ledger import open_outcomes
from stopadvisor.runs.sources import Source, open_source
from stopadvisor.runs.storage import lock_directory
from stopadvisor.workload.questions import PARTS

__all__ = ["CONTRADICTED", "VerifyOptions", "command", "run"]

CONTRADICTED = 4
"""Exit code: fresh probes contradict the certificate."""


@dataclass(frozen=True)
class VerifyOptions:
    """Which policy, against which probes, counted how."""

    policy: Path
    probes: Path
    """Run directory or archive."""
    serving: Serving | None = None
    """None: the policy's own."""
    weights: Weights | None = None
    """None: as in the policy's own expectation; so `cache_block`."""
    cache_block: int | None = None
    transfer: bool = False
    test_only: bool = False
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "verify",
    cls=Command,
    reads="POLICY, and a run directory or raw.npz archive with probes at the policy's "
    "budgets (`probe --like POLICY` makes them).",
    writes="Nothing, but for a look in the run's ledger.json where its calibration "
    "questions are shown.",
    examples=[
        "stopadvisor verify policy.joblib runs/fresh-Qwen3-8B-1a2b3c4d",
        "stopadvisor verify policy.joblib runs/my-Qwen3-8B-5e6f7a8b --test-only",
    ],
    exit_codes=(0, 2, 4),
)
@click.argument("policy", metavar="POLICY", type=PATH)
@click.argument("probes", metavar="RUN|RAW.NPZ", type=PATH)
@setting_options(("serving", "cache-block", "price"), otherwise="the policy's")
@click.option(
    "--transfer",
    is_flag=True,
    help="Zero-shot transfer: probes of another model, template or engine are allowed.",
)
@click.option(
    "--test-only",
    is_flag=True,
    help="Only the test part of RUN: its calibration questions stay closed.",
)
@declare(*OUTPUT)
def command(policy: Path, probes: Path, price: Weights | None, **params: Any) -> int:
    """Hold POLICY against fresh labelled probes in RUN.

    Questions that fitted or calibrated the policy are left out and counted.  Ends with exit code 4
    if the probes contradict the certificate.
    """
    output = take(OutputOptions, params)
    options = VerifyOptions(policy, probes, weights=price, output=output, **params)
    return run(options, sys.stdout, sys.stderr)


def run(options: VerifyOptions, out: TextIO, err: TextIO) -> int:
    """Verify and report."""
    policy = load_policy(options.policy)
    source = open_source(options.probes, keep=False)
    with progress_on(err, quiet=options.output.quiet) as progress:
        document = _verify(policy, source, options)
        for remark in document["remarks"]:
            progress.remark(f"note: {remark}")
    emit(document, options.output, out, show_verification)
    return CONTRADICTED if document["verdict"] == "contradicted" else 0


def _verify(policy: Policy, source: Source, options: VerifyOptions) -> VerifyDocument:
    content = policy.content
    remarks = _bound(policy, source, transfer=options.transfer)
    view = _test_part(source) if options.test_only else source
    sha = source.workload_sha256
    check_budgets(policy, str(options.policy), source)
    # Everything that can be refused is refused before an outcome is opened and a look recorded.
    fresh = fresh_questions(content, view.table, workload_sha256=sha)
    scorer_of(content, view.table)
    remarks += _record_look(policy, view, fresh.rows)
    result = verify(
        content,
        view.table,
        serving=options.serving,
        weights=options.weights,
        cache_block=options.cache_block,
        workload_sha256=sha,
        rng=np.random.default_rng(source.seed),
    )
    if result.truncated_share > TRUNCATED_WARN:
        remarks.append(
            f"{result.truncated_share:.1%} of the traces were cut off by max-think: a question cut "
            "off cannot be lost"
        )
    # A simulated run has a cap, and names its questions.
    of_archive = content["model"] is None and content["max_think"] is None
    if (of_archive or source.is_archive) and sha != content["workload_sha256"]:
        remarks.append(
            "archives do not name their questions: that none of these fitted or calibrated the "
            "policy cannot be checked"
        )
    return verification_document(
        result,
        policy,
        policy_path=options.policy,
        run=options.probes,
        serving=options.serving or content["serving"],
        unit=(options.weights or costing(content)[0]).unit,
        transfer=options.transfer,
        test_only=options.test_only,
        remarks=remarks,
    )


def _bound(policy: Policy, source: Source, *, transfer: bool) -> list[str]:
    """Whether the probes come from what the policy is bound to; differences become remarks."""
    manifest = source.manifest
    remarks = []
    try:
        if manifest is not None:
            plan = manifest["plan"]
            remarks = policy.check_source(
                manifest["engine"],
                source.table.entropy_source,
                cue=plan["cue"],
                cap=plan["cap"],
                max_think=plan["max_think"],
                prompt_template=manifest["prompt_template"] or manifest["prompt_templates"],
                sampling={key: plan[key] for key in ("greedy", "temperature")},
                answer_cap=plan.get("answer_cap"),
            )
            remarks += _graded_alike(policy.content, manifest["grading"])
        task = policy.content["task"]
        others = sorted(set(source.table.tasks) - {task})
        if others and task != MIXED_TASKS:
            raise PolicyError(f"the policy answers task '{task}', got '{others[0]}'")
    except PolicyError as error:
        if not transfer:
            raise PolicyError(f"{error} (--transfer verifies it there all the same)") from error
        remarks.append(f"zero-shot transfer: {error}")
    return remarks


def _graded_alike(content: Mapping[str, Any], grading: Mapping[str, str]) -> list[str]:
    normalizer = grading.get("normalizer", content["normalizer"])
    if normalizer != content["normalizer"]:
        raise PolicyError(
            f"the policy compares answers by normaliser {content['normalizer']!r}, the run by "
            f"{normalizer!r}: grade it again with `stopadvisor assess RUN --regrade`"
        )
    grader = grading.get("grader", content["grader"])
    if grader == content["grader"]:
        return []
    return [f"the run was graded by {grader}, the calibration questions by {content['grader']}"]


def _test_part(source: Source) -> Source:
    rows = source.parts == PARTS.index("test")
    if not rows.any():
        raise ProbeError(f"{source.folder}: --test-only: its split has no test part")
    return replace(source, table=source.table.take(rows), parts=source.parts[rows])


def _record_look(policy: Policy, view: Source, rows: np.ndarray[Any, Any]) -> list[str]:
    """Enter the look at calibration questions among these."""
    if view.is_archive:
        return []  # published with their outcomes
    opened = rows[view.parts[rows] == PARTS.index("calibration")]
    keys = [view.table.keys[row] for row in opened.tolist()]
    if not keys:
        return []
    request = {"protocol": "verify", "policy": policy.digest, "data": view.fingerprint()}
    # Not the policy's own delta: a promise made at 0.001 must not make looking here cheap.
    delta = max(policy.content["certificate"]["delta"], DEFAULT_DELTA)
    with lock_directory(view.folder):
        if not open_outcomes(view.folder, keys, request, delta=delta):
            return []
    return [
        f"{len(set(keys))} of these are calibration questions of {view.folder}: recorded as a "
        "look, so that a later calibrate there has less confidence (--test-only leaves them "
        "closed)"
    ]
