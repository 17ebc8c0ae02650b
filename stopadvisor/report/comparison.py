"""What changed between two policies, in words: the result of `inspect A B`.

Compares them field by field and computes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stopadvisor.ground.fields import plain
from stopadvisor.policy.claims import CertificateTerms
from stopadvisor.policy.evidence import ExpectedTerms
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.shown import counted, promise_of, says_lost, where_of
from stopadvisor.policy.terms import PolicyTerms
from stopadvisor.probes.asking import plan_cue
from stopadvisor.report.words import number, percent, share
from stopadvisor.rules.families import rule_name

__all__ = ["Change", "ComparedPolicy", "PolicyComparison", "compared"]


@dataclass(frozen=True)
class ComparedPolicy:
    """One of two policies."""

    policy: Path
    """The file."""
    digest: str
    """Its digest."""
    created: str
    """When, in ISO 8601."""


@dataclass(frozen=True)
class Change:
    """One thing that differs."""

    what: str
    """`rule`, `model of the rule`, `probes`, `threshold`, `reply`, `promise`, `evidence`, `saving`,
    `accuracy`, `serving`, `language model`, `engine`, `prompts`, `sampling`, `caps`, `workload`,
    `task` or `other`."""
    before: str
    """In A, in words."""
    after: str
    """In B, in words."""


@dataclass(frozen=True)
class PolicyComparison:
    """What changed from one policy to another."""

    a: ComparedPolicy
    """The first policy."""
    b: ComparedPolicy
    """The second policy."""
    same: bool
    """Whether both are the same policy, by their digests."""
    same_stops: bool
    """Whether both stop at the same places: rule, probes and threshold are equal."""
    changes: tuple[Change, ...]
    """What differs."""


_Fields = Mapping[str, Any]
_RULE = ("family", "features", "mean", "scale", "coef", "intercept", "trees")
_STOPS = (*_RULE, "kind", "decision_threshold", "budgets", "trigger", "on_stop")
_SAID = {
    *(*_STOPS, "threshold", "order", "certificate", "expected", "serving", "model", "engine"),
    *("probe", "prompt_template", "chat_template_kwargs", "sampling", "max_think", "task"),
    *("workload_sha256", "golden", "digest", "created", "split", "calibration_features"),
    *("profile", "versions", "schema", "grader", "served"),
}
"""Fields that a change of its own says, or that differ between any two calibrations."""


def compared(a: Policy, file_a: Path, b: Policy, file_b: Path) -> PolicyComparison:
    """Compare two policies."""
    first, second = a.terms, b.terms
    others = sorted({field.name for field in fields(PolicyTerms)} - _SAID)
    changes = [
        *_changes(first, second),
        *(Change("other", _other(first, name), _other(second, name)) for name in others),
    ]
    return PolicyComparison(
        ComparedPolicy(file_a, a.digest, first.created),
        ComparedPolicy(file_b, b.digest, second.created),
        same=a.digest == b.digest,
        same_stops=all(getattr(first, name) == getattr(second, name) for name in _STOPS),
        changes=tuple(change for change in changes if change.before != change.after),
    )


def _changes(a: PolicyTerms, b: PolicyTerms) -> Iterator[Change]:
    yield Change("rule", _rule(a), _rule(b))
    if a.family == b.family and any(getattr(a, name) != getattr(b, name) for name in _RULE):
        yield Change("model of the rule", "its weights", f"others, over {len(b.features)} features")
    yield Change("probes", where_of(a) or "nowhere", where_of(b) or "nowhere")
    yield Change("threshold", number(a.threshold), number(b.threshold))
    yield Change("reply", _reply(a), _reply(b))
    yield Change("promise", _promise(a.certificate), _promise(b.certificate))
    yield Change("evidence", _evidence(a.certificate), _evidence(b.certificate))
    yield Change("saving", _saving(a.expected), _saving(b.expected))
    yield Change("accuracy", _accuracy(a), _accuracy(b))
    yield Change("serving", a.serving, b.serving)
    yield Change("language model", *_apart(plain(a.model), plain(b.model)))
    yield Change("engine", *_apart(plain(a.engine), plain(b.engine)))
    yield Change("prompts", *_apart(_prompts(a), _prompts(b)))
    yield Change("sampling", *_apart(plain(a.sampling), plain(b.sampling)))
    yield Change("caps", _caps(a), _caps(b))
    yield Change("workload", _short(a.workload_sha256), _short(b.workload_sha256))
    yield Change("task", a.task, b.task)
    yield Change("grader", _grader(a), _grader(b))


def _other(terms: PolicyTerms, name: str) -> str:
    return f"{name}: {plain(getattr(terms, name))}"


def _rule(terms: PolicyTerms) -> str:
    if terms.family is None:
        return "full thinking: it never stops"
    return f"stops by {rule_name(terms.family)}"


def _grader(terms: PolicyTerms) -> str:
    return " ".join(text for name, text in terms.grading.items() if name != "normalizer")


def _reply(terms: PolicyTerms) -> str:
    return "the forced answer" if terms.on_stop == "probe" else "a visible answer"


def _promise(certificate: CertificateTerms | None) -> str:
    if certificate is None:
        return "none"
    promise = promise_of(certificate.limits)
    if says_lost(certificate):
        promise = f"at most {share(certificate.alpha)} of all questions lost"
    return f"{promise}, with confidence {share(certificate.confidence)}"


def _evidence(certificate: CertificateTerms | None) -> str:
    return "none" if certificate is None else counted(certificate)


def _saving(expected: ExpectedTerms | None) -> str:
    """By the questions that nothing has touched where there are any, else by calibration's."""
    if expected is None:
        return "nothing"
    if expected.test_n is not None:
        saving, whose = expected.test_total_saving_pct, f"{expected.test_n} test questions"
    else:
        saving = expected.calibration_total_saving_pct
        whose = f"{expected.calibration_n} calibration questions"
    return f"{percent(saving)} of the cost ({whose})"


