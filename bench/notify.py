"""What a notice costs on PostgreSQL: commits of 2, 8 and 32 processes, without a notice, with it inside, and after it.

The server lets one notifying transaction at a time commit. It holds that lock while the log is flushed, so notices
inside the commit keep processes from sharing a flush. The store therefore sends a notice after the commit, in a
transaction that waits for no flush. `commit_delay` makes a flush take as long as on a disk of a cloud.

    python bench/notify.py
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sys
import time
from collections.abc import Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import psycopg

from holdfast.store.postgres.listener import NOTIFY
from postgres_server import measured

PROCESSES = (2, 8, 32)
WAYS = ("none", "inside", "after")
GROWTH_MIN = 2.0  # commits of 8 processes over those of 2: inside the commit it is 1
SHARE_MIN = 0.4  # of commits without notices, with 32 processes; a notice costs a statement
DELAY_MICROSECONDS = 1000


def commit(url: str, way: str, seconds: float, ready: Barrier, told: Queue[int]) -> None:
    """Commit one row at a time for so many seconds; tell how often."""
    count = 0
    with psycopg.connect(url, autocommit=True, prepare_threshold=1) as connection:
        ready.wait()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with connection.pipeline() as pipeline:
                connection.execute("BEGIN")
                connection.execute("INSERT INTO bench DEFAULT VALUES")
                if way == "inside":
                    connection.execute("SELECT pg_notify('bench', '1')")
                connection.execute("COMMIT")
                if way == "after":
                    pipeline.sync()
                    connection.execute(NOTIFY, ("bench", "1"))
            count += 1
    told.put(count)


def rate(url: str, way: str, processes: int, seconds: float) -> float:
    """Let so many processes commit; commits a second."""
    spawn = multiprocessing.get_context("spawn")
    ready, told = spawn.Barrier(processes), spawn.Queue()
    working = [spawn.Process(target=commit, args=(url, way, seconds, ready, told)) for _ in range(processes)]
    for process in working:
        process.start()
    total: int = sum(told.get() for _ in working)
    for process in working:
        process.join()
    return total / seconds


def listen(url: str, ready: Barrier) -> None:
    """Receive notices until the process is ended."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("LISTEN bench")
        ready.wait()
        for _ in connection.notifies():
            pass


@contextlib.contextmanager
def listeners(url: str, count: int) -> Iterator[None]:
    """Listen in so many processes."""
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Barrier(count + 1)
    listening = [spawn.Process(target=listen, args=(url, ready), daemon=True) for _ in range(count)]
    for process in listening:
        process.start()
    ready.wait()
    try:
        yield
    finally:
        for process in listening:
            process.terminate()
            process.join()


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description="What a notice costs on PostgreSQL.")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    seconds = parser.parse_args().seconds
    missed: list[str] = []
    few: dict[bool, float] = {}  # commits a second of the fewest processes
    with measured(commit_delay=str(DELAY_MICROSECONDS), commit_siblings="0") as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE bench (n bigint GENERATED ALWAYS AS IDENTITY)")
        for count in PROCESSES:
            for is_heard in (False, True):
                with listeners(server.url, max(1, count // 16) if is_heard else 0):
                    rates = {way: rate(server.url, way, count, seconds) for way in WAYS}
                few.setdefault(is_heard, rates["after"])
                shown = "   ".join(f"{way} {found:7,.0f}/s" for way, found in rates.items())
                heard = "heard" if is_heard else "not heard"
                share, growth = rates["after"] / rates["none"], rates["after"] / few[is_heard]
                print(
                    f"{count:2} processes, {heard:9}   {shown}   after/none {share:.2f}   growth {growth:.1f}",
                    flush=True,
                )
                if count == PROCESSES[1] and growth < GROWTH_MIN:
                    missed.append(f"with notices {count} processes do {growth:.1f} times 2, {GROWTH_MIN} is due")
                if count == PROCESSES[-1] and share < SHARE_MIN:
                    missed.append(f"notices leave {share:.2f} of the commits of {count}, {SHARE_MIN} is due")
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
