"""What changed between two policies, in words: the result of `inspect A B`.

Compares contents field by field and computes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.promises import counted, promise_of, says_lost
from stopadvisor.policy.shown import where_of
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


Content = Mapping[str, Any]
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
    first, second = a.content, b.content
    changes = [change for change in _changes(first, second) if change.before != change.after]
    changes += [
        Change("other", f"{name}: {before}", f"{name}: {after}")
        for name in sorted({*first, *second} - _SAID)
        if (before := str(first.get(name))) != (after := str(second.get(name)))
    ]
    return PolicyComparison(
        ComparedPolicy(file_a, a.digest, str(first["created"])),
        ComparedPolicy(file_b, b.digest, str(second["created"])),
        same=a.digest == b.digest,
        same_stops=all(first.get(name) == second.get(name) for name in _STOPS),
        changes=tuple(changes),
    )


def _changes(a: Content, b: Content) -> Iterator[Change]:
    yield Change("rule", _rule(a), _rule(b))
    if a["family"] == b["family"] and any(a.get(name) != b.get(name) for name in _RULE):
        yield Change(
            "model of the rule", "its weights", f"others, over {len(b['features'])} features"
        )
    yield Change("probes", _probes(a), _probes(b))
    yield Change("threshold", number(a["threshold"]), number(b["threshold"]))
    yield Change("reply", _reply(a), _reply(b))
    yield Change("promise", _promise(a), _promise(b))
    yield Change("evidence", _evidence(a), _evidence(b))
    yield Change("saving", _saving(a), _saving(b))
    yield Change("accuracy", _accuracy(a), _accuracy(b))
    yield Change("serving", a["serving"], b["serving"])
    yield Change("language model", *_apart(a["model"], b["model"]))
    yield Change("engine", *_apart(a["engine"], b["engine"]))
    yield Change("prompts", *_apart(_prompts(a), _prompts(b)))
    yield Change("sampling", *_apart(a["sampling"], b["sampling"]))
    yield Change("caps", _caps(a), _caps(b))
    yield Change("workload", _short(a["workload_sha256"]), _short(b["workload_sha256"]))
    yield Change("task", a["task"], b["task"])
    yield Change("grader", _grader(a), _grader(b))


def _rule(content: Content) -> str:
    if content["kind"] != "stop":
        return "full thinking: it never stops"
    return f"stops by {rule_name(content['family'])}"


def _grader(content: Content) -> str:
    function = (content["certificate"] or {}).get("grader")
    return content["grader"] if function is None else f"{content['grader']} {function['sha256']}"


def _probes(content: Content) -> str:
    return where_of(content) or "nowhere"


def _reply(content: Content) -> str:
    return "the forced answer" if content["on_stop"] == "probe" else "a visible answer"


def _promise(content: Content) -> str:
    certificate = content["certificate"]
    if certificate is None:
        return "none"
    promise = promise_of(certificate)
    if says_lost(certificate):
        promise = f"at most {share(certificate['alpha'])} of all questions lost"
    confidence = certificate.get("confidence", 1 - certificate["delta"])
    return f"{promise}, with confidence {share(confidence)}"


def _evidence(content: Content) -> str:
    certificate = content["certificate"]
    if certificate is None:
        return "none"
    return counted(certificate)


def _basis(expected: Content) -> tuple[str, str] | None:
    """Which questions say best what to expect: those that nothing has touched, else calibration."""
    if "test_n" in expected:
        return "test_", f"{expected['test_n']} test questions"
    if "calibration_n" in expected:
        return "calibration_", f"{expected['calibration_n']} calibration questions"
    return None


def _saving(content: Content) -> str:
    expected = content["expected"]
    if not expected:
        return "nothing"
    basis = _basis(expected)
    if basis is None:
        return f"{percent(expected.get('fit_total_saving_pct'))} of the cost (fit questions)"
    return f"{percent(expected.get(f'{basis[0]}total_saving_pct'))} of the cost ({basis[1]})"


def _accuracy(content: Content) -> str:
    expected = content["expected"] or {}
    basis = _basis(expected)
    if basis is None:
        return "that of full thinking" if content["kind"] != "stop" else "not measured"
    full, stopped = expected.get(f"{basis[0]}full_accuracy"), expected.get(f"{basis[0]}accuracy")
    return f"from {share(full)} to {share(stopped)} ({basis[1]})"


def _prompts(content: Content) -> dict[str, Any]:
    probe = content["probe"] or {}
    cue = (probe.get("cue") or {}).get("text")
    return {
        "closer": (probe.get("closer") or {}).get("text"),
        "cue": cue and plan_cue(cue, is_open=probe.get("open_cue", False)),
        "prompt template": content["prompt_template"],
        "chat template settings": content["chat_template_kwargs"],
    }


def _caps(content: Content) -> str:
    probe = content["probe"] or {}
    visible = probe.get("answer_cap")
    return (
        f"thinking {content['max_think']}, forced answer {probe.get('cap')}, visible answer "
        f"{'not recorded' if visible is None else visible}"
    )


def _apart(a: Content | None, b: Content | None) -> tuple[str, str]:
    """The fields in which two objects differ, each side in words."""
    if a is None or b is None:
        return ("none" if a is None else _listed(a)), ("none" if b is None else _listed(b))
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    return _listed({n: a.get(n) for n in names}), _listed({n: b.get(n) for n in names})


def _listed(values: Content) -> str:
    return "; ".join(f"{name} {_value(name, value)}" for name, value in values.items())


def _value(name: str, value: Any) -> str:
    return _short(value) if name.endswith("sha256") else repr(value)


def _short(digest: Any) -> str:
    return "unknown" if digest is None else str(digest)[:12]
