"""The log of looks: what each look may still claim, and which accidents are noticed."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.ground.errors import CalibrationError, OutputError, ProbeError
from stopadvisor.runs import access, look_log
from stopadvisor.runs.access import NeighbourLooks, record_check
from stopadvisor.runs.look_log import (
    LOOKS,
    Look,
    digests_of,
    read_log,
    record_regraded,
    record_result,
    record_shown,
)
from stopadvisor.stats.bounds import max_losses
from stopadvisor.stats.intervals import exact_interval

ALPHA_10 = {"alpha": 0.1, "families": ["learned", "confidence"]}
ALPHA_15 = {"alpha": 0.15, "families": ["learned", "confidence"]}


def take_look(folder: Path, questions: Sequence[str], asked: Any, **options: Any) -> Look:
    folder.mkdir(exist_ok=True)
    return access.take_look(folder, digests_of(questions), asked, **options)


def looks(folder: Path) -> list[Look]:
    return list(read_log(folder).looks)


def test_every_further_look_costs_its_delta(tmp_path: Path) -> None:
    first = take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.05)
    second = take_look(tmp_path, ["a", "b"], ALPHA_15, delta=0.05)
    third = take_look(tmp_path, ["a", "b"], {"alpha": 0.2}, delta=0.01)
    assert [look.number for look in (first, second, third)] == [1, 2, 3]
    assert [look.test_delta for look in (first, second, third)] == [0.05, 0.05, 0.01]
    assert {look.elsewhere for look in (first, second, third)} == {0}
    confidences = [look.confidence for look in (first, second, third)]
    assert confidences == pytest.approx([0.95, 0.90, 0.89])


def test_the_same_request_on_the_same_questions_is_the_same_look(tmp_path: Path) -> None:
    first = take_look(tmp_path, ["b", "a"], ALPHA_10, delta=0.05)
    take_look(tmp_path, ["a", "b"], ALPHA_15, delta=0.05)
    again = take_look(tmp_path, ["a", "b", "a"], ALPHA_10, delta=0.05)
    assert again == first
    assert again.confidence == 0.95
    assert len(looks(tmp_path)) == 2
    assert take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.01).number == 3  # another delta


def test_planned_looks_share_delta_and_run_out(tmp_path: Path) -> None:
    taken = [
        take_look(tmp_path, ["a"], {"alpha": k / 10}, delta=0.06, planned=3) for k in (1, 2, 3)
    ]
    assert [look.test_delta for look in taken] == pytest.approx([0.02] * 3)
    assert [look.opened for look in taken] == [False, False, True], "none can follow the last"
    assert [look.confidence for look in taken] == pytest.approx([0.94] * 3)
    for delta, planned, said in (
        (0.06, 3, "all 3 planned looks"),
        (0.06, 4, "must be declared with the first look"),
        (0.05, 3, "share one delta"),
    ):
        with pytest.raises(CalibrationError, match=said):
            take_look(tmp_path, ["a"], {"alpha": 0.4}, delta=delta, planned=planned)


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
    assert [look.number for look in read_log(tmp_path).at(digests_of(["a"]))] == [1]
    assert len(read_log(tmp_path).at(digests_of(["b"]))) == 2


def test_sets_under_different_plans_do_not_mix(tmp_path: Path) -> None:
    take_look(tmp_path, ["a"], ALPHA_10, delta=0.05, planned=3)
    take_look(tmp_path, ["b"], ALPHA_10, delta=0.05)
    with pytest.raises(CalibrationError, match="declared with the first look"):
        take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.05)


def test_a_setting_that_json_cannot_hold_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        take_look(tmp_path, ["a"], {"alpha": float("nan")}, delta=0.05)
    assert looks(tmp_path) == []


def test_no_confidence_left_is_refused_and_not_recorded(tmp_path: Path) -> None:
    take_look(tmp_path, ["a"], ALPHA_10, delta=0.6)
    with pytest.raises(CalibrationError, match="leaves no confidence"):
        take_look(tmp_path, ["a"], ALPHA_15, delta=0.4)
    assert len(looks(tmp_path)) == 1


def test_a_look_is_a_line_with_what_it_opened(tmp_path: Path) -> None:
    look = take_look(tmp_path, ["b", "a"], ALPHA_10, delta=0.05, lines=["2" * 16, "1" * 16])
    (line,) = (tmp_path / LOOKS).read_text(encoding="utf-8").splitlines()
    row = json.loads(line)
    assert list(row) == [
        *("look", "time", "asked", "questions_sha256", "lines_sha256"),
        *("delta", "planned", "earlier", "elsewhere"),
    ]
    assert row["look"] == 1
    assert row["asked"] == {"alpha": 0.1, "families": ["learned", "confidence"]}
    digests = sorted(hashlib.sha256(name).hexdigest()[:16] for name in (b"a", b"b"))
    assert row["questions_sha256"] == list(digests_of(["b", "a", "b"])) == digests
    assert row["lines_sha256"] == ["1" * 16, "2" * 16]
    assert looks(tmp_path) == [look]


def test_looks_at_other_questions_are_counted(tmp_path: Path) -> None:
    """Retrying on fresh questions until one passes leaves a trace."""
    for number, question in enumerate("abc"):
        look = take_look(tmp_path, [question], ALPHA_10, delta=0.05)
        assert (look.number, look.confidence, look.elsewhere) == (1, 0.95, number)
    others = NeighbourLooks(elsewhere=2)
    assert take_look(tmp_path, ["d"], ALPHA_10, delta=0.05, neighbours=others).elsewhere == 5


# --- What may follow ------------------------------------------------------------------------------


def test_a_look_with_other_settings_may_only_follow_failures(tmp_path: Path) -> None:
    first = take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.05)
    record_result(tmp_path, first, certified=False)
    second = take_look(tmp_path, ["a", "b"], ALPHA_15, delta=0.05)
    assert record_result(tmp_path, second, certified=True).opened
    with pytest.raises(CalibrationError, match=r"look 2 at these .* ended in a certificate"):
        take_look(tmp_path, ["b", "c"], {"alpha": 0.2}, delta=0.05)
    assert [look.certified for look in looks(tmp_path)] == [False, True]
    assert take_look(tmp_path, ["c"], {"alpha": 0.2}, delta=0.05).number == 1
    # The settings that certified were not chosen by what they showed: corrected labels are a look.
    again = take_look(tmp_path, ["a", "b"], ALPHA_15 | {"data": "corrected"}, delta=0.05)
    assert again.number == 3
    assert again.confidence == pytest.approx(0.85)


def test_sharing_delta_does_not_allow_a_look_after_a_certificate(tmp_path: Path) -> None:
    first = take_look(tmp_path, ["a"], ALPHA_10, delta=0.06, planned=3)
    assert not first.opened
    record_result(tmp_path, first, certified=True)
    with pytest.raises(CalibrationError, match="ended in a certificate"):
        take_look(tmp_path, ["a"], ALPHA_15, delta=0.06, planned=3)


def test_after_shown_outcomes_only_the_standing_settings_may_follow(tmp_path: Path) -> None:
    asked = {"protocol": "paper", "standing": ALPHA_15}
    assert take_look(tmp_path, ["a"], asked, delta=0.05).opened
    with pytest.raises(CalibrationError, match=r"showed their outcomes \(paper\)"):
        take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)
    assert take_look(tmp_path, ["a"], ALPHA_15, delta=0.05).confidence == pytest.approx(0.9)


def test_a_look_that_shows_outcomes_settles_no_later_settings(tmp_path: Path) -> None:
    """Only settings from before a certificate may follow it, not those of a later look."""
    first = take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)
    record_result(tmp_path, first, certified=True)
    take_look(tmp_path, ["a"], {"protocol": "verify", "standing": ALPHA_15}, delta=0.05)
    with pytest.raises(CalibrationError, match=r"look 1 at these .* ended in a certificate"):
        take_look(tmp_path, ["a"], ALPHA_15 | {"data": "corrected"}, delta=0.05)
    assert take_look(tmp_path, ["a"], ALPHA_10 | {"data": "corrected"}, delta=0.05).number == 3


@pytest.mark.parametrize(
    "further",
    [
        {"loss": "drop"},
        {"loss": "differs"},
        {"also": [{"loss": "lost", "alpha": 0.2, "category": "luckiest"}]},
        {"on_give_up": "reply"},
    ],
    ids=lambda further: "-".join(map(str, further)),
)
@pytest.mark.parametrize("standing", [False, True])
def test_settings_that_an_opened_look_left_at_their_defaults_may_not_change(
    tmp_path: Path, further: dict[str, Any], standing: bool
) -> None:
    """A look names no default, so settings that it lacks are others, chosen by its figures."""
    asked = {"protocol": "study", "standing": ALPHA_10} if standing else ALPHA_10
    first = take_look(tmp_path, ["a"], asked, delta=0.05)
    record_result(tmp_path, first, certified=True)
    with pytest.raises(CalibrationError, match="look 1 at these"):
        take_look(tmp_path, ["a"], ALPHA_10 | further, delta=0.05)
    follows = ALPHA_10 | {"data": "corrected", "traces": 2}  # as the run holds them, unchosen
    assert take_look(tmp_path, ["a"], follows, delta=0.05).number == 2


@pytest.mark.parametrize("standing", [False, True])
def test_a_delta_that_passes_is_not_chosen_by_what_was_shown(
    tmp_path: Path, standing: bool
) -> None:
    """The figures of a certificate tell at which delta the next bolder threshold would pass."""
    stands = {"protocol": "study", "standing": ALPHA_10 | {"delta": 0.05}}
    first = take_look(tmp_path, ["a"], stands if standing else ALPHA_10, delta=0.05)
    record_result(tmp_path, first, certified=True)
    with pytest.raises(CalibrationError, match="look 1 at these"):
        take_look(tmp_path, ["a"], ALPHA_10, delta=0.07)
    follows = ALPHA_10 | {"data": "corrected"}
    assert take_look(tmp_path, ["a"], follows, delta=0.05).number == 2


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, {"sampled_labels": 30}), ({"sampled_labels": 30}, {"sampled_labels": 40})],
)
def test_how_many_labels_count_is_settled_before_a_figure_is_shown(
    tmp_path: Path, before: dict[str, int], after: dict[str, int]
) -> None:
    """Differing replies that a certificate showed would tell which number certifies most."""
    asked = {"alpha": 0.1, "loss": "differs"} | before
    first = take_look(tmp_path, ["a"], asked, delta=0.05)
    record_result(tmp_path, first, certified=True)
    with pytest.raises(CalibrationError, match="ended in a certificate"):
        take_look(tmp_path, ["a"], {"alpha": 0.1, "asking": "x"} | after, delta=0.05)
    labelling = {"alpha": 0.1, "asking": "x"} | before
    assert take_look(tmp_path, ["a"], labelling, delta=0.05).number == 2


@pytest.mark.parametrize(
    ("loss", "asking", "follows"),
    [("differs", True, True), ("differs", False, False), ("drop", True, False)],
)
def test_after_a_certificate_on_differing_replies_labels_may_certify_lost_ones(
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


def test_questions_shown_as_fit_questions_certify_nothing(tmp_path: Path) -> None:
    record_shown(tmp_path, ["a", "b"], "assess")
    record_shown(tmp_path, ["b"], "assess")
    assert read_log(tmp_path).shown == {*digests_of(["a", "b"])}
    assert len((tmp_path / LOOKS).read_bytes().splitlines()) == 1
    with pytest.raises(CalibrationError, match="1 of these questions served as fit"):
        take_look(tmp_path, ["b", "c"], ALPHA_10, delta=0.05)
    assert take_look(tmp_path, ["c"], ALPHA_10, delta=0.05).number == 1


def test_a_failed_look_may_end_in_a_certificate_and_a_certificate_stands(tmp_path: Path) -> None:
    look = take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)
    told = [False, False, True, True, False]
    found = [record_result(tmp_path, look, certified=certified).certified for certified in told]
    assert found == [False, False, True, True, True]
    assert len((tmp_path / LOOKS).read_bytes().splitlines()) == 3


def test_policies_checked_on_the_same_questions_share_no_luck(tmp_path: Path) -> None:
    def check(policy: str, questions: str = "ab", delta: float = 0.05) -> tuple[int, float]:
        found = record_check(tmp_path, policy, questions, delta=delta, planned=None)
        assert (found.planned, found.share_of(0.05)) == (None, 0.05)
        return found.number, found.spent

    assert check("p") == (1, 0.05)
    assert check("q", "bc") == (2, 0.1)
    assert check("r", "d") == check("p") == (1, 0.05)  # of other questions; the same again
    assert check("s", delta=0.95) == (3, 1.0)  # a probability
    assert len(read_log(tmp_path).checks) == 4
    with pytest.raises(CalibrationError, match="declared with the first one, got --looks 9"):
        record_check(tmp_path, "t", "ab", delta=0.05, planned=9)


def test_planned_policies_share_delta_and_run_out(tmp_path: Path) -> None:
    def check(policy: str, questions: str = "ab", planned: int | None = None) -> tuple[int, float]:
        found = record_check(tmp_path, policy, questions, delta=0.06, planned=planned)
        assert (found.planned, found.share_of(0.06)) == (2, 0.03)
        return found.number, found.spent

    assert check("p", planned=2) == (1, 0.03)
    for planned in (None, 2):
        assert check("p", planned=planned) == (1, 0.03)
    with pytest.raises(CalibrationError, match="declared with the first one, got --looks 3"):
        check("q", planned=3)
    assert check("q") == (2, 0.06)  # the plan holds unasked
    for policy, questions in (("r", "ab"), ("q", "b")):
        with pytest.raises(CalibrationError, match="all 2 planned checks on these questions are"):
            check(policy, questions)
    record_check(tmp_path, "r", "c", delta=0.06, planned=None)
    for questions in ("bc", "cb"):  # sets under different plans do not mix
        with pytest.raises(CalibrationError, match="declared with the first one"):
            record_check(tmp_path, "s", questions, delta=0.06, planned=None)
    with pytest.raises(CalibrationError, match="declared with the first one"):
        check("s", "bc", planned=2)


def test_a_policy_checked_again_as_questions_are_added_may_be_confirmed_by_luck(
    tmp_path: Path,
) -> None:
    def check(folder: str, questions: str, planned: int | None = None) -> tuple[int, float]:
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        found = record_check(path, "p", questions, delta=0.06, planned=planned)
        return found.number, found.spent

    found = [check("unplanned", questions) for questions in ("a", "ab", "abc")]
    assert found == [(1, 0.06), (2, 0.12), (3, 0.18)]
    assert check("unplanned", "ab") == (2, 0.12)  # the same again
    assert check("planned", "a", 2) == (1, 0.03)
    assert check("planned", "ab") == (2, 0.06)
    with pytest.raises(CalibrationError, match="all 2 planned checks"):
        check("planned", "abc")
    assert check("planned", "d") == (1, 0.06)  # other questions


@pytest.mark.parametrize("planned", [None, 2])
def test_no_plan_follows_the_first_verdict(tmp_path: Path, planned: int | None) -> None:
    record_check(tmp_path, "p", "ab", delta=0.05, planned=planned)
    with pytest.raises(CalibrationError, match="got --looks 3 after 1 without that plan"):
        record_check(tmp_path, "p", "ab", delta=0.05, planned=3)
    assert record_check(tmp_path, "p", "ab", delta=0.05, planned=None).planned == planned


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
        passed = bool(losses[rule] <= max_losses(N, ALPHA, look.test_delta))
        return record_result(folder, look, certified=passed)

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
    monkeypatch.setattr("stopadvisor.runs.access._check_unseen", lambda *_, **__: None)
    rng = np.random.default_rng(7)
    false = sum(_any_false(tmp_path / str(k), 0.01, rng) for k in range(TRIALS))
    assert exact_interval(false, TRIALS)[0] > 2 * DELTA


# --- Accidents ------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder that notes its log, as runs do, with three looks and a result."""
    (tmp_path / "manifest.json").write_text('{"schema": 1}', encoding="utf-8")
    for alpha in (0.1, 0.15, 0.2):
        look = take_look(tmp_path, ["a"], {"alpha": alpha}, delta=0.05)
    record_result(tmp_path, look, certified=True)
    return tmp_path


