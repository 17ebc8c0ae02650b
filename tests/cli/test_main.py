"""The command line's frame: help, exit codes, errors as JSON, closed pipes, completion."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

import stopadvisor
from stopadvisor.cli import main as main_module
from stopadvisor.cli.main import COMMANDS, EXIT_CODES, main, module_of
from stopadvisor.cli.parts.command import Command
from stopadvisor.ground import errors

ROOT = Path(__file__).parent.parent.parent


def python(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Put a command `fail` into the table that raises what it is given."""

    def install(error: BaseException) -> None:
        @click.command("fail")
        @click.option("--json", "as_json", is_flag=True)
        def command(as_json: bool) -> None:
            raise error

        monkeypatch.setitem(COMMANDS, "fail", "Fails.")
        monkeypatch.setattr(
            main_module, "import_module", lambda _: SimpleNamespace(command=command)
        )

    return install


# --- Help -----------------------------------------------------------------------------------------


def test_help_lists_every_command_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name, line in COMMANDS.items():
        assert f"{name} {line}" in text
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in text


def test_version_names_all_that_is_loaded_one_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(name: str) -> str:
        if name == "torch":
            raise PackageNotFoundError(name)
        return f"{len(name)}.0"

    monkeypatch.setattr("importlib.metadata.version", found)
    assert main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"stopadvisor {stopadvisor.__version__}"
    assert lines[1] == f"python {sys.version.split()[0]}"
    assert {"numpy 5.0", "transformers 12.0", "torch not installed (extra hf)"} < set(lines)


def page(name: str) -> Command:
    command = import_module(module_of(name)).command
    assert isinstance(command, Command)
    return command


