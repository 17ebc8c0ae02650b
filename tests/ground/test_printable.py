"""What a terminal or a spreadsheet would obey is shown instead."""

from __future__ import annotations

import io
import json
import unicodedata

from stopadvisor.ground.printable import csv_cell, json_safe, printable, short_repr
from stopadvisor.ground.results import to_json
from stopadvisor.report.progress import LineProgress
from stopadvisor.report.screen import Screen
from stopadvisor.report.sheet import Section
from stopadvisor.studies.tables import SkippedStudy

HOSTILE = "a\x1b[2Jb\x9b1mc\x07d\u202ee\re\x7f"
ESCAPED = "a\\x1b[2Jb\\x9b1mc\\x07d\\u202ee\\re\\x7f".replace("\\r", "\\x0d")


def test_control_characters_are_written_as_escapes() -> None:
    assert printable(HOSTILE) == ESCAPED
    assert printable("é → 東京 🙂\n\t") == "é → 東京 🙂\n\t"


def test_nothing_begins_a_line_but_a_line_feed() -> None:
    text = printable("a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\r\nj")
    assert text.splitlines() == text.split("\n")
    assert text.endswith("f\\x85g\\u2028h\\u2029i\\x0d\nj")


def test_what_no_file_may_hold_is_written_as_an_escape() -> None:
    assert printable("a\ud800\udfffb\ufffe\uffff") == "a\\ud800\\udfffb\\ufffe\\uffff"
    assert json.loads(json_safe('"\ud800\uffff"')) == "\ud800\uffff"


def test_what_takes_no_room_is_shown() -> None:
    unseen = "a\u200bb\ufeffc\u2060d\u061ce\xad\U000e0041\U000e007f"
    assert printable(unseen) == "a\\u200bb\\ufeffc\\u2060d\\u061ce\\xad\\U000e0041\\U000e007f"
    assert json_safe(f'"{unseen}"').isascii()
    assert json.loads(json_safe(f'"{unseen}"')) == unseen
    joined = "👩\u200d🔬 می\u200cخواهم"
    assert printable(joined) == json_safe(joined) == joined


def test_what_steers_or_hides_is_escaped_and_nothing_else() -> None:
    """By Unicode's categories and blocks; the joiners belong to some scripts."""
    singly = {0xAD, 0x61C, 0x180E, 0x200B, 0x200E, 0x200F, 0xFEFF, 0xFFFE, 0xFFFF}
    for code in (*range(0x3000), *range(0xD700, 0x10100), *range(0xDFFF0, 0xE0300)):
        letter, kind = chr(code), unicodedata.category(chr(code))
        in_block = 0xE0000 <= code <= 0xE007F or 0xE0100 <= code <= 0xE01EF
        if kind == "Cn" and not in_block and code not in singly:
            continue  # no character yet
        format_of = kind == "Cf" and (0x202A <= code <= 0x206F or 0xFFF9 <= code <= 0xFFFB)
        never = kind in ("Cs", "Zl", "Zp") or format_of or in_block or code in singly
        control = kind == "Cc" and letter not in "\n\t"
        assert (printable(letter) != letter) is (never or control), hex(code)
        assert (json_safe(letter) != letter) is (never or (control and code >= 0x7F)), hex(code)
        if code >= 0x7F:
            assert json.loads(f'"{json_safe(letter)}"') == letter


def test_what_an_error_repeats_is_short_and_one_line() -> None:
    for value in ("x" * 10_000, ["y" * 10_000] * 50, {"k" * 999: ["z"] * 99}, 10**400, "a\nb"):
        assert len(short_repr(value)) < 300
        assert "\n" not in short_repr(value)


def test_every_part_of_a_screen_is_filtered() -> None:
    out = io.StringIO()
    screen = Screen(out)
    screen.headline(HOSTILE)
    screen.facts([(HOSTILE, HOSTILE)], "run '\x1b[2J'")
    screen.title(HOSTILE)
    screen.text(HOSTILE)
    screen.section(Section(HOSTILE, (HOSTILE, HOSTILE), ((HOSTILE, HOSTILE),)))
    assert not set("\x1b\x9b\x07\u202e\r\x7f") & set(out.getvalue())
    assert "\\x1b[2J" in out.getvalue()


def test_json_stays_json_and_shows_no_control_character() -> None:
    text = to_json(SkippedStudy(HOSTILE, HOSTILE))
    assert not set("\x1b\x9b\x07\u202e\r\x7f") & set(text)
    assert json.loads(text)["study"] == HOSTILE
    assert json_safe('"é"') == '"é"'


def test_progress_is_filtered() -> None:
    err = io.StringIO()
    LineProgress(err).remark(HOSTILE)
    assert err.getvalue() == ESCAPED + "\n"


def test_cells_that_begin_a_formula_are_quoted() -> None:
    for cell in ("=HYPERLINK(1)", "+1", "-x", "@SUM", "\tx"):
        assert csv_cell(cell) == f"'{cell}"
    for other in ("learned", "-0.4761", "-1e-05", -0.5, 3):
        assert csv_cell(other) == other
    assert csv_cell("\x1b[m") == "\\x1b[m"
