"""What `inspect --json` prints: a policy without its golden decisions and question ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from stopadvisor.policy.engine_settings import engine_settings
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.signature import is_signed, signature_path
from stopadvisor.report.documents.fields import FROM_POLICY_FILE, Document, fill
from stopadvisor.report.documents.parts import (
    CertificateFields,
    ExpectedFields,
    PartCountFields,
    ProfileFields,
)

__all__ = ["InspectDocument", "policy_document"]


class _BoundModel(TypedDict):
    name: Annotated[str, "Its name."]
    revision: Annotated[str | None, "Revision or content hash."]
    tokenizer_sha256: Annotated[str | None, "Hash of its tokenizer."]
    template_sha256: Annotated[str | None, "Hash of its chat template."]


class _BoundEngine(TypedDict):
    name: Annotated[str, "What asked the model."]
    version: Annotated[str | None, "Its version."]
    dtype: Annotated[str | None, "Number format of the weights."]
    quantization: Annotated[str | None, "Of the weights."]
    attention: Annotated[str | None, "Implementation of attention."]
    device: Annotated[str | None, "Where it ran."]


class _Tokens(TypedDict):
    text: Annotated[str, "As text."]
    ids: Annotated[list[int] | None, "As token ids."]


class _ProbeSettingsFields(TypedDict):
    closer: Annotated[_Tokens, "Ends the thinking."]
    cue: Annotated[_Tokens, "Asks for the answer."]
    cap: Annotated[int, "Most tokens of a forced answer."]
    stop_ids: Annotated[list[int] | None, "Tokens that end it."]
    answer_cap: Annotated[
        int | None, "Most tokens of a visible answer; null where it was not recorded."
    ]
    open_cue: NotRequired[
        Annotated[bool, "True where the cue stands in the open thinking; else missing."]
    ]


class _TriggerFields(TypedDict):
    kind: Annotated[str, "`grid`, `stride`, `marker`, or `none` for a fixed budget."]
    every: Annotated[int | None, "Tokens from one position to the next."]
    first: Annotated[int | None, "First position of a stride; null: `every`."]
    cap: Annotated[int | None, "No position of a stride lies beyond it."]
    min_gap: Annotated[int | None, "Least tokens between a probe and the next marker that counts."]
    max_probes: Annotated[int | None, "Most probes of a trace."]
    max_markers: Annotated[int | None, "Only the first so many markers count; null: all."]
    markers: Annotated[list[list[int]], "Token ids of each marker."]
    stop_at: Annotated[int | None, "Whoever still thinks here is stopped; null: nobody is."]


class _EngineSettingFields(TypedDict):
    engine: Annotated[str, "Its name."]
    server: Annotated[list[str], "Words of the command line that starts it."]
    request: Annotated[dict[str, Any], "Fields of each request."]


class _Feature(TypedDict):
    name: Annotated[str, "Of the feature."]
    coef: Annotated[float | None, "Its coefficient."]
    mean: Annotated[float | None, "Subtracted from it first."]
    scale: Annotated[float | None, "By which it is divided then."]
    splits: Annotated[int | None, "Splits of boosted trees that ask for it."]


class _Signature(TypedDict):
    file: Annotated[str, "Where it lies."]
    key_sha256: Annotated[
        str | None,
        "SHA-256 of the public key (PEM) that it is right by; null where none was asked for.",
    ]


class InspectDocument(Document):
    """`inspect --json`."""

    policy: Annotated[str, "The file."]
    policy_schema: Annotated[int, "Schema of the file."]
    digest_valid: Annotated[bool, "Always true: a policy whose digest is wrong is not loaded."]
    kind: Annotated[str, "`stop` or `full-budget`."]
    family: Annotated[str | None, "The rule; null for `full-budget`, as the next two."]
    threshold: Annotated[float | None, "It stops when the score reaches this."]
    decision_threshold: Annotated[float | None, "The same on the linear scale."]
    trigger: Annotated[_TriggerFields | None, "Where it probes; null for `full-budget`."]
    budgets: Annotated[list[int], "Thinking tokens at which it probes, where that is a grid."]
    on_stop: Annotated[str, "The reply of a stopped question: the `probe`, or a visible `answer`."]
    task: Annotated[str, "The kind of question that it answers."]
    serving: Annotated[str, "The serving regime for which it was chosen."]
    entropy_source: Annotated[str, "`full`, `top-k:K` or `none`."]
    max_think: Annotated[int | None, "Cap on thinking tokens."]
    model: Annotated[
        _BoundModel | None, "What it is bound to; null for an archive or a simulation."
    ]
    engine: Annotated[_BoundEngine | None, "What probed; another one asks for a passing `verify`."]
    certificate: Annotated[CertificateFields | None, "What was shown.", FROM_POLICY_FILE]
    profile: Annotated[
        ProfileFields | None, "Of the questions on which the rule was chosen.", FROM_POLICY_FILE
    ]
    expected: Annotated[ExpectedFields | None, "What it is expected to do.", FROM_POLICY_FILE]
    versions: Annotated[dict[str, str | None], "Of packages, by name."]
    created: Annotated[str, "When, in ISO 8601."]
    digest: Annotated[str, "SHA-256 over the content."]
    n_questions: Annotated[PartCountFields | None, "Questions that made it."]
    features: Annotated[
        list[_Feature], "By weight: the size of the coefficient, or the number of splits."
    ]
    probe: Annotated[_ProbeSettingsFields | None, "What a probe appends."]
    sampling: Annotated[
        dict[str, Any],
        "`greedy`, `temperature`, `seed`; `recorded`, a SHA-256, where thinking was.",
    ]
    normalizer: Annotated[str, "Version of the rules that compare answers."]
    grader: Annotated[
        str, "What graded them: a version of the comparison with gold, or a function."
    ]
    workload_sha256: Annotated[str | None, "Of the workload that made it."]
    engine_settings: Annotated[
        list[_EngineSettingFields],
        "A fixed budget as settings of engines; empty for other rules, and where the reply is the "
        "forced answer.",
    ]
    signature: Annotated[_Signature | None, "Of the file; null where none lies beside it."]


def policy_document(policy: Policy, path: Path, *, signed_by: str | None = None) -> InspectDocument:
    """Build the document of a policy that was loaded from `path`."""
    signed = {"file": str(signature_path(path)), "key_sha256": signed_by}
    content = policy.content
    probe = content["probe"]
    return fill(
        InspectDocument,
        policy.summary(),
        content,
        policy=path,
        policy_schema=content["schema"],
        digest_valid=True,
        features=_features(content),
        probe=probe,
        engine_settings=engine_settings(content),
        signature=signed if is_signed(path) else None,
    )


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
