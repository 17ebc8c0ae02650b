"""A loaded policy for people: its certificate, expected effect and settings, in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol

from stopadvisor.ground.fields import plain
from stopadvisor.policy.claims import CertificateTerms, claim
from stopadvisor.policy.evidence import ExpectedTerms, ProfileShare
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import prompt_templates
from stopadvisor.policy.signature import is_signed, signature_path
from stopadvisor.policy.terms import (
    EngineTerms,
    LadderTerms,
    ModelTerms,
    PolicyTerms,
    ProbeTerms,
    TriggerTerms,
    trigger_of,
)
from stopadvisor.rules.families import FIXED_BUDGET, at_budget
from stopadvisor.rules.losses import LOST
from stopadvisor.workload.questions import PartCounts

__all__ = [
    "Certificate", "Expected", "InspectedPolicy", "certificate_of", "counted", "counts",
    "inspected", "promise_of", "promised", "says_lost", "server_words", "where_of",
]  # fmt: skip

Expected = ExpectedTerms


@dataclass(frozen=True, kw_only=True)
class Certificate(CertificateTerms):
    """A policy's certificate, with its claim in words."""

    claim: str
    """The certificate in one sentence."""


def certificate_of(terms: PolicyTerms) -> Certificate | None:
    """A policy's certificate with its claim in words; None if it never stops."""
    if terms.certificate is None:
        return None
    words = claim(terms.certificate, climbs=terms.ladder is not None)
    return Certificate(**vars(terms.certificate), claim=words)


def where_of(terms: PolicyTerms) -> str | None:
    """Describe where a policy probes; None if it never stops."""
    if terms.kind != "stop" or terms.decision_threshold is None:
        return None
    if terms.family == FIXED_BUDGET:
        return at_budget(int(terms.decision_threshold))
    if terms.ladder is not None:
        return terms.ladder.climb(terms.family).describe(terms.decision_threshold)
    return trigger_of(terms).describe()


# --- In words -------------------------------------------------------------------------------------

_PROMISED = {
    "lost": "at most {} lost",
    "differs": "at most {} of replies different",
    "drop": "accuracy falls by at most {}",
}
_COUNTED = {
    "lost": "{lost} of {n}{whom} lost",
    "differs": "{lost} of {n}{whom} differ from full thinking",
    "drop": "{lost} of {n}{whom} lost and {gained} gained",
}
_COUNTED_TWICE = {
    "lost": "of {n}{whom} {both} lost with both replies and {one} with one",
    "differs": "of {n}{whom} {both} differ from full thinking with both replies and {one} with one",
}


def promised(alpha: float) -> str:
    """A limit as a percentage, with all the digits that the user gave."""
    return f"{100 * alpha:.10g}%"


class Promised(Protocol):
    """The limit of one loss."""

    @property
    def loss(self) -> str: ...
    @property
    def alpha(self) -> float: ...
    @property
    def category(self) -> str | None: ...


def promise_of(limits: Iterable[Promised]) -> str:
    """Describe the limit of each loss."""
    return "; ".join(
        _of(limit.category) + _PROMISED[limit.loss].format(promised(limit.alpha))
        for limit in limits
    )


def says_lost(certificate: CertificateTerms) -> bool:
    """Whether the certificate limits lost answers and nothing else."""
    return certificate.loss == LOST.name and certificate.guarantees is None


def counted(certificate: CertificateTerms, whom: str = "calibration questions") -> str:
    """Describe the losses counted for each limit."""
    if certificate.labelled is not None:
        lost, n = certificate.losses, certificate.n
        differing, planned = certificate.differing, certificate.planned_labels
        if differing is None or planned is None:
            return f"{lost} of {n} {whom} lost, or differ without a label"
        labels = min(differing, planned)
        return f"{lost} of {labels} labelled of {differing} that differ among {n} {whom}"
    return "; ".join(
        _of(limit.category)
        + counts(limit.loss, limit.n, limit.lost, limit.gained, limit.both, limit.one, whom)
        for limit in certificate.limits
    )


