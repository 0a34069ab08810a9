"""The protocol of a peer: what one process of a job system does in a measurement.

Each peer has a module in `peers/` with a class `Driver(Peer)`. The runner starts processes of it. A *caller* starts
jobs and reads results. A *worker* runs jobs. A method that the peer has no feature for raises `Unsupported` with the
reason, and the reason stands in the table.

Jobs of every peer:

| job | does |
|---|---|
| `noop` | nothing |
| `steps` | calls ten steps one after the other, each returns its number |
| `tools` | the same with tools, of Holdfast alone |
| `clock` | marks the time |
| `waiter` | waits for a signal, then marks the time |

`noop` and `steps` add to the tally when their code ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from compare.tally import Tally

STEPS = 10  # of a job
BULK = 5_000  # jobs in one call, where a peer takes many


class Unsupported(Exception):
    """The peer does not have what a column measures."""


@dataclass(frozen=True)
class Place:
    """Where a measurement happens: a database of its own, a folder of its own, and ports."""

    url: str  # of PostgreSQL, or sqlite:///…
    folder: str
    ports: tuple[int, ...]
    programs: str  # folder of installed programs that are not Python packages


class Peer:
    """One process of a peer. Subclasses override what the peer can do."""

    uvloop: ClassVar[bool] = False  # the peer's documentation advises it
    queued: ClassVar[bool] = True  # jobs can be queued while no worker runs
    steps_by: ClassVar[Literal["queue", "worker", "caller"]] = "queue"  # which processes begin jobs with steps
    drain_slots: ClassVar[int] = 100  # jobs at once that drain no-op jobs fastest
    waits_hold_slots: ClassVar[bool] = False  # a job that waits counts as one that runs
    left_sql: ClassVar[str] = ""  # counts the jobs that have not ended; empty: `left` does

    def __init__(self, place: Place, tally: Tally) -> None:
        self.place = place
        self.tally = tally

    @property
    def folder(self) -> Path:
        """A folder of this measurement."""
        return Path(self.place.folder)

    async def set_up(self) -> None:
        """Create tables, or start a server; once for a measurement, in the caller."""

    async def open(self) -> None:
        """Connect, in every process."""

    async def workers_started(self) -> None:
        """Make use of workers that have started, in the caller."""

    async def close(self) -> None:
        """Disconnect; stop a server that `set_up` started."""

    async def start(self, job: str) -> Any:
        """Start one job, and return its handle when it is durable."""
        raise NotImplementedError

    async def start_singly(self, job: str, count: int) -> None:
        """Start jobs one after the other, as one caller does."""
        for _ in range(count):
            await self.start(job)

    async def start_many(self, job: str, count: int) -> None:
        """Start many jobs in the fastest durable way."""
        raise NotImplementedError

    async def work(self, concurrency: int) -> None:
        """Run jobs, so many at once, until the process ends."""
        raise NotImplementedError

    async def ready_for_steps(self) -> None:
        """Prepare a worker for `run_jobs`, if `steps_by` is "worker"."""

    async def run_jobs(self, job: str, count: int, concurrency: int) -> None:
        """Begin jobs, so many at once, and return when all have ended, if `steps_by` is not the queue."""
        raise NotImplementedError

    async def left(self) -> int:
        """Return how many jobs have not ended, as the database knows it."""
        raise NotImplementedError

    async def result(self, handle: Any) -> Any:
        """Wait for the result of a job."""
        del handle
        raise Unsupported("keeps no results")

    async def start_and_wait(self, job: str) -> Any:
        """Start one job and wait for its result."""
        return await self.result(await self.start(job))

    async def signal(self, handle: Any) -> None:
        """Send the signal that a `waiter` waits for."""
        del handle
        raise Unsupported("has no signals")

    async def park(self, count: int) -> bool:
        """Start jobs that wait. Return whether a worker has to reach the wait, which it then tallies."""
        raise NotImplementedError

    async def server_processes(self) -> list[int]:
        """Return the processes of a server that belongs to this peer alone."""
        return []
