"""Comparing a policy with what it is about to serve: model, texts, plan and engine.

Compares names, hashes and settings; knows no rule and no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import plain
from stopadvisor.ground.printable import short_repr
from stopadvisor.policy.terms import ModelTerms, PolicyTerms, SamplingTerms, TokenText
from stopadvisor.probes.asking import plan_cue

__all__ = ["check_source", "policy_source"]

_HASHED = {"tokenizer_sha256": "tokenizer", "template_sha256": "chat template"}
"""What of a model is bound by its hash, and what it is called in messages."""
_ENGINE = {
    "name": "the engine",
    "version": "the engine's version",
    "dtype": "dtype",
    "quantization": "quantisation",
    "attention": "the attention implementation",
    "device": "the device",
}
"""What of an engine is compared, and what it is called in messages."""
_VERIFY = "; run `stopadvisor verify` before you rely on it"


class _Policy(Protocol):
    @property
    def terms(self) -> PolicyTerms: ...


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
    policy: _Policy,
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
    """Compare the policy with the engine and the plan that it is about to serve under.

    Parameters
    ----------
    identity : mapping
        ``Engine.identity()``, or the same from a run's manifest.
    entropy_source : str
        ``full``, ``top-k:K`` or ``none``.
    cue, cap, max_think, prompt_template, sampling, answer_cap : optional
        Of the plan; what is None is not compared.

    Returns
    -------
    list of str
        Remarks: differences under which the policy may serve, but should pass ``verify``
        first, because its certificate does not cover them.

    Raises
    ------
    PolicyError
        Another model, tokenizer, chat template, closer, cue, answer cap, thinking cap, prompt
        template, sampling or entropy source: the policy promises nothing under these.  The
        entropy source matters only to a rule that reads log-probability or entropy.
    """
    terms = policy.terms
    if terms.ladder is not None:
        raise PolicyError("the policy climbs a ladder of whole replies, and stops no trace")
    remarks: list[str] = []
    probe, model, engine = terms.probe, terms.model, terms.engine
    if terms.reads_logprobs:
        _must_agree("entropy source", terms.entropy_source, entropy_source)
    here = policy_source(identity)
    if model is None:
        origin = "an archive" if engine is None else f"{engine.name} probes"
        remarks.append(
            f"the policy is bound to no model (it comes from {origin}): nothing shows "
            f"that it suits this one{_VERIFY}"
        )
    else:
        remarks += _check_model(model, here["model"])
    if probe is not None and terms.kind == "stop":  # full budget asks nothing, however it would
        _check_closer(probe.closer, identity.get("think_close"))
        if cue is not None:
            _must_agree("answer cue", plan_cue(probe.cue.text, is_open=probe.open_cue), cue)
        if cap is not None:
            _must_agree("answer cap", probe.cap, cap)
        remarks += _check_stop_ids(probe.stop_ids, identity.get("stop_ids"))
    if max_think is not None and terms.max_think is not None:
        _must_agree("thinking cap (max_think)", terms.max_think, max_think)
    if prompt_template is not None and terms.prompt_template is not None:
        _must_agree("prompt template", terms.prompt_template, plain(prompt_template))
    if sampling is not None and terms.sampling is not None:
        remarks += _check_sampling(terms.sampling, sampling)
    if answer_cap is not None and probe is not None and probe.answer_cap is not None:
        _must_agree("cap of visible answers (answer_cap)", probe.answer_cap, answer_cap)
    if model is not None:
        kwargs = plain(identity.get("chat_template_kwargs") or {})
        _must_agree("chat_template_kwargs", terms.chat_template_kwargs, kwargs)
    for key, name in _ENGINE.items() if engine is not None else ():
        expected, found = getattr(engine, key), here["engine"][key]
        if found not in (_versions(expected) if key == "version" else [expected]):
            remarks.append(
                f"{name} is {short_repr(found)} here, was {short_repr(expected)} at "
                f"calibration{_VERIFY}"
            )
    return remarks


def _must_agree(name: str, expected: Any, found: Any) -> None:
    if found != expected:
        raise PolicyError(
            f"the policy was calibrated with {name} {short_repr(expected)}, got {short_repr(found)}"
        )


def _check_sampling(expected: SamplingTerms, here: Mapping[str, Any]) -> list[str]:
    """Compare settings, unless thinking was recorded: nobody knows under which it was drawn."""
    recorded = (expected.recorded, here.get("recorded"))
    there, now = ("recorded" if traces else "drawn" for traces in recorded)
    if not any(recorded):
        for key in ("greedy", "temperature"):  # another seed is the same decoding
            _must_agree(f"sampling ({key})", getattr(expected, key), here.get(key))
        return []
    return [
        f"thinking was {now} here, {there} at calibration: nothing shows that it was sampled alike"
    ]


def _check_model(expected: ModelTerms, here: Mapping[str, Any]) -> list[str]:
    remarks = []
    revision, found = expected.revision, here["revision"]
    if revision is None or found is None:
        remarks.append(f"the model's revision is unknown on one side{_VERIFY}")
        _must_agree("model", expected.name, here["name"])
    else:
        _must_agree("model revision", revision, found)
        # A hash over the content says more than the name of the folder it lies in.
        if not revision.startswith("sha256:"):
            _must_agree("model", expected.name, here["name"])
        elif expected.name != here["name"]:
            remarks.append(
                f"the model is called {short_repr(here['name'])} here, "
                f"{short_repr(expected.name)} at calibration; its content is the same"
            )
    for key, name in _HASHED.items():
        ours, theirs = getattr(expected, key), here[key]
        if ours is not None and theirs is not None:
            _must_agree(f"{name} hash", ours, theirs)
        elif ours != theirs:
            remarks.append(f"the {name}'s hash is unknown on one side{_VERIFY}")
    return remarks


def _check_closer(expected: TokenText, here: Any) -> None:
    """Compare ids where both sides know them: they are what the model sees."""
    if here is None:
        return
    text, ids = (here.get("text"), here.get("ids")) if isinstance(here, Mapping) else (here, None)
    if expected.ids is not None and ids is not None:
        _must_agree("thinking closer (ids)", list(expected.ids), plain(ids))
    else:
        _must_agree("thinking closer", expected.text, text)


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
