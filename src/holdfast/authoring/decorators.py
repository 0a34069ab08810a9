"""The decorators, and what they have declared. Two of one name are refused when the second is declared.

A plugin may include others: it then serves their jobs beside its own, those that they declare later, too. Two different
jobs that would have one name, of the plugin and of the job, are refused, and nothing is included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from holdfast.authoring.functions import Backoff, Call, JobFunction, Starter
from holdfast.authoring.secrets import Codec, Vault
from holdfast.durations import Duration, seconds
from holdfast.errors import UnknownEntry

if TYPE_CHECKING:
    from holdfast.ready import Gate

__all__ = ["Registry"]

P = ParamSpec("P")
R = TypeVar("R")
J = TypeVar("J", bound=JobFunction[..., Any])

ON_DOUBT = {"ask", "fail", "retry"}


class Registry:
    """The jobs, steps and tools of one plugin."""

    def __init__(self, name: str, max_attempts: int, codec: Codec | None = None) -> None:
        self.name = name
        self.vault = Vault(codec)
        self.entries: dict[tuple[str, str], JobFunction[..., Any]] = {}
        self.calls: dict[str, Call[..., Any]] = {}
        self._max_attempts = max_attempts
        self.included_by: list[Registry] = []  # whoever serves its jobs, too

    @property
    def codec(self) -> Codec | None:
        """What encrypts secrets; see `holdfast.Secret`. None: they are kept as references alone."""
        return self.vault.codec

    @codec.setter
    def codec(self, codec: Codec | None) -> None:
        self.vault.codec = codec

    @property
    def env_secrets(self) -> frozenset[str]:
        """Environment variables that whoever starts a job from outside, with JSON, may name as secrets; none at first.

        What code says, ``Secret.env("NAME")``, needs no such leave.
        """
        return self.vault.env_secrets

    @env_secrets.setter
    def env_secrets(self, names: Iterable[str]) -> None:
        self.vault.env_secrets = frozenset(names)

    def shared_gates(self) -> list[Gate]:
        """List the gates that steps and tools share, each once."""
        return list({id(call.gate): call.gate for call in self.calls.values() if call.gate is not None}.values())

    def entry(self, job: JobFunction[..., Any] | str) -> JobFunction[..., Any]:
        """Find a job function by itself or by name; that of an included plugin by ``plugin.name``."""
        if isinstance(job, JobFunction):
            return job
        plugin, _, name = job.partition(".")
        found = self.entries.get((self.name, job)) or self.entries.get((plugin, name))
        if found is None:
            known = [name if plugin == self.name else f"{plugin}.{name}" for plugin, name in self.entries]
            raise UnknownEntry(job, known)
        return found

    def include(self, other: Registry) -> None:
        """Serve another plugin's jobs, too: workers of this one run them, and they are listed and found here.

        Jobs that `other` starts by itself, with ``its_job.start()``, are kept where `other` keeps them: give both the
        same URL.

        Raises:
            ValueError: there is a different job of the same plugin and name here, or in a plugin that includes this
                one; nothing was included.
        """
        if other is self or self in other.included_by:
            return
        for made in other.entries.values():
            self._refuse_second(made)
        other.included_by.append(self)
        for made in other.entries.values():
            self._adopt(made)

    def _refuse_second(self, made: JobFunction[..., Any]) -> None:
        """Raise if a different job has this one's name, here or wherever this plugin is served."""
        for one in self._everywhere():
            if one.entries.get((made.plugin, made.name), made) is not made:
                name = repr(made.name) if made.plugin == one.name else f"{made.plugin}.{made.name}"
                raise ValueError(f"{one.name} has a job {name} already: give one of them another name")

    def _adopt(self, made: JobFunction[..., Any]) -> None:
        for one in self._everywhere():
            one.entries[made.plugin, made.name] = made

    def _everywhere(self) -> list[Registry]:
        """This plugin and all that include it, in circles or not."""
        found: list[Registry] = [self]
        for one in found:
            found += [includer for includer in one.included_by if includer not in found]
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
        timeout: Duration | None = None, gate: Gate | None = None,
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
        gate: Gate | None = None,
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
        self._refuse_second(made)
        self._adopt(made)
        return made

    def _call(  # noqa: PLR0913 - what the decorator can say
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
        gate: Gate | None = None,
    ) -> Call[..., Any]:
        if on_doubt not in ON_DOUBT:
            raise ValueError(f"on_doubt is one of {', '.join(sorted(ON_DOUBT))}, got {on_doubt!r}")
        if gate is not None and (isinstance(gate, type) or not hasattr(gate, "poll_ready")):
            raise ValueError(f"gate is a gate of holdfast.ready, such as ConcurrencyGate(8), got {gate!r}")
        made: Call[..., Any] = Call(
            function,
            name=name or function.__name__,
            tool=tool,
            backoff=backoff or Backoff(retries=retries),
            timeout_seconds=seconds(timeout) if timeout is not None else None,
            on_doubt=on_doubt,
            reconcile=reconcile,
            vault=self.vault,
            gate=gate,
        )
        if made.name in self.calls:
            raise ValueError(f"{self.name} has a step or tool {made.name!r} already: give one of them another name")
        self.calls[made.name] = made
        return made