def whole_help(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([name, "--help-all" if page(name).is_long else "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_command_is_a_whole_page(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert page(name).name == name
    text = whole_help(name, capsys)
    assert "--json" in text
    assert "--quiet" in text
    assert text.isascii()  # readable in every terminal
    assert max(map(len, text.splitlines())) <= 80
    # What it does, apart from its line in the table; an example; what its exit codes mean.
    assert len(text.partition("Options:")[0].splitlines()) > 4
    assert "\nExamples:\n" in text
    assert {0, 2} <= set(page(name).exit_codes) <= set(EXIT_CODES)
    for code in page(name).exit_codes:
        assert re.search(rf"^  {code} +{EXIT_CODES[code][:30]}", text, re.MULTILINE)
    for param in page(name).params:  # each option stands there once
        if isinstance(param, click.Option) and not param.hidden:
            assert len(re.findall(rf"^  (-\w, )?{param.opts[0]}\b(?!-)", text, re.MULTILINE)) == 1
    assert ("\nModel:\n" in text) == (name in ("assess", "probe", "preflight", "run"))
    assert ("\nCertificate:\n" in text) == (name == "assess")


@pytest.mark.parametrize("name", [name for name in sorted(COMMANDS) if page(name).is_long])
def test_a_long_help_begins_with_what_people_name(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 60
    assert "--help-all" in text
    whole = whole_help(name, capsys)
    options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)
    assert 8 <= len(options) < len(re.findall(r"^  (?:-\w, )?(--[\w-]+)", whole, re.MULTILINE))
    if name == "assess":
        assert {"--model", "--alpha", "--base-url", "--max-think", "--out"} < {*options}
        assert "--cap" not in options


def test_preflight_takes_what_does_nothing_there_and_does_not_offer_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hidden = {p.name for p in page("preflight").params if isinstance(p, click.Option) and p.hidden}
    assert hidden == {"out", "no_preflight", "regrade"}
    assert "--regrade" not in whole_help("preflight", capsys)
    for name in COMMANDS.keys() - {"preflight"}:
        assert not [p for p in page(name).params if isinstance(p, click.Option) and p.hidden]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_examples_of_a_page_are_command_lines_that_parse(name: str) -> None:
    examples = page(name).examples
    assert any(f"stopadvisor {name}" in example for example in examples)
    for example in examples:
        line = example.removeprefix('eval "$(').partition(')"')[0].partition(" > ")[0]
        words = shlex.split(line, comments=True)
        assert words[:2] == ["stopadvisor", name]
        page(name).make_context(name, words[2:])  # raises where it does not parse


def test_public_names_are_those_that_are_listed() -> None:
    for name in set(stopadvisor.__all__) - {"__version__"}:
        assert getattr(stopadvisor, name).__name__ == name
        assert name in dir(stopadvisor)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = stopadvisor.nothing


# --- Exit codes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (errors.WorkloadError("a.jsonl:3: field 'gold'"), 2),
        (errors.ModelError("no such model"), 2),
        (errors.OutputError("cannot write"), 2),
        (errors.EngineError("it broke"), 1),
        (errors.PreflightError("no cue"), 5),
        (KeyboardInterrupt(), 130),
        (click.UsageError("no such option"), 2),
        (ZeroDivisionError("by\nzero"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_errors_become_exit_codes_and_one_line(
    fails: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    exit_code: int,
) -> None:
    fails(error)
    assert main(["fail"]) == exit_code
    text = capsys.readouterr()
    assert text.out == ""
    assert "Traceback" not in text.err
    if isinstance(error, errors.StopAdvisorError):
        assert text.err == f"stopadvisor: {error}\n"

    assert main(["fail", "--json"]) == exit_code
    found = json.loads(capsys.readouterr().out)["error"]
    assert found.keys() == {"type", "message", "exit_code"}
    assert found["exit_code"] == exit_code
    assert found["message"]


def test_a_second_interrupt_while_python_exits_ends_it_without_a_traceback() -> None:
    program = (
        "import atexit, os, signal, sys\n"
        "from stopadvisor.cli import main\n"
        "def interrupted(**_):\n"
        "    atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "    raise KeyboardInterrupt\n"
        "main.cli.main = interrupted\n"
        "sys.exit(main.main())\n"
    )
    done = python("-c", program)
    assert done.returncode == -signal.SIGINT, "which shells report as 130"
    assert done.stderr == "stopadvisor: interrupted\n"


def test_an_interrupt_during_the_first_imports_ends_in_silence() -> None:
    program = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from stopadvisor.__main__ import main\n"
        "sys.exit(main())\n"
    )
    done = python("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_bug_is_one_line_with_the_way_to_its_traceback(
    fails: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails(ZeroDivisionError("by\nzero"))
    main(["fail"])
    assert capsys.readouterr().err == (
        "stopadvisor: internal error: ZeroDivisionError: by zero "
        "(set STOPADVISOR_DEBUG=1 for the traceback)\n"
    )
    monkeypatch.setenv("STOPADVISOR_DEBUG", "1")
    assert main(["fail"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["nonsense"], ["--nonsense"], ["probe"], ["probe", "x.jsonl", "--cap", "0"]],
    ids=lambda words: " ".join(words),
)
def test_wrong_usage_is_exit_2_as_text_and_as_json(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    text = capsys.readouterr()
    assert text.out == ""
    assert "Usage: stopadvisor" in text.err
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 2


def test_a_closed_pipe_ends_quietly() -> None:
    command = f"{sys.executable} -m stopadvisor --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1)  # 0: the help was gone before the reader was
    assert done.stderr == ""


def test_the_module_is_the_command() -> None:
    done = python("-m", "stopadvisor", "--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"stopadvisor {stopadvisor.__version__}\n")
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert script == {"stopadvisor": "stopadvisor.__main__:main"}


# --- What stdout cannot take ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [("ascii", r"mod\u00e8le \ud83d\ude00 \udc80"), ("utf-8", r"modèle 😀 \udc80")],
)
def test_no_letter_ends_the_program_and_json_stays_json(
    fails: Callable[[BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
    encoding: str,
    printed: str,
) -> None:
    message = "modèle 😀 \udc80"  # the last as in a file's name that is no UTF-8
    fails(errors.WorkloadError(message))
    raw = BytesIO()
    with TextIOWrapper(raw, encoding=encoding) as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["fail", "--json"]) == 2
        out.flush()
        text = raw.getvalue().decode(encoding)
    assert printed in text
    assert json.loads(text)["error"]["message"] == message


# --- Streams that are closed or take nothing ------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "redirection", "code", "said"),
    [
        ("schema --json", ">/dev/full", 1, "cannot write the output: No space left"),
        ("schema", ">&-", 1, "cannot write the output: it is closed"),
        ("schema --json", "2>&-", 0, ""),
        ("schema nothing --json", ">/dev/full", 2, ""),
    ],
)
def test_a_stream_that_takes_nothing(words: str, redirection: str, code: int, said: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m stopadvisor {words} {redirection}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 1


# --- Completion: click's script, sourced by bash, and what a key press imports --------------------


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
