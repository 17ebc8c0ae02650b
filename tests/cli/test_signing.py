"""`calibrate --sign`, `inspect --sign`, `inspect` and `run --require-signature`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import load_policy, save_policy
from stopadvisor.policy.signature import public_key
from tests.keys import make_key
from tests.material import Call, caller
from tests.policy_content import family_content, policy_from

pytest.importorskip("cryptography", reason="cryptography (extra sign) makes and checks signatures")

POLICIES = Path(__file__).parents[2] / "policies"
RUN = Path("runs/sums")


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Call a command in a folder with two pairs of keys and an unsigned policy."""
    monkeypatch.chdir(tmp_path)
    make_key(Path("own.pem"))
    make_key(Path("new.pem"))
    save_policy(policy_from(family_content("entropy")), "policy.joblib")
    return caller(capsys)


def refused(call: Call, *words: str | Path) -> str:
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    return line


def fingerprint(name: str) -> str:
    return public_key(Path(f"{name}.pub")).fingerprint


# --- inspect --------------------------------------------------------------------------------------


def test_inspect_says_which_key_signed(call: Call) -> None:
    code, out, err = call("inspect", "policy.joblib", "--sign", "own.pem")
    assert (code, err) == (0, "")
    assert f"signed by  {fingerprint('own')}" in out
    keys = ["--require-signature", "new.pub", "--require-signature", "own.pub"]
    code, out, _ = call("inspect", "policy.joblib", *keys)
    assert code == 0
    assert f"signed by  {fingerprint('own')}" in out
    assert max(map(len, out.splitlines())) <= 80
    found = json.loads(call("inspect", "policy.joblib", *keys, "--json")[1])["signature"]
    assert found == {"file": "policy.joblib.sig", "key_sha256": fingerprint("own")}


def test_inspect_without_a_key_says_that_a_signature_was_not_checked(call: Call) -> None:
    assert json.loads(call("inspect", "policy.joblib", "--json")[1])["signature"] is None
    call("inspect", "policy.joblib", "--sign", "own.pem")
    code, out, _ = call("inspect", "policy.joblib")
    assert code == 0
    assert "not checked: --require-signature KEY.pub checks policy.joblib.sig" in out
    found = json.loads(call("inspect", "policy.joblib", "--json")[1])["signature"]
    assert found == {"file": "policy.joblib.sig", "key_sha256": None}


def test_a_name_too_long_to_be_signed_is_no_crash(call: Call) -> None:
    name = f"{'p' * 245}.joblib"
    shutil.copy("policy.joblib", name)
    code, out, _ = call("inspect", name, "--json")
    assert (code, json.loads(out)["signature"]) == (0, None)
    assert "is not signed" in refused(call, "inspect", name, "--require-signature", "own.pub")


def test_inspect_refuses_what_the_key_did_not_sign(call: Call) -> None:
    line = refused(call, "inspect", "policy.joblib", "--require-signature", "own.pub")
    assert line.startswith("stopadvisor: policy.joblib: is not signed")
    call("inspect", "policy.joblib", "--sign", "own.pem")
    line = refused(call, "inspect", "policy.joblib", "--require-signature", "new.pub")
    assert "signed by a key that is not trusted" in line


def test_a_policy_is_signed_anew_with_another_key(call: Call) -> None:
    call("inspect", "policy.joblib", "--sign", "own.pem")
    code, _, err = call(
        "inspect", "policy.joblib", "--require-signature", "own.pub", "--sign", "new.pem"
    )
    assert (code, err) == (0, "")
    assert call("inspect", "policy.joblib", "--require-signature", "new.pub")[0] == 0
    assert call("inspect", "policy.joblib", "--require-signature", "own.pub")[0] == 2


def test_what_is_signed_is_named(call: Call) -> None:
    """The newest policy is shown without its name, and never signed so."""
    line = call("inspect", "--sign", "own.pem")[2].splitlines()[-1]
    assert "--sign signs a POLICY that you name" in line


