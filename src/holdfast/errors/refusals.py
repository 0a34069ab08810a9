"""What a state machine, or the contract of Pending, has refused. Drawn with the others in `holdfast.errors`."""

from __future__ import annotations

from holdfast.errors.base import HoldfastError

__all__ = [
    "EmptyWakeSet",
    "InvalidRunTransition",
    "InvalidTransition",
    "InvalidWake",
    "MissingWake",
    "TransitionRefused",
    "WakeOutsidePending",
    "WakeRefused",
]


class TransitionRefused(HoldfastError, RuntimeError):
    """A state machine has no row for what was asked; nothing was changed.

    Attributes:
        machine: name of the machine, for example ``"Job"``.
        current: state it was in, or None before its first event.
        event: what it was asked to take.
        target: the state asked for, where the machine is asked for states by name (Run, ReadyState); None for Job.
        detail: the reason, and what would have been accepted.
        index: position in the stream, where a whole stream was read; else None.
        rule: number of the broken rule in the specification, where one is known.
    """

    machine: str = ""
    asks_for_states: bool = False

    def __init__(
        self,
        current: str | None,
        event: str,
        *,
        machine: str | None = None,
        target: str | None = None,
        detail: str = "",
        index: int | None = None,
        rule: str | None = None,
    ) -> None:
        self.current = current
        self.event = event
        self.machine = machine if machine is not None else type(self).machine
        self.target = event if target is None and self.asks_for_states else target
        self.detail = detail
        self.index = index
        self.rule = rule
        super().__init__(current, event)

    @property
    def state(self) -> str | None:
        """The state the machine was in: another name of `current`."""
        return self.current

    def __str__(self) -> str:
        where = f"event {self.index}: " if self.index is not None else ""
        state = "(initial)" if self.current is None else str(self.current)
        rule = f" [{self.rule}]" if self.rule else ""
        reason = f": {self.detail}" if self.detail else ""
        return f"{where}{self.machine} in {state} refuses {self.event}{rule}{reason}"

    def __reduce__(self) -> tuple[object, ...]:
        # The default would rebuild from `args` alone and lose the keyword fields on the way between processes.
        return (type(self), self.args, self.__dict__)


class InvalidTransition(TransitionRefused):
    """The Job or ReadyState machine has no row for this event in this state."""

    machine = "Job"


class InvalidRunTransition(TransitionRefused):
    """The Run machine has no way from `current` to `target`."""

    machine = "Run"
    asks_for_states = True


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
