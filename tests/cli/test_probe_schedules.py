"""`probe --schedule`: strides and markers, from the command line to the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stopadvisor.collection.pilot import MOST_SHARE
from stopadvisor.collection.probe_settings import ProbeSettings
from stopadvisor.ground.errors import ProbeError
from stopadvisor.runs.manifest import run_id
from tests.cli.conftest import Bench
from tests.scripted import WAIT, ScriptedEngine


@pytest.fixture(name="bench")
def probing(bench: Bench) -> Bench:
    bench.words = ("--max-think", "256", "--out", bench.out)
    return bench


def test_a_stride_probes_every_so_many_tokens(bench: Bench) -> None:
    found = bench.json("--schedule", "stride", "--every", "24")
    assert (found["schedule"], found["every"], found["markers"]) == ("stride", 24, [])
    assert found["budgets"] == list(range(24, 257, 24))
    for record in bench.run.records():
        assert [c.budget for c in record.checkpoints] == list(range(24, record.trace_tokens, 24))
        assert record.marker_positions is None
    _, out, _ = bench("--schedule", "stride", "--every", "24")
    assert "  probed at  every 24 thinking tokens" in out
    assert "markers" not in out


def test_a_run_keeps_the_serving_profile_of_the_models_folder(bench: Bench) -> None:
    bench.json("--limit", "10", "--model", "model")
    kept = bench.out / "serving-profile.json"
    assert not kept.exists()
    Path("model").mkdir()
    Path("model/serving-profile.json").write_text("{}", encoding="utf-8")
    bench.json("--limit", "10", "--model", "model")
    assert kept.read_text(encoding="utf-8") == "{}"


def test_markers_are_found_by_a_pilot_and_probed(bench: Bench) -> None:
    code, out, err = bench("--schedule", "marker")
    assert code == 0, out + err
    assert "note" not in err
    assert "budgets: every 3 thinking tokens" in err
    assert "markers per 1,000 thinking tokens: Wait " in err
    assert "  markers    Wait\n" in out
    manifest = bench.run.manifest
    assert manifest["requested_markers"] == manifest["requested_every"] == "auto"
    (marker,) = manifest["markers"]
    assert marker["text"] == "Wait"
    assert [WAIT] in marker["ids"]
    assert manifest["plan"]["markers"] == marker["ids"]
    at_markers = 0
    for record in bench.run.records():
        assert record.marker_positions is not None
        probed = {c.budget for c in record.checkpoints}
        assert {at for at in record.marker_positions[:32] if at} <= probed
        at_markers += len(record.marker_positions)
    assert at_markers > 100


@pytest.mark.parametrize("waits", [True, False])
def test_auto_probes_markers_where_there_are_some_else_a_stride(bench: Bench, waits: bool) -> None:
    if not waits:
        bench.engine = ScriptedEngine(faults=frozenset({"never-waits"}))
    found = bench.json()
    assert found["schedule"] == ("marker" if waits else "stride")
    assert found["markers"] == (["Wait"] if waits else [])
    assert found["budgets"] == list(range(found["every"], 257, found["every"]))
    manifest = bench.run.manifest
    assert ("markers" in manifest) == waits
    records = bench.run.records()
    probes = sum(c.probe_tokens for record in records for c in record.checkpoints)
    thinking = sum(record.trace_tokens for record in records)
    # The pilot looked at 32 other traces.
    assert 0 < probes / thinking < 1.3 * MOST_SHARE
    other = {**manifest, "plan": {**manifest["plan"], "schedule": "stride", "every": 99}}
    assert run_id(other) == manifest["id"]
    assert run_id({**manifest, "requested_schedule": "grid"}) != manifest["id"]


def test_an_auto_run_says_that_it_probes_less_and_goes_on(bench: Bench) -> None:
    _, _, err = bench("--schedule", "auto", "--limit", "40")
    assert "thinking tokens, fewer so that probing stays within 10% of thinking" in err
    bench.engine = ScriptedEngine()
    found = bench.json("--schedule", "auto")
    assert (found["questions"], found["new"]) == (100, 60)
    assert all(plan.markers for _, plan in bench.engine.calls)  # no second pilot
    assert "holds another run: plan." in bench.refused("--schedule", "marker")


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        ((), "auto"),
        (("--protocol", "paper"), "grid"),
        (("--protocol", "paper", "--schedule", "stride"), "stride"),
    ],
)
def test_the_papers_protocol_probes_a_grid(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], schedule: str
) -> None:
    asked: list[ProbeSettings] = []

    def spy(settings: ProbeSettings, *args: object, **options: object) -> None:
        asked.append(settings)
        raise ProbeError("seen enough")

    monkeypatch.setattr("stopadvisor.api.probe", spy)
    assert bench(*words, command="assess")[0] == 2
    assert [settings.schedule for settings in asked] == [schedule]


def test_other_markers_are_another_run(bench: Bench) -> None:
    bench.json("--schedule", "marker", "--every", "40", "--markers", "Wait")
    manifest = bench.run.manifest
    assert manifest["requested_markers"] == manifest["plan"]["markers"]
    assert manifest["markers"][0]["text"] == "Wait"
    assert len(bench.engine.calls[0][0]) == 16  # no pilot, but a preflight
    assert "holds another run: plan.markers" in bench.refused(
        "--schedule", "marker", "--every", "40", "--markers", "Wait,Hmm"
    )
    assert "plan.every: 40 there, 30 now" in bench.refused(
        "--schedule", "marker", "--every", "30", "--markers", "Wait"
    )


def test_budgets_stand_beside_markers_too(bench: Bench) -> None:
    found = bench.json("--schedule", "marker", "--budgets", "0,50")
    assert (found["budgets"], found["every"]) == ([0, 50], None)
    record = bench.run.records()[0]
    assert record.checkpoints[0].budget == 0
    assert not any(c.ended for r in bench.run.records() for c in r.checkpoints)


def test_the_cost_is_said_before_probing_begins(bench: Bench) -> None:
    _, _, err = bench("--schedule", "stride", "--every", "10", "--limit", "60")
    (line,) = [line for line in err.splitlines() if "probing will take" in line]
    report = json.loads((bench.out / "preflight.json").read_text())
    cost = report["cost"]
    assert f"about {cost['probes']:.1f} probes a question" in line
    records = bench.run.records()
    probes = sum(len(r.checkpoints) for r in records) / len(records)
    tokens = sum(c.probe_tokens for r in records for c in r.checkpoints) / len(records)
    thinking = sum(r.trace_tokens for r in records) / len(records)
    assert cost["probes"] == pytest.approx(probes, rel=0.25)
    assert cost["decoded_tokens"] == pytest.approx(tokens, rel=0.25)
    assert cost["share_of_thinking"] == pytest.approx(tokens / thinking, rel=0.2)


def test_a_model_without_markers_is_refused_by_probe(bench: Bench) -> None:
    bench.engine = ScriptedEngine(faults=frozenset({"never-waits"}))
    assert "so --schedule marker has nowhere to probe: use --schedule stride" in bench.refused(
        "--schedule", "marker"
    )
    assert not bench.out.exists()  # nothing was collected


def test_a_model_without_markers_fails_preflight_for_markers_alone(bench: Bench) -> None:
    bench.engine = ScriptedEngine(faults=frozenset({"never-waits"}))
    code, out, _ = bench("--schedule", "marker", "--every", "9", command="preflight")
    assert code == 5
    assert "--schedule marker has nowhere to probe" in " ".join(out.split())
    code, out, _ = bench(command="preflight")
    assert code == 0
    assert "marker-words  ok: none of the usual words occurs" in out


def test_preflight_shows_the_markers(bench: Bench) -> None:
    code, out, err = bench("--schedule", "marker", "--json", command="preflight")
    assert code == 0, err
    found = json.loads(out)["marker_words"]
    assert found["n_traces"] == 32  # of the pilot, as `probe` finds them
    (used,) = [word for word in found["words"] if word["used"]]
    assert used["text"] == "Wait"
    assert used["per_1000"] == pytest.approx(1000 * used["sentences"] / found["n_tokens"])
    _, out, _ = bench("--schedule", "grid", command="preflight")
    assert "Words with which the model turns back, in 16 traces" in out
    (row,) = [line.split() for line in out.splitlines() if line.split()[:2] == ["Wait", "used"]]
    assert len(row) == 5


def test_a_named_word_that_no_trace_holds_is_warned_of(bench: Bench) -> None:
    words = ("--schedule", "marker", "--every", "9", "--markers", "Hmm")
    code, out, _ = bench(*words, command="preflight")
    assert code == 0
    assert "marker-words warning: 0/16 traces contain a marker" in " ".join(out.split())
    assert "Wait" not in out  # words that are named are the only ones that are counted
