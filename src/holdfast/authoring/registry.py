"""The decorators, and what they have declared. Two of one name are refused when the second is declared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast, overload

from holdfast.authoring.functions import Backoff, Call, JobFunction, Starter
from holdfast.durations import Duration, seconds
from holdfast.errors import UnknownEntry

__all__ = ["Registry"]

P = ParamSpec("P")
R = TypeVar("R")
J = TypeVar("J", bound=JobFunction[..., Any])

ON_DOUBT = {"ask", "fail", "retry"}


class Registry:
    """The jobs, steps and tools of one plugin."""

    def __init__(self, name: str, max_attempts: int) -> None:
        self.name = name
        self.entries: dict[tuple[str, str], JobFunction[..., Any]] = {}
        self.calls: dict[str, Call[..., Any]] = {}
        self._max_attempts = max_attempts

    def entry(self, job: JobFunction[..., Any] | str) -> JobFunction[..., Any]:
        """Find a job function by itself or by name."""
        if isinstance(job, JobFunction):
            return job
        found = self.entries.get((self.name, job))
        if found is None:
            raise UnknownEntry(job, [name for _, name in self.entries])
        return found

    @overload
    def job(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...
    @overload
    def job(
        self, *, name: str | None = None, retries: int = 0, backoff: Backoff | None = None, queue: str = "default",
        deadline: Duration | None = None, max_attempts: int | None = None,
    ) -> Callable[[Callable[P, R]], JobFunction[P, R]]: ...  # fmt: skip

    def job(self, function: Any = None, **options: Any) -> Any:
        """Declare a durable function, async or plain."""
        return partial(self._job, **options) if function is None else self._job(function, **options)

    @overload
    def step(self, function: Callable[P, R], /) -> Call[P, R]: ...
    @overload
    def step(
        self, *, name: str | None = None, retries: int = 0, backoff: Backoff | None = None,
        timeout: Duration | None = None,
    ) -> Callable[[Callable[P, R]], Call[P, R]]: ...  # fmt: skip

    def step(self, function: Any = None, **options: Any) -> Any:
        """Declare a step: its result is recorded; it may run again if a crash leaves its outcome unknown (E1)."""
        make: Callable[..., Any] = partial(self._call, tool=False, **options)
        return make if function is None else make(function)

    @overload
    def tool(self, function: Callable[P, R], /) -> Call[P, R]: ...
    @overload
    def tool(
        self, *, name: str | None = None, retries: int = 0, backoff: Backoff | None = None,
        timeout: Duration | None = None, on_doubt: str = "ask", reconcile: Callable[..., Any] | None = None,
    ) -> Callable[[Callable[P, R]], Call[P, R]]: ...  # fmt: skip

    def tool(self, function: Any = None, **options: Any) -> Any:
        """Declare a tool: it acts on the outside world, and runs at most once; in doubt it asks (E5)."""
        make: Callable[..., Any] = partial(self._call, tool=True, **options)
        return make if function is None else make(function)

    def _job(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        retries: int = 0,
        backoff: Backoff | None = None,
        queue: str = "default",
        deadline: Duration | None = None,
        max_attempts: int | None = None,
    ) -> JobFunction[..., Any]:
        made: JobFunction[..., Any] = JobFunction(
            function,
            name=name or function.__name__,
            plugin=self.name,
            starter=cast(Starter[Any], self),  # whoever keeps the registry can start what is in it
            backoff=backoff or Backoff(retries=retries),
            max_attempts=max_attempts or self._max_attempts,
            queue=queue,
            deadline_seconds=seconds(deadline) if deadline is not None else None,
        )
        return self.declared(made)

    def declared(self, made: J) -> J:
        """Keep an entry under its name."""
        if (self.name, made.name) in self.entries:
            raise ValueError(f"{self.name} has a job {made.name!r} already: give one of them another name")
        self.entries[self.name, made.name] = made
        return made

    def _call(
        self,
        function: Callable[..., Any],
        *,
        tool: bool,
        name: str | None = None,
        retries: int = 0,
        backoff: Backoff | None = None,
        timeout: Duration | None = None,
        on_doubt: str = "ask",
        reconcile: Callable[..., Any] | None = None,
    ) -> Call[..., Any]:
        if on_doubt not in ON_DOUBT:
            raise ValueError(f"on_doubt is one of {', '.join(sorted(ON_DOUBT))}, got {on_doubt!r}")
        made: Call[..., Any] = Call(
            function,
            name=name or function.__name__,
            tool=tool,
            backoff=backoff or Backoff(retries=retries),
            timeout_seconds=seconds(timeout) if timeout is not None else None,
            on_doubt=on_doubt,
            reconcile=reconcile,
        )
        if made.name in self.calls:
            raise ValueError(f"{self.name} has a step or tool {made.name!r} already: give one of them another name")
        self.calls[made.name] = made
        return made
