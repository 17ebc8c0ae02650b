"""The ledger of looks: what each look may still claim."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.errors import CalibrationError, ProbeError
from stopadvisor.runs.chain import extend, write_chain
from stopadvisor.runs.ledger import (
    CALIBRATION,
    LEDGER,
    Ledger,
    Look,
    LookRequest,
    looks_at,
    read_ledger,
    record_refusal,
    record_result,
    record_shown,
    take_looks,
)
from stopadvisor.stats.bounds import Certified, certify
from stopadvisor.stats.intervals import exact_interval

ALPHA_10 = {"alpha": 0.1, "families": ("learned", "confidence")}
ALPHA_15 = {"alpha": 0.15, "families": ("learned", "confidence")}


def take_look(
    folder: Path,
    questions: Sequence[str],
    request: Mapping[str, Any],
    *,
    delta: float,
    planned: int | None = None,
) -> Look:
    folder.mkdir(exist_ok=True)
    (look,) = take_looks(folder, [LookRequest(questions, request, delta, planned)])
    return look


def test_every_further_look_costs_its_delta(tmp_path: Path) -> None:
    first = take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.05)
    second = take_look(tmp_path, ["a", "b"], ALPHA_15, delta=0.05)
    third = take_look(tmp_path, ["a", "b"], {"alpha": 0.2}, delta=0.01)
    assert [look.number for look in (first, second, third)] == [1, 2, 3]
    assert [look.test_delta for look in (first, second, third)] == [0.05, 0.05, 0.01]
    confidences = [look.confidence for look in (first, second, third)]
    assert confidences == pytest.approx([0.95, 0.90, 0.89])


def test_the_same_request_on_the_same_questions_is_the_same_look(tmp_path: Path) -> None:
    first = take_look(tmp_path, ["b", "a"], ALPHA_10, delta=0.05)
    take_look(tmp_path, ["a", "b"], ALPHA_15, delta=0.05)
    again = take_look(tmp_path, ["a", "b", "a"], ALPHA_10, delta=0.05)
    assert again == first
    assert again.confidence == 0.95
    assert len(read_ledger(tmp_path)) == 2
    assert take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.01).number == 3  # another delta


def test_planned_looks_share_delta_and_run_out(tmp_path: Path) -> None:
    looks = [
        take_look(tmp_path, ["a"], {"alpha": k / 10}, delta=0.06, planned=3) for k in (1, 2, 3)
    ]
    assert [look.test_delta for look in looks] == pytest.approx([0.02] * 3)
    assert [look.confidence for look in looks] == pytest.approx([0.94] * 3)
    with pytest.raises(CalibrationError, match="all 3 planned looks"):
        take_look(tmp_path, ["a"], {"alpha": 0.4}, delta=0.06)
    # A plan holds without being named again, and cannot be stretched.
    with pytest.raises(CalibrationError, match="must be declared with the first look"):
        take_look(tmp_path, ["a"], {"alpha": 0.4}, delta=0.06, planned=4)
    with pytest.raises(CalibrationError, match="share one delta"):
        take_look(tmp_path, ["a"], {"alpha": 0.4}, delta=0.05)


def test_a_plan_comes_before_the_first_look(tmp_path: Path) -> None:
    take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)
    for request in (ALPHA_15, ALPHA_10):  # not even for the look that was taken already
        with pytest.raises(CalibrationError, match="must be declared with the first look"):
            take_look(tmp_path, ["a"], request, delta=0.05, planned=2)


def test_looks_count_where_questions_overlap(tmp_path: Path) -> None:
    take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.05)
    assert take_look(tmp_path, ["c", "d"], ALPHA_10, delta=0.05).confidence == 0.95
    more = take_look(tmp_path, ["b", "c"], ALPHA_10, delta=0.05)  # met both
    assert more.number == 3
    assert more.confidence == pytest.approx(0.85)
    assert [look.number for look in looks_at(tmp_path, ["a"])] == [1]
    assert len(looks_at(tmp_path, ["b"])) == 2


def test_sets_under_different_plans_do_not_mix(tmp_path: Path) -> None:
    take_look(tmp_path, ["a"], ALPHA_10, delta=0.05, planned=3)
    take_look(tmp_path, ["b"], ALPHA_10, delta=0.05)
    with pytest.raises(CalibrationError, match="declared with the first look"):
        take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.05)


def test_no_confidence_left_is_refused_and_not_recorded(tmp_path: Path) -> None:
    take_look(tmp_path, ["a"], ALPHA_10, delta=0.6)
    with pytest.raises(CalibrationError, match="leaves no confidence"):
        take_look(tmp_path, ["a"], ALPHA_15, delta=0.4)
    assert len(read_ledger(tmp_path)) == 1


def test_a_look_is_written_before_its_result_is_known(tmp_path: Path) -> None:
    look = take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)
    (row,) = json.loads((tmp_path / LEDGER).read_text(encoding="utf-8"))["entries"]
    assert row["questions"] == ["a"]
    assert row["request"] == {"alpha": 0.1, "families": ["learned", "confidence"]}
    assert read_ledger(tmp_path) == [look]


def test_a_ledger_says_that_it_is_a_chain(tmp_path: Path) -> None:
    """Other versions read it by this number."""
    write_chain(tmp_path / LEDGER, extend([], [{"kind": "note"}]))
    assert json.loads((tmp_path / LEDGER).read_text(encoding="utf-8"))["schema"] == 2


@pytest.mark.parametrize(
    "content",
    [
        *(
            "",
            "{",
            '{"looks": [{"number": 1}]}',
            '{"schema": 1}',
            '{"schema": 2, "looks": []}',
            "[]",
        ),
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_a_damaged_ledger_stops_everything(tmp_path: Path, content: str) -> None:
    (tmp_path / LEDGER).write_text(content, encoding="utf-8")
    with pytest.raises(ProbeError, match="the ledger of looks is damaged"):
        take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)


def test_a_head_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"ledger_head": 5}', encoding="utf-8")
    with pytest.raises(ProbeError, match="field 'ledger_head': expected text, got 5"):
        read_ledger(tmp_path)


def test_no_ledger_is_no_look(tmp_path: Path) -> None:
    assert read_ledger(tmp_path) == []


def test_looks_are_recorded_together_or_not_at_all(tmp_path: Path) -> None:
    requests = (ALPHA_10, ALPHA_15, {"alpha": 0.2})
    asks = [LookRequest(["a"], request, 0.05, 2) for request in requests]
    with pytest.raises(CalibrationError, match="all 2 planned looks"):
        take_looks(tmp_path, asks)
    assert read_ledger(tmp_path) == []
    assert [look.number for look in take_looks(tmp_path, asks[:2])] == [1, 2]


def test_looks_at_other_questions_are_counted(tmp_path: Path) -> None:
    """Trying again on fresh questions until it passes leaves a trace."""
    for number, question in enumerate("abc"):
        look = take_look(tmp_path, [question], ALPHA_10, delta=0.05)
        assert (look.number, look.confidence, look.elsewhere) == (1, 0.95, number)
    (beside,) = take_looks(tmp_path, [LookRequest(["d"], ALPHA_10, 0.05, elsewhere=2)])
    assert beside.elsewhere == 5


def test_a_ledger_that_was_taken_away_is_missed(tmp_path: Path) -> None:
    (tmp_path / CALIBRATION).write_text("{}")
    with pytest.raises(ProbeError, match="the ledger of looks is missing"):
        read_ledger(tmp_path)


# --- What may follow ------------------------------------------------------------------------------


def test_a_look_for_other_settings_comes_after_failures_alone(tmp_path: Path) -> None:
    first = take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.05)
    record_result(tmp_path, first, certified=False)
    second = take_look(tmp_path, ["a", "b"], ALPHA_15, delta=0.05)
    assert record_result(tmp_path, second, certified=True).opened
    with pytest.raises(CalibrationError, match=r"look 2 at these .* ended in a certificate"):
        take_look(tmp_path, ["b", "c"], {"alpha": 0.2}, delta=0.05)
    assert [look.certified for look in read_ledger(tmp_path)] == [False, True]
    assert take_look(tmp_path, ["c"], {"alpha": 0.2}, delta=0.05).number == 1
    # The settings that certified were not chosen by what they showed: corrected labels are a look.
    again = take_look(tmp_path, ["a", "b"], ALPHA_15 | {"data": "corrected"}, delta=0.05)
    assert again.number == 3
    assert again.confidence == pytest.approx(0.85)


def test_sharing_delta_alone_does_not_make_a_look_after_a_certificate_right(tmp_path: Path) -> None:
    first = take_look(tmp_path, ["a"], ALPHA_10, delta=0.06, planned=3)
    assert not first.opened
    record_result(tmp_path, first, certified=True)
    with pytest.raises(CalibrationError, match="ended in a certificate"):
        take_look(tmp_path, ["a"], ALPHA_15, delta=0.06)


def test_declared_settings_follow_whatever_was_shown(tmp_path: Path) -> None:
    declared = {"alpha": 0.15, "families": ["learned", "confidence"]}
    ask = LookRequest(["a"], ALPHA_10, 0.06, 2, later=[declared])
    (first,) = take_looks(tmp_path, [ask])
    assert first.opened  # its figures are shown even if it fails
    record_result(tmp_path, first, certified=True)
    with pytest.raises(CalibrationError, match="ended in a certificate"):
        take_look(tmp_path, ["a"], {"alpha": 0.2}, delta=0.06)
    second = take_look(tmp_path, ["a"], ALPHA_15, delta=0.06)
    assert (second.number, second.test_delta, second.confidence) == (2, 0.03, 0.94)


def test_shown_outcomes_leave_the_settings_that_stood(tmp_path: Path) -> None:
    standing = {"alpha": 0.15}
    shown = LookRequest(["a"], {"protocol": "paper"}, 0.05, shows=True, later=[standing])
    take_looks(tmp_path, [shown])
    with pytest.raises(CalibrationError, match=r"showed their outcomes \(paper\)"):
        take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)
    assert take_look(tmp_path, ["a"], ALPHA_15, delta=0.05).confidence == pytest.approx(0.9)


def test_what_shows_outcomes_settles_nothing_for_later_looks(tmp_path: Path) -> None:
    """Only what stood before a certificate may follow it, not what was looked at after it."""
    first = take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)
    record_result(tmp_path, first, certified=True)
    take_looks(tmp_path, [LookRequest(["a"], ALPHA_15, 0.05, shows=True)])
    with pytest.raises(CalibrationError, match=r"look 1 at these .* ended in a certificate"):
        take_look(tmp_path, ["a"], ALPHA_15 | {"data": "corrected"}, delta=0.05)
    assert take_look(tmp_path, ["a"], ALPHA_10 | {"data": "corrected"}, delta=0.05).number == 3


@pytest.mark.parametrize(
    ("loss", "asking", "follows"),
    [("differs", True, True), ("differs", False, False), ("drop", True, False)],
)
def test_who_certified_what_differs_may_label_few_for_what_is_lost(
    tmp_path: Path, loss: str, asking: bool, follows: bool
) -> None:
    first = take_look(tmp_path, ["a"], {"alpha": 0.1, "loss": loss}, delta=0.05)
    record_result(tmp_path, first, certified=True)
    wanted = {"alpha": 0.1} | ({"asking": "200 labels"} if asking else {})
    if follows:
        assert take_look(tmp_path, ["a"], wanted, delta=0.05).number == 2
        return
    with pytest.raises(CalibrationError, match="ended in a certificate"):
        take_look(tmp_path, ["a"], wanted, delta=0.05)


def test_a_look_shows_nothing_unless_it_says_so() -> None:
    look = Look(1, None, 0.05, 0.05, ALPHA_10, ("a",), "2026-01-01T00:00:00+00:00")
    assert not look.opened


def test_the_last_planned_look_shows_its_figures(tmp_path: Path) -> None:
    first, second = (take_look(tmp_path, ["a"], {"alpha": a}, delta=0.1, planned=2) for a in (1, 2))
    assert (first.opened, second.opened) == (False, True)


def test_questions_shown_as_fit_questions_certify_nothing(tmp_path: Path) -> None:
    record_shown(tmp_path, ["a", "b"], "assess")
    record_shown(tmp_path, ["b"], "assess")
    assert Ledger.read(tmp_path).shown == {"a", "b"}
    assert len(Ledger.read(tmp_path).entries) == 1
    with pytest.raises(CalibrationError, match=r"1 of these questions served as fit .*'b'"):
        take_look(tmp_path, ["b", "c"], ALPHA_10, delta=0.05)
    assert take_look(tmp_path, ["c"], ALPHA_10, delta=0.05).number == 1


def test_a_refusal_without_a_look_is_recorded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = record_refusal(tmp_path, ALPHA_10)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert record_refusal(tmp_path, ALPHA_10) == first
    assert record_refusal(tmp_path, ALPHA_15) != first
    assert read_ledger(tmp_path) == []


# --- What that is worth ---------------------------------------------------------------------------

N, ALPHA, DELTA = 100, 0.1, 0.05
TRIALS = 120


def _any_false(folder: Path, first_risk: float, rng: np.random.Generator) -> bool:
    """Whether somebody who looks twice, and tunes on what is shown, gets a false certificate.

    The second rule is one of twelve, all of them a little worse than alpha.
    """
    risks = np.array([first_risk] + [1.01 * ALPHA] * 12)
    losses = rng.binomial(N, risks)

    def certifies(rule: int) -> Look:
        look = take_look(folder, ["a"], {"families": [str(rule)]}, delta=DELTA)
        found = certify(losses[[rule]], N, alpha=ALPHA, delta=look.test_delta)
        return record_result(folder, look, certified=isinstance(found, Certified))

    first = certifies(0)
    try:
        second = certifies(1 + int(losses[1:].argmin()) if first.opened else 1)
    except CalibrationError:
        return first.certified is True and first_risk > ALPHA
    return second.certified is True or (first.certified is True and first_risk > ALPHA)


@pytest.mark.slow
@pytest.mark.parametrize("first_risk", [0.01, 0.11, 0.3], ids=["passes", "near", "fails"])
def test_two_looks_are_wrong_in_two_delta_of_cases_at_most(
    tmp_path: Path, first_risk: float
) -> None:
    rng = np.random.default_rng(7)
    false = sum(_any_false(tmp_path / str(k), first_risk, rng) for k in range(TRIALS))
    assert exact_interval(false, TRIALS)[0] <= 2 * DELTA
    assert false / TRIALS <= 2 * DELTA


@pytest.mark.slow
def test_a_second_look_after_a_certificate_would_be_wrong_more_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stopadvisor.runs.ledger._check_unseen", lambda *_, **__: None)
    rng = np.random.default_rng(7)
    false = sum(_any_false(tmp_path / str(k), 0.01, rng) for k in range(TRIALS))
    assert exact_interval(false, TRIALS)[0] > 2 * DELTA


# --- The chain ------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder that notes its ledger's head, as runs do, with three looks and a result."""
    (tmp_path / "manifest.json").write_text('{"schema": 1}', encoding="utf-8")
    for alpha in (0.1, 0.15, 0.2):
        look = take_look(tmp_path, ["a"], {"alpha": alpha}, delta=0.05)
    record_result(tmp_path, look, certified=True)
    return tmp_path


