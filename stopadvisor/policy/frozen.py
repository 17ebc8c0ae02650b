"""The frozen policy: build it, save it, load it with distrust, check what it is bound to.

Use policies through this module.  Loading trusts nothing: size, bytes, schema, digest, fields and
golden decisions are checked in this order, and a file that fails is refused with one line that
names it.  Loading and stepping need the standard library and numpy alone; where a signature is
required it comes first, and takes the extra ``sign``.  Knows no model, no probes and no statistics.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stopadvisor.answers.normal_form import NORMALIZER
from stopadvisor.errors import PolicyError
from stopadvisor.policy.claims import check_certificate, shown_certificate
from stopadvisor.policy.evidence import check_evidence
from stopadvisor.policy.file import POLICY_SCHEMA, Format, decode, encode, read_bytes, sealed
from stopadvisor.policy.golden import make_golden, replay_golden
from stopadvisor.policy.replay_cost import check_replay_cost
from stopadvisor.policy.schema import FIELDS, MIXED_TASKS, check_fields, reads_logprobs
from stopadvisor.policy.signature import (
    SigningKey,
    check_signature,
    is_signed,
    public_key,
    sign,
    signature_path,
)
from stopadvisor.policy.source import check_source, policy_source
from stopadvisor.policy.stepper import Stepper, StopRule
from stopadvisor.policy.terms import PolicyTerms
from stopadvisor.policy.triggers import trigger_content
from stopadvisor.policy.values import MAX_BYTES, ReadOnlyDict, check_plain, read_only, to_plain
from stopadvisor.printable import short_repr
from stopadvisor.probes.plan import OnStop
from stopadvisor.probes.trigger import GridTrigger, Trigger
from stopadvisor.runs.storage import remove_file, replace_file

__all__ = [
    "MIXED_TASKS",
    "Policy",
    "Stepper",
    "build_policy",
    "load_policy",
    "policy_source",
    "save_policy",
    "sign_policy",
]

_MADE_HERE = ("schema", "golden", "digest")
_REALS = ("mean", "scale", "coef", "intercept", "threshold", "decision_threshold")


class Policy:
    """A checked policy.  Made by `load_policy`, or by ``Policy(content)`` from a built content.

    Raises
    ------
    PolicyError
        The content does not pass every check that loading makes.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        # Another policy's content is made plain again, because the checks are about plain types.
        checked = to_plain(content) if isinstance(content, ReadOnlyDict) else dict(content)
        check_plain(checked)
        check_fields(checked)
        check_replay_cost(checked)
        check_certificate(checked)
        check_evidence(checked)
        if checked["normalizer"] != NORMALIZER:
            raise PolicyError(
                f"calibrated with answer normaliser {short_repr(checked['normalizer'])}; this "
                f"version of StopAdvisor has {NORMALIZER!r} and would compare answers otherwise"
            )
        self._rule = StopRule.from_content(checked)
        self._budgets = tuple(checked["budgets"])
        replay_golden(self._rule, checked["golden"])
        self._content: Mapping[str, Any] = read_only(checked)
        self._terms = PolicyTerms.of(self._content)
        self._reads_logprobs = reads_logprobs(checked)
        self._signed_by: str | None = None

    @property
    def content(self) -> Mapping[str, Any]:
        """The whole content as the file holds it, read-only and never copied."""
        return self._content

    @property
    def terms(self) -> PolicyTerms:
        """What serving reads of the content, as typed values."""
        return self._terms

    @property
    def kind(self) -> str:
        """``stop``, or ``full-budget``: no probes, the natural end."""
        return self._terms.kind

    @property
    def family(self) -> str | None:
        """Which score decides; None for ``full-budget``."""
        return self._rule.family

    @property
    def budgets(self) -> tuple[int, ...]:
        """Thinking tokens at which to probe; empty where the trigger is no grid."""
        return self._budgets

    @property
    def trigger(self) -> Trigger:
        """Where to probe; of a ``full-budget`` policy nowhere."""
        return self._rule.trigger

    @property
    def needs_markers(self) -> bool:
        """Whether the rule reads how many markers the thinking holds."""
        return self._rule.needs_markers

    @property
    def on_stop(self) -> OnStop:
        """What a stopped request gets: the ``probe``'s answer, or a visible ``answer``."""
        return self._terms.on_stop

    @property
    def digest(self) -> str:
        """SHA-256 over the content: names the policy in logs."""
        return str(self._content["digest"])

    @property
    def signed_by(self) -> str | None:
        """Fingerprint of the key whose signature was required and is right; None without one."""
        return self._signed_by

    def __repr__(self) -> str:
        return f"Policy(kind={self.kind!r}, family={self.family!r}, digest={self.digest[:8]!r})"

    @property
    def reads_logprobs(self) -> bool:
        """Whether the rule reads log-probability or entropy, and not answers alone."""
        return self._reads_logprobs

    @property
    def rule(self) -> StopRule:
        """The rule as it is stepped; its `needs_…` say which figures it reads."""
        return self._rule

    def start(self, task: str | None = None) -> Stepper:
        """Give a stepper for one question.

        The question's `task` is needed where the policy's own is ``mixed`` and raw answers are
        observed.

        Raises
        ------
        PolicyError
            Another task than the policy's.
        """
        return Stepper(self._rule, task)

    def summary(self) -> dict[str, Any]:
        """Give the main fields as plain values, in a copy."""
        names = (
            *("kind", "family", "features", "threshold", "decision_threshold", "budgets"),
            *("on_stop", "task", "serving", "entropy_source", "max_think", "model", "engine"),
            *("certificate", "profile", "expected", "versions", "created", "digest"),
        )
        summary = {name: to_plain(self._content[name]) for name in names}
        where = trigger_content(self.trigger, family=self.family)["trigger"]
        summary["trigger"] = where if self.trigger.probes else None
        summary["certificate"] = shown_certificate(self._content)
        split = self._content["split"]
        summary["n_questions"] = split and {
            part: len(split[part]) for part in ("fit", "calibration", "test")
        }
        return summary

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
        return check_source(
            self._content,
            identity,
            entropy_source,
            cue=cue,
            cap=cap,
            max_think=max_think,
            prompt_template=prompt_template,
            sampling=sampling,
            answer_cap=answer_cap,
        )