def test_a_removed_log_is_noticed(run: Path) -> None:
    (run / LOOKS).unlink()
    with pytest.raises(ProbeError, match=r"looks\.jsonl: the log of looks is missing"):
        take_look(run, ["a"], ALPHA_10, delta=0.05)


@pytest.mark.parametrize("number", range(4))
def test_a_removed_line_is_noticed(run: Path, number: int) -> None:
    lines = (run / LOOKS).read_bytes().splitlines(keepends=True)
    (run / LOOKS).write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
    with pytest.raises(ProbeError, match="was changed, or put back to an earlier state"):
        looks(run)


def test_a_change_of_any_value_in_any_line_is_noticed(run: Path) -> None:
    rows = [json.loads(line) for line in (run / LOOKS).read_bytes().splitlines()]
    for row in rows:
        for key, value in list(row.items()):
            row[key] = "changed"
            text = "".join(json.dumps(each) + "\n" for each in rows)
            (run / LOOKS).write_text(text, encoding="utf-8")
            with pytest.raises(ProbeError, match="was changed, or put back"):
                looks(run)
            row[key] = value


@pytest.mark.parametrize("line", ["{", "[]", '{"look": 1, "asked": {}}', "[" * 100_000])
def test_a_damaged_line_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / LOOKS).write_text(line + "\n", encoding="utf-8")
    with pytest.raises(ProbeError, match=r"looks\.jsonl: line 1 is damaged"):
        take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)


