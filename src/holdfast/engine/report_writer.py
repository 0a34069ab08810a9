"""The writer of an attempt's progress and exports (SPEC R9, R10).

Progress is coalesced. The latest report is written, at most every `progress_seconds`, and the code does not wait for
it. During a replay the code only repeats earlier reports, which are not written.

Exports are written as they come. The end of a call waits for the exports made inside it, and so does the end of the
attempt. A recorded call does not run again, so it could not export again.

Both are fenced: the store refuses those of a stale attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Generator
from typing import TYPE_CHECKING, Any

from holdfast.authoring.reports import PIECE_BYTES, Product, check_step_bounds
from holdfast.engine.ending_events import Written
from holdfast.engine.job_loop import JobLoop
from holdfast.errors import HoldfastError, InvalidArguments, PayloadTooLarge, StaleAttempt, StoreUnavailable
from holdfast.machines import JobEvent
from holdfast.machines.run_projection import run_name
from holdfast.store import KeepExport, Progress, PutBlob
from holdfast.store.blobs import DirectoryBlobs

if TYPE_CHECKING:
    from holdfast.engine.job_attempt import Attempt

INLINE_BYTES = 65_536  # larger exports are blobs


class ReportWriter:
    """Writes the progress and exports of one attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._lock = threading.Lock()
        self._progress: dict[str, Any] = {}
        self._spent: dict[str, float] = {}
        self._unwritten = False  # whether there is progress that was not written yet
        self._writing: asyncio.Future[Any] | asyncio.TimerHandle | None = None
        self._written_at = float("-inf")
        self._count = 0
        self._exports: list[asyncio.Task[int]] = []
        self._exports_under_way: set[asyncio.Task[int]] = set()  # those that are being written
        self._order_lock = asyncio.Lock()
        self._earlier_exports: dict[str, int] | None = None  # key → number, from earlier attempts at this run

    # Progress

    def spent(self, amounts: dict[str, float]) -> None:
        """Add the amounts that the run has spent so far to its progress."""
        self._spent = amounts
        self.progress({})

    def progress(self, report: dict[str, Any]) -> None:
        """Accept a progress report. Safe from any thread."""
        with self._lock:
            together = {**self._progress, **report}
            if self._spent:
                together["metrics"] = {**(together.get("metrics") or {}), "spent": self._spent}
            check_step_bounds(together)
            self._progress = together
        if self._attempt.replay.head() is not None:
            return
        if self._attempt.in_loop():
            self._take()
        else:
            self._attempt.threads.inbox.put(self._take)  # before the end of the call that reports it

    def _take(self) -> None:
        self._unwritten = True
        if self._writing is None and not self._attempt.write_closed:
            loop = self._attempt.loop
            wait = self._written_at + self._attempt.config.progress_seconds - loop.time()
            if wait > 0:
                self._writing = loop.call_later(wait, self._write)
            else:
                self._write()

    def _write(self) -> None:
        attempt = self._attempt
        self._writing = None
        self._unwritten, self._written_at = False, attempt.loop.time()
        if attempt.write_closed:
            return
        writing = attempt.journal.enqueue(Progress(attempt.job, attempt.attempt, dict(self._progress)))
        writing.add_done_callback(self._wrote)
        self._writing = writing

    def _wrote(self, writing: asyncio.Future[Any]) -> None:
        self._writing = None
        if not writing.cancelled() and writing.exception() is None and self._unwritten:
            self._take()

    # Exports

    def export(self, product: Product) -> Awaitable[None]:
        """Accept an export. Safe from any thread."""
        config = self._attempt.config
        with self._lock:
            self._count += 1
            if self._count > config.exports_max:
                raise InvalidArguments("export", f"a run has at most {config.exports_max} exports")
        if product.size > config.export_bytes_max:
            limit = config.export_bytes_max
            raise PayloadTooLarge(f"the export {product.name!r}", product.size, limit, "export_bytes_max")
        if self._attempt.in_loop():
            return _Durable(self._begin(product))
        return _Durable(self._attempt.code.on_host(self._begin, product))  # blocks until the loop has accepted it

    def _begin(self, product: Product) -> asyncio.Task[int]:
        task = self._attempt.loop.create_task(self._write_in_order(product))
        self._exports.append(task)
        self._exports_under_way.add(task)
        task.add_done_callback(self._export_done)
        return task

    def _export_done(self, task: asyncio.Task[int]) -> None:
        self._exports_under_way.discard(task)
        if not task.cancelled():
            task.exception()  # mark as retrieved: the end of the attempt reads it

    @property
    def is_exporting(self) -> bool:
        """Return whether exports are not written yet."""
        return bool(self._exports_under_way)

    async def exports_written(self) -> None:
        """Wait until every export so far is written, or the attempt is lost by it."""
        if self._exports_under_way:
            await asyncio.wait(self._exports_under_way)

    async def _write_in_order(self, product: Product) -> int:
        async with self._order_lock:  # in the order of export
            if self._attempt.lost:  # exports after a failed one fail with it: another attempt writes them all
                raise StaleAttempt(self._attempt.job, self._attempt.attempt, self._attempt.attempt)
            try:
                return await self._write_export(product)
            except (StaleAttempt, StoreUnavailable):
                self._attempt.lose()
                raise

    async def _write_export(self, product: Product) -> int:
        attempt = self._attempt
        if attempt.row.exported and self._earlier_exports is None:
            self._earlier_exports = await attempt.journal.exports(attempt.job, attempt.row.run)
        if self._earlier_exports is not None and product.key in self._earlier_exports:
            return self._earlier_exports[product.key]
        inline = product.content is not None and product.value is not None and product.size <= INLINE_BYTES
        blob = None if inline else product.key
        if blob is not None:
            await put_blob(attempt, blob, _pieces(product))
        number: int = await attempt.journal.write(
            KeepExport(
                job=attempt.job,
                attempt=attempt.attempt,
                key=product.key,
                name=product.name,
                kind=product.kind,
                media_type=product.media_type,
                size=product.size,
                value=product.value if inline else None,
                blob=blob,
            )
        )
        return number

    # The end

    @property
    def under_way(self) -> bool:
        """Return whether the end of the attempt has something to wait for."""
        return self._unwritten or self._writing is not None or bool(self._exports or self._attempt.row.exported)

    async def conclude(self, ending: Written) -> Written | None:
        """Write everything, then return the ending with references to it. None if the attempt may not write."""
        failed: HoldfastError | None = None
        with contextlib.suppress(StaleAttempt, StoreUnavailable):  # the attempt is lost by these, and knows it
            failed = await self._settle()
        if self._attempt.lost:
            return None
        kind, payload = ending
        if kind != JobEvent.COMPLETED:
            return ending
        if failed is not None:
            return self._attempt.failure(failed)
        refs = self._refs()
        return (kind, {**payload, "result_refs": refs}) if refs else ending

    async def _settle(self) -> HoldfastError | None:
        """Write everything. Return the error of the first export that could not be stored, if any.

        Raises:
            StaleAttempt: the attempt may no longer write.
            StoreUnavailable: what was written is unknown.
        """
        while self._unwritten or self._writing is not None:
            if isinstance(self._writing, asyncio.Future):
                await asyncio.wait([self._writing])
                await asyncio.sleep(0)  # let its other callbacks run, too
            else:
                if self._writing is not None:
                    self._writing.cancel()
                self._write()
        results = await asyncio.gather(*self._exports, return_exceptions=True)
        failed = [error for error in results if isinstance(error, BaseException)]
        for error in failed:
            if isinstance(error, (StaleAttempt, StoreUnavailable)) or not isinstance(error, HoldfastError):
                raise error
        return failed[0] if failed and isinstance(failed[0], HoldfastError) else None

    def _refs(self) -> list[str]:
        """Return the names of the exports, as the run's result refers to them."""
        row = self._attempt.row
        last = max((task.result() for task in self._exports), default=0)
        return [f"{run_name(row.id, row.run)}/exports/{n}" for n in range(1, max(last, row.exported) + 1)]


