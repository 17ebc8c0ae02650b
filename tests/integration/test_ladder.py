"""Real models behind real servers: `run` and the gateway serve what the replay says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from stopadvisor.ground.fields import plain
from stopadvisor.policy.frozen import Policy, load_policy, save_policy
from stopadvisor.policy.requests import make_requests
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.ladder import read_ladder
from stopadvisor.runs.replies import ReplyRecord
from stopadvisor.workload.questions import read_workload
from tests.engines.rung_server import ladder_toml
from tests.integration.server import AS_CALIBRATED, NAME, ROOT, VllmServer
from tests.policy_content import ladder_content, policy_from
from tests.serving.gateways import running

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

CAP = 123
"""Tokens; some replies of the smaller model are longer."""
WORKLOAD = ROOT / "samples" / "hard.jsonl"
LIMITS = {"temperature": 0.0, "max_tokens": 900}
RUNGS: list[dict[str, Any]] = [
    {"name": "tinier", "model": NAME, **LIMITS, "price": [0.23, 0.023, 0.23]},
    {"name": "tiny", "model": NAME, **LIMITS, "price": [0.86, 0.086, 0.86]},
]
PATIENT = {"connect": 60.0, "first": 600.0, "between": 600.0, "total": 600.0, "probe": 60.0}
AT_ONCE = 32


@pytest.fixture(scope="module")
def tinier(vllm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A server of the smaller model."""
    model = ROOT / "samples" / "tinier-reasoner"
    folder = tmp_path_factory.mktemp("tinier")
    with VllmServer(vllm_home, folder, AS_CALIBRATED, model=model) as server:
        yield server


def served_by(policy: Policy, record: ReplyRecord) -> str:
    """Which rung the replay of the recorded replies serves."""
    small = record.rungs[0]
    serve = policy.climb("numeric").observe(
        answer=small.answer,
        finished=small.finished and small.completion_tokens <= CAP,
        completion_tokens=min(small.completion_tokens, CAP),
    )
    return record.rungs[0 if serve.serve else 1].name


@pytest.mark.parametrize(
    ("server", "n"), [("vllm", 16), pytest.param("tinier", 300, marks=pytest.mark.long)]
)
def test_rungs_at_servers_climb_as_the_replay_says(
    request: pytest.FixtureRequest,
    vllm: VllmServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: str,
    n: int,
) -> None:
    """The short form asks one server for both rungs, which differ in the cap alone."""
    monkeypatch.chdir(tmp_path)
    tinier: VllmServer = request.getfixturevalue(server)
    ladder = ladder_toml(tmp_path / "ladder.toml", RUNGS, tinier.base_url, vllm.base_url)
    limited = ["--limit", str(n), "--quiet", "--request-timeout", "600"]
    words = ["--ladder", ladder, "--concurrency", str(AT_ONCE), *limited]
    assert main(["probe", str(WORKLOAD), "--out", "run", *words]) == 0
    run = RunDirectory.load(Path("run"))
    records = {record.id: record for record in run.replies()}
    content = ladder_content("cap", task="numeric")
    rungs = [plain(rung.terms) for rung in read_ladder(Path(ladder)).rungs]
    content |= {
        "prompt_template": run.manifest["prompt_templates"],
        "ladder": {"rungs": rungs, "asked": [0], "path": [[-900.0], [-float(CAP)], [-40.0]]},
    }
    save_policy(policy_from(content), "policy.json", format="json")
    policy = load_policy("policy.json")
    wanted = {name: served_by(policy, record) for name, record in records.items()}
    assert set(wanted.values()) == {"tinier", "tiny"}, "or the comparison shows little"

    # By `run`: the rung, its answer, and what each reply decoded.
    assert main(["run", "policy.json", str(WORKLOAD), "--out", "out.jsonl", *words]) == 0
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert len(lines) == n
    for line in lines:
        small, large = records[line["id"]].rungs
        way, is_small = line["climbed"], wanted[line["id"]] == "tinier"
        assert way["rung"] == wanted[line["id"]]
        assert line["normalized"] == (small if is_small else large).normalized
        tokens = min(small.completion_tokens, CAP)
        spent = [tokens] if is_small else [tokens, large.completion_tokens]
        assert [each["completion_tokens"] for each in way["asked"]] == spent

    # By the gateway, which says the rung in its header.
    questions = [q for q in read_workload(WORKLOAD).questions[:n] if q.id in records]
    own, texts = read_ladder(Path(ladder)), {line["id"]: line["answer"] for line in lines}
    with (
        running(Path("policy.json"), vllm.base_url, ladder=own, timeouts=PATIENT) as gateway,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        bodies = [
            {"model": NAME, "messages": list(each.prompt.messages)}
            for each in make_requests(questions, policy)
        ]
        ask = partial(gateway.ask, timeout=PATIENT["total"])
        answers = list(pool.map(ask, bodies))
    for question, answer in zip(questions, answers, strict=True):
        assert answer.headers["x-stopadvisor"].endswith(f"; rung={wanted[question.id]}")
        content = answer.json["choices"][0]["message"]["content"]
        assert content.strip() == (texts[question.id] or "").strip()
