"""The objects that ``@app.job``, ``@app.step`` and ``@app.tool`` make. They are still called as functions.

Outside a job, a call of a step or tool runs the function directly, and a call of a job is refused. Inside a job, the
conductor calls a step or tool, records its result, and returns the recorded result on replay. Another job is started as
a child, and its result awaited.

In an ``async`` job every such call is awaited, also that of a plain function, which then runs in a thread. In a plain
job every such call returns its value directly, also that of an ``async`` function.
"""

from __future__ import annotations

import difflib
import inspect
import threading
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Collection, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from holdfast.authoring.conductor import conductor, external, running_code
from holdfast.authoring.job_api import to_millionths
from holdfast.authoring.secrets import Vault
from holdfast.authoring.signature import Signature, checked_name, checked_payload
from holdfast.durations import seconds
from holdfast.errors import InvalidArguments, NotInsideJob, NotRecorded

if TYPE_CHECKING:
    from holdfast.ready import Gate

P = ParamSpec("P")
R = TypeVar("R")
H_co = TypeVar("H_co", covariant=True)

PRIORITY_MAX = 2**31 - 1
NEAR_MAX = 200  # with more known names, no similar one is suggested: comparing them takes long
ATTRIBUTES_MAX = 32  # per run
ATTRIBUTE_MAX = 255  # characters per value


class Done(msgspec.Struct, frozen=True):
    """Returned by a reconcile function: the tool has acted, with this result."""

    result: Any = None


class NotDone(msgspec.Struct, frozen=True):
    """Returned by a reconcile function: the tool has not acted, and may be called."""


class Backoff(msgspec.Struct, frozen=True):
    """When to retry a step, tool or job (E10), as in ``@app.step(retries=4, backoff=Backoff(first_seconds=0.5))``.

    Attributes:
        retries: the number of retries after the first failure; also an option of the decorators.
        first_seconds: the wait before the first retry.
        factor: how much longer each wait is than the one before.
        cap_seconds: the longest wait.
        jitter: the random share of each wait, 0.1 for plus or minus 10 %.
        only: the exceptions that are retried.
    """

    retries: int = 0
    first_seconds: float = 1.0
    factor: float = 2.0
    cap_seconds: float = 300.0
    jitter: float = 0.1
    only: tuple[type[Exception], ...] = (Exception,)

    def delay_seconds(self, failures: int, spread: float) -> float:
        """Return the wait after this many failures. `spread` is a random number from 0 to 1."""
        try:
            wait = min(self.first_seconds * self.factor ** (failures - 1), self.cap_seconds)
        except OverflowError:  # after a thousand failures a float cannot hold it
            wait = self.cap_seconds
        return wait * (1 + self.jitter * (2 * spread - 1))


class Call(Generic[P, R]):
    """A step or a tool: a function whose result is recorded when a job calls it."""

    def __init__(  # noqa: PLR0913 - the options of the decorators
        self,
        function: Callable[P, R],
        *,
        name: str,
        tool: bool,
        backoff: Backoff,
        timeout_seconds: float | None,
        on_doubt: str = "ask",
        reconcile: Callable[..., Any] | None = None,
        vault: Vault | None = None,
        gate: Gate | None = None,
        aliases: tuple[str, ...] = (),
    ) -> None:
        self._body: list[Any] = [function, inspect.iscoroutinefunction(function)]  # shared with copies by `options`
        self.name = name
        self.aliases = aliases  # its earlier names
        self.tool = tool
        self.backoff = backoff
        self.timeout_seconds = timeout_seconds or None
        self.on_doubt = on_doubt
        self.reconcile = reconcile
        self.key: str | None = None
        self.gate = gate
        self.signature = Signature(function, name, vault)
        self.__doc__ = function.__doc__
        self.__name__ = name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function: through the conductor inside a job, directly outside."""
        running = conductor.get()
        if running is None:
            if self.tool:
                _refuse_unrecorded(self.name)
            return self.function(*args, **kwargs)
        call: Any = running.call if running.in_loop() else running.call_in_thread
        return call(self, args, dict(kwargs))  # type: ignore[no-any-return]  # - typed by the function

    @property
    def function(self) -> Callable[P, R]:
        """The function itself."""
        return self._body[0]  # type: ignore[no-any-return]  # - as it was given

    @property
    def is_async(self) -> bool:
        """Whether the function is async."""
        return bool(self._body[1])

    def replace_function(self, function: Callable[..., Any], *, is_async: bool) -> None:
        """Let another function act in its place, also for calls with options."""
        self._body[:] = [function, is_async]

    def options(self, *, key: str) -> Call[P, R]:
        """Return this step or tool with an identity for its next call, in place of the hash of its arguments (E8).

        Args:
            key: the identity. Calls with the same key in one run are the same call.

        Raises:
            InvalidArguments: the key is not text, is empty, or is too long.
        """
        other: Call[P, R] = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.key = checked_name("key", key)
        return other

    def __repr__(self) -> str:
        return f"<{'tool' if self.tool else 'step'} {self.name}>"


class Options(msgspec.Struct, frozen=True):
    """Options of new runs. Times are in seconds from now. `connection` is the caller's, for its transaction."""

    key: str | None = None
    priority: int = 0
    queue: str | None = None
    deadline_seconds: float | None = None
    delay_seconds: float = 0.0
    connection: Any = None
    attributes: dict[str, Any] = {}
    budget: dict[str, int] | None = None
    group: str | None = None


