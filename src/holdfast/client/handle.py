"""One run, in the hand of whoever started it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.authoring.functions import JobFunction
from holdfast.errors import RunCanceled, RunFailed, RunTimedOut
from holdfast.machines import TERMINAL_RUN_STATUSES, Event, JobEvent, RunRecord, RunStatus

if TYPE_CHECKING:
    from holdfast.client.app import App

__all__ = ["RunHandle", "job_of_run"]


def job_of_run(run_id: str) -> tuple[str, int]:
    """Split a run's id into its job and its number: the first run is named as its job, later ones ``job.2`` and on."""
    job, dot, number = run_id.rpartition(".")
    return (job, int(number)) if dot and number.isdecimal() else (run_id, 1)


class RunHandle:
    """A run: watch it, signal it, cancel it, wait for its result."""

    def __init__(self, app: App, run_id: str, function: JobFunction[..., Any] | None = None) -> None:
        self.id = run_id
        self._app = app
        self._function = function

    async def arecord(self) -> RunRecord:
        """Read its record."""
        return await self._app.aget(self.id)

    async def aevents(self) -> list[Event]:
        """Read its job's events."""
        return await self._app.store().events(job_of_run(self.id)[0])

    async def aresult(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - the name users know
        """Wait for its end and return what the job returned.

        Raises:
            RunFailed, RunCanceled, RunTimedOut: how else it ended.
            TimeoutError: it has not ended in time; it goes on.
        """
        async with asyncio.timeout(timeout):
            async for record in self.awatch():
                if record.status in TERMINAL_RUN_STATUSES:
                    return await self._outcome(record)
        raise AssertionError("a watch ends with the run")

    async def awatch(self) -> AsyncIterator[RunRecord]:
        """Give its record now and at each change, until it has ended."""
        store = self._app.store()
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def notice(change: int) -> None:
            del change
            loop.call_soon_threadsafe(woken.set)

        end = store.subscribe(notice)
        last: RunRecord | None = None
        try:
            while True:
                woken.clear()
                seen = store.changes()
                record = await self.arecord()
                if record != last:
                    yield record
                    last = record
                if record.status in TERMINAL_RUN_STATUSES:
                    return
                await self._something_new(woken, seen)
        finally:
            end()

    async def _something_new(self, woken: asyncio.Event, seen: int) -> None:
        store = self._app.store()
        end = time.monotonic() + store.floor_seconds if store.floor_seconds is not None else float("inf")
        while not woken.is_set() and store.changes() == seen and time.monotonic() < end:
            try:
                async with asyncio.timeout(self._app.config.poll_seconds):
                    await woken.wait()
            except TimeoutError:
                continue

    async def _outcome(self, record: RunRecord) -> Any:
        reason = record.error.message if record.error is not None else ""
        match record.status:
            case RunStatus.SUCCEEDED:
                ends = [event for event in await self.aevents() if event.type == JobEvent.COMPLETED]
                plain = ends[-1].payload.get("result")
                return self._function.signature.decode_result(plain) if self._function is not None else plain
            case RunStatus.FAILED:
                raise RunFailed(f"run {self.id} failed: {reason}")
            case RunStatus.TIMEOUT:
                raise RunTimedOut(f"run {self.id}: {reason}")
            case _:
                raise RunCanceled(f"run {self.id} was canceled: {reason}")

    async def asignal(
        self,
        key: str,
        payload: Any = None,
        id: str | None = None,  # noqa: A002 - the name users know
    ) -> str:
        """Send it a signal."""
        return await self._app.asignal(self.id, key, payload, id)

    async def acancel(self, reason: str | None = None) -> RunRecord:
        """Ask it to cancel."""
        return await self._app.acancel(self.id, reason)

    def record(self) -> RunRecord:
        """Read its record."""
        return self._app.block(self.arecord())

    def events(self) -> list[Event]:
        """Read its job's events."""
        return self._app.block(self.aevents())

    def result(self, timeout: float | None = None) -> Any:
        """Wait for its end; see `aresult`."""
        return self._app.block(self.aresult(timeout))

    def watch(self) -> Iterator[RunRecord]:
        """Give its record now and at each change; see `awatch`."""
        changes = self.awatch()
        while (record := self._app.block(_next(changes))) is not None:
            yield record

    def signal(
        self,
        key: str,
        payload: Any = None,
        id: str | None = None,  # noqa: A002 - the name users know
    ) -> str:
        """Send it a signal."""
        return self._app.block(self.asignal(key, payload, id))

    def cancel(self, reason: str | None = None) -> RunRecord:
        """Ask it to cancel."""
        return self._app.block(self.acancel(reason))

    def __repr__(self) -> str:
        return f"<run {self.id}>"


async def _next(changes: AsyncIterator[RunRecord]) -> RunRecord | None:
    return await anext(changes, None)
