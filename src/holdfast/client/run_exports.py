"""What a run has produced, for whoever asks: the listing's values, and the bytes from wherever they are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from holdfast.client.views import Export
from holdfast.machines import RunRecord, RunStatus
from holdfast.store import Store
from holdfast.store.blobs import DirectoryBlobs
from holdfast.store.run_queries import ExportRow

__all__ = ["content", "exported"]


def exported(record: RunRecord, row: ExportRow) -> Export:
    """Show an export of a run."""
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
    """Give an export's bytes, a piece at a time."""
    if row.blob is None:
        yield msgspec.json.encode(row.value) if row.kind == "json" else str(row.value).encode()
        return
    number = 1
    found = await store.blob(job, row.blob, number)
    if found is None and blobs is not None:
        async for piece in blobs.read(job, row.blob):
            yield piece
        return
    while found is not None:
        yield found
        number += 1
        found = await store.blob(job, row.blob, number)
