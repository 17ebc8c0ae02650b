"""The shipped policies: made again from the committed probes, they are the same.

Only the last tests run a model: the bundled one has to give some of those probes again.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from map import ALPHA, POLICIES, RECOMMENDED, SAMPLES, accuracies, between, profiles, signals
from stopadvisor.certification.verification import scorer_of
from stopadvisor.cli.main import main
from stopadvisor.collection.probe_settings import ProbeSettings
from stopadvisor.collection.probing import probe
from stopadvisor.engines.engine_settings import EngineSettings
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.frozen import Policy, load_policy
from stopadvisor.policy.shown import where_of
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.rules.serving_profile import SERVING_PROFILE
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from tests.replay import recorded_stop

pytestmark = pytest.mark.slow

WORKLOADS = ("arithmetic", "choice", "hard")
README = POLICIES / "README.md"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed probes as run directories."""
    root = tmp_path_factory.mktemp("runs")
    for name in WORKLOADS:
        run = root / name
        run.mkdir()
        manifest = (POLICIES / "probes" / f"{name}.manifest.json").read_bytes()
        probes = lzma.decompress((POLICIES / "probes" / f"{name}.probes.jsonl.xz").read_bytes())
        (run / "manifest.json").write_bytes(manifest)
        (run / "probes.jsonl").write_bytes(probes)
        shutil.copy(SAMPLES / "tiny-reasoner" / SERVING_PROFILE, run)
    return root


@pytest.fixture(scope="module", params=WORKLOADS)
def made(request: pytest.FixtureRequest, runs: Path) -> tuple[str, Policy, Policy, Any]:
    """Name, shipped policy, the one made again, and the advice of `assess`."""
    name = request.param
    run = runs / name
    assert main(["assess", str(run), "--alpha", str(ALPHA), "--quiet", "--no-report"]) == 0
    advice = json.loads((run / "assessment.json").read_bytes())["recommendation"]
    assert main(["calibrate", str(run), "--alpha", str(ALPHA), "--quiet"]) == (
        3 if RECOMMENDED[name] == "full-budget" else 0
    )
    return (
        name,
        load_policy(POLICIES / f"{name}.joblib"),
        load_policy(run / "policy.joblib"),
        advice,
    )


def test_the_same_policy_comes_of_the_committed_probes(
    made: tuple[str, Policy, Policy, Any],
) -> None:
    _, shipped, again, _ = made
    old, new = shipped.content, again.content
    same = ("kind", "family", "features", "trigger", "budgets", "model", "workload_sha256", "split")
    for name in same:
        assert new[name] == old[name], name
    for name in ("mean", "scale", "coef", "intercept", "decision_threshold", "order"):
        if old[name] is not None:
            np.testing.assert_allclose(new[name], old[name], rtol=1e-6, atol=1e-6, err_msg=name)
    if old["kind"] == "full-budget":
        assert new["certificate"] is old["certificate"] is None
        return
    for name in ("alpha", "confidence", "n", "losses", "looks"):
        assert new["certificate"][name] == old["certificate"][name], name
    assert new["certificate"]["upper"] == pytest.approx(old["certificate"]["upper"], rel=1e-9)


def test_both_stop_every_question_at_the_same_place(
    made: tuple[str, Policy, Policy, Any], runs: Path
) -> None:
    name, shipped, again, _ = made
    if shipped.kind == "full-budget":
        assert again.kind == "full-budget"
        return
    table = open_source(runs / name).table
    stops = []
    for policy in (shipped, again):
        scorer = scorer_of(policy.terms, table)
        threshold = np.array([policy.content["decision_threshold"]])
        stops.append(scorer.curve(scorer.view(table), threshold).stops(0))
    np.testing.assert_array_equal(stops[0], stops[1])
    assert stops[0].min() == 0


