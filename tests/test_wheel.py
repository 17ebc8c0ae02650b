"""The wheel and the source archive: built without a network, complete, and at work without extras.

`python -m tests.release` installs both into clean environments; here the wheel is unpacked, and
what the extras bring is hidden from it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest

from stopadvisor.runs.samples import SAMPLES

ROOT = Path(__file__).resolve().parent.parent
HIDE = """
from importlib.machinery import PathFinder

HIDDEN = {"torch", "transformers", "tokenizers", "safetensors", "httpx2", "anyio",
          "matplotlib", "jinja2", "datasets", "cryptography", "aiohttp", "starlette", "uvicorn",
          "prometheus_client", "httptools", "yarl", "backports", "vllm"}
find = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in HIDDEN else find(name, path, target)

PathFinder.find_spec = find_spec
"""
"""Runs before anything else that a process of this test imports."""


def test_a_package_has_one_lowest_version_wherever_it_is_declared() -> None:
    """`python -m tests.release --lowest` installs all of them together."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [project["dependencies"], *project["optional-dependencies"].values()]
    lowest: defaultdict[str, set[str]] = defaultdict(set)
    for line in (line for part in declared for line in part):
        bound = re.match(r"([\w-]+)>=([\d.]+)", line)
        assert bound, f"{line}: no lowest version"
        lowest[bound[1]].add(bound[2])
    assert not {name: found for name, found in lowest.items() if len(found) > 1}


HELPS = """
import stopadvisor.cli.main as cli

for words in [*([name, "--help"] for name in cli.COMMANDS), ["serve", "p", "--upstream", "http://x"],
              ["serve", "p", "--", "m"]]:
    code = cli.main(words)
    assert code == (0 if words[1] == "--help" else 2), words
"""


@pytest.mark.slow
def test_every_command_has_its_help_and_serve_names_its_extra_where_there_is_none() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDE + HELPS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    gateway, plugin = done.stderr.splitlines()
    assert gateway.endswith(
        "the gateway needs aiohttp, which is not installed: pip install 'stopadvisor[serve]'"
    )
    assert "pip install 'stopadvisor[vllm]'" in plugin


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive."""
    pytest.importorskip("hatchling", reason="hatchling (extra dev) builds the package")
    build = importlib.import_module("hatchling.build")
    folder = tmp_path_factory.mktemp("dist")
    with contextlib.chdir(ROOT):
        build.build_wheel(str(folder))
        build.build_sdist(str(folder))
    return folder


@pytest.mark.integration
def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "stopadvisor").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    bundled = {name for name in names if name.startswith("stopadvisor/_samples/")}
    assert {name for name in names - bundled if ".dist-info/" not in name} == tracked
    # What `stopadvisor samples` looks for.
    assert {name.split("/")[2] for name in bundled} == set(SAMPLES)
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.integration
def test_the_source_archive_holds_what_its_tests_need(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as found:
        names = {name.partition("/")[2] for name in found.getnames()}
    for needed in (
        "stopadvisor/py.typed",
        "policies/arithmetic.joblib",
        "samples/tiny-reasoner/model.safetensors",
        "tests/testdata/paper/expected.json",
        "pyproject.toml",
        "README.md",
    ):
        assert needed in names


@pytest.mark.integration
def test_the_source_archive_makes_the_same_wheel_byte_for_byte(built: Path, tmp_path: Path) -> None:
    (wheel,), (archive,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    # In a process of its own: the build reads the version of the package that it finds there.
    code = (
        "import hatchling.build as b, sys; b.build_wheel(sys.argv[1]); b.build_sdist(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=source, check=True)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()
    assert (tmp_path / archive.name).read_bytes() == archive.read_bytes()


@pytest.mark.integration
def test_the_wheel_works_without_extras(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    # The processes that the script starts hide the same.
    (tmp_path / "site" / "sitecustomize.py").write_text(HIDE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "smoke.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "works without extras" in done.stdout
