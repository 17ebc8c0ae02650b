"""The manifest: what decides a run's probes, written before the first question is asked.

Two runs with the same id would write the same probes for the same questions.  The id leaves out the
questions, so that a workload can grow, and the values chosen for ``auto``, which follow from model
and workload when the run begins and then stay fixed in the manifest.  Versions, dates and batch
sizes are recorded but are not part of the id.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from stopadvisor._version import __version__
from stopadvisor.ground.constants import PROMPT_TEMPLATES
from stopadvisor.ground.fields import plain
from stopadvisor.ground.json_text import parse_json
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.runs.ladder import Ladder, Rung
from stopadvisor.workload.questions import Workload

__all__ = [
    "SCHEMA", "build_manifest", "describe_workload", "differences", "engine_of", "has_its_id",
    "identity_of", "recorded_sampling", "run_id", "run_path", "short", "split_of",
    "versions_of", "with_versions",
]  # fmt: skip

SCHEMA = 1
_VERSIONS = ("engine_version", "torch")
"""Fields of an engine's identity that may change between calls; every version is recorded."""
_FURTHER = "further_versions"
_MARKER_FIELDS = ("markers", "min_gap", "max_markers")
_FREE_RUNG_FIELDS = ("price", *Rung.UNSHOWN)
_PACKAGES = ("numpy", "torch", "transformers", "scikit-learn", "math-verify")


def build_manifest(
    engine: Mapping[str, Any],
    plan: ProbePlan,
    workload: Workload,
    *,
    fractions: Sequence[float],
    auto: Collection[str] = (),
    cue_ids: Sequence[int] | None = None,
    template: str | None = None,
    grading: Mapping[str, str] | None = None,
    traces: Mapping[str, Any] | None = None,
    ladder: Ladder | None = None,
) -> dict[str, Any]:
    """Describe everything that decides a run's probes.

    Parameters
    ----------
    engine : mapping
        The engine's `identity()`.
    plan : ProbePlan
        As requested, before a pilot; its seed is also the split's.
    fractions : sequence of float
        Shares of fit, calibration and test.
    auto : collection of str
        Names of plan fields for which the id holds ``"auto"`` instead of the value that a pilot or
        the model's context gives.
    cue_ids : sequence of int, optional
        Tokens of the cue after the closer, for the policy.
    template : str, optional
        The user's prompt template; None for the default of each task.
    grading : mapping, optional
        Versions of normaliser and grader.
    traces : mapping, optional
        `path` and `sha256` of the file of recorded traces.
    ladder : Ladder, optional
    """
    asked: dict[str, Any] = {"budgets": plan.budgets, "max_think": plan.max_think}
    if plan.schedule != "grid":
        asked["every"] = plan.every
    if plan.schedule == "marker":
        asked["markers"] = plan.markers
    if "schedule" in auto:
        asked["schedule"] = plan.schedule
    texts = PROMPT_TEMPLATES if template is None else dict.fromkeys(PROMPT_TEMPLATES, template)
    manifest = {
        "schema": SCHEMA,
        "workload": describe_workload(workload),
        "engine": dict(engine),
        "plan": plan.to_dict(),
        **{f"requested_{k}": "auto" if k in auto else value for k, value in asked.items()},
        "cue_ids": cue_ids,
        "prompt_template": template,
        "prompt_templates": texts,
        "split": {"seed": plan.seed, "fractions": list(fractions)},
        "full_reference": "natural",
        "grading": dict(grading or {}),
        "versions": {
            "stopadvisor": __version__,
            "python": platform.python_version(),
            **versions_of(*_PACKAGES),
        },
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **({} if traces is None else {"traces": dict(traces)}),
        **({} if ladder is None else {"ladder": plain(ladder.rungs)}),
    }
    manifest["id"] = run_id(manifest)
    return dict(parse_json(json.dumps(manifest, allow_nan=False)))  # tuples become lists


