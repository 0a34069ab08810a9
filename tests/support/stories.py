"""The few moves that stories about jobs need."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from holdfast import App, Config
from holdfast.engine.lease_keeper import Heartbeat

if TYPE_CHECKING:
    import pytest  # which tools that use these moves do without


def quick(url: str, **settings: Any) -> Config:
    """Settings for tests: nothing waits longer than it must."""
    usual = {"url": url, "poll_seconds": 0.005, "idle_seconds": 2.0, "shutdown_seconds": 0.05, "grace_seconds": 0.2}
    return Config(**{**usual, **settings})


async def drain(app: App) -> None:
    """Work until there is nothing left to do."""
    async with asyncio.timeout(60):
        await app.worker().arun(until_idle=True)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again, until something is so."""
    async with asyncio.timeout(60):
        while not await is_so():  # noqa: ASYNC110 - what is looked for may come from another process
            await asyncio.sleep(0.005)


class TooLate(Exception):
    """The machine stood still for so long that what was to be shown could not be."""


async def in_time(story: Callable[[], Awaitable[None]]) -> None:
    """Tell a story that needs a machine which works all the while; tell it again where it was too late, a few times.

    Only that is tried again. What must hold however late it is, is asserted, and fails at once.
    """
    for left in reversed(range(5)):
        try:
            await story()
        except TooLate:
            if not left:
                raise
        else:
            return


def beating(monkeypatch: pytest.MonkeyPatch, every_seconds: float = 0.02) -> None:
    """Have workers renew their leases much more often than these ask for: so no lease has to be short to be renewed."""
    monkeypatch.setattr("holdfast.engine.lease_keeper.Heartbeat", lambda beat, _: Heartbeat(beat, every_seconds))


def play(story: Coroutine[Any, Any, Any], seconds: float = 120) -> Any:
    """Run a story that must end."""

    async def limited() -> Any:
        async with asyncio.timeout(seconds):
            return await story

    return asyncio.run(limited())
