"""Snippets of READMEs, and a place where they run unchanged: a scratch folder like a clone.

The language of a fenced block says what it is:

- `sh`: commands, run by bash page by page, from top to bottom;
- `python`: a program, run by itself after the blocks above it;
- `json`, `jsonl`: a document, or one on each line;
- `console`: commands for another machine, a server of yours or a terminal, or that take minutes;
  `stopadvisor` lines are parsed as their command would, but not run;
- `text`: what a command prints.

Stand-ins on the PATH replace commands: `stopadvisor` and `python` are this checkout's; `pip
install`, uv's too, installs nothing and is checked against `pyproject.toml`; tests and benchmarks
do not run, since they run these snippets.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from stopadvisor.workload.questions import assign_parts, default_split, read_workload
from tests.forked import Forked
from tests.generate import ROOT, pages
from tests.material import WORKLOAD, write_easiest

__all__ = ["KNOWN", "Snippet", "Workplace", "check_install", "command_lines", "snippets"]

KNOWN = {"sh", "python", "json", "jsonl", "toml", "console", "text"}
"""Languages of fences; a fence without one is text."""

COMMANDS = {"stopadvisor", "python", "pip", "uv", "mkdir", "cp", "xz", "openssl"}
"""What a line of a `sh` block may begin with."""

N_OF_PART = 20
"""Bundled questions in each of fit and calibration, instead of all 600: the fewest that an
assessment and α = 0.15 take."""
N_OWN = 8
"""Questions in the workload that pages call your own."""
N_RECORDED = 150
"""Questions with recorded probes, instead of 600, or 1000 in archives."""
PROBES = ROOT / "policies" / "probes" / "arithmetic.probes.jsonl.xz"
_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """One fenced block of a page."""

    page: Path
    line: int
    """Line of its opening fence, from 1."""
    language: str
    body: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def snippets() -> Iterator[Snippet]:
    """Yield every fenced block of every README, page by page, from top to bottom."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for found in _FENCE.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield Snippet(page, line, found["language"] or "text", found["body"])


def foreign_commands(body: str) -> list[str]:
    """Return the commands of a `sh` block that cannot run here."""
    joined = body.replace("\\\n", " ")
    found = []
    for line in joined.splitlines():
        for part in re.split(r"&&|\|\|?|;", re.sub(r"(^|\s)#.*", "", line)):
            words = part.split()
            if words and words[0] not in COMMANDS:
                found.append(words[0])
    return found


def command_lines(body: str) -> Iterator[list[str]]:
    """Yield the words of every command of a block, with shell arrays expanded."""
    arrays: dict[str, list[str]] = {}

    def words(text: str) -> list[str]:
        found = shlex.split(text, comments=True)
        return [word for part in found for word in arrays.get(part, [part])]

    for line in body.replace("\\\n", " ").splitlines():
        if array := re.fullmatch(r"(\w+)=\((.*)\)", line):
            arrays[f"${{{array[1]}[@]}}"] = words(array[2])
        elif found := words(line.removeprefix("$ ")):
            yield found


def write_few(path: Path) -> None:
    """Write the bundled questions of each part about which the model thinks the least."""
    questions = read_workload(WORKLOAD).questions
    recorded = {row["id"]: row["trace_tokens"] for row in map(json.loads, recorded_probes())}
    split = default_split(len(questions))
    parts = assign_parts([question.group_key for question in questions], seed=0, fractions=split)
    few = set[str]()
    for part in (0, 1):
        names = [q.id for q, found in zip(questions, parts, strict=True) if found == part]
        few.update(sorted(names, key=recorded.__getitem__)[:N_OF_PART])
    lines = WORKLOAD.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = "".join(line for line in lines if json.loads(line)["id"] in few)
    path.write_text(kept, encoding="utf-8")


def recorded_probes() -> list[bytes]:
    """Lines of the bundled probes."""
    return lzma.decompress(PROBES.read_bytes()).splitlines(keepends=True)