class Starter(Protocol[H_co]):
    """An object that can start jobs: the app."""

    vault: Vault

    def calls_by_name(self) -> dict[str, Call[..., Any]]:
        """Return its steps and tools by name, and by their earlier names."""
        ...

    def knows(self, call: str) -> bool:
        """Return whether one of its functions has this name; a job has it after `job.` or `start.`."""
        ...

    def start(self, job: JobFunction[..., Any], *args: Any, **kwargs: Any) -> H_co:
        """Start a job, and block until it is stored."""
        ...

    def astart(self, job: JobFunction[..., Any], *args: Any, **kwargs: Any) -> Awaitable[H_co]:
        """Start a job."""
        ...


class JobFunction(Generic[P, R]):
    """A durable function. Start it with `start`, or call it inside another job to run it as a child."""

    def __init__(  # noqa: PLR0913 - the options of the decorator
        self,
        function: Callable[P, R],
        *,
        name: str,
        plugin: str,
        starter: Starter[Any],
        backoff: Backoff,
        max_attempts: int,
        queue: str,
        deadline_seconds: float | None,
        aliases: tuple[str, ...] = (),
        on_misfit: str = "ask",
        pin: bool = False,
    ) -> None:
        self.function = function
        self.name = name
        self.aliases = aliases  # its earlier names
        self.plugin = plugin
        self.backoff = backoff
        self.max_attempts = max_attempts
        self.queue = queue
        self.deadline_seconds = deadline_seconds
        self.on_misfit = on_misfit
        self.pin = pin
        options = (option.removesuffix("_seconds") for option in Options.__struct_fields__)
        self.signature = Signature(function, name, starter.vault, options)
        self.is_async = inspect.iscoroutinefunction(function)
        self.chosen = Options()
        self._starter = starter
        self.__doc__ = function.__doc__
        self.__name__ = name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the job as a child inside another job.

        Raises:
            NotInsideJob: no job makes this call, so it could not be recorded. Start a run instead.
        """
        running = conductor.get()
        if running is None:
            where = "outside a job" if external.get() is None else "inside a step or tool"
            cure = f"use {self.name}.start(…) or {self.name}.astart(…); {self.name}.function(…) calls the bare function"
            raise NotInsideJob(f"the job {self.name} was called {where}", cure)
        outcome: Any = running.child(self, args, dict(kwargs))
        return outcome if running.in_loop() else running.from_thread(outcome)  # type: ignore[no-any-return]  # - typed by the function

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Start a run of this job and return its handle. Blocks until the run is stored; see `astart`."""
        return self._starter.start(self, *args, **kwargs)

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Start a run of this job and return its handle."""
        return await self._starter.astart(self, *args, **kwargs)

    @property
    def vault(self) -> Vault:
        """How its app stores secrets."""
        return self._starter.vault

    @property
    def starter(self) -> Starter[Any]:
        """The app or plugin that has declared it."""
        return self._starter

    @property
    def timed(self) -> bool:
        """Whether its runs have a delay or a deadline, which count from their start."""
        return bool(self.chosen.delay_seconds or self.chosen.deadline_seconds or self.deadline_seconds)

    def recorded_plan(self) -> dict[str, Any] | None:
        """Return the plan that is recorded with a new run; None for a job written as code."""
        return None

    def with_options(self, chosen: Options) -> JobFunction[P, R]:
        """Return the same job with these options for the runs started from it."""
        other: JobFunction[P, R] = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.chosen = chosen
        return other

    def options(self, **chosen: Any) -> JobFunction[P, R]:
        """Return this job with options for the runs started from it.

        Args:
            chosen: any of these options.

                - ``key``: an idempotency key. A second start with the same key returns the first run.
                - ``priority``: an integer; higher runs first.
                - ``queue``: the queue, in place of the job's own.
                - ``deadline``: how long a run may take, such as ``"1h"``.
                - ``delay``: how long to wait before a run may start.
                - ``budget``: what a run may spend before it is parked, such as ``{"tokens": 100_000, "usd": 2}``; see
                  `spend`.
                - ``group``: the tenant of the runs. Groups that share a queue take turns.
                - ``attributes``: names with text, numbers or flags, by which runs can be found later.
                - ``connection``: the caller's database connection. The runs start in its transaction; see `App.start`.

        Raises:
            TypeError: an option is unknown.
            InvalidArguments: the value of an option is invalid.
        """
        return self.with_options(_options(chosen))

    def __repr__(self) -> str:
        return f"<job {self.plugin}.{self.name}>"


def _refuse_unrecorded(name: str) -> None:
    """Check that a tool called as a plain function is not part of a job's work (E15).

    Raises:
        NotRecorded: it is called in a step, or in a foreign thread while jobs run in this process.
    """
    if external.get() is not None:
        raise NotRecorded(name, "inside a step or another tool")
    foreign = threading.current_thread() is not threading.main_thread() and _get_running_loop() is None
    if foreign and running_code:
        raise NotRecorded(name, "in a thread that Holdfast did not start, while jobs run in this process")


def near(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name that is closest to this one."""
    among = list(islice(known, NEAR_MAX + 1))
    matches = difflib.get_close_matches(name[:100], among, 1) if len(among) <= NEAR_MAX else []
    return f"; did you mean {matches[0]!r}?" if matches else ""