def test_the_shipped_file_loses_what_its_certificate_says(
    made: tuple[str, Policy, Policy, Any], runs: Path
) -> None:
    """Every calibration question through the online stepper, as production would see it."""
    name, shipped, _, _ = made
    if shipped.kind == "full-budget":
        assert shipped.content["certificate"] is None
        return
    calibration = set(shipped.content["split"]["calibration"])
    records = [r for r in RunDirectory.load(runs / name).records() if r.key in calibration]
    certificate = shipped.content["certificate"]
    assert len(records) == certificate["n"]
    assert sum(_lost(shipped, record) for record in records) == certificate["losses"]


def _lost(policy: Policy, record: ProbeRecord) -> bool:
    stop = recorded_stop(policy, record)
    if stop is None or not record.natural_correct:
        return False
    return not next(c.correct for c in record.checkpoints if c.budget == stop.position)


def test_the_advice_is_what_the_samples_say(made: tuple[str, Policy, Policy, Any]) -> None:
    name, _, _, advice = made
    assert advice["policy"] == RECOMMENDED[name]


@pytest.mark.parametrize("write", [profiles, accuracies, signals])
def test_the_map_is_that_of_the_committed_probes(runs: Path, write: Any) -> None:
    name = write.__name__
    assert write([runs / workload for workload in WORKLOADS]) == between(
        SAMPLES / "README.md", name
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_bundled_policy_is_about_its_sample(name: str) -> None:
    policy = load_policy(POLICIES / f"{name}.joblib")
    content = policy.content
    sample = (SAMPLES / f"{name}.jsonl").read_bytes()
    assert content["workload_sha256"] == hashlib.sha256(sample).hexdigest()
    if policy.kind == "full-budget":
        assert f"| `{name}.joblib` | full budget |" in README.read_text(encoding="utf-8")
        return
    certificate, expected = content["certificate"], content["expected"]
    low, high = expected["calibration_total_saving_band95"]
    row = (
        f"| `{name}.joblib` | {content['family']} | {where_of(policy.terms)} | "
        f"{certificate['losses']} of {certificate['n']} | "
        f"{expected['calibration_total_saving_pct']:.1f} % [{low:.1f}, {high:.1f}] | "
        f"{expected['calibration_full_accuracy']:.3f} → {expected['calibration_accuracy']:.3f} |"
    )
    assert row.replace(" 0.", " .") in README.read_text(encoding="utf-8")


def test_committed_probes_are_small() -> None:
    assert sum(file.stat().st_size for file in (POLICIES / "probes").iterdir()) < 2_000_000


@pytest.mark.integration
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_bundled_policy_is_bound_to_the_bundled_model(name: str) -> None:
    revision = pytest.importorskip("stopadvisor.engines.model_files")
    model = load_policy(POLICIES / f"{name}.joblib").content["model"]
    assert model["revision"] == revision.content_revision(SAMPLES / "tiny-reasoner")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("hard", 2),
        pytest.param("hard", None, marks=pytest.mark.long),
        pytest.param("arithmetic", None, marks=pytest.mark.long),
    ],
)
def test_the_bundled_model_gives_the_committed_probes(
    name: str, n: int | None, runs: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    plan = RunDirectory.load(runs / name).plan
    settled = ("schedule", "max_think", "every", "min_gap", "max_markers")
    settings = ProbeSettings(
        SAMPLES / f"{name}.jsonl",
        tmp_path / "run",
        limit=n,
        batch_size=64,
        preflight=False,
        marker_ids=plan.markers if n else (),  # else they are found again
        **{field: getattr(plan, field) for field in settled},
    )
    model = EngineSettings(model=str(SAMPLES / "tiny-reasoner"), device="cpu")
    probe(settings, model, Progress())
    committed = RunDirectory.load(runs / name).records()[:n]
    for old, new in zip(committed, RunDirectory.load(tmp_path / "run").records(), strict=True):
        assert (new.id, new.natural_answer, new.trace_tokens) == (
            old.id,
            old.natural_answer,
            old.trace_tokens,
        )
        for a, b in zip(old.checkpoints, new.checkpoints, strict=True):
            assert (b.budget, b.answer, b.correct) == (a.budget, a.answer, a.correct)
            assert b.mean_logprob == pytest.approx(a.mean_logprob, abs=1e-4)
            assert b.mean_entropy == pytest.approx(a.mean_entropy, abs=1e-4)
