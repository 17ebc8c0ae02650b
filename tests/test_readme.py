"""The README against the code: its commands, options, files and exit codes exist.

That its snippets run is held by `tests.test_snippets`.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from stopadvisor.cli.main import COMMANDS, EXIT_CODES, main, module_of
from stopadvisor.ground import errors
from tests.generate import pages
from tests.snippets import KNOWN

ROOT = Path(__file__).resolve().parent.parent
PAGES = pages()
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND_ROW = re.compile(r"^\| `stopadvisor ([a-z-]+)\b", re.MULTILINE)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)

# --- What pages promise ---------------------------------------------------------------------------

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
OTHERS = {
    "--index-url",  # pip
    *("--enable-prompt-tokens-details", "--max-logprobs", "--scheduling-policy"),  # vLLM
    *("--override-generation-config", "--reasoning-parser", "--load-format"),  # vLLM
    *("--speculative-config", "--data-parallel-size"),  # vLLM
    *("--max-num-batched-tokens", "--api-server-count", "--no-enable-prefix-caching"),  # vLLM
    *("--enable-force-include-usage", "--response-role"),  # vLLM
    *("--lora-modules", "--enable-lora", "--tensor-parallel-size"),  # vLLM
    *("--policies", "--steps", "--small", "--jobs", "--questions"),  # the scripts in samples/
    *("--fast", "--lint", "--unit", "--integration"),  # python -m tests
    *("--update-goldens", "--short", "--part"),  # pytest, python -m tests.long
    *("--device", "--shape", "--half", "--only", "--rounds", "--draws"),  # benchmarks
    *("--fits", "--data", "--splits", "--requests", "--minutes", "--slo", "--server"),  # benchmarks
    *("--wing", "--module", "--count", "--piece", "--record"),  # python -m tests.mutants
    "--stop-timeout",  # Docker
}
"""Options of other programs, which READMEs may name."""


def _fences(language: str) -> list[str]:
    return [body.strip() for found, body in FENCE.findall(README) if found == language]


@cache
def _help(*words: str) -> str:
    shown = io.StringIO()
    with redirect_stdout(shown):
        assert main(words) == 0
    return shown.getvalue()


def _without(text: str, *languages: str) -> str:
    """A page without the blocks of these languages."""
    return FENCE.sub(lambda found: "" if found[1] in languages else found[0], text)


@cache
def _existing_options() -> set[str]:
    shown = [_help("--help")]
    for name in COMMANDS:
        is_long = import_module(module_of(name)).command.is_long
        shown.append(_help(name, "--help-all" if is_long else "--help"))
    return {option for text in shown for option in OPTION.findall(text)}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_in_tables_exist(page: Path) -> None:
    named = set(COMMAND_ROW.findall(page.read_text(encoding="utf-8")))
    assert named <= COMMANDS.keys()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_options_exist(page: Path) -> None:
    text = _without(page.read_text(encoding="utf-8"), "text", "python", "")
    assert set(OPTION.findall(text)) - OTHERS <= _existing_options()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    text = _without(page.read_text(encoding="utf-8"), *KNOWN)
    linked = re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", text)  # of this page or of others
    assert not [name for name in linked if not (page.parent / name).exists()]


def test_readme_is_for_someone_with_five_minutes() -> None:
    assert README.count("\n") <= 200


def test_readme_opens_with_the_whole_job() -> None:
    assert _fences("sh")[0].startswith(
        "pip install uv && uv pip install -p \"$(which python3)\" -e '.[hf]' && stopadvisor assess "
    )


def test_licences_of_what_is_bundled_stand_in_one_place() -> None:
    page = ROOT / "samples" / "README.md"
    _, _, rest = page.read_text(encoding="utf-8").partition("\n## Licences of what is bundled\n")
    section = rest.partition("\n## ")[0]
    for folder in ("samples/", "policies/", "tests/testdata/"):
        assert f"`{folder}`" in section
    folders = ("samples", "policies", "tests", "stopadvisor")
    others = [path for name in folders for path in (ROOT / name).rglob("LICENSE*")]
    assert others
    for licence in others:
        assert f"]({licence.relative_to(page.parent)})" in section


def test_ci_runs_what_the_readme_says() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    (command,) = (found for found in _fences("sh") if found.endswith("python -m tests"))
    steps = command.split(" && ")
    assert steps[0] == "pip install uv"
    assert steps[1:] == ["uv pip install -p \"$(which python3)\" -e '.[hf,dev]'", "python -m tests"]
    # CI may print less; nothing else differs.
    assert set(steps) <= {line.replace(" --quiet", "") for line in lines}


def test_every_exit_code_is_explained() -> None:
    raised = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.StopAdvisorError)
    }
    assert raised | {0, 3, 130} <= EXIT_CODES.keys()
