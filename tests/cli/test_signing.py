"""`calibrate --sign`, `inspect --require-signature` and `run --require-signature`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import load_policy, save_policy, sign_policy
from stopadvisor.policy.signature import public_key, signing_key
from tests.keys import make_key
from tests.material import Call
from tests.policy_content import family_content, policy_from

pytest.importorskip("cryptography", reason="cryptography (extra sign) makes and checks signatures")

RUN = Path("runs/sums")


@pytest.fixture(name="call")
def with_keys(call: Call) -> Call:
    """A folder with two pairs of keys and an unsigned policy."""
    make_key(Path("own.pem"))
    make_key(Path("new.pem"))
    save_policy(policy_from(family_content("entropy")), "policy.joblib")
    return call


def sign(policy: str | Path, key: str) -> None:
    sign_policy(policy, signing_key(Path(key)), digest=load_policy(policy).digest)


def fingerprint(name: str) -> str:
    return public_key(Path(f"{name}.pub")).fingerprint


# --- inspect --------------------------------------------------------------------------------------


def test_inspect_says_which_key_signed(call: Call) -> None:
    sign("policy.joblib", "own.pem")
    keys = ["--require-signature", "new.pub", "--require-signature", "own.pub"]
    code, out, _ = call("inspect", "policy.joblib", *keys)
    assert code == 0
    assert f"signed by  {fingerprint('own')}" in out
    assert max(map(len, out.splitlines())) <= 80
    found = call.json("inspect", "policy.joblib", *keys)["signature"]
    assert found == {"file": "policy.joblib.sig", "key_sha256": fingerprint("own")}


def test_inspect_without_a_key_says_that_a_signature_was_not_checked(call: Call) -> None:
    assert call.json("inspect", "policy.joblib")["signature"] is None
    sign("policy.joblib", "own.pem")
    code, out, _ = call("inspect", "policy.joblib")
    assert code == 0
    assert "not checked: --require-signature KEY.pub checks policy.joblib.sig" in out
    found = call.json("inspect", "policy.joblib")["signature"]
    assert found == {"file": "policy.joblib.sig", "key_sha256": None}


# --- run ------------------------------------------------------------------------------------------


def test_run_refuses_an_unsigned_policy_before_anything_else(call: Call) -> None:
    words = ["run", "policy.joblib", "missing.jsonl", "--require-signature", "own.pub"]
    assert "policy.joblib: is not signed" in call.refused(*words)
    sign("policy.joblib", "own.pem")
    assert "missing.jsonl" in call.refused(*words)  # the policy was taken, and more was asked for
    Path("policy.joblib").write_bytes(Path("policy.joblib").read_bytes() + b" ")
    assert "was changed after it was signed" in call.refused(*words)


# --- calibrate ------------------------------------------------------------------------------------


@pytest.fixture
def probed(call: Call, probed_run: Path) -> Call:
    shutil.copytree(probed_run, RUN)
    return call


def calibrated(call: Call, *words: str) -> Path:
    """Calibrate at an alpha that certifies; give the policy's own file."""
    asked = ["--families", "entropy,confidence", "--alpha", "0.7", "--despite", "large-alpha"]
    code, out, err = call("calibrate", RUN, *asked, "--despite", "advice", *words, "--json")
    assert code == 0, err
    return Path(json.loads(out)["policy"])


def test_calibrate_signs_the_policy_and_its_copy_and_promote_keeps_it(probed: Call) -> None:
    written = calibrated(probed, "--sign", "own.pem")
    for path in (written, RUN / "policy.joblib"):
        found = load_policy(path, require_signature=["own.pub"])
        assert found.signed_by == fingerprint("own")
        assert found.kind == "stop"
    assert written != RUN / "policy.joblib"
    shutil.copy("policy.joblib", RUN / "policy.joblib")  # another one, by hand
    with pytest.raises(PolicyError, match="was changed after it was signed"):
        load_policy(RUN / "policy.joblib", require_signature=["own.pub"])
    assert probed("promote", written)[0] == 0
    found = load_policy(RUN / "policy.joblib", require_signature=["own.pub"])
    assert found.digest == load_policy(written).digest


def test_a_key_that_cannot_sign_spends_no_look(probed: Call) -> None:
    line = probed.refused("calibrate", RUN, "--alpha", "0.05", "--sign", "own.pub")
    assert line.startswith("stopadvisor: own.pub: is a public key, which signs nothing")
    assert not (RUN / "looks.jsonl").exists()
    assert not list(RUN.glob("policy*"))
