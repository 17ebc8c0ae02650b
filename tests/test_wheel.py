"""The wheel and the source archive: built without a network, complete, and at work without extras.

CI installs both into clean environments; here the wheel is unpacked, and what the extras bring is
hidden from it.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HIDE = """
import sys

class Hidden:
    names = {"torch", "transformers", "tokenizers", "safetensors", "httpx2", "anyio", "tenacity",
             "matplotlib", "jinja2", "datasets", "cryptography", "aiohttp", "starlette", "uvicorn",
             "prometheus_client", "httptools"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

sys.meta_path.insert(0, Hidden())
"""
"""Comes before everything else that a process of this test imports."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive."""
    pytest.importorskip("hatchling", reason="hatchling (extra dev) builds the package")
    build = importlib.import_module("hatchling.build")
    folder = tmp_path_factory.mktemp("dist")
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        build.build_wheel(str(folder))
        build.build_sdist(str(folder))
    finally:
        os.chdir(before)
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
    assert {name for name in names if ".dist-info/" not in name} == tracked
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
