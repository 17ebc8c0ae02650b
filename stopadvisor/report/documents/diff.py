"""What `inspect A B --json` prints: what changed between two policies, in words.

Compares contents field by field and computes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.promises import counted, promise_of, says_lost
from stopadvisor.probes.plan import plan_cue
from stopadvisor.report.documents.calibrate import where_of
from stopadvisor.report.documents.fields import Document, fill
from stopadvisor.report.words import number, percent, share
from stopadvisor.rules.families import rule_name

__all__ = ["DiffDocument", "diff_document"]


class _Side(TypedDict):
    policy: Annotated[str, "The file."]
    digest: Annotated[str, "Its digest."]
    created: Annotated[str, "When, in ISO 8601."]


class _Change(TypedDict):
    what: Annotated[
        str,
        "`rule`, `model of the rule`, `probes`, `threshold`, `reply`, `promise`, `evidence`, "
        "`saving`, `accuracy`, `serving`, `language model`, `engine`, `prompts`, `sampling`, "
        "`caps`, `workload`, `task` or `other`.",
    ]
    before: Annotated[str, "In A, in words."]
    after: Annotated[str, "In B, in words."]


class DiffDocument(Document):
    """`inspect A B --json`."""

    a: Annotated[_Side, "The first policy."]
    b: Annotated[_Side, "The second policy."]
    same: Annotated[bool, "Whether both are the same policy, by their digests."]
    same_stops: Annotated[
        bool, "Whether both stop at the same places: rule, probes and threshold are equal."
    ]
    changes: Annotated[list[_Change], "What differs."]


Content = Mapping[str, Any]
_RULE = ("family", "features", "mean", "scale", "coef", "intercept", "trees")
_STOPS = (*_RULE, "kind", "decision_threshold", "budgets", "trigger", "on_stop")
_SAID = {
    *(*_STOPS, "threshold", "order", "certificate", "expected", "serving", "model", "engine"),
    *("probe", "prompt_template", "chat_template_kwargs", "sampling", "max_think", "task"),
    *("workload_sha256", "golden", "digest", "created", "split", "calibration_features"),
    *("profile", "versions", "schema", "grader"),
}
"""Fields that a change of its own says, or that differ between any two calibrations."""


def diff_document(a: Policy, file_a: Path, b: Policy, file_b: Path) -> DiffDocument:
    """Build the document of two policies."""
    first, second = a.content, b.content
    changes: list[_Change] = [
        {"what": what, "before": before, "after": after}
        for what, before, after in _changes(first, second)
        if before != after
    ]
    changes += [
        {"what": "other", "before": f"{name}: {before}", "after": f"{name}: {after}"}
        for name in sorted({*first, *second} - _SAID)
        if (before := str(first.get(name))) != (after := str(second.get(name)))
    ]
    return fill(
        DiffDocument,
        a=_side(a, file_a),
        b=_side(b, file_b),
        same=a.digest == b.digest,
        same_stops=all(first.get(name) == second.get(name) for name in _STOPS),
        changes=changes,
    )


def _side(policy: Policy, file: Path) -> _Side:
    return {"policy": str(file), "digest": policy.digest, "created": str(policy.content["created"])}


def _changes(a: Content, b: Content) -> Iterator[tuple[str, str, str]]:
    yield "rule", _rule(a), _rule(b)
    if a["family"] == b["family"] and any(a.get(name) != b.get(name) for name in _RULE):
        yield "model of the rule", "its weights", f"others, over {len(b['features'])} features"
    yield "probes", _probes(a), _probes(b)
    yield "threshold", number(a["threshold"]), number(b["threshold"])
    yield "reply", _reply(a), _reply(b)
    yield "promise", _promise(a), _promise(b)
    yield "evidence", _evidence(a), _evidence(b)
    yield "saving", _saving(a), _saving(b)
    yield "accuracy", _accuracy(a), _accuracy(b)
    yield "serving", a["serving"], b["serving"]
    yield "language model", *_apart(a["model"], b["model"])
    yield "engine", *_apart(a["engine"], b["engine"])
    yield "prompts", *_apart(_prompts(a), _prompts(b))
    yield "sampling", *_apart(a["sampling"], b["sampling"])
    yield "caps", _caps(a), _caps(b)
    yield "workload", _short(a["workload_sha256"]), _short(b["workload_sha256"])
    yield "task", a["task"], b["task"]
    yield "grader", _grader(a), _grader(b)


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
        whom = "the right answers" if certificate.get("conditional") else "all questions"
        promise = f"at most {share(certificate['alpha'])} of {whom} lost"
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
