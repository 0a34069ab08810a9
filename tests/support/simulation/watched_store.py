"""The store of a simulation: the memory store, whose every commit is shown to a watch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.clock import Clock
from holdfast.store import Command, Job
from holdfast.store.limits import LimitRow
from holdfast.store.memory import MemoryStore

Watch = Callable[[int, Sequence[Command], Sequence[Any], float], None]


class WatchedStore(MemoryStore):
    """A memory store.

    Args:
        clock: the store's clock.
        watch: is called after each commit with the sender, the commands, their answers and the time.
        notify: is called with the change flags of each commit.
    """

    def __init__(self, clock: Clock, watch: Watch, notify: Callable[[int], None]) -> None:
        super().__init__(clock)
        self._watch = watch
        self.subscribe(notify)

    def commit_of(self, sender: int, batch: Sequence[Command]) -> list[Any]:
        """Commit a batch of a process, and show it to the watch."""
        answers = self.commit_blocking(batch)
        self._watch(sender, batch, answers, self._now)
        return answers

    # What the watch compares

    def rows(self) -> dict[str, Job]:
        """Return the rows of all jobs."""
        return self._jobs

    def queue_limits(self) -> dict[str, LimitRow]:
        """Return the limits of queues, by name."""
        return self._limits

    def stream(self, name: str, after: int) -> list[tuple[str, int | None, bytes, float]]:
        """Return the events of a stream after a number: type, attempt, payload and time."""
        return [(event.type, event.attempt, text, event.at) for event, text in self._events.get(name, ())[after:]]
