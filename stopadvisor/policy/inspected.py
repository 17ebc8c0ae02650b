"""What `stopadvisor inspect` shows: a policy without its golden decisions and question ids.

Knows a policy that was loaded and the files next to it; words nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stopadvisor.ground.fields import plain
from stopadvisor.policy.evidence import ExpectedTerms, ProfileShare
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import prompt_templates
from stopadvisor.policy.shown import Certificate, certificate_of
from stopadvisor.policy.signature import is_signed, signature_path
from stopadvisor.policy.terms import (
    EngineTerms,
    LadderTerms,
    ModelTerms,
    PolicyTerms,
    ProbeTerms,
    TriggerTerms,
)
from stopadvisor.workload.questions import PartCounts

__all__ = ["InspectedPolicy", "inspected", "server_words"]

_SHOWN_BY_VLLM = 20
"""Log-probabilities that vLLM shows where its `--max-logprobs` says no other number."""


@dataclass(frozen=True)
class Feature:
    """A feature of a learned rule."""

    name: str
    """Of the feature."""
    coef: float
    """Its coefficient."""
    mean: float
    """Subtracted from it first."""
    scale: float
    """By which it is divided then."""


@dataclass(frozen=True)
class Signature:
    """The signature next to a policy."""

    file: str
    """Where it is."""
    key_sha256: str | None
    """SHA-256 of the public key (PEM) that it is right by; null where none was asked for."""


@dataclass(frozen=True, kw_only=True)
class InspectedPolicy:
    """A frozen policy, as people and programs read it."""

    policy: Path
    """The file."""
    policy_schema: int
    """Schema of the file."""
    digest_valid: Literal[True] = True
    """Always true: a policy whose digest is wrong is not loaded."""
    kind: Literal["stop", "full-budget"]
    """`stop` or `full-budget`."""
    family: str | None
    """The rule; null for `full-budget`, as the next two."""
    threshold: float | None
    """It stops when the score reaches this."""
    decision_threshold: float | None
    """The same on the linear scale."""
    trigger: TriggerTerms | None
    """Where it probes; null for `full-budget`."""
    budgets: tuple[int, ...]
    """Thinking tokens at which it probes, where that is a grid."""
    ladder: LadderTerms | None = None
    """Only of a policy that climbs a ladder: its rungs, which replies are asked, and the path."""
    on_stop: Literal["probe", "answer"]
    """The reply of a stopped question: the `probe`, or a visible `answer`."""
    task: str
    """The kind of question that it answers."""
    prompt_template: Mapping[str, str]
    """Text around a question, with `{question}` in it, by task; none for a policy without one."""
    serving: str
    """The serving regime for which it was chosen."""
    entropy_source: str
    """`full`, `top-k:K` or `none`."""
    max_think: int | None
    """Cap on thinking tokens."""
    model: ModelTerms | None
    """What it is bound to; null for an archive."""
    engine: EngineTerms | None
    """What probed; another one asks for a passing `verify`."""
    certificate: Certificate | None
    """What was shown."""
    profile: Mapping[str, ProfileShare] | None
    """Kinds of the questions on which the rule was chosen."""
    expected: ExpectedTerms | None
    """What it is expected to do."""
    versions: Mapping[str, str | None]
    """Of packages, by name."""
    created: str
    """When, in ISO 8601."""
    digest: str
    """SHA-256 over the content."""
    n_questions: PartCounts | None
    """Questions that made it."""
    features: tuple[Feature, ...]
    """By weight, the size of the coefficient."""
    probe: ProbeTerms | None
    """What a probe appends."""
    sampling: Mapping[str, Any]
    """`greedy`, `temperature`, `seed`; `recorded`, a SHA-256, where thinking was."""
    normalizer: str
    """Version of the rules that compare answers."""
    grader: str
    """What graded them: a version of the comparison with gold, or a function."""
    workload_sha256: str | None
    """Of the workload that made it."""
    engine_settings: tuple[EngineSetting, ...]
    """A fixed budget as settings of engines; empty for other rules, and where the reply is the
    forced answer."""
    signature: Signature | None
    """Of the file; null where there is none."""
    serve_with: tuple[str, ...] | None = None
    """Words that `stopadvisor serve POLICY` takes for the stack that it was chosen for."""


def inspected(
    policy: Policy, path: Path, *, signed_by: str | None = None, model: str | None = None
) -> InspectedPolicy:
    """Return what a policy that was loaded from `path` says.

    Parameters
    ----------
    signed_by : str, optional
        SHA-256 of the key that its signature was checked by.
    model : str, optional
        Where its model is; by default the policy's name for it.
    """
    terms = policy.terms
    if model is None and terms.model is not None:
        model = terms.model.name
    split = terms.split
    return InspectedPolicy(
        policy=path,
        policy_schema=terms.schema,
        kind=terms.kind,
        family=terms.family,
        threshold=terms.threshold,
        decision_threshold=terms.decision_threshold,
        trigger=terms.trigger,
        budgets=terms.budgets,
        ladder=terms.ladder,
        on_stop=terms.on_stop,
        task=terms.task,
        prompt_template=prompt_templates(terms),
        serving=terms.serving,
        entropy_source=terms.entropy_source,
        max_think=terms.max_think,
        model=terms.model,
        engine=terms.engine,
        certificate=certificate_of(terms),
        profile=terms.profile,
        expected=terms.expected,
        versions=terms.versions,
        created=terms.created,
        digest=terms.digest,
        n_questions=None
        if split is None
        else PartCounts(len(split.fit), len(split.calibration), len(split.test)),
        features=_features(terms),
        probe=terms.probe,
        sampling={} if terms.sampling is None else plain(terms.sampling),
        normalizer=terms.normalizer,
        grader=terms.grader,
        workload_sha256=terms.workload_sha256,
        engine_settings=engine_settings(terms),
        signature=Signature(str(signature_path(path)), signed_by) if is_signed(path) else None,
        serve_with=server_words(terms, model),
    )


def server_words(terms: PolicyTerms, model: str | None) -> tuple[str, ...] | None:
    """Name the server of the stack that a policy was chosen for, as `serve` takes it.

    None where that is no server, and where the policy never stops or is bound to no model.
    """
    if model is None or terms.kind != "stop":
        return None
    if terms.serving == "prefix-cache":
        return ("--upstream", "http://127.0.0.1:8000/v1")
    if terms.serving != "vllm":
        return None
    parser = "qwen3" if "qwen3" in model.lower() else "deepseek_r1"  # which reads <think>
    words: tuple[str, ...] = ("--", model, "--reasoning-parser", parser)
    if terms.engine is not None and terms.engine.dtype is not None:
        # By itself vLLM halves float32, and refuses the policy then.
        words += ("--dtype", terms.engine.dtype)
    sampling = terms.sampling
    drawn = None if sampling is None or sampling.drawn is None else sampling.drawn.temperature
    if sampling and drawn is not None and (drawn == 0 or sampling.temperature is not None):
        # What a model's own settings leave open, or say otherwise, vLLM would draw by its own.
        words += ("--override-generation-config", json.dumps({"temperature": drawn}))
    if not terms.reads_logprobs:
        return words
    kind, _, shown = terms.entropy_source.partition(":")
    if kind == "full":
        return (*words, "--max-logprobs", "-1")
    return (*words, "--max-logprobs", shown) if int(shown or 0) > _SHOWN_BY_VLLM else words


def _features(terms: PolicyTerms) -> tuple[Feature, ...]:
    columns = zip(terms.features, terms.coef, terms.mean, terms.scale, strict=True)
    return tuple(sorted((Feature(*row) for row in columns), key=lambda row: -abs(row.coef)))


@dataclass(frozen=True)
class EngineSetting:
    """What to tell one engine."""

    engine: str
    """``vLLM``, ``SGLang`` or ``llama.cpp``."""
    server: tuple[str, ...] = ()
    """Words of the command line that starts it."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Fields of each request."""


def engine_settings(terms: PolicyTerms) -> tuple[EngineSetting, ...]:
    """Give a policy's fixed budget as engine settings.

    Notes
    -----
    The engine has to close the thinking with the policy's own ``probe.closer``; another text, such
    as a message before it, was not calibrated.  Each needs to know the model's thinking markers:
    vLLM by its reasoning parser or ``--reasoning-config``, SGLang by its reasoning parser,
    llama.cpp by the chat template.

    References
    ----------
    vLLM, "Reasoning Outputs", thinking budget; SGLang, "Thinking Budget", strict thinking;
    llama.cpp, ``tools/server/README.md``.
    """
    if terms.family != "fixed-budget" or terms.on_stop != "answer" or terms.trigger is None:
        return ()
    tokens = terms.trigger.stop_at
    return (
        EngineSetting("vLLM", ("--reasoning-parser", "NAME"), {"thinking_token_budget": tokens}),
        EngineSetting(
            "SGLang",
            ("--reasoning-parser", "NAME", "--enable-strict-thinking"),
            {"custom_params": {"thinking_budget": tokens}},
        ),
        EngineSetting("llama.cpp", ("--reasoning-budget", str(tokens))),
    )
