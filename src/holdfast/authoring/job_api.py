"""The functions that job code calls: waits, sleep, recorded values, keys for other systems, spending.

In an ``async`` job, await `wait_for`, `sleep`, `gather` and `map`. In a plain job, `wait_for`, `sleep` and `map` return
their result directly. `gather` is for async jobs only, because a plain job makes its calls one after the other.

`spend` counts against the budget of the run, ``options(budget={"tokens": 100_000})``. The amount is recorded with the
job, so a replay does not spend it again. A run that exceeds its budget is parked at its next call until an operator
grants more.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast, overload

from holdfast.authoring.answer_form import form_of
from holdfast.authoring.conductor import CURE, conductor, current, external
from holdfast.authoring.reports import reporter
from holdfast.authoring.signature import user_key
from holdfast.durations import LONGEST_SECONDS, Duration, seconds
from holdfast.errors import HoldfastError, InvalidArguments, NotInsideJob

if TYPE_CHECKING:
    from holdfast.authoring.functions import Call

T = TypeVar("T")

if TYPE_CHECKING:

    class Answer(Awaitable[T], Any):  # type: ignore[misc]  # - Any: a plain job uses it without await
        """The answer of `wait_for` with a form. Await it in an async job, and use it as it is in a plain job."""


WAIT_TYPES = ("signal", "human", "webhook")  # waits that a signal ends; timers and children have their own calls
UNITS_MAX = 16  # per budget
UNIT_MAX = 64  # characters per unit
MILLIONTHS = 1_000_000
MARK_MAX = 100  # characters of the mark of a change


@overload
def wait_for(key: str, timeout: Duration | None = None, type: str = "signal") -> Any: ...
@overload
def wait_for(
    key: str, timeout: Duration | None = None, type: str = "signal", *, form: builtins.type[T]
) -> Answer[T]: ...
@overload
def wait_for(key: str, timeout: Duration | None = None, type: str = "signal", *, form: Any = None) -> Any: ...


def wait_for(key: str, timeout: Duration | None = None, type: str = "signal", *, form: Any = None) -> Any:
    """Wait for the signal `key`, and return its payload. A waiting job is a row in the store, and nothing else.

    Args:
        key: the key of the signal. Keys that begin with ``holdfast:`` are reserved.
        timeout: how long to wait, such as ``"3d"`` or seconds; without it, there is no limit.
        type: the kind of wait to show to operators: ``signal``, ``human`` or ``webhook``. A person answers a ``human``
            wait: it is in the inbox.
        form: the type of the answer: a dataclass, struct, TypedDict or model. The wait is then a ``human`` wait. Each
            client checks an answer before it is stored. A wrong answer that was sent before the wait began makes the
            job ask again.

    Returns:
        The payload of the signal, as the type `form` if there is one.

    Raises:
        WaitTimeout: no signal arrived in time.
        InvalidArguments: the key, the type or the form is invalid.
        NotInsideJob: this code does not run inside a job.
    """
    running = current("wait_for")
    if type not in WAIT_TYPES:
        raise InvalidArguments("wait_for", f"type must be one of {', '.join(WAIT_TYPES)}, got {type!r}")
    if form is not None and type == "webhook":
        raise InvalidArguments("wait_for", "a wait with form= is answered by a person: leave type out")
    asked = form_of(form) if form is not None else None
    wait = running.wait(user_key("wait_for", key), seconds(timeout) if timeout is not None else None, type, asked)
    return wait if running.in_loop() else running.from_thread(wait)


def sleep(duration: Duration) -> Any:
    """Wait for a duration. The wait survives restarts and deploys, and the job uses only a database row meanwhile.

    Await it in an async job.

    Args:
        duration: seconds, a timedelta, or text such as ``"3d"`` or ``"1h30m"``.

    Raises:
        ValueError: the duration is invalid.
        NotInsideJob: this code does not run inside a job.
    """
    running = current("sleep")
    wait = running.sleep(seconds(duration))
    return wait if running.in_loop() else running.from_thread(wait)


def continue_as(*args: Any, **kwargs: Any) -> NoReturn:
    """End this run, and continue in a new run of the same job, with these arguments and an empty history.

    It is for jobs that loop without end. Each wait replays the run's history, so the history must stay short. The call
    ends the code at once, as ``return`` does, in async and plain jobs. Do not await it. The new run is created in the
    transaction that ends this one. Unused signals move to it. The result of this run is that of the last run of the
    chain.

    Raises:
        InvalidArguments: the arguments do not fit the job, or a task or thread of the job called it. This run goes on.
        NotInsideJob: this code does not run inside a job.
    """
    if external.get() is not None:
        raise InvalidArguments("continue_as", "call it in the job's own function, not in a step or tool")
    current("continue_as").continue_as(args, kwargs)


def now() -> float:
    """Return the time in UTC epoch seconds. A replay returns the same value."""
    return cast(float, current("now").value("now"))


def random() -> float:
    """Return a random number from 0 to 1. A replay returns the same value."""
    return cast(float, current("random").value("random"))


def uuid4() -> str:
    """Return a random UUID as text. A replay returns the same value."""
    return cast(str, current("uuid4").value("uuid4"))


def changed(mark: str) -> bool:
    """Return whether this run is on the new side of a change of the job's code.

    Use it where a new call would not fit the histories of running jobs::

        if changed("2026-11-fee"):
            await charge_fee(order)

    A run that had passed this place before the change stays on the old side and gets False. A run that reaches it later
    gets True. The answer is recorded once per run. It is the same wherever the run asks for this mark, and in every
    replay. A child has an answer of its own. ``holdfast changes`` says when the old side can be removed.

    Args:
        mark: the name of the change, 1 to 100 characters. Use a new name for each change.

    Raises:
        InvalidArguments: the mark is invalid.
        NotInsideJob: this code does not run inside a job.
    """
    running = current("changed")
    name: object = mark  # users may pass any type
    if not isinstance(name, str) or not 0 < len(name) <= MARK_MAX or not name.isprintable():
        raise InvalidArguments(
            "changed", f"a mark must be printable text of 1 to {MARK_MAX} characters, got {name!r:.80}"
        )
    return running.changed(name)


def external_key() -> str:
    """Return an idempotency key for the system that this step or tool calls (E6).

    The key is the same in all attempts of this call, so the other system can recognise a repeated request.

    Raises:
        NotInsideJob: this code does not run inside a step or tool.
    """
    call = external.get()
    if call is None:
        where = "outside a job" if conductor.get() is None else "in the job's own code"
        cure = "call it in a step or tool that a job has called; outside a job a step or tool has no key"
        raise NotInsideJob(f"external_key was called {where}", cure)
    return call[0]


def attempt() -> int:
    """Return the number of the job's current attempt. Unlike `external_key`, it changes with every claim.

    Raises:
        NotInsideJob: this code does not run inside a job.
    """
    call = external.get()
    return call[1] if call is not None else current("attempt").attempt


def check_cancelled() -> None:
    """Raise ``asyncio.CancelledError`` if cancellation was requested. Call it in code that rarely awaits."""
    running = conductor.get()
    if running is not None:
        running.check_cancelled()


def gather(*calls: Awaitable[Any]) -> Coroutine[Any, Any, list[Any]]:
    """Await several calls concurrently and return their results in order.

    If calls fail, the first failure is raised after all have ended.

    Raises:
        RuntimeError: this is a plain job, whose calls run one after the other before they reach `gather`.
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


