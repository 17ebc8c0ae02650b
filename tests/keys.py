"""Key pairs for tests of signatures, as openssl writes them."""

from __future__ import annotations

from pathlib import Path

__all__ = ["make_key"]


def make_key(path: Path, curve: str = "SECP256R1", *, password: bytes | None = None) -> Path:
    """Write a new private key, and the public one next to it as ``.pub``; return the latter.

    Parameters
    ----------
    curve : str
        Name of its class in `cryptography`.
    password : bytes, optional
        Encrypts the private key.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(getattr(ec, curve)())
    encryption = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password)
    )
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, encryption
        )
    )
    public = path.with_suffix(".pub")
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return public
