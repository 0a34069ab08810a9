"""What every backend promises. `holdfast.store.contract` tests it; a backend that passes is a store.

- `commit` is the only way anything is written. One call is one transaction: when it returns, all of it is durable; when
  it raises, none of it is there, or, if the answer was lost on the way, all of it is.
- Time is the store's: each transaction reads it once, inside (L2).
- A batch is one transaction also where a command touches many jobs: of a job that `Purge` removes everything goes, or
  nothing does, and what is not removed is as it was. What is kept outside (effects in files) is not part of it.
- Reads see what was committed before they began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.machines import Event, JobState, RunRecord
from holdfast.store.commands import Command, Leases
from holdfast.store.limits import QueueState
from holdfast.store.rows import Evidence, Job, Signal, WorkerCard
from holdfast.store.run_queries import Counts, ExportRow, IndexEntries, RunCursor, RunFilter

__all__ = ["Store"]


class Store(Protocol):
    """A place where jobs are kept.

    Attributes:
        floor_seconds: how often whoever waits looks by himself, because a notice may have been lost; None where every
            change is told to those who subscribe.
    """

    floor_seconds: float | None

    async def commit(self, batch: Sequence[Command]) -> list[Any]:
        """Carry out commands, in order, in one transaction.

        Returns one answer per command, at its place: the value that the command's description names, or the error that
        refused it. A refused command has written nothing and the others go through.

        Raises:
            StoreUnavailable: nothing could be written; the message says why and what to do.
        """
        ...

    async def get(self, job: str) -> Job | None:
        """Read one job's row."""
        ...

    async def events(self, job: str, after: int = 0) -> list[Event]:
        """Read a job's stream, oldest first, from behind the number given."""
        ...

    async def inbox(self, job: str) -> list[Signal]:
        """Read the signals that wait in a job's inbox, oldest first."""
        ...

    async def evidence(self, job: str) -> list[Evidence]:
        """Read what calls of a job reported when it was too late, oldest first (E5)."""
        ...

    async def workers(self) -> list[WorkerCard]:
        """Read the workers that have reported and not left, by name."""
        ...

    async def jobs(
        self,
        *,
        state: JobState | None = None,
        plugin: str | None = None,
        entry: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """List jobs by id, newest first, from before the id given: ids grow with time, so this is a cursor."""
        ...

    async def record(self, job: str, number: int) -> RunRecord | None:
        """Read the record of one run of a job, with what it has last reported."""
        ...

    async def records(self, where: RunFilter, limit: int, before: RunCursor | None = None) -> list[RunRecord]:
        """List runs that fit, by job and number, newest first, from before the place given."""
        ...

    async def index_entries(self, job: str) -> IndexEntries | None:
        """Read what a job is found by besides its row, all of one moment; to compare it with what it must be."""
        ...

    async def counts(self) -> Counts:
        """Count runs by status, and open jobs by queue."""
        ...

    async def exports(self, job: str, number: int, after: int, limit: int) -> list[ExportRow]:
        """List what one run of a job has produced, in order, from behind the number given."""
        ...

    async def blob(self, job: str, blob: str, number: int) -> bytes | None:
        """Read one piece of a blob, from 1; None behind the last."""
        ...

    async def limits(self) -> list[QueueState]:
        """Read the queues that have limits, or jobs with groups, by name; and how they stand."""
        ...

    async def requests_for(self, worker: str) -> Leases:
        """Read which of the jobs that a worker holds were asked to cancel or to pause; `lost` is empty here."""
        ...

    async def next_due(self, after: float | None = None) -> float | None:
        """When a sweep or a claim will next have something to do that time alone brings about; None if never.

        The earliest of: the due time of a queued job, if that is after the time given (else after now), a wait's end,
        the deadline of a run that nobody holds, a lease's end. So whoever has claimed at a time asks for what comes
        after it, and neither misses a job nor is told of those that he has left. When a rate allows the next start is
        told by the claim that it held back, and to nobody else.
        """

    async def has_work(self) -> bool:
        """See, cheaply, whether anybody could do anything now: claim, reclaim, expire, bury.

        For whoever looks by himself although nothing was heard: most of the time there is nothing.
        """
        ...

    async def now(self) -> float:
        """Read the store's clock."""
        ...

    def commit_blocking(self, batch: Sequence[Command]) -> list[Any]:
        """Do what `commit` does, blocking the calling thread: for heartbeats, which must not depend on a loop."""
        ...

    def subscribe(self, notice: Callable[[int], None]) -> Callable[[], None]:
        """Have `notice` called, from any thread, after each commit that changed something; returns what ends it.

        Commits of other processes are told of as well, soon, as far as the store hears of them. It is told what has
        changed, as a sum of the flags in `holdfast.store.commands`. A heartbeat or an empty sweep changes nothing.
        Only a hint: it says that it is worth looking.
        """
        ...

    def change_count(self) -> int:
        """Give a number that grows when others were heard of: a cheap look, only a hint, and only for subscribers."""
        ...

    def hold_liveness_lock(self, worker: str) -> None:
        """Have others notice when the process of this worker dies, where the store can tell (L10)."""
        ...

    async def dead_workers(self) -> list[str]:
        """Find workers of which the store can tell that their process is gone; to be buried."""
        ...

    async def close(self) -> None:
        """Let go of everything. A store that was closed is not used again."""
        ...
