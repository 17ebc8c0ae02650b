"""Signatures of policy files: made, required and refused, also those of openssl."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.errors import OutputError, PolicyError
from stopadvisor.policy import frozen
from stopadvisor.policy.frozen import load_policy, save_policy, sign_policy
from stopadvisor.policy.signature import check_signature, public_key, signature_path, signing_key
from tests import missing
from tests.keys import make_key
from tests.policy_content import example_content, family_content, policy_from

pytest.importorskip("cryptography", reason="cryptography (extra sign) makes and checks signatures")

OTHER = policy_from(family_content("entropy"))


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy signed with `own.pem`; `other.pem` is another key."""
    for name in ("own", "other"):
        make_key(tmp_path / f"{name}.pem")
    path = tmp_path / "policy.joblib"
    save_policy(policy_from(example_content()), path)
    signed(path, "own")
    return path


def signed(policy: Path, key: str) -> None:
    sign_policy(
        policy, signing_key(key_of(policy, f"{key}.pem")), digest=load_policy(policy).digest
    )


def key_of(policy: Path, name: str = "own.pub") -> Path:
    return policy.with_name(name)


def refused(policy: Path, *keys: Path) -> str:
    with pytest.raises(PolicyError) as caught:
        load_policy(policy, require_signature=keys or [key_of(policy)])
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{policy}: ")
    return line


# --- Required -------------------------------------------------------------------------------------


def test_a_signed_policy_loads_and_says_who_signed(policy: Path) -> None:
    own = public_key(key_of(policy))
    assert own.fingerprint == hashlib.sha256(key_of(policy).read_bytes()).hexdigest()
    path = policy.with_suffix(".json")
    save_policy(load_policy(policy), path, format="json")
    signed(path, "own")
    both = [key_of(policy, "other.pub"), str(key_of(policy))]
    for file in (policy, path):
        for keys in (both, both[1:], key_of(policy)):  # one of several is enough
            found = load_policy(file, require_signature=keys)  # type: ignore[arg-type]
            assert found.signed_by == own.fingerprint


def test_nothing_is_checked_where_nothing_is_required(policy: Path) -> None:
    signature_path(policy).write_bytes(b"nonsense")
    assert load_policy(policy).signed_by is None
    with pytest.raises(PolicyError, match="at least one public key, got none"):
        load_policy(policy, require_signature=[])


def test_a_copy_is_signed_with_the_copy_of_the_signature(policy: Path) -> None:
    copy = policy.with_name("copy.joblib")
    copy.write_bytes(policy.read_bytes())
    line = refused(copy)
    assert line.endswith("own.pub: there is no copy.joblib.sig next to it")
    assert "is not signed by " in line
    signature_path(copy).write_bytes(signature_path(policy).read_bytes())
    assert load_policy(copy, require_signature=[key_of(policy)]).signed_by


# --- Refused --------------------------------------------------------------------------------------


def test_a_policy_signed_by_another_key_is_refused(policy: Path) -> None:
    line = refused(policy, key_of(policy, "other.pub"))
    assert "signed by a key that is not trusted" in line
    assert line.endswith("other.pub")


