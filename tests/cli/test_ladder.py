"""A ladder from recorded replies to advice, and what refuses its run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.cli.main import main
from stopadvisor.engines.model_files import token_counter
from stopadvisor.policy.frozen import load_policy, save_policy
from stopadvisor.rules.climb import RUNG_FEATURES
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from tests.engines.online_policies import TINY_REASONER
from tests.material import CERTIFY, Call
from tests.policy_content import example_content, family_content, policy_from
from tests.runs.test_replies import reply, sample, written
from tests.schemas import check_valid
from tests.workload.test_imports import LOGS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_draws")]

LADDER = """
[[rung]]
name = "small"
price = [1, 0.1, 1]

[[rung]]
name = "large"
price = [10, 1, 10]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that is right where it is short, and a large one that always is."""
    return recorded(tmp_path_factory.mktemp("ladder"), 0)


def recorded(
    folder: Path,
    seed: int,
    *,
    wrong: float = 0.7,
    ladder: str = LADDER,
    timed: bool = False,
    gold: bool = True,
) -> Path:
    """A run in `folder`; of the small model's long replies so many are wrong."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    lines = []
    for number in range(400):
        tokens = int(rng.integers(10, 1000))
        right = tokens < 1400 * (1 - wrong) + 280 or rng.random() < 1 - wrong
        rungs = [reply("small", "1" if right else "2", tokens), reply("large", "1", 500)]
        if timed:
            rungs[0]["seconds"], rungs[1]["seconds"] = 0.01 * tokens, 20
        known = {"gold": "1"} if gold else {}
        lines.append({"id": f"q{seed}-{number}", **known, "rungs": rungs})
    return imported(folder, lines, ladder)


def imported(folder: Path, lines: list[dict[str, Any]], ladder: str) -> Path:
    """A run of these lines."""
    (folder / "ladder.toml").write_text(ladder)
    file = written(folder / "lines.jsonl", lines)
    command = ["import", "replies", str(file), "--ladder", str(folder / "ladder.toml")]
    assert main([*command, "-o", str(folder / "run"), "--quiet"]) == 0
    return folder / "run"


def assessed(call: Call, run: Path) -> tuple[Any, str]:
    """What `assess` writes, and what it prints."""
    screen = call.screen("assess", run, "--alpha", "0.05")
    return json.loads((run / "assessment.json").read_bytes()), screen


def test_a_reference_that_was_cut_is_not_said_to_think(tmp_path: Path, call: Call) -> None:
    lines = []
    for number in range(120):
        cut = number % 5 == 0
        rungs = [reply("small", "1", 10), reply("large", "" if cut else "1", 500, finished=not cut)]
        lines.append({"id": f"q{number}", "gold": "1", "rungs": rungs})
    folder = imported(tmp_path, lines, LADDER)
    found = call.json("assess", folder, "--alpha", "0.1")
    assert any("of the reference's replies were cut" in each for each in found["remarks"])
    why = call.refused("calibrate", folder, "--alpha", "0.1", "--despite", "advice")
    assert "of the reference's replies were cut" in why
    assert "raise its max_tokens, or its server's own limit, or say --despite truncated" in why
    assert "max-think" not in why
    # As many fit questions as would be enough are named there, so none can say that none would be.
    advice = call("calibrate", folder, "--alpha", "0.1")[1]
    assert "no number of them" not in advice


@pytest.fixture(scope="module")
def policy(run: Path) -> Path:
    """What `calibrate` makes of it."""
    words = ["calibrate", str(run), "--alpha", "0.05", "--quiet"]
    assert main(words) == 0
    return run / "policy.joblib"


