"""Completion: click's script, sourced by bash, and what a key press imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stopadvisor.cli.main import COMMANDS, module_of

ROOT = Path(__file__).resolve().parent.parent.parent
HEAVY = ("torch", "transformers", "sklearn", "scipy", "numpy", "joblib", "math_verify", "rich")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy and a run, and the command as it would be installed."""
    monkeypatch.chdir(tmp_path)
    command = tmp_path / "bin" / "stopadvisor"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m stopadvisor "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    (tmp_path / "policy.joblib").touch()
    (tmp_path / "runs" / "sums").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


# --- Sourced --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.integration
def test_bash_completes_commands_options_values_and_paths(folder: Path) -> None:
    wanted = {
        "cal": "calibrate",
        "plan --exp": "--expected-risk",
        "plan --loss ": "lost differs drop",
        "schema --json --nonsense ": "",
        "verify policy.joblib runs/": "(compopt -o default)",
    }
    script = """
    compopt() { COMPREPLY+=("(compopt $1 $2)"); }
    eval "$(_STOPADVISOR_COMPLETE=bash_source stopadvisor)"
    complete -p stopadvisor > /dev/null || exit 1
    for line; do
        IFS=' ' read -ra COMP_WORDS <<< "stopadvisor $line"
        [[ $line == *' ' ]] && COMP_WORDS+=('')
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
        _stopadvisor_completion stopadvisor
        echo "${COMPREPLY[*]}"
    done
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *wanted],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert dict(zip(wanted, done.stdout.splitlines(), strict=True)) == wanted


# --- What a key press costs -----------------------------------------------------------------------


def loaded(words: str) -> set[str]:
    """Modules in memory after completing the last of the words."""
    code = "import sys\nfrom stopadvisor.cli.main import main\nmain([])\nprint(*sys.modules)"
    count = str(len(words.split(" ")) - 1)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ, "PYTHONPATH": str(ROOT), "_STOPADVISOR_COMPLETE": "bash_complete",
            "COMP_WORDS": words, "COMP_CWORD": count,
        },
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *offers, modules = done.stdout.splitlines()
    assert offers
    return set(modules.split())


def test_the_name_of_a_command_is_completed_without_importing_one() -> None:
    found = loaded("stopadvisor p")
    assert not found & set(HEAVY)
    assert not found & {*map(module_of, COMMANDS)}


@pytest.mark.slow
def test_an_option_is_completed_by_importing_its_command_alone() -> None:
    found = loaded("stopadvisor inspect --")
    assert found & {*map(module_of, COMMANDS)} == {"stopadvisor.cli.inspect"}
    assert not found & {"torch", "transformers", "sklearn"}