def _accuracy(terms: PolicyTerms) -> str:
    expected = terms.expected
    if expected is None:
        return "that of full thinking" if terms.kind != "stop" else "not measured"
    if expected.test_n is not None:
        full, stopped = expected.test_full_accuracy, expected.test_accuracy
        whose = f"{expected.test_n} test questions"
    else:
        full, stopped = expected.calibration_full_accuracy, expected.calibration_accuracy
        whose = f"{expected.calibration_n} calibration questions"
    return f"from {share(full)} to {share(stopped)} ({whose})"


def _prompts(terms: PolicyTerms) -> dict[str, Any]:
    probe = terms.probe
    return {
        "closer": None if probe is None else probe.closer.text,
        "cue": None if probe is None else plan_cue(probe.cue.text, is_open=probe.open_cue),
        "prompt template": plain(terms.prompt_template),
        "chat template settings": plain(terms.chat_template_kwargs),
    }


def _caps(terms: PolicyTerms) -> str:
    probe = terms.probe
    cap, visible = (None, None) if probe is None else (probe.cap, probe.answer_cap)
    return (
        f"thinking {terms.max_think}, forced answer {cap}, visible answer "
        f"{'not recorded' if visible is None else visible}"
    )


def _apart(a: _Fields | None, b: _Fields | None) -> tuple[str, str]:
    """The fields in which two objects differ, each side in words."""
    if a is None or b is None:
        return ("none" if a is None else _listed(a)), ("none" if b is None else _listed(b))
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    return _listed({n: a.get(n) for n in names}), _listed({n: b.get(n) for n in names})


def _listed(values: _Fields) -> str:
    return "; ".join(f"{name} {_value(name, value)}" for name, value in values.items())


def _value(name: str, value: Any) -> str:
    return _short(value) if name.endswith("sha256") else repr(value)


def _short(digest: Any) -> str:
    return "unknown" if digest is None else str(digest)[:12]
