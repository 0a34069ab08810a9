"""A store of which one commit goes wrong. Everything else is the real one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.machines.event import Frozen
from holdfast.store import Append, Claim, Command, Store

MODES = ("crash before", "crash after", "error", "overtaken")
WORDS: dict[str, str | None] = {
    "node_started": None,
    "node_finished": None,
    "value_recorded": None,
    "command_committed": "result of {}",
    "tool_invocation_started": "{} begins",
    "tool_invocation_finished": "{} has ended",
    "job_waiting": "waits at {}",
    "job_completed": "ends",
    "job_failed": "fails",
}
GONE = "the process has crashed"


class FaultyStore:
    """Passes everything on. One commit of the worker goes wrong.

    Args:
        store: the store.
        fail_at: the number of the commit, from 1; 0 for none.
        mode: one of `MODES`.
        overtake: what happens while the commit is stopped.
        on_error: is called when the commit was refused.
    """

    def __init__(
        self,
        store: Store,
        fail_at: int,
        mode: str,
        overtake: Callable[[], Awaitable[None]],
        on_error: Callable[[], object] = lambda: None,
    ) -> None:
        self._store = store
        self._fail_at = fail_at
        self._mode = mode
        self._overtake = overtake
        self._on_error = on_error
        self.written: list[str] = []  # what each commit wrote, in words
        self.crashed = False
        self.gone = asyncio.Event()  # set with it
        self.failed = False
        self._runs = asyncio.Event()  # cleared while the process is stopped
        self._runs.set()

    async def commit(self, batch: Sequence[Command]) -> list[Any]:
        """Commit a batch, or let it go wrong."""
        await self._runs.wait()
        if self.crashed:
            raise StoreUnavailable(GONE)
        if not _counts(batch):
            return await self._store.commit(batch)
        self.written.append(_described(batch))
        if len(self.written) != self._fail_at:
            return await self._store.commit(batch)
        self.failed = True
        if self._mode == "overtaken":
            self._runs.clear()
            try:
                await self._overtake()
            finally:
                self._runs.set()
            return await self._store.commit(batch)
        if self._mode == "crash after":
            await self._store.commit(batch)
        if self._mode == "error":
            self._on_error()
        else:
            self.crashed = True
            self.gone.set()
        raise StoreUnavailable(GONE if self.crashed else "an error, as the test wanted it")

    def commit_blocking(self, batch: Sequence[Command]) -> list[Any]:
        """Commit what the worker's heartbeat writes."""
        if self.crashed or not self._runs.is_set():
            raise StoreUnavailable(GONE)
        return self._store.commit_blocking(batch)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return partial(self._read, found) if inspect.iscoroutinefunction(found) else found

    async def _read(self, read: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        await self._runs.wait()
        return await read(*args, **kwargs)


def _counts(batch: Sequence[Command]) -> bool:
    """Return whether a commit belongs to a job, and not only to the worker."""
    return any(isinstance(command, (Append, Claim)) for command in batch)


def _described(batch: Sequence[Command]) -> str:
    """Return what a commit writes, in words."""
    words: list[str] = []
    for command in batch:
        if isinstance(command, Append):
            texts = [_event_text(kind, payload) for kind, payload in command.events]
            words += [text for text in texts if text is not None] or [kind for kind, _ in command.events]
        else:
            words.append(type(command).__name__.lower())
    return ", ".join(words)


def _event_text(kind: str, payload: dict[str, Any] | Frozen) -> str | None:
    """Return what an event says, in words; None for one that says nothing new."""
    fields = msgspec.json.decode(payload.text) if isinstance(payload, Frozen) else payload
    node = str(fields.get("node", "")).partition(":")[0]
    words = WORDS.get(kind, f"{kind} {{}}")
    return words.format(node).strip() if words is not None else None
