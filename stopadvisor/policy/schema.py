"""What a policy holds: every field with its type, range and meaning, written down once.

Knows no files, and decides nothing about a question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

from stopadvisor.answers.normal_form import TASKS
from stopadvisor.errors import PolicyError
from stopadvisor.policy.checks import (
    LINE,
    NAME,
    SHARE,
    SHARE_OR_END,
    FieldCheck,
    expect,
    list_of,
    map_of,
    matching,
    nullable,
    one_of,
    record,
    tokens,
    where,
    whole,
)
from stopadvisor.policy.learned_checks import check_learned
from stopadvisor.policy.limits import check_counts, check_grader
from stopadvisor.policy.template_arguments import reserved_arguments
from stopadvisor.policy.triggers import (
    MOST_GRID_POSITIONS,
    TRIGGER,
    check_trigger,
    most_probes,
    trigger_of,
)
from stopadvisor.printable import short_repr
from stopadvisor.rules.families import FAMILIES, LEARNED_FAMILIES, display_threshold
from stopadvisor.rules.features import (
    FEATURES,
    GRID_FEATURES,
    LOGPROB_FEATURES,
    OPEN_FEATURES,
    POSITION_FEATURES,
)

__all__ = ["FIELDS", "MIXED_TASKS", "check_fields", "reads_logprobs"]

MIXED_TASKS = "mixed"
"""`task` of a policy whose questions each bring their own."""

_MAX_TREES = 500
_MAX_GOLDEN = 32
_MAX_GOLDEN_STEPS = 4096

# --- Kinds of values ------------------------------------------------------------------------------

_TEXT = where("a string", lambda value: type(value) is str)
_REAL = where("a float", lambda value: type(value) is float)
_FLAG = where("true or false", lambda value: type(value) is bool)
_ANY_DICT = where("a dict", lambda value: type(value) is dict)
_SHA256 = matching("[0-9a-f]{64}", "a SHA-256 in 64 hex digits")
_IDS = list_of(tokens(0))
_INTEGER = where("an integer", lambda value: type(value) is int)
_TEXT_AND_IDS = record(
    {
        "text": _TEXT.means("As decoded."),
        "ids": nullable(_IDS).means("As the model sees it; null where not recorded."),
    }
)
_TEMPLATE = nullable(
    where("a string, a dict of strings by task, or null", lambda value: type(value) is str)
)
_TEMPLATES = map_of(_TEXT)


_PROMPT_TEMPLATE = FieldCheck(
    "a string, a dict of strings by task, or null",
    lambda value, name: (_TEMPLATES if type(value) is dict else _TEMPLATE)(value, name),
)


def _check_template_arguments(value: Any, name: str) -> None:
    expect(type(value) is dict, name, "a dict", value)
    for key in reserved_arguments(value):
        raise PolicyError(
            f"field '{name}': argument {short_repr(key)} is reserved: "
            "it would replace what the policy is bound to"
        )


_PROBE = {
    "closer": _TEXT_AND_IDS.means("Closes the thinking."),
    "cue": _TEXT_AND_IDS.means("Follows the closer, or the thinking, and asks for the answer."),
    "cap": tokens(1).means("Most tokens of a forced answer."),
    "stop_ids": nullable(_IDS).means("Tokens that end an answer."),
}


_DRAWN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_SAMPLING = {
    "greedy": _FLAG.means("Whether the likeliest token is taken."),
    "temperature": nullable(
        where("a number > 0", lambda v: type(v) in (int, float) and v > 0)
    ).means("Of the draw; null for the model's own."),
    "seed": nullable(_INTEGER).means("Of the draw."),
    "drawn": where(
        f"an object of {len(_DRAWN)} numbers, {', '.join(_DRAWN)}",
        lambda v: (
            type(v) is dict
            and v.keys() == set(_DRAWN)
            and all(type(x) in (int, float) for x in v.values())
        ),
    ).means("What these and the model's own settings made of it; a server must draw alike."),
}


def _is_timestamp(value: Any) -> bool:
    try:
        return type(value) is str and bool(datetime.fromisoformat(value))
    except ValueError:
        return False


# --- The fields -----------------------------------------------------------------------------------

FIELDS: dict[str, FieldCheck] = {
    "schema": whole(1).means("Version of these fields; a change of their meaning raises it."),
    "digest": _SHA256.means("Over all other fields; finds damage, and is no signature."),
    "kind": one_of("stop", "full-budget").means(
        "Whether it can stop a request; `full-budget` asks no probe and thinks to the end."
    ),
    "family": one_of(*FAMILIES, None).means("Which score decides; null for `full-budget`."),
    "decision_threshold": nullable(_REAL).means("Stop when the score reaches it."),
    "threshold": nullable(_REAL).means(
        "For people: `decision_threshold` as a probability or confidence, where it is one."
    ),
    "on_stop": one_of("probe", "answer").means(
        "What a stopped request gets: the forced answer, or a visible one written after the closer."
    ),
    "trigger": TRIGGER.means("Where to probe; null for `full-budget`."),
    "budgets": list_of(tokens(0), most=MOST_GRID_POSITIONS).means(
        "Thinking tokens at which to probe, strictly increasing; for a trigger of kind `grid` only."
    ),
    "probe": nullable(
        record(
            {
                **_PROBE,
                "answer_cap": nullable(tokens(1)).means(
                    "Most tokens of a visible answer; null where it was not recorded."
                ),
            },
            optional={
                "open_cue": _FLAG.means(
                    "Whether the cue stands in the open thinking, without a closer before it; "
                    "false where it is missing."
                )
            },
        )
    ).means("How an answer is forced; its texts are empty where probes came from an archive."),
    "features": list_of(one_of(*FEATURES, *POSITION_FEATURES, *OPEN_FEATURES)).means(
        "Features that a learned score reads, in the order in which its terms are added."
    ),
    "mean": list_of(_REAL).means("Of each feature; linear families only."),
    "scale": list_of(where("a float > 0", lambda v: type(v) is float and v > 0)).means(
        "What each feature is divided by once its mean is subtracted; linear families only."
    ),
    "coef": list_of(_REAL).means("Weight of each scaled feature; linear families only."),
    "intercept": nullable(_REAL).means("What a learned score begins with."),
    "markers": record(
        {
            "phrases": list_of(NAME).means("What is counted."),
            "rule": LINE.means("How it is counted, in words."),
        }
    ).means("Backtracking markers, for the feature `marker_density`."),
    "task": one_of(*TASKS, MIXED_TASKS).means(
        "How answers are normalised; `mixed`: each request names its own task."
    ),
    "normalizer": LINE.means("Version of the normal form by which answers are compared."),
    "grader": LINE.means(
        "What graded the calibration questions; of a function `certificate.grader` has the hash."
    ),
    "entropy_source": matching(
        "full|none|top-k:[1-9][0-9]{0,6}", "'full', 'top-k:K' with K >= 1, or 'none'"
    ).means("Which part of the vocabulary entropies are taken over."),
    "prompt_template": _PROMPT_TEMPLATE.means(
        "Text around a question, with `{question}` in it; null for none."
    ),
    "chat_template_kwargs": FieldCheck(
        "a dict without names that the rendering itself sets", _check_template_arguments
    ).means("Arguments of the model's chat template; `chat_template` and its like are refused."),
    "sampling": record({}, more=True, optional=_SAMPLING).means(
        "How thinking is drawn: `greedy`, `temperature`, `seed`; where it was recorded, "
        "`recorded`, the SHA-256 of the traces, and the others count for nothing."
    ),
    "max_think": nullable(tokens(1)).means("Most thinking tokens of a request."),
    "model": nullable(
        record(
            {
                "name": LINE.means("As it was loaded or served."),
                "revision": nullable(LINE).means("A commit, or a hash over the files."),
                "tokenizer_sha256": nullable(LINE).means("Over the tokenizer."),
                "template_sha256": nullable(LINE).means("Over the chat template."),
            }
        )
    ).means("What it is bound to; null where probes came from an archive or a simulation."),
    "engine": nullable(
        record(
            {
                "name": LINE.means("`hf` or `openai`."),
                "version": nullable(LINE).means("Of the library or server."),
                "dtype": nullable(LINE).means("Of the weights."),
                "quantization": nullable(LINE).means("Of the weights."),
                "attention": nullable(LINE).means("Implementation of attention."),
                "device": nullable(LINE).means("What it ran on."),
            }
        )
    ).means("What ran the model; under another one the policy serves, with a remark."),
    "certificate": nullable(
        record(
            {
                "alpha": SHARE.means("Share of questions that may become wrong."),
                "delta": SHARE.means("Chance that the claim fails, over the draw of questions."),
                "bound": one_of("exact").means("The test."),
                "multiplicity": one_of("fixed-sequence").means(
                    "Thresholds are tested in order, each at all of `delta`."
                ),
                "n": whole(1).means("Calibration questions."),
                "losses": whole(0).means("Of these, how many stopping made wrong."),
                "upper": SHARE_OR_END.means("Upper bound on the share."),
                "reference": one_of("natural", "last-checkpoint").means(
                    "What full thinking is: the model's own answer, or the last probe's."
                ),
                "looks": whole(1).means("Which look at the calibration questions this was."),
            },
            more=True,
        )
    ).means("What was shown; null only for `full-budget`."),
    "expected": nullable(_ANY_DICT).means("Risk and saving on test questions, for reading."),
    "serving": one_of("vllm", "kv-fork", "prefix-cache", "black-box").means(
        "How probes are paid for in `expected`."
    ),
    "created": where("a date and time in ISO 8601", _is_timestamp).means("When it was built."),
    "versions": map_of(nullable(LINE)).means("Of the packages that built it."),
    "workload_sha256": nullable(_SHA256).means("Over the workload's file."),
    "profile": nullable(_ANY_DICT).means("Kinds of fit questions, for reading."),
    "trees": nullable(
        list_of(
            record(
                {
                    "feature": list_of(whole(-1)).means("Index into `features`; -1 at a leaf."),
                    "threshold": list_of(_REAL).means("At most this goes left."),
                    "left": list_of(_INTEGER).means("Index of a child, always after its parent."),
                    "right": list_of(_INTEGER).means("As `left`."),
                    "value": list_of(_REAL).means("What a leaf adds to the score."),
                }
            ),
            most=_MAX_TREES,
        )
    ).means("`learned-boosted` only: trees, each as lists with an entry for each node."),
    "order": list_of(_REAL).means(
        "Thresholds in the order in which they were to be tested, for a transfer."
    ),
    "split": nullable(
        record(
            {
                "seed": _INTEGER.means("Of the split."),
                "fit": list_of(NAME).means("Questions that chose the rule, as content hashes."),
                "calibration": list_of(NAME).means("Questions that certified it."),
                "test": list_of(NAME).means("Questions that did neither."),
            },
            more=True,
        )
    ).means("Which questions made the policy, so that fresh ones can be recognised."),
    "calibration_features": nullable(list_of(list_of(_REAL))).means(
        "Features of some calibration questions, to compare with fresh ones."
    ),
    "served": nullable(
        record(
            {
                "stop": list_of(_REAL).means("Where it would have stopped; -1 for nowhere."),
                "prompt_tokens": list_of(_REAL).means("Tokens of its prompt."),
            },
            optional={
                "first_logprob": list_of(_REAL).means(
                    "Mean log-probability of its first forced answer, of those that have one."
                )
            },
        )
    ).means("What the rule does on some calibration questions, to compare with traffic."),
    "golden": list_of(
        record(
            {
                "task": one_of(*TASKS).means("Of this example."),
                "steps": list_of(
                    record(
                        {
                            "answer": _TEXT.means("A forced answer, as decoded."),
                            "normalized": _TEXT.means("What it must normalise to."),
                            "mean_logprob": _REAL.means("Mean over the answer's tokens, in nats."),
                            "mean_entropy": _REAL.means("Mean over the answer's tokens, in nats."),
                            "markers": _REAL.means("Markers in the prefix."),
                            "think_tokens": tokens(0).means("Thinking tokens in the prefix."),
                        },
                        optional={
                            "closed_by_itself": _FLAG.means(
                                "The model closed its thinking right after the answer; where the "
                                "feature of this name is read."
                            )
                        },
                    )
                ).means("What comes in, checkpoint by checkpoint."),
                "decisions": list_of(
                    record(
                        {
                            "stop": _FLAG.means("What must be decided."),
                            "score": _REAL.means("What the score must be."),
                        }
                    )
                ).means("What must come out, one for each step."),
            }
        ),
        most=_MAX_GOLDEN,
    ).means("Examples that every reader replays before it serves."),
}
"""Every key of a policy, in the order in which it is written: what decides first, what it rests on
last."""


def check_fields(content: Mapping[str, Any]) -> None:
    """Check every field's type and range, and that the fields are consistent with each other.

    Raises
    ------
    PolicyError
        Names the first field at fault, what is required, and what was found.
    """
    for key in FIELDS:
        if key not in content:
            raise PolicyError(f"field '{key}' is missing")
    for key in content:
        if key not in FIELDS:
            raise PolicyError(f"field {short_repr(key)} is unknown")
    for key, check in FIELDS.items():
        check(content[key], key)
    if content["model"] is not None:
        for key in ("probe", "engine", "max_think", "split"):
            if content[key] is None:
                raise PolicyError(f"field '{key}': required when a model is named, got null")
    if content["kind"] == "full-budget":
        _check_full_budget(content)
        return
    _check_stop(content)
    check_counts(content)
    check_grader(content["certificate"], content["grader"])


def _check_full_budget(content: Mapping[str, Any]) -> None:
    rule = ("family", "intercept", "threshold", "decision_threshold", "trigger", "trees")
    for key in (*rule, "certificate", "expected", "calibration_features", "served"):
        found = content.get(key)
        expect(found is None, key, "null for kind 'full-budget'", found)
    for key in ("features", "mean", "scale", "coef", "budgets", "order", "golden"):
        expect(not content[key], key, "an empty list for kind 'full-budget'", content[key])


def _check_stop(content: Mapping[str, Any]) -> None:
    family = content["family"]
    for key in ("family", "threshold", "decision_threshold", "certificate"):
        expect(content[key] is not None, key, "a value for kind 'stop'", None)
    _check_where(content)
    _check_threshold(family, content["threshold"], content["decision_threshold"])
    if content["order"]:
        _check_order(content["order"], content["decision_threshold"])
    if family not in LEARNED_FAMILIES:
        for key in ("features", "mean", "scale", "coef"):
            expect(not content[key], key, f"an empty list for family '{family}'", content[key])
        for key in ("intercept", "trees"):
            expect(content[key] is None, key, f"null for family '{family}'", content[key])
    else:
        check_learned(content)
    if content["entropy_source"] == "none" and reads_logprobs(content):
        raise PolicyError(
            f"field 'entropy_source': family '{family}' reads log-probabilities, got 'none'"
        )
    _check_golden(content)


def reads_logprobs(content: Mapping[str, Any]) -> bool:
    """Whether a policy's rule reads log-probability or entropy, and not answers alone.

    The entropy source of the probes matters to such a rule only.
    """
    scalar = content["family"] in ("confidence", "entropy", "confidence-leap", "deer")
    return scalar or not set(content["features"]).isdisjoint(LOGPROB_FEATURES)


def _check_where(content: Mapping[str, Any]) -> None:
    """Check where the policy probes, and that its rule can be had there."""
    trigger, family = content["trigger"], content["family"]
    expect(trigger is not None, "trigger", "a value for kind 'stop'", None)
    check_trigger(content)
    kind = trigger["kind"]
    if (kind == "none") != (family == "fixed-budget"):
        what = "'none' for family 'fixed-budget' and for no other"
        expect(False, "trigger.kind", what, f"{kind} for {family}")
    if kind == "none":
        what = f"trigger.stop_at ({trigger['stop_at']})"
        linear = content["decision_threshold"]
        expect(linear == trigger["stop_at"], "decision_threshold", what, linear)
    for name in GRID_FEATURES if kind != "grid" else ():
        what = f"no '{name}' where the trigger is no grid"
        expect(name not in content["features"], "features", what, content["features"])


def _check_threshold(family: str, threshold: float, linear: float) -> None:
    try:
        expected = display_threshold(family, linear)
    except OverflowError:
        expected = math.inf
    if not math.isclose(threshold, expected, rel_tol=1e-9, abs_tol=1e-12):
        raise PolicyError(
            f"field 'threshold': expected {expected!r}, which family '{family}' gives for "
            f"decision_threshold {linear!r}, got {threshold!r}"
        )


def _check_order(order: list[float], linear: float) -> None:
    descending = all(a > b for a, b in pairwise(order))
    expect(descending, "order", "strictly descending thresholds", order)
    expect(linear in order, "order", f"to hold decision_threshold {linear!r}", order)


def _check_golden(content: Mapping[str, Any]) -> None:
    golden = content["golden"]
    most = most_probes(trigger_of(content))
    expect(bool(golden), "golden", "at least one trajectory for kind 'stop'", golden)
    total = 0
    for index, entry in enumerate(golden):
        n_steps = len(entry["steps"])
        total += n_steps
        expect(
            1 <= n_steps == len(entry["decisions"]) <= most,
            f"golden[{index}]",
            f"1 to {most} steps and as many decisions",
            [n_steps, len(entry["decisions"])],
        )
    expect(total <= _MAX_GOLDEN_STEPS, "golden", f"at most {_MAX_GOLDEN_STEPS} steps", total)
