"""Signatures of policy files: ECDSA with SHA-256 over the file's bytes, in ``POLICY.sig``.

``openssl dgst -sha256 -sign KEY -out POLICY.sig POLICY`` writes the same.  The package
`cryptography` (extra ``sign``) is imported only here, and only if a key is used.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.printable import short_repr
from stopadvisor.policy.file import read_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

__all__ = [
    "PemKey", "check_signature", "is_signed", "public_key", "sign", "signature_path",
    "signing_key",
]  # fmt: skip

_MAX_SIGNATURE = 2**16
"""Most bytes read of a signature; ours has about a hundred, other formats are named as such."""
_DER = b"\x30"
"""First byte of a signature in DER."""
_MAX_KEY = 2**16
_CURVES = ("secp256r1", "secp384r1", "secp521r1")
_EXPECTED = "an elliptic-curve key on prime256v1, secp384r1 or secp521r1"


@dataclass(frozen=True)
class PemKey:
    """A trusted public key, or a private key to sign with."""

    name: str
    """Its file, for messages."""
    fingerprint: str
    """SHA-256 of the public key's PEM text, as openssl writes it."""
    public: ec.EllipticCurvePublicKey
    private: ec.EllipticCurvePrivateKey | None = None


def public_key(path: Path) -> PemKey:
    """Read a public key in PEM, as ``openssl ec -in KEY -pubout`` writes it.

    Raises
    ------
    PolicyError
        The file cannot be read or is not such a key, or the extra is not installed.
    """
    return _read(path, private=False)


def signing_key(path: Path) -> PemKey:
    """Read a private key in PEM, as ``openssl ecparam -genkey`` writes it; raises `PolicyError`."""
    return _read(path, private=True)


def _read(path: Path, *, private: bool) -> PemKey:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization as pem
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise PolicyError(
            "signatures need cryptography, which is not installed: pip install 'stopadvisor[sign]'"
        ) from error
    try:
        with open(path, "rb") as file:  # may be a pipe from a program that decrypts
            data = file.read(_MAX_KEY + 1)
    except OSError as error:
        raise PolicyError(f"{path}: cannot read the key: {error.strerror}") from error
    if len(data) > _MAX_KEY:
        raise PolicyError(f"{path}: a key has at most {_MAX_KEY} bytes, this file has more")
    if not private and b"PRIVATE KEY-----" in data:
        raise PolicyError(f"{path}: is a private key; give `openssl ec -in {path} -pubout`")
    if private and b"BEGIN PUBLIC KEY" in data:
        raise PolicyError(f"{path}: is a public key, which signs nothing")
    try:
        secret = pem.load_pem_private_key(data, password=None) if private else None
        public = pem.load_pem_public_key(data) if secret is None else secret.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        found = f"not a {'private' if private else 'public'} key in PEM; expected {_EXPECTED}"
        if isinstance(error, TypeError):  # needs a password
            found = f"the key is encrypted; give it decrypted, as in <(openssl ec -in {path})"
        raise PolicyError(f"{path}: {found}") from error
    curve = public.curve.name if isinstance(public, ec.EllipticCurvePublicKey) else "no curve"
    if curve not in _CURVES:
        raise PolicyError(f"{path}: expected {_EXPECTED}, got one on {curve}")
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert secret is None or isinstance(secret, ec.EllipticCurvePrivateKey)
    text = public.public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    return PemKey(str(path), hashlib.sha256(text).hexdigest(), public, secret)


def signature_path(policy: Path) -> Path:
    """Path of a file's signature: ``POLICY.sig`` next to it."""
    return policy.with_name(f"{policy.name}.sig")


def is_signed(policy: Path) -> bool:
    """Whether a file has a signature next to it, valid or not."""
    return os.path.exists(signature_path(policy))  # also False for an impossible name


def sign(data: bytes, key: PemKey) -> bytes:
    """Sign a file's bytes with a key from `signing_key`."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    assert key.private is not None
    return key.private.sign(data, ec.ECDSA(hashes.SHA256()))


def check_signature(data: bytes, policy: Path, trusted: Sequence[PemKey]) -> PemKey:
    """Verify a file's bytes by the signature next to it; return the key that signed them.

    Raises
    ------
    PolicyError
        There is no signature, it has another format, or it is not one of these bytes by a trusted
        key.
    """
    path, names = signature_path(policy), " or ".join(key.name for key in trusted)
    if not is_signed(policy):
        raise PolicyError(f"is not signed by {names}: there is no {path.name} next to it")
    signature = read_bytes(path, what="signature", most=_MAX_SIGNATURE)
    if not signature.startswith(_DER):
        raise PolicyError(
            f"{path.name}: expected the signature that `openssl dgst -sha256 -sign KEY` writes, in "
            f"DER, got {short_repr(signature[:20])}; a Sigstore bundle or base64 is not read"
        )
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    for key in trusted:
        try:
            key.public.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            continue
        return key
    raise PolicyError(
        "was changed after it was signed, or was signed by a key that is not trusted: "
        f"{path.name} is no signature of it by {names}"
    )
