"""The interface between job code and the engine. The engine's attempt implements it.

Job code finds its conductor through a context variable, which tasks and threads started from it inherit.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, ParamSpec, Protocol, TypeVar

from holdfast.errors import NotInsideJob

if TYPE_CHECKING:
    from holdfast.authoring.answer_form import Form
    from holdfast.authoring.functions import Call, JobFunction

P = ParamSpec("P")
T = TypeVar("T")

CURE = "call it in the code of a job, a function with @app.job, while a worker runs it"


class Suspended(BaseException):
    """Ends job code whose attempt is over: the job waits, was paused, or lost its lease. Not an error; do not catch it.

    It is a BaseException, so ``except Exception`` in a job does not swallow it. Code in ``finally`` runs, but the
    engine performs none of its calls.
    """


class Continued(BaseException):
    """Ends job code that has called `continue_as`. Not an error; do not catch it.

    It is a BaseException, so ``except Exception`` in a job does not swallow it. Code in ``finally`` runs, as before a
    ``return``.
    """

    def __init__(self) -> None:
        super().__init__("continue_as ends this run; let this exception through")

    @staticmethod
    def caught() -> RuntimeError:
        """Return the error for code that caught this exception and went on."""
        return RuntimeError("the code caught the exception of continue_as: let it through")

    @classmethod
    def is_all_of(cls, error: BaseException | None) -> bool:
        """Return whether an error is this and nothing else. A task group wraps what its body raises."""
        if isinstance(error, BaseExceptionGroup):
            return error.split(cls)[1] is None
        return isinstance(error, cls)


class PlanPlace(NamedTuple):
    """The place of a call in a plan: the node that identifies it, and its arguments as the plan has them.

    A call that must wait, and will not return in this attempt, calls `leave`, so that other calls use its slot.
    """

    node: str
    arguments: dict[str, Any]
    leave: Callable[[], None] | None = None


Submitter = Callable[[str], Coroutine[Any, Any, str]]  # acts under an id, so that repeating it has no effect


class Conductor(Protocol):
    """Runs a job's code: calls its steps, stores its results, and lets it wait."""

    job: str
    attempt: int

    def call(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """Call a step or a tool, or return its recorded result."""
        ...

    def call_in_thread(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a step or a tool as `call` does, for a thread, which has the result when this returns."""
        ...

    def child(
        self, job: JobFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Start another job as a child, or find the one that was started, and wait for its result."""
        ...

    async def start_run(self, job: JobFunction[..., Any], arguments: dict[str, Any], submit: Submitter) -> str:
        """Start a run without waiting for it, once. `submit` starts it under an id. Return the run's id."""
        ...

    async def send_signal(self, payload: dict[str, Any], send: Submitter) -> str:
        """Send a signal to another job, once. `send` sends it under an id. Return what became of it."""
        ...

    def continue_as(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        """End this run, and continue in another one with these arguments."""
        ...

    async def outside(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await a coroutine of the worker's loop from the job's own loop."""
        ...

    def wait(
        self, key: str, timeout: float | None, wait_type: str, form: Form | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Wait for a signal. With a form, return its payload as the form's type."""
        ...

    def sleep(self, duration: float) -> Coroutine[Any, Any, None]:
        """Wait for a duration."""
        ...

    def value(self, kind: str) -> Any:
        """Return the time, a random number or a UUID, recorded so that a replay returns the same."""
        ...

    def changed(self, mark: str) -> bool:
        """Return whether the run is on the new side of a change."""
        ...

    def recorded(self, node: str, make: Callable[[], Any]) -> Any:
        """Return the value recorded under this name; if there is none, call `make` and record its result."""
        ...

    def known(self, node: str) -> Any:
        """Return the value recorded under this name; None if there is none."""
        ...

    def known_names(self, beginning: str) -> list[str]:
        """Return the names of recorded values with this prefix, in the order recorded."""
        ...

    def plan(self, new_plan: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the job's recorded plan. If it has none and `made` is given, record that one."""
        ...

    def check_cancelled(self) -> None:
        """Raise if the job's cancellation was requested, or its attempt is over."""
        ...

    def from_thread(self, coroutine: Any) -> Any:
        """Run a coroutine on the job's loop and block this thread until it ends."""
        ...

    def in_loop(self) -> bool:
        """Return whether this code runs on the job's loop, not in the thread of a plain function."""
        ...


conductor: ContextVar[Conductor | None] = ContextVar("holdfast_conductor", default=None)
place: ContextVar[PlanPlace | None] = ContextVar("holdfast_place", default=None)  # set inside a node of a plan
external: ContextVar[tuple[str, int] | None] = ContextVar("holdfast_external", default=None)  # (key, attempt)
job_thread: ContextVar[Any] = ContextVar("holdfast_job_thread", default=None)  # set in threads that run job code


running_code: weakref.WeakSet[Any] = weakref.WeakSet()  # attempts whose code runs in this process


def on_worker_loop(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return an async method that runs on the worker's loop when job code, which has its own loop, calls it."""

    @functools.wraps(method)
    async def bridged(*args: P.args, **kwargs: P.kwargs) -> T:
        running = conductor.get()
        if running is None:
            return await method(*args, **kwargs)
        done: T = await running.outside(method(*args, **kwargs))
        return done

    return bridged


def current(caller: str = "this call") -> Conductor:
    """Return the conductor of the job that this code runs in. `caller` is the name of the function that needs it.

    Raises:
        NotInsideJob: this code does not run inside a job.
    """
    running = conductor.get()
    if running is None:
        where = "outside a job" if external.get() is None else "inside a step or tool"
        raise NotInsideJob(f"{caller} was called {where}", CURE)
    return running
