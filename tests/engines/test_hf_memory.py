"""Early exit on a local model that runs out of memory or returns numbers that are not finite."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import pytest

from stopadvisor.engines import OutOfMemory
from stopadvisor.ground.errors import EngineError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import OnStop, Reply, make_requests, policy_plan
from stopadvisor.workload.questions import Question
from tests.engines.online_policies import rule
from tests.engines.tiny import plan, prompt, traces_of
from tests.material import easiest

if TYPE_CHECKING:
    from torch import Tensor

    from stopadvisor.engines.hf.cache import Runner
    from stopadvisor.engines.hf.engine import HfEngine
    from stopadvisor.engines.hf.local_model import RollingBatch

pytestmark = pytest.mark.slow

N = 6
SIZE = 4
"""Batch size: smaller than N, so that some questions wait."""

HF = "stopadvisor.engines.hf"
FORWARD = f"{HF}.cache.Runner.forward"
PHASES = {
    "the first prompts": f"{HF}.local_model.RollingBatch.__init__",
    "drawing": f"{HF}.local_model.RollingBatch.step",
    "probing": f"{HF}.early_exit.probe_branches",
    "probing traces": f"{HF}.engine.probe_in_chunks",
    "writing": f"{HF}.local_model.LocalModel.write",
}
"""The functions that allocate memory."""


def inside(patch: pytest.MonkeyPatch, phase: str) -> Callable[[], bool]:
    """Return a function that says whether the phase is running, until the patch is undone."""
    work, depth = resolve_name(PHASES[phase]), [0]

    def enter(*args: Any, **options: Any) -> Any:
        depth[0] += 1
        try:
            return work(*args, **options)
        finally:
            depth[0] -= 1

    patch.setattr(PHASES[phase], enter)
    return lambda: depth[0] > 0


@pytest.fixture(scope="module")
def questions() -> tuple[Question, ...]:
    return tuple(easiest(N))


@pytest.fixture(scope="module")
def policy(tiny_reasoner: HfEngine) -> Policy:
    """Stops most questions, at different positions."""
    return rule(tiny_reasoner, "run-stability", 2.0, budgets=[0, 16, 32], max_think=40)


@pytest.fixture
def run_out(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Make memory run out within one phase; returns the rows of each call that failed."""
    from torch import OutOfMemoryError

    def install(phase: str, *, times: int = 1, after: int = 0) -> list[int]:
        failed: list[int] = []
        asked = [0]
        within, forward = inside(monkeypatch, phase), resolve_name(FORWARD)

        def fail(self: Runner, ids: Tensor, *args: Any, **options: Any) -> Tensor:
            asked[0] += within()
            if within() and asked[0] > after and len(failed) < times:
                failed.append(len(ids))
                raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            logits: Tensor = forward(self, ids, *args, **options)
            return logits

        monkeypatch.setattr(FORWARD, fail)
        return failed

    return install


def ask(
    engine: HfEngine,
    questions: Sequence[Question],
    policy: Policy,
    size: int,
    on_stop: OnStop = "probe",
) -> Iterator[tuple[int, Reply]]:
    plan = replace(policy_plan(policy), on_stop=on_stop)
    return engine.serve(make_requests(questions, policy), plan, policy, batch_size=size)


def serve(*args: Any, **options: Any) -> list[tuple[int, Reply]]:
    return list(ask(*args, **options))


@pytest.fixture(scope="module")
def undisturbed() -> dict[OnStop, dict[int, Reply]]:
    """Replies without any fault, filled in on first use."""
    return {}


def timeless(replies: Iterable[tuple[int, Reply]]) -> dict[int, Reply]:
    return {number: replace(reply, seconds=0.0) for number, reply in replies}


# --- Memory ---


