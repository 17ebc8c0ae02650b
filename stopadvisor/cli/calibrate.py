"""`stopadvisor calibrate`: certify the lost-correct risk and write the frozen policy.

In this order: everything is chosen on fit questions, the look at the calibration questions is
entered in the ledger, and only then is one of their outcomes computed.  A policy is always
written; one that never stops where nothing was certified.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TextIO

import click
import numpy as np

from stopadvisor._version import __version__
from stopadvisor.assessment.assess import Assessment, assess
from stopadvisor.assessment.choice import Choice, Settings
from stopadvisor.assessment.settings import SettingsOverrides, alpha_remark
from stopadvisor.certification.calibration import calibrate, check_questions
from stopadvisor.certification.export import policy_content
from stopadvisor.certification.transfer import check_comparison, compare, target_view
from stopadvisor.certification.verification import costing
from stopadvisor.cli.options import COUNT, OUTPUT, PATH, OutputOptions, declare, emit, option, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.cli.settings import overrides, setting_options
from stopadvisor.cli.transfer import Transfer, show_transfer
from stopadvisor.errors import CalibrationError, OutputError
from stopadvisor.policy.frozen import build_policy, load_policy, save_policy
from stopadvisor.probes.table import ProbeTable
from stopadvisor.report.documents.calibrate import CalibrateDocument, calibration_document
from stopadvisor.report.documents.parts import look_remarks
from stopadvisor.report.documents.transfer import comparison_fields
from stopadvisor.report.text.calibrate import show_calibration
from stopadvisor.report.text.screen import place
from stopadvisor.runs.ledger import (
    CALIBRATION,
    Look,
    LookRequest,
    looks_at,
    read_ledger,
    take_looks,
)
from stopadvisor.runs.results import read_assessment
from stopadvisor.runs.sources import (
    REPORT,
    Part,
    Source,
    looks_elsewhere,
    newest_source,
    open_source,
)
from stopadvisor.runs.storage import lock_directory, write_json_atomically
from stopadvisor.workload.questions import PARTS

__all__ = ["CALIBRATION", "NOT_CERTIFIED", "CalibrateOptions", "command", "run"]

NOT_CERTIFIED = 3
"""Exit code: calibration ran and certified nothing."""


@dataclass(frozen=True)
class CalibrateOptions:
    """What to certify, and where to put the policy."""

    path: Path | None = None
    """Run directory or archive; None for the one assessed last."""
    asked: SettingsOverrides = field(default_factory=SettingsOverrides)
    conditional: bool = False
    allow_truncated: bool = False
    looks: int | None = None
    fresh: bool = False
    source_policy: Path | None = None
    """Policy of another run, to calibrate here instead of choosing a rule here."""
    compare: bool = False
    format: Literal["joblib", "json"] = "joblib"
    out: Path | None = None
    output: OutputOptions = field(default_factory=OutputOptions)


_certificate = option("Certificate")


@click.command(
    "calibrate",
    cls=Command,
    reads="A run directory or a raw.npz archive; settings that are not given come from "
    "its assessment.json.",
    writes="The policy (--out, else policy.joblib in the run directory), calibration.json "
    "beside it, and the look in the run's ledger.json.",
    examples=[
        "stopadvisor calibrate --alpha 0.15",
        "stopadvisor calibrate runs/my-Qwen3-8B-1a2b3c4d --alpha 0.05 --conditional",
        "stopadvisor calibrate runs/other-Qwen3-8B-5e6f7a8b --from policy.joblib",
    ],
    exit_codes=(0, 2, 3),
)
@click.argument("path", metavar="[RUN|RAW.NPZ]", required=False, type=PATH)
@setting_options(otherwise="as assessed")
@_certificate(
    "--conditional",
    is_flag=True,
    help="Certify the share lost of the questions that full thinking gets right.",
)
@_certificate(
    "--looks",
    type=COUNT,
    help="Looks you plan to take at these calibration questions; they share delta.",
)
@_certificate("--fresh", is_flag=True, help="Only calibration questions that no look has used yet.")
@_certificate(
    "--allow-truncated",
    is_flag=True,
    help="Certify although more than 10 % of the traces were cut off.",
)
@click.option(
    "--from",
    "source_policy",
    metavar="POLICY",
    type=PATH,
    help="Transfer: keep this policy's rule, certify its threshold on all but the test questions.",
)
@click.option(
    "--compare",
    is_flag=True,
    help="With --from: beside the policy as it is and one trained here; that is one look more.",
)
@click.option(
    "--format",
    type=click.Choice(["joblib", "json"]),
    default="joblib",
    help="File format of the policy.",
)
@click.option(
    "--out",
    type=PATH,
    show_default="policy.joblib or policy.json in RUN",
    help="File of the policy.",
)
@declare(*OUTPUT)
def command(path: Path | None, **params: Any) -> int:
    """Certify a threshold on calibration questions of RUN and write the frozen policy.

    Without RUN: the run assessed last.  Every call is a look at the calibration questions and is
    recorded; a second, different one leaves less confidence.  Exit code 3: nothing was certified,
    and the policy written never stops.
    """
    asked = overrides(params)
    output = take(OutputOptions, params)
    if params["compare"] and params["source_policy"] is None:
        raise click.UsageError("--compare belongs to --from POLICY")
    if params["source_policy"] is not None and asked.families and not params["compare"]:
        raise click.UsageError("--families means nothing with --from: the policy brings its rule")
    return run(CalibrateOptions(path, asked, output=output, **params), sys.stdout, sys.stderr)


def run(options: CalibrateOptions, out: TextIO, err: TextIO) -> int:
    """Calibrate, write policy and calibration, and print what came of it."""
    options.asked.settings()  # what no run could make right is refused before one is looked for
    source = newest_source() if options.path is None else open_source(options.path)
    with progress_on(err, quiet=options.output.quiet) as progress:
        if options.path is None:
            progress.remark(f"calibrating {source.folder}, the run assessed last")
        target = options.out or source.folder / f"policy.{options.format}"
        _check_place(target)
        with lock_directory(source.folder):
            work = _calibrate if options.source_policy is None else _transfer
            document = work(source, options, target)
        for remark in document["remarks"]:
            progress.remark(f"note: {remark}")
        # A report shows the calibration that lies in its folder.
        if (source.folder / REPORT).exists() and target.parent.resolve() == source.folder.resolve():
            progress.remark(
                f"note: {REPORT} is from before this calibration; `stopadvisor report "
                f"{place(source.folder)}` writes it again"
            )

    def show(document: Mapping[str, Any], out: TextIO) -> None:
        show_calibration(document, out)
        if options.source_policy is not None:
            show_transfer(document, out)

    emit(document, options.output, out, show)
    return 0 if document["certified"] else NOT_CERTIFIED


def _check_place(target: Path) -> None:
    """Refuse a place that cannot be written before a look is spent on it."""
    if target.is_dir():
        raise OutputError(f"cannot write the policy to {target}: it is a folder")
    if not target.parent.is_dir():
        raise OutputError(f"cannot write the policy to {target}: there is no such folder")


@dataclass(frozen=True)
class _Chosen:
    """All that is settled before a calibration outcome is opened."""

    table: ProbeTable
    """Calibration questions."""
    assessment: Assessment
    choice: Choice
    request: Mapping[str, Any]
    asked: Settings
    planned: int | None
    n_earlier: int


def _choose(source: Source, options: CalibrateOptions) -> _Chosen:
    view = _without_used(source, ("calibration",)) if options.fresh else source
    table = view.part("calibration")
    asked, planned, n_earlier = _asked(source, table, options)
    assessment = assess(view, replace(asked, delta=asked.delta / (planned or 1)))
    choice = assessment.choice
    assert choice is not None  # the deploy protocol makes one
    check_questions(choice, table)
    request = {
        "protocol": "deploy",
        **{name: value for name, value in asdict(asked).items() if name != "delta"},
        "families": list(asked.families),
        "data": view.fingerprint(),
        "version": __version__,
    }
    return _Chosen(table, assessment, choice, request, asked, planned, n_earlier)


def _asked(
    source: Source, table: ProbeTable, options: CalibrateOptions
) -> tuple[Settings, int | None, int]:
    """Settings as asked for, planned looks, and how many were taken at these questions."""
    earlier = looks_at(source.folder, table.keys)
    asked = options.asked.settings(
        read_assessment(source.folder),
        conditional=options.conditional,
        allow_truncated=options.allow_truncated,
    )
    return asked, options.looks or (earlier[0].planned if earlier else None), len(earlier)


def _ask(source: Source, chosen: _Chosen) -> LookRequest:
    keys = chosen.table.keys
    elsewhere = looks_elsewhere(source, keys)
    return LookRequest(keys, chosen.request, chosen.asked.delta, chosen.planned, elsewhere)


def _calibrate(source: Source, options: CalibrateOptions, target: Path) -> CalibrateDocument:
    """The whole job, under the run's lock; returns what `--json` prints."""
    chosen = _choose(source, options)
    assessment, choice = chosen.assessment, chosen.choice
    (look,) = take_looks(source.folder, [_ask(source, chosen)])
    assert look.test_delta == choice.settings.delta
    calibration = calibrate(choice, chosen.table)
    content = build_policy(
        policy_content(
            source, choice, calibration, assessment.profile, look, alpha=choice.settings.alpha
        )
    )
    save_policy(content, target, format=options.format)
    remarks = _remarks(assessment, content, chosen.n_earlier, look)
    document = calibration_document(assessment, calibration, look, content, target, remarks)
    write_json_atomically(target.with_name(CALIBRATION), document)
    return document


