"""Large exports outside the database: a directory with one file each, written atomically and durably.

The exports in the database name the blobs. A file that no export names belongs to an export that was never finished. It
is removed with its job. This module and the engine make the names, never users; they are checked all the same.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, TypeVar

from holdfast.errors import StoreUnavailable
from holdfast.store.effects import sync_folder

T = TypeVar("T")

PIECE_BYTES = 262_144
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}")


class DirectoryBlobs:
    """Blobs as files: ``<root>/<job>/<blob>``; the root as a path, or as a URL ``file:///path``."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(str(root).removeprefix("file://"))

    async def put(self, job: str, blob: str, pieces: AsyncIterator[bytes]) -> None:
        """Store a blob; an existing one does not change.

        Raises:
            StoreUnavailable: it may not be stored.
        """
        path = self._path(job, blob)
        if await self._guarded(path.exists):
            return
        beside = path.with_name(f"{path.name}.{os.getpid()}.{id(pieces)}.new")
        file = await self._guarded(lambda: _create(beside))
        try:
            async for piece in pieces:
                await self._guarded(lambda piece=piece: file.write(piece))  # type: ignore[misc]  # - bound as it is now
            await self._guarded(lambda: _finish(file, beside, path))
        finally:
            file.close()
            beside.unlink(missing_ok=True)

    async def read(self, job: str, blob: str) -> AsyncIterator[bytes]:
        """Yield a blob's bytes, a piece at a time.

        Raises:
            StoreUnavailable: it cannot be read.
        """
        path = self._path(job, blob)
        with await self._guarded(lambda: path.open("rb")) as file:
            while piece := await self._guarded(lambda: file.read(PIECE_BYTES)):
                yield piece

    async def remove(self, job: str) -> None:
        """Remove all blobs of a job that is being removed; having none is no error."""
        folder = self._path(job, "any").parent
        await self._guarded(lambda: shutil.rmtree(folder) if folder.is_dir() else None)

    async def _guarded(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            cure = "check the directory, its rights and its space"
            raise StoreUnavailable(f"blobs in {self._root}: {error.strerror}: {cure}") from error

    def _path(self, job: str, blob: str) -> Path:
        if not _NAME.fullmatch(job) or not _NAME.fullmatch(blob):
            raise StoreUnavailable(f"blobs in {self._root}: {job!r} and {blob!r} cannot name a file")
        return self._root / job / blob


def _create(path: Path) -> IO[bytes]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb")


def _finish(file: IO[bytes], beside: Path, path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)
