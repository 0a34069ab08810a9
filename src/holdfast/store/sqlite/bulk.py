"""Bulk statements: many rows with one statement, so that a batch takes the interpreter's lock only a few times.

SQLite runs without the lock, and takes it again after each step of a statement. While another thread is busy with
Python, such as a user's step, that takes up to five milliseconds. Row by row, a hundred rows would take half a second.

There are statements for 1, 2, 4, ... rows, so that few are prepared for batches of any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import apsw

ROWS_MAX = 128  # with one statement


class BulkStatement:
    """A statement for any number of rows.

    Args:
        begin: the SQL before the rows.
        width: how many values a row has.
        end: the SQL after them.
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


def inserts(table: str, columns: Sequence[str], *, replacing: bool = False) -> BulkStatement:
    """Return a statement that inserts rows of these columns, or replaces those with the same key."""
    verb = "INSERT OR REPLACE" if replacing else "INSERT"
    return BulkStatement(f"{verb} INTO {table} ({', '.join(columns)}) VALUES", len(columns), "")


def updates(table: str, columns: Sequence[str]) -> BulkStatement:
    """Return a statement that sets these columns in existing rows; each row of values begins with the `id`."""
    values = ", ".join(f"{name} = new.column{number}" for number, name in enumerate(columns, 2))
    end = f") AS new WHERE {table}.id = new.column1"
    return BulkStatement(f"UPDATE {table} SET {values} FROM (VALUES", len(columns) + 1, end)
