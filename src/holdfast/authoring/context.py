"""What a job's code can ask of whoever runs it. The engine's attempt answers; here is only the shape.

Code inside a job finds its conductor through a context variable, which tasks and threads started from it inherit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast.errors import NotInsideJob

if TYPE_CHECKING:
    from holdfast.authoring.functions import Call, JobFunction

__all__ = ["EXTENSION", "Conductor", "Place", "Suspended", "conductor", "current", "external", "place"]

# A value of this name, and the id of a node behind it: what was decided of that node's extension; None, or why not.
EXTENSION = "extension:"


class Suspended(BaseException):
    """Unwinds a job's code whose attempt is over: it waits, was paused, or lost its lease. Not an error; never caught.

    A BaseException, so that ``except Exception`` in a job does not swallow it. Code in ``finally`` runs, but nothing it
    asks for is done any more.
    """


class Place(NamedTuple):
    """Where in a plan a call is made: the node by which it is known, and its arguments as the plan has them.

    A call that has to wait, and will not come back in this attempt, says so with `leave`: others go on in its place.
    """

    node: str
    arguments: dict[str, Any]
    leave: Callable[[], None] | None = None


class Conductor(Protocol):
    """Runs a job's code: calls its steps, keeps its results, lets it wait."""

    job: str
    attempt: int

    async def call(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a step or a tool, or give its recorded result."""
        ...

    async def child(self, job: JobFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Start another job as a child, or find the one that was started, and wait for its result."""
        ...

    async def wait(self, key: str, timeout: float | None, wait_type: str) -> Any:  # noqa: ASYNC109 - kept over restarts, which a timeout of the loop is not
        """Wait for a signal."""
        ...

    async def sleep(self, duration: float) -> None:
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
place: ContextVar[Place | None] = ContextVar("holdfast_place", default=None)  # inside a node of a plan
external: ContextVar[tuple[str, int] | None] = ContextVar("holdfast_external", default=None)  # (key, attempt)


def current() -> Conductor:
    """Find whoever runs this job.

    Raises:
        NotInsideJob: this code does not run inside a job.
    """
    found = conductor.get()
    if found is None:
        raise NotInsideJob
    return found
