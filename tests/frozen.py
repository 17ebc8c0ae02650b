"""Frozen policies and sources from synthetic populations, without a file or a model."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.certification.export import policy_terms
from stopadvisor.certification.verification import Verification, fresh_questions, verify
from stopadvisor.ground.fields import plain
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.trajectories import profile, trajectory
from stopadvisor.runs.look_log import Look
from stopadvisor.runs.sources import Source
from stopadvisor.workload.questions import assign_parts
from tests.policy_content import built, example_content, terms_of
from tests.populations import KnownPopulation, renamed

FRACTIONS = (0.4, 0.4, 0.2)
_BOUND = ("model", "engine", "probe", "max_think", "sampling")
MODEL = {key: example_content()[key] for key in _BOUND}


def source_of(table: OpenQuestions, name: str, *, seed: int = 0) -> Source:
    """A source with a hash split, as a run has; `name` stands for its workload."""
    parts = assign_parts(table.groups, seed=seed, fractions=FRACTIONS)
    digest = hashlib.sha256(name.encode()).hexdigest()
    return Source(Path(name), table.sealed(), parts, seed, FRACTIONS, None, digest)


def drawn_source(law: KnownPopulation, n: int, name: str, *, seed: int = 0) -> Source:
    """A source of `n` fresh questions of a law, named after it."""
    table = law.draw(n, np.random.default_rng(seed))
    return source_of(renamed(table, f"{name}-"), name, seed=seed)


def look_of(settings: Settings) -> Look:
    """A first and only look."""
    return Look(1, None, settings.delta, (), {}, (), (), "2026-01-01T00:00:00+00:00")


def frozen(source: Source, settings: Settings, *, bound: bool = True) -> dict[str, Any]:
    """The policy from calibrating a source; bound to a model by default."""
    fit, calibration = source.part("fit"), source.part("calibration").unseal()
    choice = choose(fit, len(set(calibration.groups)), settings)
    found = calibrate(choice, calibration.as_calibration())
    shape = profile(trajectory(fit), rng=np.random.default_rng(0))
    terms = policy_terms(source, settings, choice.full_accuracy, found, shape, look_of(settings))
    return built(plain(terms) | (MODEL if bound else {}))


def verified(
    content: dict[str, Any], table: OpenQuestions, *, alone: bool = False, **changes: Any
) -> Verification:
    """What the fresh questions of a table say about a policy."""
    terms = terms_of(content)
    fresh = fresh_questions(terms, table, alone=alone)
    questions = table.take(fresh.rows)
    return verify(terms, fresh, questions, rng=np.random.default_rng(0), **changes)


def with_groups(table: OpenQuestions, size: int) -> OpenQuestions:
    """The table in groups of `size` consecutive questions."""
    groups = tuple(f"group {i // size} of {key[:3]}" for i, key in enumerate(table.keys))
    return replace(table, groups=groups)
