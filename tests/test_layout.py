"""Rules of the house that a machine can hold: folders, sizes, docstrings, what an import loads.

Which wing may import which is held by import-linter, as `pyproject.toml` says.  These rules read
the source and never import it, but for those that ask what an import loads.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import click
import pytest

from stopadvisor.cli.main import COMMANDS, cli
from tests.__main__ import APART, TIERS, parse

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "stopadvisor"

TOP_LEVEL = {
    *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("stopadvisor", "policies", "tests", "samples"),
}
NOT_OURS = {"runs", "build", "dist", "venv", "__pycache__"}
"""What git ignores: files of the tool, of builds, or of a developer."""

MOST_LINES = 500
MOST_ENTRIES = 26

HEAVY = {"torch", "transformers", "sklearn"}


@dataclass(frozen=True)
class Module:
    """One source file of the package."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def name(self) -> str:
        """Path from the root of the repository."""
        return str(self.path.relative_to(ROOT))


MODULES = [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]
FOLDERS = [module for module in MODULES if module.path.name == "__init__.py"]


# --- Folders --------------------------------------------------------------------------------------


def test_the_repository_holds_only_the_permitted_names() -> None:
    found = {p.name for p in ROOT.iterdir() if not p.name.startswith(".")} - NOT_OURS
    assert found == TOP_LEVEL


def test_the_package_opens_on_few_entries() -> None:
    assert len({p.name for p in PACKAGE.iterdir()} - NOT_OURS) <= MOST_ENTRIES


def test_every_folder_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert {module.path.parent for module in FOLDERS} == folders


def test_every_folder_says_its_purpose_in_one_sentence() -> None:
    unsaid = []
    for module in FOLDERS:
        first = (ast.get_docstring(module.tree) or "").split("\n\n")[0]
        if "\n" in first or not re.fullmatch(r"[^.]+(\.\w[^.]*)*\.", first):
            unsaid.append(f"{module.name}: {first!r}")
    assert not unsaid


def test_every_folder_names_what_is_public() -> None:
    # That is names which it hands on, or those of its modules that are used outside of it.
    users = _users()
    wrong = []
    for folder in FOLDERS:
        path = folder.path.parent
        modules = {p.stem for p in path.glob("[!_]*.py")} | {
            p.parent.name for p in path.glob("*/__init__.py")
        }
        public = _public(folder)
        if public & modules or not public:
            inside = ".".join(path.relative_to(ROOT).parts) + "."
            used = {
                name.removeprefix(inside).partition(".")[0]
                for name, by in users.items()
                if name.startswith(inside) and any(not user.startswith(inside) for user in by)
            }
            wrong += [f"{folder.name}: {name}" for name in (used & modules) ^ public]
    assert not wrong


