"""Every fenced block of every README is run unchanged, parsed as its commands would, or read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from stopadvisor.cli.main import cli, main
from stopadvisor.cli.schema import RESULTS
from stopadvisor.runs.ladder import read_ladder
from tests.forked import Forked
from tests.generate import ROOT
from tests.schemas import validator
from tests.snippets import (
    KNOWN,
    Snippet,
    Workplace,
    check_install,
    command_lines,
    foreign_commands,
    parse,
    snippets,
)

SNIPPETS = list(snippets())
RUN = [s for s in SNIPPETS if s.language in ("sh", "python")]
PARSED = [snippet for snippet in SNIPPETS if snippet.language == "console"]
READ = [snippet for snippet in SNIPPETS if snippet.language in ("json", "jsonl")]


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """The process from which all commands of the pages are forked."""
    process = Forked(tmp_path_factory.mktemp("forked"))
    yield process
    process.close()


@pytest.fixture(scope="module")
def workplaces(
    tmp_path_factory: pytest.TempPathFactory, forked: Forked
) -> Callable[[Path], Workplace]:
    """A folder for each page: a block finds what those above it left there."""

    @cache
    def of(page: Path) -> Workplace:
        return Workplace(tmp_path_factory.mktemp("page"), forked)

    return of


def check_command(words: list[str]) -> None:
    """Parse a command and everything after it, without running it."""
    with cli.make_context("stopadvisor", list(words)) as context:
        name, command, rest = cli.resolve_command(context, list(words))
        assert command is not None
        command.make_context(name, rest, parent=context)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("snippet", RUN, ids=map(str, RUN))
def test_it_runs_as_it_stands(workplaces: Callable[[Path], Workplace], snippet: Snippet) -> None:
    workplaces(snippet.page).run(snippet)


@pytest.mark.parametrize("snippet", PARSED, ids=map(str, PARSED))
def test_what_is_not_run_is_spelled_as_its_command_wants_it(
    snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text("{question}")  # options that read their files
    profile = ROOT / "samples" / "tiny-reasoner" / "serving-profile.json"
    (tmp_path / "profile.json").write_bytes(profile.read_bytes())
    monkeypatch.chdir(tmp_path)
    lines = list(command_lines(snippet.body))
    for name, *words in lines:
        if name == "stopadvisor":
            check_command(words)
        elif name == "python":
            assert (ROOT / words[0]).is_file(), words[0]
        elif name == "pip" and "torch>=2.9" not in words:  # for training, newer than elsewhere
            check_install(words)
        elif name == "uv":
            check_install(words[1:])
    assert lines


@pytest.mark.parametrize(
    "words",
    [["plan", "--alhpa", "0.05"], ["plan", "--alpha", "x"], ["promote"], ["certify", "run"]],
)
def test_a_mistyped_command_is_found(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        check_command(words)


@pytest.mark.parametrize("snippet", READ, ids=map(str, READ))
def test_it_is_json_and_a_document_fits_its_schema(snippet: Snippet) -> None:
    found = parse(snippet)
    assert found
    for document in found:
        if isinstance(document, dict) and "schema" in document:
            assert any(validator(name).is_valid(document) for name in RESULTS), "fits no schema"


def test_configurations_name_options_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = [snippet.body for snippet in SNIPPETS if snippet.language == "toml"]
    assert shown
    for body in shown:
        (tmp_path / "config.toml").write_text(body, encoding="utf-8")
        if "[[rung]]" in body:
            assert len(read_ladder(tmp_path / "config.toml").rungs) > 1
            continue
        assert main(["assess", "--config", str(tmp_path / "config.toml"), "--show-config"]) == 0
        assert "alpha = 0.05" in capsys.readouterr().out


def test_every_fence_says_what_it_is() -> None:
    assert not [f"{s}: {s.language}" for s in SNIPPETS if s.language not in KNOWN]


def test_what_cannot_run_here_is_fenced_as_console() -> None:
    found = {str(s): foreign_commands(s.body) for s in SNIPPETS if s.language == "sh"}
    assert not {where: words for where, words in found.items() if words}


@pytest.mark.parametrize(
    "words", ["install -e .[nothing]", "install left-pad", "install torch", "uninstall stopadvisor"]
)
def test_an_installation_that_nobody_tried_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r"no extra|no test knows"):
        check_install(words.split())


@pytest.mark.slow
def test_a_failing_snippet_is_named_with_its_output(tmp_path: Path, forked: Forked) -> None:
    page = ROOT / "README.md"
    with pytest.raises(AssertionError, match=r"README.md:7 ends with 2:(.|\n)*No such option"):
        Workplace(tmp_path, forked).run(
            Snippet(page, 7, "sh", "stopadvisor plan --no-such-thing\n")
        )
