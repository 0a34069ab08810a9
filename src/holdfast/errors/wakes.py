"""What can go wrong between Pending and its wakes; part of the tree in `holdfast.errors`."""

from __future__ import annotations

from holdfast.errors.base import HoldfastError

__all__ = ["EmptyWakeSet", "InvalidWake", "MissingWake", "WakeOutsidePending", "WakeRefused"]


class WakeRefused(HoldfastError, RuntimeError):
    """A wake, or the end of a Pending interval, did not keep to the contract; nothing was recorded."""


class EmptyWakeSet(WakeRefused):
    """Pending names no source that may wake it, so nothing could ever end it: name at least one."""

    def __str__(self) -> str:
        return "Pending needs at least one wake source (io_ready, timer, config_reload); none was named"


class InvalidWake(WakeRefused):
    """The wake came from a source that nothing has registered (`registered` lists what is), or from none at all."""

    def __init__(self, source: str, registered: frozenset[str] = frozenset()) -> None:
        self.source, self.registered = source, registered
        super().__init__(source, registered)

    def __str__(self) -> str:
        if not self.registered:
            return f"{self.source!s} is no wake source; there are io_ready, timer and config_reload"
        names = ", ".join(sorted(self.registered))
        return f"wake from {self.source!s} refused: registered is {names}; watch the source before you wait on it"


class WakeOutsidePending(WakeRefused):
    """A wake came while nothing is Pending and nobody is about to be."""

    def __init__(self, source: str, state: str) -> None:
        self.source, self.state = source, state
        super().__init__(source, state)

    def __str__(self) -> str:
        return f"wake from {self.source!s} refused: the state is {self.state!s}; the next poll sees what changed"


class MissingWake(WakeRefused):
    """Pending cannot be left without a wake: readiness that nobody announced would be silent."""

    def __init__(self, target: str, registered: frozenset[str]) -> None:
        self.target, self.registered = target, registered
        super().__init__(target, registered)

    def __str__(self) -> str:
        names = ", ".join(sorted(self.registered))
        return f"pending cannot become {self.target!s}: no wake from {names} was seen; call wake() before the poll"
