"""The handle of one run, which `start` returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from holdfast.authoring.conductor import on_worker_loop
from holdfast.authoring.functions import JobFunction
from holdfast.client.interface import Client, blocking
from holdfast.errors import RunCanceled, RunFailed, RunTimedOut
from holdfast.machines import Event, RunRecord, RunStatus


def job_of_run(run_id: str) -> tuple[str, int]:
    """Split a run's id into job id and run number. The first run has the id of its job, the second is ``job.2``."""
    job, dot, number = run_id.rpartition(".")
    return (job, int(number)) if dot and number.isdecimal() else (run_id, 1)


class RunHandle:
    """A handle of one run: wait for its result, watch it, signal it, cancel it.

    Each method has an async form with the prefix ``a`` and a blocking form without it.

    Attributes:
        id: The id of the run. ``app.get(id)`` reads its record in any process.
    """

    def __init__(self, client: Client, run_id: str, function: JobFunction[..., Any] | None = None) -> None:
        self.id = run_id
        self._client = client
        self._function = function

    async def arecord(self) -> RunRecord:
        """Return the current record of the run."""
        return await self._client.aget(self.id)

    async def aevents(self) -> list[Event]:
        """Return the events of the run's job, oldest first."""
        return await self._client.aevents(self.id)

    @on_worker_loop
    async def aresult(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - the name users know
        """Wait for the end of the run and return the result of the job.

        If the job continues in other runs (`continue_as`), wait for the last one and return its result.

        Args:
            timeout: Maximum time to wait, in seconds. None waits without a limit.

        Raises:
            RunFailed: The run failed.
            RunCanceled: The run was canceled.
            RunTimedOut: The run exceeded its deadline.
            TimeoutError: The run has not ended within `timeout`. It continues to run.
            UnknownJob: The job continued in a run that has been removed.
        """
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                record, ending = await self._client.aended(self.id)
                while record.continued_as is not None:
                    record, ending = await self._client.aended(await self._client.acurrent(record.run_id))
                return await self._outcome(record, ending)
        except TimeoutError as error:
            if not limit.expired():
                raise  # the outcome of the run
            record = await self.arecord()
            state = record.status if record.stage in {None, record.status} else f"{record.status}, {record.stage}"
            message = f"run {record.run_id} has not ended within {timeout:g} s: it is {state}"
            worker = " when a worker takes it" if record.status == "queued" else ""
            raise TimeoutError(f"{message}; it continues{worker}, and app.explain says what it waits for") from error

    def awatch(self) -> AsyncIterator[RunRecord]:
        """Yield the record of the run now and after each change, until the run has ended."""
        return self._client.awatch(self.id)

    async def _outcome(self, record: RunRecord, ending: dict[str, Any] | None) -> Any:
        error = record.error
        reason = error.message if error is not None else ""
        match record.status:
            case RunStatus.SUCCEEDED:
                result = await self._client.aresult_of(record, ending)
                return self._function.signature.decode_result(result) if self._function is not None else result
            case RunStatus.FAILED:
                kind = error.code if error is not None and error.code != "FAILED" else ""
                parts = (kind, "" if reason == "error" else reason)  # an exception may have no text
                raise RunFailed(f"run {record.run_id} failed: {': '.join(part for part in parts if part)}")
            case RunStatus.TIMEOUT:
                raise RunTimedOut(f"run {record.run_id}: {reason}")
            case _:
                raise RunCanceled(f"run {record.run_id} was canceled: {reason}")

    async def asignal(
        self,
        key: str,
        payload: Any = None,
        id: str | None = None,
        *,
        actor: str | None = None,
        node: str | None = None,
    ) -> str:
        """Send a signal to the run.

        Args:
            key: The key that the job waits for with `wait_for`.
            payload: A JSON value for the waiting job.
            id: An id of the signal. The job receives signals with the same id once.
            actor: Who answers, if a person has to.
            node: The `node` of a question in the inbox. The signal then counts for this question only.

        Raises:
            InvalidArguments: The payload does not fit the form that the job waits for.
            QuestionClosed: The run no longer asks the question at `node`. Nothing was stored.

        Returns:
            ``delivered``, ``kept``, ``repeat`` or ``too_late``.
        """
        return await self._client.asignal(self.id, key, payload, id, actor=actor, node=node)

    async def acancel(self, reason: str | None = None) -> RunRecord:
        """Request the cancellation of the run and return its record. A run that no worker holds is canceled at once."""
        return await self._client.acancel(self.id, reason)

    record = blocking(arecord)
    events = blocking(aevents)
    result = blocking(aresult)
    signal = blocking(asignal)
    cancel = blocking(acancel)

    def watch(self) -> Iterator[RunRecord]:
        """Yield the record of the run now and after each change, until the run has ended."""
        return self._client.watch(self.id)

    def __repr__(self) -> str:
        return f"<run {self.id}>"
