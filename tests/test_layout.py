"""The architecture's rules, as far as a machine can hold them: rooms, imports, docstrings, README.

They read the source and never import it, but for the tests that ask what an import drags in and
what a command's help says.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from stopadvisor import errors
from stopadvisor.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "stopadvisor"
README = (ROOT / "README.md").read_text(encoding="utf-8")

TOP_LEVEL = {
    *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("stopadvisor", "policies", "tests", "samples"),
}
NOT_OURS = {"runs", "build", "dist", "venv", "__pycache__"}
"""What git ignores: written by the tool, by builds, by a developer."""

MOST_LINES = 500

PURE = {
    *("constants", "errors", "markers", "numerals"),
    *("features", "trajectories", "scores", "boosting", "risk", "bootstrap", "costs"),
    *("chains", "choice", "calibration", "outcomes", "paper", "decision"),
    *("frontier", "peaks", "reliability", "proxies", "classifiers", "gain_bootstrap"),
}
"""Modules that compute: they are given arrays and numbers, and give such back."""

FILES_AND_SCREENS = {
    "click",
    "rich",
    "io",
    "json",
    "os",
    "pathlib",
    "shutil",
    "subprocess",
    "tempfile",
}

HEAVY = {"torch", "transformers", "sklearn"}


class Module(NamedTuple):
    """One source file of the package."""

    name: str
    """Dotted, from ``stopadvisor``; a package goes by its own name."""
    path: Path
    tree: ast.Module


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _modules() -> dict[str, Module]:
    paths = sorted(PACKAGE.rglob("*.py"))
    found = [Module(_name(p), p, ast.parse(p.read_text(encoding="utf-8"), str(p))) for p in paths]
    return {module.name: module for module in found}


NAMES = sorted(_modules())


def _imports(module: Module) -> Iterator[str]:
    """Dotted name of everything the module imports, wherever in the file it does so."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                # `from stopadvisor import workload` names a module, the usual form a thing in one.
                yield full if full in _modules() else node.module


def _others(module: Module) -> set[str]:
    """Top names of the packages, not ours, that the module imports."""
    return {name.partition(".")[0] for name in _imports(module)} - {"stopadvisor"}


def _ours(module: Module) -> set[str]:
    return {name for name in _imports(module) if name.partition(".")[0] == "stopadvisor"}


def _is_in(name: str, *packages: str) -> bool:
    return any(name == f"stopadvisor.{p}" or name.startswith(f"stopadvisor.{p}.") for p in packages)


# --- Rooms ----------------------------------------------------------------------------------------


def test_top_level_holds_only_the_permitted_names() -> None:
    found = {p.name for p in ROOT.iterdir() if not p.name.startswith(".")} - NOT_OURS
    assert found == TOP_LEVEL


@pytest.mark.parametrize("name", NAMES)
def test_module_fits_on_a_few_screens(name: str) -> None:
    lines = _modules()[name].path.read_text(encoding="utf-8").count("\n")
    assert lines <= MOST_LINES, f"{name} has {lines} lines: where is the seam?"


@pytest.mark.parametrize("name", NAMES)
def test_module_says_what_it_does(name: str) -> None:
    assert ast.get_docstring(_modules()[name].tree)


@pytest.mark.parametrize("name", NAMES)
def test_module_says_what_is_public(name: str) -> None:
    tree = _modules()[name].tree
    bound = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    # A module of nothing but constants, and the start of `python -m`, hide nothing.
    hides_nothing = all(name.isupper() for name in bound) and not any(
        isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body
    )
    assert "__all__" in bound or hides_nothing


def test_package_init_holds_no_logic() -> None:
    for name, module in _modules().items():
        if module.path.name == "__init__.py" and name == "stopadvisor":
            logic = ast.FunctionDef | ast.ClassDef | ast.For | ast.While | ast.Try
            # Names that load on first use need one function, and only that one.
            found = [node for node in module.tree.body if isinstance(node, logic)]
            assert {getattr(node, "name", "statement") for node in found} <= {
                "__getattr__",
                "__dir__",
            }


# --- Imports point one way ------------------------------------------------------------------------


def test_no_import_goes_round_in_a_circle() -> None:
    # The package itself names everything and loads it on first use only.
    graph = {name: _ours(module) - {name, "stopadvisor"} for name, module in _modules().items()}
    del graph["stopadvisor"]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("name", NAMES)
def test_only_the_hf_engine_imports_torch_and_transformers(name: str) -> None:
    found = _others(_modules()[name]) & {"torch", "transformers", "tokenizers", "safetensors"}
    assert not found or _is_in(name, "engines.hf")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_the_command_line_imports_it(name: str) -> None:
    found = {imported for imported in _ours(_modules()[name]) if _is_in(imported, "cli")}
    assert not found or _is_in(name, "cli", "__main__")


