"""Rows about requests on one SQLite connection: the audit log, and the keys of executed requests."""

from __future__ import annotations

import apsw
import msgspec

from holdfast.store.request_keys import DROPPED_MAX, KEPT_SECONDS, Known

_INSERT_AUDIT = "INSERT INTO audit (at, actor, said, verb, subject, detail) VALUES (?, ?, ?, ?, ?, ?)"
# The numbers grow with time, so only the first rows are read.
_PURGE_AUDIT = (
    "DELETE FROM audit WHERE number IN"
    " (SELECT number FROM (SELECT number, at FROM audit ORDER BY number LIMIT ?) WHERE at < ?) RETURNING number"
)
_KNOWN = "SELECT key, fingerprint, answer FROM request_keys WHERE key IN (SELECT value FROM json_each(?))"
_KEEP = "INSERT INTO request_keys (key, fingerprint, answer, at) VALUES (?, ?, ?, ?)"
_DROP = "DELETE FROM request_keys WHERE key IN (SELECT key FROM request_keys WHERE at < ? ORDER BY at LIMIT ?)"


def write_audit(connection: apsw.Connection, rows: list[tuple[str, str | None, str, str, str]], now: float) -> None:
    """Add rows to the audit log."""
    connection.executemany(_INSERT_AUDIT, [(now, *row) for row in rows])


def purge_audit(connection: apsw.Connection, before: float, limit: int) -> int:
    """Remove the oldest rows of the audit log; return how many."""
    return len(connection.execute(_PURGE_AUDIT, (limit, before)).fetchall())


def known_requests(connection: apsw.Connection, keys: list[str]) -> Known:
    """Return the known ones of these keys. No other transaction runs at the same time."""
    rows = connection.execute(_KNOWN, (msgspec.json.encode(keys).decode(),))
    return {key: (fingerprint, answer) for key, fingerprint, answer in rows}


def keep_requests(connection: apsw.Connection, rows: list[tuple[str, str, str]], now: float) -> None:
    """Keep the answers of requests, and remove old keys."""
    connection.executemany(_KEEP, [(*row, now) for row in rows])
    connection.execute(_DROP, (now - KEPT_SECONDS, DROPPED_MAX))
