"""The engine over HTTP and the local one give the same probes for the same model in float32.

Greedy, because the two engines sample with different random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stopadvisor.answers.grading import GRADING, Grader
from stopadvisor.collection.collect import collect, make_prompts
from stopadvisor.collection.pilot import cue_ids
from stopadvisor.engines import openai
from stopadvisor.ground.constants import CUES
from stopadvisor.policy.frozen import policy_source
from stopadvisor.probes.asking import Engine, ProbePlan, Prompt, RawTrace
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.trajectories import profile, trajectory
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.manifest import build_manifest
from stopadvisor.workload.questions import Workload, read_workload
from tests.engines.tiny import traces_of
from tests.integration.conftest import AT_ONCE
from tests.integration.server import NAME, ROOT, VllmServer
from tests.material import easiest

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine
    from stopadvisor.engines.openai.engine import OpenAiEngine

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

N_QUESTIONS = 8
PLAN = ProbePlan(
    budgets=(0, 10, 20, 40, 60, 120),
    cue=CUES["terse"],
    max_think=200,
    answer_cap=256,
    greedy=True,
    entropy="top-k:20",
)


@pytest.fixture(scope="module")
def workload() -> Workload:
    whole = read_workload(ROOT / "samples" / "arithmetic.jsonl")
    return replace(whole, questions=easiest(N_QUESTIONS))


@pytest.fixture
def served(vllm: VllmServer) -> Iterator[OpenAiEngine]:
    engine = openai.open_servers(NAME, [vllm.base_url], concurrency=AT_ONCE)
    yield engine
    engine.close()


def probed(engine: Engine, workload: Workload, path: Path, plan: ProbePlan = PLAN) -> RunDirectory:
    manifest = build_manifest(
        engine.identity(),
        plan,
        workload,
        fractions=(0.4, 0.6, 0.0),
        cue_ids=cue_ids(engine, plan.cue),
        grading=GRADING,
    )
    path.mkdir()
    run = RunDirectory.create(path, manifest)
    with Grader() as grader:
        collect(engine, workload, run, batch_size=16, grader=grader)
    return run


def in_order(table: OpenQuestions) -> OpenQuestions:
    """Sort rows by id, as a server's are written in the order they finish."""
    return table.take(np.argsort(table.ids))


def check_same(theirs: OpenQuestions, ours: OpenQuestions) -> None:
    """Check that answers, counts and profile are equal, and figures to 1e-4."""
    for name in ("ids", "entropy_source", "suffix_tokens", "on_stop"):
        assert getattr(theirs, name) == getattr(ours, name), name
    for name in (
        *("trace_tokens", "prompt_tokens", "truncated", "natural_correct", "natural_tokens"),
        *("answer_codes", "correct", "probe_tokens", "markers"),
        *(("stop_correct", "visible_tokens") if ours.on_stop == "answer" else ()),
    ):
        np.testing.assert_array_equal(getattr(theirs, name), getattr(ours, name), name)
    for name in ("mean_logprob", "mean_entropy"):
        np.testing.assert_allclose(
            getattr(theirs, name), getattr(ours, name), rtol=0, atol=1e-4, err_msg=name
        )
    shares = [profile(trajectory(t), rng=np.random.default_rng(0)) for t in (theirs, ours)]
    assert shares[0] == shares[1]


def kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> dict[str, RawTrace]:
    """Record the traces that the engine returns, by the keys of their prompts."""
    asked, found = engine.probe_each, {}

    def probe_each(
        prompts: Sequence[Prompt], plan: ProbePlan, report: Callable[[int], None]
    ) -> Iterator[tuple[int, RawTrace]]:
        for number, trace in asked(prompts, plan, report):
            found[prompts[number].key] = trace
            yield number, trace

    monkeypatch.setattr(engine, "probe_each", probe_each)
    return found


def check_same_texts(theirs: RawTrace, ours: RawTrace) -> None:
    """Check that all texts are equal."""
    assert theirs.thinking == ours.thinking
    assert theirs.natural_text == ours.natural_text
    assert [p.text for p in theirs.probes] == [p.text for p in ours.probes]
    for p, q in zip(theirs.probes, ours.probes, strict=True):
        assert p.tail_mass is not None
        assert p.tail_mass == pytest.approx(q.tail_mass, abs=1e-4)


def test_same_probes_as_the_local_engine(
    served: OpenAiEngine,
    local: HfEngine,
    workload: Workload,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both kinds of answers: forced ones, and visible ones after a stop."""
    said, expected = (kept(engine, monkeypatch) for engine in (served, local))
    assert served.capabilities.entropy == PLAN.entropy
    plan = replace(PLAN, on_stop="answer")
    theirs = in_order(probed(served, workload, tmp_path / "served", plan).table().unseal())
    ours = in_order(probed(local, workload, tmp_path / "local", plan).table().unseal())

    assert theirs.n_questions == len(said) == N_QUESTIONS
    check_same(theirs, ours)
    for key, trace in said.items():
        check_same_texts(trace, expected[key])


def test_same_probes_at_own_positions(
    served: OpenAiEngine, local: HfEngine, workload: Workload, tmp_path: Path
) -> None:
    """With a stride and markers, each trace has its own positions."""
    marks = tuple(tuple(local.encode(text)) for text in (" Wait", " Alternatively", " Hold on"))
    plan = replace(PLAN, schedule="marker", markers=marks, min_gap=8, max_markers=2).with_stride(30)
    theirs = in_order(probed(served, workload, tmp_path / "served", plan).table().unseal())
    ours = in_order(probed(local, workload, tmp_path / "local", plan).table().unseal())
    assert not ours.is_grid
    np.testing.assert_array_equal(theirs.positions, ours.positions)
    np.testing.assert_array_equal(theirs.marker_positions, ours.marker_positions)
    check_same(theirs, ours)


def test_a_policy_recognises_the_model_at_either_engine(
    served: OpenAiEngine, local: HfEngine
) -> None:
    theirs, ours = policy_source(served.identity()), policy_source(local.identity())
    assert theirs["model"] == ours["model"]
    assert theirs["engine"]["name"] == "openai"
    for name in ("think_open", "think_close", "stop_ids", "chat_template_kwargs"):
        assert served.identity()[name] == local.identity()[name]


def test_sampled_traces_repeat_on_one_server(served: OpenAiEngine, workload: Workload) -> None:
    prompts = make_prompts(workload.questions, None)
    plan = replace(PLAN, budgets=(), max_think=40, greedy=False, temperature=2.0)
    first, again = traces_of(served, prompts, plan), traces_of(served, prompts, plan)
    assert [t.thinking for t in first] == [t.thinking for t in again]
    other = traces_of(served, prompts, replace(plan, seed=1))
    assert [t.thinking for t in first] != [t.thinking for t in other]