# --- run ------------------------------------------------------------------------------------------


def test_run_refuses_an_unsigned_policy_before_anything_else(call: Call) -> None:
    words = ["run", "policy.joblib", "missing.jsonl", "--require-signature", "own.pub"]
    assert "policy.joblib: is not signed" in refused(call, *words)
    call("inspect", "policy.joblib", "--sign", "own.pem")
    assert "missing.jsonl" in refused(call, *words)  # the policy was taken, and more was asked for
    Path("policy.joblib").write_bytes(Path("policy.joblib").read_bytes() + b" ")
    assert "was changed after it was signed" in refused(call, *words)


def test_run_trusts_several_keys_at_once(call: Call) -> None:
    call("inspect", "policy.joblib", "--sign", "new.pem")
    own, new = (["--require-signature", f"{name}.pub"] for name in ("own", "new"))
    words = ["run", "policy.joblib", "missing.jsonl"]
    assert "missing.jsonl" in refused(call, *words, *own, *new)
    assert "signed by a key that is not trusted" in refused(call, *words, *own)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "policy.joblib", "missing.jsonl", "--require-signature", "policy.joblib"],
        ["inspect", "policy.joblib", "--require-signature", "policy.joblib"],
        ["inspect", "policy.joblib", "--sign", "policy.joblib"],
    ],
    ids=["run", "inspect-key", "inspect-sign"],
)
def test_a_bad_key_is_one_line(call: Call, words: list[str]) -> None:
    line = refused(call, *words)
    assert line.startswith("stopadvisor: policy.joblib: not a p")
    assert "key in PEM" in line


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


def test_calibrate_signs_the_policy_and_its_copy(probed: Call) -> None:
    written = calibrated(probed, "--sign", "own.pem")
    for path in (written, RUN / "policy.joblib"):
        found = load_policy(path, require_signature=["own.pub"])
        assert found.signed_by == fingerprint("own")
        assert found.kind == "stop"
    assert written != RUN / "policy.joblib"


def test_calibrate_signs_what_it_writes_elsewhere(probed: Call) -> None:
    written = calibrated(probed, "--sign", "own.pem", "--out", "away.json")
    assert load_policy(written, require_signature=["own.pub"]).signed_by == fingerprint("own")


def test_promote_brings_the_signature_along(probed: Call) -> None:
    signed = calibrated(probed, "--sign", "own.pem")
    shutil.copy("policy.joblib", RUN / "policy.joblib")  # another one, by hand
    with pytest.raises(PolicyError, match="was changed after it was signed"):
        load_policy(RUN / "policy.joblib", require_signature=["own.pub"])
    assert probed("promote", signed)[0] == 0
    found = load_policy(RUN / "policy.joblib", require_signature=["own.pub"])
    assert found.digest == load_policy(signed).digest


def test_a_key_that_cannot_sign_spends_no_look(probed: Call) -> None:
    line = refused(probed, "calibrate", RUN, "--alpha", "0.05", "--sign", "own.pub")
    assert line.startswith("stopadvisor: own.pub: is a public key, which signs nothing")
    assert not (RUN / "looks.jsonl").exists()
    assert not list(RUN.glob("policy*"))


def test_the_copy_of_an_unsigned_policy_keeps_no_signature(probed: Call) -> None:
    shutil.copy("policy.joblib", RUN / "policy.joblib")
    probed("inspect", RUN / "policy.joblib", "--sign", "own.pem")
    standing = load_policy(RUN / "policy.joblib")
    written = calibrated(probed)
    for path in (written, RUN / "policy.joblib"):
        with pytest.raises(PolicyError, match="is not signed"):
            load_policy(path, require_signature=["own.pub"])
    # The one before is kept under a name of its own, signed as it was.
    (kept,) = (path for path in RUN.glob("policy-*.joblib") if path != written)
    assert load_policy(kept, require_signature=["own.pub"]).digest == standing.digest
