"""Signatures of policy files: OpenSSF model signing, with an elliptic-curve key and no network.

``POLICY.sig`` is what ``model_signing sign key POLICY`` writes too: a Sigstore bundle, in it a DSSE
envelope, in it an in-toto statement that names the file's SHA-256; either tool checks what the
other has signed.  The cryptography is that of the package of this name, the extra ``sign``, loaded
only here and only when a key is.  Knows keys and bytes, and no field of a policy.

References
----------
Sigstore bundle v0.3; DSSE protocol v1.0.0; in-toto Statement v1; predicate
``https://model_signing/signature/v1.0`` of https://github.com/sigstore/model-transparency.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.ground.printable import short_repr
from stopadvisor.policy.file import read_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

__all__ = [
    "PublicKey",
    "SigningKey",
    "check_signature",
    "is_signed",
    "public_key",
    "sign",
    "signature_path",
    "signing_key",
]

_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD = "application/vnd.in-toto+json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://model_signing/signature/v1.0"
_WHOLE_FILE = "."
"""Name of the one resource where a single file was signed."""
_IGNORED = (".git", ".gitattributes", ".github", ".gitignore")
"""What `model_signing` leaves out of folders, and writes down for files too."""

_MAX_SIGNATURE = 2**16
_MAX_KEY = 2**16
_HASHES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
"""The curves of the format, and the hash that goes with each."""
_CURVES = "an elliptic-curve key on prime256v1, secp384r1 or secp521r1"


# --- Keys -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublicKey:
    """A key that is trusted."""

    name: str
    """Its file, for messages."""
    fingerprint: str
    """SHA-256 of its PEM text, which is that of the file as openssl writes it."""
    key: ec.EllipticCurvePublicKey


@dataclass(frozen=True)
class SigningKey:
    """A private key."""

    name: str
    """Its file, for messages."""
    key: ec.EllipticCurvePrivateKey

    @property
    def public(self) -> PublicKey:
        """The key that checks what this one signs."""
        public = self.key.public_key()
        return PublicKey(self.name, _fingerprint(public), public)


def public_key(path: Path) -> PublicKey:
    """Read a public key in PEM, as ``openssl ec -in KEY -pubout`` writes it.

    Raises
    ------
    PolicyError
        The file cannot be read or is no such key, or the extra is not installed.
    """
    _require_extra()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = _read_key(path)
    if b"PRIVATE KEY-----" in data:
        raise PolicyError(
            f"{path}: is a private key, where the public one was expected "
            f"(openssl ec -in {path} -pubout)"
        )
    try:
        key = load_pem_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise PolicyError(f"{path}: not a public key in PEM; expected {_CURVES}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _HASHES:
        raise PolicyError(f"{path}: expected {_CURVES}, got {_kind(key)}")
    return PublicKey(str(path), _fingerprint(key), key)


def signing_key(path: Path) -> SigningKey:
    """Read a private key in PEM, as ``openssl ecparam -genkey`` writes it.

    Raises
    ------
    PolicyError
        The file cannot be read, is no such key, or is encrypted, or the extra is not installed.
    """
    _require_extra()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _read_key(path)
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError as error:
        raise PolicyError(
            f"{path}: the key is encrypted; give it decrypted, as in <(openssl ec -in {path})"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        is_public = b"BEGIN PUBLIC KEY" in data
        found = "is a public key, which signs nothing" if is_public else "not a private key in PEM"
        raise PolicyError(f"{path}: {found}; expected {_CURVES}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in _HASHES:
        raise PolicyError(f"{path}: expected {_CURVES}, got {_kind(key)}")
    return SigningKey(str(path), key)


def _require_extra() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise PolicyError(
            "signatures need cryptography, which is not installed: pip install 'stopadvisor[sign]'"
        ) from error


def _read_key(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:  # a pipe is welcome: it may decrypt
            data = file.read(_MAX_KEY + 1)
    except OSError as error:
        raise PolicyError(f"{path}: cannot read the key: {error.strerror}") from error
    if len(data) > _MAX_KEY:
        raise PolicyError(f"{path}: a key has at most {_MAX_KEY} bytes, this file has more")
    return data


def _kind(key: object) -> str:
    curve = getattr(key, "curve", None)
    if curve is not None:
        return f"one on {curve.name}"
    # The classes are called RSAPublicKey, Ed25519PrivateKey and so on.
    return type(key).__name__.lstrip("_").replace("PublicKey", "").replace("PrivateKey", "")


def _fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


# --- Signing --------------------------------------------------------------------------------------


def signature_path(policy: Path) -> Path:
    """Path of a file's signature: next to it, as ``POLICY.sig``."""
    return policy.with_name(f"{policy.name}.sig")


def is_signed(policy: Path) -> bool:
    """Whether there is a signature next to a file, right or wrong."""
    return os.path.exists(signature_path(policy))  # False also where no such name is possible


def sign(data: bytes, name: str, key: SigningKey) -> bytes:
    """Give the signature file of a file's bytes.

    Parameters
    ----------
    name : str
        Of the file, for people: a copy under another name is signed as well.
    """
    payload = json.dumps(_statement(data, name), indent=1).encode("ascii")
    signature = key.key.sign(_signed_bytes(payload), _ecdsa(key.key.curve.name))
    bundle = {
        "mediaType": _BUNDLE,
        "verificationMaterial": {
            "publicKey": {"hint": key.public.fingerprint},
            "tlogEntries": [],  # nothing was sent anywhere
        },
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode("ascii"),
            "payloadType": _PAYLOAD,
            "signatures": [{"sig": base64.b64encode(signature).decode("ascii"), "keyid": ""}],
        },
    }
    return json.dumps(bundle).encode("ascii") + b"\n"


