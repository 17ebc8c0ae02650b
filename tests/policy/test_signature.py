"""Signatures beside policy files: made, required, refused, and those of openssl."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.errors import OutputError, PolicyError
from stopadvisor.policy import file as policy_file
from stopadvisor.policy import frozen
from stopadvisor.policy.frozen import load_policy, save_policy, sign_policy
from stopadvisor.policy.signature import check_signature, public_key, signature_path, signing_key
from tests import missing
from tests.keys import make_key
from tests.policy_content import example_content, family_content, policy_from

pytest.importorskip("cryptography", reason="cryptography (extra sign) makes and checks signatures")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy signed with `own.pem`; `other.pem` is another key."""
    for name in ("own", "other"):
        make_key(tmp_path / f"{name}.pem")
    path = tmp_path / "policy.joblib"
    save_policy(policy_from(example_content()), path)
    sign_policy(path, signing_key(tmp_path / "own.pem"), digest=load_policy(path).digest)
    return path


def key_of(policy: Path, name: str = "own") -> Path:
    return policy.with_name(f"{name}.pub")


def refused(policy: Path, *keys: Path) -> str:
    with pytest.raises(PolicyError) as caught:
        load_policy(policy, require_signature=keys or [key_of(policy)])
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{policy}: ")
    return line


# --- Required -------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["joblib", "json"])
def test_a_signed_policy_loads_and_says_who_signed(
    policy: Path, format: policy_file.Format
) -> None:
    path = policy.with_suffix(f".{format}")
    save_policy(load_policy(policy), path, format=format)
    sign_policy(path, signing_key(policy.with_name("own.pem")), digest=load_policy(path).digest)
    found = load_policy(path, require_signature=[str(key_of(policy))])
    assert found.signed_by == public_key(key_of(policy)).fingerprint
    assert found.digest == load_policy(policy).digest


def test_nothing_is_checked_where_nothing_is_required(policy: Path) -> None:
    signature_path(policy).write_bytes(b"nonsense")
    assert load_policy(policy).signed_by is None


def test_one_of_several_trusted_keys_is_enough(policy: Path) -> None:
    both = [key_of(policy, "other"), key_of(policy)]
    assert load_policy(policy, require_signature=both).signed_by == public_key(both[1]).fingerprint


def test_a_copy_is_signed_with_the_copy_of_the_signature(policy: Path) -> None:
    copy = policy.with_name("copy.joblib")
    copy.write_bytes(policy.read_bytes())
    assert "is not signed" in refused(copy)
    signature_path(copy).write_bytes(signature_path(policy).read_bytes())
    assert load_policy(copy, require_signature=[key_of(policy)]).signed_by


def test_no_trusted_key_is_not_the_same_as_no_requirement(policy: Path) -> None:
    with pytest.raises(PolicyError, match="at least one public key, got none"):
        load_policy(policy, require_signature=[])


def test_a_single_key_may_be_given_alone(policy: Path) -> None:
    assert load_policy(policy, require_signature=key_of(policy)).signed_by  # type: ignore[arg-type]


# --- Refused --------------------------------------------------------------------------------------


def test_an_unsigned_policy_is_refused(policy: Path) -> None:
    signature_path(policy).unlink()
    line = refused(policy)
    assert "is not signed: next to it lies no policy.joblib.sig" in line
    assert line.endswith("own.pub")


def test_a_policy_signed_by_another_key_is_refused(policy: Path) -> None:
    line = refused(policy, key_of(policy, "other"))
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
    wanted, real = load_policy(policy).digest, check_signature

    def exchange(data: bytes, path: Path, trusted: Any) -> Any:
        found = real(data, path, trusted)
        save_policy(policy_from(family_content("entropy")), policy)
        return found

    monkeypatch.setattr(frozen, "check_signature", exchange)
    assert load_policy(policy, require_signature=[key_of(policy)]).digest == wanted
    assert load_policy(policy).digest != wanted


def test_a_signature_that_was_changed_is_refused(policy: Path) -> None:
    path = signature_path(policy)
    signature = path.read_bytes()
    path.write_bytes(signature[:-1] + bytes([signature[-1] ^ 1]))
    assert "was changed" in refused(policy)


def test_the_signature_of_another_policy_is_refused(policy: Path) -> None:
    signature = signature_path(policy).read_bytes()
    save_policy(policy_from(family_content("entropy")), policy)
    signature_path(policy).write_bytes(signature)
    assert "was changed" in refused(policy)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is no signature of it by"),
        (b"{}", "is no signature of it by"),
        (bytes.fromhex("3006020100020100"), "is no signature of it by"),  # r = s = 0
        (b"0" * 1024, "is no signature of it by"),
        (b"x" * 1025, "a signature has at most"),
    ],
    ids=["empty", "json", "zeros", "long", "large"],
)
def test_a_damaged_signature_is_one_line(policy: Path, data: bytes, said: str) -> None:
    signature_path(policy).write_bytes(data)
    assert said in refused(policy)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_signature_that_is_no_file_does_not_hold_the_loader(policy: Path) -> None:
    signature_path(policy).unlink()
    os.mkfifo(signature_path(policy))
    assert "a signature must be a regular file" in refused(policy)


# --- Keys -----------------------------------------------------------------------------------------


