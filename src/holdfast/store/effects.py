"""Effect stores outside the job's database: a protocol, and a directory of files (E2, E3).

By default a call's result is in the job's stream, written in one transaction with the rest, and this module is not
used. An external store is for results that must outlive the database, or that other programs read. Then there are two
writes: first the effect to the store, then the events to the stream. A crash between the two leaves an effect without
events. The next attempt finds it, appends the events, and does not call again.

Every effect store guarantees:

- `begin` fences off all earlier attempts of the job, permanently, and returns the effects stored so far.
- `remove` deletes a job's effects and its fence. It is for jobs that were removed.
- `put` is durable when it returns. The first effect of a call stands: an equal one changes nothing, a different one
  is refused (E7). A fenced attempt is refused (L3).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.errors import EffectConflict, StaleAttempt, StoreUnavailable

T = TypeVar("T")

THREADS = 8  # effects written at once: each needs an fsync, and a disk does several


class Effect(msgspec.Struct, frozen=True):
    """A call that was made, and its result.

    Attributes:
        job: the job.
        node: the call.
        attempt: the attempt that made it.
        number: which try of the call it was.
        result: its result, as JSON.
    """

    job: str
    node: str
    attempt: int
    number: int
    result: Any


class EffectStore(Protocol):
    """Storage for effects outside the job's database."""

    async def begin(self, job: str, attempt: int) -> dict[str, Effect]:
        """Fence off all earlier attempts of a job; return its effects by node.

        Raises:
            StaleAttempt: this attempt is fenced itself.
            StoreUnavailable: nothing was done; the message says why.
        """
        ...

    async def put(self, effect: Effect) -> None:
        """Store an effect durably.

        Raises:
            StaleAttempt: a later attempt has begun; nothing was stored.
            EffectConflict: the call already has a different effect.
            StoreUnavailable: it is not known whether it was stored.
        """
        ...

    async def remove(self, job: str) -> None:
        """Remove all effects of a job that is being removed; having none is no error.

        Raises:
            StoreUnavailable: something may be left.
        """
        ...

    async def close(self) -> None:
        """Release all resources."""
        ...


_decode = msgspec.json.Decoder(Effect).decode
_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="sorted").encode


class DirectoryEffects:
    """Effects as files, one each: ``<root>/<job>/<hash of the node>.json``, written aside and renamed into place.

    A job's ``fence`` file holds the newest attempt. Both are read and written under a lock of the job's directory. The
    system releases the lock when its process dies.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-effects")

    async def begin(self, job: str, attempt: int) -> dict[str, Effect]:
        """Fence off earlier attempts and read their effects."""
        return await self._in_thread(self._begin, job, attempt)

    async def put(self, effect: Effect) -> None:
        """Store an effect."""
        await self._in_thread(self._put, effect)

    async def remove(self, job: str) -> None:
        """Remove a job's directory."""
        await self._in_thread(self._remove, job)

    async def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._guarded, work, args)

    def _guarded(self, work: Callable[..., T], args: tuple[Any, ...]) -> T:
        try:
            return work(*args)
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            if isinstance(error, EffectConflict):
                raise
            reason = getattr(error, "strerror", None) or error
            cure = "check the directory, its rights and its space"
            raise StoreUnavailable(f"effects in {self._root}: {reason}: {cure}") from error

    def _begin(self, job: str, attempt: int) -> dict[str, Effect]:
        folder = self._folder(job)
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(folder.parent)
        with _locked(folder):
            self._fence(folder, job, attempt)
            self._write(folder / "fence", str(attempt).encode())
            effects = [_decode(path.read_bytes()) for path in sorted(folder.glob("*.json"))]
        return {effect.node: effect for effect in effects}

    def _put(self, effect: Effect) -> None:
        folder = self._folder(effect.job)
        with _locked(folder):
            self._fence(folder, effect.job, effect.attempt)
            path = folder / f"{hashlib.sha256(effect.node.encode()).hexdigest()}.json"
            if path.exists():
                kept = _decode(path.read_bytes())
                if _canonical(kept.result) != _canonical(effect.result):
                    raise EffectConflict(effect.job, effect.node)
                return
            self._write(path, _encode(effect))

    def _remove(self, job: str) -> None:
        folder = self._folder(job)
        if folder.is_dir():
            shutil.rmtree(folder)

    def _fence(self, folder: Path, job: str, attempt: int) -> None:
        fence = folder / "fence"
        newest = int(fence.read_bytes()) if fence.exists() else 0
        if attempt < newest:
            raise StaleAttempt(job, attempt, newest)

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file atomically and durably."""
        beside = path.with_suffix(".new")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        beside.replace(path)
        sync_folder(path.parent)

    def _folder(self, job: str) -> Path:
        if not job or job in {".", ".."} or "/" in job or "\0" in job:
            raise ValueError(f"{job!r} cannot name a directory")
        return self._root / job


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    import fcntl  # noqa: PLC0415 - Windows does not have it, and must be able to import this module

    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
