"""What a policy says, as frozen values that are read once, when it is loaded.

Serving asks these for every request, so nothing here copies or parses.  The rule itself is laid out
in `stepper.StopRule`; golden decisions and the figures that are only shown stay in the content.

Knows a checked content's fields.  Checks nothing again (`schema` does), and knows no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from stopadvisor.probes.plan import OnStop

__all__ = [
    "CertificateTerms",
    "EngineTerms",
    "ModelTerms",
    "PolicyTerms",
    "ProbeTerms",
    "SplitTerms",
    "TokenText",
]


@dataclass(frozen=True)
class TokenText:
    """A text and the token ids that stand for it."""

    text: str
    ids: tuple[int, ...] | None
    """None where they were not recorded."""


@dataclass(frozen=True)
class ProbeTerms:
    """How an answer is forced."""

    closer: TokenText
    cue: TokenText
    cap: int
    """Most tokens of a forced answer."""
    stop_ids: tuple[int, ...] | None
    answer_cap: int | None
    """Most tokens of a visible answer; None where it was not recorded, as before schema 2."""
    open_cue: bool = False
    """The cue stands in the open thinking, without a closer before it."""


@dataclass(frozen=True)
class ModelTerms:
    """The model that the policy is bound to."""

    name: str
    revision: str | None
    tokenizer_sha256: str | None
    template_sha256: str | None


@dataclass(frozen=True)
class EngineTerms:
    """What ran the model at calibration."""

    name: str
    version: str | None
    dtype: str | None
    quantization: str | None
    attention: str | None
    device: str | None


@dataclass(frozen=True)
class CertificateTerms:
    """What was shown about the policy."""

    alpha: float
    delta: float
    bound: str
    multiplicity: str
    n: int
    losses: int
    upper: float
    reference: Literal["natural", "last-checkpoint"]
    looks: int
    answer_cap: int | None
    """Most tokens of a visible answer, where such answers were certified."""


@dataclass(frozen=True)
class SplitTerms:
    """Content hashes of the questions that made the policy, by part."""

    seed: int
    fit: tuple[str, ...]
    calibration: tuple[str, ...]
    test: tuple[str, ...]


@dataclass(frozen=True)
class PolicyTerms:
    """The fields of a policy that serving and its checks read."""

    kind: Literal["stop", "full-budget"]
    on_stop: OnStop
    task: str
    """One of the tasks, or ``mixed``."""
    entropy_source: str
    """``full``, ``top-k:K`` or ``none``."""
    serving: Literal["vllm", "kv-fork", "prefix-cache", "black-box"]
    max_think: int | None
    prompt_template: str | Mapping[str, str] | None
    """One template, or one by task."""
    chat_template_kwargs: Mapping[str, Any]
    sampling: Mapping[str, Any]
    probe: ProbeTerms | None
    model: ModelTerms | None
    """None: the policy comes from an archive or a simulation."""
    engine: EngineTerms | None
    certificate: CertificateTerms | None
    grading: Mapping[str, str]
    """What graded the calibration questions, as a run's manifest says it."""
    split: SplitTerms | None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> PolicyTerms:
        """Read a checked content, whose own mappings must not change afterwards."""
        names = ("kind", "on_stop", "task", "entropy_source", "serving", "max_think")
        mappings = ("prompt_template", "chat_template_kwargs", "sampling")
        model, engine = content["model"], content["engine"]
        return cls(
            **{name: content[name] for name in (*names, *mappings)},
            probe=_probe(content["probe"]),
            model=None if model is None else ModelTerms(**model),
            engine=None if engine is None else EngineTerms(**engine),
            certificate=_certificate(content["certificate"]),
            grading=_grading(content),
            split=_split(content["split"]),
        )


def _probe(found: Mapping[str, Any] | None) -> ProbeTerms | None:
    if found is None:
        return None
    return ProbeTerms(
        closer=TokenText(found["closer"]["text"], _ids(found["closer"]["ids"])),
        cue=TokenText(found["cue"]["text"], _ids(found["cue"]["ids"])),
        cap=found["cap"],
        stop_ids=_ids(found["stop_ids"]),
        answer_cap=found.get("answer_cap"),
        open_cue=found.get("open_cue", False),
    )


def _ids(found: list[int] | None) -> tuple[int, ...] | None:
    return None if found is None else tuple(found)


def _certificate(found: Mapping[str, Any] | None) -> CertificateTerms | None:
    if found is None:
        return None
    terms: dict[str, Any] = {f.name: found.get(f.name) for f in fields(CertificateTerms)}
    return CertificateTerms(**terms)


def _grading(content: Mapping[str, Any]) -> dict[str, str]:
    found = {name: content[name] for name in ("normalizer", "grader")}
    function = (content["certificate"] or {}).get("grader")
    return found if function is None else {**found, "grader_sha256": function["sha256"]}


def _split(found: Mapping[str, Any] | None) -> SplitTerms | None:
    if found is None:
        return None
    parts = {name: tuple(found[name]) for name in ("fit", "calibration", "test")}
    return SplitTerms(seed=found["seed"], **parts)
