"""Fitting costs: known coefficients are recovered, and unidentifiable ones refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules.serving_profile import Measurement, ServingProfile, fit_costs

Prices = dict[str | int, float]

TRUE: Prices = {"request": 1.2e-3, "prefilled": 27e-6, "cached": 1.5e-6, 1: 2e-3, 8: 3e-4}
"""Seconds of each kind of work, decoding by its batch."""


def seconds_of(prices: Prices, work: Measurement) -> float:
    """What the formula says."""
    return (
        prices["request"] * work.requests
        + prices["prefilled"] * work.uncached
        + prices["cached"] * work.cached
        + prices[work.batch] * work.decoded
    )


def fitted(work: Sequence[Measurement]) -> tuple[Prices, ServingProfile]:
    """The prices that a fit finds, and its profile."""
    profile = fit_costs(work, model="m", engine="vllm", device="here")
    seconds = profile.per_token_seconds
    prices: Prices = {
        "request": profile.per_request_seconds,
        "prefilled": seconds.prefilled,
        "cached": seconds.cached,
        **{row.batch: row.seconds for row in profile.decoded_by_batch},
    }
    return prices, profile


def measured(prices: Prices, noise: float = 0.0, seed: int = 0) -> list[Measurement]:
    """Pieces of work as `profile-serving` times them."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(3):
        for batch in (1, 8):
            n = 4 * batch
            for shape in (
                (n, 32 * n, 0, n),
                (n, 512 * n, 0, n),
                (n, 32 * n, 480 * n, n),
                (n, 32 * n, 0, 60 * n),
            ):
                work = Measurement(batch, *shape, seconds=1.0)
                factor = float(np.exp(rng.normal(0, noise)))
                found.append(replace(work, seconds=seconds_of(prices, work) * factor))
    return found


def test_known_coefficients_come_back() -> None:
    found, profile = fitted(measured(TRUE))
    assert found == pytest.approx(TRUE)
    assert profile.at_batch == 8
    assert profile.per_token_seconds.decoded == pytest.approx(3e-4)
    assert profile.misfit == pytest.approx(0, abs=1e-9)


def test_they_come_back_through_noise() -> None:
    found = [fitted(measured(TRUE, noise=0.05, seed=seed)) for seed in range(60)]
    for name in ("request", "prefilled", "cached"):
        values = [prices[name] for prices, _ in found]
        error = np.std(values) / np.sqrt(len(values))
        assert abs(np.mean(values) - TRUE[name]) < 4 * error + 0.01 * TRUE[name]
        assert np.std(values) < 0.35 * TRUE[name]
    assert np.mean([profile.misfit for _, profile in found]) == pytest.approx(0.05, rel=0.2)


def test_what_costs_nothing_is_not_negative() -> None:
    for seed in range(20):
        found, _ = fitted(measured(TRUE | {"cached": 0.0}, noise=0.05, seed=seed))
        assert found["cached"] >= 0


def test_without_cached_tokens_one_read_again_is_a_new_one() -> None:
    found, _ = fitted([m for m in measured(TRUE) if m.cached == 0])
    assert found["cached"] == found["prefilled"] == pytest.approx(TRUE["prefilled"])


def test_what_cannot_be_told_apart_is_refused() -> None:
    alike = [m for m in measured(TRUE) if m.uncached == 32 * m.requests and not m.cached]
    with pytest.raises(CalibrationError, match=r"12 measurements are too few .* at \[1, 8\]"):
        fit_costs(alike)
    with pytest.raises(CalibrationError, match="0 measurements are too few"):
        fit_costs([])


def test_decoding_is_not_free() -> None:
    odd = [
        replace(m, seconds=1e-4 if m.decoded > m.requests else m.seconds) for m in measured(TRUE)
    ]
    with pytest.raises(CalibrationError, match="to cost nothing: the timings vary too much"):
        fit_costs(odd)
