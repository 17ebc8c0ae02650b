"""Runs that several files of these tests read; whoever changes one copies it first."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stopadvisor.cli.main import main
from stopadvisor.engines.engine_settings import EngineSettings
from stopadvisor.rules.drift import feature_drift
from stopadvisor.runs.directory import RunDirectory
from tests.material import Call, make_run
from tests.scripted import ScriptedEngine, write_sums


@pytest.fixture(scope="session")
def probed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 sums, probed by the scripted engine; nobody has assessed them."""
    return make_run(tmp_path_factory.mktemp("probed") / "run", 300)


@pytest.fixture(scope="session")
def quickly_assessed_run(probed_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, assessed with two families: a report, and whatever fits again, takes a moment."""
    path = tmp_path_factory.mktemp("assessed") / "runs" / "old"
    shutil.copytree(probed_run, path)
    words = ["--families", "learned,confidence", "--no-report", "--quiet"]
    with drawing_few():
        assert main(["assess", str(path), "--alpha", "0.15", *words]) == 0
    return path


@pytest.fixture
def sums(call: Call, probed_run: Path) -> Path:
    """A run `runs/sums` in the folder of `call`."""
    return shutil.copytree(probed_run, Path("runs/sums"))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """The engine that every command opens."""
    engine = ScriptedEngine()
    monkeypatch.setattr("stopadvisor.engines.engine_settings.start_engine", lambda options: engine)
    return engine


@contextmanager
def drawing_few() -> Generator[None]:
    """Forecast for few calibrations, which take most of an assessment's time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, few in (
            ("assessment.choice._LABELS", (100, 200)),
            ("assessment.frontier.ALPHAS", (0.05, 0.15)),
            ("assessment.rated._DRAWS", 20),
            ("assessment.rated._RESAMPLES", 100),
            ("cli.label._DRAWS", 2),
            ("stats.intervals._RESAMPLES", 100),
        ):
            patch.setattr(f"stopadvisor.{name}", few)
        patch.setattr(feature_drift, "__kwdefaults__", {"permutations": 199})
        yield


@pytest.fixture(scope="module")
def few_draws() -> Generator[None]:
    """Few of them in a whole file."""
    with drawing_few():
        yield


class Bench(Call):
    """`probe` of a workload of 100 sums by a scripted engine, with some words in any case."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(capsys, "probe")
        self.file, self.out = write_sums(folder / "sums.jsonl", 100), folder / "out"
        self.engine = ScriptedEngine()
        self.loaded: list[EngineSettings] = []
        self.words: tuple[object, ...] = ()

    def load(self, options: EngineSettings) -> ScriptedEngine:
        self.loaded.append(options)
        return self.engine

    def __call__(self, *words: object, command: str | None = None) -> tuple[int, str, str]:
        return super().__call__(self.file, *self.words, *words, command=command)

    @property
    def run(self) -> RunDirectory:
        return RunDirectory.load(self.out)


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Bench:
    made = Bench(tmp_path, capsys)
    monkeypatch.setattr("stopadvisor.engines.engine_settings.start_engine", made.load)
    monkeypatch.chdir(tmp_path)
    return made