@pytest.mark.parametrize("note", ["5", '{"lines": "x"}'])
def test_a_damaged_note_of_the_log_is_refused(tmp_path: Path, note: str) -> None:
    (tmp_path / "manifest.json").write_text(f'{{"looks": {note}}}', encoding="utf-8")
    with pytest.raises(ProbeError, match="the note of its log of looks is damaged"):
        looks(tmp_path)


def test_a_process_killed_before_the_note_leaves_a_valid_log(run: Path) -> None:
    note = (run / "manifest.json").read_bytes()
    take_look(run, ["b"], {"alpha": 0.3}, delta=0.05)
    (run / "manifest.json").write_bytes(note)
    assert len(looks(run)) == 4
    take_look(run, ["b"], {"alpha": 0.4}, delta=0.05)
    noted = json.loads((run / "manifest.json").read_bytes())
    assert (noted["schema"], noted["looks"]["lines"]) == (1, 6)


def test_a_line_cut_by_a_kill_counts_only_if_it_is_whole(run: Path) -> None:
    """Outcomes are opened after the line is synced."""
    before, note = (run / LOOKS).read_bytes(), (run / "manifest.json").read_bytes()
    other = take_look(run, ["b"], {"alpha": 0.3}, delta=0.05)
    line = (run / LOOKS).read_bytes()[len(before) :]
    (run / "manifest.json").write_bytes(note)
    for cut in range(1, len(line)):
        (run / LOOKS).write_bytes(before + line[:cut])
        assert (other in looks(run)) == (cut == len(line) - 1)
    for cut in (1, 40, len(line) - 1):
        (run / LOOKS).write_bytes(before + line[:cut])
        (run / "manifest.json").write_bytes(note)
        again = take_look(run, ["b"], {"alpha": 0.3}, delta=0.05)
        assert (again.number, len(looks(run))) == (1, 4)


