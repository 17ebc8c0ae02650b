"""A realistic policy for tests, as the JSON values of its file."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from stopadvisor.answers.normal_form import GRADER, NORMALIZER
from stopadvisor.ground.constants import DEFAULT_CUE, MARKERS, PROMPT_TEMPLATES
from stopadvisor.ground.fields import parse, plain
from stopadvisor.policy.file import Format, encode_policy
from stopadvisor.policy.frozen import Policy, build_policy
from stopadvisor.policy.shown import certificate_of
from stopadvisor.policy.terms import LADDER_TRIGGER, PolicyTerms, trigger_terms
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger, stride
from stopadvisor.rules.families import FAMILIES, display_threshold
from stopadvisor.rules.features import FEATURES, LOGPROB_FEATURES, OPEN_FEATURES, POSITION_FEATURES

__all__ = [
    "GIVES_UP", "IDENTITY", "SERVED_RUNGS", "TRIGGERS", "anywhere_content", "built",
    "certificate_content", "certificate_in", "checked", "example_content", "example_contents",
    "example_terms", "family_content", "file_bytes", "full_budget_content", "ladder_content",
    "open_cue_content", "policy_from", "terms_of", "trigger_content",
]  # fmt: skip


def trigger_content(trigger: Trigger, *, family: str | None = None) -> dict[str, Any]:
    """Fields `trigger` and `budgets` of a policy with this trigger."""
    terms, budgets = trigger_terms(trigger, family=family)
    return {"trigger": plain(terms), "budgets": list(budgets)}


def terms_of(content: Mapping[str, Any]) -> PolicyTerms:
    """A content as one typed tree; how its fields fit together is not checked."""
    made = {"schema": 3, "digest": "0" * 64, "golden": [], "trees": None, "served": None}
    return parse(PolicyTerms, made | dict(plain(content)))


def policy_from(content: Mapping[str, Any]) -> Policy:
    """Build a policy from its content; cached, because nothing changes a policy."""
    return _policy_from(json.dumps(plain(content)))


@cache
def _policy_from(content: str) -> Policy:
    return build_policy(terms_of(json.loads(content)))


def built(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the built policy's file."""
    return policy_from(content).content


def checked(content: Mapping[str, Any]) -> Policy:
    """A policy from content that claims to be built."""
    return Policy(parse(PolicyTerms, content))


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


IDENTITY: dict[str, Any] = {
    "engine": "hf",
    "engine_version": "5.23.0",
    "torch": "2.13.0",
    "model": "tiny-reasoner",
    "model_revision": "sha256:" + _sha("weights"),
    "tokenizer_sha256": _sha("tokenizer"),
    "template_sha256": _sha("template"),
    "dtype": "float32",
    "attention": "sdpa",
    "device": "cpu",
    "quantization": None,
    "think_open": {"text": "<think>\n", "ids": [3, 10]},
    "think_close": {"text": "\n</think>", "ids": [10, 4]},
    "stop_ids": [1, 2],
    "chat_template_kwargs": {"enable_thinking": True},
}
"""Identity of the engine that the example content is bound to."""

