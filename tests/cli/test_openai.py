"""`--engine openai` on the command line: runs, resumes, ends clearly, and never shows the key."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from stopadvisor.cli.main import main
from tests.engines.fake_server import TINY, FakeServer, Story, fake_server
from tests.engines.test_openai_hostile import Echo
from tests.scripted import write_sums

SECRET = "sk-not-to-be-seen-0123456789"
WORDS = ("--budgets", "0,4,12", "--max-think", "100", "--concurrency", "4", "--no-preflight")


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return write_sums(tmp_path / "sums.jsonl", 100)


def probe(file: Path, server: FakeServer, *words: str, command: str = "probe") -> int:
    return main(
        [
            *(command, str(file), "--engine", "openai", "--model", "tiny-reasoner"),
            *("--base-url", server.url, *WORDS, *words),
        ]
    )


def lines(out: Path) -> dict[str, str]:
    rows = (out / "probes.jsonl").read_text(encoding="utf-8").splitlines()
    found = {json.loads(row)["id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.slow
def test_a_run_is_collected_and_resumed(
    sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with fake_server() as server:
        assert probe(sums, server, "--limit", "12", "--out", str(out)) == 0
        first = lines(out)
        capsys.readouterr()
        assert probe(sums, server, "--limit", "30", "--out", str(out), "--json") == 0
        again = lines(out)
    told = json.loads(capsys.readouterr().out)
    assert (told["questions"], told["new"]) == (30, 18)
    assert len(first) == 12
    assert again.items() >= first.items()
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["plan"]["entropy"] == "top-k:20"
    assert manifest["engine"]["engine"] == "openai"
    assert server.url not in json.dumps(manifest)  # a server that moves is the same run


@pytest.mark.slow
def test_a_server_that_dies_in_mid_run_loses_nothing(
    sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calm, shaken = tmp_path / "calm", tmp_path / "shaken"
    words = ("--limit", "20", "--patience", "0.3", "--out")
    with fake_server() as server:
        assert probe(sums, server, *words, str(calm)) == 0
    story = Story()
    server = FakeServer(story=story)

    def dying(tokens: int) -> str:
        if len(server.asked) > 45:
            server.always = "close"
        return " 7\n" if tokens > 8 else " 5\n"

    story.forced = dying
    server.start()
    try:
        assert probe(sums, server, *words, str(shaken)) == 1
        said = capsys.readouterr().err
        assert f"what was collected is kept in {shaken}" in said
        assert "stopadvisor: no answer" in said
        assert 0 < len(lines(shaken)) < 20
        server.always, story.forced = None, Story().forced
        assert probe(sums, server, *words, str(shaken)) == 0
    finally:
        server.stop()
    assert lines(shaken) == lines(calm)


# --- Clear ends -----------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_a_failure(
    sums: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = FakeServer()
    server.start()
    server.stop()
    assert probe(sums, server, "--patience", "0.3") == 1
    assert "stopadvisor: cannot reach the server" in capsys.readouterr().err
    assert probe(sums, server, "--patience", "2") == 1
    assert "waiting for a server, for 2 s at most (--patience): http" in capsys.readouterr().err


# --- The key --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [None, "told", "401", "500", "bug"])
def test_the_key_is_nowhere_to_be_found(
    sums: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fault: str | None,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("STOPADVISOR_DEBUG", "1")
    monkeypatch.setenv("MY_KEY", SECRET)
    out = tmp_path / "run"
    words = ["--limit", "6", "--out", str(out), "--api-key-env", "MY_KEY", "--patience", "0.3"]
    server = FakeServer(key=SECRET, echoes_key=True)
    if fault == "told":  # in its name, its thinking and its answers
        story = Story(f"{SECRET}\n", f"Bearer {SECRET}", lambda tokens: f" {SECRET}\n")
        server = Echo(key=SECRET, story=story)
        words += ["--tokenizer", str(TINY), "--cap", "48"]
    with server:
        if fault == "401":
            server.key = "another"
        if fault == "500":

            def breaking(tokens: int) -> str:
                server.always = "500"
                return " 7\n"

            server.story.forced = breaking
        if fault == "bug":  # an error that is none of ours, raised while requests are made

            def broken(*args: object) -> None:
                raise ZeroDivisionError("a bug")

            monkeypatch.setattr("stopadvisor.engines.openai.served_model.ServedModel.force", broken)
        code = probe(sums, server, *words, "--json")
    assert code == {None: 0, "told": 0, "401": 2, "500": 1, "bug": 1}[fault]
    if fault == "told":
        for name in ("probes.jsonl", "thinking.jsonl"):
            assert b"[MY_KEY]" in (out / name).read_bytes()
    if fault is None:
        assert server.headers[0]["Authorization"] == f"Bearer {SECRET}"
    said = capsys.readouterr()
    if fault == "bug":
        assert "Traceback" in said.err
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert len(written) > (fault != "401")
    assert not any(SECRET.encode() in data for data in written)
    for text in (said.out, said.err, caplog.text):
        assert SECRET not in text
