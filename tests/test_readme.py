"""The README against the code: its commands, options, files and exit codes exist.

That its snippets run is held by `tests.test_snippets`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stopadvisor import errors
from stopadvisor.cli.main import COMMANDS, main
from stopadvisor.cli.page import EXIT_CODES
from stopadvisor.policy.frozen import build_policy, save_policy
from tests.generate import pages
from tests.policy_content import family_content
from tests.snippets import KNOWN

ROOT = Path(__file__).resolve().parent.parent
PAGES = pages()
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND_ROW = re.compile(r"^\| `stopadvisor ([a-z-]+)\b", re.MULTILINE)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)

# --- What pages promise ---------------------------------------------------------------------------

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
OTHERS = {
    "--index-url",  # pip
    "--enable-prompt-tokens-details",  # vLLM
    *("--policies", "--steps"),  # the scripts in samples/
    *("--fast", "--lint", "--unit", "--integration"),  # python -m tests
    *("--update-goldens", "--short", "--device", "--shape", "--half"),  # pytest, benchmarks
}
"""Options of other programs."""


def _fences(language: str) -> list[str]:
    return [body.strip() for found, body in FENCE.findall(README) if found == language]


@cache
def _help(*arguments: str) -> str:
    shown = io.StringIO()
    with redirect_stdout(shown):
        assert main([*arguments, "--help"]) == 0
    return shown.getvalue()


def _without(text: str, *languages: str) -> str:
    """A page without the blocks of these languages."""
    return FENCE.sub(lambda found: "" if found[1] in languages else found[0], text)


@cache
def _existing_options() -> set[str]:
    shown = [_help(), *(_help(command) for command in COMMANDS)]
    return {option for text in shown for option in OPTION.findall(text)}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_in_tables_exist(page: Path) -> None:
    named = set(COMMAND_ROW.findall(page.read_text(encoding="utf-8")))
    assert named <= COMMANDS.keys()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_options_exist(page: Path) -> None:
    text = _without(page.read_text(encoding="utf-8"), "console", "text", "python", "")
    assert set(OPTION.findall(text)) - OTHERS <= _existing_options()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    text = _without(page.read_text(encoding="utf-8"), *KNOWN)
    linked = re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", text)  # of this page or of others
    assert not [name for name in linked if not (page.parent / name).exists()]


def test_readme_opens_with_the_whole_job() -> None:
    assert _fences("sh")[0].startswith("pip install -e '.[hf]' && stopadvisor assess ")


def test_ci_runs_what_the_readme_says() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    (command,) = (found for found in _fences("sh") if found.endswith("python -m tests"))
    assert command == "pip install -e '.[hf,dev]' && python -m tests"
    install, test = command.split(" && ")
    # CI may ask pip for less talk; nothing else differs.
    assert install in [line.replace(" --quiet", "") for line in lines]
    assert test in lines


def test_every_exit_code_is_explained() -> None:
    raised = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.StopAdvisorError)
    }
    assert raised | {0, 3, 130} <= EXIT_CODES.keys()


# --- Its Python -----------------------------------------------------------------------------------


@pytest.mark.integration
def test_the_example_that_needs_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stopadvisor.engines.hf import load_engine
    from tests.engines.online_policies import TINY_REASONER, rule

    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    engine = load_engine(str(TINY_REASONER), device="cpu")
    policy = rule(engine, "run-stability", 2.0, budgets=[0, 16])
    save_policy(policy.content, tmp_path / "policy.joblib")
    (example,) = (code for code in PYTHON if "generate(" in code)
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    budget = capsys.readouterr().out.split()[1]
    assert budget in ("None", "0", "16")


class _Request:
    """A request of the README's serving loop that thinks to its end at 40 tokens."""

    def __init__(self, answers: Mapping[int, str]) -> None:
        self.answers = answers
        self.ended = False
        self.text = "Wait, 6 * 7."
        self.n_tokens = 0

    def think_until(self, budget: int) -> _Request:
        self.n_tokens, self.ended = min(budget, 40), budget >= 40
        return self

    def force_answer(self, thinking: _Request) -> Any:
        text = self.answers[thinking.n_tokens]
        return type("Probe", (), {"text": text, "mean_logprob": -0.1, "mean_entropy": 0.2})

    def finish(self) -> str:
        return "thought to the end"


@pytest.mark.parametrize(
    ("answers", "reply"),
    [
        pytest.param({0: " 41", 16: " 42", 32: " 42."}, " 42.", id="stopped"),
        pytest.param({0: " 41", 16: " 42", 32: " 43"}, "thought to the end", id="never stopped"),
    ],
)
def test_the_serving_loop_stops_where_the_policy_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[int, str], reply: str
) -> None:
    content = family_content("run-stability", 2.0) | {"budgets": [0, 16, 32, 64]}
    save_policy(build_policy(content), tmp_path / "policy.joblib")
    monkeypatch.chdir(tmp_path)
    (example,) = (code for code in PYTHON if "stepper.observe(" in code)
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["answer"](_Request(answers)) == reply