def entries(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / LEDGER).read_bytes())["entries"]
    return found


def test_every_entry_names_the_one_before_it(run: Path) -> None:
    rows, ledger = entries(run), Ledger.read(run)
    assert [row["kind"] for row in rows] == ["look"] * 3 + ["result"]
    assert rows[0]["previous"] == "0" * 64
    for row, before in zip(rows[1:], rows, strict=False):
        assert row["previous"] == before["digest"]
    for row in rows:
        body = {key: value for key, value in row.items() if key != "digest"}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        assert row["digest"] == hashlib.sha256(text.encode()).hexdigest()
    assert [look.head for look in ledger.looks] == [row["digest"] for row in rows[:3]]
    assert [look.certified for look in ledger.looks] == [None, None, True]
    assert json.loads((run / "manifest.json").read_bytes()) == {
        "schema": 1,
        "ledger_head": ledger.head,
    }


def test_a_failed_look_may_end_in_a_certificate_and_a_certificate_stands(tmp_path: Path) -> None:
    look = take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)
    told = [False, False, True, True, False]
    found = [record_result(tmp_path, look, certified=certified).certified for certified in told]
    assert found == [False, False, True, True, True]
    kinds = [(row["kind"], row.get("certified")) for row in entries(tmp_path)]
    assert kinds == [("look", None), ("result", False), ("result", True)]


