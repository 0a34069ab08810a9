"""Results that are too large for an event. The JSON is in a blob of the job, and the event has a reference to it.

The name of a blob follows from its content. An attempt that dies between the blob and the event leaves a blob that no
event names. Another attempt with the same result uses it again, and one with another result writes another blob. All
blobs of a job are removed with the job.

What can fail: `StoreUnavailable`, if the store or the directory of blobs does not answer, or lacks the blob.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.machines import Event
from holdfast.store.blobs import PIECE_BYTES, DirectoryBlobs

FIELD = "result_blob"  # of the event, next to a `result` of null

ReadPiece = Callable[[str, str, int], Awaitable[bytes | None]]


class ResultBlob(msgspec.Struct, frozen=True):
    """The reference to a large result: the name of its blob, and the bytes of its JSON."""

    blob: str
    size: int


def reference(content: bytes) -> ResultBlob:
    """Return the reference to a result with this JSON."""
    return ResultBlob(f"result-{hashlib.sha256(content).hexdigest()}", len(content))


def reference_in(payload: dict[str, Any]) -> ResultBlob | None:
    """Return the reference in the payload of an event, or None if its result is in the event itself."""
    field = payload.get(FIELD)
    return msgspec.convert(field, ResultBlob) if field is not None else None


async def pieces(content: bytes) -> AsyncIterator[bytes]:
    """Yield content in the pieces of a blob."""
    for first in range(0, len(content), PIECE_BYTES):
        yield content[first : first + PIECE_BYTES]


async def read_pieces(
    read: ReadPiece, blobs: DirectoryBlobs | None, job: str, result: ResultBlob
) -> AsyncIterator[bytes]:
    """Yield the JSON of a large result, a piece at a time.

    Args:
        read: reads a piece of a blob in the store.
        blobs: the directory of blobs, if the settings name one.
        job: the job whose result it is.
        result: the reference to it.

    Raises:
        StoreUnavailable: the blob cannot be read, or is not there.
    """
    number = 1
    piece = await read(job, result.blob, number)
    if piece is None and blobs is not None:
        async for part in blobs.read(job, result.blob):
            yield part
        return
    if piece is None:
        cure = "set blobs (HOLDFAST_BLOBS) to the directory that the workers use"
        raise StoreUnavailable(f"the result {result.blob} of job {job} is not in the store: {cure}")
    while piece is not None:
        yield piece
        number += 1
        piece = await read(job, result.blob, number)


async def read_result(read: ReadPiece, blobs: DirectoryBlobs | None, job: str, result: ResultBlob) -> Any:
    """Return a large result as a JSON value.

    Raises:
        StoreUnavailable: as for `read_pieces`.
    """
    content = bytearray()
    async for piece in read_pieces(read, blobs, job, result):
        content += piece
    return msgspec.json.decode(content)


async def with_results(read: ReadPiece, blobs: DirectoryBlobs | None, events: Iterable[Event]) -> list[Event]:
    """Return events with their large results, as if these were in the events themselves.

    Raises:
        StoreUnavailable: as for `read_pieces`.
    """
    whole = []
    for event in events:
        result = reference_in(event.payload)
        if result is None:
            whole.append(event)
            continue
        value = await read_result(read, blobs, event.job, result)
        payload = {name: part for name, part in event.payload.items() if name != FIELD}
        whole.append(msgspec.structs.replace(event, payload={**payload, "result": value}))
    return whole
