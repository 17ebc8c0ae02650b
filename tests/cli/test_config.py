"""`stopadvisor.toml`: which values reach a command, what is printed back, what is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.parts.command import CONFIG
from tests.material import Call


def shown(call: Call, *words: str) -> dict[str, Any]:
    code, out, err = call(*words, "--show-config")
    assert (code, err) == (0, "")
    content: dict[str, Any] = tomllib.loads(out)[words[0]]
    return content


def test_the_command_line_goes_before_a_table_and_a_table_before_the_top(call: Call) -> None:
    CONFIG.write_text(
        'model = "top"\nseed = 3\n[assess]\nmodel = "table"\nalpha = 0.1\n'
        'families = ["deer", "entropy"]\nloss = ["lost", "drop"]\nno-report = true\n'
    )
    found = shown(call, "assess", "--alpha", "lost=0.05,drop=0.02")
    assert found["alpha"] == "lost=0.05,drop=0.02"
    assert (found["model"], found["seed"], found["no-report"]) == ("table", 3, True)
    assert (found["families"], found["loss"]) == ("deer,entropy", ["lost", "drop"])
    assert shown(call, "probe")["model"] == "top"
    assert "model" not in shown(call, "calibrate")  # it has no such option


def test_a_variable_goes_before_the_file(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("other.toml").write_text('model = "top"\n')
    monkeypatch.setenv("STOPADVISOR_MODEL", "variable")
    assert shown(call, "assess", "--config", "other.toml")["model"] == "variable"


@pytest.mark.parametrize("command", ["assess", "calibrate", "run", "serve", "plan", "monitor"])
def test_what_is_printed_says_the_same_when_it_is_read(call: Call, command: str) -> None:
    words = ["--alpha", "lost=0.1,category=a:lost=0.08"] * (command == "assess")
    code, out, _ = call(command, *words, "--show-config")
    assert code == 0
    CONFIG.write_text(out)
    assert call(command, "--show-config") == (0, out, "")


def test_a_value_of_the_file_reaches_the_command(call: Call) -> None:
    CONFIG.write_text("[plan]\nexpected-risk = 0.02\n")
    by_file = call("plan", "--alpha", "0.1", "--json")
    CONFIG.unlink()
    assert call("plan", "--alpha", "0.1", "--expected-risk", "0.02", "--json") == by_file
    assert by_file[0] == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('modl = "x"', "stopadvisor.toml: field 'modl': no such option or command; did you mean"),
        ("[assesses]\nalpha = 1", "field 'assesses': no such option or command; did you mean"),
        ("[assess]\nlimt = 1", "field 'assess.limt': no such option or command; did you mean"),
        ("[assess]\nno-report = 1", "field 'no-report': expected true or false, got 1"),
        ("[assess]\nalpha = 'x'", "Invalid value for '--alpha': expected a number such as 0.05"),
        ("[assess]\nlimit = 0", "Invalid value for '--limit': 0 is not in the range x>=1"),
        ("[assess", "stopadvisor.toml: expected TOML: Expected ']'"),
        (
            "seed = " + "9" * 5000,
            "stopadvisor.toml: expected TOML: Exceeds the limit (4300 digits)",
        ),
        ("seed = " + "[" * 3000, "stopadvisor.toml: expected TOML: maximum recursion depth"),
    ],
    ids=lambda value: value[:40],
)
def test_what_the_file_cannot_say_is_refused(call: Call, content: str, message: str) -> None:
    CONFIG.write_text(content)
    assert message in call.refused("assess", "w.jsonl")