def test_an_entry_holds_what_every_reader_of_json_reads() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        extend([], [{"kind": "note", "delta": float("nan")}])


@pytest.mark.parametrize("number", [0, 1, 3])
def test_an_entry_that_was_taken_out_is_missed(run: Path, number: int) -> None:
    rows = entries(run)
    del rows[number]
    (run / LEDGER).write_text(json.dumps({"schema": 2, "entries": rows}), encoding="utf-8")
    with pytest.raises(ProbeError, match=r"ledger of looks is (not as it was|an older)"):
        read_ledger(run)


def test_every_value_of_every_entry_is_held(run: Path) -> None:
    rows = entries(run)
    for number, row in enumerate(rows, start=1):
        for key, value in list(row.items()):
            row[key] = "changed"
            (run / LEDGER).write_text(json.dumps({"schema": 2, "entries": rows}), encoding="utf-8")
            with pytest.raises(
                ProbeError, match=rf"entry {number} of the ledger of looks is not as"
            ):
                read_ledger(run)
            row[key] = value


def test_an_earlier_state_is_noticed_where_the_run_or_the_calibration_notes_a_later_one(
    run: Path,
) -> None:
    whole, note = (run / LEDGER).read_bytes(), (run / "manifest.json").read_bytes()
    shorter = json.dumps({"schema": 2, "entries": entries(run)[:2]})
    (run / LEDGER).write_text(shorter, encoding="utf-8")
    with pytest.raises(ProbeError, match="older or another one than the run notes"):
        read_ledger(run)
    (run / "manifest.json").write_text("{}", encoding="utf-8")  # the note is gone with it
    assert len(read_ledger(run)) == 2
    found = {"run": str(run), "look": {"head": json.loads(whole)["entries"][2]["digest"]}}
    (run / CALIBRATION).write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(ProbeError, match=r"than calibration\.json notes"):
        read_ledger(run)
    (run / LEDGER).write_bytes(whole)
    (run / "manifest.json").write_bytes(note)
    assert len(read_ledger(run)) == 3