@pytest.mark.parametrize(
    ("phase", "after"), [("the first prompts", 0), ("drawing", 20), ("probing", 2), ("writing", 0)]
)
def test_memory_that_ends_costs_no_answer(
    phase: str,
    after: int,
    tiny_reasoner: HfEngine,
    questions: Sequence[Question],
    policy: Policy,
    undisturbed: dict[OnStop, dict[int, Reply]],
    run_out: Callable[..., list[int]],
) -> None:
    """Replies yielded before stay valid, and the others are correct in smaller batches."""
    on_stop: OnStop = "answer" if phase == "writing" else "probe"
    if on_stop not in undisturbed:
        whole = serve(tiny_reasoner, questions, policy, SIZE, on_stop=on_stop)
        undisturbed[on_stop] = timeless(whole)
    expected = undisturbed[on_stop]
    assert 2 < sum(reply.finish == "stopped" for reply in expected.values()) <= N
    failed, found = run_out(phase, after=after), dict[int, Reply]()
    asked = ask(tiny_reasoner, questions, policy, SIZE, on_stop=on_stop)
    with pytest.raises(OutOfMemory, match=f"^{SIZE} questions at once do not fit into memory"):
        found.update(asked)
    assert len(failed) == 1
    left = [number for number in range(N) if number not in found]
    rest = [questions[number] for number in left]
    again = serve(tiny_reasoner, rest, policy, SIZE // 2, on_stop=on_stop)
    found |= {left[number]: reply for number, reply in again}
    assert timeless(found.items()) == expected


def test_one_question_that_does_not_fit_is_an_error_in_one_line(
    tiny_reasoner: HfEngine,
    questions: Sequence[Question],
    policy: Policy,
    run_out: Callable[..., list[int]],
) -> None:
    run_out("drawing")
    with pytest.raises(OutOfMemory) as caught:
        serve(tiny_reasoner, questions, policy, 1)
    assert str(caught.value) == (
        "1 question at once does not fit into memory: CUDA out of memory. Tried to allocate 2.00 "
        "GiB."
    )
    assert caught.value.exit_code == 1


def test_the_memory_of_what_failed_is_given_back(
    tiny_reasoner: HfEngine,
    questions: Sequence[Question],
    policy: Policy,
    run_out: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next attempt with a smaller batch needs the memory of the larger one."""
    from stopadvisor.engines.hf.local_model import RollingBatch

    batches: list[weakref.ref[RollingBatch]] = []
    make = RollingBatch.__init__

    def watched(self: RollingBatch, *args: Any, **options: Any) -> None:
        batches.append(weakref.ref(self))
        make(self, *args, **options)

    monkeypatch.setattr(RollingBatch, "__init__", watched)
    run_out("probing", after=1)
    gc.disable()
    try:
        with pytest.raises(OutOfMemory):
            serve(tiny_reasoner, questions, policy, SIZE)
        assert [batch() for batch in batches] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        ("expected scalar type Float but found Half", RuntimeError, "expected scalar type"),
        ("DefaultCPUAllocator: can't allocate memory", OutOfMemory, "3 questions at once do not"),
        ("not enough memory: you tried to allocate 80 bytes", OutOfMemory, "fit into memory: not"),
    ],
)
def test_a_processor_says_in_words_that_memory_ends(
    words: str,
    kind: type[Exception],
    says: str,
    tiny_reasoner: HfEngine,
    questions: Sequence[Question],
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: Runner, *args: Any, **options: Any) -> Tensor:
        raise RuntimeError(words)

    monkeypatch.setattr(FORWARD, fail)
    with pytest.raises(kind, match=says):
        serve(tiny_reasoner, questions, policy, 3)


@pytest.mark.parametrize("phase", ["the first prompts", "drawing", "probing traces"])
def test_memory_that_ends_while_traces_are_collected(
    phase: str, random_engine: HfEngine, run_out: Callable[..., list[int]]
) -> None:
    prompts, at = [prompt("a"), prompt("bcd")], plan([0, 4, 9])
    whole = traces_of(random_engine, prompts, at)
    run_out(phase)
    with pytest.raises(OutOfMemory, match="a batch of 2 does not fit into memory: CUDA out of"):
        traces_of(random_engine, prompts, at)
    assert traces_of(random_engine, prompts, at) == whole


# --- Numbers ---


@contextmanager
def spoiled(monkeypatch: pytest.MonkeyPatch, value: float, phase: str, row: int) -> Iterator[None]:
    """Replace one row's logits in a phase, from its second forward pass on."""
    forward, passes = resolve_name(FORWARD), [0]
    with monkeypatch.context() as patch:
        within = inside(patch, phase)

        def spoil(self: Runner, ids: Tensor, *args: Any, **options: Any) -> Tensor:
            logits: Tensor = forward(self, ids, *args, **options)
            passes[0] += within()
            if within() and passes[0] > 1 and len(logits) > row:
                logits = logits.clone()
                logits[row] = value
            return logits

        patch.setattr(FORWARD, spoil)
        yield


@pytest.mark.parametrize(
    ("phase", "value"),
    [("probing", "nan"), ("drawing", "nan"), ("drawing", "inf"), ("writing", "-inf")],
)
def test_numbers_that_are_none_end_in_one_line(
    phase: str,
    value: str,
    tiny_reasoner: HfEngine,
    questions: Sequence[Question],
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with spoiled(monkeypatch, float(value), phase, 1), pytest.raises(EngineError) as caught:
        serve(tiny_reasoner, questions, policy, SIZE, on_stop="answer")
    assert not isinstance(caught.value, OutOfMemory)
    assert "not finite; another dtype may help (--dtype float32)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1
