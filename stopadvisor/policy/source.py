"""Comparing a policy with what it is about to serve: model, texts, plan and engine.

Compares names, hashes and settings; knows no rule and no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stopadvisor.errors import PolicyError
from stopadvisor.policy.schema import reads_logprobs
from stopadvisor.policy.values import to_plain
from stopadvisor.printable import short_repr
from stopadvisor.probes.plan import plan_cue

__all__ = ["check_source", "policy_source"]

_HASHED = {"tokenizer": "tokenizer", "template": "chat template"}
"""What of a model is bound by its hash, and what it is called in messages."""
_VERIFY = "; run `stopadvisor verify` before you rely on it"


def policy_source(identity: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Take the fields ``model`` and ``engine`` of a policy out of ``Engine.identity()``."""
    return {
        "model": {
            "name": identity.get("model"),
            "revision": identity.get("model_revision"),
            "tokenizer_sha256": identity.get("tokenizer_sha256"),
            "template_sha256": identity.get("template_sha256"),
        },
        "engine": {
            "name": identity.get("engine"),
            "version": identity.get("engine_version"),
            "dtype": identity.get("dtype"),
            "quantization": identity.get("quantization"),
            "attention": identity.get("attention"),
            "device": identity.get("device"),
        },
    }


def check_source(
    content: Mapping[str, Any],
    identity: Mapping[str, Any],
    entropy_source: str,
    *,
    cue: str | None = None,
    cap: int | None = None,
    max_think: int | None = None,
    prompt_template: str | Mapping[str, str] | None = None,
    sampling: Mapping[str, Any] | None = None,
    answer_cap: int | None = None,
) -> list[str]:
    """Implement ``Policy.check_source``, which describes parameters and errors."""
    remarks: list[str] = []
    probes = content["kind"] == "stop"  # full budget asks nothing: how it would ask is no matter
    if reads_logprobs(content):
        _must_agree("entropy source", content["entropy_source"], entropy_source)
    here = policy_source(identity)
    if content["model"] is None:
        remarks.append(
            f"the policy is bound to no model (it comes from {_origin(content)}): nothing shows "
            f"that it suits this one{_VERIFY}"
        )
    else:
        remarks += _check_model(content["model"], here["model"])
    if probes and content["probe"] is not None:
        _check_closer(content["probe"]["closer"], identity.get("think_close"))
        if cue is not None:
            own = content["probe"]
            expected = plan_cue(own["cue"]["text"], is_open=own.get("open_cue", False))
            _must_agree("answer cue", expected, cue)
        if cap is not None:
            _must_agree("answer cap", content["probe"]["cap"], cap)
        remarks += _check_stop_ids(content["probe"]["stop_ids"], identity.get("stop_ids"))
    if max_think is not None and content["max_think"] is not None:
        _must_agree("thinking cap (max_think)", content["max_think"], max_think)
    if prompt_template is not None and content["prompt_template"] is not None:
        _must_agree("prompt template", content["prompt_template"], to_plain(prompt_template))
    if sampling is not None and content["sampling"]:
        remarks += _check_sampling(content["sampling"], sampling)
    written = (content["probe"] or {}).get("answer_cap")
    if answer_cap is not None and written is not None:
        _must_agree("cap of visible answers (answer_cap)", written, answer_cap)
    if content["model"] is not None:
        kwargs = to_plain(identity.get("chat_template_kwargs") or {})
        _must_agree("chat_template_kwargs", content["chat_template_kwargs"], kwargs)
    remarks += [
        f"{name} is {short_repr(here['engine'][key])} here, was {short_repr(expected)} at "
        f"calibration{_VERIFY}"
        for key, name, expected in _engine_fields(content["engine"])
        if here["engine"][key] not in (_versions(expected) if key == "version" else [expected])
    ]
    return remarks


def _origin(content: Mapping[str, Any]) -> str:
    """Where a policy that names no model comes from; archives name no engine either."""
    return "an archive" if content["engine"] is None else f"{content['engine']['name']} probes"


def _must_agree(name: str, expected: Any, found: Any) -> None:
    if found != expected:
        raise PolicyError(
            f"the policy was calibrated with {name} {short_repr(expected)}, got {short_repr(found)}"
        )


def _check_sampling(expected: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Compare settings, unless thinking was recorded: nobody knows under which it was drawn."""
    there, now = ("recorded" if side.get("recorded") else "drawn" for side in (expected, here))
    if "recorded" not in (there, now):
        for key in ("greedy", "temperature"):  # another seed is the same decoding
            _must_agree(f"sampling ({key})", expected.get(key), here.get(key))
        return []
    return [
        f"thinking was {now} here, {there} at calibration: nothing shows that it was sampled alike"
    ]


def _check_model(expected: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    remarks = []
    revision, found = expected["revision"], here["revision"]
    if revision is None or found is None:
        remarks.append(f"the model's revision is unknown on one side{_VERIFY}")
        _must_agree("model", expected["name"], here["name"])
    else:
        _must_agree("model revision", revision, found)
        # A hash over the content says more than the name of the folder it lies in.
        if not revision.startswith("sha256:"):
            _must_agree("model", expected["name"], here["name"])
        elif expected["name"] != here["name"]:
            remarks.append(
                f"the model is called {short_repr(here['name'])} here, "
                f"{short_repr(expected['name'])} at calibration; its content is the same"
            )
    for kind, name in _HASHED.items():
        key = f"{kind}_sha256"
        if expected[key] is not None and here[key] is not None:
            _must_agree(f"{name} hash", expected[key], here[key])
        elif expected[key] != here[key]:
            remarks.append(f"the {name}'s hash is unknown on one side{_VERIFY}")
    return remarks


def _check_closer(expected: Mapping[str, Any], here: Any) -> None:
    """Compare ids where both sides know them: they are what the model sees."""
    if here is None:
        return
    if isinstance(here, Mapping):
        text, ids = here.get("text"), here.get("ids")
    else:
        text, ids = here, None
    if expected["ids"] is not None and ids is not None:
        _must_agree("thinking closer (ids)", expected["ids"], to_plain(ids))
    else:
        _must_agree("thinking closer", expected["text"], text)


def _check_stop_ids(expected: Sequence[int] | None, here: Sequence[int] | None) -> list[str]:
    """Remark on other tokens that end an answer; a server may show fewer than a model's folder."""
    if expected is None or here is None or set(expected) == set(here):
        return []
    return [
        f"answers end at the tokens {short_repr(sorted(here))} here, at "
        f"{short_repr(sorted(expected))} at calibration{_VERIFY}"
    ]


def _versions(text: str | None) -> list[str | None]:
    """Versions of the engine that probed the calibration questions, and all of them together."""
    return [text, *(text or "").split(", ")]


def _engine_fields(engine: Mapping[str, Any] | None) -> list[tuple[str, str, Any]]:
    names = {
        "name": "the engine",
        "version": "the engine's version",
        "dtype": "dtype",
        "quantization": "quantisation",
        "attention": "the attention implementation",
        "device": "the device",
    }
    return [] if engine is None else [(key, name, engine[key]) for key, name in names.items()]
