"""Make what a release publishes, and try it as users will: `python -m tests.release DIST`.

Wheel and source archive, both built twice; a lock with hashes; a bill of materials; and clean
environments into which wheel and archive are installed, where `.ci/smoke.py` runs: without extras,
and with each one.  Takes a package index, some gigabytes and many minutes.  `--python` names
further interpreters, for which everything light is tried; `--lowest` runs the unit tests on the
lowest versions that `pyproject.toml` declares instead.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.__main__ import FAST, ROOT

EXTRAS = ("datasets", "hf", "import", "openai", "report", "serve", "sign")
"""Those that the lock pins and that are tried; `vllm` takes its server's own environment."""
HEAVY = ("hf",)
TOOLS = ("hatchling", "uv", "cyclonedx-bom")
BUILD = (
    "import sys; from hatchling.build import build_sdist, build_wheel; "
    "build_wheel(sys.argv[1]); build_sdist(sys.argv[1])"
)


def call(*words: object, cwd: Path = ROOT, shown: str = "") -> None:
    """Run a command; one that fails ends it all."""
    line = [str(word) for word in words]
    began = time.monotonic()
    # Nothing of the checkout may be found from an environment.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        line, cwd=cwd, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    print(f"{time.monotonic() - began:6.0f} s  {shown or ' '.join(line)}", flush=True)
    if done.returncode:
        sys.exit(
            f"release: {' '.join(line)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )


class Environment:
    """A virtual environment without anything in it."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        call(python, "-m", "venv", folder, shown=f"{python} -m venv")
        self.bin = folder / "bin"
        self.python = self.bin / "python"

    def install(self, *words: object) -> None:
        """Install by pip."""
        names = ", ".join(Path(str(word)).name for word in words)
        call(self.python, "-m", "pip", "install", "--quiet", *words, shown=f"pip install {names}")


def build(tools: Environment, out: Path) -> tuple[Path, Path]:
    """Build wheel and source archive, and both again from the archive: the bytes are the same."""
    call(tools.python, "-c", BUILD, out, shown="wheel and source archive")
    (wheel,), (archive,) = out.glob("*.whl"), out.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
        (source,) = Path(place).iterdir()
        again = Path(place, "again")
        again.mkdir()
        call(tools.python, "-c", BUILD, again, cwd=source, shown="both again from the archive")
        for made in (wheel, archive):
            if (again / made.name).read_bytes() != made.read_bytes():
                sys.exit(f"release: {made.name} has other bytes when it is built again")
    return wheel, archive


def record(tools: Environment, out: Path, version: str) -> None:
    """Write the lock and, from it, the bill of materials."""
    lock = out / f"stopadvisor-{version}.lock"
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    call(
        *(tools.bin / "uv", "pip", "compile", "--quiet", "--no-config", "--universal"),
        *("--python-version", "3.11", "--generate-hashes", *extras),
        *("--no-header", "-o", lock, "pyproject.toml"),
        shown=lock.name,
    )
    bill = lock.with_suffix(".cdx.json")
    call(
        *(tools.bin / "cyclonedx-py", "requirements", "--output-reproducible", "--validate"),
        *("--pyproject", "pyproject.toml", "-o", bill, lock),
        shown=bill.name,
    )


def try_installed(python: str, what: Path, extra: str = "") -> None:
    """Install into a clean environment, and try what it must do there."""
    with tempfile.TemporaryDirectory() as place:
        environment = Environment(Path(place), python)
        environment.install(f"{what}[{extra}]" if extra else what)
        words = (environment.python, ROOT / ".ci" / "smoke.py", *([extra] if extra else []))
        call(*words, cwd=Path(place), shown=f"smoke.py {extra}".strip())


def try_lowest(tools: Environment) -> None:
    """Run the unit tests on the lowest versions that may be installed."""
    with tempfile.TemporaryDirectory() as place:
        call(tools.bin / "uv", "venv", "--quiet", "--no-config", "-p", sys.executable, place)
        python = Path(place, "bin", "python")
        call(
            *(tools.bin / "uv", "pip", "install", "--quiet", "--no-config", "-p", python),
            *("--resolution", "lowest-direct", "-e", ".[hf,dev]"),
            shown="the lowest versions",
        )
        call(python, "-m", "pytest", "-q", "-m", FAST, shown="unit tests on the lowest versions")


def main(arguments: Sequence[str]) -> None:
    """Make everything, then try it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.release", description="Make a release, and try it."
    )
    parser.add_argument("dist", type=Path, help="folder to write, new or empty")
    parser.add_argument("--extra", choices=EXTRAS, action="append", help="try these alone")
    parser.add_argument("--python", action="append", default=[], help="a further interpreter")
    parser.add_argument("--lowest", action="store_true", help="unit tests on the lowest versions")
    options = parser.parse_args(arguments)
    out: Path = options.dist.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        sys.exit(f"release: {out} is not empty")
    with tempfile.TemporaryDirectory() as place:
        tools = Environment(Path(place))
        tools.install(*TOOLS)
        if options.lowest:
            try_lowest(tools)
            return
        wheel, archive = build(tools, out)
        record(tools, out, wheel.name.split("-")[1])
    try_installed(sys.executable, archive)
    for extra in ("", *(options.extra or EXTRAS)):
        try_installed(sys.executable, wheel, extra)
    for python in options.python:
        for extra in ("", *(extra for extra in options.extra or EXTRAS if extra not in HEAVY)):
            try_installed(python, wheel, extra)
    for made in sorted(out.iterdir()):
        print(f"{made.stat().st_size:12,} bytes  {made.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