def build_policy(content: Mapping[str, Any]) -> dict[str, Any]:
    """Complete and check a policy's content, ready for `save_policy` or `Policy`.

    Parameters
    ----------
    content : mapping
        Every field of ``schema.FIELDS`` but ``schema``, ``golden`` and ``digest``, which
        are made here.  ``trees`` and ``served`` may be left out where they are null, ``trigger``
        by a policy that probes at its ``budgets``.
        Tuples and numpy values become plain values.

    Raises
    ------
    PolicyError
        A field is missing, unknown, of the wrong type, or at odds with another.
    """
    given = to_plain({key: value for key, value in content.items() if key not in _MADE_HERE})
    for key in _REALS:
        if key in given:
            given[key] = _as_floats(given[key])
    trees = given.get("trees")
    for tree in trees if isinstance(trees, list) else ():
        for key in ("threshold", "value"):
            if isinstance(tree, dict) and key in tree:
                tree[key] = _as_floats(tree[key])
    _complete(given)
    given |= {"schema": POLICY_SCHEMA, "golden": _PLACEHOLDER, "digest": "0" * 64}
    if given.get("kind") == "full-budget":
        given["golden"] = []
    check_plain(given)
    check_fields(given)
    built = {key: given[key] for key in FIELDS if key in given}
    built["golden"] = make_golden(StopRule.from_content(built))
    built["digest"] = sealed(built)[1]
    Policy(built)
    return built


def _complete(given: dict[str, Any]) -> None:
    """Fill in what may be left out."""
    if "trigger" not in given:
        grid = trigger_content(GridTrigger(()))["trigger"]
        given["trigger"] = grid if given.get("kind") == "stop" else None
    given.setdefault("trees", None)
    given.setdefault("served", None)


# Lets the other fields be checked before there is a rule to make golden decisions with.
_PLACEHOLDER = [
    {
        "task": "exact",
        "steps": [
            {
                "answer": "",
                "normalized": "",
                "mean_logprob": 0.0,
                "mean_entropy": 0.0,
                "markers": 0.0,
                "think_tokens": 0,
            }
        ],
        "decisions": [{"stop": False, "score": 0.0}],
    }
]


def _as_floats(value: Any) -> Any:
    if type(value) is list:
        return [_as_floats(item) for item in value]
    return float(value) if type(value) is int else value


def save_policy(
    content: Mapping[str, Any], path: str | os.PathLike[str], *, format: Format = "joblib"
) -> None:
    """Write a built policy; at any moment the path holds the old file or the whole new one.

    `content` comes from `build_policy`.  A ``joblib`` file is written without compression, and
    ``joblib.load`` reads it anywhere; ``json`` holds the same dict.

    Raises
    ------
    PolicyError
        The content is no built policy, or too large to be loaded again.
    OutputError
        The file cannot be written.
    """
    target = Path(path)
    expected = Policy(content)
    text, digest = sealed(to_plain(content))
    if digest != expected.digest:
        raise PolicyError("the digest does not match the content: build_policy(…) makes both")
    data = encode(text, format)
    if len(data) > MAX_BYTES:
        raise PolicyError(
            f"{target}: a policy has at most {MAX_BYTES} bytes, this one would have {len(data)}"
        )

    def check(written: Path) -> None:
        if load_policy(written).digest != expected.digest:
            raise PolicyError(
                f"{target}: the file that was written does not read back as the same policy"
            )

    same = _holds(target, data)
    replace_file(target, data, check=check)
    if not same and is_signed(target):
        remove_file(signature_path(target))  # of what stood there


def _holds(file: Path, data: bytes) -> bool:
    try:
        return read_bytes(file) == data
    except PolicyError:  # none, or none that a policy could be
        return False


def sign_policy(path: str | os.PathLike[str], key: SigningKey, *, digest: str) -> Path:
    """Write the signature of a policy's file beside it.

    Parameters
    ----------
    key : SigningKey
        From `signature.signing_key`.
    digest : str
        Of the policy that is meant: another one that has taken its place is not signed.

    Returns
    -------
    Path
        ``POLICY.sig``.

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
        found = Policy(decode(data)).digest
    except PolicyError as error:
        raise PolicyError(f"{file}: {error}") from error
    if found != digest:
        raise PolicyError(f"{file}: expected policy {digest[:8]}, got {found[:8]}: nothing signed")
    target = signature_path(file)
    replace_file(target, sign(data, file.name, key))
    check_signature(data, file, [key.public])
    return target


def load_policy(
    path: str | os.PathLike[str],
    *,
    require_signature: Sequence[str | os.PathLike[str]] | None = None,
) -> Policy:
    """Load a policy file, joblib or JSON, trusting nothing in it.

    Parameters
    ----------
    require_signature : sequence of paths, optional
        Public keys in PEM, of which one must have signed the file: ``POLICY.sig`` lies beside it.
        It is checked before anything in the file is looked at.

    Raises
    ------
    PolicyError
        The file is refused, in one line that names it; nothing in it was executed.  Or a key
        cannot be read.
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
        signer = None if trusted is None else check_signature(data, file, trusted)
        policy = Policy(decode(data))
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from error
    policy._signed_by = None if signer is None else signer.fingerprint
    return policy
