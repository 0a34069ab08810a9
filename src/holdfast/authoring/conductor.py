"""What a job's code can ask of whoever runs it. The engine's attempt answers; here is only the shape.

Code inside a job finds its conductor through a context variable, which tasks and threads started from it inherit.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeVar

from holdfast.errors import NotInsideJob

if TYPE_CHECKING:
    from holdfast.authoring.functions import Call, JobFunction

__all__ = [
    "EXTENSION",
    "Conductor",
    "Continued",
    "PlanPlace",
    "Submitter",
    "Suspended",
    "conductor",
    "current",
    "external",
    "job_thread",
    "on_worker_loop",
    "place",
    "running_code",
]

T = TypeVar("T")

# A value of this name, and the id of a node behind it: what was decided of that node's extension; None, or why not.
EXTENSION = "extension:"


class Suspended(BaseException):
    """Unwinds a job's code whose attempt is over: it waits, was paused, or lost its lease. Not an error; never caught.

    A BaseException, so that ``except Exception`` in a job does not swallow it. Code in ``finally`` runs, but nothing it
    asks for is done any more.
    """


class Continued(BaseException):
    """Ends a job's code that has called `continue_as`. Not an error; never caught.

    A BaseException, so that ``except Exception`` in a job does not swallow it. Code in ``finally`` runs, as before a
    ``return``.
    """

    def __init__(self) -> None:
        super().__init__("continue_as ends this run; let this exception through")

    @staticmethod
    def caught() -> RuntimeError:
        """Give the error of code that has caught this and gone on."""
        return RuntimeError("continue_as was called, and the code caught what it raised: let it through")

    @classmethod
    def is_all_of(cls, error: BaseException | None) -> bool:
        """Whether an error is this and nothing else; a task group wraps what its body raises."""
        if isinstance(error, BaseExceptionGroup):
            return error.split(cls)[1] is None
        return isinstance(error, cls)


class PlanPlace(NamedTuple):
    """Where in a plan a call is made: the node by which it is known, and its arguments as the plan has them.

    A call that has to wait, and will not come back in this attempt, says so with `leave`: others go on in its place.
    """

    node: str
    arguments: dict[str, Any]
    leave: Callable[[], None] | None = None


Submitter = Callable[[str], Coroutine[Any, Any, str]]  # does something under an id, so that doing it twice is once


class Conductor(Protocol):
    """Runs a job's code: calls its steps, keeps its results, lets it wait."""

    job: str
    attempt: int

    def call(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """Call a step or a tool, or give its recorded result."""
        ...

    def child(
        self, job: JobFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Start another job as a child, or find the one that was started, and wait for its result."""
        ...

    async def start_run(self, job: JobFunction[..., Any], plain: dict[str, Any], submit: Submitter) -> str:
        """Start a run that is not waited for, once: `submit` does so under an id; the id."""
        ...

    async def send_signal(self, said: dict[str, Any], send: Submitter) -> str:
        """Send a signal to another job, once: `send` does so under an id; what became of it."""
        ...

    def continue_as(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        """End this run, and have another go on with these arguments."""
        ...

    async def outside(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await something of the worker's loop, from the code's own."""
        ...

    def wait(self, key: str, timeout: float | None, wait_type: str) -> Coroutine[Any, Any, Any]:
        """Wait for a signal."""
        ...

    def sleep(self, duration: float) -> Coroutine[Any, Any, None]:
        """Wait for a time."""
        ...

    def value(self, kind: str) -> Any:
        """Give the time, a random number or a name, recorded so that a replay gives the same."""
        ...

    def recorded(self, node: str, make: Callable[[], Any]) -> Any:
        """Give a value that was recorded under this name, or make it and record it."""
        ...

    def known(self, node: str) -> Any:
        """Give a value that was recorded under this name; None if none was."""
        ...

    def known_names(self, beginning: str) -> list[str]:
        """List the names of recorded values that begin so, in the order in which they were recorded."""
        ...

    def plan(self, made: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Give the job's recorded plan; if it has none, record the one that was made, if one was."""
        ...

    def check_cancelled(self) -> None:
        """Raise if the job was asked to cancel, or its attempt is over."""
        ...

    def from_thread(self, coroutine: Any) -> Any:
        """Run something on the engine's loop and block this thread for it."""
        ...

    def in_loop(self) -> bool:
        """Whether this code runs on the engine's loop, and not in a thread of a plain function."""
        ...


conductor: ContextVar[Conductor | None] = ContextVar("holdfast_conductor", default=None)
place: ContextVar[PlanPlace | None] = ContextVar("holdfast_place", default=None)  # inside a node of a plan
external: ContextVar[tuple[str, int] | None] = ContextVar("holdfast_external", default=None)  # (key, attempt)
job_thread: ContextVar[Any] = ContextVar("holdfast_job_thread", default=None)  # the thread of a job's code that this is


running_code: weakref.WeakSet[Any] = weakref.WeakSet()  # attempts whose code runs in this process


def on_worker_loop(method: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Have an async method run on the worker's loop when the code of a job, which has a loop of its own, calls it."""

    @functools.wraps(method)
    async def bridged(*args: Any, **kwargs: Any) -> T:
        running = conductor.get()
        if running is None:
            return await method(*args, **kwargs)
        done: T = await running.outside(method(*args, **kwargs))
        return done

    return bridged


def current() -> Conductor:
    """Find whoever runs this job.

    Raises:
        NotInsideJob: this code does not run inside a job.
    """
    found = conductor.get()
    if found is None:
        raise NotInsideJob
    return found