def test_a_ledger_forged_from_the_start_is_not_the_one_that_the_run_notes(run: Path) -> None:
    note = (run / "manifest.json").read_bytes()
    (run / LEDGER).unlink()
    (run / "manifest.json").write_text("{}", encoding="utf-8")
    take_look(run, ["a"], ALPHA_10, delta=0.05)
    (run / "manifest.json").write_bytes(note)
    with pytest.raises(ProbeError, match="older or another one"):
        read_ledger(run)


def test_a_run_remembers_a_ledger_that_was_taken_away(run: Path) -> None:
    (run / LEDGER).unlink()
    with pytest.raises(ProbeError, match="missing, and the run's own note"):
        take_look(run, ["a"], ALPHA_10, delta=0.05)


def test_a_process_killed_before_the_note_leaves_a_good_ledger(run: Path) -> None:
    note = (run / "manifest.json").read_bytes()
    take_look(run, ["b"], {"alpha": 0.3}, delta=0.05)
    (run / "manifest.json").write_bytes(note)
    assert len(read_ledger(run)) == 4


def test_a_calibration_written_here_for_another_run_asks_for_no_ledger(tmp_path: Path) -> None:
    text = json.dumps({"run": "runs/another", "look": {"head": "0" * 64}})
    (tmp_path / CALIBRATION).write_text(text, encoding="utf-8")
    assert read_ledger(tmp_path) == []