async def put_blob(attempt: Attempt, blob: str, pieces: AsyncIterator[bytes]) -> None:
    """Store a blob of an attempt's job: in the directory of blobs, if there is one, else in the store.

    Raises:
        StaleAttempt: the attempt may no longer write.
        StoreUnavailable: whether it is stored is unknown.
    """
    if attempt.config.blobs:
        await DirectoryBlobs(attempt.config.blobs).put(attempt.job, blob, pieces)
        return
    number = 0
    async for piece in pieces:
        number += 1
        await attempt.journal.write(PutBlob(attempt.job, attempt.attempt, blob, number, piece))


class _Durable:
    """The awaitable that `export` returns. Awaiting it waits for the disk, and is optional."""

    def __init__(self, task: asyncio.Task[int]) -> None:
        self._task = task

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        if isinstance(loop, JobLoop):
            yield from loop.outside(self._durable()).__await__()
        else:
            yield from self._durable().__await__()

    async def _durable(self) -> None:
        await asyncio.shield(self._task)


async def _pieces(product: Product) -> AsyncIterator[bytes]:
    """Yield a product's bytes piece by piece. A file is read in a thread."""
    if product.content is not None:
        for first in range(0, max(len(product.content), 1), PIECE_BYTES):
            yield product.content[first : first + PIECE_BYTES]
        return
    assert product.path is not None, "what has no content is a file"
    try:
        file = await asyncio.to_thread(open, product.path, "rb")
        with file:
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece
    except OSError as error:
        raise InvalidArguments("export", f"{product.path} cannot be read: {error.strerror}") from error