def counts(
    loss: str,
    n: int,
    lost: int,
    gained: int = 0,
    both: int | None = None,
    one: int | None = None,
    whom: str = "",
) -> str:
    """Describe the counts of one loss."""
    words = (_COUNTED if both is None else _COUNTED_TWICE)[loss]
    whom = whom and f" {whom}"
    return words.format(lost=lost, n=n, gained=gained, both=both, one=one, whom=whom)


def _of(category: str | None) -> str:
    return "" if category is None else f"category {category}: "


# --- `stopadvisor inspect` ------------------------------------------------------------------------

_VLLM_LOGPROBS = 20
"""vLLM's default for `--max-logprobs`."""


@dataclass(frozen=True)
class Feature:
    """A feature of a learned rule."""

    name: str
    """Name of the feature."""
    coef: float
    """Coefficient of the scaled feature."""
    mean: float
    """Mean that is subtracted from the feature."""
    scale: float
    """Divisor of the difference."""


@dataclass(frozen=True)
class Signature:
    """The signature next to a policy."""

    file: str
    """Path of the signature."""
    key_sha256: str | None
    """SHA-256 of the public key (PEM) that verified it; null if none was given."""


@dataclass(frozen=True, kw_only=True)
class InspectedPolicy:
    """A frozen policy, for people and programs to read."""

    policy: Path
    """The file."""
    policy_schema: int
    """Schema of the file."""
    digest_valid: Literal[True] = True
    """Always true: a policy whose digest is wrong is not loaded."""
    kind: Literal["stop", "full-budget"]
    """`stop` or `full-budget`."""
    family: str | None
    """Family of the rule; null for `full-budget`, like the next two."""
    threshold: float | None
    """It stops when the score reaches this."""
    decision_threshold: float | None
    """The same on the linear scale."""
    trigger: TriggerTerms | None
    """Where it probes; null for `full-budget`."""
    budgets: tuple[int, ...]
    """Thinking tokens at which it probes, if it probes on a grid."""
    ladder: LadderTerms | None = None
    """Rungs, replies asked for and path, if it climbs a ladder."""
    on_stop: Literal["probe", "answer"]
    """What a stopped question gets: the `probe`'s answer, or a visible `answer`."""
    task: str
    """The kind of question that it answers."""
    prompt_template: Mapping[str, str]
    """Text around a question, containing `{question}`, by task; empty if questions are sent as they
    are."""
    serving: str
    """The serving stack for which it was chosen."""
    entropy_source: str
    """`full`, `top-k:K` or `none`."""
    max_think: int | None
    """Cap on thinking tokens."""
    model: ModelTerms | None
    """The model it is bound to; null for an archive."""
    engine: EngineTerms | None
    """The engine of calibration; under another one, `verify` should pass first."""
    certificate: Certificate | None
    """What was certified."""
    profile: Mapping[str, ProfileShare] | None
    """Trajectory types of the questions on which the rule was chosen."""
    expected: ExpectedTerms | None
    """Expected risk and saving."""
    versions: Mapping[str, str | None]
    """Versions of the packages that built it."""
    created: str
    """When it was built, in ISO 8601."""
    digest: str
    """SHA-256 over the content."""
    n_questions: PartCounts | None
    """Number of questions that it was made from, by part."""
    features: tuple[Feature, ...]
    """Features of a learned rule, largest coefficient first."""
    probe: ProbeTerms | None
    """What a probe appends."""
    sampling: Mapping[str, Any]
    """`greedy`, `temperature`, `seed`; and `recorded`, a SHA-256, if thinking was recorded."""
    normalizer: str
    """Version of the normal form in which answers are compared."""
    grader: str
    """What graded answers: a version of the comparison with gold, or a function."""
    workload_sha256: str | None
    """SHA-256 of the workload it was made from."""
    engine_settings: tuple[EngineSetting, ...]
    """A fixed budget as settings of engines; empty for other rules, or if the reply is the forced
    answer."""
    signature: Signature | None
    """The file's signature; null if there is none."""
    serve_with: tuple[str, ...] | None = None
    """Arguments after `stopadvisor serve POLICY`, for the stack that it was chosen for."""


