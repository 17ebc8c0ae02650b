"""Traces and forced answers of the hf engine, compared with plain generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stopadvisor.collection.collect import make_prompts
from stopadvisor.engines.answer_end import AnswerStops
from stopadvisor.engines.hf import load_engine
from stopadvisor.ground.errors import ModelError, ProbeError
from stopadvisor.probes.trigger import trace_positions
from stopadvisor.workload.questions import read_workload
from tests.engines.online_policies import TINY_REASONER
from tests.engines.tiny import Reprefill, check_against, plan, prompt, traces_of

if TYPE_CHECKING:
    from stopadvisor.engines.hf.branch import Branch
    from stopadvisor.engines.hf.engine import HfEngine

Script = Callable[[Sequence[Sequence[int]]], None]

EOS, CLOSE = 3, 261
"""Token ids of the byte tokenizer."""


def spied(monkeypatch: pytest.MonkeyPatch) -> list[list[Branch]]:
    """Record the branches of each call."""
    from stopadvisor.engines.hf.branch import probe_branches

    asked: list[list[Branch]] = []

    def spy(runner, kept, branches, *args, **kwargs):  # type: ignore[no-untyped-def]
        asked.append(list(branches))
        return probe_branches(runner, kept, branches, *args, **kwargs)

    monkeypatch.setattr("stopadvisor.engines.hf.branch.probe_branches", spy)
    return asked


def words(n: int, seed: int) -> list[int]:
    """Return n random tokens, none of which ends anything."""
    return [int(i) for i in np.random.default_rng(seed).integers(4, 260, n)]


@pytest.fixture
def many_stops(engines: dict[str, HfEngine]) -> dict[str, HfEngine]:
    """Engines with every ninth token as a stop id, so that branches finish one by one."""
    stop_ids = tuple(range(3, 260, 9))
    changed = {}
    for name, engine in engines.items():
        changed[name] = replace(engine)
        changed[name].stops = AnswerStops.of(engine.chat, stop_ids, 262)
    return changed


@pytest.mark.slow
@pytest.mark.usefixtures("set_aside_at_once")
@pytest.mark.parametrize("kind", ["full", "windowed"])
def test_probes_equal_reading_everything_again(
    kind: str, many_stops: dict[str, HfEngine], references: dict[str, Reprefill], script: Script
) -> None:
    engine, reference = many_stops[kind], references[kind]
    lengths = [0, 1, 5, 17, 30, 40, 12, 3, 25, 9]
    questions = [prompt("q" * (1 + 3 * i % 11)) for i in range(len(lengths))]
    traces = [words(n, seed=i) for i, n in enumerate(lengths)]
    script([[*t, CLOSE, *words(i % 7, seed=i), EOS] for i, t in enumerate(traces)])
    at = plan([0, 1, 2, 5, 11, 16, 20, 39, 40, 60], answer_cap=7)
    found = traces_of(engine, questions, at)
    assert len({p.probe_tokens for trace in found for p in trace.probes}) > 4
    for question, trace, ids in zip(questions, found, traces, strict=True):
        assert trace.trace_tokens == len(ids)
        assert trace.finish == "stop"
        check_against(reference, engine, question, trace, ids, at)


@pytest.mark.parametrize("kind", ["full", "windowed"])
def test_own_positions_equal_reading_everything_again(
    kind: str,
    many_stops: dict[str, HfEngine],
    references: dict[str, Reprefill],
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each trace has its own positions, probed in chunks."""
    from stopadvisor.engines.hf.branch import probe_in_chunks

    engine, reference = many_stops[kind], references[kind]
    in_chunks = partial(probe_in_chunks, at_once=3)
    monkeypatch.setattr("stopadvisor.engines.hf.engine.probe_in_chunks", in_chunks)
    asked = spied(monkeypatch)
    lengths = [0, 1, 5, 17, 30, 40, 12, 3, 25, 9]
    questions = [prompt("q" * (1 + 3 * i % 11)) for i in range(len(lengths))]
    traces = [words(n, seed=i) for i, n in enumerate(lengths)]
    for i, begin in ((3, 4), (4, 7), (4, 8), (4, 28), (5, 39), (6, 9)):
        # The marker at 39 is cut off by the end, so it does not count.
        traces[i][begin : begin + 2] = [10, 11] if begin != 39 else [10]
    script([[*t, CLOSE, *words(i % 7, seed=i), EOS] for i, t in enumerate(traces)])
    at = plan(schedule="marker", markers=((10, 11), (12,)), answer_cap=7).with_stride(4)
    found = traces_of(engine, questions, at)
    for question, trace, ids in zip(questions, found, traces, strict=True):
        where = trace_positions(at, ids)
        assert trace.thinking_ids == tuple(ids)
        assert [p.budget for p in trace.probes] == list(where.probed)
        assert [p.think_tokens for p in trace.probes] == list(where.probed)
        assert trace.marker_positions == where.markers
        assert not any(p.ended for p in trace.probes)
        check_against(reference, engine, question, trace, ids, at)
    assert len({len(trace.probes) for trace in found}) > 5
    assert max(max(Counter(b.row for b in call).values()) for call in asked) == 3
    assert len(asked) == 1 + 3  # of the two groups that leave the batch
    assert found[0].probes == ()


