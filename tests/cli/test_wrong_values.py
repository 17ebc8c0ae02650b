"""Wrong values, and words that make no sense, end a command in one line, before any work."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click
import pytest

from stopadvisor.cli.main import COMMANDS, main, module_of
from tests.material import Call

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
        *(("--price", value) for value in ("-1/0/1", "1/1/0", "1/1", "no.json")),
        *(("--prompt-template", value) for value in ("no.txt", "Answer this:", "my.jsonl")),
        ("--answer-cap", "0"),
        ("--cap", "0"),
        ("--cue", "all"),
        ("--max-think", "-5"),
        *(("--split", value) for value in ("1/2", "50/50/50", "0/100/0")),
        *(("--budgets", value) for value in ("64,32", "")),
        ("--temperature", "-1"),
        *(("--model-config", value) for value in ("no.json", "my.jsonl")),
        *(("--grader", value) for value in ("a b:c", ":f")),
        ("--families", "confidence,x"),
        *(("--chat-template-kwargs", value) for value in ("[]", "{")),
    ],
)
def test_assess_refuses_before_it_probes(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(["assess", "my.jsonl", f"{option}={value}"], option, capsys)


AT_SERVER = "probe my.jsonl --engine openai --base-url http://h/v1"
PROBE = "probe my.jsonl --max-think 256 --budgets"
REFUSALS = {
    "asses": "No such command 'asses'. Did you mean 'assess'?",
    "profile_serving": "Did you mean 'profile-serving'?",
    "samples/sums.jsonl": "No such command 'samples/sums.jsonl'.",
    "--asses": "No such option",
    "diff": "'diff' is now: stopadvisor inspect A B",
    "workload": "'workload' is now: stopadvisor import dataset NAME -o FILE",
    "completion": 'is now: eval "$(_STOPADVISOR_COMPLETE=bash_source stopadvisor)"',
    "probe my.jsonl --greedy": "--greedy is now --temperature 0",
    "calibrate --despite-advice": "--despite-advice is now --despite advice",
    "plan --config none.toml": "cannot read none.toml: No such file or directory",
    "profile-serving --model m": "Missing option '--base-url'",
    "profile-serving --base-url http://h --concurrency 0,8": "expected whole numbers >= 1",
    "label run --alpha 0.05": "answers are typed on a terminal, and stdin is not one: --export",
    "study nonsense raw.npz": "'nonsense' is not one of",
    "study map raw.npz --set paper": "expected an option such as paper=1",
    "study map raw.npz --set resamples=9": "expected resamples=N with N >= 100",
    "assess . --temperature 0 --budgets 0,1": "already probed: leave out --budgets, --temp",
    "assess . --split 40/60/0": "already probed: leave out --split",
    "assess raw.npz --model x": "already probed: leave out --model",
    "assess raw.npz --regrade": "already probed: leave out --regrade",
    "assess raw.npz --open-calibration": "--open-calibration belongs to --protocol paper",
    "assess my.jsonl --protocol paper --loss drop": "counts only lost answers: leave --loss out",
    "assess my.jsonl --serving overlap": "overlap is now called vllm: say --serving vllm",
    "assess my.jsonl --gpu h100 --price 1/0.1/4": "compute prices: leave out --price",
    "assess my.jsonl --in-flight 4 --protocol paper": "and --protocol paper",
    "calibrate run --alpha 0.1 --loss lost --loss drop": "--alpha lost=0.05,drop=0.05",
    "calibrate run --alpha lost=0.1 --loss drop": "name the same losses in both",
    "calibrate run --alpha lost=0.1,lost=0.2": "expected one limit for lost",
    "calibrate run --alpha lost=much": "expected a number such as 0.05",
    "calibrate run --alpha regret=0.1": "expected LOSS=LIMIT with one of lost, differs, drop",
    "calibrate run --alpha lost=0.1,category=algebra": "category=NAME:LOSS=LIMIT",
    "calibrate run --from p.joblib --families entropy": "--families cannot be combined with --from",
    "calibrate run --from p.joblib --on-give-up reply": "--on-give-up cannot be combined with --f",
    "probe my.jsonl --engine openai": "--engine openai needs --base-url",
    "probe my.jsonl --base-url http://h/v1": "--base-url belongs to --engine openai, got --engine",
    f"{AT_SERVER} --dtype float32": "--dtype belongs to --engine hf, got --engine openai",
    f"{PROBE} 0,5,5": "expected `auto` or increasing numbers",
    f"{PROBE} 0,300": "--budgets must end at --max-think 256 or before, got 300",
    f"{PROBE} 0 --every 9": "--every needs --schedule stride or marker, got grid",
    f"{PROBE} 0,9 --schedule stride": "--schedule stride takes --every",
    f"{PROBE} 0,9 --schedule marker --every 3": "--budgets and --every cannot be combined",
    "probe my.jsonl --schedule stride --markers Wait": "--markers needs --schedule marker",
    "probe my.jsonl --schedule marker --markers Wait,,": "expected `auto` or words such as",
    "probe my.jsonl --max-think 0": "expected `auto` or a whole number >= 1, got '0'",
    "probe my.jsonl --temperature 0 --samples 3": "--temperature 0 always draws the same trace",
    "probe my.jsonl --entropy top-k": "expected `auto`, `full`, `none` or `top-k:K`",
    "probe my.jsonl --prompt-template no.txt": "contains {question}, or a readable file",
    "probe my.jsonl --prompt-template 'a\nb'": "expected a text that contains {question}",
    "probe my.jsonl --chat-template-kwargs [1]": "expected a JSON object, got '[1]'",
    """probe my.jsonl --chat-template-kwargs '{"chat_template": "x"}'""": "is reserved), got",
}


@pytest.mark.parametrize(("words", "said"), REFUSALS.items())
def test_what_makes_no_sense_is_refused_in_one_line(words: str, said: str, call: Call) -> None:
    assert said in call.refused(*shlex.split(words))
    assert [path.name for path in Path.cwd().iterdir()] == ["my.jsonl"]