def test_the_cap_that_tells_right_from_wrong_is_advised_and_drawn(
    run: Path, tmp_path: Path, call: Call
) -> None:
    run = shutil.copytree(run, tmp_path / "run")
    found, screen = assessed(call, run)
    assert found["recommendation"]["family"] == "cap"
    assert found["recommendation"]["serving"] == "ladder"
    assert found["settings"]["loss"] == "drop"
    cap = found["matched_risk"][0]["scalar"]
    assert cap["where"].startswith("small where it ends by itself within ")
    assert cap["fit_risk"] <= 0.05
    small, large = found["rungs"]
    assert (small["name"], large["name"]) == ("small", "large")
    assert large["saving_pct"] == 0
    assert large["risk"] == 0
    # Always the small one is cheaper, and loses too much.
    assert small["saving_pct"] > cap["fit_total_saving_pct"] > 40
    assert small["risk"] > 0.1
    assert found["serving"]["ladder"]["saving_pct"] == pytest.approx(cap["fit_total_saving_pct"])
    # Its replies were not timed.
    assert [row["request_seconds"] for row in found["rungs"]] == [None, None]
    assert found["request_seconds"] is None
    assert "econds" not in screen
    # The page draws every rule and every rung on one plane.
    figures = json.loads((run / "figures.json").read_bytes())
    small_cost, large_cost = figures["frontier"]["fixed"]["cost"]
    assert small_cost < 30  # of the reference's price
    assert large_cost == pytest.approx(100)
    assert figures["frontier"]["chosen"][0] == "cap"
    page = Path(call.json("report", run)["report"]).read_text()
    for words in ("thinking tokens", "Forced answers", "full thinking"):
        assert words not in page, words


def test_the_time_of_a_request_is_shown_where_replies_were_timed(
    tmp_path: Path, call: Call
) -> None:
    timed = recorded(tmp_path / "timed", 0, timed=True)
    found, screen = assessed(call, timed)
    check_valid("assess", found)
    cap = float(found["matched_risk"][0]["scalar"]["where"].split(" within ")[1].split()[0])
    source = open_source(timed)
    records = {record.id: record for record in RunDirectory.load(timed).replies()}
    small = [records[name].rungs[0].completion_tokens for name in source.part("fit").ids]
    times = [(0.01 * n if n <= cap else 0.01 * cap + 20.0) for n in small]
    assert found["request_seconds"] == pytest.approx(sum(times) / len(times))
    alone = [row["request_seconds"] for row in found["rungs"]]
    assert alone == pytest.approx([0.01 * sum(small) / len(small), 20.0])
    assert f"time {found['request_seconds']:.3g} s instead of 20 s per request" in screen
    assert "tokens saved seconds" in screen
    assert "measured at the recording's concurrency" in screen


def test_few_labels_certify_lost_answers_of_a_ladder(tmp_path: Path, call: Call) -> None:
    run = recorded(tmp_path, 0, gold=False)
    words = ("--alpha", "0.05")
    asked = call.json("label", run, *words, "--export", tmp_path / "sheet.jsonl")
    assert 0 < asked["n_exported"] < asked["n"] / 4
    rows = [json.loads(row) for row in (tmp_path / "sheet.jsonl").read_text().splitlines()]
    assert all(sorted(row["answers"]) == ["1", "2"] for row in rows)
    sheet = written(tmp_path / "filled.jsonl", [{**row, "gold": "2"} for row in rows])
    # By these labels the reference was wrong wherever the small model differs: nothing is lost.
    before = asked["certified_saving_pct"]
    assert call.json("label", run, *words, "--import", sheet)["certified_saving_pct"] > before
    found = call.json("calibrate", run, *words, "--loss", "lost")
    assert found["certified"]
    assert found["labels"]["used"] == len(rows)


def test_where_nothing_is_saved_the_screen_speaks_of_climbing(tmp_path: Path, call: Call) -> None:
    dear = recorded(tmp_path / "dear", 0, ladder=LADDER.replace("[1, 0.1, 1]", "[100, 10, 100]"))
    screen = call.screen("assess", dear, "--alpha", "0.05")
    assert "Don't climb, serve the reference: no saving shown." in screen
    assert "serve the reference as you do now; there is nothing to calibrate" in screen
    assert "prob" not in screen.replace("probability", "")


