"""Between an attempt's loop and the threads that plain functions run in."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Executor
from typing import Any

__all__ = ["Bridge", "later"]


class Bridge:
    """Whoever has a loop, and an executor for what would block it."""

    loop: asyncio.AbstractEventLoop
    executor: Executor
    _thread: int

    def cross(self) -> None:
        """Know the loop and its thread: this one."""
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def in_loop(self) -> bool:
        """Whether the caller runs on the engine's loop."""
        return threading.get_ident() == self._thread

    def from_thread(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the engine's loop and block this thread for it."""
        if self.loop.is_closed():  # a plain function that went on after its worker was gone
            coroutine.close()
            raise asyncio.CancelledError
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()
        except CancelledError as error:  # of a thread's future: an Exception, which the code would take for a failure
            raise asyncio.CancelledError from error

    async def in_thread(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        """Run a plain function in a thread, with this context."""
        context = contextvars.copy_context()
        return await self.loop.run_in_executor(self.executor, lambda: context.run(function, **kwargs))


async def later(function: Callable[..., Any], *args: Any) -> Any:
    """Call a plain function, as something to be awaited."""
    return function(*args)
