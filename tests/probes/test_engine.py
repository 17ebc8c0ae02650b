"""What probing needs of an engine: one that lacks a part is no `Engine`, to mypy neither."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mypy import api

from stopadvisor.probes.plan import Engine
from tests.scripted import ScriptedEngine

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine
    from stopadvisor.engines.openai.engine import OpenAiEngine

    ENGINES: tuple[type[Engine], ...] = (HfEngine, OpenAiEngine, ScriptedEngine)
    """Held by mypy."""

PARTS = sorted(name for name in vars(Engine) if not name.startswith("_"))

LACKING = """\
from stopadvisor.collection.pilot import cue_ids
from tests.scripted import ScriptedEngine

class Lacking:
    def __init__(self, whole: ScriptedEngine) -> None:
        self.whole = whole
    def identity(self) -> dict[str, object]:
        return self.whole.identity()

cue_ids(Lacking(ScriptedEngine()), "Answer:")
"""


def test_a_whole_engine_is_one() -> None:
    assert isinstance(ScriptedEngine(), Engine)
    assert {"capabilities", "remarks", "probe_each", "engine_checks", "close"} <= set(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_an_engine_that_lacks_a_part_is_none(part: str) -> None:
    have = {name: getattr(ScriptedEngine(), name) for name in PARTS if name != part}
    assert not isinstance(type("Lacking", (), have)(), Engine)


@pytest.mark.slow
def test_mypy_names_the_parts_that_an_engine_lacks(tmp_path: Path) -> None:
    script = tmp_path / "lacking.py"
    script.write_text(LACKING, encoding="utf-8")
    out, err, code = api.run([str(script)])
    assert code == 1, err
    assert 'incompatible type "Lacking"; expected "Engine"' in out