def inspected(
    policy: Policy, path: Path, *, signed_by: str | None = None, model: str | None = None
) -> InspectedPolicy:
    """Describe a policy that was loaded from `path`.

    Parameters
    ----------
    signed_by : str, optional
        SHA-256 of the public key that verified its signature.
    model : str, optional
        Path or name of its model; by default the name in the policy.
    """
    terms = policy.terms
    if model is None and terms.model is not None:
        model = terms.model.name
    split = terms.split
    names = {field.name for field in fields(InspectedPolicy)} & vars(terms).keys()
    values = {name: getattr(terms, name) for name in names}
    columns = zip(terms.features, terms.coef, terms.mean, terms.scale, strict=True)
    values |= {
        "policy": path,
        "policy_schema": terms.schema,
        "prompt_template": prompt_templates(terms),
        "certificate": certificate_of(terms),
        "n_questions": None
        if split is None
        else PartCounts(len(split.fit), len(split.calibration), len(split.test)),
        "features": tuple(sorted((Feature(*c) for c in columns), key=lambda c: -abs(c.coef))),
        "sampling": {} if terms.sampling is None else plain(terms.sampling),
        "engine_settings": engine_settings(terms),
        "signature": Signature(str(signature_path(path)), signed_by) if is_signed(path) else None,
        "serve_with": server_words(terms, model),
    }
    return InspectedPolicy(**values)


def server_words(terms: PolicyTerms, model: str | None) -> tuple[str, ...] | None:
    """Arguments of `serve` for the stack that a policy was chosen for.

    None if that stack is no server, or if the policy never stops or is bound to no model.
    """
    if model is None or terms.kind != "stop":
        return None
    if terms.serving == "prefix-cache":
        return ("--upstream", "http://127.0.0.1:8000/v1")
    if terms.serving != "vllm":
        return None
    parser = "qwen3" if "qwen3" in model.lower() else "deepseek_r1"  # the latter reads <think>
    words: tuple[str, ...] = ("--", model, "--reasoning-parser", parser)
    if terms.engine is not None and terms.engine.dtype is not None:
        # vLLM loads float32 weights in half precision by default, and would then refuse the policy.
        words += ("--dtype", terms.engine.dtype)
    sampling = terms.sampling
    drawn = None if sampling is None or sampling.drawn is None else sampling.drawn.temperature
    if sampling and drawn is not None and (drawn == 0 or sampling.temperature is not None):
        # Otherwise vLLM uses its own default, or that of the model's generation config.
        words += ("--override-generation-config", json.dumps({"temperature": drawn}))
    if not terms.reads_logprobs:
        return words
    kind, _, top_k = terms.entropy_source.partition(":")
    if kind == "full":
        return (*words, "--max-logprobs", "-1")
    return (*words, "--max-logprobs", top_k) if int(top_k or 0) > _VLLM_LOGPROBS else words


@dataclass(frozen=True)
class EngineSetting:
    """Settings of one engine."""

    engine: str
    """``vLLM``, ``SGLang`` or ``llama.cpp``."""
    server: tuple[str, ...] = ()
    """Arguments of the server's command line."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Fields of each request."""


def engine_settings(terms: PolicyTerms) -> tuple[EngineSetting, ...]:
    """A policy's fixed budget as settings of engines.

    Notes
    -----
    The engine must close the thinking with the policy's own ``probe.closer``: no other text was
    calibrated.  It must also know the model's thinking markers: vLLM from its reasoning parser or
    ``--reasoning-config``, SGLang from its reasoning parser, llama.cpp from the chat template.

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
