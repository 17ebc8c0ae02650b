"""Rows of Parquet files, for the formats that are kept in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import WorkloadError
from stopadvisor.workload.imports.logged import check_columns, open_log

__all__ = ["read_parquet"]

_ROWS_AT_ONCE = 64
_MOST_UNPACKED = 2**28
"""Bytes: what a hundred kilobytes of one repeated row unpack to has no end otherwise."""
_OF_A_ROW = 1024
"""Bytes that a row takes beside its text."""


def read_parquet(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read some columns of a file, row by row, with each row's place.

    Raises
    ------
    WorkloadError
        pyarrow is not installed; the file is no Parquet file, lacks a column or unpacks to too
        much.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise WorkloadError(
            "Parquet files are read by pyarrow: pip install 'stopadvisor[import]'"
        ) from error
    with open_log(path) as file:
        try:
            table = ParquetFile(file)
            check_columns(str(path), columns, table.schema_arrow.names)
            number = unpacked = 0
            for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(columns)):
                unpacked += batch.nbytes + _OF_A_ROW * batch.num_rows
                if unpacked > _MOST_UNPACKED:
                    raise WorkloadError(
                        f"{path}: expected rows of at most {_MOST_UNPACKED >> 20} MB in all when "
                        f"unpacked, got more by row {number + 1}; import it in parts"
                    )
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", row
        except (ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise WorkloadError(f"{path}: expected a Parquet file, got: {reason}") from None
