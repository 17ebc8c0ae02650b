"""`stopadvisor profile-serving`: measure what requests and tokens cost in seconds at a server."""

from __future__ import annotations

from pathlib import Path

import click

from stopadvisor.cli.parts.command import Command
from stopadvisor.cli.parts.declare import FILE, Parsed, Printed, option, printed
from stopadvisor.cli.parts.model import API_KEY, REQUEST_TIMEOUT, model_name
from stopadvisor.engines.engine_settings import DEFAULT_MODEL
from stopadvisor.ground.progress import Progress
from stopadvisor.ground.results import to_document
from stopadvisor.report.sheets.files import profile_serving_sheet
from stopadvisor.runs.storage import check_writable, make_folder, write_json_atomically
from stopadvisor.serving.server_profile import measure_server

__all__ = ["command"]


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise ValueError("expected whole numbers >= 1 such as 1,8")
    return tuple(sorted({int(part) for part in parts}))


_server = option("Model")


@click.command(
    "profile-serving",
    cls=Command,
    writes="The profile, JSON: --out. `assess --price FILE` counts in its seconds.",
    examples=["stopadvisor profile-serving --base-url http://gpu:8000/v1 --concurrency 1,8,64"],
    exit_codes=(0, 1, 2, 130),
)
@model_name(DEFAULT_MODEL)
@_server(
    "--engine",
    type=click.Choice(["openai", "vllm"]),
    default="vllm",
    help="Name of the server in the profile; all OpenAI-compatible ones are measured alike.",
)
@_server(
    "--base-url", metavar="URL", required=True, help="The server, such as http://host:8000/v1."
)
@API_KEY
@REQUEST_TIMEOUT
@click.option(
    "--concurrency",
    "batches",
    type=Parsed("n,n,...", _counts),
    default="1,8",
    help="Requests at once.",
)
@click.option("--out", type=FILE, default=Path("profile.json"), help="The profile's file (JSON).")
@printed
def command(
    progress: Progress,
    model: str,
    engine: str,
    base_url: str,
    api_key_env: str | None,
    request_timeout: float,
    batches: tuple[int, ...],
    out: Path,
) -> Printed:
    """Measure what requests and tokens cost in seconds at a server.

    Times requests that differ in one thing at a time: new or cached prompts, answers of one token
    or many, at each concurrency.
    """
    check_writable(out.parent)
    make_folder(out.parent)
    measured = measure_server(
        base_url,
        model,
        batches,
        progress,
        engine=engine,
        api_key_env=api_key_env,
        request_timeout=request_timeout,
    )
    write_json_atomically(out, to_document(measured))
    return Printed(measured, profile_serving_sheet(measured, out))
