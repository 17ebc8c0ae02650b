"""`stopadvisor schema`: the JSON Schema of what `--json` prints, derived from result classes."""

from __future__ import annotations

import json as json_text
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from stopadvisor.cli.parts.command import Command
from stopadvisor.cli.parts.declare import OUTPUT, declare, show
from stopadvisor.ground.results import schema_of
from stopadvisor.report.sheet import Sheet

__all__ = ["RESULTS", "command", "result_class"]

RESULTS = {
    "import": ("stopadvisor.runs.imported:ImportedProbes", "`import probes --json`"),
    "import-log": ("stopadvisor.runs.imported:ImportedLog", "`import --json`, of other formats"),
    "import-dataset": ("stopadvisor.runs.imported:ImportedDataset", "`import dataset --json`"),
    "import-replies": ("stopadvisor.runs.imported:ImportedReplies", "`import replies --json`"),
    "label": ("stopadvisor.certification.labelling:LabelledRun", ""),
    "monitor": ("stopadvisor.serving.monitored:MonitoredPromise", ""),
    "plan": ("stopadvisor.assessment.promises:LabelPlan", ""),
    "preflight": ("stopadvisor.collection.model_checks:PreflightReport", "and `preflight.json`"),
    "preflight-ladder": (
        "stopadvisor.collection.model_checks:Preflight",
        "`preflight --ladder --json`, and `preflight.json` of a ladder",
    ),
    "profile-serving": (
        "stopadvisor.rules.serving_profile:ServingProfile",
        "and the file it writes",
    ),
    "promote": ("stopadvisor.policy.run_policies:Promotion", ""),
    "probe": ("stopadvisor.collection.probe_settings:ProbeSummary", ""),
    "report": ("stopadvisor.report.saved:WrittenPage", ""),
    "assess": ("stopadvisor.paper.analysis:Assessed", "and `assessment.json`"),
    "calibrate": ("stopadvisor.certification.issue:CalibratedRun", "and `calibration.json`"),
    "diff": ("stopadvisor.report.comparison:PolicyComparison", "`inspect A B --json`"),
    "inspect": ("stopadvisor.policy.shown:InspectedPolicy", ""),
    "error": ("stopadvisor.cli.failed:FailedCommand", "`... --json`, where a command fails"),
    "run": ("stopadvisor.serving.answer_summary:AnswerSummary", ""),
    "samples": ("stopadvisor.runs.samples:Samples", ""),
    "study": ("stopadvisor.studies.tables:StudyReport", "and `studies/NAME.json`"),
    "study-all": ("stopadvisor.studies.tables:StudyReports", "`study all --json`"),
    "study-list": ("stopadvisor.studies.registry:StudyList", "`study list --json`"),
    "verify": ("stopadvisor.certification.check_policy:CheckedPolicy", ""),
    "schema-list": ("stopadvisor.cli.schema:SchemaList", "`schema --json`, without a name"),
}
"""By name of the schema: the class of the result, and where else to find such a document."""


@dataclass(frozen=True)
class SchemaEntry:
    """One schema."""

    name: str
    """Argument of `stopadvisor schema NAME`."""
    describes: str
    """The command that prints such a document, and the file that holds one."""


@dataclass(frozen=True)
class SchemaList:
    """`schema --json`, without a name."""

    schemas: tuple[SchemaEntry, ...]
    """All schemas, by name."""


def result_class(name: str) -> Any:
    """Import the class of a result."""
    module, _, kind = RESULTS[name][0].partition(":")
    return getattr(import_module(module), kind)


def _check(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    if name is not None and name not in RESULTS:
        there = ", ".join(sorted(RESULTS))
        raise click.BadParameter(f"no schema {name!r}; expected one of {there}", ctx, param)
    return name


@click.command(
    "schema",
    cls=Command,
    examples=["stopadvisor schema", "stopadvisor schema assess > assess.schema.json"],
)
@click.argument("name", required=False, callback=_check)
@declare(*OUTPUT)
def command(name: str | None, *, json: bool, quiet: bool) -> int:
    """Print the JSON Schema of what `--json` prints; without NAME, list the schemas.

    A schema is named for the command that prints the document.
    """
    if name is None:
        facts = tuple(
            (each, where if where.startswith("`") else f"`{each} --json` {where}".strip())
            for each, (_, where) in sorted(RESULTS.items())
        )
        schemas = SchemaList(tuple(SchemaEntry(*fact) for fact in facts))
        show(schemas, Sheet("JSON Schemas: stopadvisor schema NAME", facts=facts), json=json)
    else:
        schema = {"title": name, **schema_of(result_class(name))}
        click.echo(json_text.dumps(schema, ensure_ascii=False, indent=1))
    return 0
