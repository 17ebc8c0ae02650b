"""`samples`: the bundled files as they are, whole or not at all, and never over anything."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stopadvisor.runs.samples import SAMPLES
from tests.material import Call
from tests.schemas import check_valid

BUNDLED = Path(__file__).parents[2] / "samples"


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_they_are_written_where_the_readme_has_them(call: Call, tmp_path: Path) -> None:
    code, out, err = call("samples")
    assert (code, err) == (0, "")
    assert "stopadvisor assess samples/arithmetic.jsonl --model samples/tiny-reasoner" in out
    bundled = {k: v for k, v in contents(BUNDLED).items() if k.partition("/")[0] in SAMPLES}
    assert contents(tmp_path / "samples") == bundled
    assert "tiny-reasoner/model.safetensors" in bundled
    assert {p.name for p in (tmp_path / "samples").iterdir()} == set(SAMPLES)


def test_json_names_the_files(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a" / "b c").mkdir(parents=True)  # a folder that stands already
    found = call.json("samples", tmp_path / "a" / "b c")
    check_valid("samples", found)
    assert Path(found["model"], "config.json").is_file()
    assert [Path(path).name for path in found["workloads"]] == list(SAMPLES[1:])
    assert all(Path(path).is_file() for path in found["workloads"])


def test_nothing_is_written_over(call: Call, tmp_path: Path) -> None:
    (tmp_path / "choice.jsonl").symlink_to("nowhere")
    err = call.refused("samples", ".")
    assert err == (
        "stopadvisor: choice.jsonl already exists, and nothing is overwritten; name another DIR"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["choice.jsonl"]


def test_a_full_disk_leaves_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, to: Path) -> None:
        if to.name == SAMPLES[-1]:
            raise OSError(28, "No space left on device")
        to.write_bytes(source.read_bytes())

    monkeypatch.setattr(shutil, "copyfile", fail)
    code, _, err = call("samples", "new/place")
    assert (code, err) == (2, "stopadvisor: cannot write new/place: No space left on device\n")
    assert not (tmp_path / "new" / "place").exists()


def test_an_installation_without_them_says_so(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site" / "stopadvisor" / "runs" / "samples.py"
    monkeypatch.setattr("stopadvisor.runs.samples.__file__", str(file))
    err = call.refused("samples")
    assert err.endswith("installed without the samples; install it again")