def test_few_questions_are_not_promised_what_they_cannot_show(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, usual in (("_DRAWS", 200), ("_RESAMPLES", 1000)):  # of which its figures are
        monkeypatch.setattr(f"stopadvisor.assessment.rated.{name}", usual)
    rng = np.random.default_rng(0)
    lines = []
    for number in range(156):
        tokens = int(rng.integers(10, 1000))
        answer = "1" if rng.random() > 0.03 * (0.5 + tokens / 1000) else "2"
        rungs = [reply("small", answer, tokens), reply("large", "1", 500)]
        lines.append({"id": f"q{number}", "gold": "1", "rungs": rungs})
        rng.random()
    run = imported(tmp_path, lines, LADDER)
    screen = call.screen("assess", run)
    assert "5% * 27.3%" in screen
    assert screen.startswith("Too few questions to tell whether climbing saves anything.")
    assert "55 fit questions are too few to tell, about 210 would be enough." in screen
    assert "assess again with about 590 questions" in screen
    assert "nothing to calibrate" not in screen
    assert "The saving at * is a forecast that 55 fit questions did not confirm" in screen


@pytest.mark.parametrize(
    "command",
    [
        ["assess", "{run}", "--protocol", "paper"],
        ["study", "frontier", "{run}"],
        ["assess", "{run}", "--price", "1/1/1"],
    ],
    ids=lambda words: " ".join(words),
)
def test_what_takes_probes_refuses_a_ladder_in_one_line(
    run: Path, command: list[str], call: Call
) -> None:
    assert "ladder" in call.refused(*(word.format(run=run) for word in command))


def test_logs_of_an_evaluation_become_a_run(tmp_path: Path, call: Call) -> None:
    (tmp_path / "ladder.toml").write_text(LADDER)
    words = ["import", "inspect", "--ladder", tmp_path / "ladder.toml", "-o", tmp_path / "run"]
    for name in ("small", "large"):
        samples = [sample(number, f"It is {number + 1}.") for number in range(20)]
        (tmp_path / f"{name}.json").write_text(json.dumps({"samples": samples}))
        words += ["--rung", f"{name}={tmp_path / name}.json"]
    found = call.json(*words)
    assert (found["n_questions"], found["n_graded"]) == (20, 40)
    assert [each["accuracy"] for each in found["rungs"]] == [1.0, 1.0]
    assert len(RunDirectory.load(tmp_path / "run").replies()) == 20
    assert "takes FILE or --rung" in call.refused(*words, tmp_path / "small.json")
    assert "format csv needs a FILE, got none" in call.refused(
        "import", "csv", "-o", tmp_path / "other"
    )
    replies = ("import", "replies", tmp_path / "small.json", "-o", tmp_path / "other")
    assert "--rung is not an option of format replies" in call.refused(*replies, "--rung", "a=b")
    assert "--ladder" in call.refused(*replies)


def test_samples_of_lm_eval_become_a_run(tmp_path: Path, call: Call) -> None:
    logs = {name: LOGS / "lm-eval" / f"samples_{name}.jsonl" for name in ("sums", "plain")}
    rungs = (f"small={logs['sums']}", f"large={logs['plain']}")
    file, run = tmp_path / "ladder.toml", tmp_path / "run"
    words = ["import", "lm-eval", "--ladder", file, "-o", run]
    file.write_text(LADDER.replace("price", f'repeat = 2\nmodel = "{TINY_REASONER}"\nprice'))
    found = call.json(*words, "--rung", rungs[0], "--rung", rungs[1])
    assert (found["n_questions"], found["n_graded"]) == (4, 16)
    assert [rung["replies"] for rung in found["rungs"]] == [2, 2]
    first, count = RunDirectory.load(run).replies()[0], token_counter(str(TINY_REASONER))
    rows = [json.loads(log.read_text().splitlines()[0]) for log in logs.values()]
    texts = [text for row in rows for text in row["resps"][0]]
    assert [reply.completion_tokens for reply in first.rungs] == [count(text) for text in texts]
    assert [reply.normalized for reply in first.rungs[:2]] == ["82", "91"]
    assert (first.gold, first.rungs[0].finished, first.rungs[0].correct) == ("96", True, False)
    # The chat template's words belong to the prompt.
    assert first.rungs[0].prompt_tokens > first.rungs[2].prompt_tokens > 0
    file.write_text(LADDER)
    words[-1] = tmp_path / "other"
    line = call.refused(*words, "--rung", rungs[0], "--rung", rungs[1])
    assert "rung 'small': expected model, whose tokenizer counts" in line
    assert "format lm-eval takes a --rung for each rung" in call.refused(*words)


def test_a_certificate_is_about_the_exact_rule_that_is_exported(
    run: Path, policy: Path, call: Call
) -> None:
    found = call.json("calibrate", run, "--alpha", "0.05")
    assert (found["look"]["number"], found["loss"], found["family"]) == (1, "drop", "cap")
    certificate = found["certificate"]
    frozen = load_policy(policy)
    assert frozen.digest == found["digest"]  # the same look again is no other one
    # Counted again, reply by reply, on the questions that the certificate names.
    keys = set(frozen.content["split"]["calibration"])
    source = open_source(run)
    entered = [record for record in RunDirectory.load(run).replies() if record.key in keys]
    lost, price, rungs = 0, 0.0, []
    for record in entered:
        climber, small = frozen.climb(), record.rungs[0]
        served = climber.observe(
            answer=small.answer, finished=small.finished, completion_tokens=small.completion_tokens
        ).serve
        cap = int(-frozen.content["ladder"]["path"][int(found["threshold"]) - 1][0])
        rungs.append(0.0 if served else -1.0)
        price += min(small.completion_tokens, cap) + (0 if served else 5000)
        lost += served and not small.correct
    assert (certificate["n"], certificate["losses"]) == (len(entered), lost)
    # Traffic is compared with which reply these questions got.
    assert sorted(frozen.content["served"]["stop"]) == sorted(rungs)
    saving = found["expected"]["calibration_total_saving_pct"]
    assert saving == pytest.approx(100 * (1 - price / (5000 * len(entered))))
    assert certificate["claim"].startswith("With confidence 95 %")
    assert "accuracy falls by at most 5 points" in certificate["claim"]
    assert source.folder == run


def test_the_rule_is_certified_on_new_questions(policy: Path, tmp_path: Path, call: Call) -> None:
    new = recorded(tmp_path / "new", 1, ladder=LADDER.replace("10, 1, 10", "20, 2, 20"))
    words = ["calibrate", new, "--alpha", "0.05"]
    found = call.json(*words, "--from", policy)
    assert (found["certified"], found["family"], found["serving"]) == (True, "cap", "ladder")
    assert found["transfer"]["source_digest"] == load_policy(policy).digest
    made, source = load_policy(Path(found["policy"])).terms, load_policy(policy).terms
    assert made.ladder is not None
    assert source.ladder is not None
    assert (made.ladder.asked, made.ladder.path) == (source.ladder.asked, source.ladder.path)
    assert made.expected is not None
    assert made.expected.weights.decoded == 20  # of its own ladder
    assert made.certificate is not None
    assert made.certificate.n == 400  # nothing is fitted: all of them calibrate
    assert set(source.split.fit) < set(made.split.fit)  # type: ignore[union-attr]
    assert not any("archive" in remark for remark in found["remarks"])
    # Of the questions that chose the rule none may certify it, nor may another ladder's.
    assert "fitted or calibrated this policy" in call.refused(
        "calibrate", policy.parent, "--alpha", "0.05", "--from", policy
    )
    lower = LADDER.replace('name = "large"', 'name = "large"\nreasoning_effort = "low"')
    other = recorded(tmp_path / "other", 2, ladder=lower)
    assert "reasoning_effort None of rung 'large', got 'low'" in call.refused(
        "calibrate", other, "--alpha", "0.05", "--from", policy
    )
    assert not (other / "looks.jsonl").exists()


def test_a_policy_says_what_it_serves(policy: Path, call: Call) -> None:
    screen = call.screen("inspect", policy)
    assert "serves small where it ends by itself within " in screen
    assert "small model not recorded; price 1 / 0.1 / 1" in screen
    assert "probe at" not in screen
    shown = call.json("inspect", policy)
    assert shown["ladder"]["asked"] == [0]
    assert shown["trigger"]["kind"] == "ladder"


@pytest.mark.parametrize(("wrong", "code", "verdict"), [(0.7, 0, "confirmed"), (0.95, 4, "contr")])
def test_fresh_replies_confirm_or_contradict(
    policy: Path, tmp_path: Path, call: Call, wrong: float, code: int, verdict: str
) -> None:
    fresh = recorded(tmp_path, 1, wrong=wrong)
    found = call.json("verify", policy, fresh, code=code)
    assert found["verdict"].startswith(verdict)
    assert (found["serving"], found["loss"], found["n"]) == ("ladder", "drop", 400)
    assert {row["feature"] for row in found["drift"]} <= set(RUNG_FEATURES)


def test_a_rung_with_a_policy_is_certified_as_a_whole(tmp_path: Path, call: Call) -> None:
    file = tmp_path / "own.json"
    save_policy(policy_from(example_content()), file, format="json")
    digest = load_policy(file).digest
    ladder = LADDER.replace('name = "small"', f'name = "small"\npolicy = "{file}"')
    run = recorded(tmp_path / "first", 0, ladder=ladder)
    advised = call.json("assess", run, "--alpha", "0.05")
    assert advised["recommendation"]["family"] == "cap"
    (said,) = (remark for remark in advised["remarks"] if "own policy" in remark)
    assert said.startswith("small ends its replies under its own policy, and none is abandoned")
    found = call.json("calibrate", run, "--alpha", "0.05")
    policy = load_policy(run / "policy.joblib")
    assert policy.content["ladder"]["rungs"][0]["policy_digest"] == digest
    assert str(file) not in json.dumps(policy.content)
    # What its own policy answers is what is judged and, served or not, paid for.
    keys, lost, price, n = set(policy.content["split"]["calibration"]), 0, 0, 0
    for record in RunDirectory.load(run).replies():
        if record.key in keys:
            climber, small = policy.climb(), record.rungs[0]
            assert climber.ask is not None
            assert climber.ask.max_tokens is None
            served = climber.observe(
                answer=small.answer, finished=True, completion_tokens=small.completion_tokens
            ).serve
            lost += served and not small.correct
            price += small.completion_tokens + (0 if served else 5000)
            n += 1
    assert (found["certificate"]["n"], found["certificate"]["losses"]) == (n, lost)
    saving = found["expected"]["calibration_total_saving_pct"]
    assert saving == pytest.approx(100 * (1 - price / (5000 * n)))
    fresh = recorded(tmp_path / "fresh", 1, ladder=ladder)
    found = call.json("verify", run / "policy.joblib", fresh)
    assert found["verdict"].startswith("confirmed")
    save_policy(policy_from(family_content("confidence")), file, format="json")
    other = recorded(tmp_path / "other", 2, ladder=ladder)
    line = call.refused("verify", run / "policy.joblib", other)
    assert f"policy_digest '{digest}' of rung 'small', got '{load_policy(file).digest}'" in line


def test_questions_that_the_advised_rule_gives_up_are_counted(tmp_path: Path, call: Call) -> None:
    """Three in ten none but the reference answers, as the first rung's doubt shows."""
    rates = {"a": 0.5, "b": 3.0, "c": 10.0}
    ladder = "".join(f'[[rung]]\nname = "{n}"\nprice = [0, 0, {p}]\n' for n, p in rates.items())
    (tmp_path / "ladder.toml").write_text(ladder)
    rng, lines = np.random.default_rng(3), []
    for number in range(400):
        unsure, hopeless = number % 10 in (4, 5, 6), number % 10 > 6
        doubt = (0.9 if hopeless else 0.5 if unsure else 0.1) + 0.05 * rng.random()
        first = reply("a", "2" if unsure or hopeless else "1", mean_logprob=-doubt)
        second = reply("b", "2" if hopeless else "1", mean_logprob=-0.1 - hopeless)
        rungs = [first, second, reply("c", "1", mean_logprob=-0.1)]
        lines.append({"id": f"q{number}", "gold": "1", "rungs": rungs})
    file, run = written(tmp_path / "lines.jsonl", lines), tmp_path / "run"
    call.json("import", "replies", file, "--ladder", tmp_path / "ladder.toml", "-o", run)
    found, screen = assessed(call, run)
    assert 0.2 < found["given_up_share"] < 0.4
    assert "The advised rule gives up " in screen
    page = Path(call.json("report", run)["report"]).read_text()
    assert "of the questions are given up." in page


def test_nothing_certified_serves_the_reference(tmp_path: Path, call: Call) -> None:
    run = recorded(tmp_path, 2, wrong=0.98)
    assert call("calibrate", run, *CERTIFY, "--alpha", "0.01")[0] == 3
    climber = load_policy(run / "policy.joblib").climb()
    assert climber.ask is not None
    assert (climber.ask.rung.name, climber.ask.is_reference) == ("large", True)
    assert "Never climbs" in call.screen("inspect", run / "policy.joblib")
