"""Help in the manner of a manual page: what a command reads and writes, examples, exit codes.

Knows click, the names of options that several commands share, and no command: each brings its own
words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from stopadvisor.cli.options import SectionOption

__all__ = ["EXIT_CODES", "SECTIONS", "Command"]

EXIT_CODES = {
    0: "ok",
    1: "failed in the middle of the job",
    2: "wrong usage or unusable input: one line on stderr says what is wrong",
    3: "nothing was certified; the policy that was written never stops",
    4: "fresh probes contradict the certificate",
    5: "preflight failed: measuring would mislead",
    6: "audits show that the promise is broken",
    7: "fresh probes neither confirm nor contradict: the gate stays shut",
    8: "audits give an early warning, or show a change",
    130: "interrupted; what was finished is kept, and the same command continues there",
}


SECTIONS = (*("Options", "Certificate", "Serving costs", "Model", "Probing", "Gateway"), "Audits")
"""Sections of a long list of options, in this order; an option that names none is in the first."""
_LONG = 20
"""Options from which on a list is shown in sections."""


class Command(click.Command):
    """A command whose help ends with files, examples and exit codes.

    `reads` and `writes` name files, in words, none where empty; `examples` are whole command lines
    that work, `exit_codes` those that this command ends with.  The others are `click.Command`'s.
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
        params = self.get_params(ctx)
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for param in params:
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                title = param.section if isinstance(param, SectionOption) else SECTIONS[0]
                rows[title if len(params) > _LONG else SECTIONS[0]].append(record)
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
