"""The harness of the contract: a store under test, its clock, and helper methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.clock import ManualClock
from holdfast.machines import JobState, check, fold, runs
from holdfast.store.commands import Append, Claim, Claimed, Claims, Command, Submit
from holdfast.store.limits import Blocked
from holdfast.store.protocol import Store
from holdfast.store.rows import Job, rebuilt

Clause = Callable[["Lab"], Awaitable[None]]
CONTRACT: list[Clause] = []

LEASE = 15.0
WAIT = {"correlation_key": "k", "wait_type": "signal"}


def clause(function: Clause) -> Clause:
    """Add a function to the contract."""
    CONTRACT.append(function)
    return function


def submission(job: str, **options: Any) -> Submit:
    """Return the command that creates a job of the usual entry."""
    return Submit(job=job, **{"plugin": "shop", "entry": "checkout", "args": {}, **options})


def claiming(limit: int = 1, worker: str = "w1", **options: Any) -> Claim:
    """Return the command that claims jobs of the usual entry."""
    usual = {"entries": frozenset({("shop", "checkout")}), "queues": None, "lease_seconds": LEASE}
    return Claim(worker=worker, limit=limit, **{**usual, **options})


class Lab:
    """A store under test, its clock, and helper methods for the clauses."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.held: tuple[Blocked, ...] = ()  # the limits that kept the last claim from taking more

    async def do(self, command: Command) -> Any:
        """Execute one command; raise its error."""
        (answer,) = await self.store.commit([command])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def refused(self, command: Command, error: type[Exception]) -> Exception:
        """Execute a command that must be refused with `error` and change nothing."""
        name = getattr(command, "job", "")
        before = await self.store.get(name), await self.store.events(name)
        (answer,) = await self.store.commit([command])
        assert isinstance(answer, error), f"{command} was not refused: {answer}"
        assert (await self.store.get(name), await self.store.events(name)) == before, "a refusal has changed something"
        return answer

    async def submit(self, job: str = "a", **options: Any) -> None:
        """Create a job."""
        await self.do(submission(job, **options))

    async def claim(self, limit: int = 1, worker: str = "w1", **options: Any) -> list[Claimed]:
        """Claim jobs of the usual entry."""
        answer: Claims = await self.do(claiming(limit, worker, **options))
        self.held = answer.held
        return answer.claimed

    async def running(self, job: str = "a", **options: Any) -> Job:
        """Create a job and claim it."""
        await self.submit(job, **options)
        (claimed,) = await self.claim()
        assert claimed.job.id == job
        return claimed.job

    async def waiting(self, job: str = "a", key: str = "k", **wait: Any) -> Job:
        """Create a job, claim it, and let it wait for a key."""
        held = await self.running(job)
        await self.append(held, ("job_waiting", {"correlation_key": key, "wait_type": "signal", **wait}))
        return await self.job(job)

    async def append(self, held: Job, *events: tuple[str, dict[str, Any]]) -> Any:
        """Write under the attempt that a job was claimed with."""
        return await self.do(Append(held.id, held.attempt, events))

    async def job(self, job: str = "a") -> Job:
        """Read a row that must exist; check that it agrees with its stream and its runs (J6, P8)."""
        row = await self.store.get(job)
        assert row is not None
        stream = await self.store.events(job)
        assert check(stream, head=row.head) == [], check(stream, head=row.head)
        assert rebuilt(row, stream) == row, "the row differs from what its stream makes"
        assert fold(stream).state is row.state
        assert len(runs(stream)) == row.run
        assert runs(stream)[-1] == row.record(), "the record differs from what the stream makes"
        assert (row.lease is None) == (row.state is not JobState.RUNNING), "a lease and Running go together (L6)"
        return row

    async def types(self, job: str = "a") -> list[str]:
        """List the types of a job's events."""
        return [event.type for event in await self.store.events(job)]
