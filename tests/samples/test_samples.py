"""The committed workloads and the bundled model are what the scripts say they are."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest

import questions
import traces
from make_workloads import SIZES, workload
from stopadvisor.ground.constants import CUES, DEFAULT_CUE, PROMPT_TEMPLATES

SAMPLES = Path(__file__).parents[2] / "samples"
MODEL = SAMPLES / "tiny-reasoner"
SIBLING = SAMPLES / "tinier-reasoner"
NO_THINKING = "<think>\n\n</think>\n\nFinal answer: "
TEXTS = [
    *PROMPT_TEMPLATES.values(),
    *CUES.values(),
    "\n 39 + 9 = 48\n So 48\n Wait, backwards:\n Hold on, again:\n",
    "".join(chr(code) for code in range(32, 127)),
    "tab\tand\r\nspaces  , before . punctuation ! 007 100 12345",
    "Grüße: ½ · 漢字 🙂",
]


@cache
def rows(kind: str) -> list[dict[str, str]]:
    lines = (SAMPLES / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


# --- Modules that take seconds to import ------------------------------------------------------


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def packing(transformers: Any) -> Any:
    return import_module("packing")


@pytest.fixture(scope="module")
def train(transformers: Any) -> Any:
    return import_module("train")


@pytest.fixture(scope="module")
def tokenizer(transformers: Any) -> Any:
    return transformers.AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def model(torch: Any, transformers: Any) -> Any:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    return loaded.eval()


def encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def render(tokenizer: Any, text: str, **options: Any) -> str:
    message = [{"role": "user", "content": text}]
    rendered: str = tokenizer.apply_chat_template(
        message, tokenize=False, add_generation_prompt=True, **options
    )
    return rendered


# --- Tokenizer --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_decoding_gives_the_text_back(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(encode(tokenizer, text)) == text


@pytest.mark.parametrize("kind", questions.KINDS)
def test_decoding_gives_every_prompt_back(tokenizer: Any, kind: str) -> None:
    for row in rows(kind):
        text = render(tokenizer, PROMPT_TEMPLATES[row["task"]].format(question=row["question"]))
        ids = encode(tokenizer, text)
        assert tokenizer.decode(ids) == text
        assert len(ids) <= 80


def test_numbers_are_single_tokens(tokenizer: Any) -> None:
    for number in range(100):
        assert len(encode(tokenizer, f" {number}")) == len(encode(tokenizer, str(number))) == 1


@pytest.mark.parametrize("answer", [" 42", " 7", " B"])
def test_closer_cue_and_answer_are_tokenised_alike_apart_and_joined(
    tokenizer: Any, answer: str
) -> None:
    pieces = [" So 42\n", "</think>", DEFAULT_CUE, answer]
    joined = encode(tokenizer, "".join(pieces))
    assert joined == [token for piece in pieces for token in encode(tokenizer, piece)]


def test_markers_survive_decoding_without_special_tokens(tokenizer: Any) -> None:
    text = "<think>\n So 42\n</think>\n\nFinal answer: 42"
    ids = encode(tokenizer, text + "<|im_end|>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    opener, closer = tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
    assert ids.count(opener) == ids.count(closer) == 1


def test_committed_tokenizer_is_the_one_the_script_builds(tokenizer: Any) -> None:
    built = import_module("vocabulary").build_tokenizer()
    assert tokenizer.get_vocab() == built.get_vocab()
    assert tokenizer.chat_template == built.chat_template


@pytest.mark.parametrize(
    ("options", "tail"),
    [
        ({}, "<|im_start|>assistant\n"),
        ({"enable_thinking": True}, "<|im_start|>assistant\n"),
        ({"enable_thinking": False}, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    ],
    ids=["default", "thinking", "no-thinking"],
)
def test_template_leaves_thinking_open_or_shuts_it(
    tokenizer: Any, options: dict[str, bool], tail: str
) -> None:
    assert render(tokenizer, "x", **options) == f"<|im_start|>user\nx<|im_end|>\n{tail}"


# --- Training examples ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", questions.KINDS)
def test_packed_examples_hold_what_the_tool_will_send(
    tokenizer: Any, packing: Any, kind: str
) -> None:
    packer, rng = packing.Packer(tokenizer), Random(5)
    for _ in range(20):
        question = questions.draw(kind, rng, held_out=False)
        template = PROMPT_TEMPLATES[question.task]
        prompt = encode(tokenizer, render(tokenizer, template.format(question=question.text)))
        assert packer.prompt(question, question.task) == prompt
        example = packer.pack(question, rng)
        trunk = tokenizer.decode(example.ids[: example.trunk])
        assert encode(tokenizer, trunk) == example.ids[: example.trunk]
        for begin, end, cut in example.branches:
            branch = tokenizer.decode(example.ids[begin:end])
            assert example.positions[begin:end] == list(range(cut, cut + end - begin))
            assert branch.startswith((f"</think>{DEFAULT_CUE} ", NO_THINKING))
            assert branch.endswith("<|im_end|>")


@pytest.mark.integration
def test_a_branch_sees_its_prefix_and_itself_alone(
    torch: Any, packing: Any, tokenizer: Any, model: Any
) -> None:
    question = questions.draw("arithmetic", Random(3), held_out=False)
    example = packing.Packer(tokenizer).pack(question, Random(3))
    batch = packing.collate([example], tokenizer.pad_token_id)
    with torch.inference_mode():
        packed = model(
            batch.ids, position_ids=batch.positions, attention_mask={"full_attention": batch.mask}
        ).logits[0]
        for begin, end, cut in example.branches:
            alone = model(torch.tensor([example.ids[:cut] + example.ids[begin:end]])).logits[0]
            torch.testing.assert_close(packed[begin:end], alone[cut:], atol=1e-3, rtol=0)


def test_the_last_claim_of_an_unslipped_trace_is_gold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "RANDOM_SLIP", 0.0)
    monkeypatch.setattr(traces, "_slip", lambda *_: 0)
    rng = Random(1)
    for kind in questions.KINDS:
        for _ in range(50):
            question = questions.draw(kind, rng, held_out=False)
            assert traces.think(question, rng)[-1].claim == question.gold


FIRST_BATCHES = "784e41870673cb467f2415e3b34576b7864a099c37a5feb1ba42168b599782ef"
"""SHA-256 of ids, positions and labels of the first group that the bundled model was trained on."""


def test_training_writes_over_no_model(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(train, "train", lambda steps, seed, out, hidden: asked.append(out))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py"])
    train.main()
    assert [path.resolve() for path in asked] == [tmp_path / "my-reasoner"]
    monkeypatch.setattr("sys.argv", ["train.py", "--out", str(MODEL)])
    with pytest.raises(SystemExit):
        train.main()
    assert f"--out {MODEL} is there already" in capsys.readouterr().err
    assert len(asked) == 1


@pytest.mark.integration
def test_interrupted_training_ends_where_it_would_have(
    torch: Any, transformers: Any, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(train, "GROUP", 1)
    monkeypatch.setattr(train, "BATCH", 2)
    train.train(5, 0, tmp_path / "whole", 64)
    taken = train.loss_of
    losses = iter(range(3))

    def fails_at_the_fourth(model: Any, batch: Any) -> Any:
        if next(losses, None) is None:
            raise KeyboardInterrupt
        return taken(model, batch)

    monkeypatch.setattr(train, "loss_of", fails_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        train.train(5, 0, tmp_path / "broken", 64)
    assert not (tmp_path / "broken").exists()
    losses = iter(range(3))  # the checkpoint is of the second step of five
    train.train(5, 0, tmp_path / "broken", 64)
    assert next(losses, None) is None
    assert not (tmp_path / "broken.checkpoint").exists()
    whole, broken = (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict()
        for name in ("whole", "broken")
    )
    for name, weights in whole.items():
        torch.testing.assert_close(broken[name], weights, atol=1e-3, rtol=0.02)


@pytest.mark.integration
def test_training_begins_with_the_same_batches_and_weights(
    torch: Any, packing: Any, train: Any, tokenizer: Any
) -> None:
    pad, end = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    drawn = train.batches(packing.Packer(tokenizer), 0, train.STEPS, pad)
    first = [next(drawn)[1] for _ in range(train.GROUP)]
    digest = hashlib.sha256()
    for batch in first:
        for tensor in (batch.ids, batch.positions, batch.labels):
            digest.update(tensor.numpy().astype("<i8").tobytes())
    assert digest.hexdigest() == FIRST_BATCHES
    torch.manual_seed(0)
    model = train.build_model(len(tokenizer), pad, end, train.HIDDEN)
    # bfloat16 sums differ in their last digits between machines.
    assert train.loss_of(model, first[0]).item() == pytest.approx(6.3317, abs=0.02)


# --- Workloads --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", questions.KINDS)
def test_workload_rows(kind: str) -> None:
    data = rows(kind)
    assert len(data) == SIZES[kind]
    assert len({row["id"] for row in data}) == len({row["question"] for row in data}) == len(data)
    for row in data:
        assert list(row) == ["id", "question", "gold", "task", "category"]
        assert row["task"] == questions.TASKS[kind]
        assert row["gold"] in (questions.RANGES if kind == "choice" else map(str, range(100)))


@pytest.mark.parametrize("kind", questions.KINDS)
def test_workload_questions_are_outside_the_training_data(kind: str) -> None:
    assert all(questions.is_held_out(row["question"]) for row in rows(kind))


def test_training_draws_no_held_out_question(
    packing: Any, train: Any, tokenizer: Any, monkeypatch: Any
) -> None:
    drawn = []

    def record(self: Any, question: questions.Question, rng: Random) -> Any:
        drawn.append(question.text)
        return packing.Example([0], [0], [packing.IGNORE], 1, [])

    monkeypatch.setattr(packing.Packer, "pack", record)
    for _ in train.batches(packing.Packer(tokenizer), 0, 80, 0):
        pass
    assert len(drawn) == 80 * train.BATCH
    assert not any(map(questions.is_held_out, drawn))
    assert not {row["question"] for kind in questions.KINDS for row in rows(kind)} & set(drawn)


@pytest.mark.parametrize("kind", questions.KINDS)
def test_workload_is_made_again_from_its_seed(kind: str) -> None:
    assert workload(kind, 100) == rows(kind)[:100]


# --- Model ------------------------------------------------------------------------------------


@pytest.mark.integration
def test_model_is_small(model: Any) -> None:
    assert sum(p.numel() for p in model.parameters()) <= 3_000_000
    assert sum(f.stat().st_size for f in MODEL.rglob("*")) <= 8_000_000
    assert model.config.model_type == "qwen3"
    assert not model.generation_config.do_sample


@pytest.mark.integration
def test_model_thinks_closes_and_answers(torch: Any, tokenizer: Any, model: Any) -> None:
    template = PROMPT_TEMPLATES["numeric"]
    question = "Compute 20 + 3 - 1 modulo 100."
    prompt = encode(tokenizer, render(tokenizer, template.format(question=question)) + "<think>")
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=900)[0, len(prompt) :].tolist()
    thinking, closer, reply = tokenizer.decode(ids).partition("</think>")
    assert closer
    assert thinking.startswith("\n 20 + 3: 0 + 3 = 3, so 23\n")
    assert reply.startswith(DEFAULT_CUE)
    assert reply.endswith("<|im_end|>")


@pytest.mark.integration
def test_the_sibling_is_a_third_of_its_size_and_right_on_fewer_questions(
    torch: Any, transformers: Any, model: Any
) -> None:
    measure = import_module("measure")
    small = transformers.AutoModelForCausalLM.from_pretrained(SIBLING, dtype=torch.float32)
    sizes = [sum(p.numel() for p in m.parameters()) for m in (small, model)]
    assert sizes[0] <= sizes[1] / 3
    asked = rows("hard")[:30]
    right = [
        sum(t.natural == t.gold for t in measure.run(measure.Reasoner(folder), asked))
        for folder in (SIBLING, MODEL)
    ]
    assert right[0] < right[1] / 2