def _statement(data: bytes, name: str) -> dict[str, Any]:
    digest = hashlib.sha256(data)
    return {
        "_type": _STATEMENT,
        "subject": [
            {"name": name, "digest": {"sha256": hashlib.sha256(digest.digest()).hexdigest()}}
        ],
        "predicateType": _PREDICATE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": list(_IGNORED),
            },
            "resources": [
                {"name": _WHOLE_FILE, "algorithm": "sha256", "digest": digest.hexdigest()}
            ],
        },
    }


def _signed_bytes(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding, over which the signature is."""
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD), _PAYLOAD.encode(), len(payload), payload)


def _ecdsa(curve: str) -> ec.ECDSA:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA(getattr(hashes, _HASHES[curve])())


# --- Checking -------------------------------------------------------------------------------------


def check_signature(data: bytes, policy: Path, trusted: Sequence[PublicKey]) -> PublicKey:
    """Check bytes that were read from a file against the signature next to it.

    Parameters
    ----------
    data : bytes
        Of the file, of which nothing has been looked at yet.
    policy : Path
        The file.
    trusted : sequence of PublicKey
        One of these must have signed.

    Returns
    -------
    PublicKey
        Whose signature it is.

    Raises
    ------
    PolicyError
        No signature, a damaged or wrong one, one by another key, or one of other bytes.
    """
    path = signature_path(policy)
    if not is_signed(policy):
        raise PolicyError(
            f"is not signed: there is no {path.name} next to it, and a signature by "
            f"{_listed(trusted)} is required"
        )
    bundle = read_bytes(path, what="signature", most=_MAX_SIGNATURE)
    try:
        payload, signature, hint = _open_bundle(bundle)
    except _DamagedSignature as error:
        raise PolicyError(f"{path.name} is no signature that can be checked: {error}") from error
    signer = next((key for key in trusted if _verifies(key, payload, signature)), None)
    if signer is None:
        claimed = next((key for key in trusted if key.fingerprint == hint), None)
        if claimed is not None:
            raise PolicyError(f"{path.name} is a wrong signature: {claimed.name} did not make it")
        raise PolicyError(
            f"was signed by a key that is not trusted ({short_repr(hint)}): a signature by "
            f"{_listed(trusted)} is required"
        )
    try:
        signed = _signed_digest(payload)
    except _DamagedSignature as error:
        raise PolicyError(f"{path.name} is no signature of one file: {error}") from error
    if signed != hashlib.sha256(data).hexdigest():
        raise PolicyError(
            f"was changed after it was signed by {signer.name}, or {path.name} is "
            "that of another file"
        )
    return signer


class _DamagedSignature(ValueError):
    """What is there is of another form."""


def _listed(trusted: Sequence[PublicKey]) -> str:
    return " or ".join(key.name for key in trusted)


def _open_bundle(bundle: bytes) -> tuple[bytes, bytes, str | None]:
    """Payload, signature, and the fingerprint that the file gives, of which nothing depends."""
    found = _object(bundle)
    _expect("mediaType", found, _BUNDLE)
    envelope = found.get("dsseEnvelope")
    if not isinstance(envelope, dict):
        raise _DamagedSignature("'dsseEnvelope': expected a DSSE envelope")
    _expect("payloadType", envelope, _PAYLOAD)
    signatures = envelope.get("signatures")
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise _DamagedSignature("'signatures': expected exactly one")
    only = signatures[0]
    material = found.get("verificationMaterial")
    named = material.get("publicKey") if isinstance(material, dict) else None
    hint = named.get("hint") if isinstance(named, dict) else None
    return (
        _base64("payload", envelope.get("payload")),
        _base64("sig", only.get("sig") if isinstance(only, dict) else None),
        hint if isinstance(hint, str) else None,
    )


def _signed_digest(payload: bytes) -> str:
    """SHA-256 of the one file that a statement is about."""
    statement = _object(payload)
    _expect("_type", statement, _STATEMENT)
    _expect("predicateType", statement, _PREDICATE)
    predicate = statement.get("predicate")
    resources = predicate.get("resources") if isinstance(predicate, dict) else None
    if not isinstance(resources, list) or len(resources) != 1:
        raise _DamagedSignature("'resources': expected exactly one")
    only = resources[0] if isinstance(resources[0], dict) else {}
    _expect("name", only, _WHOLE_FILE)
    _expect("algorithm", only, "sha256")
    digest = only.get("digest")
    if not isinstance(digest, str):
        raise _DamagedSignature("'digest': expected a SHA-256")
    return digest


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = parse_json(data.decode("utf-8"))
    except ValueError as error:
        raise _DamagedSignature("expected JSON") from error
    if not isinstance(found, dict):
        raise _DamagedSignature("expected a JSON object")
    return found


def _expect(key: str, found: dict[str, Any], expected: str) -> None:
    if found.get(key) != expected:
        raise _DamagedSignature(f"'{key}': expected {expected!r}, got {short_repr(found.get(key))}")


def _base64(key: str, value: object) -> bytes:
    try:
        if not isinstance(value, str):
            raise ValueError
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise _DamagedSignature(f"'{key}': expected base64") from error


def _verifies(key: PublicKey, payload: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.key.verify(signature, _signed_bytes(payload), _ecdsa(key.key.curve.name))
    except InvalidSignature:
        return False
    return True
