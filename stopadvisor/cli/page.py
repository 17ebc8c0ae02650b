"""Help in the manner of a manual page: what a command reads and writes, examples, exit codes.

Knows click, the names of options that several commands share, and no command: each brings its own
words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

__all__ = ["EXIT_CODES", "SECTIONS", "Command"]

EXIT_CODES = {
    0: "ok",
    1: "failed in the middle of the job",
    2: "wrong usage or unusable input: one line on stderr says what is wrong",
    3: "nothing was certified; a policy that never stops is written all the same",
    4: "fresh probes contradict the certificate",
    5: "preflight failed: measuring would mislead",
    130: "interrupted; what was collected is kept, and the same command goes on from there",
}


SECTIONS = {
    "Certificate": (
        "alpha", "delta", "bound", "multiplicity", "families", "conditional", "looks", "fresh",
        "allow_truncated",
    ),
    "Serving costs": ("serving", "cache_block", "price", "serving_profile"),
    "Model": (
        "model", "device", "dtype", "think_open", "think_close", "prompt_template",
        "chat_template_kwargs", "greedy", "temperature", "engine", "base_url", "tokenizer",
        "concurrency", "api_key_env", "request_timeout", "patience",
    ),
    "Probing": (
        "budgets", "max_think", "cap", "answer_cap", "cue", "on_stop", "samples", "seed", "split",
        "batch_size", "limit", "entropy", "preflight", "regrade",
    ),
}  # fmt: skip
"""Sections of a long list of options; what is not named here comes first."""
_LONG = 20
"""Options from which on a list is shown in sections."""


class Command(click.Command):
    """A command whose help ends with files, examples and exit codes.

    Parameters
    ----------
    *args, **more
        Of `click.Command`.
    reads, writes : str
        Files, in words; none where empty.
    examples : sequence of str
        Whole command lines that work.
    exit_codes : sequence of int
        Those that this command ends with.
    """

    def __init__(
        self,
        *args: Any,
        reads: str = "",
        writes: str = "",
        examples: Sequence[str],
        exit_codes: Sequence[int] = (0, 2),
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self.reads = reads
        self.writes = writes
        self.examples = tuple(examples)
        self.exit_codes = tuple(exit_codes)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, in sections where there are many."""
        section = {name: title for title, names in SECTIONS.items() for name in names}
        rows: dict[str, list[tuple[str, str]]] = {
            "Options": [],
            **{title: [] for title in SECTIONS},
        }
        params = self.get_params(ctx)
        for param in params:
            title = section.get(param.name or "", "Options") if len(params) > _LONG else "Options"
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                rows[title].append(record)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections below the options."""
        for title, text in (("Reads", self.reads), ("Writes", self.writes)):
            if text:
                with formatter.section(title):
                    formatter.write_text(text)
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")  # to copy: one line
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), EXIT_CODES[code]) for code in self.exit_codes])
