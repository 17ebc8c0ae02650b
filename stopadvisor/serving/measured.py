"""What was measured at a server, kept line by line, so that it is not measured again.

Knows the file; no server and no statistics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stopadvisor.errors import ModelError
from stopadvisor.json_text import parse_json
from stopadvisor.rules.cost_fit import Measurement
from stopadvisor.runs.storage import append
from stopadvisor.serving.goodput import Block

__all__ = ["MeasuredFile"]


class MeasuredFile:
    """What was measured, as lines of a file.

    Raises
    ------
    ModelError
        The file is of other settings, or damaged.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path = path
        self.measurements: list[Measurement] = []
        self.blocks: list[Block] = []
        self.alone: dict[str, float] = {}
        """Seconds of questions that were asked one after the other."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            rows = [parse_json(line) for line in lines]
            if rows and rows[0] != {"kind": "header", **header}:
                changed = [k for k, v in header.items() if rows[0].get(k) != v]
                raise ModelError(
                    f"{path} was measured with another {', '.join(changed)}: name another --out, "
                    "or delete it"
                )
            for row in rows[1:]:
                self._take(**row)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ModelError(f"{path} is damaged ({error}): delete it") from error
        if not rows:
            self._write(("header", header))

    def _take(self, kind: str, **row: Any) -> None:
        if kind == "measurement":
            self.measurements.append(Measurement(**row))
        elif kind == "block":
            self.blocks.append(Block(**row))
        else:
            self.alone = row

    def delete(self) -> None:
        """Remove the file: what it is for is done."""
        self._path.unlink()

    def _write(self, *rows: tuple[str, Mapping[str, Any]]) -> None:
        lines = (json.dumps({"kind": kind, **row}) + "\n" for kind, row in rows)
        append(self._path, "".join(lines).encode())

    def add_work(self, found: Sequence[Measurement]) -> None:
        """Keep the pieces of work of one turn."""
        self._write(*(("measurement", asdict(one)) for one in found))
        self.measurements += found

    def add_block(self, block: Block) -> None:
        """Keep one block more."""
        self._write(("block", asdict(block)))
        self.blocks.append(block)

    def add_alone(self, seconds: Mapping[str, float]) -> None:
        """Keep how long questions take alone."""
        self._write(("alone", seconds))
        self.alone = dict(seconds)