# Runs an act in each ACT/k folder, in a process of its own that is killed before the k-th of its
# calls that open, write, sync or replace a file, or in the middle of that write.
_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.runs.test_look_log import ACTS

def kill_at(number):
    count = 0
    def killed(name, real):
        def call(*args, **options):
            nonlocal count
            for is_half in (False, True)[: 1 + (name == "write")]:
                count += 1
                if count == number:
                    if is_half:
                        real(args[0], args[1][: len(args[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)
        return call
    for name in ("open", "write", "fsync", "replace"):
        setattr(os, name, killed(name, getattr(os, name)))

for folder in map(Path, sys.argv[1:]):
    child = os.fork()
    if not child:
        kill_at(int(folder.name))
        ACTS[folder.parent.name.rstrip("-")](folder)
        (folder / "done").touch()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
ACTS: dict[str, Callable[[Path], object]] = {
    "look": lambda folder: take_look(folder, ["b"], {"alpha": 0.3}, delta=0.05),
    "result": lambda folder: record_result(folder, looks(folder)[0], certified=False),
    "shown": lambda folder: record_shown(folder, ["c"], "assess"),
    "regraded": lambda folder: record_regraded(folder, ["1", "2"], ["3", "2"]),
    "check": lambda folder: record_check(folder, "policy", ["a"], delta=0.05, planned=None),
}
TORN = '{"look": 4, "ti'


CASES = {"look": "", "look-": TORN, "result": TORN, "shown": "", "regraded": TORN, "check": ""}
"""The half-written last line before an act, by the name of its folders."""
KILLS = 30
"""More than there are calls to be killed at."""


@pytest.mark.slow
def test_killed_at_any_write_no_line_is_lost(run: Path, tmp_path_factory: Any) -> None:
    take_look(run, ["d"], {"alpha": 0.1}, delta=0.05, lines=["1", "2"])
    before = (run / LOOKS).read_text(encoding="utf-8")
    copies = tmp_path_factory.mktemp("copies")
    folders = [copies / name / str(k) for name in CASES for k in range(1, KILLS + 1)]
    for folder in folders:
        shutil.copytree(run, folder)
        (folder / LOOKS).write_text(before + CASES[folder.parent.name], encoding="utf-8")
    program = [sys.executable, "-c", _KILLED, *map(str, folders)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    codes = list(map(int, done.stdout.split()))
    for number, name in enumerate(CASES):
        here = slice(number * KILLS, (number + 1) * KILLS)
        _check_killed(name.rstrip("-"), before, folders[here], codes[here])


def _check_killed(act: str, before: str, folders: Sequence[Path], codes: Sequence[int]) -> None:
    survivor = codes.index(0)
    assert survivor >= 8
    assert codes == [-signal.SIGKILL] * survivor + [0] * (len(codes) - survivor)
    for folder, code in zip(folders, codes, strict=True):
        read_log(folder)
        text = (folder / LOOKS).read_text(encoding="utf-8")
        assert text.startswith(before)
        new = text.removeprefix(before)
        assert (new.count("\n") == 1) or code != 0
        # Only a process that was not killed got past the line.
        assert (folder / "done").exists() == (code == 0)
        ACTS[act](folder)
    ended = {len(read_log(folder).looks) for folder in folders}
    texts = [(folder / LOOKS).read_text(encoding="utf-8") for folder in folders]
    assert {text.removeprefix(before).count("\n") for text in texts} == {1}
    assert ended == {5 if act == "look" else 4}


def test_a_full_disk_records_no_look(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OutputError("cannot write: No space left on device")

    monkeypatch.setattr(look_log, "append", full)
    with pytest.raises(OutputError):
        take_look(run, ["b"], ALPHA_10, delta=0.05)
    assert len(looks(run)) == 3


def test_removed_or_changed_lines_that_a_look_opened_are_noticed(tmp_path: Path) -> None:
    look = take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.05, lines=["1", "2"])
    assert list(read_log(tmp_path).missing(["3", "2", "1"])) == []
    assert list(read_log(tmp_path).missing(["3", "2"])) == [(look, 1)]
    record_regraded(tmp_path, ["1", "2", "7"], ["4", "2", "8"])
    assert read_log(tmp_path).regraded == {"1": "4"}  # the one of them that a look opened
    assert list(read_log(tmp_path).missing(["4", "2"])) == []
    assert list(read_log(tmp_path).missing(["1", "2"])) == [], "killed before they were written"
    record_regraded(tmp_path, ["4", "2"], ["1", "2"])
    assert list(read_log(tmp_path).missing(["1", "2"])) == []
    assert list(read_log(tmp_path).missing(["5", "2"])) == [(look, 1)]


def test_source_date_epoch_sets_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    look = take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)
    assert look.created == "1970-01-02T00:00:00+00:00"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    with pytest.raises(CalibrationError, match="SOURCE_DATE_EPOCH must be whole seconds"):
        take_look(tmp_path, ["a"], ALPHA_15, delta=0.05)
