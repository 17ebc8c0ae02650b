"""The README against the code: commands, options, files and exit codes exist, JSON is as it says.

That its snippets run is held by `tests.test_snippets`.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stopadvisor import errors
from stopadvisor.cli.main import COMMANDS, main
from stopadvisor.engines.openai.regime import Repeated, classify, write_regime
from stopadvisor.policy.frozen import build_policy, save_policy
from stopadvisor.runs.directory import RunDirectory
from tests.material import PLAN, keep_studies, make_run, write_archive
from tests.policy_content import family_content
from tests.scripted import ScriptedEngine

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND_ROW = re.compile(r"^\| `stopadvisor ([a-z-]+)\b", re.MULTILINE)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SHARED = "Shared parts"
NAME = re.compile(r"`([\w-]+)`")

Fields = dict[str, set[str]]


def documented() -> Fields:
    """Names in the first column of the JSON table, by command; values of fields stand elsewhere."""
    section = README.partition("\n## JSON\n")[2].partition("\n## ")[0]
    found: Fields = {}
    for row in re.findall(r"^\| (.*?) \|", section, re.MULTILINE):
        if title := re.match(r"\*\*(?:`([a-z-]+) --json`)?(.*?)\*\*", row):
            names = found.setdefault(title[1] or title[2], set())
        elif found:
            names |= set(NAME.findall(row))
    return found


DOCUMENTED = documented()


def parts() -> Fields:
    """The shared parts, each with the names in it."""
    section = README.partition(f"**{SHARED}**")[2].partition("| **")[0]
    found: Fields = {}
    for row in re.findall(r"^\| (.*?) \|", section, re.MULTILINE):
        names = NAME.findall(row)
        if not row.startswith("…"):
            current = found.setdefault(names.pop(0), set())
        current |= set(names)
    found["profile"] |= {"count", "share", "ci95"}  # they stand in the second column
    found["expected"] |= found["weights"]
    return found


def keys(value: Any) -> Iterator[str]:
    """Every name in a document, at whatever depth."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from keys(item)


def check(command: str, *documents: Any) -> None:
    names = set(DOCUMENTED[command])
    for part, inside in parts().items():
        if part in names:
            names |= inside
    printed = {key for document in documents for key in keys(document)}
    assert printed == names


def answer(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    """What a command prints as JSON."""
    capsys.readouterr()
    code = main([*map(str, words), "--json"])
    out = capsys.readouterr().out
    assert code in (0, 3), out
    found: dict[str, Any] = json.loads(out)
    return found


def test_every_command_has_its_json_documented() -> None:
    assert DOCUMENTED.keys() == {SHARED, *COMMANDS}


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


# --- The fields of each command -------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an assessable run, one of questions that came later, and an archive."""
    root = tmp_path_factory.mktemp("readme")
    make_run(root / "old", 300)
    make_run(root / "visible", 300, plan=replace(PLAN, on_stop="answer"))
    make_run(root / "new", 600)
    new = RunDirectory.load(root / "new")
    new.rewrite([replace(record, category="sums") for record in new.records()[300:]])
    write_archive(root / "raw.npz")
    return root


ALPHA = ("--alpha", "0.15")


def test_fields_of_assess(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ("--out", runs / "results")
    shutil.copytree(runs / "old", runs / "copy")  # what was assessed is what calibrate takes over
    shutil.copytree(runs / "old", runs / "served")
    asked_twice = [Repeated(n, n // 32 * 32, 0.01 + n / 1000, 0.01) for n in (101, 334, 727)]
    write_regime(runs / "served", classify(asked_twice))
    check(
        "assess",
        answer(capsys, "assess", runs / "served"),
        answer(capsys, "assess", runs / "copy", "--serving", "overlap", "--price", "1/0.1/4"),
        answer(capsys, "assess", runs / "raw.npz", "--protocol", "paper", *folder),
        answer(capsys, "assess", runs / "visible", "--families", "learned"),
    )


def test_fields_of_calibrate_inspect_and_verify(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = ("--families", "learned")
    visible = answer(capsys, "calibrate", runs / "visible", *ALPHA, *rule)
    certified = answer(capsys, "calibrate", runs / "old", *ALPHA, *rule)
    policy = runs / "old" / "policy.joblib"
    inspected = answer(capsys, "inspect", policy)
    verified = [
        answer(capsys, "verify", policy, runs / "new", "--test-only"),
        answer(capsys, "verify", visible["policy"], runs / "visible", "--test-only"),
    ]
    transferred = answer(
        capsys, "calibrate", runs / "new", "--from", policy, "--compare", *ALPHA, *rule
    )
    refused = answer(capsys, "calibrate", runs / "old", "--alpha", "0.002", *rule)
    assert transferred["certificate"]
    assert refused["refusal"]
    check("calibrate", certified, transferred, refused, visible)
    moved = answer(capsys, "inspect", transferred["policy"])
    shown = answer(capsys, "inspect", visible["policy"])
    packages = {"torch": "", "transformers": ""}  # they made no probe of the scripted engine's
    check("inspect", inspected, moved, shown, {"versions": packages})
    check("verify", *verified)


def test_fields_of_plan(capsys: pytest.CaptureFixture[str]) -> None:
    check("plan", answer(capsys, "plan"))


def test_fields_of_simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check("simulate", answer(capsys, "simulate", "-n", "40", "-o", tmp_path / "run"))


def test_fields_of_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("datasets")
    row = {"question": "1 + 1?", "answer": "#### 2"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    words = ("--from", tmp_path / "rows.jsonl", "-o", tmp_path / "gsm8k.jsonl")
    check("workload", answer(capsys, "workload", "gsm8k", *words))


def test_fields_of_completion(capsys: pytest.CaptureFixture[str]) -> None:
    check("completion", answer(capsys, "completion", "zsh"))


def test_fields_of_study(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    import_module(COMMANDS["study"].module)  # its choice of names is made once, of all of them
    keep_studies(monkeypatch, "ablation", "transfer")
    words = ("raw.npz", "--resamples", "100")
    everything = answer(capsys, "study", "all", *words, "--jobs", "1")
    assert [row["study"] for row in everything["skipped"]] == ["transfer"]
    listed = answer(capsys, "study", "list")
    check("study", answer(capsys, "study", "ablation", *words), everything, listed)


def test_fields_of_probe_and_preflight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stopadvisor.cli.model.load_engine", lambda options: ScriptedEngine())
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", 120)
    check("probe", answer(capsys, "probe", "run-sums.jsonl", "--out", "again", "--max-think", "99"))
    report = answer(capsys, "preflight", "run-sums.jsonl", "--compare-cues", "--max-think", "256")
    assert report["cues"]
    check("preflight", report)


@pytest.mark.integration
def test_fields_of_run_and_the_examples_that_need_a_model(
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

    lines = (ROOT / "samples" / "arithmetic.jsonl").read_text(encoding="utf-8").splitlines()[:48]
    (tmp_path / "few.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    answer(
        capsys, "probe", "few.jsonl", "--model", TINY_REASONER, "--budgets", "0,16", "--out", "r",
        "--split", "50/50/0", "--seed", "4", "--no-preflight",
    )  # fmt: skip
    words = ("policy.joblib", "few.jsonl", "--model", TINY_REASONER, "--compare-full")
    check("run", answer(capsys, "run", *words, "--against", "r"))


# --- Its Python -----------------------------------------------------------------------------------


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
