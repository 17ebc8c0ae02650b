"""The policies of a run: each in a file of its own, and a copy of the one in use.

A policy never overwrites another's file, so there is always a way back.  Each policy has its
calibration next to it; the copy has ``calibration.json``.  The copy is signed if its original is.
Callers hold the folder's lock.
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
"""Number of the digest's digits in a file name."""


def own_name(alpha: float | None, digest: str) -> str:
    """File name of a policy without suffix: ``policy-a05-1a2b3c4d`` for alpha = 0.05."""
    if alpha is None:
        return f"policy-full-{digest[:_DIGITS]}"
    decimals = f"{alpha:.12f}".partition(".")[2].rstrip("0").ljust(2, "0")
    return f"policy-a{decimals}-{digest[:_DIGITS]}"


def calibration_of(policy: Path) -> Path:
    """Path of the calibration that belongs to a policy file."""
    return policy.with_name(f"{policy.name}.{CALIBRATION}")


def current_policy(folder: Path) -> Path | None:
    """The policy in use in a run's folder, or None.

    If there are both formats, the one that ``calibration.json`` names.
    """
    files = [folder / f"policy{suffix}" for suffix in _FORMATS]
    files = [file for file in files if file.exists()]
    if len(files) > 1:
        try:
            suffix = Path(parse_json((folder / CALIBRATION).read_bytes())["policy"]).suffix
        except (OSError, ValueError, KeyError, TypeError):
            suffix = max(files, key=lambda file: file.stat().st_mtime).suffix
        files = [file for file in files if file.suffix == suffix] or files
    return files[0] if files else None


def newest_policy() -> Path:
    """The newest policy in use among all runs under ``runs/``."""
    folders = Path("runs").glob("*")
    files = [file for folder in folders if (file := current_policy(folder)) is not None]
    if not files:
        raise PolicyError(
            "no policy under runs/: run `stopadvisor calibrate` first, or name a policy's file"
        )
    return max(files, key=lambda file: (file.stat().st_mtime_ns, str(file)))


def stops_already(folder: Path, *, format: Format) -> bool:
    """Whether the folder's policy in use is a certified one."""
    file = folder / f"policy.{format}"
    try:
        return load_policy(file).kind == "stop"
    except PolicyError:
        return False


def free_file(wanted: Path, policy: Policy, alpha: float) -> Path:
    """The requested file, or one next to it if another certified policy has that name."""
    try:
        existing = load_policy(wanted)
    except PolicyError:
        return wanted
    if existing.kind != "stop" or existing.digest == policy.digest:
        return wanted
    name = own_name(alpha, policy.digest).removeprefix("policy")
    return wanted.with_name(f"{wanted.stem}{name}{wanted.suffix}")


def put(policy: Policy, file: Path, calibration: Mapping[str, Any], *, format: Format) -> None:
    """Write a policy and, next to it, its calibration, which names its digest.

    The old calibration is removed first and the new one written last, so an interruption never
    leaves a calibration next to the wrong policy.
    """
    calibration_file = calibration_of(file)
    remove_file(calibration_file)
    save_policy(policy, file, format=format)
    write_json_atomically(calibration_file, calibration)


@dataclass(frozen=True)
class Promotion:
    """`promote --json`: the policy now in use, and the previous one."""

    policy: Path
    """The file that was named."""
    digest: str
    """Its digest."""
    kind: str
    """`stop` or `full-budget`."""
    alpha: float | None
    """Its certified limit; null if it never stops."""
    current: Path
    """Its copy, the policy in use."""
    previous_digest: str | None
    """Digest of the policy previously in use; null if there was none, or it cannot be read."""
    previous_policy: Path | None
    """Where that policy is kept, so that it can be promoted again; null if there was none."""
    remarks: tuple[str, ...]
    """Remarks for the reader."""
    promise: str | None = None
    """The whole promise in words, if it limits more than lost answers."""


def check_promotion(original: Path) -> tuple[Policy, bytes]:
    """Return a policy that can be promoted, and the bytes of its calibration; writes nothing.

    Raises
    ------
    PolicyError
        The file is refused, is itself the copy in use, or has no calibration next to it.
    """
    policy = load_policy(original)
    if original.suffix not in _FORMATS:
        raise PolicyError(f"{original}: the name of a policy ends in .joblib or .json")
    if original.stem == "policy":
        raise PolicyError(
            f"{original}: is already the policy in use; name one of "
            f"{', '.join(other_policies(original.parent)) or 'the others (there is none)'}"
        )
    file = calibration_of(original)
    try:
        calibration = file.read_bytes()
        digest = _named_in(calibration)
    except (OSError, ValueError) as error:
        why = "missing" if isinstance(error, FileNotFoundError) else f"not readable ({error})"
        raise PolicyError(
            f"{original}: its calibration {file.name} is {why}, and without it reports and later "
            "looks would not know what is in use; copy the policy to where it is served instead"
        ) from error
    if digest != policy.digest:
        named = "no policy" if digest is None else f"policy {short_repr(digest[:_DIGITS])}"
        raise PolicyError(
            f"{original}: {file.name} names {named}, not this one ({policy.digest[:_DIGITS]}): "
            "it is the calibration of another; calibrate again"
        )
    return policy, calibration


def _named_in(calibration: bytes) -> str | None:
    """Digest of the policy that a calibration belongs to."""
    content = parse_json(calibration)
    digest = content.get("digest") if isinstance(content, dict) else None
    return digest if isinstance(digest, str) else None


def promote(original: Path) -> Promotion:
    """Put a policy in use: copy it to ``policy.joblib`` or ``policy.json`` in its folder.

    ``calibration.json`` names the digest of the policy in use.  It is removed first and written
    last, so a kill in between leaves no calibration rather than the wrong one; promoting again
    completes the change.

    Raises
    ------
    PolicyError
        As `check_promotion`.
    OutputError
        A file cannot be written; the old one is still there.
    """
    policy, calibration = check_promotion(original)
    folder = original.parent
    current = folder / f"policy{original.suffix}"
    before, kept_as = _keep(current)
    remove_file(folder / CALIBRATION)
    replace_file(current, original.read_bytes())
    # In between, the signature does not match: a reader that requires one refuses the policy.
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
    """Give the copy the original's signature, or none if it has none."""
    if is_signed(original):
        replace_file(signature_path(copy), signature_path(original).read_bytes())
    else:
        remove_file(signature_path(copy))


def other_policies(folder: Path) -> list[str]:
    """Names of the policies in a folder that can be promoted."""
    return sorted(
        file.name
        for suffix in _FORMATS
        for file in folder.glob(f"policy-*{suffix}")
        if calibration_of(file).exists()
    )


def _keep(current: Path) -> tuple[Policy | None, Path | None]:
    """Make sure that a copy about to be replaced has an original to return to."""
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
