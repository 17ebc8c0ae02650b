"""The fit of costs: known coefficients come back, and what cannot be told apart is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules.serving_profile import BatchSeconds, CostFit, Measurement, fit_costs

TRUE = CostFit(1.2e-3, 27e-6, 1.5e-6, (BatchSeconds(1, 2e-3), BatchSeconds(8, 3e-4)), 0.0)


def seconds_of(fit: CostFit, work: Measurement) -> float:
    """What the formula says."""
    (at,) = (row for row in fit.decoded if row.batch == work.batch)
    return (
        fit.request * work.requests
        + fit.prefilled * work.uncached
        + fit.cached * work.cached
        + at.seconds * work.decoded
    )


def measured(fit: CostFit, noise: float = 0.0, seed: int = 0) -> list[Measurement]:
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
                found.append(replace(work, seconds=seconds_of(fit, work) * factor))
    return found


def test_known_coefficients_come_back() -> None:
    found = fit_costs(measured(TRUE))
    assert found.request == pytest.approx(TRUE.request)
    assert (found.prefilled, found.cached) == pytest.approx((TRUE.prefilled, TRUE.cached))
    assert [row.seconds for row in found.decoded] == pytest.approx([2e-3, 3e-4])
    assert found.misfit == pytest.approx(0, abs=1e-9)


def test_they_come_back_through_noise() -> None:
    found = [fit_costs(measured(TRUE, noise=0.05, seed=seed)) for seed in range(60)]
    for name in ("request", "prefilled", "cached"):
        values = [getattr(fit, name) for fit in found]
        error = np.std(values) / np.sqrt(len(values))
        assert abs(np.mean(values) - getattr(TRUE, name)) < 4 * error + 0.01 * getattr(TRUE, name)
        assert np.std(values) < 0.35 * getattr(TRUE, name)
    assert np.mean([fit.misfit for fit in found]) == pytest.approx(0.05, rel=0.2)


def test_what_costs_nothing_is_not_negative() -> None:
    free = replace(TRUE, cached=0.0)
    for seed in range(20):
        assert fit_costs(measured(free, noise=0.05, seed=seed)).cached >= 0


def test_without_cached_tokens_one_read_again_is_a_new_one() -> None:
    found = fit_costs([m for m in measured(TRUE) if m.cached == 0])
    assert found.cached == found.prefilled == pytest.approx(TRUE.prefilled)


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