def _private(path: Path) -> None:
    make_key(path.with_suffix(".pem"))
    path.write_bytes(path.with_suffix(".pem").read_bytes())


def _on_another_curve(path: Path) -> None:
    make_key(path.with_suffix(".pem"), "SECP256K1")


def _ed25519(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate()
    path.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "cannot read the key: No such file"),
        (lambda path: path.write_bytes(b""), "not a public key in PEM"),
        (lambda path: path.write_bytes(b"\x80" * 100_000), "a key has at most"),
        (lambda path: path.mkdir(), "cannot read the key: Is a directory"),
        (_private, "is a private key"),
        (_on_another_curve, "got one on secp256k1"),
        (_ed25519, "got one on no curve"),
    ],
    ids=["missing", "empty", "large", "folder", "private", "curve", "ed25519"],
)
def test_a_bad_public_key_is_one_line_that_names_it(
    policy: Path, make: Callable[[Path], Any], said: str
) -> None:
    path = policy.with_name("bad.pub")
    make(path)
    with pytest.raises(PolicyError) as caught:
        load_policy(policy, require_signature=[path])
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_bytes(b"nonsense"), "not a private key in PEM"),
        (lambda path: make_key(path, "SECP256K1"), "got one on secp256k1"),
        (lambda path: make_key(path, password=b"secret"), "the key is encrypted"),
        (
            lambda path: path.write_bytes(path.with_name("own.pub").read_bytes()),
            "is a public key, which signs nothing",
        ),
    ],
    ids=["nonsense", "curve", "encrypted", "public"],
)
def test_a_bad_private_key_is_one_line_that_names_it(
    policy: Path, make: Callable[[Path], Any], said: str
) -> None:
    path = policy.with_name("bad.pem")
    make(path)
    with pytest.raises(PolicyError) as caught:
        signing_key(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_as_openssl_writes_it_may_begin_with_its_parameters(policy: Path) -> None:
    path = policy.with_name("own.pem")
    p256 = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    path.write_bytes(p256 + path.read_bytes())
    assert signing_key(path).fingerprint == public_key(key_of(policy)).fingerprint


def test_the_fingerprint_is_the_hash_of_the_public_key_s_file(policy: Path) -> None:
    import hashlib

    expected = hashlib.sha256(key_of(policy).read_bytes()).hexdigest()
    assert public_key(key_of(policy)).fingerprint == expected


# --- Writing --------------------------------------------------------------------------------------


def test_a_signature_goes_with_the_policy_that_it_was_for(policy: Path) -> None:
    save_policy(load_policy(policy), policy)  # the same bytes
    assert load_policy(policy, require_signature=[key_of(policy)]).signed_by
    signature = signature_path(policy).read_bytes()
    save_policy(policy_from(family_content("entropy")), policy)
    assert not signature_path(policy).exists()
    policy.unlink()
    signature_path(policy).write_bytes(signature)  # of a file that is gone
    save_policy(policy_from(family_content("entropy")), policy)
    assert not signature_path(policy).exists()


def test_a_policy_that_could_not_be_replaced_keeps_its_signature(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        save_policy(policy_from(family_content("entropy")), policy)
    assert load_policy(policy, require_signature=[key_of(policy)]).signed_by


def test_another_policy_than_the_one_meant_is_not_signed(policy: Path) -> None:
    before = signature_path(policy).read_bytes()
    with pytest.raises(PolicyError, match=r"expected policy 00000000, got .*nothing signed"):
        sign_policy(policy, signing_key(policy.with_name("own.pem")), digest="0" * 64)
    assert signature_path(policy).read_bytes() == before


def test_what_is_no_policy_is_not_signed(policy: Path) -> None:
    policy.write_bytes(b"{}")
    with pytest.raises(PolicyError, match="schema"):
        sign_policy(policy, signing_key(policy.with_name("own.pem")), digest="0" * 64)


# --- OpenSSL --------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("openssl") is None, reason=missing.needs("openssl"))
@pytest.mark.parametrize("curve", ["SECP256R1", "SECP384R1", "SECP521R1"])
def test_openssl_and_this_package_check_what_the_other_signed(policy: Path, curve: str) -> None:
    key, signature = policy.with_name("new.pem"), signature_path(policy)
    public = make_key(key, curve)

    def openssl(*words: str | Path) -> int:
        words = ("openssl", "dgst", "-sha256", *words, policy)
        return subprocess.run(words, capture_output=True).returncode

    sign_policy(policy, signing_key(key), digest=load_policy(policy).digest)
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


# --- The extra ------------------------------------------------------------------------------------


def test_cryptography_is_loaded_only_where_a_signature_is_required(policy: Path) -> None:
    code = (
        "import sys; from stopadvisor import load_policy; load_policy(sys.argv[1]);"
        "assert 'cryptography' not in sys.modules;"
        "load_policy(sys.argv[1], require_signature=sys.argv[2:]);"
        "assert 'cryptography' in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, policy, key_of(policy)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_without_the_extra_the_line_says_how_to_get_it(policy: Path) -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None;"
        "from stopadvisor import load_policy; load_policy(sys.argv[1]);"
        "load_policy(sys.argv[1], require_signature=sys.argv[2:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, policy, key_of(policy)], capture_output=True, text=True
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "pip install 'stopadvisor[sign]'" in last, done.stderr
