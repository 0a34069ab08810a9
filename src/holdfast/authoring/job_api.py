"""What a job's code may ask for besides calling steps: waits, sleep, recorded values, its own name to the outside.

In an ``async`` job, `wait_for`, `sleep`, `gather` and `map` are awaited. In a plain job `wait_for`, `sleep` and `map`
just return; `gather` is not for it, for its calls are made one after the other as they are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, NoReturn, cast

from holdfast.authoring.conductor import conductor, current, external
from holdfast.authoring.functions import Call
from holdfast.authoring.signature import own
from holdfast.durations import Duration, seconds
from holdfast.errors import InvalidArguments, NotInsideJob

WAIT_TYPES = ("signal", "human", "webhook")  # those that a signal ends; timers and children have calls of their own

__all__ = [
    "attempt",
    "check_cancelled",
    "continue_as",
    "external_key",
    "gather",
    "map",
    "now",
    "random",
    "sleep",
    "uuid4",
    "wait_for",
]


def wait_for(key: str, timeout: Duration | None = None, type: str = "signal") -> Any:
    """Wait until somebody signals `key`, and return what they sent. The job costs a row meanwhile, and nothing else.

    Args:
        key: what to wait for; keys that begin with ``holdfast:`` are Holdfast's own.
        timeout: how long.
        type: what it is that is waited for, as it is shown: ``signal``, ``human`` or ``webhook``.

    Raises:
        WaitTimeout: nobody did so in time.
    """
    running = current()
    if type not in WAIT_TYPES:
        raise InvalidArguments("wait_for", f"type is one of {', '.join(WAIT_TYPES)}, got {type!r}")
    wait = running.wait(own("wait_for", key), seconds(timeout) if timeout is not None else None, type)
    return wait if running.in_loop() else running.from_thread(wait)


def sleep(duration: Duration) -> Any:
    """Wait for a time, over restarts and deploys."""
    running = current()
    wait = running.sleep(seconds(duration))
    return wait if running.in_loop() else running.from_thread(wait)


def continue_as(*args: Any, **kwargs: Any) -> NoReturn:
    """End this run, and go on in a new one, of the same job with these arguments and an empty history.

    For jobs that loop without end. Each wait costs a replay of the run's history, so the history must stay short. The
    call ends the code at once, as ``return`` does, in async and plain jobs alike. It is not awaited. The new run is
    created in the transaction that ends this one. Unused signals move to it. The result of this run is that of the last
    run of the chain.

    Raises:
        InvalidArguments: the arguments do not fit the job, or it is called in a task or a thread that the job has
            started. This run goes on.
        NotInsideJob: this code does not run inside a job.
    """
    if external.get() is not None:
        raise InvalidArguments("continue_as", "call it in the job's own function, not in a step or tool")
    current().continue_as(args, kwargs)


def now() -> float:
    """Give the time in UTC epoch seconds; the same on replay."""
    return cast(float, current().value("now"))


def random() -> float:
    """Give a random number from 0 to 1; the same on replay."""
    return cast(float, current().value("random"))


def uuid4() -> str:
    """Give a random UUID as text; the same on replay."""
    return cast(str, current().value("uuid4"))


def external_key() -> str:
    """Inside a step or tool: a key that is the same over all attempts, for the other side to deduplicate by (E6)."""
    found = external.get()
    if found is None:
        raise NotInsideJob
    return found[0]


def attempt() -> int:
    """Give the number of the current attempt of this job: changes with every claim, unlike `external_key`."""
    found = external.get()
    return found[1] if found is not None else current().attempt


def check_cancelled() -> None:
    """Raise ``asyncio.CancelledError`` if the job was asked to cancel. For code that does not await for long."""
    running = conductor.get()
    if running is not None:
        running.check_cancelled()


def gather(*calls: Awaitable[Any]) -> Coroutine[Any, Any, list[Any]]:
    """Await several calls at once and give their results in order; the first failure is raised when all have ended.

    Raises:
        RuntimeError: this is a plain job, whose calls have been made one after the other when they are handed over.
    """
    running = conductor.get()
    if running is not None and not running.in_loop():
        raise RuntimeError(
            "gather is for async jobs: a plain job uses map(step, items) to call a step many times at once"
        )
    return _gather(*calls)


async def _gather(*calls: Awaitable[Any]) -> list[Any]:
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def map(step: Call[..., Any], items: Iterable[Any], limit: int | None = None) -> Any:  # noqa: A001 - the name users know
    """Call a step for each item, up to `limit` at once, and give the results in order."""
    running = current()
    mapped = _map(step, list(items), limit)
    return mapped if running.in_loop() else running.from_thread(mapped)


async def _map(step: Call[..., Any], items: list[Any], limit: int | None) -> list[Any]:
    running = current()
    slots = asyncio.Semaphore(limit or max(len(items), 1))

    async def one(item: Any) -> Any:
        async with slots:
            return await running.call(step, (item,), {})

    return await _gather(*(one(item) for item in items))