def test_hundreds_of_probes_take_the_memory_of_a_few(
    random_engine: HfEngine, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The width of the cache stays small while a trace is probed at all of its 300 tokens."""
    from stopadvisor.engines.hf.branch import MOST_AT_ONCE
    from stopadvisor.engines.hf.cache import Runner

    widest: list[int] = []
    forward = Runner.forward

    def spy(self, ids, positions, cache, *args, **kwargs):  # type: ignore[no-untyped-def]
        logits = forward(self, ids, positions, cache, *args, **kwargs)
        widest.append(cache.columns)
        return logits

    engine = random_engine
    at = plan(max_think=300, schedule="stride").with_stride(1)
    script([[*words(300, seed=0), CLOSE, EOS]])
    monkeypatch.setattr(Runner, "forward", spy)
    (trace,) = traces_of(engine, [prompt("a")], at)
    assert [p.budget for p in trace.probes] == list(range(1, 300))
    suffix = len(engine.suffix_ids(at.cue))
    start = len(engine.chat.prompt_ids(prompt("a").messages))
    assert max(widest) <= start + 300 + MOST_AT_ONCE * (suffix + at.cap)


@pytest.mark.gpu
def test_a_gpu_gives_what_reading_everything_again_gives(
    random_model: Path, random_reference: Reprefill, script: Script
) -> None:
    engine = load_engine(str(random_model), device="cuda", dtype="float32")
    lengths = [1, 40, 17, 9, 30, 12, 3, 25, 5]
    questions = [prompt("q" * (1 + 3 * i % 11)) for i in range(len(lengths))]
    traces = [words(n, seed=i) for i, n in enumerate(lengths)]
    script([[*t, CLOSE, EOS] for t in traces])
    at = plan([0, 2, 11, 20, 39])
    for question, trace, ids in zip(
        questions, traces_of(engine, questions, at), traces, strict=True
    ):
        check_against(random_reference, engine, question, trace, ids, at)


def test_budgets_are_obeyed_and_ended_ones_share_a_probe(
    random_engine: HfEngine, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = spied(monkeypatch)
    script([[*words(12, seed=1), CLOSE, 50, 51, EOS]])
    (trace,) = traces_of(random_engine, [prompt("a")], plan([0, 8, 12, 20, 32]))
    assert [p.budget for p in trace.probes] == [0, 8, 12, 20, 32]
    assert [p.think_tokens for p in trace.probes] == [0, 8, 12, 12, 12]
    assert [p.ended for p in trace.probes] == [False, False, True, True, True]
    assert [[b.tokens for b in call] for call in asked] == [[0, 8, 12]]
    assert len({(p.text, p.mean_logprob, p.mean_entropy) for p in trace.probes[2:]}) == 1
    assert all(np.isfinite(p.mean_logprob) and p.mean_logprob <= 0 for p in trace.probes)
    assert all(p.mean_entropy >= 0 and p.tail_mass is None for p in trace.probes)
    assert trace.natural_tokens == 4  # closer, two tokens, EOS
    assert trace.natural_text == random_engine.chat.decode([50, 51])


@pytest.mark.parametrize(
    ("generated", "tokens", "finish", "natural"),
    [
        pytest.param([9] * 60, 40, "length", None, id="never closed"),
        pytest.param([*[9] * 40, CLOSE, 10, EOS], 40, "stop", 3, id="closed at the cap"),
        pytest.param([*[9] * 41, CLOSE, 10, EOS], 40, "length", None, id="closed after the cap"),
        pytest.param([9, 9, EOS], 2, "stop", None, id="EOS while thinking"),
        pytest.param([CLOSE, EOS], 0, "stop", 2, id="no thinking"),
        pytest.param([9, CLOSE, *[10] * 60], 1, "stop", 7, id="answer cut at its cap"),
        pytest.param([9, CLOSE, 10, CLOSE, 11, EOS], 1, "stop", 5, id="closer in the answer"),
    ],
)
def test_where_a_trace_is_over(
    generated: list[int],
    tokens: int,
    finish: str,
    natural: int | None,
    random_engine: HfEngine,
    script: Script,
) -> None:
    script([generated, [9, 9, CLOSE, 10, 10, EOS]])
    trace, other = traces_of(random_engine, [prompt("a"), prompt("bcd")], plan([0, 1, 100]))
    assert (trace.trace_tokens, trace.finish) == (tokens, finish)
    assert trace.natural_tokens == (natural or 0)
    assert (trace.natural_text is None) == (natural is None)
    assert trace.probes[-1].think_tokens == tokens
    assert (other.trace_tokens, other.finish, other.natural_tokens) == (2, "stop", 4)


def test_a_closer_of_several_tokens(random_model: Path, script: Script) -> None:
    engine = load_engine(str(random_model), device="cpu", think_tags=("[[", "]]>"))
    closer = list(engine.chat.closer.ids)
    assert len(closer) == 3
    half = closer[:2]
    script([[*half, 9, *half, *closer, 10, EOS], [9] * 60, [*[9] * 38, *closer, EOS]])
    first, cut, late = traces_of(engine, [prompt(c) for c in "abc"], plan([0, 3, 64]))
    assert (first.trace_tokens, first.finish, first.natural_tokens) == (5, "stop", 5)
    assert (cut.trace_tokens, cut.finish) == (40, "length")
    assert (late.trace_tokens, late.finish, late.natural_tokens) == (38, "stop", 4)
    assert engine.suffix_ids("x")[:3] == closer
    assert first.suffix_tokens == 3 + len("\n\nAnswer:")


@pytest.mark.slow
def test_padding_and_batch_mates_change_nothing(random_engine: HfEngine) -> None:
    questions = [prompt("x" * n) for n in (1, 30, 7, 2, 90, 4, 5, 11)]
    at = plan([0, 4, 16, 40])
    together = traces_of(random_engine, questions, at)
    for question, batched in zip(questions, together, strict=True):
        (alone,) = traces_of(random_engine, [question], at)
        assert batched.thinking == alone.thinking
        assert batched.natural_text == alone.natural_text
        for a, b in zip(alone.probes, batched.probes, strict=True):
            assert (a.text, a.probe_tokens, a.markers) == (b.text, b.probe_tokens, b.markers)
            assert a.mean_logprob == pytest.approx(b.mean_logprob, abs=5e-5)
            assert a.mean_entropy == pytest.approx(b.mean_entropy, abs=5e-5)


def test_sampling_is_seeded_per_question(random_engine: HfEngine) -> None:
    def thinking(seed: int, sample: int) -> str:
        return traces_of(random_engine, [prompt("a", sample)], plan(seed=seed))[0].thinking

    assert thinking(0, 0) == thinking(0, 0)
    assert len({thinking(0, 0), thinking(1, 0), thinking(0, 1)}) == 3


def test_top_k_entropy_is_over_raw_probabilities(random_engine: HfEngine, script: Script) -> None:
    script([[*words(9, seed=3), CLOSE, EOS]])
    question, at = prompt("a"), plan([0, 5], cap=1, entropy="top-k:4")
    full = traces_of(random_engine, [question], replace(at, entropy="full"))[0].probes
    top = traces_of(random_engine, [question], at)[0].probes
    width = traces_of(random_engine, [question], replace(at, entropy="top-k:9999"))[0].probes
    for f, t, w in zip(full, top, width, strict=True):
        assert (t.text, t.mean_logprob) == (f.text, f.mean_logprob)
        assert 0 < t.mean_entropy < f.mean_entropy
        assert t.tail_mass is not None
        assert 0 < t.tail_mass < 1
        assert w.mean_entropy == pytest.approx(f.mean_entropy, abs=1e-5)
        assert w.tail_mass == pytest.approx(0.0, abs=1e-5)
    with pytest.raises(ProbeError, match="'top-k:0'"):
        traces_of(random_engine, [question], replace(at, entropy="top-k:0"))


def test_a_trace_goes_on_unmodified_after_a_probe(
    random_engine: HfEngine, random_reference: Reprefill
) -> None:
    """In-line probing: generate to a budget, branch, resume."""
    import torch

    from stopadvisor.engines.hf.branch import Branch, probe_branches

    engine, at = random_engine, plan(greedy=True)
    start = [engine.chat.prompt_ids(prompt(c).messages) for c in ("a", "bcd")]
    suffix = engine.suffix_ids(at.cue)
    with torch.inference_mode():
        (whole,) = engine.batch(engine.begin([prompt("a"), prompt("bcd")], at)).finished()
        probed = engine.batch(engine.begin([prompt("a"), prompt("bcd")], at))
        for budget in (0, 3, 11):
            while probed.steps < budget:
                probed.step()
            branches = [Branch(0, budget), Branch(1, budget)]
            answers = probe_branches(engine.runner, probed.kept, branches, engine.stops, at)
            prefix = [*start[1], *whole.traces[1].ids[:budget], *suffix]
            plain = random_reference.forced(prefix, len(answers[1].ids))
            assert answers[1].ids == plain.ids
        (resumed,) = probed.finished()
    assert [t.ids for t in resumed.traces] == [t.ids for t in whole.traces]
    for one, other in zip(resumed.kept.layers, whole.kept.layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)


def test_thinking_is_cut_where_the_context_ends(random_engine: HfEngine, script: Script) -> None:
    script([[9] * 1000])
    engine = replace(random_engine, remarks=[])
    questions, at = [prompt("a" * 400)], plan([0], max_think=4096)
    (trace,) = traces_of(engine, questions, at)
    assert trace.trace_tokens == engine.longest_thinking(questions, at)
    assert trace.prompt_tokens + trace.trace_tokens + trace.suffix_tokens + 10 == engine.context
    assert trace.finish == "length"
    assert engine.remarks == [
        "thinking is cut before 4096 tokens for some questions: the model's context is 512 tokens"
    ]
    with pytest.raises(ModelError, match="a prompt of 603 tokens leaves no room"):
        traces_of(engine, [prompt("a" * 600)], plan([0]))


def test_tokens_are_reported_as_they_are_drawn(random_engine: HfEngine) -> None:
    reported: list[int] = []
    prompts, engine = [prompt(f"{i}") for i in range(3)], random_engine
    traces = [t for _, t in engine.probe_each(prompts, plan([0]), reported.append)]
    drawn = sum(t.trace_tokens + t.natural_tokens for t in traces)
    assert reported[0] == 3
    # A trace that is cut generates one token after the cut, to see whether it closes.
    assert drawn <= sum(reported) <= drawn + 3 * (1 + len(engine.chat.closer.ids))


def test_traces_are_yielded_before_the_longest_is_drawn(
    random_engine: HfEngine, script: Script
) -> None:
    script([[9] * 5 + [*random_engine.chat.closer.ids]] * 7 + [[9] * 40])
    reported: list[int] = []
    prompts, at = [prompt(f"{i}") for i in range(8)], plan([0, 8])
    drawn = [(n, len(reported)) for n, _ in random_engine.probe_each(prompts, at, reported.append)]
    assert [n for n, _ in drawn] == list(range(8))
    assert drawn[0][1] == drawn[6][1] < drawn[7][1] == len(reported)


def test_the_automatic_batch_is_reported(random_engine: HfEngine) -> None:
    engine = replace(random_engine, remarks=[])
    assert engine.auto_batch_size(plan([0, 8])) == 1024
    assert engine.remarks[0].startswith("batch size 1024: ")


def test_an_automatic_batch_fits_into_memory(
    random_engine: HfEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stopadvisor.engines.hf.engine.batch_memory", lambda device: 10**8)
    engine, at = replace(random_engine, remarks=[]), plan([0, 8])
    fits = [engine.auto_batch_size(replace(at, on_stop=what)) for what in ("probe", "answer")]
    assert fits[1] == pytest.approx(fits[0] / 2, rel=0.05)  # visible answers grow on a copy
    branches = 2 * (len(engine.suffix_ids(at.cue)) + at.cap)
    assert engine.context is not None
    assert f" a trace of up to {engine.context + branches} tokens, 0.1 GB" in engine.remarks[0]
    assert engine.auto_batch_size(plan([0, 8, 12, 16])) < fits[0]
    monkeypatch.setattr("stopadvisor.engines.hf.engine.batch_memory", lambda device: 0)
    assert engine.auto_batch_size(at) == 1


@pytest.mark.integration
@pytest.mark.parametrize("workload", ["arithmetic", "choice"])
def test_the_tiny_reasoner_reasons(
    tiny_reasoner: HfEngine, tiny_reference: Reprefill, workload: str
) -> None:
    """Greedy traces and probes of a real model equal those of transformers."""
    import torch

    engine = tiny_reasoner
    file = TINY_REASONER.parent / f"{workload}.jsonl"
    shortest = sorted(read_workload(file).questions, key=lambda question: question.category or "")
    questions = make_prompts(shortest[:1], None)
    at = plan([0, 8, 16, 40, 64, 128], cue="\n\nFinal answer:", max_think=960, answer_cap=32)
    for question, trace in zip(questions, traces_of(engine, questions, at), strict=True):
        start = engine.chat.prompt_ids(question.messages)
        out = tiny_reference.model.generate(
            torch.tensor([start]), do_sample=False, max_new_tokens=1000
        )
        plain = out[0, len(start) :].tolist()
        thinking = plain[: plain.index(engine.chat.closer.ids[0])]
        assert trace.trace_tokens == len(thinking)
        assert trace.thinking == engine.chat.decode(thinking)
        assert trace.natural_tokens == len(plain) - len(thinking)
        check_against(tiny_reference, engine, question, trace, thinking, at)
