"""`stopadvisor assess`: whether to stop early, with which rule, and what it saves.

Probes a workload where needed, assesses, writes ``assessment.json`` and prints it.  Under the
deploy protocol nothing of a calibration question is shown; the paper's protocol shows them, so
that for a run it needs a look in the ledger.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TextIO

import click
from click.core import ParameterSource

from stopadvisor.answers.grading import Grader
from stopadvisor.assessment.assess import SIMULATED_PROBES, Assessment, assess, split_hint
from stopadvisor.assessment.choice import Settings
from stopadvisor.cli.options import ProbeOptions, probe_options
from stopadvisor.cli.page import Command
from stopadvisor.cli.probe import probe_workload
from stopadvisor.cli.progress import progress_on
from stopadvisor.cli.server import ServerOptions
from stopadvisor.cli.settings import SettingsOverrides, alpha_remark, setting_options
from stopadvisor.collection.labels import regrade
from stopadvisor.constants import TRUNCATED_WARN
from stopadvisor.engines.openai.regime import RegimeMeasure, read_regime
from stopadvisor.errors import CalibrationError, StopAdvisorError, WorkloadError
from stopadvisor.paper.assess import assess_paper
from stopadvisor.report.documents import assessment_document
from stopadvisor.report.text.assess import PAPER_FLAW, show_assessment
from stopadvisor.rules.costs import NOTHING_CACHED
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.ledger import looks_at, open_outcomes
from stopadvisor.runs.sources import ASSESSMENT, Source, open_source
from stopadvisor.runs.storage import lock_directory, write_json_atomically
from stopadvisor.workload.questions import read_workload

__all__ = ["AssessOptions", "command", "run"]


@dataclass(frozen=True)
class AssessOptions:
    """What to assess, and for which promise."""

    probing: ProbeOptions
    """What is assessed (its `workload`), and how to probe it if it is a workload."""
    settings: Settings
    protocol: Literal["deploy", "paper"] = "deploy"
    open_calibration: bool = False
    split_asked: tuple[float, float, float] | None = None
    """Split of an archive, where the command line names one; as drawn before otherwise."""
    seed_asked: int | None = None
    serving_asked: bool = True
    """Cost as the settings say; else as the server was measured, where it was."""
    report: bool = True
    """Write ``report.html`` too, where its extra is installed."""

    @property
    def target(self) -> Path:
        """A workload, a run directory or an archive."""
        return self.probing.workload

    @property
    def is_workload(self) -> bool:
        """Whether the target has to be probed."""
        return not self.target.is_dir() and self.target.suffix != ".npz"


@click.command(
    "assess",
    cls=Command,
    reads="WORKLOAD: JSONL with `question` and `gold`, a question a line. Or a run "
    "directory, or a published raw.npz archive.",
    writes="assessment.json, and report.html where the extra `report` is installed, into "
    "the run directory: --out, else one under runs/ named for workload, model and "
    "settings.",
    examples=[
        "stopadvisor assess samples/arithmetic.jsonl --model samples/tiny-reasoner",
        "stopadvisor assess my.jsonl --model Qwen/Qwen3-8B --max-think 8192",
        "stopadvisor assess runs/my-Qwen3-8B-1a2b3c4d --serving prefix-cache",
    ],
    exit_codes=(0, 1, 2, 5, 130),
)
@click.argument("target", metavar="WORKLOAD|RUN|RAW.NPZ", type=click.Path(path_type=Path))
@click.option(
    "--protocol",
    type=click.Choice(["deploy", "paper"]),
    default="deploy",
    help="What to act on, or the published analysis number for number.",
)
@setting_options(defaults=True)
@click.option(
    "--open-calibration",
    is_flag=True,
    help="Let --protocol paper show outcomes of calibration questions, recorded as a look.",
)
@click.option(
    "--report/--no-report",
    default=True,
    envvar="STOPADVISOR_REPORT",
    show_envvar=True,
    help="Write report.html too (extra `report`).",
)
@probe_options
@click.pass_context
def command(ctx: click.Context, /, target: Path, protocol: str, **params: Any) -> int:
    """Advise whether the model may stop thinking early on WORKLOAD, and what that saves.

    Probes what is missing first, with the options of `probe`; a run directory or a published
    raw.npz archive is assessed as it is.  The advice is provisional: `calibrate` decides.
    """
    asked = _asked_options(ctx)
    settings = SettingsOverrides.take(params).settings()
    open_calibration, report = params.pop("open_calibration"), params.pop("report")
    if open_calibration and protocol != "paper":
        raise click.UsageError("--open-calibration belongs to --protocol paper")
    probing = ProbeOptions.take(params, target)
    options = AssessOptions(
        probing,
        settings,
        "paper" if protocol == "paper" else "deploy",
        open_calibration,
        probing.split if "split" in asked else None,
        probing.seed if "seed" in asked else None,
        not _from_default(ctx, "serving") or not _from_default(ctx, "cache_block"),
        report,
    )
    if not options.is_workload:
        known = {"seed", "split", "out"} if target.suffix == ".npz" else {"regrade"}
        if useless := sorted(asked - known):
            names = ", ".join("--" + name.replace("_", "-") for name in useless)
            raise click.UsageError(f"{target} is probed already, so these mean nothing: {names}")
    return run(options, sys.stdout, sys.stderr)


def _asked_options(ctx: click.Context) -> set[str]:
    """Options of probing that the command line itself names."""
    return {
        f.name
        for f in (*fields(ProbeOptions), *fields(ServerOptions))
        if ctx.get_parameter_source(f.name) == ParameterSource.COMMANDLINE
    }


def _from_default(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) == ParameterSource.DEFAULT


def run(options: AssessOptions, out: TextIO, err: TextIO) -> int:
    """Assess, write the assessment down and print it."""
    output = options.probing.output
    source = _source(options, err)
    server = None if source.is_archive else read_regime(source.folder)
    settings = options.settings
    served = server is not None or (source.engine or "").startswith("openai")
    asked = options.serving_asked
    if options.protocol == "paper" and server is not None and server.regime == "overlap":
        asked = True  # the paper has no such regime
    if served and not asked:
        settings = _as_measured(settings, server)
    if options.protocol == "paper":
        if settings.serving == "overlap":
            raise CalibrationError(
                "the paper's serving regimes are kv-fork, prefix-cache and black-box, got 'overlap'"
            )
        _open_calibration(source, settings, open_calibration=options.open_calibration)
        assessment: Assessment = assess_paper(
            source, alpha=settings.alpha, delta=settings.delta, serving=settings.serving
        )
    else:
        assessment = assess(source, settings)
    of_sample, of_promise = _remarks_on_sample(assessment), _remarks_on_promise(assessment)
    if served:
        of_promise.append(_remark_on_serving(server, settings, asked=options.serving_asked))
    flaws = [PAPER_FLAW] if options.protocol == "paper" else []  # on the screen in any case
    document = assessment_document(assessment, [*flaws, *of_sample, *of_promise])
    if server is not None:
        document["server"] = {
            "regime": server.regime,
            "cache_block": server.cache_block,
            "basis": server.basis,
            "read_cost": server.read_cost,
            "reason": server.reason,
        }
    write_json_atomically(source.folder / ASSESSMENT, document)
    with progress_on(err, quiet=output.quiet) as progress:
        # Probing has said its own on the sample just now.
        for remark in of_promise if options.is_workload else of_sample + of_promise:
            progress.remark(f"note: {remark}")
        if options.report:
            progress.remark(_report(assessment, document))
    if output.json:
        print(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1), file=out)
    else:
        show_assessment(document, out)
    return 0


# --- Where the probes come from -------------------------------------------------------------------


def _source(options: AssessOptions, err: TextIO) -> Source:
    probing = options.probing
    if not options.target.exists():
        raise WorkloadError(
            f"{options.target}: no such file or directory; expected a JSONL workload, a run "
            "directory or a raw.npz archive"
        )
    if options.is_workload:
        return open_source(probe_workload(probing, err, whole=True).path)
    if probing.regrade:
        _regrade(options.target, err, quiet=probing.output.quiet)
    return open_source(
        options.target,
        seed=options.seed_asked,
        fractions=options.split_asked,
        folder=probing.out,
    )


def _regrade(path: Path, err: TextIO, *, quiet: bool) -> None:
    """Grade a run's recorded answers again; says nothing of what changed, which is an outcome."""
    found = RunDirectory.load(path)
    file = Path(found.manifest["workload"]["path"])
    with progress_on(err, quiet=quiet) as progress, lock_directory(path), Grader() as grader:
        try:
            workload = read_workload(file)
        except WorkloadError as error:
            progress.remark(f"note: graded against the recorded gold, for want of a file: {error}")
            workload = None
        regrade(found, grader, workload)
        progress.remark(f"graded {path} again")