def _transfer(source: Source, options: CalibrateOptions, target: Path) -> CalibrateDocument:
    """The same with the rule of another policy; a comparison is one look more."""
    assert options.source_policy is not None
    policy = load_policy(options.source_policy)
    view = _without_used(source, ("fit", "calibration")) if options.fresh else source
    table = target_view(view).part("calibration")
    asked, planned, n_earlier = _asked(source, table, options)
    if options.asked.serving is None and read_assessment(source.folder) is None:
        # Its saving is told in the policy's own terms where nobody has set others for this run.
        weights, cache_block = costing(policy.content)
        asked = replace(
            asked,
            serving=policy.content["serving"],
            weights=options.asked.weights or weights,
            cache_block=options.asked.cache_block or cache_block,
        )
    transfer = Transfer.prepare(policy, options.source_policy, view, asked, planned)
    chosen = _choose(source, options) if options.compare else None
    if chosen is not None:
        check_comparison(policy.content, source)
    # Both looks are entered, or neither, before an outcome is opened.
    asks = [transfer.ask(), *([] if chosen is None else [_ask(source, chosen)])]
    look, *others = take_looks(source.folder, asks)
    calibration = transfer.calibrate()
    content = build_policy(transfer.content(calibration, look))
    save_policy(content, target, format=options.format)
    comparison = None
    if chosen is not None:
        trained = calibrate(chosen.choice, chosen.table)
        found = compare(policy.content, source, calibration, chosen.choice, trained)
        comparison = comparison_fields(found, others[0])
    document = transfer.document(calibration, look, content, target, n_earlier, comparison)
    write_json_atomically(target.with_name(CALIBRATION), document)
    return document


