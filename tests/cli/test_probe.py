"""`probe` and `preflight`, from the command line to the files, with a scripted engine."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from stopadvisor.cli import probe as probe_module
from stopadvisor.cli.parts.declare import pop_settings
from stopadvisor.cli.parts.probing import take_probing
from stopadvisor.collection.probe_settings import ProbeSettings
from stopadvisor.collection.probing import probe
from stopadvisor.engines.engine_settings import DEFAULT_MODEL, EngineSettings
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.ground.progress import Progress
from stopadvisor.runs.sources import model_as_given
from stopadvisor.workload.questions import PARTS, assign_parts, read_workload
from tests.cli.conftest import Bench
from tests.schemas import check_valid
from tests.scripted import ScriptedEngine, write_sums

SMALL = ("--budgets", "0,16,64", "--max-think", "256")


@pytest.fixture(name="bench")
def probing(bench: Bench) -> Bench:
    bench.words = SMALL
    return bench


# --- What probe says ------------------------------------------------------------------------------


def test_probe_prints_the_run_and_no_outcome(bench: Bench) -> None:
    code, out, err = bench()
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


def test_quiet_says_nothing_but_the_result(bench: Bench) -> None:
    code, out, err = bench("--quiet")
    assert (code, err) == (0, "")
    assert out
    assert bench("--json", "--quiet")[2] == ""


def test_guessed_tasks_and_a_small_workload_are_said(bench: Bench) -> None:
    bench.engine.remarks.append("it is slow today")
    _, _, err = bench()
    assert err.count("it is slow today\n") == 1
    assert "task 'numeric' guessed from gold for 100 questions" in err
    assert "--split" not in err  # 40/60/0, which certifies most, is the default
    hint = "100 questions: with fewer than 300, --split 40/60/0 certifies more"
    assert hint in bench("--split", "40/40/20")[2]


# --- Resuming -------------------------------------------------------------------------------------


def test_a_second_call_asks_nothing_and_runs_no_second_preflight(bench: Bench) -> None:
    first = bench.json()
    check_valid("probe", first)
    bench.engine = ScriptedEngine()
    second = bench.json()
    assert (second["run"], second["new"], second["questions"]) == (first["run"], 0, 100)
    assert bench.engine.calls == []


def test_a_run_keeps_the_split_it_began_with(bench: Bench) -> None:
    begun = bench.json("--limit", "50")
    write_sums(bench.file, 2010)  # of so many a fifth would be kept for test
    grown = bench.json("--limit", "60")
    assert (grown["run"], grown["new"]) == (begun["run"], 10)
    write_sums(bench.file, 100, gold=False)
    words = ("--no-preflight", "--out", bench.out)
    bench("--split", "25/75/0", "--limit", "60", *words)
    assert "33 fit questions are asked twice" in bench(*words)[2]


def test_auto_budgets_are_frozen_by_a_pilot_on_fit_questions(bench: Bench) -> None:
    first = bench.json("--schedule", "grid", "--budgets", "auto", "--limit", "16")
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
    second = bench.json("--schedule", "grid", "--budgets", "auto")
    assert (second["run"], second["budgets"]) == (first["run"], first["budgets"])
    assert all(plan.budgets == tuple(first["budgets"]) for _, plan in bench.engine.calls)


def test_only_fit_questions_are_seen_before_probing(bench: Bench) -> None:
    bench("--budgets", "auto", "--limit", "1", "--concurrency", "7")
    questions = read_workload(bench.file).questions
    parts = assign_parts([q.group_key for q in questions], seed=0, fractions=(0.4, 0.6, 0.0))
    fit = {q.key for q, part in zip(questions, parts, strict=True) if part == 0}
    *before, (last, _) = bench.engine.calls
    assert {key for keys, _ in before for key in keys} <= fit
    assert last == (questions[0].key,)


def test_out_names_the_run_directory(bench: Bench) -> None:
    assert bench.json("--out", bench.out)["run"] == str(bench.out)
    assert not Path("runs").exists()
    code, out, _ = bench("--json", "--out", bench.out, "--cap", "20")
    assert code == 2
    assert "plan.cap: 48 there, 20 now" in json.loads(out)["error"]["message"]


def test_a_local_models_folder_is_kept_for_what_is_run_later(bench: Bench) -> None:
    Path("llm/our model").mkdir(parents=True)
    file = bench.out / "stopadvisor.toml"
    bench.json("--out", bench.out, "--model", "of/a-hub")
    assert not file.exists()
    bench.json("--out", bench.out, "--model", "llm/our model")
    assert model_as_given(bench.out, "our model") == "llm/our model"
    file.write_text("edited = true")
    bench.json("--out", bench.out, "--model", "llm/our model")
    assert file.read_text() == "edited = true"


def test_ctrl_c_keeps_what_was_finished(bench: Bench) -> None:
    bench.engine = ScriptedEngine(stop_after=2)
    words = ("--out", bench.out, "--concurrency", "4", "--no-preflight")
    code, _, err = bench(*words)
    assert code == 130
    assert f"interrupted: what was collected is kept in {bench.out}; the same command" in err
    assert len(bench.run.records()) == 8
    assert bench.json(*words, code=130)["error"]["type"] == "Interrupted"


def test_regrading_takes_new_gold_and_tells_no_outcome(bench: Bench) -> None:
    bench("--out", bench.out)
    bench.file.write_text(bench.file.read_text().replace('"gold": "0"', '"gold": "999"'))
    code, _, err = bench("--out", bench.out, "--regrade")
    assert code == 0, err
    assert f"graded {bench.out} again\n" in err  # nor how many changed
    assert bench.run.records()[0].gold == "999"


# --- Without gold ---------------------------------------------------------------------------------


def test_a_workload_without_gold_is_probed_and_said_to_be_one(bench: Bench) -> None:
    write_sums(bench.file, 100, gold=False)
    code, _, err = bench("--out", bench.out)
    assert code == 0, err
    assert "task 'math' assumed for questions with neither task nor gold; --task names" in err
    assert "the questions have no gold: parts of the split with such questions count a reply" in err
    run = bench.run
    records = run.records()
    fit = run.table().keys
    twice = [r.key for r in records if r.sample == 1]
    assert len(twice) < 50  # all fit questions
    in_fit = dict(zip(fit, run.parts(run.table().groups).tolist(), strict=True))
    assert {in_fit[key] for key in twice} == {PARTS.index("fit")}
    assert sorted(twice) == sorted(k for k in set(fit) if in_fit[k] == 0)
    assert json.loads((bench.out / "preflight.json").read_text())["accuracy"] is None


def test_without_gold_fifty_fit_questions_think_twice(bench: Bench) -> None:
    write_sums(bench.file, 150, gold=False)
    assert "50 fit questions are asked twice" in bench("--out", bench.out)[2]
    assert sum(record.sample for record in bench.run.records()) == 50


# --- The cap on thinking --------------------------------------------------------------------------


def test_an_auto_cap_is_settled_once_and_stands_in_the_manifest(bench: Bench) -> None:
    bench.engine.context = 1024
    auto = ("--max-think", "auto", "--out", bench.out)
    code, out, err = bench(*auto)
    assert code == 0, err
    run = bench.run
    assert (run.plan.max_think, run.manifest["requested_max_think"]) == (448, "auto")
    assert "at 448 thinking tokens" in out
    assert "max-think: 448 tokens: the model's context has room for fewer than 512 after" in err
    assert {plan.max_think for _, plan in bench.engine.calls} == {448}

    write_sums(bench.file, 130)  # grown, with prompts that are longer by a token at most
    assert bench(*auto)[0] == 0
    assert bench.run.manifest["id"] == run.manifest["id"]
    assert bench.run.plan == run.plan
    with bench.file.open("a") as file:
        file.write(json.dumps({"question": "And " * 90 + "1 + 2?", "gold": "3"}) + "\n")
    asked = len(bench.engine.calls)
    assert "--max-think must be at most 402, got 448" in bench.refused(*auto)
    assert len(bench.engine.calls) == asked


# --- Refusals before a model is loaded ------------------------------------------------------------


def test_a_part_that_would_be_too_small_is_refused_early(bench: Bench) -> None:
    write_sums(bench.file, 30)
    err = bench.refused()
    assert "too few questions: the fit part needs at least 20 different ones, got " in err
    assert "of 30 (--split 40/60/0): take about 70 or more; `stopadvisor plan`" in err
    assert bench.loaded == []
    # A preflight asks the few there are.
    tried = bench.json(command="preflight")
    check_valid("preflight", tried)
    assert (tried["status"], tried["checks"][0]["name"]) == ("warn", "questions")
    assert "next:" not in bench(command="preflight")[2]
    bench.loaded.clear()
    # Of a part that another split makes larger, that is said.
    err = bench.refused("--split", "80/10/10")
    assert "the calibration part needs at least 10 different ones" in err
    assert "take about 160 or more or use --split 40/60/0" in err
    # What assess could not use later is refused before hours of probing, too.
    write_sums(bench.file, 36)
    assert "the fit part needs at least 20 different ones, got" in bench.refused(
        "--split", "40/60/0"
    )
    assert bench("--split", "60/40/0")[0] == 0


def test_a_limit_may_be_small_unless_all_parts_are_wanted(bench: Bench) -> None:
    assert bench.json("--limit", "3")["questions"] == 3
    settings = ProbeSettings(bench.file, budgets=(0, 16, 64), max_think=256, limit=20)
    bench.loaded.clear()
    with pytest.raises(WorkloadError, match="part needs at least"):
        probe(settings, EngineSettings(), Progress(), whole=True)
    assert bench.loaded == []


@pytest.mark.parametrize("out", ["sums.jsonl", "sums.jsonl/run"])
def test_a_place_that_cannot_be_written_is_refused_early(bench: Bench, out: str) -> None:
    said = bench.refused("--out", out)
    assert f"cannot write to {out}" in said
    assert "is not a folder" in said
    assert bench.loaded == []


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


def test_cues_have_names(bench: Bench) -> None:
    assert parsed(bench, "--cue", "the-answer-is")[0].cue == "\n\nThe answer is"
    assert parsed(bench, "--cue", " So:")[0].cue == " So:"


# --- Preflight ------------------------------------------------------------------------------------


def test_probe_stops_at_a_failed_preflight_and_keeps_its_report(bench: Bench) -> None:
    bench.engine = ScriptedEngine(faults=frozenset({"brittle-cue"}))
    code, _, err = bench("--out", bench.out)
    assert code == 5
    assert "preflight failed: cue:" in err
    report = json.loads((bench.out / "preflight.json").read_text())
    check_valid("preflight", report)
    assert report["status"] == "fail"
    assert not (bench.out / "probes.jsonl").exists()

    assert bench("--out", bench.out, "--no-preflight")[0] == 0
    bench.engine = ScriptedEngine()
    assert bench("--out", bench.out)[0] == 0  # failed before, so tried again
    assert json.loads((bench.out / "preflight.json").read_text())["status"] == "pass"


def test_preflight_prints_its_verdict_and_every_check(bench: Bench) -> None:
    code, out, err = bench(command="preflight")
    assert code == 0
    summary, *checks = out.splitlines()
    assert summary.startswith("Ready to probe: thinking markers and answer cue work ")
    assert sum("  ok: " in line for line in checks) == 7
    assert max(map(len, checks)) <= 80
    assert "Traceback" not in err
    assert not Path("runs").exists()
    assert summary.endswith("(tried on 16 questions).")
    assert "preflight: 0/16 done\n" in err
    command, *words = shlex.split(err.splitlines()[-1].removeprefix("next: stopadvisor "))
    assert (command, words[0]) == ("assess", str(bench.file))
    assert parsed(bench, *words[1:]) == parsed(bench, *SMALL)


def test_preflight_ends_with_5_and_says_what_to_do(bench: Bench) -> None:
    bench.engine = ScriptedEngine(faults=frozenset({"brittle-cue"}))
    code, out, _ = bench(command="preflight")
    assert code == 5
    assert out.startswith("Not ready to probe: results measured like this would mislead ")
    assert "to do choose another --cue" in " ".join(out.split())
    code, out, _ = bench("--json", command="preflight")
    assert code == 5
    assert json.loads(out)["status"] == "fail"