def _open_calibration(source: Source, settings: Settings, *, open_calibration: bool) -> None:
    """Hold the paper's protocol to the ledger: it shows outcomes of calibration questions."""
    if source.is_archive:
        return  # published with their outcomes: nothing is left to be blind to
    keys = source.part("calibration").keys
    seen = {key for look in looks_at(source.folder, keys) for key in look.questions}
    if seen.issuperset(keys):
        return
    if not open_calibration:
        raise CalibrationError(
            f"the paper protocol shows outcomes of {len(set(keys) - seen)} calibration questions "
            f"that nobody has looked at: run `stopadvisor calibrate {source.folder}` first, or say "
            "--open-calibration, which is recorded as a look and costs later certificates "
            "confidence"
        )
    with lock_directory(source.folder):
        request: Mapping[str, Any] = {
            "protocol": "paper",
            "alpha": settings.alpha,
            "serving": settings.serving,
            "data": source.fingerprint(),
        }
        open_outcomes(source.folder, keys, request, delta=settings.delta)


def _report(assessment: Assessment, document: Mapping[str, Any]) -> str:
    """Write the page with pictures, and say where; the assessment stands without it."""
    from stopadvisor.report.html.page import missing_packages, write_report

    if missing_packages():
        return "note: no report.html, for want of its extra: pip install 'stopadvisor[report]'"
    try:
        return f"wrote {write_report(assessment, document).path}"
    except StopAdvisorError as error:
        return f"note: no report.html: {error}"