@pytest.mark.parametrize("name", NAMES)
def test_only_the_command_line_knows_click(name: str) -> None:
    assert "click" not in _others(_modules()[name]) or _is_in(name, "cli")


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_shown_knows_rich(name: str) -> None:
    assert "rich" not in _others(_modules()[name]) or _is_in(name, "cli", "report")


@pytest.mark.parametrize("name", sorted(PURE))
def test_what_computes_knows_no_files_and_no_screen(name: str) -> None:
    assert f"stopadvisor.{name}" in _modules(), "moved? then name its new place in PURE"
    assert not _others(_modules()[f"stopadvisor.{name}"]) & FILES_AND_SCREENS


@pytest.mark.parametrize("name", ["constants", "errors"])
def test_the_ground_floor_stands_on_nothing(name: str) -> None:
    assert not _ours(_modules()[f"stopadvisor.{name}"])


# --- What an import drags in ----------------------------------------------------------------------


def _run(code: str, *arguments: str) -> str:
    """Standard output of `code` in a process of its own, where nothing is imported yet."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _loaded_by(code: str, *arguments: str) -> set[str]:
    """Top names of all modules in memory after running `code`."""
    shown = _run(f"{code}\nprint('\\n' + ' '.join(sys.modules))", *arguments)
    return {name.partition(".")[0] for name in shown.splitlines()[-1].split()}


HELP = "from stopadvisor.cli.main import main\nassert main() == 0"
"""What the installed `stopadvisor` runs, with arguments to come."""


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        pytest.param("import stopadvisor", HEAVY, id="import stopadvisor"),
        pytest.param(HELP, HEAVY | {"scipy", "math_verify"}, id="stopadvisor --help"),
        pytest.param(
            "import stopadvisor.policy.frozen",
            HEAVY | {"scipy", "joblib", "math_verify", "click", "rich"},
            id="the policy and its stepper",
        ),
    ],
)
def test_import_stays_light(code: str, absent: set[str]) -> None:
    assert not _loaded_by(code, "--help") & absent


# --- What the README promises ---------------------------------------------------------------------

COMMAND_ROW = re.compile(r"^\| `stopadvisor ([a-z-]+)\b", re.MULTILINE)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _fences(language: str) -> list[str]:
    return [body for found, body in FENCE.findall(README) if found == language]


@cache
def _help(*arguments: str) -> str:
    shown = io.StringIO()
    with redirect_stdout(shown):
        assert main([*arguments, "--help"]) == 0
    return shown.getvalue()


def test_readme_lists_the_commands_that_exist() -> None:
    shown = _help().partition("Commands:\n")[2].partition("\n\n")[0]
    existing = set(re.findall(r"^  ([a-z][a-z-]*)\b", shown, re.MULTILINE))
    assert set(COMMAND_ROW.findall(README)) == existing


def test_readme_names_only_options_that_exist() -> None:
    text = FENCE.sub(lambda found: found[0] if "stopadvisor" in found[2] else "", README)
    # Those of pip stand in fences and in one remark on its index, vLLM's in one on its cache.
    others = {"--index-url", "--enable-prompt-tokens-details"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - others
    existing = set()
    for arguments in [(), *((command,) for command in COMMAND_ROW.findall(README))]:
        existing |= set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", _help(*arguments)))
    assert named <= existing


def test_readme_opens_with_the_two_commands() -> None:
    first, second = _fences("sh")[:2]
    assert first.startswith("pip install -e '.[hf]' && stopadvisor assess ")
    assert second.strip() == "pip install -e '.[hf,dev]' && python -m tests"


def test_ci_runs_what_the_readme_says() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    install, test = _fences("sh")[1].strip().split(" && ")
    # CI may ask pip for less talk; nothing else differs.
    assert install in [line.replace(" --quiet", "") for line in lines]
    assert test in lines


def test_readme_names_only_files_that_exist() -> None:
    in_commands = re.findall(r"\bsamples/[\w./-]+", _fences("sh")[0])
    linked = re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", README)  # of this page or of others
    missing = [name for name in [*in_commands, *linked] if not (ROOT / name).exists()]
    assert not missing


def test_readme_gives_every_exit_code() -> None:
    named = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    raised = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.StopAdvisorError)
    }
    assert raised | {0, 3, 130} <= named


def test_readme_examples_are_well_formed() -> None:
    for body in _fences("json"):
        json.loads(body)
    for body in _fences("python"):
        compile(body, "README.md", "exec")


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(requirement for extra in extras for requirement in extra),
    ]
    names = {re.split(r"[^\w-]", requirement)[0] for requirement in wanted}
    reasons = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    reasons = reasons.partition("## Why each dependency")[2].partition("\n## ")[0]
    assert names == set(re.findall(r"\*\*([\w-]+)\*\*", reasons))
