"""Many rows with one statement, so that a batch asks for the interpreter's lock a few times and not for each row.

SQLite runs without the lock, and has to ask for it again after each step of a statement. Where another thread is busy
with Python, a user's step perhaps, each asking takes up to five milliseconds: row by row, a hundred rows would take
half a second.

Statements are made for 1, 2, 4, ... rows, so that few are prepared, whatever the sizes of batches are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import apsw

__all__ = ["ROWS_MAX", "BulkStatement", "inserts", "updates"]

ROWS_MAX = 128  # with one statement


class BulkStatement:
    """A statement for any number of rows.

    Args:
        begin: what comes before the rows.
        width: how many values a row has.
        end: what comes behind them.
    """

    def __init__(self, begin: str, width: int, end: str) -> None:
        row = f"({', '.join('?' * width)})"
        sizes = [1 << power for power in range(ROWS_MAX.bit_length())]
        self._texts = {size: f"{begin} {', '.join([row] * size)}{end}" for size in sizes}

    def run(self, connection: apsw.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write the rows, in order."""
        done, size = 0, ROWS_MAX
        while done < len(rows):
            while size > len(rows) - done:
                size >>= 1
            connection.execute(self._texts[size], tuple(chain.from_iterable(rows[done : done + size])))
            done += size


def inserts(table: str, columns: Sequence[str]) -> BulkStatement:
    """Insert rows of these columns."""
    return BulkStatement(f"INSERT INTO {table} ({', '.join(columns)}) VALUES", len(columns), "")


def updates(table: str, columns: Sequence[str]) -> BulkStatement:
    """Set these columns in rows that there are; in each row that is given, `id` comes first."""
    values = ", ".join(f"{name} = new.column{number}" for number, name in enumerate(columns, 2))
    end = f") AS new WHERE {table}.id = new.column1"
    return BulkStatement(f"UPDATE {table} SET {values} FROM (VALUES", len(columns) + 1, end)
