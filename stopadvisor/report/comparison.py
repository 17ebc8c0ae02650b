"""The differences between two policies, field by field and in words: `inspect A B`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stopadvisor.ground.fields import plain
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
    """Time of creation, in ISO 8601."""


@dataclass(frozen=True)
class Change:
    """One thing that differs."""

    what: str
    """`rule`, `model of the rule`, `probes`, `threshold`, `reply`, `promise`, `evidence`, `saving`,
    `accuracy`, `serving`, `language model`, `engine`, `prompts`, `sampling`, `caps`, `workload`,
    `task`, `grader` or `other`."""
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


_RULE = ("family", "features", "mean", "scale", "coef", "intercept")
_STOPS = (*_RULE, "kind", "decision_threshold", "budgets", "trigger", "on_stop")
_COMPARED_ABOVE = {
    *(*_STOPS, "threshold", "order", "certificate", "expected", "serving", "model", "engine"),
    *("probe", "prompt_template", "chat_template_kwargs", "sampling", "max_think", "task"),
    *("workload_sha256", "golden", "digest", "created", "split", "calibration_features"),
    *("profile", "versions", "schema", "grader", "served"),
}
"""Fields that `_words` compares, or that differ between any two calibrations."""

_Words = str | Mapping[str, Any] | None
"""A property in words, or the fields of an object; only those that differ are shown."""


def compared(a: Policy, file_a: Path, b: Policy, file_b: Path) -> PolicyComparison:
    """Compare two policies."""
    first, second = a.terms, b.terms
    before, after = _words(first), _words(second)
    if first.family == second.family and _differ(first, second, _RULE):
        before["model of the rule"] = "its weights"
        after["model of the rule"] = f"others, over {len(second.features)} features"
    changes = [Change(what, *_differing(before[what], after[what])) for what in before]
    for name in sorted({field.name for field in fields(PolicyTerms)} - _COMPARED_ABOVE):
        values = (plain(getattr(terms, name)) for terms in (first, second))
        changes.append(Change("other", *(f"{name}: {value}" for value in values)))
    return PolicyComparison(
        ComparedPolicy(file_a, a.digest, first.created),
        ComparedPolicy(file_b, b.digest, second.created),
        same=a.digest == b.digest,
        same_stops=not _differ(first, second, _STOPS),
        changes=tuple(change for change in changes if change.before != change.after),
    )


def _differ(a: PolicyTerms, b: PolicyTerms, names: Iterable[str]) -> bool:
    return any(getattr(a, name) != getattr(b, name) for name in names)


def _words(terms: PolicyTerms) -> dict[str, _Words]:
    """Return the properties of a policy in words, by name, in the order of the screen."""
    certificate, probe = terms.certificate, terms.probe
    promise = evidence = "none"
    if certificate is not None:
        promise = promise_of(certificate.limits)
        if says_lost(certificate):
            promise = f"at most {share(certificate.alpha)} of all questions lost"
        promise += f", with confidence {share(certificate.confidence)}"
        evidence = counted(certificate)
    saving, accuracy = _figures(terms)
    rule = "full thinking: it never stops"
    if terms.family is not None:
        rule = f"stops by {rule_name(terms.family)}"
    cap, visible = (None, None) if probe is None else (probe.cap, probe.answer_cap)
    return {
        "rule": rule,
        "model of the rule": None,
        "probes": where_of(terms) or "nowhere",
        "threshold": number(terms.threshold),
        "reply": "the forced answer" if terms.on_stop == "probe" else "a visible answer",
        "promise": promise,
        "evidence": evidence,
        "saving": saving,
        "accuracy": accuracy,
        "serving": terms.serving,
        "language model": plain(terms.model),
        "engine": plain(terms.engine),
        "prompts": {
            "closer": None if probe is None else probe.closer.text,
            "cue": None if probe is None else plan_cue(probe.cue.text, is_open=probe.open_cue),
            "prompt template": plain(terms.prompt_template),
            "chat template settings": plain(terms.chat_template_kwargs),
        },
        "sampling": plain(terms.sampling),
        "caps": f"thinking {terms.max_think}, forced answer {cap}, visible answer "
        f"{'not recorded' if visible is None else visible}",
        "workload": _short(terms.workload_sha256),
        "task": terms.task,
        "grader": " ".join(text for name, text in terms.grading.items() if name != "normalizer"),
    }


def _figures(terms: PolicyTerms) -> tuple[str, str]:
    """Return saving and accuracy on test questions, else on calibration questions."""
    expected = terms.expected
    if expected is None:
        return "nothing", "that of full thinking" if terms.kind != "stop" else "not measured"
    if expected.test_n is not None:
        saving, whose = expected.test_total_saving_pct, f"{expected.test_n} test questions"
        full, stopped = expected.test_full_accuracy, expected.test_accuracy
    else:
        saving = expected.calibration_total_saving_pct
        whose = f"{expected.calibration_n} calibration questions"
        full, stopped = expected.calibration_full_accuracy, expected.calibration_accuracy
    return (
        f"{percent(saving)} of the cost ({whose})",
        f"from {share(full)} to {share(stopped)} ({whose})",
    )


def _differing(a: _Words, b: _Words) -> tuple[str, str]:
    """Return both sides in words; of two objects only the fields that differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
        a, b = ({name: side.get(name) for name in names} for side in (a, b))
    return _listed(a), _listed(b)


def _listed(words: _Words) -> str:
    if not isinstance(words, Mapping):
        return words or "none"
    return "; ".join(
        f"{name} {_short(value) if name.endswith('sha256') else repr(value)}"
        for name, value in words.items()
    )


def _short(digest: Any) -> str:
    return "unknown" if digest is None else str(digest)[:12]