def _as_measured(settings: Settings, server: RegimeMeasure | None) -> Settings:
    """Settings that cost as the server was measured to be; untold, as one that keeps nothing."""
    if server is None or server.regime is None:
        return replace(settings, serving="black-box")
    return replace(
        settings,
        serving=server.regime,
        cache_block=_cache_block(settings, server),
    )


def _cache_block(settings: Settings, server: RegimeMeasure) -> int:
    """Tokens per block as measured; of what nobody saw caching, nothing counts as cached."""
    unseen = NOTHING_CACHED if server.regime == "overlap" else settings.cache_block
    return server.cache_block or unseen


# --- Remarks --------------------------------------------------------------------------------------


def _remarks_on_sample(assessment: Assessment) -> list[str]:
    """What the reader should know of the questions and traces."""
    found = [SIMULATED_PROBES] if assessment.source.simulated else []
    of = "all questions" if assessment.basis == "all" else "fit questions"
    if assessment.truncated_share > TRUNCATED_WARN:
        found.append(
            f"{assessment.truncated_share:.1%} of the traces ({of}) were cut off by max-think; a "
            "question cut off cannot be lost, and calibrate refuses more than 10%"
        )
    hint = split_hint(assessment.source) if assessment.protocol == "deploy" else None
    return [*found, hint] if hint else found


def _remark_on_serving(server: RegimeMeasure | None, settings: Settings, *, asked: bool) -> str:
    """What the server was measured to be, and whether costs are counted so."""
    if server is None or server.regime is None:
        why = (
            "was not measured: `stopadvisor probe` again does, with the server up"
            if server is None
            else f"cannot be told: {server.reason}"
        )
        return (
            f"the serving regime {why}; costs are those of {settings.serving}, --serving says "
            "another"
        )
    block = _cache_block(settings, server)
    measured = f"this server is {server.regime}, as measured: {server.reason}"
    if settings.serving != server.regime:
        why = "as asked" if asked else "as the paper has no such regime"
        return f"{measured}; costs are those of {settings.serving}, {why}"
    if server.regime in ("prefix-cache", "overlap") and settings.cache_block != block:
        return f"{measured}; costs are those of blocks of {settings.cache_block}, as asked"
    if server.regime == "prefix-cache" and server.cache_block is None:
        return f"{measured}; blocks of {block} tokens are taken for granted"
    return measured


def _remarks_on_promise(assessment: Assessment) -> list[str]:
    """What the reader should know of what is promised, and of what it rests on."""
    found = []
    source, alpha, accuracy = assessment.source, assessment.alpha, assessment.full_accuracy
    if remark := alpha_remark(alpha, accuracy):
        found.append(remark)
    if source.is_archive:
        found.append(
            "the archive holds no natural answers: the full reference is last-checkpoint, and a "
            "policy from it is bound to no model"
        )
    if assessment.choice and assessment.choice.n_fit < source.counts()["fit"]:
        found.append(f"the choice was made on {assessment.choice.n_fit} of the fit questions")
    return found
