"""Reads of one run: its record at each change, and its exports.

`watch` does not poll. A commit of this or another process wakes it, at the latest the store's own floor interval.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from holdfast.client.run_handle import job_of_run
from holdfast.client.views import Export
from holdfast.machines import TERMINAL_RUN_STATUSES, RunRecord, RunStatus
from holdfast.store import Store
from holdfast.store.blobs import DirectoryBlobs
from holdfast.store.run_queries import ExportRow

if TYPE_CHECKING:
    from holdfast.client.app import App


def exported(record: RunRecord, row: ExportRow) -> Export:
    """Return an export of a run as clients see it."""
    return Export(
        run_id=record.run_id,
        number=row.number,
        name=row.name,
        kind=row.kind,
        media_type=row.media_type,
        size=row.size,
        at=row.at,
        provisional=record.status is not RunStatus.SUCCEEDED,
        value=row.value,
    )


async def content(store: Store, blobs: DirectoryBlobs | None, job: str, row: ExportRow) -> AsyncIterator[bytes]:
    """Yield the bytes of an export in pieces."""
    if row.blob is None:
        yield msgspec.json.encode(row.value) if row.kind == "json" else str(row.value).encode()
        return
    number = 1
    stored = await store.blob(job, row.blob, number)
    if stored is None and blobs is not None:
        async for piece in blobs.read(job, row.blob):
            yield piece
        return
    while stored is not None:
        yield stored
        number += 1
        stored = await store.blob(job, row.blob, number)


async def watch(app: App, run_id: str) -> AsyncIterator[RunRecord]:
    """Yield the record of a run now and after each change, until the run has ended."""
    last: RunRecord | None = None
    with app.run_watcher().watching(job_of_run(run_id)[0]) as woken:
        while True:
            woken.clear()
            record = await app.aget(run_id)
            if record != last:
                yield record
                last = record
            if record.status in TERMINAL_RUN_STATUSES:
                return
            await woken.wait()


async def newest_event(app: App, run_id: str) -> int:
    """Return the number of the newest event of a run's job, or 0 if there is no such job."""
    row = await app.store().get(job_of_run(run_id)[0])
    return row.version if row is not None else 0