def _without_used(source: Source, names: Sequence[Part]) -> Source:
    """The source without the questions of these parts that a look has used, or their groups."""
    table = source.table
    used = {key for look in read_ledger(source.folder) for key in look.questions}
    groups = {g for g, k in zip(table.groups, table.keys, strict=True) if k in used}
    mine = np.isin(source.parts, [PARTS.index(name) for name in names])
    spent = np.array([g in groups for g in table.groups]) & mine
    left = int(mine.sum() - spent.sum())
    if used and not left:
        raise CalibrationError(
            f"--fresh: all {int(spent.sum())} calibration questions were looked at already; add "
            "labelled questions and probe them into the same run"
        )
    return replace(source, table=table.take(~spent), parts=source.parts[~spent])


def _remarks(
    assessment: Assessment, content: Mapping[str, Any], earlier: int, look: Look
) -> list[str]:
    """What the reader should know before trusting the policy."""
    found = []
    choice, source = assessment.choice, assessment.source
    assert choice is not None  # the deploy protocol makes one
    alpha, accuracy = choice.settings.alpha, choice.full_accuracy
    if not choice.settings.conditional and (remark := alpha_remark(alpha, accuracy)):
        found.append(remark)
    if content["kind"] == "stop" and content["family"] != assessment.recommendation.family:
        advised = assessment.recommendation.family or "the full budget"
        found.append(
            f"the exported rule is {content['family']}, while assess advised {advised}: "
            "calibration decides among the rules chosen on fit questions"
        )
    spread = (content["expected"] or {}).get("test_total_saving_ci95")
    if spread is not None and spread[1] < 0:
        found.append(
            f"on the test questions this policy costs more than full thinking under "
            f"{content['serving']}: the certificate is about lost answers, so look at the saving "
            "before serving it"
        )
    found += look_remarks(look, earlier)
    if source.is_archive:
        found.append(
            "the archive holds no natural answers: the full reference is last-checkpoint, and "
            "the policy is bound to no model"
        )
    return found
