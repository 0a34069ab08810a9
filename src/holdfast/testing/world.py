"""The outside world of a test: what tools have done to it."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.authoring.conductor import conductor, external
from holdfast.authoring.functions import Call
from holdfast.testing.virtual_loop import HoldfastTestWarning


class Act(NamedTuple):
    """One call of a tool that reached the outside."""

    tool: str
    arguments: dict[str, Any]
    key: str | None  # that the other system would get: the same in all attempts of one call


class World:
    """Records what tools do. Make a tool's stand-in with `tool`, and pass it to ``lab.replace``."""

    def __init__(self) -> None:
        self.acts: list[Act] = []

    def tool(self, fake: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Return a stand-in for a tool that records each call, and then calls `fake`.

        Args:
            fake: what the tool does, with or without async. It takes the tool's arguments. Default: return None.
        """
        return Recorded(self, fake)

    def calls(self, tool: Call[..., Any] | str) -> list[dict[str, Any]]:
        """Return the arguments of each call of a tool, in order."""
        name = tool if isinstance(tool, str) else tool.name
        return [act.arguments for act in self.acts if act.tool == name]

    def count(self, tool: Call[..., Any] | str) -> int:
        """Return how often a tool has acted."""
        return len(self.calls(tool))

    def at_most_once(self, tool: Call[..., Any] | str) -> bool:
        """Return whether no call of a tool has acted twice."""
        name = tool if isinstance(tool, str) else tool.name
        keys = Counter(act.key for act in self.acts if act.tool == name)
        return all(count == 1 for count in keys.values())

    def note(self, tool: str, arguments: dict[str, Any]) -> None:
        """Record a call of a tool."""
        call = external.get()
        if call is None and conductor.get() is not None:
            message = f"{tool} acts in the job's own code, which runs again after a crash: make it a tool"
            warnings.warn(message, HoldfastTestWarning, stacklevel=3)
        self.acts.append(Act(tool, arguments, call[0] if call is not None else None))


class Recorded:
    """A stand-in that records its calls. `lab.replace` tells it which tool it stands for."""

    def __init__(self, world: World, fake: Callable[..., Any] | None) -> None:
        self._world = world
        self._fake = fake
        self.stands_for = "tool"

    def __call__(self, **arguments: Any) -> Any:
        """Record the call, and act."""
        self._world.note(self.stands_for, arguments)
        return call_fake(self._fake, arguments) if self._fake is not None else None


def call_fake(fake: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a stand-in by the names of the arguments, or in their order if its names are others."""
    try:
        inspect.signature(fake).bind(**arguments)
    except TypeError:
        return fake(*arguments.values())
    except ValueError:  # a function without a signature
        pass
    return fake(**arguments)
