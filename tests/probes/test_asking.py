"""What probing needs of an engine: one that lacks a part is no `Engine`, to mypy neither."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mypy import api

from stopadvisor.probes.asking import Engine
from tests.scripted import ScriptedEngine

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine
    from stopadvisor.engines.openai.engine import OpenAiEngine

    ENGINES: tuple[type[Engine], ...] = (HfEngine, OpenAiEngine, ScriptedEngine)
    """Held by mypy."""

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


@pytest.mark.slow
def test_mypy_names_the_parts_that_an_engine_lacks(tmp_path: Path) -> None:
    script = tmp_path / "lacking.py"
    script.write_text(LACKING, encoding="utf-8")
    out, err, code = api.run([str(script)])
    assert code == 1, err
    assert 'incompatible type "Lacking"; expected "Engine"' in out
