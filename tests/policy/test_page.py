"""The page about the policy file: the code on it decides as the package does."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.policy import terms
from stopadvisor.policy.file import encode_policy, sealed
from stopadvisor.policy.frozen import load_policy, save_policy
from tests.blocks.policy import field_rows
from tests.policy_content import (
    built,
    example_contents,
    family_content,
    ladder_content,
    policy_from,
)

PACKAGE = Path(terms.__file__).parent
PAGE = (PACKAGE / "README.md").read_text(encoding="utf-8")
POLICIES = Path(__file__).parents[2] / "policies"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SHIPPED = sorted(path.stem for path in POLICIES.glob("*.joblib"))
NAMES = [*example_contents(), *SHIPPED]


@cache
def content_of(name: str) -> dict[str, Any]:
    if name in SHIPPED:
        return load_policy(POLICIES / f"{name}.joblib").content
    return built(example_contents()[name])


def snippet(name: str) -> Any:
    """The function of this name, out of the snippet that defines it."""
    (body,) = [body for body in SNIPPETS if f"def {name}(" in body]
    found: dict[str, Any] = {}
    exec(compile(body, f"policy/README.md: {name}", "exec"), found)
    return found[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_rule_on_the_page_gives_every_golden_decision(name: str) -> None:
    content = json.loads(json.dumps(content_of(name)))
    decisions = snippet("climbed" if "ladder" in content else "decisions")
    for example in content["golden"]:
        found = [
            {"stop": stop, "score": score} for stop, score in decisions(content, example["steps"])
        ]
        if content["family"] == "confidence-leap":
            assert [row["stop"] for row in found] == [row["stop"] for row in example["decisions"]]
            for row, expected in zip(found, example["decisions"], strict=True):
                assert row["score"] == pytest.approx(expected["score"], rel=1e-12, abs=1e-12)
        else:
            assert found == example["decisions"]
    assert bool(content["golden"]) == (content["kind"] == "stop")


@pytest.mark.parametrize("name", ["learned", "full-budget", "ladder", SHIPPED[0]])
def test_the_reader_on_the_page_reads_either_file(name: str) -> None:
    content = content_of(name)
    read, text = snippet("read"), sealed(content)[0]
    for data in (encode_policy(text, "json"), encode_policy(text, "joblib"), pickle.dumps(text, 4)):
        assert read(data) == content
        with pytest.raises(AssertionError, match="changed after it was written"):
            read(
                data.replace(b'"seed": 0', b'"seed": 1').replace(b'"split": null', b'"split": []  ')
            )


@dataclass
class Probe:
    text: str
    mean_logprob: float
    mean_entropy: float = 0.1


@dataclass
class MadeUpRequest:
    """Thinks 70 tokens and closes; is surer of its answer with every probe."""

    closer_tokens: int = 2
    drawn: int = 0
    probed: list[int] = field(default_factory=list)
    thinking_tokens: int = 70
    cut: bool = False

    @property
    def thinking_ended(self) -> bool:
        return self.drawn >= self.thinking_tokens + self.closer_tokens

    def draw(self, until: int | None) -> list[int]:
        before, end = self.drawn, self.thinking_tokens + self.closer_tokens
        self.drawn = end if until is None else min(until, end)
        return [0] * (self.drawn - before)

    def force_answer(self, position: int) -> Probe:
        self.probed.append(position)
        return Probe(" 7", -1.0 / len(self.probed))

    def thinking_text(self, position: int) -> str:
        return "Wait. " * position

    def close_and_answer(self, position: int) -> str:
        return f"written after {position}"

    def own_answer(self) -> str:
        return "its own"


@pytest.mark.parametrize(
    ("family", "threshold", "on_stop", "said", "probed"),
    [
        ("confidence", -0.4, "probe", " 7", [0, 16, 32]),
        ("confidence", -0.4, "answer", "written after 32", [0, 16, 32]),
        ("confidence", -1e-6, "probe", "its own", [0, 16, 32, 64]),
        ("fixed-budget", 20.0, "probe", " 7", [20]),
        ("fixed-budget", 20.0, "answer", "written after 20", []),
    ],
)
def test_the_loop_on_the_page_serves(
    family: str,
    threshold: float,
    on_stop: str,
    said: str,
    probed: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    content = family_content(family, threshold) | {"on_stop": on_stop}
    save_policy(policy_from(content), "policy.joblib")
    request = MadeUpRequest()
    assert snippet("answer")(request) == said
    assert request.probed == probed


def test_every_snippet_is_run() -> None:
    assert len(SNIPPETS) == 6


def test_every_field_says_what_it_means() -> None:
    rows = list(field_rows(terms.PolicyTerms))
    assert len(rows) > 100
    for name, _, meaning in rows:
        assert meaning.endswith("."), name


def test_what_the_page_says_about_loading_is_so() -> None:
    policy = policy_from(family_content("learned"))
    assert f"`schema` is {policy.content['schema']}" in PAGE
    assert f"this package has ({policy.content['normalizer']})" in PAGE


@dataclass
class Reply:
    answer: str
    completion_tokens: int
    finished: bool = True
    mean_logprob: float | None = None


@pytest.mark.parametrize(("tokens", "served"), [(400, "small"), (600, "large")])
def test_the_climb_on_the_page_serves(
    tokens: int, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_policy(policy_from(ladder_content()), "policy.joblib")
    asked = []

    def ask(rung: Any, question: Any, *, max_tokens: int | None) -> Reply:
        asked.append((rung.name, max_tokens))
        return Reply("7", tokens)

    question = Reply("", 0)
    question.task = "numeric"  # type: ignore[attr-defined]
    name, reply = snippet("climb")(question, ask)
    assert (name, reply.answer) == (served, "7")
    assert asked == [("small", 500), ("large", None)][: 1 if served == "small" else 2]
