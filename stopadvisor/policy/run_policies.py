"""The policies of a run: each under a name of its own, and a copy of the one in use.

A file, once written, is never written over by another policy, so that there is always a way back.
Next to each policy lies the calibration it came from; next to the copy, ``calibration.json``.
A signature goes with its file: the copy has one where the policy has, and no other.
Knows the files and their names; whoever calls holds the lock of the folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.ground.printable import short_repr
from stopadvisor.policy.file import Format
from stopadvisor.policy.frozen import Policy, load_policy, save_policy
from stopadvisor.policy.shown import promise_of, says_lost
from stopadvisor.policy.signature import is_signed, signature_path
from stopadvisor.runs.directory import CALIBRATION
from stopadvisor.runs.storage import remove_file, replace_file, write_json_atomically

__all__ = [
    "Promotion", "calibration_of", "check_promotion", "current_policy", "free_file",
    "newest_policy", "other_policies", "own_name", "promote", "put", "stops_already",
]  # fmt: skip

_FORMATS = (".joblib", ".json")
_DIGITS = 8
"""Of the digest, in a name."""


def own_name(alpha: float | None, digest: str) -> str:
    """Name of a policy without its ending: ``policy-a05-1a2b3c4d`` for alpha = 0.05."""
    if alpha is None:
        return f"policy-full-{digest[:_DIGITS]}"
    decimals = f"{alpha:.12f}".partition(".")[2].rstrip("0").ljust(2, "0")
    return f"policy-a{decimals}-{digest[:_DIGITS]}"


def calibration_of(policy: Path) -> Path:
    """Where the calibration of a policy's file stands."""
    return policy.with_name(f"{policy.name}.{CALIBRATION}")


def current_policy(folder: Path) -> Path | None:
    """The copy of the policy in use in a run's folder; None where there is none.

    Where both formats lie there, the one that ``calibration.json`` is about.
    """
    found = [folder / f"policy{ending}" for ending in _FORMATS]
    found = [file for file in found if file.exists()]
    if len(found) > 1:
        try:
            chosen = Path(parse_json((folder / CALIBRATION).read_bytes())["policy"]).suffix
        except (OSError, ValueError, KeyError, TypeError):
            chosen = max(found, key=lambda file: file.stat().st_mtime).suffix
        found = [file for file in found if file.suffix == chosen] or found
    return found[0] if found else None


def newest_policy() -> Path:
    """The policy in use of the run under ``runs/`` whose policy was written last."""
    found = [
        file for folder in Path("runs").glob("*") if (file := current_policy(folder)) is not None
    ]
    if not found:
        raise PolicyError(
            "no policy under runs/: run `stopadvisor calibrate` first, or name a policy's file"
        )
    return max(found, key=lambda file: (file.stat().st_mtime_ns, str(file)))


def stops_already(folder: Path, *, format: Format) -> bool:
    """Whether the policy in use there is a certified one."""
    file = folder / f"policy.{format}"
    try:
        return load_policy(file).kind == "stop"
    except PolicyError:
        return False


def free_file(wanted: Path, policy: Policy, alpha: float) -> Path:
    """The requested file, or one next to it if another certified policy has that name."""
    try:
        standing = load_policy(wanted)
    except PolicyError:
        return wanted
    if standing.kind != "stop" or standing.digest == policy.digest:
        return wanted
    name = own_name(alpha, policy.digest).removeprefix("policy")
    return wanted.with_name(f"{wanted.stem}{name}{wanted.suffix}")


def put(policy: Policy, file: Path, calibration: Mapping[str, Any], *, format: Format) -> None:
    """Write a policy and, next to it, the calibration it came from, which names its digest.

    The calibration is taken away first and written last: whenever this ends, none is there that
    belongs to another policy.
    """
    beside = calibration_of(file)
    remove_file(beside)
    save_policy(policy, file, format=format)
    write_json_atomically(beside, calibration)


@dataclass(frozen=True)
class Promotion:
    """`promote --json`: which policy is in use now, and which was before."""

    policy: Path
    """The file that was named."""
    digest: str
    """Its digest."""
    kind: str
    """`stop` or `full-budget`."""
    alpha: float | None
    """What it promises; null for one that never stops."""
    current: Path
    """Its copy, the policy in use."""
    previous_digest: str | None
    """Of the policy in use before; null where there was none that can be read."""
    previous_policy: Path | None
    """Where that one is kept, to be promoted again; null where there was none."""
    remarks: tuple[str, ...]
    """What the reader should know."""
    promise: str | None = None
    """All that it promises in words, where it is not about lost answers alone."""


