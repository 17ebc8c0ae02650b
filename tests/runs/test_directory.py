"""The run directory: its id, its records, its lock, and what it survives."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.errors import OutputError, ProbeError
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.manifest import (
    build_manifest,
    differences,
    engine_of,
    identity_of,
    run_id,
    run_path,
    short,
)
from stopadvisor.runs.storage import lock_directory, write_json_atomically
from stopadvisor.workload.questions import PARTS, read_workload
from tests.probes.test_records import record
from tests.scripted import ScriptedEngine, write_sums

PLAN = ProbePlan(budgets=(0, 16, 64), cue="\n\nFinal answer:", max_think=256)


def make_manifest(tmp_path: Path, n: int = 40, plan: ProbePlan = PLAN, **changes: Any) -> Any:
    engine = ScriptedEngine(revision=changes.pop("revision", "r1"))
    workload = read_workload(write_sums(tmp_path / "sums.jsonl", n))
    changes.setdefault("fractions", (0.4, 0.4, 0.2))
    return build_manifest(engine.identity(), plan, workload, **changes)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    path = tmp_path / "run"
    path.mkdir()
    return RunDirectory.create(path, make_manifest(tmp_path))


# --- The id ---------------------------------------------------------------------------------------


def test_more_questions_and_other_versions_keep_the_id(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path)
    assert manifest["versions"].keys() >= {"stopadvisor", "python", "numpy"}
    assert make_manifest(tmp_path, n=50)["id"] == manifest["id"]
    assert make_manifest(tmp_path, cue_ids=[5, 6])["id"] == manifest["id"]
    assert run_path(Path("runs"), manifest) == Path(f"runs/sums-scripted-{manifest['id']}")
    assert (
        run_id({**manifest, "versions": {}, "created": "then", "batch_size": 3}) == manifest["id"]
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"revision": "r2"}, id="model content"),
        pytest.param({"plan": replace(PLAN, cap=32)}, id="cap"),
        pytest.param({"plan": replace(PLAN, cue="\n\nThe answer is")}, id="cue"),
        pytest.param({"plan": replace(PLAN, greedy=True)}, id="sampling"),
        pytest.param({"plan": replace(PLAN, seed=1)}, id="seed"),
        pytest.param({"plan": replace(PLAN, budgets=(0, 16))}, id="budgets"),
        pytest.param({"auto": ["budgets"]}, id="auto budgets"),
        pytest.param({"plan": replace(PLAN, max_think=128)}, id="max-think"),
        pytest.param({"auto": ["max_think"]}, id="auto max-think"),
        pytest.param({"fractions": (0.4, 0.6, 0.0)}, id="split"),
        pytest.param({"template": "Q: {question}"}, id="prompt template"),
    ],
)
def test_what_decides_the_outcome_changes_the_id(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert make_manifest(tmp_path, **changes)["id"] != make_manifest(tmp_path)["id"]


def test_another_version_of_the_engine_may_continue_a_run_and_is_recorded(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path)
    run = RunDirectory.create(tmp_path, manifest)
    later = {**manifest, "engine": {**manifest["engine"], "engine_version": "2"}}
    assert run_id(later) == manifest["id"]
    resumed = RunDirectory.resume(tmp_path, later)
    assert resumed is not None
    assert resumed.note_versions(manifest["engine"]) is None
    said = resumed.note_versions(later["engine"])
    assert said is not None
    assert "began with scripted 1 and continues with 2" in said
    again = RunDirectory.load(run.path)
    assert engine_of(again.manifest)["engine_version"] == "1, 2"
    assert again.note_versions(later["engine"]) is None
    third = {**manifest["engine"], "engine_version": "3"}
    for _ in range(2):
        again.note_versions(third)
    assert engine_of(RunDirectory.load(run.path).manifest)["engine_version"] == "1, 2, 3"
    with pytest.raises(ProbeError, match=r"holds another run: engine\.dtype"):
        RunDirectory.resume(tmp_path, {**later, "engine": {**later["engine"], "dtype": "bfloat16"}})


def test_a_run_keeps_the_id_that_0_1_0_gave_it(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path, template="{question} Réponse :")
    identity = {**identity_of(manifest), "engine": manifest["engine"]}
    text = json.dumps(identity, sort_keys=True)
    old = {**manifest, "id": hashlib.sha256(text.encode()).hexdigest()[:8]}
    assert old["id"] != manifest["id"]
    path = run_path(tmp_path, old)
    path.mkdir()
    RunDirectory.create(path, old)
    RunDirectory.load(path).annotate(batch_size=3)
    assert RunDirectory.load(path).manifest["id"] == old["id"]
    assert run_path(tmp_path, manifest) == path


@pytest.mark.parametrize(
    ("name", "plans"),
    [
        ("max_think", [replace(PLAN, max_think=8192), replace(PLAN, max_think=128)]),
        ("budgets", [replace(PLAN, budgets=()), PLAN]),
    ],
)
def test_settled_values_do_not_change_the_id_of_an_auto_run(
    tmp_path: Path, name: str, plans: list[ProbePlan]
) -> None:
    settled = [make_manifest(tmp_path, auto=[name], plan=plan) for plan in plans]
    assert settled[0]["id"] == settled[1]["id"]
    assert settled[0]["plan"][name] != settled[1]["plan"][name]
    assert settled[0][f"requested_{name}"] == "auto"


@pytest.mark.parametrize(
    ("plan", "auto", "asked"),
    [
        (PLAN, (), set()),
        (replace(PLAN, schedule="stride", every=16), (), {"every"}),
        (replace(PLAN, schedule="marker", markers=((7,),)), (), {"every", "markers"}),
        (PLAN, ("schedule",), {"schedule"}),
    ],
)
def test_what_was_asked_is_kept_as_far_as_the_schedule_reads_it(
    tmp_path: Path, plan: ProbePlan, auto: tuple[str, ...], asked: set[str]
) -> None:
    manifest = make_manifest(tmp_path, plan=plan, auto=auto)
    found = {key.removeprefix("requested_") for key in manifest if key.startswith("requested_")}
    assert found == {"budgets", "max_think"} | asked


# --- Opening --------------------------------------------------------------------------------------


def test_another_manifest_in_the_same_folder_names_the_fields(
    run: RunDirectory, tmp_path: Path
) -> None:
    other = make_manifest(tmp_path, plan=replace(PLAN, cap=32))
    with pytest.raises(ProbeError, match=r"plan\.cap: 48 there, 32 now; choose another --out"):
        RunDirectory.resume(run.path, other)


def test_of_many_fields_that_differ_three_are_named(run: RunDirectory, tmp_path: Path) -> None:
    three = replace(PLAN, cap=32, answer_cap=64, cue="?")
    for plan, more in ((three, "now; choose"), (replace(three, max_think=512), r"\(and 1 more\)")):
        with pytest.raises(ProbeError, match=more):
            RunDirectory.resume(run.path, make_manifest(tmp_path, plan=plan))


def test_values_that_differ_are_named_up_to_40_characters() -> None:
    for value in ("é" * 37, "é" * 38):
        assert short(value) == f'"{value}"'
    assert short("é" * 39) == '"' + "é" * 36 + "..."
    ours = {"a": {"b": 1, "c": None}, "e": 3}
    found = list(differences(ours, {"a": {"b": 1}, "d": [2], "e": {"f": 1}}))
    assert found == ["d: [2] there, null now", 'e: {"f": 1} there, 3 now']


def test_resume_finds_its_own_run_or_none(run: RunDirectory, tmp_path: Path) -> None:
    assert RunDirectory.resume(tmp_path / "empty", run.manifest) is None
    found = RunDirectory.resume(run.path, make_manifest(tmp_path, n=60))
    assert found is not None
    assert (found.path, found.manifest, found.plan) == (run.path, run.manifest, PLAN)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("{", "not JSON", id="damaged"),
        pytest.param("[]", "expected a JSON object", id="no object"),
        pytest.param('{"schema": 2}', "'schema' must be 1, got 2", id="newer schema"),
        pytest.param('{"schema": 1}', "missing or malformed", id="no fields"),
    ],
)
def test_load_refuses_a_damaged_manifest(run: RunDirectory, content: str, message: str) -> None:
    (run.path / "manifest.json").write_text(content)
    with pytest.raises(ProbeError, match=message):
        RunDirectory.load(run.path)


def test_load_refuses_a_redrawn_split(run: RunDirectory) -> None:
    edited = {**run.manifest, "split": {"seed": 7, "fractions": [0.4, 0.4, 0.2]}}
    write_json_atomically(run.path / "manifest.json", edited)
    with pytest.raises(ProbeError, match="was changed after probing started"):
        RunDirectory.load(run.path)


def test_load_refuses_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match=r"not a run directory, it holds no manifest\.json"):
        RunDirectory.load(tmp_path)


def test_load_does_not_call_missing_what_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match=r"cannot read .*/manifest\.json: File name too long"):
        RunDirectory.load(tmp_path / ("x" * 300))


def test_create_refuses_probes_without_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "probes.jsonl").write_text("")
    with pytest.raises(ProbeError, match="choose another --out"):
        RunDirectory.create(tmp_path, make_manifest(tmp_path))


def test_annotate_keeps_the_id_and_refuses_to_change_it(run: RunDirectory) -> None:
    run.annotate(batch_size=4)
    assert RunDirectory.load(run.path).manifest["batch_size"] == 4
    with pytest.raises(ValueError, match="would change the identity"):
        run.annotate(split={"seed": 1, "fractions": [1, 0, 0]})


# --- Records --------------------------------------------------------------------------------------


def test_records_come_back_as_they_were_appended(run: RunDirectory) -> None:
    odd = record("c", gold="\u2028 \x85 \ud800 é", natural_answer=None)
    run.append([record("a"), record("b")])
    run.append([odd, record("a", sample=1)])
    assert run.records() == [record("a"), record("b"), odd, record("a", sample=1)]


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b'{"id": "b", "tra', id="cut inside a line"),
        pytest.param(b"\0" * 40, id="zeros after a power cut"),
        pytest.param('{"id": "é'.encode()[:-1], id="cut inside a character"),
    ],
)
def test_a_half_written_last_line_is_moved_aside(run: RunDirectory, tail: bytes) -> None:
    run.append([record("a")])
    assert run.torn() is None
    whole = run.probes_path.read_bytes()
    with open(run.probes_path, "ab") as file:
        file.write(tail)
    assert run.records() == [record("a")]  # a reader changes nothing
    assert run.probes_path.read_bytes() == whole + tail
    torn, repaired = run.torn() or "", run.repair() or ""
    assert "line 2 is half-written and does not count; repeating `probe` asks" in torn
    assert "line 2 was half-written" in repaired
    assert repaired.endswith("its question is asked again")
    assert run.probes_path.read_bytes() == whole
    assert tail in (run.path / "probes.partial").read_bytes()
    assert run.repair() is None


def test_a_whole_last_line_without_its_line_feed_counts(run: RunDirectory) -> None:
    run.append([record("a"), record("b")])
    whole = run.probes_path.read_bytes()
    run.probes_path.write_bytes(whole[:-1])
    assert run.records() == [record("a"), record("b")]
    assert run.repair() is None
    assert run.probes_path.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("{]", r"probes\.jsonl:2: not a line of JSON", id="no JSON"),
        pytest.param("", r"probes\.jsonl:2: not a line of JSON", id="empty line"),
        pytest.param("[1]", r"probes\.jsonl:2: expected an object, got \[1\]", id="no object"),
        pytest.param('{"id": "b"}', r"probes\.jsonl:2: field '\w+' is missing", id="no fields"),
        pytest.param(record("a").to_json(), r":2: question 'a' .* already .* line 1", id="twice"),
    ],
)
def test_any_other_broken_line_is_named(run: RunDirectory, line: str, message: str) -> None:
    text = "\n".join([record("a").to_json(), line, record("c").to_json()]) + "\n"
    run.probes_path.write_text(text)
    with pytest.raises(ProbeError, match=message):
        run.records()


@pytest.mark.parametrize("value", [10**400, "many", []], ids=["huge", "text", "list"])
def test_a_value_that_no_probe_can_have_is_no_internal_error(run: RunDirectory, value: Any) -> None:
    line = json.loads(record("a").to_json())
    line["checkpoints"][0]["probe_tokens"] = value
    run.probes_path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ProbeError, match=r"probes\.jsonl: a field has a value that no probe can"):
        run.table()


@pytest.mark.parametrize(
    ("name", "value"),
    [("correct", "false"), ("correct", 1), ("budget", "12"), ("budget", 12.7), ("markers", True)],
)
def test_no_value_is_converted_to_another(run: RunDirectory, name: str, value: Any) -> None:
    """Numpy would take the text "false" for true, and 12.7 for 12."""
    line = json.loads(record("a").to_json())
    line["checkpoints"][0][name] = value
    run.probes_path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ProbeError, match=f"'{name}' cannot be of type {type(value).__name__}"):
        run.table()


@pytest.mark.parametrize(
    ("name", "value"),
    [("workload", "stop"), ("workload", {}), ("engine", None), ("grading", 5), ("grading", [])],
)
def test_a_manifest_of_other_types_is_refused(run: RunDirectory, name: str, value: Any) -> None:
    file = run.path / "manifest.json"
    file.write_text(json.dumps({**run.manifest, name: value}))
    missing = "sha256" if value == {} else name
    with pytest.raises(ProbeError, match=f"field '{missing}' is missing or malformed"):
        RunDirectory.load(run.path)


@pytest.mark.parametrize(
    "field", ["prompt_template", "workload.path", "plan.max_think"], ids=lambda name: name
)
def test_a_manifest_without_what_the_id_leaves_out_is_refused(
    run: RunDirectory, field: str
) -> None:
    manifest = json.loads((run.path / "manifest.json").read_text())
    part, _, name = field.rpartition(".")
    del (manifest[part] if part else manifest)[name]
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ProbeError, match=rf"field '({field}|{name})' is missing or malformed"):
        RunDirectory.load(run.path)


def test_a_full_disk_loses_nothing(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    run.append([record("a")])
    before = run.probes_path.read_bytes()
    write = os.write

    def full_after_half(descriptor: int, data: memoryview) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", full_after_half)
    with pytest.raises(OutputError, match=r"probes\.jsonl: No space left on device"):
        run.append([record("b")])
    with pytest.raises(OutputError, match=r"manifest\.json: No space left on device"):
        run.annotate(batch_size=2)
    monkeypatch.undo()
    assert run.probes_path.read_bytes() == before
    assert RunDirectory.load(run.path).records() == [record("a")]
    assert {file.name for file in run.path.iterdir()} == {"manifest.json", "probes.jsonl"}


def test_neither_a_manifest_nor_an_atomic_write_holds_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        make_manifest(tmp_path, fractions=(float("nan"), 0.5, 0.5))
    file = tmp_path / "x.json"
    write_json_atomically(file, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json_atomically(file, {"a": float("nan")})
    assert json.loads(file.read_text()) == {"a": 1}


# --- What analyses read ---------------------------------------------------------------------------


def test_parts_are_drawn_by_group_and_never_move(run: RunDirectory) -> None:
    records = [record(f"q{i}", group=f"g{i // 2}") for i in range(200)]
    run.append(records[:120])
    before = run.parts(run.table().groups)
    run.append(records[120:])
    after = run.parts(run.table().groups)
    assert after[:120].tolist() == before.tolist()
    assert after[::2].tolist() == after[1::2].tolist()
    assert set(after.tolist()) == set(range(len(PARTS)))


def test_an_empty_run_has_no_table(run: RunDirectory) -> None:
    with pytest.raises(ProbeError, match=f"{run.path}: no probes"):
        run.table()


# --- The lock -------------------------------------------------------------------------------------


HOLDER = """
import sys
from pathlib import Path
from stopadvisor.runs.storage import lock_directory
with lock_directory(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_never_write_one_run_and_a_kill_frees_it(tmp_path: Path) -> None:
    """However busy the machine is: nothing here waits for a time."""
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            message = rf"\(pid {holder.pid}\) is writing this run"
            with pytest.raises(ProbeError, match=message), lock_directory(tmp_path):
                pytest.fail("the lock was given twice")
        finally:
            holder.kill()
    with lock_directory(tmp_path):
        assert (tmp_path / ".lock").exists()


def test_a_place_that_cannot_be_a_folder_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = tmp_path / "file" / "run"
    with pytest.raises(OutputError, match="cannot write to"), lock_directory(run):
        pytest.fail("there is no such folder")


def test_a_failure_removes_only_a_folder_that_it_made_and_left_empty(tmp_path: Path) -> None:
    fresh, kept, used = (tmp_path / name for name in ("runs/fresh", "kept", "used"))
    kept.mkdir()

    def fail(path: Path) -> None:
        with lock_directory(path):
            if path == used:
                (path / "probes.jsonl").write_text("", encoding="utf-8")
            raise ProbeError("refused")

    for path in (fresh, kept, used):
        with pytest.raises(ProbeError):
            fail(path)
    assert (fresh.exists(), kept.exists()) == (False, True)
    assert (used / "probes.jsonl").exists()
