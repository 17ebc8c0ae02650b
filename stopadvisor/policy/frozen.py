"""The frozen policy: build it, save it, load it with distrust, check what it is bound to.

Use policies through this module.  Loading trusts nothing: size, form, schema, digest, fields, what
holds between them, and golden decisions are checked in this order; a file that fails is refused
with one line that names it.  Loading and stepping need the standard library and numpy alone; a
required signature comes first, and takes the extra ``sign``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import parse, plain
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
from stopadvisor.policy.source import check_source, policy_source
from stopadvisor.policy.stepper import Stepper, StopRule
from stopadvisor.policy.terms import MIXED_TASKS, PolicyTerms
from stopadvisor.probes.asking import OnStop
from stopadvisor.probes.trigger import Trigger
from stopadvisor.runs.ladder import Rung
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


@dataclass(frozen=True, repr=False)
class Policy:
    """A checked policy.  Made by `load_policy`, or by `build_policy`.

    Raises
    ------
    PolicyError
        The terms do not pass every check that loading makes.
    """

    terms: PolicyTerms
    """Everything that the file says, as one tree of frozen classes."""
    signed_by: str | None = None
    """Fingerprint of the key whose signature was required and is right; None without one."""
    rule: StopRule = field(init=False, compare=False)
    """The rule as it is stepped; its `needs_…` say which figures it reads."""
    climb_rule: ClimbRule | None = field(init=False, compare=False)
    """The rule as it is climbed; None for a trace's policy."""

    def __post_init__(self) -> None:
        terms = self.terms
        check_consistency(terms)
        object.__setattr__(self, "rule", StopRule.of(terms))
        climb = None if terms.ladder is None else ClimbRule.of(terms)
        object.__setattr__(self, "climb_rule", climb)
        replay_golden(climb or self.rule, terms.golden)

    @classmethod
    def of(cls, data: bytes, signed_by: str | None = None) -> Policy:
        """The policy in the bytes of a file, or a refusal."""
        return cls(parse(PolicyTerms, decode(data)), signed_by)

    @property
    def content(self) -> dict[str, Any]:
        """The terms as JSON values: a copy, made at each call."""
        return dict(plain(self.terms))

    @property
    def kind(self) -> str:
        """``stop``, or ``full-budget``: no probes, the natural end."""
        return self.terms.kind

    @property
    def family(self) -> str | None:
        """Which score decides; None for ``full-budget``."""
        return self.terms.family

    @property
    def budgets(self) -> tuple[int, ...]:
        """Thinking tokens at which to probe; empty where the trigger is no grid."""
        return self.terms.budgets

    @property
    def ladder(self) -> tuple[Rung, ...]:
        """The rung of each reply of the ladder, the reference last; empty for a trace's policy."""
        return () if self.climb_rule is None else self.climb_rule.rungs

    @property
    def trigger(self) -> Trigger:
        """Where to probe; of a ``full-budget`` policy nowhere."""
        return self.rule.trigger

    @property
    def needs_markers(self) -> bool:
        """Whether the rule reads how many markers the thinking holds."""
        return self.rule.needs_markers

    @property
    def on_stop(self) -> OnStop:
        """What a stopped request gets: the ``probe``'s answer, or a visible ``answer``."""
        return self.terms.on_stop

    @property
    def digest(self) -> str:
        """SHA-256 over the text: names the policy in logs."""
        return self.terms.digest

    @property
    def reads_logprobs(self) -> bool:
        """Whether the rule reads log-probability or entropy, and not answers alone."""
        return self.terms.reads_logprobs

    def __repr__(self) -> str:
        return f"Policy(kind={self.kind!r}, family={self.family!r}, digest={self.digest[:8]!r})"

    def start(self, task: str | None = None) -> Stepper:
        """Give a stepper for one question.

        The question's `task` is needed where the policy's own is ``mixed`` and raw answers are
        observed.

        Raises
        ------
        PolicyError
            Another task than the policy's, or a policy that climbs a ladder.
        """
        if self.climb_rule is not None:
            raise PolicyError("the policy climbs a ladder and stops no trace: climb() follows it")
        return Stepper(self.rule, task)

    def climb(self, task: str | None = None, *, reference_alone: bool = False) -> Climber:
        """Give a climber for one question of a policy that climbs a ladder; as `start`.

        With `reference_alone` it asks for the reference at once, as if nothing were certified.

        Raises
        ------
        PolicyError
            Another task than the policy's, or a policy that stops a trace.
        """
        rule = self.climb_rule
        if rule is None:
            raise PolicyError("the policy stops a trace and climbs no ladder: start() follows it")
        return Climber(rule.of_reference() if reference_alone else rule, task)

    check_source = check_source


def build_policy(terms: PolicyTerms) -> Policy:
    """Complete a policy and check it as loading does.

    Parameters
    ----------
    terms : PolicyTerms
        ``schema``, ``golden`` and ``digest`` are made here.  Numpy values become plain ones.

    Raises
    ------
    PolicyError
        A field is of the wrong type or range, or at odds with another.
    """
    made = {"schema": POLICY_SCHEMA, "golden": [], "digest": NO_DIGEST}
    draft = parse(PolicyTerms, {**plain(terms), **made})
    check_consistency(draft, golden=False)
    rule = StopRule.of(draft) if draft.ladder is None else ClimbRule.of(draft)
    text, _ = sealed({**plain(draft), "golden": make_golden(rule)})
    return Policy.of(text.encode("ascii"))


def save_policy(policy: Policy, path: str | os.PathLike[str], *, format: Format = "joblib") -> None:
    """Write a policy; at any moment the path holds the old file or the whole new one.

    Either format holds the same text.

    Raises
    ------
    PolicyError
        The policy is not one that was built, or too large to be loaded again.
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
    except PolicyError:  # none, or none that a policy could be
        same = False
    replace_file(target, data)
    if not same and is_signed(target):
        remove_file(signature_path(target))  # of what stood there


def sign_policy(path: str | os.PathLike[str], key: PemKey, *, digest: str) -> None:
    """Write the signature of a policy's file next to it, as ``POLICY.sig``.

    Parameters
    ----------
    key : PemKey
        From `signature.signing_key`.
    digest : str
        Of the policy that is meant: another one that has taken its place is not signed.

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
        Public keys in PEM, of which one must have signed the file: ``POLICY.sig`` lies next to it.
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
        signer = None if trusted is None else check_signature(data, file, trusted).fingerprint
        return Policy.of(data, signer)
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from error
