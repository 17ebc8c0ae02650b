"""What `inspect --json` prints: a policy without its golden decisions and question ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

from stopadvisor.policy.frozen import Policy
from stopadvisor.report.documents.parts import (
    FROM_POLICY_FILE,
    SCHEMA,
    CertificateFields,
    ExpectedFields,
    PartCounts,
    ProfileFields,
)

__all__ = ["InspectDocument", "policy_document"]


class _BoundModel(TypedDict):
    name: str
    """Its name."""
    revision: str | None
    """Revision or content hash."""
    tokenizer_sha256: str | None
    """Hash of its tokenizer."""
    template_sha256: str | None
    """Hash of its chat template."""


class _BoundEngine(TypedDict):
    name: str
    """What asked the model."""
    version: str | None
    """Its version."""
    dtype: str | None
    """Number format of the weights."""
    quantization: str | None
    """Of the weights."""
    attention: str | None
    """Implementation of attention."""
    device: str | None
    """Where it ran."""


class _Tokens(TypedDict):
    text: str
    """As text."""
    ids: list[int] | None
    """As token ids."""


class _ProbeSettings(TypedDict):
    closer: _Tokens
    """Ends the thinking."""
    cue: _Tokens
    """Asks for the answer."""
    cap: int
    """Most tokens of a forced answer."""
    stop_ids: list[int] | None
    """Tokens that end it."""


class _Feature(TypedDict):
    name: str
    """Of the feature."""
    coef: float | None
    """Its coefficient."""
    mean: float | None
    """Subtracted from it first."""
    scale: float | None
    """By which it is divided then."""
    splits: int | None
    """Splits of boosted trees that ask for it."""


class InspectDocument(TypedDict):
    """`inspect --json`."""

    schema: int
    """Now 1; raised when a program that reads this has to change."""
    policy: str
    """The file."""
    digest_valid: bool
    """Always true: a policy whose digest is wrong is not loaded."""
    kind: str
    """`stop` or `full-budget`."""
    family: str | None
    """The rule; null for `full-budget`, as the next two."""
    threshold: float | None
    """It stops when the score reaches this."""
    decision_threshold: float | None
    """The same on the linear scale."""
    budgets: list[int]
    """Thinking tokens at which it probes."""
    on_stop: str
    """The reply of a stopped question: the `probe`, or a visible `answer`."""
    task: str
    """The kind of question that it answers."""
    serving: str
    """The serving regime for which it was chosen."""
    entropy_source: str
    """`full`, `top-k:K` or `none`."""
    max_think: int | None
    """Cap on thinking tokens."""
    model: _BoundModel | None
    """What it is bound to; null for an archive or a simulation."""
    engine: _BoundEngine | None
    """What probed; another one asks for a passing `verify`."""
    certificate: Annotated[CertificateFields | None, FROM_POLICY_FILE]
    """What was shown."""
    profile: Annotated[ProfileFields | None, FROM_POLICY_FILE]
    """Of the questions on which the rule was chosen."""
    expected: Annotated[ExpectedFields | None, FROM_POLICY_FILE]
    """What it is expected to do."""
    versions: dict[str, str | None]
    """Of packages, by name."""
    created: str
    """When, in ISO 8601."""
    digest: str
    """SHA-256 over the content."""
    n_questions: PartCounts | None
    """Questions that made it."""
    features: list[_Feature]
    """By weight: the size of the coefficient, or the number of splits."""
    probe: _ProbeSettings | None
    """What a probe appends."""
    sampling: dict[str, Any]
    """`greedy`, `temperature` and `seed` of the traces."""
    normalizer: str
    """Version of the rules that compare answers."""
    grader: str
    """Version of the rules that grade them."""
    workload_sha256: str | None
    """Of the workload that made it."""


def policy_document(policy: Policy, path: Path) -> InspectDocument:
    """Build the document of a policy that was loaded from `path`."""
    content, summary = policy.content, policy.summary()
    return {
        "schema": SCHEMA,
        "policy": str(path),
        "digest_valid": True,
        "kind": summary["kind"],
        "family": summary["family"],
        "threshold": summary["threshold"],
        "decision_threshold": summary["decision_threshold"],
        "budgets": summary["budgets"],
        "on_stop": summary["on_stop"],
        "task": summary["task"],
        "serving": summary["serving"],
        "entropy_source": summary["entropy_source"],
        "max_think": summary["max_think"],
        "model": summary["model"],
        "engine": summary["engine"],
        "certificate": summary["certificate"],
        "profile": summary["profile"],
        "expected": summary["expected"],
        "versions": summary["versions"],
        "created": summary["created"],
        "digest": summary["digest"],
        "n_questions": summary["n_questions"],
        "features": _features(content),
        "probe": content["probe"],
        "sampling": content["sampling"],
        "normalizer": content["normalizer"],
        "grader": content["grader"],
        "workload_sha256": content["workload_sha256"],
    }


def _features(content: Mapping[str, Any]) -> list[_Feature]:
    rows: list[_Feature] = [
        {"name": name, "coef": None, "mean": None, "scale": None, "splits": None}
        for name in content["features"]
    ]
    if content["family"] == "learned-boosted":
        for k, row in enumerate(rows):
            row["splits"] = sum(tree["feature"].count(k) for tree in content["trees"])
        return sorted(rows, key=lambda row: -(row["splits"] or 0))
    for k, row in enumerate(rows):
        row["coef"], row["mean"] = content["coef"][k], content["mean"][k]
        row["scale"] = content["scale"][k]
    return sorted(rows, key=lambda row: -abs(row["coef"] or 0.0))
