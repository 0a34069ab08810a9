"""The row cache: rows that this process has written to PostgreSQL and that no other process has changed since.

The holder of a job writes its row many times. Each write must lock the row, but need not read it. The server returns
the transaction that wrote the row, and the end of its stream. If both equal the cached ones, the cached row is current.

A transaction's number belongs to its server. A standby that has taken over may use it again, so the cache is cleared
with the connection. A pooler may change servers unseen. Then the end of the stream, a hash of the job's whole history,
would have to be equal as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.store.rows import Job

ROWS_MAX = 20_000


class RowCache:
    """The rows of running jobs, each with the transaction that wrote it; used under the lock of the connection."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, Job]] = {}

    def knows_most(self, names: Sequence[str]) -> bool:
        """Return whether locking rows without reading them pays."""
        return 2 * sum(name in self._rows for name in names) > len(names)

    def known(self, name: str) -> tuple[str, Job] | None:
        """Return a cached row, which may no longer be current, and the transaction that wrote it."""
        return self._rows.get(name)

    def unchanged(self, name: str, writer: str, head: str) -> Job | None:
        """Return the cached row, if it is current."""
        known, row = self._rows.get(name, ("", None))
        return row if row is not None and known == writer and row.head == head else None

    def remember(
        self, touched: Mapping[str, Job | None], written: set[str], writer: str, read: Mapping[str, str] | None = None
    ) -> None:
        """Cache the rows of a committed transaction; None means that a job no longer runs.

        For rows that were read and not written, `read` has the transactions that wrote them.
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
        """Clear the cache: the connection is new."""
        self._rows.clear()
