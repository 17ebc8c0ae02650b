"""JSON Schemas: they follow from the types, and every command prints what its schema says.

A document must fit its schema; the documents of a command together must hold every field of it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import COMMANDS, main
from stopadvisor.cli.schema import RESULTS
from stopadvisor.ground.results import to_document, to_json
from stopadvisor.policy.frozen import save_policy
from stopadvisor.policy.inspected import inspected
from stopadvisor.rules.serving_profile import BatchSeconds, CostFit, ServingProfile
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.ladder import Ladder, Rung
from tests.engines.rung_server import Said, rung_server, say
from tests.keys import make_key
from tests.material import (
    CERTIFY,
    PLAN,
    edit_records,
    keep_studies,
    make_run,
    write_archive,
    write_easiest,
)
from tests.policy_content import (
    example_contents,
    family_content,
    ladder_content,
    open_cue_content,
    policy_from,
)
from tests.runs.test_replies import reply, run_of
from tests.schemas import check_valid, schema
from tests.scripted import ScriptedEngine
from tests.serving.test_climbing import RUNGS, ladder_at

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_command_has_a_schema() -> None:
    # `schema` prints a schema, or the list; `serve` becomes a server.
    assert COMMANDS.keys() <= RESULTS.keys() | {"schema", "serve"}


def properties(found: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every field of a schema, those of its parts once."""
    if isinstance(found, Mapping):
        for key, value in found.items():
            if key == "properties":
                for name, field in value.items():
                    yield f"{path}.{name}", field
            yield from properties(value, f"{path}.{key}")


def names(document: Any) -> Iterator[str]:
    """Every name in a document, at whatever depth."""
    if isinstance(document, Mapping):
        for key, item in document.items():
            yield key
            yield from names(item)
    elif isinstance(document, list):
        for item in document:
            yield from names(item)


def check(name: str, *documents: Any) -> None:
    for document in documents:
        check_valid(name, document)
    known = {path.rpartition(".")[2] for path, _ in properties(schema(name))}
    assert known <= {key for document in documents for key in names(document)}


