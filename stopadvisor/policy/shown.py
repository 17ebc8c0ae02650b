"""What a policy says of itself: its certificate and what to expect of it, typed and in words.

Takes the terms of a policy that was loaded or built; checks nothing that the loader has not.
"""

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
from stopadvisor.rules.climb import Climb
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.schedules import at_budget, schedule_of
from stopadvisor.workload.questions import PartCounts

__all__ = [
    "Certificate", "Expected", "InspectedPolicy", "certificate_of", "counted", "counts",
    "inspected", "promise_of", "promised", "says_lost", "server_words", "where_of",
]  # fmt: skip

Expected = ExpectedTerms


@dataclass(frozen=True, kw_only=True)
class Certificate(CertificateTerms):
    """What was shown about one frozen policy."""

    claim: str
    """The certificate in one sentence."""


def certificate_of(terms: PolicyTerms) -> Certificate | None:
    """The certificate of a policy with its claim in words; None of one that never stops."""
    if terms.certificate is None:
        return None
    words = claim(terms.certificate, climbs=terms.ladder is not None)
    return Certificate(**vars(terms.certificate), claim=words)


def where_of(terms: PolicyTerms) -> str | None:
    """Where a policy asks, in words; None for one that never stops."""
    if terms.kind != "stop" or terms.decision_threshold is None:
        return None
    if terms.family == FIXED_BUDGET:
        return at_budget(int(terms.decision_threshold))
    if terms.ladder is not None:
        climb = Climb.of(str(terms.family), vars(terms.ladder), None)
        return climb.describe(terms.decision_threshold)
    return schedule_of(trigger_of(terms)).describe()


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
    """A limit as a percentage, as it was asked for."""
    return f"{100 * alpha:.10g}%"


class Promised(Protocol):
    """What is promised of one loss."""

    @property
    def loss(self) -> str: ...
    @property
    def alpha(self) -> float: ...
    @property
    def category(self) -> str | None: ...


def promise_of(limits: Iterable[Promised]) -> str:
    """What each loss is limited to."""
    return "; ".join(
        _of(each.category) + _PROMISED[each.loss].format(promised(each.alpha)) for each in limits
    )


def says_lost(certificate: CertificateTerms) -> bool:
    """Whether it is about lost answers and nothing else."""
    return certificate.loss == LOST.name and certificate.guarantees is None


def counted(certificate: CertificateTerms, whom: str = "calibration questions") -> str:
    """What was counted of each loss."""
    if certificate.labelled is not None:
        lost, n = certificate.losses, certificate.n
        differing, planned = certificate.differing, certificate.planned_labels
        if differing is None or planned is None:
            return f"{lost} of {n} {whom} lost, or differ without a label"
        labels = min(differing, planned)
        return f"{lost} of {labels} labelled of {differing} that differ among {n} {whom}"
    return "; ".join(
        _of(each.category)
        + counts(each.loss, each.n, each.lost, each.gained, each.both, each.one, whom)
        for each in certificate.limits
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
    """What was counted of one loss."""
    words = (_COUNTED if both is None else _COUNTED_TWICE)[loss]
    whom = whom and f" {whom}"
    return words.format(lost=lost, n=n, gained=gained, both=both, one=one, whom=whom)


def _of(category: str | None) -> str:
    return "" if category is None else f"category {category}: "


# --- All of it, as `stopadvisor inspect` shows it -------------------------------------------------

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
    names = {each.name for each in fields(InspectedPolicy)} & vars(terms).keys()
    said = {name: getattr(terms, name) for name in names}
    columns = zip(terms.features, terms.coef, terms.mean, terms.scale, strict=True)
    said |= {
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
    return InspectedPolicy(**said)


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