def _public(module: Module) -> set[str]:
    """What its `__all__` lists."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


@cache
def _users() -> dict[str, set[str]]:
    """The modules that import each name of the package."""
    users = defaultdict(set)
    for module in MODULES:
        importer = ".".join(module.path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    users[f"{node.module}.{alias.name}"].add(importer)
    for name in re.findall(
        r'= "(stopadvisor[\w.]+):', (ROOT / "pyproject.toml").read_text("utf-8")
    ):
        users[name].add("pyproject")  # what is installed as a command or a plugin
    return users


SHOWN = {"assessment.frontier", "assessment.recommendation"}
"""What a report asks of the wings that compute; of other modules there it knows types alone."""


def test_a_report_computes_nothing() -> None:
    asked = set()
    for name, users in _users().items():
        wing, _, rest = name.removeprefix("stopadvisor.").partition(".")
        module, _, member = rest.rpartition(".")
        computes = wing in {"assessment", "certification", "paper", "stats"}
        by_report = any(user.startswith("stopadvisor.report.") for user in users)
        if computes and by_report and not member[:1].isupper():
            asked.add(f"{wing}.{module}")
    assert asked == SHOWN


def test_a_folders_init_holds_no_logic() -> None:
    # Names that load on first use need these two functions.
    permitted = {"__getattr__", "__dir__"}
    logic = ast.FunctionDef | ast.ClassDef | ast.For | ast.While | ast.Try
    found = [
        f"{module.name}:{node.lineno}"
        for module in FOLDERS
        for node in module.tree.body
        if isinstance(node, logic) and getattr(node, "name", "") not in permitted
    ]
    assert not found


# --- Modules --------------------------------------------------------------------------------------


def test_no_module_is_too_long() -> None:
    long = [m.name for m in MODULES if m.text.count("\n") > MOST_LINES]
    assert not long, "where is the seam?"


def test_every_module_names_what_is_public() -> None:
    # A module of constants alone has nothing to hide.
    code = ast.FunctionDef | ast.ClassDef
    holds_code = [m for m in MODULES if any(isinstance(node, code) for node in m.tree.body)]
    assert not [module.name for module in holds_code if not _public(module)]


def test_no_class_name_stands_twice() -> None:
    places = defaultdict(list)
    for module in MODULES:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module.name}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_the_wing_table_names_every_wing() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    wings = [name for layer in layers for name in layer.split(" | ") if name != "_version"]
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page.partition("## Layout")[2], re.MULTILINE)
    named = [name.rstrip("/") for row in rows for name in re.findall(r"`([\w/]+)`", row)]
    assert sorted(wings) == sorted(named[: len(wings)])


OWN_JSON = {
    "stopadvisor/ground/json_text.py": "what the others call",
    "stopadvisor/answers/grader_process.py": "a script that imports nothing of the package",
    "stopadvisor/policy/file.py": "a policy's own rules: limits first, no key twice, no NaN",
    "stopadvisor/serving/audit_log.py": "each line of a log: decoders that are made once",
}
"""Modules that read JSON by themselves, each with the reason."""


def test_json_is_read_in_one_way() -> None:
    reads = re.compile(r"\bjson\.loads?\b|\bJSONDecoder\b|^from json import .*\bloads?\b", re.M)
    assert {module.name for module in MODULES if reads.search(module.text)} == OWN_JSON.keys()


# --- What an import loads -------------------------------------------------------------------------


def _run(code: str, *arguments: str) -> str:
    """Standard output of `code` in a fresh process."""
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
    """Top-level names of all modules in memory after `code` ran."""
    shown = _run(f"{code}\nprint('\\n' + ' '.join(sys.modules))", *arguments)
    return {name.partition(".")[0] for name in shown.splitlines()[-1].split()}


HELP = "from stopadvisor.cli.main import main\nassert main() == 0"
"""What the installed `stopadvisor` runs, before its arguments."""


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        pytest.param("import stopadvisor", HEAVY, id="import stopadvisor"),
        pytest.param(
            HELP,
            HEAVY | {"scipy", "numpy", "joblib", "math_verify", "pydantic", "matplotlib", "rich"},
            id="stopadvisor --help",
        ),
        pytest.param(
            "import stopadvisor.policy.frozen",
            HEAVY | {"scipy", "joblib", "math_verify", "click", "rich", "cryptography"},
            id="the policy and its stepper",
        ),
    ],
)
def test_import_stays_light(code: str, absent: set[str]) -> None:
    assert not _loaded_by(code, "--help") & absent


# --- Tiers ----------------------------------------------------------------------------------------


def test_the_command_line_has_at_most_ninety_options() -> None:
    group = click.Context(cli)
    names: set[str] = {"--help", "--version"}
    for command in COMMANDS:
        found = cli.get_command(group, command)
        assert found is not None
        for param in found.get_params(click.Context(found, info_name=command)):
            names.update(name for name in (*param.opts, *param.secondary_opts) if name[:2] == "--")
    assert len(names) <= 90, sorted(names)


def test_every_marker_belongs_to_a_tier() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = project["tool"]["pytest"]["ini_options"]["markers"]
    assert {line.partition(":")[0] for line in lines} == {*APART, "long"}


@pytest.mark.parametrize("tier", [name for name in TIERS if name != "full"])
def test_a_tier_is_named_by_its_option(tier: str) -> None:
    assert parse([f"--{tier}", "-k", "layout"]) == (tier, ["-k", "layout"])


def test_without_an_option_every_check_runs() -> None:
    assert parse(["-k", "layout"]) == ("full", ["-k", "layout"])
    shown = [check.shown.split()[0] for check in TIERS["full"]]
    assert shown == ["mypy", "ruff", "ruff", "codespell", "lint-imports", "pytest"]


# --- Clocks ---------------------------------------------------------------------------------------

CLOCKS = {f"time.{name}" for name in ("monotonic", "perf_counter", "process_time", "time")}
MEASURING = {"benchmarks", "long", "mutants", "release.py", "test_plugin_soak.py"}
"""Test files that print seconds, without comparing them with a limit."""


def _takes_the_time(node: ast.AST) -> bool:
    """Whether the code computes seconds since an earlier reading of a clock."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and isinstance(node.left, ast.Call)
        and ast.unparse(node.left.func) in CLOCKS
    )


def test_no_test_takes_the_time() -> None:
    """A busy machine is late: wait for events, count, or pass a clock that the test moves."""
    assert _takes_the_time(ast.parse("time.monotonic() - began", mode="eval").body)
    tests = ROOT / "tests"
    measured = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(tests.rglob("*.py"))
        if not MEASURING.intersection(path.relative_to(tests).parts)
        if "time." in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.BinOp) and _takes_the_time(node)
    ]
    assert not measured


# --- Dependencies ---------------------------------------------------------------------------------


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
