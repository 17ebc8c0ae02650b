"""`import`: what it says and refuses, and the other commands on the run that it makes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.policy.frozen import load_policy
from tests.material import CERTIFY, Call
from tests.schemas import check_valid

LOGS = Path(__file__).parent.parent / "testdata" / "imports"
BUDGETS = (0, 64, 128, 192, 256, 384, 512)


def recorded(path: str, n: int = 400, first: int = 0, **changes: Any) -> str:
    """Traces that are right from some token on, with a confidence that mostly knows it."""
    lines = []
    for i in range(first, first + n):
        rng = np.random.default_rng(i)
        trace, solved, at = int(rng.integers(80, 600)), rng.random() < 0.85, rng.integers(0, 400)
        probes = []
        for budget in BUDGETS:
            right = bool(solved and budget >= at)
            level = 1.5 * right + rng.normal(0, 0.4)
            answer = "7" if right else str(rng.integers(10, 14))
            lp = -float(np.log1p(np.exp(-level)))
            probes.append({"budget": budget, "answer": answer, "correct": right, "probe_tokens": 4})
            probes[-1] |= {"mean_logprob": lp, "mean_entropy": -1.3 * lp}
        row = {"id": f"q{i}", "trace_tokens": trace, "finish": "stop", "natural_correct": solved}
        row |= {"natural_answer": "7" if solved else "9", "natural_answer_tokens": 10}
        lines.append(json.dumps({**row, "prompt_tokens": 40, "checkpoints": probes, **changes}))
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_what_was_read_is_said(call: Call) -> None:
    words = ("import", "probes", recorded("r.jsonl", 30), "-o", "run")
    code, out, err = call(*words)
    assert code == 0
    assert out.startswith("30 questions, 210 forced answers.")
    assert "probed at   0, 64, 128, 192, 256, 384 and 512 tokens" in out
    assert "none: a policy is bound to no model" in out
    assert "stopadvisor assess run" in out
    assert "no --max-think" in err
    err = call.refused(*words)
    assert err == "stopadvisor: run: already exists; choose another --out"


def test_a_full_disk_promises_no_second_try_in_the_same_folder(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(descriptor: int, data: bytes) -> None:
        if len(data) > 10_000:  # the probes, not the manifest
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.write(descriptor, data)

    words = ("import", "probes", recorded("r.jsonl", 30), "-o", "run")
    monkeypatch.setattr("stopadvisor.runs.storage._write_all", write)
    full = f"stopadvisor: cannot write run/probes.jsonl: {os.strerror(errno.ENOSPC)}"
    assert call.refused(*words) == full  # and nothing that the next line would belie
    assert "already exists; choose another --out" in call.refused(*words)


def test_what_the_file_does_not_say_is_remarked(call: Call) -> None:
    bare = {"budget": 0, "answer": "7", "correct": True, "probe_tokens": 1}
    recorded("r.jsonl", 5, checkpoints=[bare], prompt_tokens=None)
    _, _, err = call("import", "probes", "r.jsonl", "-o", "run", "--max-think", "999")
    assert err.splitlines() == [
        "no prompt_tokens: costs leave the prompt out",
        "no log-probabilities: rules that read them are left out",
    ]
    _, _, err = call("import", "probes", "r.jsonl", "-o", "other", "--max-think", "999", "--quiet")
    assert err == ""


@pytest.mark.slow
def test_the_run_is_assessed_calibrated_and_verified_like_any_other(call: Call) -> None:
    call("import", "probes", recorded("old.jsonl", 600), "-o", "old", "--max-think", "600")
    call("import", "probes", recorded("new.jsonl", 500, 400), "-o", "new", "--max-think", "600")
    found = call.json("assess", "old", "--families", "confidence", "--alpha", "0.15")
    assert (found["workload"]["engine"], found["workload"]["model"]) == ("imported", None)
    code, out, _ = call("calibrate", *CERTIFY, "old", "--alpha", "0.15", "--json")
    assert code == 0
    policy = json.loads(out)["policy"]
    content = load_policy(policy).content
    assert content["model"] is None
    assert content["engine"]["name"] == "imported"
    assert content["max_think"] == 600
    code, out, _ = call("verify", policy, "new", "--json")
    checked = json.loads(out)
    assert code == 0
    assert 120 < checked["n_met_before"] <= 200  # fit and calibration of q400 to q599
    assert checked["n"] == 500 - checked["n_met_before"]
    assert checked["verdict"] != "contradicted"


@pytest.mark.slow
@pytest.mark.parametrize("misread", [True, False])
def test_full_replies_that_seem_misread_are_remarked_on(call: Call, *, misread: bool) -> None:
    """A sentence is no exact answer: full thinking counts as wrong, and nothing can be lost."""
    lines = [json.loads(text) for text in Path(recorded("r.jsonl")).read_text().splitlines()]
    for i, row in enumerate(lines):
        right = row.pop("natural_correct")
        said = "It is 7, as one sees." if misread and i % 2 else "7"
        row |= {"gold": "7", "task": "exact", "natural_answer": said if right else "9"}
        for c in row["checkpoints"]:
            del c["correct"]
    for name, part in (("run", lines[:320]), ("new", lines[320:])):
        Path("r.jsonl").write_text("\n".join(map(json.dumps, part)) + "\n", encoding="utf-8")
        call("import", "probes", "r.jsonl", "-o", name, "--max-think", "600")
    documents = [call.json("assess", "run", "--families", "confidence", "--alpha", "0.15")]
    documents.append(call.json("calibrate", "run", *CERTIFY, "--quiet"))
    documents.append(json.loads(call("verify", documents[1]["policy"], "new", "--json")[1]))
    for document in documents:
        found = [text for text in document["remarks"] if "the full reply is wrong" in text]
        assert len(found) == misread, document["remarks"]


@pytest.mark.slow
def test_a_rule_at_recorded_markers_is_certified_and_never_served(call: Call) -> None:
    lines = [json.loads(line) for line in Path(recorded("r.jsonl")).read_text().splitlines()]
    for i, row in enumerate(lines):
        by_budget = {c["budget"]: c for c in row["checkpoints"]}
        places = list(range(20 + i % 29, row["trace_tokens"], 30))
        for m in places:  # between two budgets the answer is the one before
            by_budget[m] = by_budget[max(b for b in BUDGETS if b <= m)] | {"budget": m}
        row["checkpoints"] = [by_budget[b] for b in sorted(by_budget) if b < row["trace_tokens"]]
        row["marker_positions"] = places
    Path("r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")
    words = ("import", "probes", "r.jsonl", "-o", "run", "--max-think", "700")
    found = call.json(*words, "--split", "40/40/20", "--model", "reasoner")
    check_valid("import", found)
    assert (found["model"], found["budgets"]) == ("reasoner", None)
    assessment = call.json("assess", "run", "--alpha", "0.2", "--families", "deer")
    assert assessment["workload"]["budgets"] == list(BUDGETS)
    assert assessment["recommendation"]["schedule"] is None
    assert assessment["recommendation"]["where"].startswith("at markers at least ")
    assert call("calibrate", *CERTIFY, "run", "--alpha", "0.2", "--quiet")[0] == 0
    policy = load_policy("run/policy.joblib")
    assert policy.content["trigger"]["markers"] == []
    assert policy.content["grader"] == "recorded"
    code, _, err = call("verify", "run/policy.joblib", "run", "--test-only")
    assert code in (0, 1, 3), err
    assert "graded by" not in err
    assert "so it cannot be served" in " ".join(call("inspect", "run/policy.joblib")[1].split())
    code, _, err = call("report", "run")
    assert code == 0
    assert "Imported probes bring no questions" in err
    Path("q.jsonl").write_text('{"question": "1+1?"}\n', encoding="utf-8")
    assert "knows no marker's token ids" in call.refused(
        "run", "run/policy.joblib", "q.jsonl", "--model", "reasoner"
    )


# --- Logs of programs -----------------------------------------------------------------------------


def test_a_log_becomes_a_workload_with_its_traces(call: Call) -> None:
    log = str(LOGS / "inspect" / "sums.eval")
    code, out, err = call("import", "inspect", log, "-o", "sums.jsonl")
    assert code == 0
    assert out.startswith("4 questions, 6 recorded traces.")
    assert "gold        3 of 4" in out
    assert "stopadvisor assess sums.jsonl, with --model" in out
    assert "without a recorded trace: 1 question, which --traces-only leaves out" in err
    assert "2 replies hold no separable thinking, the first in" in err
    words = ("import", "inspect", log, "-o", "sums.jsonl", "--traces-only", "--quiet")
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    assert "stopadvisor assess sums.jsonl --traces sums.jsonl, with" in out
    found = call.json(*words)
    check_valid("import-log", found)
    assert (found["n_questions"], found["n_untraced"], found["n_left_out"]) == (3, 0, 5)


def test_columns_and_markers_are_named(call: Call) -> None:
    Path("t.csv").write_text("q;x,a\nWhy?,[a]so[b]7\n", encoding="utf-8")
    words = ("import", "csv", "t.csv", "-o", "w.jsonl", "--map", "question=q;x,answer=a")
    markers = ("--think-tags", "[a]", "[b]")
    code, _, err = call(*words, *markers, "--task", "numeric")
    assert code == 0
    assert "'q;x' is asked unchanged: for recorded thinking it must be the prompt" in err
    row = json.loads(Path("w.jsonl").read_text(encoding="utf-8"))
    assert (row["traces"], row["task"]) == ([{"thinking": "so", "reply": "7"}], "numeric")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("csv", "t.csv"), "format csv needs --map question=COLUMN"),
        (("csv", "t.csv", "--map", "gold=a"), "format csv needs --map question=COLUMN"),
        (("csv", "t.csv", "--map", "question=a,question=b"), "with each kind once"),
        (
            ("csv", "t.csv", "--map", "why=a"),
            "of question, gold, thinking, answer, id, category, group, task",
        ),
        (("csv", "t.csv", "--map", "question"), "expected KIND=COLUMN"),
        (("inspect", "t.eval", "--map", "question=a"), "--map is not an option of format inspect"),
        (
            ("inspect", "t.eval", "--max-think", "3"),
            "--max-think is not an option of format inspect",
        ),
        (("inspect", "t.eval", "w.jsonl"), "--out w.jsonl is one of the files to read"),
        (("dataset", "aime", "--from", "w.jsonl"), "--out w.jsonl is one of the files to read"),
        (("probes", "t.jsonl", "--task", "math"), "--task is not an option of format probes"),
        (("probes", "t.jsonl", "u.jsonl"), "format probes takes one file, got 2"),
        (("inspect", "t.eval"), "t.eval: expected a readable file, got: No such file"),
    ],
)
def test_bad_requests_for_logs_end_with_exit_code_2(
    call: Call, words: tuple[str, ...], message: str
) -> None:
    assert message in call.refused("import", *words, "-o", "w.jsonl")
    assert not Path("w.jsonl").exists()