def check_options(chosen: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError if an option is unknown."""
    unknown = set(chosen) - set(known)
    if unknown:
        raise TypeError(f"unknown options {', '.join(sorted(unknown))}; valid options are {', '.join(sorted(known))}")


def _options(chosen: dict[str, Any]) -> Options:
    check_options(chosen, {name.removesuffix("_seconds") for name in Options.__struct_fields__})
    deadline = chosen.get("deadline")
    for name in ("key", "queue", "group"):
        if chosen.get(name) is not None:
            checked_name(name, chosen[name])
    priority = chosen.get("priority", 0)
    if type(priority) is not int or not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        raise InvalidArguments("priority", f"must be an integer (higher runs first), got {priority!r}")
    return Options(
        key=chosen.get("key"),
        priority=priority,
        queue=chosen.get("queue"),
        deadline_seconds=seconds(deadline) if deadline is not None else None,
        delay_seconds=seconds(chosen.get("delay", 0)),
        connection=chosen.get("connection"),
        attributes=_attributes(chosen.get("attributes") or {}),
        budget=_budget(chosen.get("budget")),
        group=chosen.get("group"),
    )


def _attributes(attributes: Any) -> dict[str, Any]:
    if not isinstance(attributes, dict) or len(attributes) > ATTRIBUTES_MAX:
        raise InvalidArguments(
            "attributes", f"must be a dict of at most {ATTRIBUTES_MAX} names, got {attributes!r:.80}"
        )
    for name, value in attributes.items():
        checked_name("attributes", name)
        text = str(value)
        if not isinstance(value, (str, int, float)) or "\0" in text or len(text) > ATTRIBUTE_MAX:
            message = f"{name} must be text without NUL of at most {ATTRIBUTE_MAX} characters, a number or a boolean"
            message = f"{message}, got {value!r:.80}"
            raise InvalidArguments("attributes", message)
    kept: dict[str, Any] = checked_payload("attributes", attributes)
    return kept


def _budget(budget: Any) -> dict[str, int] | None:
    if budget is None:
        return None
    if not isinstance(budget, dict):
        raise InvalidArguments("budget", f'must be a dict such as {{"tokens": 100_000, "usd": 2}}, got {budget!r:.80}')
    return to_millionths("budget", budget)
