"""The store protocol: what every backend guarantees. A backend that passes `holdfast.store.contract` is a store.

- Only `commit` writes. One call is one transaction. When it returns, the whole batch is durable. When it raises,
  nothing was written, unless the reply was lost on the way: then the whole batch was.
- Time is the store's. Each transaction reads it once, inside (L2).
- A batch is one transaction, also where a command touches many jobs. `Purge` removes a job completely or not at all.
  Data outside the store, such as effects in files, is not part of the transaction.
- A read sees everything that was committed before it began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.machines import Event, JobState, RunRecord
from holdfast.schedules.outcome import TickOutcome
from holdfast.schedules.schedule import Schedule
from holdfast.store.audit import AuditRow
from holdfast.store.commands import Command, Leases
from holdfast.store.limits import QueueState
from holdfast.store.rows import Evidence, Job, Signal, WorkerCard
from holdfast.store.run_queries import (
    BuildCounts,
    Counts,
    EndedJob,
    ExportRow,
    IndexEntries,
    RecordCounts,
    RunCursor,
    RunFilter,
    Window,
    WindowCounts,
)


class Store(Protocol):
    """Storage for jobs.

    Attributes:
        floor_seconds: how often a waiting process polls in addition, because a notice may get lost; None where every
            change reaches the subscribers.
    """

    floor_seconds: float | None

    async def commit(self, batch: Sequence[Command]) -> list[Any]:
        """Execute commands, in order, in one transaction.

        Return one result per command, in the same order: the value that the command's docstring names, or the error
        that refused it. A refused command writes nothing. The others are executed.

        Raises:
            StoreUnavailable: nothing was written; the message says why and what to do.
        """
        ...

    async def get(self, job: str) -> Job | None:
        """Read one job's row."""
        ...

    async def events(self, job: str, after: int = 0, limit: int | None = None) -> list[Event]:
        """Read a job's stream, oldest first, from after the given number; at most `limit` events of it."""
        ...

    async def last_event(self, job: str) -> Event | None:
        """Read the newest event of a job's stream. None: there is no such job."""
        ...

    async def inbox(self, job: str) -> list[Signal]:
        """Read the unused signals in a job's inbox, oldest first."""
        ...

    async def evidence(self, job: str, after: int = 0, limit: int | None = None) -> list[Evidence]:
        """Read the late reports of a job's calls, oldest first, without the first `after`; at most `limit` (E5)."""
        ...

    async def workers(self) -> list[WorkerCard]:
        """Read the listed workers, by name."""
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
        """List jobs by id, newest first, from before the given id. Ids grow with time, so an id is a cursor."""
        ...

    async def record(self, job: str, number: int) -> RunRecord | None:
        """Read the record of one run of a job, with its last progress report."""
        ...

    async def outcome(self, job: str, number: int) -> tuple[RunRecord, Event | None] | None:
        """Read the record of one run of a job, with the event that ended it if this is the newest run and has ended.

        One read, because a caller that waits for a result needs both.
        """
        ...

    async def versions(self, jobs: Sequence[str]) -> dict[str, Any]:
        """Read a value for each of these jobs that changes with the record of its newest run; cheap for many jobs.

        A job that does not exist is left out.
        """
        ...

    async def kept_builds(self) -> list[str]:
        """List the builds that jobs which have not ended are kept for; cheap for many jobs."""
        ...

    async def kept_jobs(self, build: str, after: str | None = None, limit: int = 100) -> list[Job]:
        """List the jobs that have not ended and are kept for a build, oldest first by id, from after the given id."""
        ...

    async def build_counts(self) -> BuildCounts:
        """Count the jobs that have not ended by the build of the code that they need. It reads all their rows."""
        ...

    async def ended_jobs(
        self, before: float, after: tuple[float, str] | None = None, limit: int = 1000
    ) -> list[EndedJob]:
        """List jobs that have ended and were created at `before` or earlier, oldest first, from after a place.

        A place is the time of creation and the id of a job. The cost does not depend on what comes after the page.
        """
        ...

    async def open_jobs(self, before: str | None = None, limit: int = 100) -> list[Job]:
        """List the jobs that have not ended by id, newest first, from before the given id; cheap if many have ended.

        A job keeps its place in this list until it ends. So a walk through it sees each job that is open all the time.
        """
        ...

    async def marks(self, jobs: Sequence[str]) -> dict[str, dict[str, bool]]:
        """Read which side of each marked change these jobs are on: True is the new one. It reads their streams.

        A job that has not recorded any is left out.
        """
        ...

    async def records(self, where: RunFilter, limit: int, before: RunCursor | None = None) -> list[RunRecord]:
        """List the runs that match, by job and number, newest first, from the given cursor on, without its run."""
        ...

    async def count_records(self, where: RunFilter, limit: int, before: str | None = None) -> RecordCounts:
        """Count the runs that match, by status, looking at so many jobs: the newest ones from before the given id.

        Where an index has the jobs of a filter, only these are looked at.
        """
        ...

    async def questions(self, *, group: str | None = None, after: str | None = None, limit: int = 100) -> list[Job]:
        """List the jobs that wait for a person, oldest first by id, from after the given id.

        A person ends a wait of type ``human``, answers for a call in doubt, or grants a budget. A paused job may be in
        the list, too.
        """
        ...

    async def index_entries(self, job: str) -> IndexEntries | None:
        """Read the index entries of a job in one snapshot, to compare them with the expected ones."""
        ...

    async def counts(self) -> Counts:
        """Count runs by status, and open jobs by queue."""
        ...

    async def window_counts(self, window: Window) -> WindowCounts:
        """Count the starts, ends and waits of runs in a window of time. The newest run of each job counts.

        A run waits from the time it is due until its first start, or until it ends without one. A run that was requeued
        after its start counts as due from its creation.
        """
        ...

    async def exports(self, job: str, number: int, after: int, limit: int) -> list[ExportRow]:
        """List the exports of one run of a job, in order, from after the given number."""
        ...

    async def blob(self, job: str, blob: str, number: int) -> bytes | None:
        """Read one piece of a blob, from 1; return None after the last."""
        ...

    async def audit(self, before: int | None, limit: int) -> list[AuditRow]:
        """Read the audit log, newest first, from before the given number."""
        ...

    async def schedule(self, schedule: str) -> Schedule | None:
        """Read a schedule's row. Its events are in the stream `stream_of`."""
        ...

    async def schedules(self, after: str | None = None, limit: int = 100) -> list[Schedule]:
        """List schedules by id, from after the given one."""
        ...

    async def outcomes(self, schedules: Sequence[Schedule], limit: int) -> dict[str, list[TickOutcome]]:
        """Read what happened to the newest ticks of each schedule, newest first; at most `limit` for each.

        Only the newest `2 * limit` events of each are looked at, so the cost does not grow with the history.
        """
        ...

    async def limits(self) -> list[QueueState]:
        """Read the state of the queues that have limits, or jobs with groups, by name."""
        ...

    async def requests_for(self, worker: str) -> Leases:
        """Read which jobs of a worker have a request to cancel or to pause, or signals; `lost` is empty here."""
        ...

    async def next_due(self, after: float | None = None) -> float | None:
        """Return when time alone next gives a sweep or a claim something to do; None if never.

        That is the earliest of: the due time of a queued job after `after` (by default, after now), the end of a wait,
        the deadline of a run without a lease, the end of a lease, the next tick of a schedule, the end of a run that
        its schedule has not taken note of. Pass the time of the last claim as `after`: that
        claim saw the jobs that were due before. The time of a rate limit's next start is not included; the result of
        the claim that it blocked has it.
        """
        ...

    async def has_work(self) -> bool:
        """Return whether there is work now: something to claim, reclaim or expire, or a dead worker. It is cheap.

        For pollers that got no notice: most of the time there is no work.
        """
        ...

    async def now(self) -> float:
        """Read the store's clock."""
        ...

    def commit_blocking(self, batch: Sequence[Command]) -> list[Any]:
        """Do what `commit` does, blocking the calling thread; for heartbeats, which must not depend on a loop."""
        ...

    def subscribe(self, notice: Callable[[int], None]) -> Callable[[], None]:
        """Call `notice`, from any thread, after each commit that changed something; return a function that ends it.

        Commits of other processes count too, as far as the store hears of them. The argument says what has changed, as
        a sum of the flags in `holdfast.store.commands`. A heartbeat or an empty sweep changes nothing. A notice is a
        hint that it is worth reading.
        """
        ...

    def change_count(self) -> int:
        """Return a number that grows with notices of other processes: a cheap hint, for subscribers only."""
        ...

    def hold_liveness_lock(self, worker: str) -> None:
        """Let other processes notice when this worker's process dies, where the store can tell (L10)."""
        ...

    async def dead_workers(self) -> list[str]:
        """Return the workers whose process is known to be dead; `ReleaseLeases` is due for them."""
        ...

    async def close(self) -> None:
        """Release all resources. A closed store cannot be used again."""
        ...
