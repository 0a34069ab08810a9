"""The outside world of a test: what tools have done to it."""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.authoring.conductor import conductor, external
from holdfast.authoring.functions import Call
from holdfast.errors import InvalidArguments
from holdfast.testing.virtual_loop import HoldfastTestWarning


class Act:
    """One call of a tool that reached the outside.

    Attributes:
        tool: the name of the tool.
        arguments: its arguments.
        key: what the other system would get to recognise a repeat: the same in all attempts of one call.
        failed: whether it raised, so that Holdfast knows that it may be tried again.
    """

    def __init__(self, tool: str, arguments: dict[str, Any], key: str | None) -> None:
        self.tool = tool
        self.arguments = arguments
        self.key = key
        self.failed = False

    def __repr__(self) -> str:
        return f"<{self.tool} {self.arguments}>"


class World:
    """Records what tools do. Make a tool's stand-in with `tool`, and pass it to ``lab.replace``."""

    def __init__(self) -> None:
        self.acts: list[Act] = []
        self._names: set[str] = {"tool"}  # that its stand-ins stand for
        self._calls: dict[str, Call[..., Any]] = {}  # the steps and tools among them

    def tool(self, fake: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Return a stand-in for a tool that records each call, and then calls `fake`.

        Args:
            fake: what the tool does, with or without async. It takes the tool's arguments. Default: return None.

        Raises:
            InvalidArguments: it is not a function.
        """
        if fake is not None and not callable(fake):
            raise InvalidArguments("fake", f"must be a function, got {fake!r:.80}: for a value, use a lambda")
        return Recorded(self, fake)

    def calls(self, tool: Call[..., Any] | str) -> list[dict[str, Any]]:
        """Return the arguments of each call of a tool, in order."""
        name = self._known(tool)
        return [act.arguments for act in self.acts if act.tool == name]

    def count(self, tool: Call[..., Any] | str) -> int:
        """Return how often a tool has acted."""
        return len(self.calls(tool))

    def at_most_once(self, tool: Call[..., Any] | str) -> AtMostOnce:
        """Return whether no call of a tool has acted twice. The text of the answer names those that have."""
        name = self._known(tool)
        acts = [act for act in self.acts if act.tool == name and not act.failed]
        counts = Counter(act.key for act in acts)
        first = {act.key: act for act in reversed(acts)}
        return AtMostOnce(
            [
                f"{name} acted {count} times for one call, with {_shown(first[key].arguments)}: {self._why(name)}"
                for key, count in counts.items()
                if count > 1
            ]
        )

    def _why(self, name: str) -> str:
        """Return why a stand-in may act twice."""
        call = self._calls.get(name)
        if call is None:
            return "it is called by the job's own code, which runs again after a crash. Make it a tool"
        if not call.tool:
            return "it is a step, which runs again after a crash. Make it a tool if that does harm"
        if call.on_doubt == "retry":
            return "it has on_doubt='retry', so it is repeated after a crash. Remove that if it does harm"
        return "Holdfast must not do that"

    def _known(self, tool: Call[..., Any] | str) -> str:
        if not isinstance(tool, (str, Call)):
            raise InvalidArguments("tool", f"must be a step, a tool or its name, got {tool!r:.80}")
        name = tool if isinstance(tool, str) else tool.name
        if name not in self._names:
            known = ", ".join(sorted(self._names)) or "none"
            raise InvalidArguments("tool", f"this world has no stand-in for {name!r}; it has: {known}")
        return name

    def note(self, tool: str, arguments: dict[str, Any]) -> Act:
        """Record a call of a tool."""
        call = external.get()
        if call is None and conductor.get() is not None:
            message = f"{tool} acts in the job's own code, which runs again after a crash: make it a tool"
            warnings.warn(message, HoldfastTestWarning, stacklevel=3)
        self.acts.append(Act(tool, _copied(arguments), call[0] if call is not None else None))
        return self.acts[-1]

    def stands_for(self, call: Call[..., Any]) -> None:
        """Note that one of its stand-ins stands for a step or tool."""
        self._names.add(call.name)
        self._calls[call.name] = call


class AtMostOnce:
    """Whether no call of a tool has acted twice: it is true or false, and its text says which calls have.

    Attributes:
        repeats: the calls that have acted twice, in words.
    """

    def __init__(self, repeats: list[str]) -> None:
        self.repeats = repeats

    def __bool__(self) -> bool:
        return not self.repeats

    def __repr__(self) -> str:
        return "; ".join(self.repeats) or "no call has acted twice"


class Recorded:
    """A stand-in that records its calls. `lab.replace` makes one for each tool that it stands for."""

    def __init__(self, world: World, fake: Callable[..., Any] | None, name: str = "tool") -> None:
        self._world = world
        self._fake = fake
        self._name = name

    @property
    def fake(self) -> Callable[..., Any] | None:
        """What acts; None if nothing does."""
        return self._fake

    def standing_for(self, call: Call[..., Any]) -> Recorded:
        """Return the same stand-in for one step or tool."""
        self._world.stands_for(call)
        return Recorded(self._world, self._fake, call.name)

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        """Record the call, and act."""
        arguments = {**{str(number): value for number, value in enumerate(args)}, **arguments}
        act = self._world.note(self._name, arguments)
        if self._fake is None:
            return None
        try:
            outcome = call_fake(self._fake, arguments)
        except Exception:
            act.failed = True
            raise
        return self._awaited(act, outcome) if inspect.isawaitable(outcome) else outcome

    async def _awaited(self, act: Act, outcome: Awaitable[Any]) -> Any:
        try:
            return await outcome
        except Exception:
            act.failed = True
            raise


def _shown(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r:.40}" for name, value in arguments.items()) or "no arguments"


def _copied(arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return copy.deepcopy(arguments)
    except Exception:  # noqa: BLE001 - some values cannot be copied
        return dict(arguments)


def call_fake(fake: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a stand-in by the names of the arguments, or in their order if its names are others."""
    try:
        inspect.signature(fake).bind(**arguments)
    except TypeError:
        return fake(*arguments.values())
    except ValueError:  # a function without a signature
        pass
    return fake(**arguments)


def check_fake(fake: Any, call: Call[..., Any]) -> None:
    """Check that a stand-in takes the arguments of a step or tool.

    Raises:
        InvalidArguments: it is not a function, or takes others.
    """
    inner = fake.fake if isinstance(fake, Recorded) else fake
    if isinstance(fake, Recorded) and inner is None:
        return
    if not callable(inner):
        raise InvalidArguments("fake", f"must be a function, got {inner!r:.80}: for a value, use a lambda")
    if call.signature.is_open:
        return
    parameters = call.signature.parameters()
    required = [name for name, is_required in parameters.items() if is_required]
    try:
        signature = inspect.signature(inner)
    except ValueError:  # a function without a signature
        return
    for names in (list(parameters), required):  # a call may leave out what has a default
        for args, kwargs in (((), dict.fromkeys(names)), (names, {})):
            with contextlib.suppress(TypeError):
                signature.bind(*args, **kwargs)
                return
    taken = f"takes {signature}, and {call.name} is called with ({', '.join(parameters)})"
    raise InvalidArguments("fake", f"{getattr(inner, '__name__', 'it')} {taken}")
