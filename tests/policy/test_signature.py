"""Signatures beside policy files: made, required, refused, and those of `model_signing`."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
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
from stopadvisor.policy.signature import (
    check_signature,
    public_key,
    sign,
    signature_path,
    signing_key,
)
from tests import missing
from tests.keys import make_key
from tests.policy_content import example_content, family_content, policy_from

pytest.importorskip("cryptography", reason="cryptography (extra sign) makes and checks signatures")

MADE_ELSEWHERE = Path(__file__).resolve().parent.parent / "testdata" / "signature"


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


def rewrite(policy: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = signature_path(policy)
    bundle = json.loads(path.read_bytes())
    change(bundle)
    path.write_text(json.dumps(bundle), encoding="utf-8")


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


@pytest.mark.parametrize("curve", ["SECP256R1", "SECP384R1", "SECP521R1"])
def test_every_curve_of_the_format_signs(policy: Path, curve: str) -> None:
    make_key(policy.with_name("new.pem"), curve)
    sign_policy(policy, signing_key(policy.with_name("new.pem")), digest=load_policy(policy).digest)
    found = load_policy(policy, require_signature=[key_of(policy, "new")])
    assert found.signed_by == public_key(key_of(policy, "new")).fingerprint
    refused(policy, key_of(policy))


# --- Refused --------------------------------------------------------------------------------------


def test_an_unsigned_policy_is_refused(policy: Path) -> None:
    signature_path(policy).unlink()
    line = refused(policy)
    assert "is not signed: there is no policy.joblib.sig next to it" in line
    assert "own.pub is required" in line


def test_a_policy_signed_by_another_key_is_refused(policy: Path) -> None:
    line = refused(policy, key_of(policy, "other"))
    assert "signed by a key that is not trusted" in line
    assert "other.pub is required" in line


def test_every_changed_byte_is_noticed_before_the_file_is_read(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("the file was read")

    monkeypatch.setattr(frozen, "decode", never)
    data = policy.read_bytes()
    for k in (0, len(data) // 2, len(data) - 1):
        policy.write_bytes(data[:k] + bytes([data[k] ^ 1]) + data[k + 1 :])
        assert "was changed after it was signed by" in refused(policy)
    policy.write_bytes(data + b" ")
    assert "was changed after it was signed by" in refused(policy)


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


def test_a_wrong_signature_is_refused(policy: Path) -> None:
    def forge(bundle: dict[str, Any]) -> None:
        only = bundle["dsseEnvelope"]["signatures"][0]
        raw = bytearray(base64.b64decode(only["sig"]))
        raw[-1] ^= 1
        only["sig"] = base64.b64encode(raw).decode()

    rewrite(policy, forge)
    assert "policy.joblib.sig is a wrong signature" in refused(policy)


def test_a_statement_about_another_file_under_an_old_signature_is_refused(policy: Path) -> None:
    """Whoever exchanges policy and statement still has no signature for it."""
    save_policy(policy_from(family_content("entropy")), policy)
    sign_policy(policy, signing_key(policy.with_name("own.pem")), digest=load_policy(policy).digest)
    genuine = json.loads(signature_path(policy).read_bytes())
    save_policy(policy_from(family_content("confidence")), policy)
    own = signing_key(policy.with_name("other.pem"))
    forged = json.loads(sign(policy.read_bytes(), policy.name, own))
    genuine["dsseEnvelope"]["payload"] = forged["dsseEnvelope"]["payload"]
    signature_path(policy).write_text(json.dumps(genuine), encoding="utf-8")
    assert "is a wrong signature" in refused(policy)


def test_the_fingerprint_in_the_file_is_believed_by_nobody(policy: Path) -> None:
    """It says which key to try, and no more: a stranger may write anybody's there."""
    trusted = public_key(key_of(policy)).fingerprint
    stranger = signing_key(policy.with_name("other.pem"))
    sign_policy(policy, stranger, digest=load_policy(policy).digest)
    rewrite(policy, lambda b: b["verificationMaterial"]["publicKey"].update(hint=trusted))
    assert "is a wrong signature" in refused(policy)


