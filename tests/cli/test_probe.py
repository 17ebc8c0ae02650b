"""`probe` and `preflight`, from the command line to the files, with a scripted engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli import probe as probe_module
from stopadvisor.cli.main import main
from stopadvisor.cli.parts.declare import pop_settings
from stopadvisor.cli.parts.probing import take_probing
from stopadvisor.collection.probe_settings import ProbeSettings
from stopadvisor.collection.probing import probe
from stopadvisor.engines.engine_settings import DEFAULT_MODEL, EngineSettings, open_engine
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.ground.progress import NullProgress
from stopadvisor.report.progress import LineProgress, progress_on, time_left
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.workload.questions import PARTS, assign_parts, read_workload
from tests.scripted import ScriptedEngine, write_sums

ROOT = Path(__file__).parent.parent.parent
SMALL = ["--budgets", "0,16,64", "--max-think", "256"]

Output = tuple[int, str, str]


class Bench:
    """A workload of 100 sums, a scripted engine behind the command line, and its folder."""

    def __init__(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = write_sums(tmp_path / "sums.jsonl", 100)
        self.engine = ScriptedEngine()
        self.loaded: list[EngineSettings] = []
        self.out = tmp_path / "out"
        self._capsys = capsys

    def load(self, options: EngineSettings) -> ScriptedEngine:
        self.loaded.append(options)
        return self.engine

    def call(self, *words: str, command: str = "probe") -> Output:
        code = main([command, str(self.file), *SMALL, *words])
        text = self._capsys.readouterr()
        return code, text.out, text.err

    def probe(self, *words: str) -> dict[str, Any]:
        code, out, err = self.call("--json", *words)
        assert code == 0, out + err
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Bench:
    made = Bench(tmp_path, capsys)
    monkeypatch.setattr("stopadvisor.engines.engine_settings.start_engine", made.load)
    monkeypatch.chdir(tmp_path)
    return made


# --- What probe says ------------------------------------------------------------------------------


def test_probe_prints_the_run_and_no_outcome(bench: Bench) -> None:
    code, out, err = bench.call()
    assert code == 0
    (run,) = Path("runs").iterdir()
    assert out.startswith("Probed 100 questions, 100 of them now.\n")
    assert f"  run        {run}\n" in out
    assert run.name.startswith("sums-scripted-")
    assert " fit, " in out
    assert "probed at  0, 16 and 64 thinking tokens" in out
    assert f"next: stopadvisor assess {run}" in err
    for word in ("correct", "accuracy", "solved", "right"):
        assert word not in (out + err).lower()


def test_probe_counts_what_it_probed(bench: Bench) -> None:
    found = bench.probe()
    assert found["split"].keys() == set(PARTS)
    assert sum(found["split"].values()) == found["questions"] == found["new"] == 100
    assert found["budgets"] == [0, 16, 64]
    assert found["truncated_share"] == 0.0
    assert RunDirectory.load(Path(found["run"])).table().n_questions == 100


def test_quiet_says_nothing_but_the_result(bench: Bench) -> None:
    code, out, err = bench.call("--quiet")
    assert (code, err) == (0, "")
    assert out
    assert bench.call("--json", "--quiet")[2] == ""


def test_truncated_traces_are_said(bench: Bench) -> None:
    _, out, err = bench.call("--max-think", "70", "--no-preflight")
    assert "at 70 thinking tokens" in out
    assert "of traces are cut at 70 thinking tokens" in err


def test_guessed_tasks_and_a_small_workload_are_said(bench: Bench) -> None:
    _, _, err = bench.call()
    assert "task 'numeric' guessed from gold for 100 questions" in err
    assert "--split" not in err  # 40/60/0, which certifies most, is the default
    hint = "100 questions: with fewer than 300, --split 40/60/0 certifies more"
    assert hint in bench.call("--split", "40/40/20")[2]


# --- Resuming -------------------------------------------------------------------------------------


def test_a_second_call_asks_nothing_and_runs_no_second_preflight(bench: Bench) -> None:
    first = bench.probe()
    bench.engine = ScriptedEngine()
    second = bench.probe()
    assert (second["run"], second["new"], second["questions"]) == (first["run"], 0, 100)
    assert bench.engine.calls == []


def test_limit_and_growth_stay_in_one_run(bench: Bench) -> None:
    runs = {bench.probe("--limit", "20")["run"], bench.probe("--limit", "50")["run"]}
    write_sums(bench.file, 130)
    grown = bench.probe()
    assert runs == {grown["run"]}
    assert (grown["questions"], grown["new"]) == (130, 80)


def test_auto_budgets_are_frozen_by_a_pilot_on_fit_questions(bench: Bench) -> None:
    first = bench.probe("--schedule", "grid", "--budgets", "auto", "--limit", "16")
    asked = [(keys, plan) for keys, plan in bench.engine.calls if not plan.greedy]
    pilot = [keys for keys, plan in asked if plan.budgets == (0, 32, plan.max_think)]
    workload = read_workload(bench.file)
    parts = assign_parts(
        [q.group_key for q in workload.questions], seed=0, fractions=(0.4, 0.4, 0.2)
    )
    fit = [q.key for q, part in zip(workload.questions, parts, strict=True) if part == 0]
    # Nothing is drawn twice: the preflight reads the pilot's first 16.
    assert [key for keys in pilot for key in keys] == fit[:32]
    assert first["budgets"][0] == 0
    assert len(first["budgets"]) == 10

    bench.engine = ScriptedEngine()
    second = bench.probe("--schedule", "grid", "--budgets", "auto")
    assert (second["run"], second["budgets"]) == (first["run"], first["budgets"])
    assert all(plan.budgets == tuple(first["budgets"]) for _, plan in bench.engine.calls)


def test_only_fit_questions_are_seen_before_probing(bench: Bench) -> None:
    bench.call("--budgets", "auto", "--limit", "1", "--concurrency", "7")
    workload = read_workload(bench.file)
    keys = [q.group_key for q in workload.questions]
    parts = assign_parts(keys, seed=0, fractions=(0.4, 0.4, 0.2))
    fit = {q.key for q, part in zip(workload.questions, parts, strict=True) if part == 0}
    before = [key for keys, _ in bench.engine.calls[:-1] for key in keys]
    assert set(before) <= fit
    assert bench.engine.calls[-1][0] == (workload.questions[0].key,)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--cap", "20"], id="cap"),
        pytest.param(["--seed", "1"], id="seed"),
        pytest.param(["--temperature", "0"], id="greedy"),
        pytest.param(["--split", "40/40/20"], id="split"),
        pytest.param(["--cue", "no-reasoning"], id="cue"),
        pytest.param(["--prompt-template", "{question} Think."], id="template"),
    ],
)
def test_other_settings_are_another_run(bench: Bench, words: list[str]) -> None:
    assert bench.probe()["run"] != bench.probe(*words)["run"]


def test_a_model_whose_content_changed_is_another_run(bench: Bench) -> None:
    first = bench.probe()["run"]
    bench.engine = ScriptedEngine(revision="r2")
    assert bench.probe()["run"] != first
    code, _, err = bench.call("--out", first)
    assert code == 2
    assert 'engine.model_revision: "r1" there, "r2" now; choose another --out' in err


def test_out_names_the_run_directory(bench: Bench) -> None:
    assert bench.probe("--out", str(bench.out))["run"] == str(bench.out)
    assert not Path("runs").exists()
    code, out, _ = bench.call("--json", "--out", str(bench.out), "--cap", "20")
    assert code == 2
    assert "plan.cap: 48 there, 20 now" in json.loads(out)["error"]["message"]


@pytest.mark.integration
def test_ctrl_c_in_a_real_process(tmp_path: Path) -> None:
    file, out = write_sums(tmp_path / "sums.jsonl", 60), tmp_path / "out"
    command = [sys.executable, "-m", "tests.slow_probe", str(file), str(out)]
    process = subprocess.Popen([*command, "0.1"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    probes = out / "probes.jsonl"
    while not (probes.exists() and probes.read_bytes()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "what was collected is kept" in err
    assert "Traceback" not in err
    assert RunDirectory.load(out).records()


def test_regrade_takes_the_workloads_gold(bench: Bench) -> None:
    run = Path(bench.probe()["run"])
    bench.file.write_text(bench.file.read_text().replace('"gold": "0"', '"gold": "999"'))
    _, _, err = bench.call()
    assert "gold of 1 probed questions has changed since" in err
    assert "graded again: 1 questions changed" in bench.call("--regrade")[2]
    assert RunDirectory.load(run).records()[0].gold == "999"


# --- Without gold ---------------------------------------------------------------------------------


def test_a_workload_without_gold_is_probed_and_said_to_be_one(bench: Bench) -> None:
    write_sums(bench.file, 100, gold=False)
    code, _, err = bench.call("--out", str(bench.out))
    assert code == 0, err
    assert "task 'math' taken for questions without task and gold; --task names another" in err
    assert "the questions have no gold: a part of the split that holds such counts a reply" in err
    run = RunDirectory.load(bench.out)
    records = run.records()
    fit = run.table().keys
    twice = [r.key for r in records if r.sample == 1]
    assert len(twice) < 50  # all fit questions
    in_fit = dict(zip(fit, run.parts(run.table()).tolist(), strict=True))
    assert {in_fit[key] for key in twice} == {PARTS.index("fit")}
    assert sorted(twice) == sorted(k for k in set(fit) if in_fit[k] == 0)
    assert json.loads((bench.out / "preflight.json").read_text())["accuracy"] is None


def test_without_gold_fifty_fit_questions_think_twice(bench: Bench) -> None:
    write_sums(bench.file, 150, gold=False)
    code, _, err = bench.call("--out", str(bench.out))
    assert code == 0, err
    assert "50 fit questions think twice" in err
    assert bench.probe("--temperature", "0", "--out", "greedy")["traces"] == 150
    assert bench.probe("--task", "exact", "--out", "exact")["traces"] == 200
    assert {r.task for r in RunDirectory.load(Path("exact")).records()} == {"exact"}


def test_one_line_without_gold_is_said(bench: Bench) -> None:
    bench.file.write_text(bench.file.read_text().replace(', "gold": "0"', "", 1))
    assert "1 of 100 questions have no gold" in bench.call()[2]


def test_an_engines_remarks_are_said_once(bench: Bench) -> None:
    bench.engine.remarks = ["the context is small"]
    _, _, err = bench.call()
    assert err.count("the context is small") == 1


# --- The cap on thinking --------------------------------------------------------------------------


def capped(bench: Bench, *words: str) -> Output:
    """Probe with the cap left to the context: the last `--max-think` counts."""
    return bench.call("--max-think", "auto", *words)


def test_an_auto_cap_is_settled_once_and_stands_in_the_manifest(bench: Bench) -> None:
    bench.engine.context = 1024
    code, out, err = capped(bench, "--out", str(bench.out))
    assert code == 0, err
    run = RunDirectory.load(bench.out)
    assert (run.plan.max_think, run.manifest["requested_max_think"]) == (448, "auto")
    assert "at 448 thinking tokens" in out
    assert "max-think: 448 tokens: the model's context leaves fewer than 512 after" in err
    assert {plan.max_think for _, plan in bench.engine.calls} == {448, 32}  # 32: preflight

    write_sums(bench.file, 130)  # grown, with prompts that are longer by a token at most
    assert capped(bench, "--out", str(bench.out))[0] == 0
    assert RunDirectory.load(bench.out).manifest["id"] == run.manifest["id"]
    assert RunDirectory.load(bench.out).plan == run.plan


def test_an_auto_cap_is_8192_where_the_context_allows_it(bench: Bench) -> None:
    bench.engine.context = 100_000
    found = json.loads(capped(bench, "--json")[1])
    assert found["max_think"] == 8192
    assert "max-think" not in capped(bench)[2]
    bench.engine = ScriptedEngine()  # knows no context
    assert json.loads(capped(bench, "--json")[1])["run"] == found["run"]


def test_a_cap_beyond_the_context_is_refused_in_one_line(bench: Bench) -> None:
    bench.engine.context = 1024
    code, _, err = bench.call("--max-think", "500")
    assert code == 2
    assert re.search(r"^stopadvisor: --max-think must be at most 490, got 500: the .*$", err, re.M)
    assert bench.engine.calls == []
    assert bench.call("--max-think", "500", command="preflight")[0] == 2
    code, _, err = capped(bench, "--budgets", "0,450")
    assert (code, "--budgets must end at --max-think 448 or before, got 450" in err) == (2, True)


def test_a_question_too_long_for_the_runs_cap_is_refused(bench: Bench) -> None:
    bench.engine.context = 1024
    assert capped(bench, "--out", str(bench.out))[0] == 0
    with bench.file.open("a") as file:
        file.write(json.dumps({"question": "please " * 90 + "1 + 1", "gold": "2"}) + "\n")
    code, _, err = capped(bench, "--out", str(bench.out))
    assert code == 2
    assert "--max-think must be at most 402, got 448" in err


def test_preflight_uses_the_auto_cap(bench: Bench) -> None:
    bench.engine.context = 1024
    code, out, _ = bench.call("--max-think", "auto", command="preflight")
    assert code == 0
    assert "traces are cut at 448 tokens" in out


def test_tokens_of_the_cue_stand_in_the_manifest(bench: Bench) -> None:
    manifest = RunDirectory.load(Path(bench.probe()["run"])).manifest
    assert [2, *manifest["cue_ids"]] == bench.engine.suffix_ids(manifest["plan"]["cue"])


# --- Refusals before a model is loaded ------------------------------------------------------------


def test_a_part_that_would_be_too_small_is_refused_early(bench: Bench) -> None:
    write_sums(bench.file, 30)
    code, _, err = bench.call()
    assert code == 2
    assert "too few questions: the fit part needs at least 20 different ones, got " in err
    assert "of 30 (--split 40/60/0): take about 70 or more; `stopadvisor plan`" in err
    assert bench.loaded == []
    # Of a part that another split makes larger, that is said.
    code, _, err = bench.call("--split", "80/10/10")
    assert code == 2
    assert "the calibration part needs at least 10 different ones" in err
    assert "take about 160 or more or use --split 40/60/0" in err
    # What assess could not use later is refused before hours of probing, too.
    write_sums(bench.file, 36)
    code, _, err = bench.call("--split", "40/60/0")
    assert code == 2
    assert "the fit part needs at least 20 different ones, got" in err
    assert bench.call("--split", "60/40/0")[0] == 0


def test_a_limit_may_be_small_unless_all_parts_are_wanted(bench: Bench) -> None:
    assert bench.probe("--limit", "3")["questions"] == 3
    settings = ProbeSettings(bench.file, budgets=(0, 16, 64), max_think=256, limit=20)
    bench.loaded.clear()
    with pytest.raises(WorkloadError, match="part needs at least"):
        probe(settings, partial(open_engine, EngineSettings()), NullProgress(), whole=True)
    assert bench.loaded == []


@pytest.mark.parametrize(
    ("out", "message"), [("sums.jsonl", "is not a folder"), ("sums.jsonl/run", "is not a folder")]
)
def test_a_place_that_cannot_be_written_is_refused_early(
    bench: Bench, out: str, message: str
) -> None:
    code, _, err = bench.call("--out", out)
    assert code == 2
    assert f"cannot write to {out}" in err
    assert message in err
    assert bench.loaded == []


def test_a_read_only_folder_is_refused_early(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("locked").mkdir()
    # Permission bits do not bind root, whom many containers run as.
    monkeypatch.setattr(os, "access", lambda place, mode: place != Path("locked"))
    code, _, err = bench.call("--out", "locked/run")
    assert code == 2
    assert "cannot write to locked/run: locked is not writable" in err
    assert bench.loaded == []


def test_a_workload_that_is_not_there_is_exit_2(bench: Bench) -> None:
    bench.file = bench.file.with_name("nothing.jsonl")
    code, out, _ = bench.call("--json")
    assert code == 2
    error = json.loads(out)["error"]
    assert (error["type"], error["exit_code"]) == ("WorkloadError", 2)
    assert "nothing.jsonl" in error["message"]


# --- Options --------------------------------------------------------------------------------------


def parsed(bench: Bench, *words: str) -> tuple[ProbeSettings, EngineSettings]:
    context = probe_module.command.make_context("probe", [str(bench.file), *words])
    params = {name: value for name, value in context.params.items() if name != "like"}
    with context:
        settings = take_probing(params, params.pop("workload"))
        return settings, pop_settings(EngineSettings, params)


def test_defaults_of_command_line_and_dataclass_are_the_same(bench: Bench) -> None:
    assert parsed(bench) == (ProbeSettings(bench.file), EngineSettings())


def test_the_model_comes_from_option_environment_or_default(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parsed(bench)[1].model == DEFAULT_MODEL == "Qwen/Qwen3-8B"
    monkeypatch.setenv("STOPADVISOR_MODEL", "org/other")
    assert parsed(bench)[1].model == "org/other"
    assert parsed(bench, "--model", "this")[1].model == "this"


def test_a_template_may_be_a_file(bench: Bench) -> None:
    Path("prompt.txt").write_text("Q: {question}")
    assert parsed(bench, "--prompt-template", "prompt.txt")[0].prompt_template == "Q: {question}"


def test_cues_have_names(bench: Bench) -> None:
    assert parsed(bench, "--cue", "the-answer-is")[0].cue == "\n\nThe answer is"
    assert parsed(bench, "--cue", " So:")[0].cue == " So:"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budgets", "0,5,5"], "expected `auto` or increasing numbers"),
        (["--budgets", "a"], "expected `auto` or increasing numbers"),
        (["--concurrency", "0"], "'--concurrency'"),
        (["--max-think", "0"], "expected `auto` or a whole number >= 1, got '0'"),
        (["--temperature", "0", "--samples", "3"], "--temperature 0 always draws the same trace"),
        (["--samples", "0"], "'--samples'"),
        (["--entropy", "top-k"], "expected `auto`, `full`, `none` or `top-k:K`"),
        (["--split", "50/50"], "50/50"),
        (
            ["--prompt-template", "no.txt"],
            "expected a text that contains {question}, or a readable file",
        ),
        (["--prompt-template", "a\nb"], "expected a text that contains {question}"),
        (["--chat-template-kwargs", "[1]"], "expected a JSON object, got '[1]'"),
        (["--chat-template-kwargs", "{"], "expected a JSON object"),
        (
            ["--chat-template-kwargs", '{"chat_template": "x"}'],
            "('chat_template' is reserved), got",
        ),
        (["--temperature", "-1"], "'--temperature'"),
        (["--budgets", "0,300"], "--budgets must end at --max-think 256 or before, got 300"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_with_an_option_is_said(bench: Bench, words: list[str], message: str) -> None:
    code, _, err = bench.call(*words)
    assert code == 2
    assert message in " ".join(err.split())
    assert bench.loaded == []


# --- Preflight ------------------------------------------------------------------------------------


def test_probe_stops_at_a_failed_preflight_and_keeps_its_report(bench: Bench) -> None:
    bench.engine = ScriptedEngine(faults=frozenset({"brittle-cue"}))
    code, _, err = bench.call("--out", str(bench.out))
    assert code == 5
    assert "preflight failed: cue:" in err
    report = json.loads((bench.out / "preflight.json").read_text())
    assert report["status"] == "fail"
    assert not (bench.out / "probes.jsonl").exists()

    assert bench.call("--out", str(bench.out), "--no-preflight")[0] == 0
    bench.engine = ScriptedEngine()
    assert bench.call("--out", str(bench.out))[0] == 0  # failed before, so tried again
    assert json.loads((bench.out / "preflight.json").read_text())["status"] == "pass"


def test_a_damaged_preflight_report_is_named(bench: Bench) -> None:
    bench.probe("--out", str(bench.out))
    (bench.out / "preflight.json").write_text("{}")
    code, _, err = bench.call("--out", str(bench.out))
    assert code == 2
    assert "preflight.json: not a preflight report" in err


def test_preflight_prints_its_verdict_and_every_check(bench: Bench) -> None:
    code, out, err = bench.call(command="preflight")
    assert code == 0
    summary, *checks = out.splitlines()
    assert summary.startswith("Ready to probe: budgets, thinking markers and answer cue work ")
    assert sum("  ok: " in line for line in checks) == 10
    assert max(map(len, checks)) <= 80
    assert "Traceback" not in err
    assert not Path("runs").exists()
    # Twice the sixteen questions that the summary names.
    assert summary.endswith("(tried on 16")
    for stage in ("preflight", "preflight, cut at 32 tokens"):
        assert f"{stage}: 0/16 done\n" in err
    command, *words = shlex.split(err.splitlines()[-1].removeprefix("next: stopadvisor "))
    assert (command, words[0]) == ("assess", str(bench.file))
    assert parsed(bench, *words[1:]) == parsed(bench, *SMALL)


def test_preflight_says_of_too_few_questions_how_many_it_takes(bench: Bench) -> None:
    write_sums(bench.file, 1)
    seen = set()
    for seed in "0123":  # the one question is a fit question, or is not
        code, out, err = bench.call("--seed", seed, command="preflight")
        said = " ".join((out + err).split())
        assert "too few questions: the fit part needs at least 20 different ones, got " in said
        assert "of 1 (--split 40/60/0): take about 70 or more; `stopadvisor plan` says" in said
        assert ("Ready to probe, with warnings" in out) == (code == 0)
        assert "next:" not in err
        seen.add(code)
    assert seen == {0, 2}
    write_sums(bench.file, 70)
    assert bench.call()[0] == 0


def test_preflight_ends_with_5_and_says_what_to_do(bench: Bench) -> None:
    bench.engine = ScriptedEngine(faults=frozenset({"ignores-budgets"}))
    code, out, _ = bench.call(command="preflight")
    assert code == 5
    assert out.startswith("Not ready to probe: results measured like this would mislead ")
    assert "to do the engine ignores thinking budgets: use another engine" in " ".join(out.split())
    code, out, _ = bench.call("--json", command="preflight")
    assert code == 5
    assert json.loads(out)["status"] == "fail"


# --- Progress -------------------------------------------------------------------------------------


def test_lines_come_every_ten_seconds_and_at_the_end() -> None:
    err, now = StringIO(), iter([0.0, 4.0, 12.0, 15.0, 30.0])
    progress = LineProgress(err, clock=lambda: next(now))
    progress.begin("probing", 100, 20)
    for _ in range(4):
        progress.advance(20, 600)
    assert err.getvalue().splitlines() == [
        "probing: 20/100 done",
        "probing: 60/100, 100 tokens/s, about 12 s left",
        "probing: 100/100, 80 tokens/s",
    ]


def test_the_first_traces_tell_no_time() -> None:
    err, now = StringIO(), iter([0.0, 11.0, 22.0])
    progress = LineProgress(err, clock=lambda: next(now))
    progress.begin("answering", 400)
    progress.advance(1, 20)
    progress.advance(19, 400)
    assert err.getvalue().splitlines()[1:] == [
        "answering: 1/400, 2 tokens/s",
        "answering: 20/400, 19 tokens/s, about 7 min left",
    ]


def test_a_terminal_gets_a_bar_and_no_colour_when_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    err = Terminal()
    with progress_on(err) as progress:
        progress.begin("probing", 4)
        progress.advance(4, 80)
        progress.remark("a remark with [brackets]")
    text = err.getvalue()
    assert "probing" in text
    assert "4/4" in text
    assert "a remark with [brackets]" in text
    assert not re.search(r"\x1b\[(\d+;)*(3[0-8]|4[0-8]|9\d)(;\d+)*m", text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h")]
)
def test_time_left_is_said_as_people_say_it(seconds: float, text: str) -> None:
    assert time_left(seconds) == text


def test_probe_is_callable_without_a_command_line(bench: Bench) -> None:
    err = StringIO()
    settings = ProbeSettings(bench.file, budgets=(0, 16, 64), max_think=256, out=bench.out)
    probed = probe(settings, partial(open_engine, EngineSettings()), LineProgress(err))
    assert probed.run == bench.out
    assert probed.new == 100
    assert "probing: 100/100" in err.getvalue()
