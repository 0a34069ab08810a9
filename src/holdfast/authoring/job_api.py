"""What a job's code may ask for besides calling steps: waits, sleep, recorded values, its own name to the outside.

In an ``async`` job, `wait_for`, `sleep`, `gather` and `map` are awaited. In a plain job `wait_for`, `sleep` and `map`
just return; `gather` is not for it, for its calls are made one after the other as they are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

from holdfast.authoring.conductor import conductor, current, external
from holdfast.authoring.reports import reporter
from holdfast.authoring.signature import user_key
from holdfast.durations import LONGEST_SECONDS, Duration, seconds
from holdfast.errors import HoldfastError, InvalidArguments, NotInsideJob

if TYPE_CHECKING:
    from holdfast.authoring.functions import Call

WAIT_TYPES = ("signal", "human", "webhook")  # those that a signal ends; timers and children have calls of their own
UNITS_MAX = 16  # of one budget
UNIT_MAX = 64  # characters of a unit's name
MILLIONTHS = 1_000_000

__all__ = [
    "RetryAfter",
    "attempt",
    "check_cancelled",
    "continue_as",
    "external_key",
    "gather",
    "map",
    "now",
    "random",
    "sleep",
    "spend",
    "to_millionths",
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
    wait = running.wait(user_key("wait_for", key), seconds(timeout) if timeout is not None else None, type)
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


class RetryAfter(HoldfastError):
    """Raise it in a step or tool when the other side asks to be left alone: it is tried again after so many seconds.

    The gate that the step or tool shares with others is closed for all of them meanwhile, and no retry is used up. A
    tool that raises it says that it has not acted.
    """

    def __init__(self, seconds: float, reason: str = "") -> None:
        given: object = seconds  # what it is, nobody has checked
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given <= LONGEST_SECONDS:
            said = "it takes seconds, over 0 and a hundred years at most"
            raise InvalidArguments("RetryAfter", f"{said}, got {given!r:.60}")
        self.seconds = float(given)
        super().__init__(reason or f"asked to come back after {seconds:g} s")


def to_millionths(what: str, given: Mapping[Any, Any]) -> dict[str, int]:
    """Count amounts in millionths, or refuse them: ten times 0.1 is 1."""
    if not given or len(given) > UNITS_MAX:
        raise InvalidArguments(what, f"name from 1 to {UNITS_MAX} units, as in tokens=1200, usd=0.02")
    counted: dict[str, int] = {}
    for unit, amount in given.items():
        if not isinstance(unit, str) or not 0 < len(unit) <= UNIT_MAX or not unit.isidentifier():
            raise InvalidArguments(what, f"a unit is a name such as tokens or usd, got {unit!r:.80}")
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < 2**53 / MILLIONTHS:
            raise InvalidArguments(what, f"{unit} is a number, 0 or more and under 9e9, got {amount!r:.80}")
        counted[unit] = round(amount * MILLIONTHS)
    return counted


def spend(**given: float) -> None:
    """Say what was used, inside a job, a step or a tool: ``spend(tokens=1200, usd=0.02)``.

    It counts at once, however the step or tool ends, and if its process dies. It never raises because of the budget:
    what was used was used.

    Raises:
        NotInsideJob: nobody keeps the amount.
        InvalidArguments: an amount that is none.
    """
    running, call = reporter.get(), external.get()
    if running is None:
        raise NotInsideJob
    running.spent(call[0] if call is not None else None, to_millionths("spend", given))
