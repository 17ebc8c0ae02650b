"""A wrong value of any option ends a command in one line, before any work."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click
import pytest

from stopadvisor.cli.main import COMMANDS, main, module_of

FREE = (click.Path, click.types.StringParamType, click.types.UnprocessedParamType)
"""Types of texts that mean something only to files, servers and models."""
ANYTHING = {"cue"}
"""Options that take any text."""
NONSENSE = "~ ? ~"
CASES = [
    (name, option)
    for name in sorted(COMMANDS)
    for option in import_module(module_of(name)).command.params
    if isinstance(option, click.Option)
    and not option.is_flag
    and not option.hidden
    and not isinstance(option.type, FREE)
    and option.name not in ANYTHING
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a workload, and a command line that opens no model."""

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("work began")

    monkeypatch.setattr("stopadvisor.engines.engine_settings.start_engine", refuse)
    monkeypatch.chdir(tmp_path)
    lines = (f'{{"question": "What is {k} + 1?", "gold": "{k + 1}"}}' for k in range(200))
    Path("my.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def refused(words: list[str], option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    text = capsys.readouterr()
    assert text.out == ""
    assert option.strip("-").partition("-")[0] in text.err, text.err
    assert "Traceback" not in text.err
    assert [path.name for path in Path.cwd().iterdir()] == ["my.jsonl"], "nothing was written"


@pytest.mark.parametrize(
    ("name", "option"), CASES, ids=[f"{name} {option.opts[-1]}" for name, option in CASES]
)
def test_nonsense_is_refused(
    name: str, option: click.Option, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["probes" if name == "import" else "list" if name == "study" else "my.jsonl"]
    words += ["my.jsonl"] * (name in ("import", "verify", "monitor"))
    values = [NONSENSE] * option.nargs
    refused([name, *words, option.opts[-1], *values], option.opts[-1], capsys)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--alpha", value) for value in ("5", "0", "nan", "-0.1", "drop=2")),
        *(("--delta", value) for value in ("0", "1", "inf")),
        *(("--serving", value) for value in ("nonsense", "overlap")),
        *(("--price", value) for value in ("nonsense", "-1/0/1", "1/1/0", "1/1", "no.json")),
        *(("--prompt-template", value) for value in ("no.txt", "Answer this:", "my.jsonl")),
        *(("--answer-cap", value) for value in ("0", "-1", "many")),
        *(("--cap", value) for value in ("0", "many")),
        ("--cue", "all"),
        *(("--max-think", value) for value in ("0", "-5", "8k")),
        *(("--split", value) for value in ("1/2", "50/50/50", "0/100/0")),
        *(("--budgets", value) for value in ("5,x", "64,32", "")),
        *(("--temperature", value) for value in ("-1", "warm")),
        *(("--model-config", value) for value in ("9b", "no.json", "my.jsonl")),
        *(("--grader", value) for value in ("x", "a b:c", ":f")),
        *(("--families", value) for value in ("x", "confidence,x")),
        *(("--chat-template-kwargs", value) for value in ("[]", "{")),
    ],
)
def test_assess_refuses_before_it_probes(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(["assess", "my.jsonl", f"{option}={value}"], option, capsys)
