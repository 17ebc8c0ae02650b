"""The frozen policy: build it, save it, load it without trusting it, check its model and engine.

Use policies through this module.  Loading checks size, format, schema, digest, fields, consistency
and golden decisions, in this order; a bad file is refused in one line that names it.  If a
signature is required, it is checked right after the size, and needs the extra ``sign``.  Otherwise
loading and stepping need only the standard library and numpy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import parse, plain
from stopadvisor.ground.printable import short_repr
from stopadvisor.policy.climber import Climber, ClimbRule
from stopadvisor.policy.consistency import check_consistency
from stopadvisor.policy.file import (
    MAX_BYTES,
    NO_DIGEST,
    POLICY_SCHEMA,
    Format,
    decode,
    encode_policy,
    read_bytes,
    sealed,
)
from stopadvisor.policy.golden import make_golden, replay_golden
from stopadvisor.policy.signature import (
    PemKey,
    check_signature,
    is_signed,
    public_key,
    sign,
    signature_path,
)
from stopadvisor.policy.stepper import Stepper, StopRule
from stopadvisor.policy.terms import MIXED_TASKS, ModelTerms, PolicyTerms, SamplingTerms, TokenText
from stopadvisor.probes.asking import OnStop, plan_cue
from stopadvisor.probes.trigger import Trigger
from stopadvisor.runs.ladder import Rung
from stopadvisor.runs.storage import remove_file, replace_file

__all__ = [
    "MIXED_TASKS", "Policy", "Stepper", "build_policy", "load_policy", "policy_source",
    "save_policy", "sign_policy",
]  # fmt: skip


_HASHED = {"tokenizer_sha256": "tokenizer", "template_sha256": "chat template"}
"""Hashes that bind a policy to a model, and their names in messages."""
_ENGINE = {
    "name": "the engine",
    "version": "the engine's version",
    "dtype": "dtype",
    "quantization": "quantisation",
    "attention": "the attention implementation",
    "device": "the device",
}
"""Properties of an engine that are compared, and their names in messages."""
_VERIFY = "; run `stopadvisor verify` before you rely on it"


@dataclass(frozen=True, repr=False)
class Policy:
    """A checked policy, made by `load_policy` or `build_policy`.

    Raises
    ------
    PolicyError
        The terms fail a check that loading makes.
    """

    terms: PolicyTerms
    """All fields of the file, as one tree of frozen classes."""
    signed_by: str | None = None
    """Fingerprint of the key that signed it, if a signature was required."""
    rule: StopRule = field(init=False, compare=False)
    """The rule for steppers; its `needs_…` say which inputs it reads."""
    climb_rule: ClimbRule | None = field(init=False, compare=False)
    """The rule for climbers; None unless the policy climbs a ladder."""

    def __post_init__(self) -> None:
        terms = self.terms
        check_consistency(terms)
        object.__setattr__(self, "rule", StopRule.of(terms))
        climb = None if terms.ladder is None else ClimbRule.of(terms)
        object.__setattr__(self, "climb_rule", climb)
        replay_golden(climb or self.rule, terms.golden)

    @classmethod
    def of(cls, data: bytes, signed_by: str | None = None) -> Policy:
        """Read a policy from a file's bytes; raises `PolicyError` for a bad one."""
        return cls(parse(PolicyTerms, decode(data)), signed_by)

    @property
    def content(self) -> dict[str, Any]:
        """The terms as JSON values; a new copy each time."""
        return dict(plain(self.terms))

    @property
    def kind(self) -> str:
        """``stop``, or ``full-budget``: never probes, and thinks to the end."""
        return self.terms.kind

    @property
    def family(self) -> str | None:
        """The score that decides; None for ``full-budget``."""
        return self.terms.family

    @property
    def budgets(self) -> tuple[int, ...]:
        """Thinking tokens at which to probe; empty if the trigger is not a grid."""
        return self.terms.budgets

    @property
    def ladder(self) -> tuple[Rung, ...]:
        """The rung of each reply of the ladder, the reference last; empty without a ladder."""
        return () if self.climb_rule is None else self.climb_rule.rungs

    @property
    def trigger(self) -> Trigger:
        """Where to probe; has no positions for ``full-budget``."""
        return self.rule.trigger

    @property
    def needs_markers(self) -> bool:
        """Whether the rule reads the number of markers in the thinking."""
        return self.rule.needs_markers

    @property
    def on_stop(self) -> OnStop:
        """What a stopped request gets: the ``probe``'s answer, or a visible ``answer``."""
        return self.terms.on_stop

    @property
    def digest(self) -> str:
        """SHA-256 over the text, which names the policy in logs."""
        return self.terms.digest

    @property
    def reads_logprobs(self) -> bool:
        """Whether the rule reads log-probability or entropy, not only answers."""
        return self.terms.reads_logprobs

    def __repr__(self) -> str:
        return f"Policy(kind={self.kind!r}, family={self.family!r}, digest={self.digest[:8]!r})"

    def start(self, task: str | None = None) -> Stepper:
        """Return a stepper for one question.

        `task` is required if the policy's own is ``mixed`` and raw answers are observed.

        Raises
        ------
        PolicyError
            The task is not the policy's, or the policy climbs a ladder.
        """
        if self.climb_rule is not None:
            raise PolicyError("the policy climbs a ladder and stops no trace: climb() follows it")
        return Stepper(self.rule, task)

    def climb(self, task: str | None = None, *, reference_alone: bool = False) -> Climber:
        """Return a climber for one question, if the policy climbs a ladder.

        With `reference_alone` it asks for the reference at once, as if nothing were certified.

        Raises
        ------
        PolicyError
            The task is not the policy's, or the policy stops traces.
        """
        rule = self.climb_rule
        if rule is None:
            raise PolicyError("the policy stops a trace and climbs no ladder: start() follows it")
        return Climber(rule.of_reference() if reference_alone else rule, task)

    def check_source(
        self,
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
        """Compare the policy with the engine and plan that it is about to serve with.

        Parameters
        ----------
        identity : mapping
            ``Engine.identity()``, also found in a run's manifest.
        entropy_source : str
            ``full``, ``top-k:K`` or ``none``.
        cue, cap, max_think, prompt_template, sampling, answer_cap : optional
            Settings of the plan; those left None are not compared.

        Returns
        -------
        list of str
            Remarks: differences that the certificate does not cover.  The policy may serve, but
            should pass ``verify`` first.

        Raises
        ------
        PolicyError
            The model, tokenizer, chat template, closer, cue, answer cap, thinking cap, prompt
            template, sampling or entropy source differs, so the certificate does not apply.  The
            entropy source matters only to a rule that reads log-probability or entropy.
        """
        terms = self.terms
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
        if probe is not None and terms.kind == "stop":  # full budget never probes
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
            accepted = [expected]
            if key == "version":  # a run may have been continued by another version
                accepted += (expected or "").split(", ")
            if found not in accepted:
                remarks.append(
                    f"{name} is {short_repr(found)} here, was {short_repr(expected)} at "
                    f"calibration{_VERIFY}"
                )
        return remarks


def build_policy(terms: PolicyTerms) -> Policy:
    """Complete a policy and check it as loading does.

    Parameters
    ----------
    terms : PolicyTerms
        ``schema``, ``golden`` and ``digest`` are filled in here; numpy values become plain.

    Raises
    ------
    PolicyError
        A field has the wrong type or range, or contradicts another.
    """
    empty = {"schema": POLICY_SCHEMA, "golden": [], "digest": NO_DIGEST}
    draft = parse(PolicyTerms, {**plain(terms), **empty})
    check_consistency(draft, golden=False)
    rule = StopRule.of(draft) if draft.ladder is None else ClimbRule.of(draft)
    text, _ = sealed({**plain(draft), "golden": plain(make_golden(rule))})
    return Policy.of(text.encode("ascii"))


def save_policy(policy: Policy, path: str | os.PathLike[str], *, format: Format = "joblib") -> None:
    """Write a policy atomically; both formats hold the same text.

    Raises
    ------
    PolicyError
        The policy was not made by `build_policy`, or is too large to load again.
    OutputError
        The file cannot be written.
    """
    target = Path(path)
    text, digest = sealed(policy.content)
    if digest != policy.digest:
        raise PolicyError("the digest does not match the content: build_policy(…) makes both")
    data = encode_policy(text, format)
    if len(data) > MAX_BYTES:
        raise PolicyError(
            f"{target}: a policy has at most {MAX_BYTES} bytes, this one would have {len(data)}"
        )
    try:
        same = read_bytes(target) == data
    except PolicyError:  # no file there, or one that is no policy
        same = False
    replace_file(target, data)
    if not same and is_signed(target):
        remove_file(signature_path(target))  # it signed the previous file


def sign_policy(path: str | os.PathLike[str], key: PemKey, *, digest: str) -> None:
    """Sign a policy file; writes the signature to ``POLICY.sig`` next to it.

    Parameters
    ----------
    key : PemKey
        From `signature.signing_key`.
    digest : str
        Digest of the policy to sign, in case another has taken its place.

    Raises
    ------
    PolicyError
        The file is refused, or holds another policy.
    OutputError
        The signature cannot be written.
    """
    file = Path(path)
    try:
        data = read_bytes(file)
        found = Policy.of(data).digest
    except PolicyError as error:
        raise PolicyError(f"{file}: {error}") from error
    if found != digest:
        raise PolicyError(f"{file}: expected policy {digest[:8]}, got {found[:8]}: nothing signed")
    replace_file(signature_path(file), sign(data, key))


def load_policy(
    path: str | os.PathLike[str],
    *,
    require_signature: Sequence[str | os.PathLike[str]] | None = None,
) -> Policy:
    """Load a policy file, joblib or JSON, trusting nothing in it.

    Parameters
    ----------
    require_signature : sequence of paths, optional
        Files of public keys in PEM, one of which must have made ``POLICY.sig`` next to the file.
        The signature is checked before the file is parsed.

    Raises
    ------
    PolicyError
        The file is refused, in one line that names it, or a key cannot be read.  Nothing in the
        file is ever executed.
    """
    file, trusted = Path(path), None
    if require_signature is not None:
        if isinstance(require_signature, str | os.PathLike):
            require_signature = [require_signature]
        trusted = [public_key(Path(key)) for key in require_signature]
        if not trusted:
            raise PolicyError("require_signature: expected at least one public key, got none")
    try:
        data = read_bytes(file)
        signer = None if trusted is None else check_signature(data, file, trusted).fingerprint
        return Policy.of(data, signer)
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from error


# --- Model and engine -----------------------------------------------------------------------------


def policy_source(identity: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields ``model`` and ``engine`` of a policy, from ``Engine.identity()``."""
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


def _must_agree(name: str, expected: Any, found: Any) -> None:
    if found != expected:
        raise PolicyError(
            f"the policy was calibrated with {name} {short_repr(expected)}, got {short_repr(found)}"
        )


def _check_sampling(expected: SamplingTerms, here: Mapping[str, Any]) -> list[str]:
    """Compare sampling settings, unless thinking was recorded: its settings are unknown."""
    recorded = (expected.recorded, here.get("recorded"))
    if not any(recorded):
        for key in ("greedy", "temperature"):  # the seed may differ
            _must_agree(f"sampling ({key})", getattr(expected, key), here.get(key))
        return []
    there, now = ("recorded" if traces else "drawn" for traces in recorded)
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
        # A hash of the content says more than a folder's name.
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
    """Compare token ids if both sides know them, as the model sees ids and not text."""
    if here is None:
        return
    text, ids = (here.get("text"), here.get("ids")) if isinstance(here, Mapping) else (here, None)
    if expected.ids is not None and ids is not None:
        _must_agree("thinking closer (ids)", list(expected.ids), plain(ids))
    else:
        _must_agree("thinking closer", expected.text, text)


def _check_stop_ids(expected: Sequence[int] | None, here: Sequence[int] | None) -> list[str]:
    """Remark on other end-of-answer tokens; a server may report fewer than a model's folder."""
    if expected is None or here is None or set(expected) == set(here):
        return []
    return [
        f"answers end at the tokens {short_repr(sorted(here))} here, at "
        f"{short_repr(sorted(expected))} at calibration{_VERIFY}"
    ]
