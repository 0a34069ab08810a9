"""The decorators of an app or plugin, and the registry of what they declare. A second declaration of a name is refused.

A plugin may include others. Its workers then also run their jobs, including those declared later. Two different jobs
with the same plugin and name are refused, and nothing is included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import isasyncgenfunction, isgeneratorfunction, ismethod, signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

import msgspec

from holdfast.authoring.functions import Backoff, Call, JobFunction, Starter, near
from holdfast.authoring.secrets import Codec, Vault
from holdfast.durations import Duration, seconds
from holdfast.errors import InvalidSetting, UnknownEntry

if TYPE_CHECKING:
    from holdfast.ready import Gate

P = ParamSpec("P")
R = TypeVar("R")
J = TypeVar("J", bound=JobFunction[..., Any])

ON_MISFIT = {"ask", "fail"}
ON_DOUBT = {"ask", "fail", "retry"}
_CALL = ("name", "aliases", "retries", "backoff", "timeout", "gate")
OPTIONS = {  # of each decorator
    "job": ("name", "aliases", "retries", "backoff", "queue", "deadline", "max_attempts", "on_misfit", "pin"),
    "step": _CALL,
    "tool": (*_CALL, "on_doubt", "reconcile"),
}


class Registry:
    """The jobs, steps and tools of one app or plugin."""

    def __init__(self, name: str, max_attempts: int, codec: Codec | None = None) -> None:
        if not name:
            raise InvalidSetting("name", name, "the name of an app must be text, 1 character or more")
        self.name = name
        self.vault = Vault(codec)
        self.entries: dict[tuple[str, str], JobFunction[..., Any]] = {}
        self.calls: dict[str, Call[..., Any]] = {}
        self._old_calls: dict[str, Call[..., Any]] = {}  # by alias
        self._max_attempts = max_attempts
        self.included_by: list[Registry] = []  # plugins that also serve its jobs

    @property
    def codec(self) -> Codec | None:
        """The codec that encrypts secrets; see `holdfast.Secret`. Without one, secrets can only be references."""
        return self.vault.codec

    @codec.setter
    def codec(self, codec: Codec | None) -> None:
        self.vault.codec = codec

    @property
    def env_secrets(self) -> frozenset[str]:
        """The environment variables that clients may name as secrets in JSON; none by default.

        Code that writes ``Secret.env("NAME")`` needs no entry here.
        """
        return self.vault.env_secrets

    @env_secrets.setter
    def env_secrets(self, names: Iterable[str]) -> None:
        self.vault.env_secrets = frozenset(names)

    def shared_gates(self) -> list[Gate]:
        """Return the gates of all steps and tools, each once."""
        return list({id(call.gate): call.gate for call in self.calls.values() if call.gate is not None}.values())

    def calls_by_name(self) -> dict[str, Call[..., Any]]:
        """Return the steps and tools by name, and by their earlier names."""
        return {**self._old_calls, **self.calls}

    def knows(self, call: str) -> bool:
        """Return whether a step, a tool, or after `job.` or `start.` a job has this name, or had it earlier."""
        kind, _, job = call.partition(".")
        if call in self.calls or call in self._old_calls:
            return True
        return kind in {"job", "start"} and any(name == job for _, name in self.entries)

    def entry(self, job: JobFunction[..., Any] | str) -> JobFunction[..., Any]:
        """Return a job function by name. A job function is returned unchanged.

        Args:
            job: a job function, its name or an alias of it, or ``plugin.name`` for a job of an included plugin.

        Raises:
            UnknownEntry: there is no such job.
        """
        if isinstance(job, JobFunction):
            return job
        plugin, _, name = job.partition(".")
        entry = self.entries.get((self.name, job)) or self.entries.get((plugin, name))
        if entry is None:
            names = [key for key, known in self.entries.items() if key[1] == known.name]
            known = [name if plugin == self.name else f"{plugin}.{name}" for plugin, name in names]
            raise UnknownEntry(job, known)
        return entry

    def include(self, other: Registry) -> None:
        """Also serve another plugin's jobs: workers of this one run them, and they are listed and found here.

        Jobs that `other` starts itself, with ``its_job.start()``, go to the store of `other`. Give both the same URL.

        Raises:
            ValueError: a different job has the same plugin and name, here or in a plugin that includes this
                one. Nothing was included.
        """
        if other is self or self in other.included_by:
            return
        for entry in other.entries.values():
            self._refuse_second(entry)
        other.included_by.append(self)
        for entry in other.entries.values():
            self._adopt(entry)

    def _refuse_second(self, entry: JobFunction[..., Any]) -> None:
        """Raise if a different job has this one's name or alias, here or in a plugin that includes this one."""
        for registry in self._everywhere():
            for own in (entry.name, *entry.aliases):
                other = registry.entries.get((entry.plugin, own), entry)
                if other is entry:
                    continue
                name = repr(own) if entry.plugin == registry.name else f"{entry.plugin}.{own}"
                if own in other.aliases or own in entry.aliases:
                    raise _alias_clash(registry.name, f"job {name}", own, entry, other)
                raise ValueError(f"{registry.name} already has a job {name}: give one of them another name")

    def _adopt(self, entry: JobFunction[..., Any]) -> None:
        for registry in self._everywhere():
            for name in (entry.name, *entry.aliases):
                registry.entries[entry.plugin, name] = entry

    def _everywhere(self) -> list[Registry]:
        """Return this plugin and all that include it, directly or not. Inclusion may be circular."""
        registries: list[Registry] = [self]
        for registry in registries:
            registries += [includer for includer in registry.included_by if includer not in registries]
        return registries

    @overload
    def job(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...
    @overload
    def job(
        self, *, name: str | None = None, aliases: Sequence[str] = (), retries: int = 0, backoff: Backoff | None = None,
        queue: str = "default", deadline: Duration | None = None, max_attempts: int | None = None,
        on_misfit: str = "ask", pin: bool = False,
    ) -> Callable[[Callable[P, R]], JobFunction[P, R]]: ...  # fmt: skip

    def job(self, function: Any = None, **options: Any) -> Any:
        """Declare a durable function, async or plain.

        Options of the decorator:
            name: the job's name; by default the function's.
            aliases: earlier names of the job, the oldest first. Runs that were started under one of them are its runs.
            retries: how often to run the job again after it fails.
            backoff: when to retry, see `Backoff`.
            queue: the queue of its runs.
            deadline: how long a run may take from its start.
            max_attempts: crashes after which a run is given up.
            on_misfit: if new code does not fit the history of a run, ``ask`` which code goes on, or ``fail``.
            pin: whether a run is continued only by workers of the build that first ran it.
        """
        return _decorator("job", self._job, function, options)

    @overload
    def step(self, function: Callable[P, R], /) -> Call[P, R]: ...
    @overload
    def step(
        self, *, name: str | None = None, aliases: Sequence[str] = (), retries: int = 0, backoff: Backoff | None = None,
        timeout: Duration | None = None, gate: Gate | None = None,
    ) -> Callable[[Callable[P, R]], Call[P, R]]: ...  # fmt: skip

    def step(self, function: Any = None, **options: Any) -> Any:
        """Declare a step. Its result is recorded. It may run again if a crash leaves its outcome unknown (E1).

        Options of the decorator:
            name: the step's name; by default the function's.
            aliases: earlier names of the step, the oldest first. Calls recorded under one of them are its calls.
            retries: how often to call it again after it fails.
            backoff: when to retry, see `Backoff`.
            timeout: how long one try may take.
            gate: a gate of `holdfast.ready` that each try passes.
        """
        return _decorator("step", partial(self._call, tool=False), function, options)

    @overload
    def tool(self, function: Callable[P, R], /) -> Call[P, R]: ...
    @overload
    def tool(
        self, *, name: str | None = None, aliases: Sequence[str] = (), retries: int = 0, backoff: Backoff | None = None,
        timeout: Duration | None = None, on_doubt: str = "ask", reconcile: Callable[..., Any] | None = None,
        gate: Gate | None = None,
    ) -> Callable[[Callable[P, R]], Call[P, R]]: ...  # fmt: skip

    def tool(self, function: Any = None, **options: Any) -> Any:
        """Declare a tool. It acts on the outside world, and runs at most once. In doubt, an operator decides (E5).

        Options of the decorator:
            name: the tool's name; by default the function's.
            aliases: earlier names of the tool, the oldest first. Calls recorded under one of them are its calls.
            retries: how often to call it again after it fails.
            backoff: when to retry, see `Backoff`.
            timeout: how long one try may take.
            on_doubt: if a crash leaves its outcome unknown, ``ask`` an operator, ``fail``, or ``retry``.
            reconcile: a function that finds out whether the tool has acted, and returns `Done` or `NotDone`.
            gate: a gate of `holdfast.ready` that each try passes.
        """
        return _decorator("tool", partial(self._call, tool=True), function, options)

    def _job(  # noqa: PLR0913 - one parameter for each option
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        retries: int = 0,
        backoff: Backoff | None = None,
        queue: str = "default",
        deadline: Duration | None = None,
        max_attempts: int | None = None,
        on_misfit: str = "ask",
        pin: bool = False,
    ) -> JobFunction[..., Any]:
        if on_misfit not in ON_MISFIT:
            raise ValueError(f"on_misfit must be one of {', '.join(sorted(ON_MISFIT))}, got {on_misfit!r}")
        if not isinstance(pin, bool):
            raise TypeError(f"pin must be True or False, got {pin!r}")
        entry: JobFunction[..., Any] = JobFunction(
            function,
            name=name or function.__name__,
            plugin=self.name,
            starter=cast(Starter[Any], self),  # the app or plugin can start its own jobs
            backoff=_backoff(retries, backoff),
            max_attempts=max_attempts or self._max_attempts,
            queue=queue,
            deadline_seconds=seconds(deadline) if deadline is not None else None,
            aliases=_aliases("job", name or function.__name__, aliases),
            on_misfit=on_misfit,
            pin=pin,
        )
        return self.declared(entry)

    def declared(self, entry: J) -> J:
        """Register an entry under its name."""
        self._refuse_second(entry)
        self._adopt(entry)
        return entry

    def _call(  # noqa: PLR0913 - the options of the decorators
        self,
        function: Callable[..., Any],
        *,
        tool: bool,
        name: str | None = None,
        aliases: Sequence[str] = (),
        retries: int = 0,
        backoff: Backoff | None = None,
        timeout: Duration | None = None,
        on_doubt: str = "ask",
        reconcile: Callable[..., Any] | None = None,
        gate: Gate | None = None,
    ) -> Call[..., Any]:
        if on_doubt not in ON_DOUBT:
            raise ValueError(f"on_doubt must be one of {', '.join(sorted(ON_DOUBT))}, got {on_doubt!r}")
        if gate is not None and (isinstance(gate, type) or not hasattr(gate, "poll_ready")):
            raise ValueError(f"gate must be a gate of holdfast.ready, such as ConcurrencyGate(8), got {gate!r}")
        call: Call[..., Any] = Call(
            function,
            name=name or function.__name__,
            tool=tool,
            backoff=_backoff(retries, backoff),
            timeout_seconds=seconds(timeout) if timeout is not None else None,
            on_doubt=on_doubt,
            reconcile=reconcile,
            vault=self.vault,
            gate=gate,
            aliases=_aliases("tool" if tool else "step", name or function.__name__, aliases),
        )
        if call.name in self.calls:
            raise ValueError(f"{self.name} already has a step or tool {call.name!r}: give one of them another name")
        known = self.calls_by_name()
        for own in (call.name, *call.aliases):
            if own in known:
                raise _alias_clash(self.name, f"step or tool {own!r}", own, call, known[own])
        self.calls[call.name] = call
        self._old_calls.update(dict.fromkeys(call.aliases, call))
        return call


def _aliases(kind: str, name: str, aliases: Sequence[str]) -> tuple[str, ...]:
    """Return the aliases of a function.

    Raises:
        TypeError: they are not a list of names.
        ValueError: one of them is its name, or occurs twice.
    """
    if isinstance(aliases, str) or not all(type(alias) is str and alias for alias in aliases):
        raise TypeError(f'@app.{kind}: aliases must be a list of names, such as ["old_name"], got {aliases!r:.80}')
    if name in aliases or len(set(aliases)) != len(aliases):
        raise ValueError(f"@app.{kind}: {name} has the aliases {list(aliases)}: name each earlier name once")
    return tuple(aliases)


def _alias_clash(registry: str, what: str, own: str, new: Any, other: Any) -> ValueError:
    """Return the error for an alias that is the name or the alias of another function."""
    holder, taker = (other, new) if own in new.aliases else (new, other)
    if own in new.aliases and own in other.aliases:
        cure = f"it is also an alias of {other.name!r}: only one of the two can have the recorded calls and runs"
    else:
        cure = f"it is an alias of {taker.name!r}: remove the alias, or give {holder.name!r} another name"
    return ValueError(f"{registry} already has a {what}, and {cure}")


def _decorator(kind: str, make: Callable[..., Any], function: Any, options: dict[str, Any]) -> Any:
    """Return the decorated function, or the decorator if there is no function yet.

    Raises:
        TypeError: an option is unknown, or the function cannot be called by its name with named arguments.
    """
    for option in options:
        if option not in OPTIONS[kind]:
            known = ", ".join(OPTIONS[kind])
            raise TypeError(
                f"@app.{kind} has no option {option!r}{near(option, OPTIONS[kind])}; the options are {known}"
            )

    def decorate(function: Any) -> Any:
        _check_function(kind, function, options.get("name"))
        return make(function, **options)

    return decorate if function is None else decorate(function)


def _check_function(kind: str, function: Any, name: str | None) -> None:
    shown = getattr(function, "__qualname__", repr(function))
    if not callable(function) or isinstance(function, (type, classmethod)):
        raise TypeError(f"@app.{kind} takes a function, got {shown}: write a function outside the class")
    if isgeneratorfunction(function) or isasyncgenfunction(function):
        raise TypeError(f"@app.{kind}: {shown} is a generator, whose items cannot be stored: return a list")
    if name is None and shown.endswith("<lambda>"):
        raise TypeError(f"@app.{kind}: a lambda has no name to record it under: pass name=, or write a function")
    scope = shown.rpartition(".")[0]
    first = next(iter(signature(function).parameters), "")
    if scope and not scope.endswith("<locals>") and first in {"self", "cls"} and not ismethod(function):
        raise TypeError(
            f"@app.{kind}: {shown} is a method, and {first} cannot be stored: write a function outside the class"
        )


def _backoff(retries: int, backoff: Backoff | None) -> Backoff:
    """Return when to retry, from the two options that say so.

    Raises:
        ValueError: `retries` is invalid, or both options have different numbers of retries.
    """
    if type(retries) is not int or retries < 0:
        raise ValueError(f"retries must be an integer, 0 or more, got {retries!r}")
    if backoff is None:
        return Backoff(retries=retries)
    if retries and backoff.retries not in {0, retries}:
        raise ValueError(f"retries is {retries}, but backoff has retries={backoff.retries}: give one of them")
    return msgspec.structs.replace(backoff, retries=retries) if retries else backoff
