"""Rows that this process has written to PostgreSQL and that nobody has changed since.

Whoever holds a job writes its row again and again. Its row has to be locked each time, but not read: the server says
which transaction wrote it and where its stream ends, and while that is what we know, we know the rest.

A transaction's number is one of its server's. A standby that has taken over may use it again for another one, so rows
are forgotten with the connection; and behind a pooler, which may change servers unseen, the end of the stream, a hash
of all that the job has done, would have to be the same as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.store.rows import Job

__all__ = ["RowCache"]

ROWS_MAX = 20_000


class RowCache:
    """The rows of jobs that are held, each with the transaction that wrote it; used by the writing thread alone."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, Job]] = {}

    def knows_most(self, names: Sequence[str]) -> bool:
        """Whether it is worth it to lock rows without reading them."""
        return 2 * sum(name in self._rows for name in names) > len(names)

    def unchanged(self, name: str, writer: str, head: str) -> Job | None:
        """Give a row, if it is the one that is known."""
        known, row = self._rows.get(name, ("", None))
        return row if row is not None and known == writer and row.head == head else None

    def remember(
        self, touched: Mapping[str, Job | None], written: set[str], writer: str, read: Mapping[str, str] | None = None
    ) -> None:
        """Keep what a transaction has made of rows, once it counts; None stands for jobs that are held no more.

        Of rows that were read and not written, `read` has the transactions that wrote them.
        """
        for name, row in touched.items():
            if row is None:
                self._rows.pop(name, None)
            elif name in written:
                self._rows[name] = writer, row
            elif read and name in read:
                self._rows[name] = read[name], row
        if len(self._rows) > ROWS_MAX:
            self.forget()

    def forget(self) -> None:
        """Know nothing: the connection is a new one."""
        self._rows.clear()
