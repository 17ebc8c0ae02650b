"""Putting a policy in use: a kill at any write never leaves another policy's calibration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import load_policy
from stopadvisor.policy.run_policies import calibration_of, current_policy, promote, put
from stopadvisor.runs.directory import CALIBRATION
from tests.policy_content import example_content, full_budget_content, policy_from

ROOT = Path(__file__).resolve().parents[2]

_KILLED_AT = """
import os, signal, sys
from pathlib import Path
import joblib  # here, and not in every child
from stopadvisor.policy.run_policies import promote, put
from tests.policy_content import example_content, policy_from

new = policy_from(example_content(max_think=700))
WRITING = os.O_WRONLY | os.O_RDWR

def killed_before_write(number):
    count = 0
    def hook(event, args):
        nonlocal count
        opens = event == "open" and isinstance(args[2], int) and args[2] & WRITING
        if opens or event in ("os.rename", "os.remove", "os.truncate", "os.link"):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

for number, folder in enumerate(sys.argv[1:], start=1):
    child = os.fork()
    if not child:
        killed_before_write(number)
        {act}
        os._exit(0)
    print(number, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def folders_killed(tmp_path: Path, act: str, before: Path, attempts: int) -> list[tuple[Path, int]]:
    """Copies of a folder, in the k-th of which the act was killed before its k-th write."""
    made = [tmp_path / f"killed-{k}" for k in range(attempts)]
    for folder in made:
        folder.mkdir()
        for file in before.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    program = _KILLED_AT.replace("{act}", act)
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, *map(str, made)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    codes = [int(line.split()[1]) for line in done.stdout.splitlines()]
    return list(zip(made, codes, strict=True))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two policies, the first one in use, each with a signature of some kind."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name, threshold in (("policy-a15-first", 512), ("policy-a15-other", 600)):
        policy = policy_from(example_content(max_think=threshold))
        file = folder / f"{name}.joblib"
        put(policy, file, {"digest": policy.digest}, format="joblib")
        file.with_name(f"{file.name}.sig").write_text(name)
    promote(folder / "policy-a15-first.joblib")
    return folder


def named(calibration: Path) -> str | None:
    return json.loads(calibration.read_bytes())["digest"] if calibration.exists() else None


def test_a_promotion_killed_at_any_write_pairs_no_two_policies(run: Path, tmp_path: Path) -> None:
    act = "promote(Path(folder) / 'policy-a15-other.joblib')"
    killed = folders_killed(tmp_path, act, run, 12)
    assert [code for _, code in killed][:4] == [-9] * 4
    assert killed[-1][1] == 0  # every write of it was the last one once
    digests = {load_policy(run / f"policy-a15-{k}.joblib").digest for k in ("first", "other")}
    for folder, code in killed:
        in_use = load_policy(folder / "policy.joblib").digest
        assert in_use in digests
        assert named(folder / CALIBRATION) in ({in_use} if code == 0 else {in_use, None})
        promote(folder / "policy-a15-other.joblib")  # again, and all is well
        in_use = load_policy(folder / "policy.joblib").digest
        assert in_use == load_policy(run / "policy-a15-other.joblib").digest
        assert named(folder / CALIBRATION) == in_use
        assert (folder / "policy.joblib.sig").read_text() == "policy-a15-other"


def test_a_policy_written_over_another_keeps_none_of_its_calibration(
    run: Path, tmp_path: Path
) -> None:
    file = "Path(folder) / 'policy-a15-first.joblib'"
    act = f"put(new, {file}, {{'digest': new.digest}}, format='joblib')"
    killed = folders_killed(tmp_path, act, run, 12)
    assert (killed[0][1], killed[-1][1]) == (-9, 0)
    for folder, _ in killed:
        original = folder / "policy-a15-first.joblib"
        assert named(calibration_of(original)) in (load_policy(original).digest, None)


def test_the_calibration_of_another_policy_is_refused(run: Path) -> None:
    first, other = (run / f"policy-a15-{name}.joblib" for name in ("first", "other"))
    for calibration in (calibration_of(other).read_bytes(), b'{"alpha": 0.15}', b"[]"):
        calibration_of(first).write_bytes(calibration)
        before = {file: file.read_bytes() for file in run.iterdir()}
        with pytest.raises(PolicyError, match=r"names .* not this one .* calibrate again$"):
            promote(first)
        assert {file: file.read_bytes() for file in run.iterdir()} == before


def test_a_copy_without_an_original_keeps_its_own_calibration(run: Path) -> None:
    first = run / "policy-a15-first.joblib"
    digest = load_policy(first).digest
    for file in (first, calibration_of(first)):
        file.unlink()
    done = promote(run / "policy-a15-other.joblib")
    kept = done.previous_policy
    assert (done.kind, done.alpha, done.promise) == ("stop", 0.15, None)
    assert (done.previous_digest, kept) == (digest, run / f"policy-a15-{digest[:8]}.joblib")
    assert kept is not None
    assert named(calibration_of(kept)) == load_policy(kept).digest == digest


@pytest.mark.parametrize("calibration", ['{"digest": "of another"}', "{", None])
def test_no_calibration_of_another_is_kept_for_a_copy(run: Path, calibration: str | None) -> None:
    for file in run.glob("policy-a15-first*"):
        file.unlink()
    if calibration is None:
        (run / CALIBRATION).unlink()
    else:
        (run / CALIBRATION).write_text(calibration)
    kept = promote(run / "policy-a15-other.joblib").previous_policy
    assert kept is not None
    assert not calibration_of(kept).exists()


def test_a_promise_about_more_than_lost_answers_is_put_into_words(run: Path) -> None:
    certificate = example_content()["certificate"] | {"loss": "differs"}
    policy = policy_from(example_content(certificate=certificate))
    put(policy, run / "policy-a15-x.json", {"digest": policy.digest}, format="json")
    done = promote(run / "policy-a15-x.json")
    assert done.promise == "at most 15% of replies different"
    assert (done.previous_digest, done.previous_policy) == (None, None)  # of another format


def test_a_copy_that_never_stops_is_kept_under_its_name(run: Path) -> None:
    policy, file = policy_from(full_budget_content()), run / "policy-full.joblib"
    put(policy, file, {"digest": policy.digest}, format="joblib")
    assert (promote(file).alpha, promote(file).promise) == (None, None)
    file.unlink()
    kept = promote(run / "policy-a15-other.joblib").previous_policy
    assert kept == run / f"policy-full-{policy.digest[:8]}.joblib"


@pytest.mark.parametrize("name", ["policy.joblib", "policy.json"])
def test_of_both_formats_the_one_that_calibration_names_is_in_use(
    tmp_path: Path, name: str
) -> None:
    for each in ("policy.joblib", "policy.json"):
        (tmp_path / each).touch()
    (tmp_path / CALIBRATION).write_text(json.dumps({"policy": name}))
    assert current_policy(tmp_path) == tmp_path / name