_EXAMPLE: dict[str, Any] = {
    "kind": "stop",
    "family": "learned",
    "features": list(FEATURES),
    "mean": [0.41, 0.5, -0.62, 0.71, 0.44, 1.9, 0.58, 0.004],
    "scale": [0.33, 0.34, 0.81, 0.66, 0.4963, 1.35, 0.27, 0.006],
    "coef": [0.12, 0.31, 0.94, -0.57, 0.18, 0.42, 0.66, -0.21],
    "intercept": 0.84,
    "threshold": display_threshold("learned", 1.375),
    "decision_threshold": 1.375,
    "trigger": trigger_content(ListedTrigger(()))["trigger"],
    "budgets": [0, 16, 32, 64, 96, 128],
    "probe": {
        "closer": {"text": "\n</think>", "ids": [10, 4]},
        "cue": {"text": DEFAULT_CUE, "ids": [10, 10, 61, 62]},
        "cap": 48,
        "stop_ids": [1, 2],
        "answer_cap": 512,
    },
    "on_stop": "probe",
    "markers": {"phrases": list(MARKERS), "rule": "case-insensitive, non-overlapping, in order"},
    "task": "numeric",
    "normalizer": NORMALIZER,
    "grader": GRADER,
    "entropy_source": "full",
    "prompt_template": PROMPT_TEMPLATES["numeric"],
    "chat_template_kwargs": {"enable_thinking": True},
    "sampling": {"greedy": False, "temperature": 0.6, "seed": 0},
    "max_think": 4096,
    "model": {
        "name": IDENTITY["model"],
        "revision": IDENTITY["model_revision"],
        "tokenizer_sha256": IDENTITY["tokenizer_sha256"],
        "template_sha256": IDENTITY["template_sha256"],
    },
    "engine": {
        "name": "hf",
        "version": "5.23.0",
        "dtype": "float32",
        "quantization": None,
        "attention": "sdpa",
        "device": "cpu",
    },
    "serving": "kv-fork",
    "certificate": {
        "alpha": 0.15,
        "delta": 0.05,
        "confidence": 0.95,
        "bound": "exact",
        "multiplicity": "fixed-sequence",
        "n": 80,
        "losses": 5,
        "upper": 0.12692563640459445,
        "reference": "natural",
        "looks": 1,
        "looks_elsewhere": 0,
        "planned_looks": None,
        "ledger_head": _sha("look"),
        "chain_delta": 0.05,
        "conditional": False,
        "alpha_over_full_accuracy": 0.2,
        "truncated_share": 0.0,
        "max_think": None,
    },
    "profile": {"early_solved": {"count": 24, "share": 0.3, "ci95": [0.2, 0.41]}},
    "expected": {
        "weights": {"prefilled": 1.0, "cached": 0.1, "decoded": 1.0, "unit": "tokens"},
        "cache_block": 16,
        "fit_total_saving_pct": None,
        "fit_risk": 0.06,
        "calibration_n": 80,
        "calibration_risk": 5 / 80,
        "calibration_total_saving_pct": 26.0,
        "calibration_total_saving_band95": [20.0, 31.0],
        "calibration_think_saving_pct": 41.0,
        "calibration_uncut_saving_pct": 26.0,
        "calibration_accuracy": 0.9,
        "calibration_full_accuracy": 0.9,
        "test_risk": 0.05,
        "test_accuracy": 0.81,
        "test_total_saving_pct": 26.1,
    },
    "split": {
        "seed": 0,
        "fractions": [0.4, 0.4, 0.2],
        "fit": [_sha(f"fit {k}")[:16] for k in range(8)],
        "calibration": [_sha(f"calibration {k}")[:16] for k in range(240)],
        "test": [_sha(f"test {k}")[:16] for k in range(4)],
    },
    "workload_sha256": _sha("workload"),
    "versions": {"stopadvisor": "0.1.0", "numpy": "2.4.6", "torch": None},
    "created": "2026-01-02T03:04:05+00:00",
    "order": [],
    "calibration_features": [[40.0, -0.6, 0.7, 0.4, 1.9, 0.6, 0.0], [0.5] * 7],
}


def example_content(**changes: Any) -> dict[str, Any]:
    """A fresh content for `policy_from`: family learned, eight features, six checkpoints."""
    return copy.deepcopy(_EXAMPLE) | changes


def certificate_content(**changes: Any) -> dict[str, Any]:
    """The example's certificate."""
    certificate: dict[str, Any] = example_content()["certificate"]
    return certificate | changes


def example_terms(**changes: Any) -> PolicyTerms:
    """The example as one typed tree; how its fields fit together is not checked."""
    return terms_of(example_content(**changes))


def family_content(family: str, decision_threshold: float | None = None) -> dict[str, Any]:
    """The example with another family's rule."""
    defaults = {
        "learned": 1.375,
        "confidence": -0.105,
        "entropy": -0.21,
        "run-stability": 3.0,
        "confidence-leap": 0.11,
        "learned-keeps": 1.375,
        "agreement": 40.0,
        "agreement-scaled": 3.5,
        "deer": -0.105,
        "fixed-budget": 96.0,
    }
    linear = defaults[family] if decision_threshold is None else decision_threshold
    content = example_content(
        family=family, decision_threshold=linear, threshold=display_threshold(family, linear)
    )
    keys = ("mean", "scale", "coef")
    if family not in ("learned", "learned-keeps"):
        content |= {key: [] for key in ("features", *keys)} | {"intercept": None}
    if family == "fixed-budget":
        at = int(linear)
        content |= trigger_content(ListedTrigger((at,), at), family=family)
    return content


def text_content() -> dict[str, Any]:
    """The example with a learned rule that reads no log-probabilities."""
    content = example_content()
    rows = [k for k, name in enumerate(FEATURES) if name not in LOGPROB_FEATURES]
    return content | {
        key: [content[key][k] for k in rows] for key in ("features", "mean", "scale", "coef")
    }


TRIGGERS: dict[str, Trigger] = {
    "grid-stop": ListedTrigger((0, 16, 32, 64, 96, 128), 128),
    "stride": stride(16, 120),
    "stride-stop": stride(16, 104, 8, 104),
    "marker": MarkerTrigger(((61, 62), (63,)), 12, 6),
    "marker-stop": MarkerTrigger(((61, 62), (63,)), 12, 6, 9, 130),
}
"""A trigger of every kind except a plain grid."""


