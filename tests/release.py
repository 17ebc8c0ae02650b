"""Make what a release publishes, and try it as users will: `python -m tests.release DIST`.

Builds wheel and source archive, both twice, a lock with hashes and a bill of materials.  Installs
wheel and archive into clean environments, and runs `.ci/smoke.py` there, without extras and with
each one.  Takes a package index, some gigabytes and many minutes.  `--python` names further
interpreters, on which all light extras are tried.

`--lowest` builds nothing: it runs the unit tests on the lowest versions that `pyproject.toml`
declares for users, after checking that each extra can be installed with them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.__main__ import FAST, ROOT, WORKERS

EXTRAS = ("datasets", "hf", "import", "openai", "report", "serve", "sign")
"""Extras that the lock pins and that are tried; `vllm` takes its server's own environment."""
HEAVY = ("hf",)
TOOLS = ("hatchling", "uv", "cyclonedx-bom")
BUILD = (
    "import sys; from hatchling.build import build_sdist, build_wheel; "
    "build_wheel(sys.argv[1]); build_sdist(sys.argv[1])"
)


def call(*words: object, cwd: Path = ROOT, shown: str = "") -> str:
    """Run a command and return what it prints; exit if it fails."""
    line = [str(word) for word in words]
    began = time.monotonic()
    # Environments must not see the checkout.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        line, cwd=cwd, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    print(f"{time.monotonic() - began:6.0f} s  {shown or ' '.join(line)}", flush=True)
    if done.returncode:
        sys.exit(
            f"release: {' '.join(line)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


class Environment:
    """An empty virtual environment."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        call(python, "-m", "venv", folder, shown=f"{python} -m venv")
        self.bin = folder / "bin"
        self.python = self.bin / "python"

    def install(self, *words: object) -> None:
        """Install with pip."""
        names = ", ".join(Path(str(word)).name for word in words)
        call(self.python, "-m", "pip", "install", "--quiet", *words, shown=f"pip install {names}")


def build(tools: Environment, out: Path) -> tuple[Path, Path]:
    """Build wheel and source archive, and both again from the archive: bytes must be equal."""
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
                sys.exit(f"release: {made.name} has other bytes when built again")
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


def try_installed(tools: Environment, python: str, what: Path, extra: str = "") -> None:
    """Install into a clean environment, and try what must work there.

    uv installs a wheel, in seconds where pip takes minutes; pip installs a source archive.
    """
    with tempfile.TemporaryDirectory() as place:
        if what.suffix == ".whl":
            own, uv = Path(place, "bin", "python"), (tools.bin / "uv", "--no-config", "-q")
            call(*uv, "venv", "-p", python, place, shown=f"uv venv -p {python}")
            wanted = f"{what}[{extra}]" if extra else what
            named = f"{what.name}[{extra}]" if extra else what.name
            call(*uv, "pip", "install", "-p", own, wanted, shown=f"uv pip install {named}")
        else:
            environment = Environment(Path(place), python)
            environment.install(what)
            own = environment.python
        words = (own, ROOT / ".ci" / "smoke.py", *([extra] if extra else []))
        print(call(*words, cwd=Path(place), shown=f"smoke.py {extra}".strip()).splitlines()[-1])


def lowest_versions() -> dict[str, dict[str, str]]:
    """Return the lowest declared versions, by extra and package; "" is for no extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {"": project["dependencies"], **project["optional-dependencies"]}
    found = {}
    for extra in ("", *EXTRAS):
        bounds = [re.match(r"([\w-]+)>=([\d.]+)", line) for line in declared[extra]]
        found[extra] = {bound[1]: _short(bound[2]) for bound in bounds if bound}
        assert len(found[extra]) == len(bounds), f"a dependency without a lower bound: {extra}"
    return found


def _short(version: str) -> str:
    return re.sub(r"(\.0)+$", "", version)


def check_attainable(uv: Path, folder: Path, extra: str, lowest: dict[str, str]) -> None:
    """Compare the lowest versions of an extra with those that an installer finds."""
    found = folder / "found.txt"
    call(
        *(uv, "pip", "compile", "--quiet", "--no-config", "--resolution", "lowest-direct"),
        *("-p", sys.executable, "--no-header", "--no-annotate", "-o", found, "pyproject.toml"),
        *(("--extra", extra) if extra else ()),
        shown=f"the lowest versions {f'with the extra {extra}' if extra else 'without extras'}",
    )
    pins = dict(line.split("==") for line in found.read_text().splitlines() if "==" in line)
    found.unlink()  # otherwise uv would keep to it the next time
    for name, version in lowest.items():
        got = pins[name].partition(" ")[0]
        if _short(got) != version:
            sys.exit(
                f"release: {name}>={version} ({extra or 'dependencies'}) brings {got}: raise it"
            )


def try_lowest(tools: Environment, tests: Sequence[str]) -> None:
    """Run the unit tests, or the named ones, on the lowest versions that may be installed.

    Development tools and other extras may require newer versions of some packages; overrides
    install the lowest all the same.  Old and new releases may warn of each other: only failures
    count.
    """
    uv, lowest = tools.bin / "uv", lowest_versions()
    with tempfile.TemporaryDirectory() as place:
        for extra, versions in lowest.items():
            check_attainable(uv, Path(place), extra, versions)
        pinned = {name: version for part in lowest.values() for name, version in part.items()}
        pins = Path(place, "pins.txt")
        pins.write_text("".join(f"{name}=={version}\n" for name, version in pinned.items()))
        python = Path(place, "lowest", "bin", "python")
        call(uv, "venv", "--quiet", "--no-config", "-p", sys.executable, python.parent.parent)
        call(
            *(uv, "pip", "install", "--quiet", "--no-config", "-p", python, "--override", pins),
            *("--resolution", "lowest-direct", "-e", f".[{','.join((*EXTRAS, 'dev'))}]"),
            shown="the lowest versions of all extras, and what tests need",
        )
        listed = json.loads(call(uv, "pip", "list", "-q", "--format", "json", "-p", python))
        found = {package["name"]: package["version"] for package in listed}
        wrong = [name for name in pinned if _short(found[name].partition("+")[0]) != pinned[name]]
        assert not wrong, f"not the lowest: {', '.join(wrong)}"
        how = (*WORKERS, "-m", FAST, "-W", "default")
        said = call(python, "-m", "pytest", "-q", *how, *tests, shown="unit tests")
    print(f"{said.splitlines()[-1]} with Python {sys.version.split()[0]} and")
    print(", ".join(f"{name} {found[name]}" for name in sorted(pinned)))


def main(arguments: Sequence[str]) -> None:
    """Make everything, then try it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.release", description="Make a release, and try it."
    )
    parser.add_argument("dist", type=Path, nargs="?", help="folder to write, new or empty")
    parser.add_argument("--extra", choices=EXTRAS, action="append", help="try only this extra")
    parser.add_argument("--python", action="append", default=[], help="a further interpreter")
    parser.add_argument(
        "--lowest", nargs="*", metavar="TEST", help="run unit tests, or these, on lowest versions"
    )
    options = parser.parse_args(arguments)
    if (options.dist is None) == (options.lowest is None):
        parser.error("give either the folder to write or --lowest")
    with tempfile.TemporaryDirectory() as place:
        tools = Environment(Path(place))
        tools.install(*TOOLS)
        if options.lowest is not None:
            try_lowest(tools, options.lowest)
            return
        out: Path = options.dist.resolve()
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            sys.exit(f"release: {out} is not empty")
        wheel, archive = build(tools, out)
        record(tools, out, wheel.name.split("-")[1])
        try_installed(tools, sys.executable, archive)
        for extra in ("", *(options.extra or EXTRAS)):
            try_installed(tools, sys.executable, wheel, extra)
        for python in options.python:
            for extra in ("", *(options.extra or (e for e in EXTRAS if e not in HEAVY))):
                try_installed(tools, python, wheel, extra)
    for made in sorted(out.iterdir()):
        print(f"{made.stat().st_size:12,} bytes  {made.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
