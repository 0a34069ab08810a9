"""One run, in the hand of whoever started it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.authoring.conductor import on_worker_loop
from holdfast.authoring.functions import JobFunction
from holdfast.errors import RunCanceled, RunFailed, RunTimedOut
from holdfast.machines import TERMINAL_RUN_STATUSES, Event, RunRecord, RunStatus

if TYPE_CHECKING:
    from holdfast.client.interface import Client

__all__ = ["RunHandle", "job_of_run"]


def job_of_run(run_id: str) -> tuple[str, int]:
    """Split a run's id into its job and its number: the first run is named as its job, later ones ``job.2`` and on."""
    job, dot, number = run_id.rpartition(".")
    return (job, int(number)) if dot and number.isdecimal() else (run_id, 1)


class RunHandle:
    """A run: watch it, signal it, cancel it, wait for its result."""

    def __init__(self, client: Client, run_id: str, function: JobFunction[..., Any] | None = None) -> None:
        self.id = run_id
        self._client = client
        self._function = function

    async def arecord(self) -> RunRecord:
        """Read its record."""
        return await self._client.aget(self.id)

    async def aevents(self) -> list[Event]:
        """Read its job's events."""
        return await self._client.aevents(self.id)

    @on_worker_loop
    async def aresult(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - the name users know
        """Wait for its end and return what the job returned; if it goes on in other runs, what the last one returns.

        Raises:
            RunFailed, RunCanceled, RunTimedOut: how else it ended.
            TimeoutError: it has not ended in time; it goes on.
            UnknownJob: it went on in a run that has been removed.
        """
        async with asyncio.timeout(timeout):
            record = await self._ended(self.id)
            while record.continued_as is not None:
                record = await self._ended(await self._client.acurrent(record.run_id))
            return await self._outcome(record)

    async def _ended(self, run_id: str) -> RunRecord:
        watching: Any = self._client.awatch(run_id)
        async with contextlib.aclosing(watching) as records:  # left before its end, a watch holds a connection
            async for record in records:
                if record.status in TERMINAL_RUN_STATUSES:
                    ended: RunRecord = record
                    return ended
        raise AssertionError("a watch ends with the run")

    def awatch(self) -> AsyncIterator[RunRecord]:
        """Give its record now and at each change, until it has ended."""
        return self._client.awatch(self.id)

    async def _outcome(self, record: RunRecord) -> Any:
        reason = record.error.message if record.error is not None else ""
        match record.status:
            case RunStatus.SUCCEEDED:
                plain = await self._client.aoutcome(record.run_id)
                return self._function.signature.decode_result(plain) if self._function is not None else plain
            case RunStatus.FAILED:
                raise RunFailed(f"run {record.run_id} failed: {reason}")
            case RunStatus.TIMEOUT:
                raise RunTimedOut(f"run {record.run_id}: {reason}")
            case _:
                raise RunCanceled(f"run {record.run_id} was canceled: {reason}")

    async def asignal(
        self,
        key: str,
        payload: Any = None,
        id: str | None = None,
    ) -> str:
        """Send it a signal."""
        return await self._client.asignal(self.id, key, payload, id)

    async def acancel(self, reason: str | None = None) -> RunRecord:
        """Ask it to cancel."""
        return await self._client.acancel(self.id, reason)

    def record(self) -> RunRecord:
        """Read its record."""
        return self._client.block(self.arecord())

    def events(self) -> list[Event]:
        """Read its job's events."""
        return self._client.block(self.aevents())

    def result(self, timeout: float | None = None) -> Any:
        """Wait for its end; see `aresult`."""
        return self._client.block(self.aresult(timeout))

    def watch(self) -> Iterator[RunRecord]:
        """Give its record now and at each change; see `awatch`."""
        return self._client.watch(self.id)

    def signal(
        self,
        key: str,
        payload: Any = None,
        id: str | None = None,
    ) -> str:
        """Send it a signal."""
        return self._client.block(self.asignal(key, payload, id))

    def cancel(self, reason: str | None = None) -> RunRecord:
        """Ask it to cancel."""
        return self._client.block(self.acancel(reason))

    def __repr__(self) -> str:
        return f"<run {self.id}>"
