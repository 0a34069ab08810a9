"""What a job's code is given once and finds again: recorded values, and the plan that it follows (SPEC E9, E11)."""

from __future__ import annotations

import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.engine.bridge import later
from holdfast.engine.replay import Replay
from holdfast.engine.verdict import Written
from holdfast.machines import HistoryEvent

__all__ = ["Recording"]


class Recording(ABC):
    """Whoever has a past, and can write onto it."""

    replay: Replay
    now: Callable[[], float]

    @abstractmethod
    def goes_on(self) -> bool:
        """Whether nothing has ended the attempt yet."""

    @abstractmethod
    def record(self, *events: Written) -> None:
        """Write events with the next batch."""

    @abstractmethod
    def in_loop(self) -> bool:
        """Whether the caller runs on the engine's loop."""

    @abstractmethod
    def from_thread(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the engine's loop and block this thread for it."""

    def value(self, kind: str) -> Any:
        """Give the time, a random number or a name; on replay the same."""
        make: dict[str, Callable[[], Any]] = {
            "now": self.now,
            "random": random.random,
            "uuid4": lambda: str(uuid.uuid4()),
        }
        node = self.replay.value_node(kind)
        if self.in_loop():
            return self._value(node, make[kind])
        return self.from_thread(later(self._value, node, make[kind]))

    def _value(self, node: str, make: Callable[[], Any]) -> Any:
        """Code that is being unwound gets a value, too, but it is not recorded: the next attempt is not there yet."""
        return self.recorded(node, make) if self.goes_on() else make()

    def recorded(self, node: str, make: Callable[[], Any]) -> Any:
        """Give a value that was recorded, or make it and record it."""
        if node not in self.replay.values:
            self.replay.values[node] = make()
            self.record((HistoryEvent.VALUE_RECORDED.value, {"node": node, "value": self.replay.values[node]}))
        return self.replay.values[node]

    def plan(self, made: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Give the recorded plan; without one, record the one that was made, once and for all (E11)."""
        if self.replay.plan is None and made is not None:
            self.record((HistoryEvent.PLAN_GENERATED.value, {"plan": made}))
            self.replay.plan = made
        return self.replay.plan
