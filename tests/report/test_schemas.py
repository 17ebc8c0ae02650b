"""JSON Schemas: they follow from the types, and every command prints what its schema says.

Those of `assess`, `calibrate` and `verify` are held by `test_figures` of their wings.
"""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import COMMANDS, main, module_of
from stopadvisor.cli.schema import RESULTS
from stopadvisor.policy.frozen import save_policy
from tests.engines.rung_server import Said, ladder_toml, rung_server, say
from tests.material import keep_studies, make_run, write_archive, write_easiest
from tests.policy_content import SERVED_RUNGS, ladder_content, policy_from
from tests.schemas import check_valid, schema
from tests.scripted import ScriptedEngine

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_command_has_a_schema() -> None:
    # `schema` prints a schema, or the list; `serve` becomes a server.
    assert COMMANDS.keys() <= RESULTS.keys() | {"schema", "serve"}


def check(name: str, *documents: Any) -> None:
    for document in documents:
        check_valid(name, document)


def answer(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    """What a command prints as JSON."""
    capsys.readouterr()
    code = main([*map(str, words), "--json"])
    out = capsys.readouterr().out
    assert code in (0, 3), out
    found: dict[str, Any] = json.loads(out)
    return found


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "schema", "assess") == {"title": "assess", **schema("assess")}
    listed = answer(capsys, "schema")
    check("schema-list", listed)
    assert {row["name"] for row in listed["schemas"]} == {*RESULTS}
    assert main(["schema"]) == 0
    assert "calibration.json" in capsys.readouterr().out
    assert main(["schema", "nothing"]) == 2
    assert "there are assess, calibrate" in capsys.readouterr().err


def test_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check("samples", answer(capsys, "samples", tmp_path / "samples"))


def test_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["inspect", "nothing"], ["plan", "--alpha", "2"]):
        assert main([*words, "--json"]) == 2
        check("error", json.loads(capsys.readouterr().out))


@pytest.mark.slow
def test_plan(run_without_gold: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_run = answer(capsys, "plan", run_without_gold, "--alpha", "0.1")
    plain = answer(capsys, "plan", "--alpha", "0.15")
    check("plan", plain, answer(capsys, "plan", "--alpha", "0.15", "--loss", "drop"), of_run)


def test_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_run(tmp_path / "made", 40)
    grid = answer(capsys, "import", "probes", made / "probes.jsonl", "-o", tmp_path / "grid")
    row = {"trace_tokens": 9, "finish": "stop", "natural_answer_tokens": 1}
    probes = [{"budget": b, "answer": "1", "correct": True, "probe_tokens": 1} for b in (2, 5)]
    rows = [{"id": str(k), **row, "checkpoints": probes[:k]} for k in (1, 2)]
    (tmp_path / "own.jsonl").write_text(
        "".join(f"{json.dumps(r)}\n" for r in rows), encoding="utf-8"
    )
    words = ("-o", tmp_path / "own", "--max-think", "9", "--model", "m")
    own = answer(capsys, "import", "probes", tmp_path / "own.jsonl", *words)
    assert (grid["model"], own["model"]) == (None, "m")
    assert grid["budgets"]
    assert own["budgets"] is None
    check("import", grid, own)


@pytest.mark.slow
def test_import_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("datasets")
    row = {"question": "1 + 1?", "answer": "#### 2"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    words = ("--from", tmp_path / "rows.jsonl", "-o", tmp_path / "gsm8k.jsonl")
    check("import-dataset", answer(capsys, "import", "dataset", "gsm8k", *words))


@pytest.mark.slow
def test_policies_of_a_run(
    calibrated_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(calibrated_run, tmp_path / "run")
    (policy,) = run.glob("policy-a*.joblib")
    check("inspect", answer(capsys, "inspect", policy))
    check("diff", answer(capsys, "inspect", policy, ROOT / "policies" / "choice.joblib"))
    check("promote", answer(capsys, "promote", policy))


@pytest.mark.slow
def test_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_archive(tmp_path / "raw.npz")
    import_module(module_of("study"))  # its choice of names is made once, of all of them
    keep_studies(monkeypatch, "ablation", "transfer")
    words = ("raw.npz", "--set", "resamples=100")
    everything = answer(capsys, "study", "all", *words)
    assert [row["study"] for row in everything["skipped"]] == ["transfer"]
    listed = answer(capsys, "study", "list")
    check("study", answer(capsys, "study", "ablation", *words))
    check("study-all", everything)
    check("study-list", listed)
    (file,) = tmp_path.rglob("studies/ablation.json")
    check_valid("study", json.loads(file.read_bytes()))


@pytest.mark.slow
def test_probe_and_preflight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "stopadvisor.engines.engine_settings.start_engine", lambda options: ScriptedEngine()
    )
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", 120)
    probed = answer(capsys, "probe", "run-sums.jsonl", "--out", "again", "--max-think", "99")
    with rung_server(lambda model, question: Said("The answer is 1.", 9)) as server:
        rungs = [
            f'[[rung]]\nname = "{name}"\nmodel = "{name}"\nbase_url = "{server.url}"\n'
            "price = [1, 1, 1]\n"
            for name in ("small", "large")
        ]
        Path("ladder.toml").write_text("".join(rungs))
        ladder = ("--ladder", "ladder.toml", "--out", "rungs")
        recorded = answer(capsys, "probe", "run-sums.jsonl", *ladder)
        of_rungs = json.loads(Path("rungs/preflight.json").read_bytes())
    check("probe", probed, recorded)
    check("preflight-ladder", of_rungs)
    check_valid("preflight", json.loads(Path("again/preflight.json").read_bytes()))
    report = answer(capsys, "preflight", "run-sums.jsonl", "--max-think", "256")
    check_valid("preflight", report)


@pytest.mark.integration
def test_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stopadvisor.engines.hf import load_engine
    from tests.engines.online_policies import TINY_REASONER, rule

    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    engine = load_engine(str(TINY_REASONER), device="cpu")
    policy = rule(engine, "run-stability", 2.0, budgets=[0, 16])
    save_policy(policy, tmp_path / "policy.joblib")

    write_easiest(tmp_path / "few.jsonl", 8)
    words = ("policy.joblib", "few.jsonl", "--model", TINY_REASONER)
    stopped = answer(capsys, "run", *words, "--compare-full")

    content = ladder_content(ladder={"rungs": SERVED_RUNGS})
    save_policy(policy_from(content), tmp_path / "climbs.joblib")
    (tmp_path / "say.jsonl").write_text('{"id": "a", "question": "Say 3", "gold": "3"}\n')
    with rung_server(say) as server:
        ladder = ladder_toml(tmp_path / "ladder.toml", SERVED_RUNGS, server.url)
        climb = ("climbs.joblib", "say.jsonl", "--ladder", ladder, "--compare-full")
        climbed = answer(capsys, "run", *climb)
    check("run", stopped, climbed)
