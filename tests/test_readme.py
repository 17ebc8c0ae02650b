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
from stopadvisor.cli.main import main
from stopadvisor.policy.frozen import build_policy, save_policy
from tests.policy_content import family_content

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND_ROW = re.compile(r"^\| `stopadvisor ([a-z-]+)\b", re.MULTILINE)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)

# --- What it promises -----------------------------------------------------------------------------


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
