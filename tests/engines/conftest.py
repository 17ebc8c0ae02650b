"""Fixtures: tiny models and engines, scripted traces, and a clock for retries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from stopadvisor.engines.hf import load_engine
from stopadvisor.engines.http import servers
from tests.engines.online_policies import TINY_REASONER
from tests.engines.tiny import Reprefill, byte_tokenizer, save_model

if TYPE_CHECKING:
    from torch import Tensor

    from stopadvisor.engines.hf.engine import HfEngine
    from stopadvisor.engines.hf.sampler import Sampler


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that samples its traces, with full attention in every layer."""
    return save_model(tmp_path_factory.mktemp("random"), byte_tokenizer(), {"do_sample": True})


@pytest.fixture(scope="session")
def windowed_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a sliding window of eight tokens in the upper layer."""
    return save_model(
        tmp_path_factory.mktemp("windowed"),
        byte_tokenizer(),
        {"do_sample": True},
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
    )


@pytest.fixture(scope="session")
def random_engine(random_model: Path) -> HfEngine:
    return load_engine(str(random_model), device="cpu")


@pytest.fixture(scope="session")
def windowed_engine(windowed_model: Path) -> HfEngine:
    return load_engine(str(windowed_model), device="cpu")


@pytest.fixture(scope="session")
def engines(random_engine: HfEngine, windowed_engine: HfEngine) -> dict[str, HfEngine]:
    return {"full": random_engine, "windowed": windowed_engine}


@pytest.fixture(scope="session")
def tiny_reasoner() -> HfEngine:
    return load_engine(str(TINY_REASONER), device="cpu")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[Sequence[int]]], None]:
    """Script the sampler: row i follows the i-th sequence, then repeats its last id."""
    import torch

    from stopadvisor.engines.hf.sampler import Sampler

    def install(rows: Sequence[Sequence[int]]) -> None:
        left: list[int] = []

        def draw(self: Sampler, logits: Tensor, step: int) -> Tensor:
            if step == 0:
                left[:] = range(len(logits))
            tokens = [rows[i][min(step, len(rows[i]) - 1)] for i in left]
            return torch.tensor(tokens, device=logits.device)

        def keep(self: Sampler, kept: NDArray[np.int64]) -> None:
            left[:] = [left[i] for i in kept.tolist()]

        monkeypatch.setattr(Sampler, "draw", draw)
        monkeypatch.setattr(Sampler, "keep", keep)

    return install


@pytest.fixture
def set_aside_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out finished rows of small batches too, as only those of large ones are.

    Of two rows the last to finish takes the other along.
    """
    monkeypatch.setattr("stopadvisor.engines.hf.local_model._FEWEST_ROWS", 2)


@dataclass
class Pauses:
    """A clock that only the pauses between retries advance."""

    taken: list[float] = field(default_factory=list)
    """Seconds of each pause."""

    def monotonic(self) -> float:
        return sum(self.taken)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    """Retry without waiting, and record how long each wait would have been."""
    pauses = Pauses()

    async def skip(self: servers.Patience, seconds: float) -> None:
        pauses.taken.append(seconds)

    monkeypatch.setattr(servers.Patience, "sleep", skip)
    monkeypatch.setattr(servers, "time", pauses)
    return pauses


@pytest.fixture(scope="session")
def random_reference(random_model: Path) -> Reprefill:
    return Reprefill.of(random_model)


@pytest.fixture(scope="session")
def references(random_reference: Reprefill, windowed_model: Path) -> dict[str, Reprefill]:
    return {"full": random_reference, "windowed": Reprefill.of(windowed_model)}


@pytest.fixture(scope="session")
def tiny_reference(tiny_reasoner: HfEngine) -> Reprefill:
    return Reprefill.of(TINY_REASONER)
