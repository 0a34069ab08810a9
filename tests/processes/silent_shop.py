"""The app of worker processes whose way to PostgreSQL fails. See `test_silent_networks`.

Its tool acts in a ledger of its own, outside of the store, and writes down when it began and when it was stopped. The
server runs on this host, so `time.time` is the store's clock.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from contextlib import closing
from typing import Any

from holdfast import App, Done, NotDone, external_key

SHORT_SECONDS, LONG_SECONDS = 0.3, 4.5  # the long ones outlast a lease, so every fault finds some under way

app = App("silent")


def ledger(sql: str, *values: Any) -> list[Any]:
    """Write one line, or read; the ledger is a file of its own, which no fault touches."""
    with closing(sqlite3.connect(os.environ["LEDGER"], timeout=60, isolation_level=None)) as connection:
        return connection.execute(sql, values).fetchall()


def open_ledger() -> None:
    ledger("PRAGMA journal_mode = wal")
    ledger("CREATE TABLE IF NOT EXISTS acts (key TEXT NOT NULL, worker TEXT NOT NULL, at REAL NOT NULL)")
    ledger(
        "CREATE TABLE IF NOT EXISTS calls (number INTEGER PRIMARY KEY, key TEXT NOT NULL, worker TEXT NOT NULL,"
        " began_at REAL NOT NULL, ended_at REAL)"
    )


def acted(external_key: str, n: int) -> Done | NotDone:
    """Ask the ledger."""
    del external_key
    return Done(n) if ledger("SELECT 1 FROM acts WHERE key = ?", str(n)) else NotDone()


@app.tool(reconcile=acted)
async def act(n: int) -> int:
    """Takes its time, then acts; a worker that lost the lease has to stop it before."""
    assert external_key()
    who = os.environ["WHO"]
    sql = "INSERT INTO calls (key, worker, began_at) VALUES (?, ?, ?) RETURNING number"
    ((number,),) = ledger(sql, str(n), who, time.time())
    try:
        await asyncio.sleep(LONG_SECONDS if n % 3 == 0 else SHORT_SECONDS)
        ledger("INSERT INTO acts VALUES (?, ?, ?)", str(n), who, time.time())
        return n
    finally:
        ledger("UPDATE calls SET ended_at = ? WHERE number = ?", time.time(), number)


@app.step
async def prepare(n: int) -> int:
    return n


@app.job(max_attempts=1000)
async def order(n: int) -> int:
    return await act(await prepare(n))