def check_promotion(original: Path) -> tuple[Policy, bytes]:
    """Return the policy that may be promoted, and its calibration's file; writes nothing.

    Raises
    ------
    PolicyError
        The file is refused, is itself the copy in use, or no calibration lies next to it.
    """
    policy = load_policy(original)
    if original.suffix not in _FORMATS:
        raise PolicyError(f"{original}: the name of a policy ends in .joblib or .json")
    if original.stem == "policy":
        raise PolicyError(
            f"{original}: is the policy in use already; name one of "
            f"{', '.join(other_policies(original.parent)) or 'the others (there is none)'}"
        )
    beside = calibration_of(original)
    try:
        calibration = beside.read_bytes()
        digest = _named_in(calibration)
    except (OSError, ValueError) as error:
        why = "missing" if isinstance(error, FileNotFoundError) else f"not readable ({error})"
        raise PolicyError(
            f"{original}: its calibration {beside.name} is {why}: without it "
            "reports and later looks would not know what is in use; copy the policy where it is "
            "to be served instead"
        ) from error
    if digest != policy.digest:
        named = "no policy" if digest is None else f"policy {short_repr(digest[:_DIGITS])}"
        raise PolicyError(
            f"{original}: {beside.name} names {named}, not this one ({policy.digest[:_DIGITS]}): "
            "it is the calibration of another; calibrate again"
        )
    return policy, calibration


def _named_in(calibration: bytes) -> str | None:
    """Digest of the policy that a calibration is about."""
    found = parse_json(calibration)
    digest = found.get("digest") if isinstance(found, dict) else None
    return digest if isinstance(digest, str) else None


def promote(original: Path) -> Promotion:
    """Make a policy the one in use in its folder: ``policy.joblib`` or ``policy.json`` is its copy.

    ``calibration.json`` names the digest of the policy in use.  It is taken away first and written
    last, so that a kill in between leaves no calibration instead of another policy's; promoting
    again then finishes.

    Raises
    ------
    PolicyError
        As `check_promotion` does.
    OutputError
        A file cannot be written; what stood there still does.
    """
    policy, calibration = check_promotion(original)
    folder = original.parent
    current = folder / f"policy{original.suffix}"
    before, kept_as = _keep(current)
    remove_file(folder / CALIBRATION)
    replace_file(current, original.read_bytes())
    # Until this is done, whoever requires a signature is refused, and nobody is deceived.
    _copy_signature(original, current)
    replace_file(folder / CALIBRATION, calibration)
    certificate, promise = policy.terms.certificate, None
    if certificate is not None and not says_lost(certificate):
        promise = promise_of(certificate.limits)
    return Promotion(
        policy=original,
        digest=policy.digest,
        kind=policy.kind,
        alpha=None if certificate is None else certificate.alpha,
        current=current,
        previous_digest=None if before is None else before.digest,
        previous_policy=kept_as,
        remarks=(),
        promise=promise,
    )


def _copy_signature(original: Path, copy: Path) -> None:
    """Let a copy be signed as the original is: by the same signature, or not at all."""
    signature, beside = signature_path(original), signature_path(copy)
    if is_signed(original):
        replace_file(beside, signature.read_bytes())
    else:
        remove_file(beside)


def other_policies(folder: Path) -> list[str]:
    """Names of the policies of a folder that may be promoted."""
    return sorted(
        file.name
        for ending in _FORMATS
        for file in folder.glob(f"policy-*{ending}")
        if calibration_of(file).exists()
    )


def _keep(current: Path) -> tuple[Policy | None, Path | None]:
    """See to it that a copy about to be replaced has an original; older policies have none."""
    try:
        data = current.read_bytes()
    except FileNotFoundError:
        return None, None
    try:
        before = load_policy(current)
    except PolicyError:
        before = None
    for file in current.parent.glob(f"policy-*{current.suffix}"):
        if file.read_bytes() == data:
            return before, file
    if before is None:
        name = f"policy-unread-{hashlib.sha256(data).hexdigest()[:_DIGITS]}"
    else:
        certificate = before.terms.certificate
        name = own_name(None if certificate is None else certificate.alpha, before.digest)
    original = current.with_name(f"{name}{current.suffix}")
    replace_file(original, data)
    _copy_signature(current, original)
    calibration = current.with_name(CALIBRATION)
    if before is not None and _is_about(calibration, before):
        replace_file(calibration_of(original), calibration.read_bytes())
    return before, original


def _is_about(calibration: Path, policy: Policy) -> bool:
    try:
        return _named_in(calibration.read_bytes()) == policy.digest
    except (OSError, ValueError):
        return False
