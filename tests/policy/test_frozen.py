"""Whole policies: their content, and that they are the same after saving and loading."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import re
import stat
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.ground.errors import OutputError, PolicyError
from stopadvisor.ground.fields import plain
from stopadvisor.policy import file as policy_file
from stopadvisor.policy import frozen
from stopadvisor.policy.frozen import Policy, load_policy, save_policy
from stopadvisor.policy.terms import PolicyTerms
from stopadvisor.probes.trigger import MarkerTrigger, stride
from stopadvisor.rules.families import FAMILIES, display_threshold
from tests.policy_content import (
    TRIGGERS,
    built,
    checked,
    example_content,
    example_contents,
    family_content,
    file_bytes,
    full_budget_content,
    ladder_content,
    policy_from,
    terms_of,
    trigger_content,
)

ROOT = Path(__file__).resolve().parent.parent.parent
FORMATS: tuple[policy_file.Format, ...] = ("joblib", "json")
KEYS = re.findall(
    r"\S+",
    """
schema digest kind family decision_threshold threshold on_stop trigger budgets probe features mean
scale coef intercept markers task normalizer grader entropy_source prompt_template
chat_template_kwargs sampling max_think model engine certificate expected serving created versions
workload_sha256 profile trees order split calibration_features served golden
""",
)


# --- Content --------------------------------------------------------------------------------------


def test_fields_are_in_order_the_rule_first_and_its_evidence_last() -> None:
    every = [field.name for field in fields(PolicyTerms)]
    assert list(built(example_content())) == KEYS
    assert list(built(ladder_content())) == every
    assert [name for name in every if name != "ladder"] == KEYS


@pytest.mark.parametrize("name", example_contents())
def test_a_policy_survives_its_file(tmp_path: Path, name: str) -> None:
    policy = policy_from(example_contents()[name])
    terms, content = policy.terms, policy.content
    for format in FORMATS:
        path = tmp_path / format / "policy"
        path.parent.mkdir()
        save_policy(policy, path, format=format)
        loaded = load_policy(str(path))
        assert json.dumps(loaded.content) == json.dumps(content)  # types and order of keys too
        assert os.listdir(path.parent) == [path.name]
        first = path.read_bytes()
        save_policy(loaded, path, format=format)
        assert path.read_bytes() == first
    if name in TRIGGERS:
        assert policy.trigger == TRIGGERS[name]
    if terms.probe is not None:
        assert terms.probe.open_cue == (name == "open-cue")
    assert terms.grading == {key: content[key] for key in ("normalizer", "grader")}


def test_anyone_can_read_the_file(tmp_path: Path) -> None:
    content = built(example_content())
    path = tmp_path / "policy.joblib"
    save_policy(checked(content), path)
    save_policy(checked(content), path.with_suffix(".json"), format="json")
    text = path.with_suffix(".json").read_text(encoding="ascii")
    assert text == joblib.load(path) == pickle.loads(path.read_bytes())
    assert path.read_bytes().startswith(b"\x80\x04"), "protocol 4, whichever Python writes it"
    assert json.loads(text) == content
    assert list(json.loads(text)) == KEYS
    lines = text.splitlines()
    assert lines[:3] == ["{", ' "schema": 3,', f' "digest": "{content["digest"]}",']
    assert max(map(len, lines)) < 120  # and a diff shows what changed
    assert '\n "certificate": {\n  "alpha": ' in text
    other = file_bytes(content | {"max_think": 513}) != file_bytes(content)
    assert other


def test_building_is_deterministic_and_repeatable() -> None:
    content = built(example_content())
    assert built(example_content()) == content
    assert built(content) == content  # schema, golden and digest are rebuilt


def test_the_digest_is_that_of_the_text_without_it() -> None:
    text, digest = policy_file.sealed(built(example_content()))
    assert text.count(digest) == 1
    whole = text.replace(digest, "0" * 64)
    assert hashlib.sha256(whole.encode("ascii")).hexdigest() == digest


def test_a_text_may_be_written_in_any_way(tmp_path: Path) -> None:
    """White space and escapes do not matter to a reader, as long as the digest is of that text."""
    content = built(example_content())
    path = tmp_path / "policy.json"
    path.write_bytes(file_bytes(content))  # on one line
    policy = load_policy(path)
    assert policy.digest != content["digest"]
    assert plain(policy.content) | {"digest": ""} == content | {"digest": ""}


def test_numpy_values_and_tuples_become_plain() -> None:
    plain = built(example_content())
    content = example_content()
    content["mean"] = np.array(content["mean"])
    content["coef"] = tuple(np.float64(c) for c in content["coef"])
    content["budgets"] = np.array(content["budgets"])
    content["split"]["seed"] = np.int64(0)
    content["sampling"]["greedy"] = np.bool_(False)
    assert frozen.build_policy(terms_of(content)).content == plain
    whole = example_content(
        intercept=1, decision_threshold=2, threshold=display_threshold("learned", 2)
    )
    assert built(whole)["intercept"] == 1.0
    assert type(built(whole)["decision_threshold"]) is float


@pytest.mark.parametrize(
    "value",
    [np.longdouble(1), np.zeros(2, dtype=complex), {1, 2}, b"x", 1j, Path("x"), math, object()],
    ids=lambda value: type(value).__name__,
)
def test_other_objects_are_no_content(value: Any) -> None:
    with pytest.raises(PolicyError, match=r"expected a plain value|levels deep"):
        frozen.build_policy(terms_of(example_content(chat_template_kwargs={"x": value})))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("coef", (), "field 'coef': expected a list, got ()"),
        ("chat_template_kwargs", {"x": (1,)}, "field 'chat_template_kwargs.x': expected a plain"),
        ("created", np.float64(1), "field 'created': expected a date"),
    ],
)
def test_in_memory_only_plain_types_are_a_policy(field: str, value: Any, message: str) -> None:
    with pytest.raises(PolicyError) as refused:
        checked(built(example_content()) | {field: value})
    assert str(refused.value).startswith(message)


def test_arguments_are_nested_eight_levels_deep_at_most() -> None:
    def nested(depth: int) -> Any:
        value: Any = 1
        for k in range(depth):
            value = [value] if k % 2 else {"a": value}
        return value

    content = example_content(chat_template_kwargs={"a": nested(7)})
    assert built(content)["chat_template_kwargs"] == {"a": nested(7)}
    with pytest.raises(PolicyError, match=r"chat_template_kwargs.*at most 8 levels"):
        built(example_content(chat_template_kwargs={"a": nested(8)}))
    assert plain(nested(24)) == nested(24)
    with pytest.raises(PolicyError, match="at most 24 levels deep"):
        plain(nested(25))


# --- Random policies ------------------------------------------------------------------------------


@st.composite
def valid_contents(draw: st.DrawFn) -> dict[str, Any]:
    """A rule of any family with any threshold, at a grid, a stride or markers."""
    family = draw(st.sampled_from(FAMILIES))
    sure = (-5.0, -0.001) if family in ("confidence", "deer", "entropy") else (-20.0, 20.0)
    whole = st.integers(0, 20_000).map(float)
    linear = whole if family == "fixed-budget" else st.floats(*sure, allow_subnormal=False)
    content = family_content(family, draw(linear)) | {"max_think": 10**6}
    if family == "fixed-budget":
        return content
    if family.startswith("learned"):
        numbers = st.floats(-50, 50, allow_subnormal=False)
        for key in ("mean", "coef"):
            content[key] = [draw(numbers) for _ in content["features"]]
    stop_at = draw(st.none() | st.integers(0, 3000))
    where = draw(st.sampled_from(["grid", "stride", "marker"]))
    if where == "grid" or family.startswith("learned"):  # which reads where on a grid it is
        budgets = draw(st.sets(st.integers(0, 20_000), min_size=1, max_size=12))
        return content | {"budgets": sorted(budgets)}
    if where == "stride":
        first = draw(st.none() | st.integers(0, 400))
        return content | trigger_content(stride(draw(st.integers(1, 400)), 500, first, stop_at))
    gap, most = draw(st.integers(1, 90)), draw(st.integers(1, 40))
    counted = draw(st.none() | st.integers(1, 40))
    return content | trigger_content(MarkerTrigger(((5, 6), (7,)), gap, most, counted, stop_at))


@pytest.mark.slow
@settings(max_examples=25)
@given(content=valid_contents())
def test_random_policies_survive_their_files(content: dict[str, Any]) -> None:
    policy = policy_from(content)
    assert Policy.of(file_bytes(policy.content, "joblib")).rule == policy.rule
    for format in FORMATS:
        again = Policy.of(policy_file.encode_policy(policy_file.sealed(policy.content)[0], format))
        assert json.dumps(again.content) == json.dumps(policy.content)


# --- The class, and writing -----------------------------------------------------------------------


def test_terms_cannot_be_changed_and_content_is_a_copy() -> None:
    policy = policy_from(example_content())
    terms, before = policy.terms, json.dumps(policy.content)
    with pytest.raises(FrozenInstanceError):
        terms.task = "math"  # type: ignore[misc]
    assert terms.certificate is not None
    with pytest.raises(FrozenInstanceError):
        terms.certificate.alpha = 0.5  # type: ignore[misc]
    with pytest.raises(TypeError):
        terms.versions["numpy"] = "0"  # type: ignore[index]
    assert isinstance(terms.coef, tuple)
    assert isinstance(terms.golden[0].steps, tuple)
    policy.content["certificate"]["alpha"] = 0.5
    policy.content["golden"].clear()
    assert json.dumps(policy.content) == before


def test_full_budget_observes_nothing() -> None:
    policy = policy_from(full_budget_content())
    assert policy.budgets == ()
    assert policy.family is None
    assert policy.terms.certificate is None
    stepper = policy.start()
    with pytest.raises(PolicyError, match="full-budget"):
        stepper.observe(answer="1", mean_logprob=-1.0, mean_entropy=1.0, markers=0, think_tokens=0)


def test_only_built_policies_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "policy.joblib"
    with pytest.raises(PolicyError, match="digest"):
        save_policy(checked(built(example_content()) | {"on_stop": "answer"}), path)
    with pytest.raises(PolicyError, match="'joblib' or 'json', got 'yaml'"):
        save_policy(policy_from(example_content()), path, format="yaml")  # type: ignore[arg-type]
    assert not path.exists()


@pytest.mark.skipif(os.name != "posix", reason="folders cannot be opened")
def test_the_folder_is_on_disk_too_when_a_policy_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power failure could bring the old one back."""
    synced, fsync = [], os.fsync

    def noted(handle: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    save_policy(policy_from(example_content()), tmp_path / "policy.joblib")
    assert synced == [False, True]


def test_a_failed_write_leaves_the_old_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.joblib"
    content = built(example_content())
    save_policy(checked(content), path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        save_policy(policy_from(full_budget_content()), path)
    monkeypatch.undo()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left on device"):
        save_policy(policy_from(full_budget_content()), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    policy = policy_from(full_budget_content())
    (tmp_path / "folder").mkdir()
    for path, said in (
        (tmp_path / "no" / "policy.joblib", "no/policy.joblib: No such file"),
        (tmp_path / "folder", "directory"),
        ("", "names no file"),
    ):
        with pytest.raises(OutputError, match=said):
            save_policy(policy, path)


def test_a_saved_policy_is_readable_by_others(tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        save_policy(policy_from(full_budget_content()), tmp_path / "policy.joblib")
    finally:
        os.umask(previous)
    assert (tmp_path / "policy.joblib").stat().st_mode & 0o777 == 0o644


def test_loading_and_stepping_import_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "policy.joblib"
    save_policy(policy_from(example_content()), path)
    program = (
        "import sys; from stopadvisor.policy.frozen import load_policy\n"
        f"stepper = load_policy({str(path)!r}).start()\n"
        "stepper.observe(answer='1', mean_logprob=-1.0, mean_entropy=1.0, markers=0,"
        " think_tokens=0)\n"
        "heavy = 'torch transformers sklearn scipy joblib math_verify click rich cryptography'\n"
        "print([name for name in heavy.split() if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_file_may_have_as_many_bytes_as_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = built(example_content())
    size = len(policy_file.encode_policy(policy_file.sealed(content)[0], "joblib"))
    monkeypatch.setattr(frozen, "MAX_BYTES", size)
    save_policy(checked(content), tmp_path / "policy.joblib")
    monkeypatch.setattr(frozen, "MAX_BYTES", size - 1)
    with pytest.raises(PolicyError, match=f"at most {size - 1} bytes, this one would have {size}"):
        save_policy(checked(content), tmp_path / "policy.joblib")
