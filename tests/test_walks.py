"""How far a reader has to walk who follows one piece of work through the folders, as it runs.

A wing is a folder of the package.  Down into it and back up: that is one climb for each module
below that is handed a probe table from another wing.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from stopadvisor.assessment.assess import assess
from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.cli.model import ModelOptions
from stopadvisor.cli.run import RunOptions, run
from stopadvisor.engines.openai.engine import OpenAiEngine
from stopadvisor.policy.frozen import save_policy
from stopadvisor.probes.table import ProbeTable
from stopadvisor.runs.sources import open_source
from stopadvisor.serving.answering import AnswerSettings
from tests.engines.fake_server import fake_server
from tests.engines.test_openai_online import engine_at, policy_of
from tests.material import archive_arrays, write_archive
from tests.test_layout import PACKAGE


@cache
def _place(code: CodeType) -> tuple[str, str] | None:
    """Wing and module of a function; None outside of any wing."""
    try:
        module = Path(code.co_filename).relative_to(PACKAGE)
    except ValueError:
        return None
    return (module.parts[0], str(module)) if len(module.parts) > 1 else None


@dataclass
class Walk:
    """Where calls led to, imports left out."""

    wings: set[str] = field(default_factory=set)
    climbs: set[tuple[str, str]] = field(default_factory=set)
    """Wing that handed over a probe table, and the module of another wing that took it."""

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Take in one event, as `sys.setprofile` reports it."""
        place = _place(frame.f_code) if event == "call" else None
        if place is None:
            return
        wing, module = place
        if wing not in self.wings and not any(_is_import(each) for each in _stack(frame)):
            self.wings.add(wing)
        above = next(filter(None, (_place(each.f_code) for each in _stack(frame.f_back))), None)
        if above is None or above[0] == wing or (above[0], module) in self.climbs:
            return
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        if any(isinstance(frame.f_locals[n], ProbeTable) for n in names if n != "self"):
            self.climbs.add((above[0], module))


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_import(frame: FrameType) -> bool:
    return frame.f_code.co_name == "<module>" and PACKAGE in Path(frame.f_code.co_filename).parents


@contextmanager
def walking() -> Iterator[Walk]:
    """Note every call of this thread, and of those that begin meanwhile."""
    walk = Walk()
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_a_probe_table_goes_through_few_wings(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "raw.npz", **archive_arrays(60, 3))
    source = open_source(archive, folder=tmp_path, keep=False)
    settings = SettingsOverrides(alpha=0.15).settings()
    with walking() as walk:
        found = assess(source, settings)
    assert found.choice.compared
    assert len(walk.wings) <= 5, walk.wings
    assert 5 < len(walk.climbs) <= 14, walk.climbs


def test_options_go_through_few_wings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = tmp_path / "sums.jsonl"
    workload.write_text('{"question": "3+4", "gold": "5"}\n', encoding="utf-8")
    settings = AnswerSettings(tmp_path / "policy.joblib", workload, out=tmp_path / "answers.jsonl")
    with fake_server() as server, engine_at(server) as engine:
        save_policy(policy_of(engine).content, settings.policy)

        @contextmanager
        def opened(_: ModelOptions) -> Iterator[OpenAiEngine]:
            yield engine

        monkeypatch.setattr("stopadvisor.cli.run.open_engine", opened)
        out = io.StringIO()
        with walking() as walk:
            code = run(RunOptions(settings, ModelOptions(engine="openai")), out, io.StringIO())
    assert code == 0, out.getvalue()
    assert {"cli", "serving", "engines", "policy"} <= walk.wings
    assert len(walk.wings) <= 10, walk.wings