OLD = {
    "schema": 1,
    "looks": [
        {
            "number": 1,
            "planned": None,
            "delta": 0.05,
            "spent": 0.05,
            "request": {"alpha": 0.1},
            "questions": ["a", "b"],
            "created": "2026-01-01T00:00:00+00:00",
            "elsewhere": 0,
        }
    ],
}


def test_a_ledger_from_before_the_chain_is_taken_over_once(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    old = json.dumps(OLD).encode()
    (tmp_path / LEDGER).write_bytes(old)
    assert Ledger.read(tmp_path).taken_over == 1
    assert (tmp_path / LEDGER).read_bytes() == old  # reading changes nothing
    assert take_look(tmp_path, ["c"], ALPHA_10, delta=0.05).elsewhere == 1
    first, look, new = entries(tmp_path)
    assert (first["kind"], first["looks"]) == ("taken over", 1)
    assert first["sha256"] == hashlib.sha256(old).hexdigest()
    assert (look["questions"], look["shows"]) == (["a", "b"], True)  # figures were shown then
    assert new["previous"] == look["digest"]
    assert Ledger.read(tmp_path).taken_over == 0
    # Not a second time: the old file would hide what came after it.
    (tmp_path / LEDGER).write_bytes(old)
    with pytest.raises(ProbeError, match="older or another one"):
        read_ledger(tmp_path)


def test_the_time_is_ruled_by_source_date_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    look = take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)
    assert look.created == "1970-01-02T00:00:00+00:00"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    with pytest.raises(CalibrationError, match="SOURCE_DATE_EPOCH must be whole seconds"):
        take_look(tmp_path, ["a"], ALPHA_15, delta=0.05)