def map(step: Call[..., Any], items: Iterable[Any], limit: int | None = None) -> Any:
    """Call a step for each item, concurrently, and return the results in order. Await it in an async job.

    Args:
        step: the step or tool to call.
        items: the items; each is the only argument of one call.
        limit: the number of concurrent calls; without it, all run at the same time.

    Raises:
        NotInsideJob: this code does not run inside a job.
    """
    running = current("map")
    mapped = _map(step, list(items), limit)
    return mapped if running.in_loop() else running.from_thread(mapped)


async def _map(step: Call[..., Any], items: list[Any], limit: int | None) -> list[Any]:
    running = current()
    slots = asyncio.Semaphore(limit or max(len(items), 1))

    async def call(item: Any) -> Any:
        async with slots:
            return await running.call(step, (item,), {})

    return await _gather(*(call(item) for item in items))


class RetryAfter(HoldfastError):
    """Raise this in a step or tool when the other system asks to wait. The call is retried after this many seconds.

    Meanwhile the gate of the step or tool is closed for all its callers. No retry is used up. A tool that raises this
    declares that it has not acted.

    Args:
        seconds: how long to wait, over 0.
        reason: text for people.
    """

    def __init__(self, seconds: float, reason: str = "") -> None:
        wait: object = seconds  # users may pass any type
        if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 < wait <= LONGEST_SECONDS:
            message = "seconds must be over 0 and at most a hundred years"
            raise InvalidArguments("RetryAfter", f"{message}, got {wait!r:.60}")
        self.seconds = float(wait)
        super().__init__(reason or f"retry after {seconds:g} s")


def to_millionths(what: str, amounts: Mapping[Any, Any]) -> dict[str, int]:
    """Return amounts in millionths, so that ten times 0.1 is 1, or raise `InvalidArguments`."""
    if not amounts or len(amounts) > UNITS_MAX:
        raise InvalidArguments(what, f"pass 1 to {UNITS_MAX} units, as in tokens=1200, usd=0.02")
    counted: dict[str, int] = {}
    for unit, amount in amounts.items():
        if not isinstance(unit, str) or not 0 < len(unit) <= UNIT_MAX or not unit.isidentifier():
            raise InvalidArguments(what, f"a unit must be a name such as tokens or usd, got {unit!r:.80}")
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < 2**53 / MILLIONTHS:
            raise InvalidArguments(what, f"{unit} must be a number, 0 or more and under 9e9, got {amount!r:.80}")
        counted[unit] = round(amount * MILLIONTHS)
    return counted


def spend(**amounts: float) -> None:
    """Record what a job, step or tool has used, such as ``spend(tokens=1200, usd=0.02)``.

    The amount counts at once, however the step or tool ends, even if its process dies. `spend` never raises because of
    the budget: the amount is already used.

    Args:
        amounts: amounts by unit.

    Raises:
        NotInsideJob: this code does not run inside a job.
        InvalidArguments: an amount or a unit is invalid.
    """
    running, call = reporter.get(), external.get()
    if running is None:
        raise NotInsideJob("spend was called outside a job", CURE)
    running.spent(call[0] if call is not None else None, to_millionths("spend", amounts))
