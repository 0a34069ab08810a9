"""A store whose n-th commit goes wrong, in one of three ways; everything else is the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast.errors import StoreUnavailable
from holdfast.store import Command, PutWorker, Renew, Store
from holdfast.store.effects import Effect, EffectStore
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.store import SqliteStore
from support.postgres import fresh_schema, server

T = TypeVar("T")


class FaultyStore:
    """Passes everything on, and fails at the n-th commit: "crash", "not applied" or "applied"."""

    def __init__(self, store: Store, fail_at: int, mode: str) -> None:
        self._store = store
        self.left = fail_at
        self._mode = mode
        self.crashed = False
        self.gone = asyncio.Event()  # set with it

    @property
    def failed(self) -> bool:
        return self.left <= 0

    async def commit(self, batch: Sequence[Command]) -> list[Any]:
        if self.crashed:
            raise StoreUnavailable("the process is gone")
        self.left -= 1
        if self.left == 0:
            if self._mode == "crash":
                self.crashed = True
                self.gone.set()
                raise StoreUnavailable("the process is gone")
            if self._mode == "applied":
                await self._store.commit(batch)
            raise StoreUnavailable(f"fault injected: {self._mode}")
        return await self._store.commit(batch)

    def commit_blocking(self, batch: Sequence[Command]) -> list[Any]:
        if self.crashed and all(isinstance(command, (Renew, PutWorker)) for command in batch):
            raise StoreUnavailable("the process is gone")
        return self._store.commit_blocking(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class FaultyEffects:
    """An effect store whose n-th use goes wrong, in the same three ways; a crash takes the whole process along."""

    def __init__(self, effects: EffectStore, fail_at: int, mode: str, process: FaultyStore) -> None:
        self._effects = effects
        self.left = fail_at
        self._mode = mode
        self._process = process

    async def begin(self, job: str, attempt: int) -> dict[str, Effect]:
        found: dict[str, Effect] = await self._use(lambda: self._effects.begin(job, attempt))
        return found

    async def put(self, effect: Effect) -> None:
        await self._use(lambda: self._effects.put(effect))

    async def remove(self, job: str) -> None:
        await self._use(lambda: self._effects.remove(job))

    async def close(self) -> None:
        await self._effects.close()

    async def _use(self, work: Callable[[], Awaitable[Any]]) -> Any:
        self.left -= 1
        if self._process.crashed:
            raise StoreUnavailable("the process is gone")
        if self.left == 0:
            if self._mode == "applied":
                await work()
            self._process.crashed = self._mode == "crash"
            raise StoreUnavailable(f"fault injected: {self._mode}")
        return await work()


def store_of(backend: str, path: Path) -> Store:
    match backend:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SqliteStore(path)
        case _:
            return PostgresStore(server().url, fresh_schema())


async def closing(store: Store, story: Coroutine[Any, Any, T]) -> T:
    try:
        return await story
    finally:
        await store.close()