def anywhere_content(name: str, family: str = "learned", **changes: Any) -> dict[str, Any]:
    """The example with one of `TRIGGERS`, for which learned rules read position features."""
    trigger = TRIGGERS[name]
    content = family_content(family) | trigger_content(trigger, family=family)
    if family in ("learned", "learned-keeps"):
        features = [*POSITION_FEATURES, "marker_density"]
        content |= {
            "features": features,
            "mean": [60.0, 3.9, 0.8, 0.9, 0.55, 18.0, 1.1, 0.004],
            "scale": [35.0, 0.7, 0.4, 0.45, 0.3, 9.0, 2.4, 0.006],
            "coef": [0.1, 0.4, 0.9, 0.3, 0.7, -0.2, 1.3, -0.2],
        }
    return content | changes


_RUNGS: list[dict[str, Any]] = [
    {"name": "small", "model": "tiny", "price": [1.0, 0.1, 1.0]},
    {"name": "large", "reasoning_effort": "high", "price": [10.0, 1.0, 10.0]},
]
SERVED_RUNGS: list[dict[str, Any]] = [
    {"name": "small", "model": "tiny", "price": [1.0, 0.5, 1.0]},
    {"name": "large", "model": "big", "reasoning_effort": "high", "price": [10.0, 1.0, 10.0]},
]
"""Rungs of a ladder at servers."""
GIVES_UP: dict[str, Any] = {
    "rungs": [
        SERVED_RUNGS[0],
        {"name": "middle", "model": "mid", "price": [2.0, 0.2, 2.0]},
        SERVED_RUNGS[1],
    ],
    "asked": [0, 1],
    "path": [[-0.05, -0.05]],
    "give_up": [-0.1],
}
"""A ladder that gives up if a reply is unsure; it needs `on_give_up`."""


def ladder_content(
    family: str = "cap", ladder: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """A policy that climbs: the smaller model within a cap, else the larger one.

    `ladder` changes its ladder; with a path of one step, the threshold is that step.
    """
    content = family_content("run-stability") | {"family": family, "serving": "ladder"}
    nothing = ("model", "engine", "probe", "sampling", "max_think", "prompt_template")
    content |= dict.fromkeys(nothing) | {"budgets": [], "chat_template_kwargs": {}}
    content |= {"trigger": plain(LADDER_TRIGGER), "entropy_source": "full"}
    content |= {"decision_threshold": 2.0, "threshold": 2.0, "order": [4.0, 3.0, 2.0, 1.0]}
    path = [[-900.0], [-500.0], [-40.0]]
    content["ladder"] = {"rungs": _RUNGS, "asked": [0], "path": path} | (ladder or {})
    if len(content["ladder"]["path"]) == 1:
        content |= {"decision_threshold": 1.0, "threshold": 1.0, "order": [2.0, 1.0]}
    return copy.deepcopy(content) | changes


def open_cue_content(**changes: Any) -> dict[str, Any]:
    """The example with an open cue, and a rule that reads whether thinking closes by itself."""
    content = example_content()
    content["probe"]["open_cue"] = True
    more = {"features": OPEN_FEATURES[0], "mean": 0.3, "scale": 0.5, "coef": 1.0}
    for key, value in more.items():
        content[key] = [*content[key], value]
    return content | changes


def file_bytes(content: Mapping[str, Any], format: Format = "json") -> bytes:
    """A policy file with a correct digest, even for content that the writer would refuse."""
    none = "0" * 64
    rest = {key: value for key, value in content.items() if key not in ("schema", "digest")}
    text = json.dumps({"schema": content.get("schema", 3), "digest": none, **rest})
    before, _, after = text.partition(none)
    return encode_policy(before + _sha(text) + after, format)


def full_budget_content() -> dict[str, Any]:
    """The policy that `calibrate` writes if it certified nothing."""
    nothing = ("family", "intercept", "threshold", "decision_threshold", "trigger")
    evidence = ("certificate", "expected", "calibration_features")
    changes: dict[str, Any] = dict.fromkeys((*nothing, *evidence))
    changes |= {name: [] for name in ("features", "mean", "scale", "coef", "budgets")}
    return example_content(kind="full-budget", **changes)


def example_contents() -> dict[str, dict[str, Any]]:
    """A content of every shape that a policy can have, by name."""
    found = {family: family_content(family) for family in FAMILIES}
    for name in TRIGGERS:
        found[name] = anywhere_content(name)
        found[f"{name}-agreement"] = anywhere_content(name, "agreement")
    found["full-budget"] = full_budget_content()
    found["mixed"] = example_content(task="mixed", prompt_template={"math": "{question}?"})
    names = ("model", "engine", "probe", "max_think", "split", "prompt_template", "sampling")
    found["archive"] = example_content(**dict.fromkeys(names))
    found["one-checkpoint"] = example_content(budgets=[0])
    found["open-cue"] = open_cue_content()
    found["ladder"] = ladder_content()
    return found


def certificate_in(policy: Policy) -> dict[str, Any]:
    """The certificate of a policy that stops, with its claim."""
    found = certificate_of(policy.terms)
    assert found is not None
    return dict(plain(found))
