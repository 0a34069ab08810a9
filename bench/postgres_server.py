"""A PostgreSQL server of its own for a benchmark, as durable as it is by default, and what is measured of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # the server of the tests is ours, too

from support.postgres import Server

__all__ = ["Commits", "Measured", "cpu_seconds", "measured", "percentile"]

TICKS = os.sysconf("SC_CLK_TCK")


class Measured(Server):
    """A server whose processes can be asked what they have used."""

    def cpu_seconds(self) -> float:
        """CPU of the server and of all its children, those that have ended included."""
        assert self._process is not None, "it runs"
        return cpu_seconds(self._process.pid, *children(self._process.pid))


@contextmanager
def measured(**settings: str) -> Iterator[Measured]:
    """Start a server that commits to disk; leave nothing."""
    server = Measured()
    try:
        server.start(fsync="on", synchronous_commit="on", shared_buffers="256MB", max_wal_size="4GB", **settings)
        yield server
    finally:
        server.remove()


class Commits:
    """Single-row commits on one connection: what everything is measured in."""

    def __init__(self, url: str) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        self._connection.execute("CREATE TABLE IF NOT EXISTS bare (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")

    def seconds(self) -> float:
        """Time one commit."""
        started = time.perf_counter()
        self._connection.execute("INSERT INTO bare DEFAULT VALUES")
        return time.perf_counter() - started

    def rate(self, count: int = 300) -> float:
        """Commits a second, in a row."""
        started = time.perf_counter()
        for _ in range(count):
            self.seconds()
        return count / (time.perf_counter() - started)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def children(parent: int) -> list[int]:
    """Find the processes that a process has started; none where there is no /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found


def cpu_seconds(*processes: int) -> float:
    """CPU that processes, and those of their children that have ended, have used; 0 where there is no /proc."""
    used = 0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        used += sum(map(int, fields[11:15]))
    return used / TICKS


def percentile(values: list[float], share: float) -> float:
    """Give the value that so large a share of all does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
