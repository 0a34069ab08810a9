"""The app that works next to other programs. Each tool call leaves a line outside the database.

Its own code reads the database, too, with another SQLite library in the same process. Each close
drops the POSIX locks that the process has on the file.
"""

from __future__ import annotations

import os
import sqlite3

from holdfast import App

app = App("shop")


@app.step
async def look() -> int:
    """Read the database as other programs do."""
    connection = sqlite3.connect(os.environ["HOLDFAST_URL"].removeprefix("sqlite:///"), timeout=30)
    try:
        (count,) = connection.execute("SELECT count(*) FROM workers").fetchone()
    finally:
        connection.close()
    return int(count)


@app.tool
async def charge(order: int) -> str:
    """Leave a line, whole or not at all, also if other processes write: O_APPEND."""
    descriptor = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"charge {order}\n".encode())
    os.close(descriptor)
    return f"receipt {order}"


@app.job
async def checkout(order: int) -> str:
    """Look, then charge."""
    await look()
    return await charge(order)