class Workplace:
    """A scratch folder with what pages assume: samples, policies, and files of your own."""

    def __init__(self, folder: Path, forked: Forked) -> None:
        self.folder, self._forked = folder, forked
        for name in ("samples", "policies"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.py[co]"))
        # Few questions: whether a command runs depends on its words, and other tests check figures.
        write_easiest(folder / "my.jsonl", N_OWN)
        write_few(folder / "samples" / "arithmetic.jsonl")
        first = b"".join(recorded_probes()[:N_RECORDED])
        (folder / PROBES.relative_to(ROOT)).write_bytes(lzma.compress(first, preset=0))
        for file in (folder / "samples" / "recorded").glob("*.npz"):
            with np.load(file) as whole:
                few = {k: v[:N_RECORDED] if v.ndim else v for k, v in whole.items()}
            np.savez(file, **few)
        shutil.copy(folder / "policies" / "arithmetic.joblib", folder / "policy.joblib")
        bin = folder / ".bin"
        bin.mkdir()
        stand_in = f"exec {shlex.join(forked.client)} tests.snippets"
        uncertified = "code=$?; [ $code = 3 ] || exit $code"  # a result, not a failure
        for name, script in {
            "stopadvisor": f'{shlex.join(forked.client)} stopadvisor "$@"; {uncertified}',
            "python": f'{stand_in} python "$@"',
            "pip": f'{stand_in} pip "$@"',
            "uv": f'{stand_in} "$@"',
        }.items():
            (bin / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            (bin / name).chmod(0o755)

    def run(self, snippet: Snippet, *, seconds: float = 900) -> str:
        """Run a `sh` or `python` block, and return what it printed.

        Raises
        ------
        AssertionError
            It failed; with its output.
        """
        command = {
            "sh": ["bash", "-euo", "pipefail", "-c", snippet.body],
            "python": [*self._forked.client, "-c", snippet.body],
        }[snippet.language]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"{snippet} ends with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def _environment(self) -> dict[str, str]:
        path = f"{self.folder / '.bin'}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "STOPADVISOR_REPORT": "0"}


# --- Stand-ins ------------------------------------------------------------------------------------


def check_install(words: Sequence[str]) -> None:
    """Check the words after `pip` against the extras in `pyproject.toml`.

    Raises
    ------
    ValueError
        The project has no such extra, or no test knows this installation.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    index = ["--index-url", "https://download.pytorch.org/whl/cpu"]
    match words:
        case ["install", "uv"]:
            extras = {"dev"}
        case ["install", *_, target] if found := re.fullmatch(
            r"(?:stopadvisor|\.)(?:\[([\w,-]+)\])?", target
        ):
            extras = set((found[1] or "").split(",")) - {""}
        case ["install", requirement, *rest] if requirement.startswith("torch") and rest == index:
            extras = {"hf"}
        case _:
            raise ValueError(f"no test knows `pip {' '.join(words)}`")
    if unknown := extras - project["optional-dependencies"].keys():
        raise ValueError(f"pyproject.toml has no extra {', '.join(sorted(unknown))}")


def _stand_in(name: str, words: list[str]) -> int:
    """Stand in for the command `name` in a snippet; return the exit code."""
    if name == "pip":
        check_install(words)
        return 0
    if words[:1] == ["-m"] and words[1:2] and words[1].partition(".")[0] == "tests":
        if find_spec(words[1]) is None:
            raise ValueError(f"there is no module {words[1]}")
        if words[1] != "tests.generate":
            return 0
    return subprocess.run([sys.executable, *words], check=False).returncode


def parse(snippet: Snippet) -> list[object]:
    """Return the documents of a `json` or `jsonl` block."""
    if snippet.language == "json":
        return [json.loads(snippet.body)]
    return [json.loads(line) for line in snippet.body.splitlines() if line.strip()]


if __name__ == "__main__":
    sys.exit(_stand_in(sys.argv[1], sys.argv[2:]))
