"""Groups of several questions: one of each counts, and the claim is about groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment.choice import Settings
from stopadvisor.policy.shown import certificate_of
from stopadvisor.probes.grouping import calibration_rows, has_groups
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.runs.sources import Source
from tests.frozen import frozen, source_of
from tests.policy_content import terms_of
from tests.populations import POPULATIONS, regraded, renamed

pytestmark = pytest.mark.slow

MIXED = POPULATIONS[0]
SETTINGS = Settings(alpha=0.15, families=("confidence",))


def drawn(n_groups: int, seed: int, prefix: str = "c") -> OpenQuestions:
    """Groups of which 30 % hold five questions; a lone one has little that could be lost."""
    rng = np.random.default_rng(seed)
    sizes = np.where(rng.random(n_groups) < 0.3, 5, 1)
    table = renamed(MIXED.draw(int(sizes.sum()), rng), prefix)
    lone = np.repeat(sizes == 1, sizes)
    unsolved = lone & (rng.random(lone.size) < 0.8)
    groups = tuple(f"group {prefix}{i}" for i in np.repeat(np.arange(n_groups), sizes))
    return regraded(replace(table, groups=groups), natural_correct=table.full_correct & ~unsolved)


@pytest.fixture(scope="module")
def source() -> Source:
    return source_of(drawn(600, 13, "s"), "groups")


@pytest.fixture(scope="module")
def policy(source: Source) -> dict[str, Any]:
    return frozen(source, SETTINGS)


def test_samples_of_a_question_are_no_group() -> None:
    table = drawn(6, 1)
    assert has_groups(table)
    alone = replace(table, groups=table.keys)
    twice = alone.take(np.repeat(np.arange(table.n_questions), 2))
    assert not has_groups(replace(twice, samples=np.tile([1, 0], table.n_questions)))


def test_a_policy_says_that_its_claim_is_of_groups(policy: dict[str, Any], source: Source) -> None:
    certificate = certificate_of(terms_of(policy))
    assert certificate is not None
    assert (certificate.bound, certificate.group_claim) == ("exact", "groups")
    assert "in at most 15 % of all groups the question drawn of it" in certificate.claim
    assert certificate.n == len(set(source.part("calibration").groups))
    assert policy["expected"]["test_n"] == len(set(source.part("test").groups))
    single = source.table.take(calibration_rows(source.table)).unseal()
    alone = frozen(source_of(single, "alone"), SETTINGS)["certificate"]
    assert "group_claim" not in alone