def versions_of(*packages: str) -> dict[str, str]:
    """Versions of those packages that are installed."""
    versions = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def describe_workload(workload: Workload) -> dict[str, Any]:
    """The workload as the manifest describes it."""
    return {
        "name": workload.name,
        "path": str(workload.path),
        "sha256": workload.sha256,
        "n_questions": len(workload.questions),
    }


def split_of(content: Mapping[str, Any]) -> tuple[int, tuple[float, float, float]]:
    """Seed and shares of the split in a manifest, or in the note of an archive."""
    fit, calibration, test = map(float, content["split"]["fractions"])
    return content["split"]["seed"], (fit, calibration, test)


def run_id(manifest: Mapping[str, Any], **changes: Any) -> str:
    """Eight hex digits of the hash of what decides the probes; more questions do not change it."""
    text = json.dumps({**identity_of(manifest), **changes}, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _first_id(manifest: Mapping[str, Any]) -> str:
    """The id as 0.1.0 computed it, which covered the engine's versions too."""
    return run_id(manifest, engine=manifest["engine"])


def has_its_id(manifest: Mapping[str, Any]) -> bool:
    """Whether a manifest's id matches its content."""
    return manifest.get("id") in (run_id(manifest), _first_id(manifest))


def with_versions(manifest: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with this engine's versions added, if the run has not seen them before."""
    now = {name: engine[name] for name in _VERSIONS if name in engine}
    known = [{name: manifest["engine"].get(name) for name in now}, *manifest.get(_FURTHER, ())]
    return dict(manifest) if now in known else {**manifest, _FURTHER: [*known[1:], now]}


def engine_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's identity, listing every version that probed this run."""
    further = manifest.get(_FURTHER, ())
    joined = {
        name: ", ".join(
            dict.fromkeys(versions[name] for versions in (manifest["engine"], *further))
        )
        for name in (further[0] if further else ())
    }
    return {**manifest["engine"], **joined}


def identity_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that decide the probes; one that was ``auto`` counts as that, not as its value."""
    names = ("budgets", "max_think", "every", "markers", "schedule")
    asked = {k: manifest[f"requested_{k}"] for k in names if f"requested_{k}" in manifest}
    # Under an auto schedule the markers follow from model and workload.
    plan = _without({**manifest["plan"], **asked}, _MARKER_FIELDS if "schedule" in asked else ())
    identity = {
        **{name: manifest[name] for name in ("prompt_templates", "split")},
        "engine": _without(manifest["engine"], _VERSIONS),
        "plan": plan,
        **recorded_sampling(manifest),
    }
    if "ladder" in manifest:  # a rung's price, address and policy file may change
        identity["ladder"] = [_without(rung, _FREE_RUNG_FIELDS) for rung in manifest["ladder"]]
    return identity


def _without(fields: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def recorded_sampling(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The hash of recorded traces, for a policy's sampling; empty if the model thought itself."""
    return {"recorded": manifest["traces"]["sha256"]} if "traces" in manifest else {}


def run_path(root: Path, manifest: Mapping[str, Any]) -> Path:
    """Default folder of a run, ``<root>/<workload>-<model>-<id>``, or as 0.1.0 named it."""
    model = str(manifest["engine"].get("model", "model")).rstrip("/").rpartition("/")[2]
    path, first = (
        root / re.sub(r"[^\w.+-]+", "_", f"{manifest['workload']['name']}-{model}-{name}")
        for name in (manifest["id"], _first_id(manifest))
    )
    return first if first.exists() and not path.exists() else path


def differences(ours: Any, theirs: Any, name: str = "") -> Iterator[str]:
    """Name each field that differs between two manifests, as a dotted path with both values."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from differences(ours.get(key), theirs.get(key), f"{name}.{key}".lstrip("."))
    elif ours != theirs:
        yield f"{name}: {short(theirs)} there, {short(ours)} now"


def short(value: Any) -> str:
    """Shorten a JSON value for a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