def _resign(bundle: dict[str, Any], folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Sign another statement with the trusted key, as another tool might."""
    from stopadvisor.policy import signature

    envelope = bundle["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(statement)
    payload = json.dumps(statement).encode()
    key = signing_key(folder / "own.pem").key
    raw = key.sign(signature._signed_bytes(payload), signature._ecdsa(key.curve.name))
    envelope["payload"] = base64.b64encode(payload).decode()
    envelope["signatures"] = [{"sig": base64.b64encode(raw).decode(), "keyid": ""}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.update(_type="another"), "'_type'"),
        (lambda s: s.update(predicateType="another"), "'predicateType'"),
        (lambda s: s.update(predicate=[]), "'resources': expected exactly one"),
        (lambda s: s["predicate"]["resources"].append({}), "'resources': expected exactly one"),
        (lambda s: s["predicate"]["resources"][0].update(name="policy.joblib"), "'name'"),
        (lambda s: s["predicate"]["resources"][0].update(algorithm="blake3"), "'algorithm'"),
        (lambda s: s["predicate"]["resources"][0].update(digest=None), "'digest'"),
    ],
    ids=["type", "predicate", "none", "two", "folder", "algorithm", "digest"],
)
def test_a_right_signature_of_something_else_is_refused(
    policy: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    rewrite(policy, lambda bundle: _resign(bundle, policy.parent, change))
    line = refused(policy)
    assert "is no signature of one file" in line
    assert said in line


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "expected JSON"),
        (b"\xff\xfe", "expected JSON"),
        (b"[" * 60_000, "expected JSON"),
        (b"[]", "expected a JSON object"),
        (b"{}", "'mediaType'"),
        (b"x" * 70_000, "a signature has at most"),
    ],
    ids=["empty", "binary", "deep", "list", "no-bundle", "large"],
)
def test_a_damaged_signature_is_one_line(policy: Path, data: bytes, said: str) -> None:
    signature_path(policy).write_bytes(data)
    assert said in refused(policy)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda b: b.pop("dsseEnvelope"), "'dsseEnvelope'"),
        (lambda b: b["dsseEnvelope"].update(payloadType="text/plain"), "'payloadType'"),
        (lambda b: b["dsseEnvelope"].update(payload="%"), "'payload': expected base64"),
        (lambda b: b["dsseEnvelope"].update(signatures=[]), "'signatures': expected exactly one"),
        (lambda b: b["dsseEnvelope"].update(signatures=[3]), "'sig': expected base64"),
        (lambda b: b.update(mediaType="\x1b[2J"), "'mediaType'"),
    ],
    ids=["envelope", "payload-type", "payload", "none", "number", "escape"],
)
def test_a_bundle_of_another_form_is_one_line(
    policy: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    rewrite(policy, change)
    line = refused(policy)
    assert said in line
    assert "\x1b" not in line


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


def _rsa(path: Path) -> None:
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
        (_private, "is a private key, where the public one was expected"),
        (_on_another_curve, "got one on secp256k1"),
        (_rsa, "got Ed25519"),
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
    assert signing_key(path).public.fingerprint == public_key(key_of(policy)).fingerprint


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


# --- The format -----------------------------------------------------------------------------------


def test_a_signature_of_model_signing_is_right_here() -> None:
    """`example.txt` says how it was signed; the key was thrown away."""
    file, key = MADE_ELSEWHERE / "example.txt", public_key(MADE_ELSEWHERE / "example.pub")
    assert check_signature(file.read_bytes(), file, [key]) == key
    with pytest.raises(PolicyError, match="was changed after it was signed"):
        check_signature(file.read_bytes() + b" ", file, [key])


@pytest.mark.integration
def test_model_signing_finds_ours_right(policy: Path) -> None:
    signing = pytest.importorskip("model_signing", reason=missing.needs("model-signing"))
    config = signing.verifying.Config().use_elliptic_key_verifier(public_key=key_of(policy))
    config.verify(policy, signature_path(policy))
    policy.write_bytes(policy.read_bytes() + b" ")
    with pytest.raises(ValueError, match="mismatch"):
        config.verify(policy, signature_path(policy))


def test_the_statement_is_the_one_that_model_signing_writes(policy: Path) -> None:
    def statement(path: Path) -> dict[str, Any]:
        payload = json.loads(path.read_bytes())["dsseEnvelope"]["payload"]
        found: dict[str, Any] = json.loads(base64.b64decode(payload))
        return found

    theirs = statement(MADE_ELSEWHERE / "example.txt.sig")
    ours = statement(signature_path(policy))
    for found in (theirs, ours):
        found["predicate"]["serialization"]["ignore_paths"].sort()
        assert re.fullmatch("[0-9a-f]{64}", found["subject"][0]["digest"].pop("sha256"))
        assert re.fullmatch("[0-9a-f]{64}", found["predicate"]["resources"][0].pop("digest"))
        found["subject"][0].pop("name")
    assert ours == theirs


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