def answer(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    """What a command prints as JSON."""
    capsys.readouterr()
    code = main([*map(str, words), "--json"])
    out = capsys.readouterr().out
    assert code in (0, 3), out
    found: dict[str, Any] = json.loads(out)
    return found


# --- What every command prints --------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an assessable run, one of questions that came later, and an archive."""
    root = tmp_path_factory.mktemp("schemas")
    make_run(root / "old", 300)
    # Apart, because a look at the same traces beside it would count.
    make_run(root / "apart" / "visible", 300, plan=replace(PLAN, on_stop="answer"))
    make_run(root / "new", 600)
    new = RunDirectory.load(root / "new")
    new.rewrite([replace(record, category="sums") for record in new.records()[300:]])
    write_archive(root / "raw.npz")
    fit = CostFit(0.01, 1e-4, 1e-5, (BatchSeconds(8, 0.01),), 0.0)
    profile = ServingProfile.of_fit(
        fit, model="m", engine="vllm", device="here", settings={}, round_trip_seconds=0.1
    )
    (root / "profile.json").write_text(to_json(profile), encoding="utf-8")
    return root


ALPHA = ("--alpha", "0.15")


@pytest.fixture(scope="module")
def grouped(runs: Path) -> Path:
    """A run whose groups hold three questions each."""
    shutil.copytree(runs / "old", runs / "grouped" / "run")

    def regroup(row: dict[str, Any], part: str) -> None:
        row["group"] = f"group {int(row['id'][1:]) // 3}"

    edit_records(runs / "grouped" / "run", regroup)
    for name in ("assessed", "one-of-each"):
        shutil.copytree(runs / "grouped" / "run", runs / "grouped" / name / "run")
    return runs / "grouped"


@pytest.mark.slow
def test_assess(
    runs: Path, grouped: Path, run_without_gold: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--out", runs / "results")
    shutil.copytree(runs / "old", runs / "copy")  # what was assessed is what calibrate takes over
    lines = [
        {"id": f"q{n}", "gold": "1", "rungs": [reply("vote", str(n % 9 % k)) for k in (2, 3, 4)]}
        for n in range(200)
    ]
    ladder = Ladder((Rung("vote", (1.0, 0.0, 1.0), repeat=3),))
    (runs / "ladder").mkdir()
    check(
        "assess",
        answer(capsys, "assess", run_of(runs / "ladder", lines, ladder, fit=0.4).folder),
        answer(
            capsys, "assess", runs / "copy", "--serving", "vllm", "--price", "1/0.1/4",
            "--families", "learned,entropy",
        ),
        answer(capsys, "assess", runs / "copy", "--gpu", "h100", "--families", "entropy"),
        answer(capsys, "assess", runs / "raw.npz", "--protocol", "paper", *folder),
        answer(
            capsys, "assess", runs / "apart" / "visible", "--families", "learned",
            "--alpha", "drop=0.3,lost=0.4", "--price", runs / "profile.json",
        ),
        answer(capsys, "assess", grouped / "assessed" / "run", "--families", "learned"),
        json.loads((run_without_gold / "assessment.json").read_bytes()),
    )  # fmt: skip


def lose_half(row: dict[str, Any], part: str) -> None:
    """For `edit_records`: stops at every second calibration question lose a right answer."""
    if part == "calibration" and int(row["id"][1:]) % 2:
        row["natural_correct"] = True
        for checkpoint in row["checkpoints"]:
            checkpoint["correct"] = False


@pytest.mark.slow
def test_calibrate_inspect_and_verify(
    runs: Path, grouped: Path, run_without_gold: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = ("--families", "learned")
    few = make_run(runs / "few" / "run", 300, gold=False)
    # One rule under several promises, of which the first is on a drop.
    several = ("--alpha", "drop=0.3,lost=0.4,differs=0.6")
    apart = RunDirectory.load(runs / "apart" / "visible")
    function = {"grader": "mine:check", "grader_sha256": "ab" * 32}
    apart.annotate(grading=apart.manifest["grading"] | function)
    timed = ("--price", runs / "profile.json")
    visible = answer(capsys, "calibrate", *CERTIFY, apart.path, *several, *rule, *timed)
    answer(capsys, "assess", runs / "old", "--gpu", "h100", "--serving", "kv-fork", *ALPHA, *rule)
    certified = answer(capsys, "calibrate", *CERTIFY, runs / "old", *ALPHA, *rule)
    policy = runs / "old" / "policy.joblib"
    inspected = answer(capsys, "inspect", policy)
    verified = [
        answer(capsys, "verify", policy, runs / "new", "--test-only"),
        answer(capsys, "verify", visible["policy"], runs / "apart" / "visible", "--test-only"),
    ]
    transferred = answer(capsys, "calibrate", *CERTIFY, runs / "new", "--from", policy, *ALPHA)
    refused = answer(capsys, "calibrate", *CERTIFY, runs / "old", "--alpha", "0.002", *rule)
    assert transferred["certificate"]
    assert refused["refusal"]
    bold = (*rule, "--alpha", "0.4")
    of_groups = answer(capsys, "calibrate", *CERTIFY, grouped / "run", *bold)
    assert of_groups["certificate"]["group_claim"] == "groups"
    few_labels = answer(
        capsys, "calibrate", *CERTIFY, few, *bold, "--loss", "lost", "--labels", "40"
    )
    assert few_labels["certificate"]
    shutil.copytree(run_without_gold, runs / "bare" / "run")
    bare = answer(
        capsys, "calibrate", runs / "bare" / "run", "--alpha", "0.1", "--despite", "advice"
    )
    assert bare["certificate"]["loss"] == "differs"
    unlucky = make_run(runs / "unlucky" / "run", 300)
    edit_records(unlucky, lose_half)
    scalar = ("--families", "entropy,confidence")
    answer(capsys, "calibrate", *CERTIFY, unlucky, *scalar, "--alpha", "0.03")
    second = answer(capsys, "calibrate", *CERTIFY, unlucky, *scalar, "--alpha", "0.75")
    assert second["certificate"]["earlier_deltas"] == [0.05]
    twice = make_run(runs / "twice" / "run", 300, samples=2)
    of_two = answer(capsys, "calibrate", *CERTIFY, twice, *bold, "--serving", "prefix-cache")
    assert of_two["certificate"]["traces"] == 2
    more = make_run(runs / "more" / "run", 600, samples=2)
    verified.append(answer(capsys, "verify", of_two["policy"], more))
    found = certified, transferred, refused, visible, of_groups, few_labels, second, bare, of_two
    check("calibrate", *found)
    verified.append(answer(capsys, "verify", of_groups["policy"], runs / "new"))
    moved = answer(capsys, "inspect", transferred["policy"])
    shown = answer(capsys, "inspect", visible["policy"])
    of_few = answer(capsys, "inspect", few_labels["policy"])
    check("diff", answer(capsys, "inspect", policy, visible["policy"]))
    check(
        "promote", *(answer(capsys, "promote", found["policy"]) for found in (certified, visible))
    )
    save_policy(
        policy_from(family_content("fixed-budget") | {"on_stop": "answer"}), runs / "fixed.joblib"
    )
    settings = answer(capsys, "inspect", runs / "fixed.joblib")
    pytest.importorskip("cryptography", reason="cryptography (extra sign) signs a policy")
    make_key(runs / "own.pem")
    signed = answer(capsys, "inspect", runs / "fixed.joblib", "--sign", runs / "own.pem")
    in_groups = [
        answer(capsys, "inspect", found["policy"]) for found in (of_groups, bare, second, of_two)
    ]
    save_policy(policy_from(open_cue_content()), runs / "open.joblib")
    open_cue = answer(capsys, "inspect", runs / "open.joblib")
    save_policy(policy_from(ladder_content()), runs / "climbs.joblib")
    climbs = answer(capsys, "inspect", runs / "climbs.joblib")
    check(
        "inspect", inspected, moved, shown, settings, signed, open_cue, *in_groups, of_few, climbs
    )
    check("verify", *verified)


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


@pytest.mark.parametrize("name", sorted(example_contents()))
def test_policies_of_other_programs(name: str) -> None:
    """What a policy file may leave out or add fits the schema too."""
    policy = policy_from(example_contents()[name])
    check_valid("inspect", to_document(inspected(policy, Path("p.joblib"))))


def test_plan(run_without_gold: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_run = answer(capsys, "plan", run_without_gold, "--alpha", "0.1")
    plain = answer(capsys, "plan", *ALPHA)
    check("plan", plain, answer(capsys, "plan", *ALPHA, "--loss", "drop"), of_run)


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


def test_import_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("datasets")
    row = {"question": "1 + 1?", "answer": "#### 2"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    words = ("--from", tmp_path / "rows.jsonl", "-o", tmp_path / "gsm8k.jsonl")
    check("import-dataset", answer(capsys, "import", "dataset", "gsm8k", *words))


def test_study(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    import_module(COMMANDS["study"].module)  # its choice of names is made once, of all of them
    keep_studies(monkeypatch, "ablation", "transfer")
    words = ("raw.npz", "--set", "resamples=100")
    everything = answer(capsys, "study", "all", *words)
    assert [row["study"] for row in everything["skipped"]] == ["transfer"]
    listed = answer(capsys, "study", "list")
    check("study", answer(capsys, "study", "ablation", *words))
    check("study-all", everything)
    check("study-list", listed)
    (file,) = runs.rglob("studies/ablation.json")
    check_valid("study", json.loads(file.read_bytes()))


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
    check("probe", probed, recorded)
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

    content = ladder_content()
    content["ladder"]["rungs"] = RUNGS
    save_policy(policy_from(content), tmp_path / "climbs.joblib")
    (tmp_path / "say.jsonl").write_text('{"id": "a", "question": "Say 3", "gold": "3"}\n')
    with rung_server(say) as server:
        ladder = ladder_at(tmp_path, server.url, server.url)
        climb = ("climbs.joblib", "say.jsonl", "--ladder", ladder, "--compare-full")
        climbed = answer(capsys, "run", *climb)
    check("run", stopped, climbed)