def test_every_changed_byte_is_noticed_before_the_file_is_read(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("the file was read")

    monkeypatch.setattr(frozen, "decode", never)
    data = policy.read_bytes()
    for k in (0, len(data) // 2, len(data) - 1):
        policy.write_bytes(data[:k] + bytes([data[k] ^ 1]) + data[k + 1 :])
        assert "was changed after it was signed" in refused(policy)
    policy.write_bytes(data + b" ")
    assert "was changed after it was signed" in refused(policy)


def test_what_is_checked_is_what_is_loaded(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is exchanged between check and reading is never the policy."""
    wanted = load_policy(policy).digest

    def exchange(data: bytes, path: Path, trusted: Any) -> Any:
        found = check_signature(data, path, trusted)
        save_policy(OTHER, policy)
        return found

    monkeypatch.setattr(frozen, "check_signature", exchange)
    assert load_policy(policy, require_signature=[key_of(policy)]).digest == wanted
    assert load_policy(policy).digest == OTHER.digest


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda signature: signature[:-1] + bytes([signature[-1] ^ 1]), "was changed"),
        (lambda _: b"", "in DER, got b''"),
        (lambda _: b'{"mediaType": "application/vnd.dev.sigstore"' + b" " * 9_000, "a Sigstore"),
        (base64.b64encode, "in DER, got b'ME"),  # as cosign writes it
        (lambda _: bytes.fromhex("3006020100020100"), "is no signature of it by"),  # r = s = 0
        (lambda _: b"0" * 1024, "is no signature of it by"),
        (lambda _: b"x" * 65_537, "a signature has at most"),
    ],
    ids=["flipped", "empty", "bundle", "base64", "zeros", "long", "large"],
)
def test_a_damaged_signature_is_one_line(
    policy: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    path = signature_path(policy)
    path.write_bytes(change(path.read_bytes()))
    assert said in refused(policy)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_signature_that_is_no_file_does_not_hold_the_loader(policy: Path) -> None:
    signature_path(policy).unlink()
    os.mkfifo(signature_path(policy))
    assert "a signature must be a regular file" in refused(policy)


# --- Keys -----------------------------------------------------------------------------------------


def _ed25519(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate().public_key()
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    path.write_bytes(key.public_bytes(*form))


def _copied(name: str) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(path.with_name(name).read_bytes())


@pytest.mark.parametrize(
    ("read", "make", "said"),
    [
        (public_key, lambda path: None, "cannot read the key: No such file"),
        (public_key, lambda path: path.write_bytes(b""), "not a public key in PEM"),
        (public_key, lambda path: path.write_bytes(b"\x80" * 100_000), "a key has at most"),
        (public_key, lambda path: path.mkdir(), "cannot read the key: Is a directory"),
        (public_key, _copied("own.pem"), "is a private key"),
        (public_key, lambda path: make_key(path.with_suffix(".pem"), "SECP256K1"), "secp256k1"),
        (public_key, _ed25519, "got one on no curve"),
        (signing_key, lambda path: path.write_bytes(b"nonsense"), "not a private key in PEM"),
        (signing_key, lambda path: make_key(path, "SECP256K1"), "got one on secp256k1"),
        (signing_key, lambda path: make_key(path, password=b"secret"), "the key is encrypted"),
        (signing_key, _copied("own.pub"), "is a public key, which signs nothing"),
    ],
    ids=[
        *("missing", "empty", "large", "folder", "private", "curve", "ed25519"),
        *("nonsense", "private-curve", "encrypted", "public"),
    ],
)
def test_a_bad_key_is_one_line_that_names_it(
    policy: Path, read: Callable[[Path], Any], make: Callable[[Path], Any], said: str
) -> None:
    path = policy.with_name("bad.pub" if read is public_key else "bad.pem")
    make(path)
    with pytest.raises(PolicyError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_as_openssl_writes_it_may_begin_with_its_parameters(policy: Path) -> None:
    path = key_of(policy, "own.pem")
    p256 = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    path.write_bytes((p256 + path.read_bytes()).ljust(2**16))  # as large as a key may be
    assert signing_key(path).fingerprint == public_key(key_of(policy)).fingerprint


# --- Writing --------------------------------------------------------------------------------------


def test_a_signature_goes_with_the_policy_that_it_was_for(policy: Path) -> None:
    save_policy(load_policy(policy), policy)  # the same bytes
    assert load_policy(policy, require_signature=[key_of(policy)]).signed_by
    signature = signature_path(policy).read_bytes()
    save_policy(OTHER, policy)
    assert not signature_path(policy).exists()
    policy.unlink()
    signature_path(policy).write_bytes(signature)  # of a file that is gone
    save_policy(OTHER, policy)
    assert not signature_path(policy).exists()


def test_a_policy_that_could_not_be_replaced_keeps_its_signature(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        save_policy(OTHER, policy)
    assert load_policy(policy, require_signature=[key_of(policy)]).signed_by


def test_another_file_than_the_policy_that_is_meant_is_not_signed(policy: Path) -> None:
    before, key = signature_path(policy).read_bytes(), signing_key(key_of(policy, "own.pem"))
    with pytest.raises(PolicyError, match=r"expected policy 00000000, got .*nothing signed"):
        sign_policy(policy, key, digest="0" * 64)
    policy.write_bytes(b"{}")
    with pytest.raises(PolicyError, match="schema"):
        sign_policy(policy, key, digest="0" * 64)
    assert signature_path(policy).read_bytes() == before


# --- OpenSSL, and the extra -----------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("openssl") is None, reason=missing.needs("openssl"))
@pytest.mark.parametrize("curve", ["SECP256R1", "SECP384R1", "SECP521R1"])
def test_openssl_and_this_package_check_what_the_other_signed(policy: Path, curve: str) -> None:
    key, signature = policy.with_name("new.pem"), signature_path(policy)
    public = make_key(key, curve)

    def openssl(*words: str | Path) -> int:
        words = ("openssl", "dgst", "-sha256", *words, policy)
        return subprocess.run(words, capture_output=True).returncode

    signed(policy, "new")
    check = ("-verify", public, "-signature", signature)
    assert openssl(*check) == 0
    signature.unlink()
    assert openssl("-sign", key, "-out", signature) == 0
    assert (
        load_policy(policy, require_signature=[public]).signed_by == public_key(public).fingerprint
    )
    policy.write_bytes(policy.read_bytes() + b" ")
    assert openssl(*check) == 1
    refused(policy, public)


def test_without_cryptography_it_says_what_to_install(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(PolicyError, match=r"pip install 'stopadvisor\[sign\]'$"):
        load_policy(policy, require_signature=[key_of(policy)])
    assert load_policy(policy).signed_by is None
