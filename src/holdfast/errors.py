"""Every error Holdfast raises, as one tree.

::

    HoldfastError
    │
    ├── the caller is wrong
    │   ├── InvalidArguments (TypeError)          arguments that do not fit the function; nothing was stored
    │   ├── InvalidResult (TypeError)             a result that cannot be kept, or is not what the hint says
    │   ├── PayloadTooLarge (ValueError)          arguments, a result or a signal over the limit; nothing was stored
    │   ├── InvalidSetting (ValueError)           a setting that cannot work, by its name
    │   ├── InvalidEvent (ValueError)             bytes or values that do not make an event record
    │   ├── InvalidPlan (ValueError)              a plan that cannot run; all that is wrong with it, each with its place
    │   ├── InvalidTable (ValueError)             rows that do not make a state machine
    │   ├── IdempotencyConflict (ValueError)      the key or id was used before, for something else
    │   ├── UnknownEntry (LookupError)            no job function has this name
    │   ├── UnknownJob (LookupError)              no job has this id
    │   ├── EffectConflict (ValueError)           a call has an effect already, and it is a different one
    │   ├── NotInDoubt (RuntimeError)             there is no open question about this tool
    │   ├── NotAllowed (PermissionError)          the server does not know the token, or it may not do this
    │   └── NotInsideJob (RuntimeError)           asked for outside a job
    │
    ├── TransitionRefused (RuntimeError)          a state machine said no; nothing was changed
    │   ├── InvalidTransition                     Job and ReadyState
    │   └── InvalidRunTransition                  Run
    ├── WakeRefused (RuntimeError)                the contract of Pending was not kept; nothing was recorded
    │   ├── EmptyWakeSet                          Pending without a source that could end it
    │   ├── InvalidWake                           a wake from a source nobody registered
    │   ├── WakeOutsidePending                    a wake while nothing waits for one
    │   └── MissingWake                           Pending left although no registered wake was seen
    │
    ├── inside a job
    │   ├── Permanent                             raised by users: trying again is no use
    │   ├── StepFailed                            a step or tool failed for good
    │   │   ├── InDoubt                           a tool may or may not have acted, and does not ask
    │   │   └── PlanFailed                        nodes of a plan failed, and all that could go on has ended
    │   ├── SecretUnavailable (LookupError)       this process cannot reveal a secret: cause and cure are named
    │   ├── WaitTimeout (TimeoutError)            nobody signalled in time
    │   ├── NotInJobCode (RuntimeError)           job code asked its loop for what only a step may do
    │   ├── NotRecorded (RuntimeError)            a tool was called where its call cannot be recorded
    │   ├── NotAwaited (RuntimeError)             the code called a step, tool or wait, and did not await it
    │   ├── JobStuck (RuntimeError)               the code waits for itself, and nothing can wake it
    │   └── NonDeterminism (RuntimeError)         a replay asked for something else than what was recorded
    ├── how a run ended
    │   ├── RunFailed (RuntimeError)
    │   ├── RunCanceled (RuntimeError)
    │   └── RunTimedOut (TimeoutError)
    └── the world failed
        ├── LoopDied (RuntimeError)               the event loop of an app or worker has ended, or hangs
        ├── QueueFull (RuntimeError)              the queue is as deep as it may be; nothing was stored, try later
        ├── StaleAttempt (RuntimeError)           the writer no longer holds the job; nothing was written
        └── StoreUnavailable (RuntimeError)       the database cannot be used now; cause and cure are named
            └── StoreReplaced                     its files were deleted or replaced under this process: start again

Errors are named after the condition, carry its parts as fields, and say what to do about it.

Fields travel between processes by name. A constructor keeps each of its arguments in an attribute of the same name;
`params_of` reads them as JSON values, and `from_params` builds the error again. A test checks it for every class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, get_type_hints

__all__ = [
    "EffectConflict",
    "EmptyWakeSet",
    "HoldfastError",
    "IdempotencyConflict",
    "InDoubt",
    "InvalidArguments",
    "InvalidEvent",
    "InvalidPlan",
    "InvalidResult",
    "InvalidRunTransition",
    "InvalidSetting",
    "InvalidTable",
    "InvalidTransition",
    "InvalidWake",
    "JobStuck",
    "LoopDied",
    "MissingWake",
    "NonDeterminism",
    "NotAllowed",
    "NotAwaited",
    "NotInDoubt",
    "NotInJobCode",
    "NotInsideJob",
    "NotRecorded",
    "PayloadTooLarge",
    "Permanent",
    "PlanFailed",
    "QueueFull",
    "RunCanceled",
    "RunFailed",
    "RunTimedOut",
    "SecretUnavailable",
    "StaleAttempt",
    "StepFailed",
    "StoreReplaced",
    "StoreUnavailable",
    "TransitionRefused",
    "UnknownEntry",
    "UnknownJob",
    "WaitTimeout",
    "WakeOutsidePending",
    "WakeRefused",
]


class HoldfastError(Exception):
    """Base of every error raised by Holdfast."""

    _server_text: str | None = None  # what a server wrote, where it is not what the class writes of the same fields

    def __str__(self) -> str:
        return self._own_text() if self._server_text is None else self._server_text

    def _own_text(self) -> str:
        """Return the message that the class makes of its fields."""
        return super().__str__()

    def with_server_text(self, text: str) -> Self:
        """Show `text`, which a server wrote, as the message of this error. The fields stay."""
        self._server_text = text
        return self


class InvalidTable(HoldfastError, ValueError):
    """Rows that do not make a state machine: a cell given twice, a state nothing reaches, an unknown name."""


class InvalidPlan(HoldfastError, ValueError):
    """A plan that cannot run: `problems` lists all that is wrong with it, each with its place. Nothing was started."""

    def __init__(self, plan: str, problems: list[str]) -> None:
        self.plan, self.problems = plan, problems
        super().__init__(plan, problems)

    def _own_text(self) -> str:
        count = f"{len(self.problems)} problems" if len(self.problems) > 1 else "a problem"
        return "\n".join([f"the plan {self.plan!r} has {count}, and nothing was started:", *self.problems])


class InvalidEvent(HoldfastError, ValueError):
    """Bytes or values that do not make an event record; the message names the first thing that is wrong."""


class StaleAttempt(HoldfastError, RuntimeError):
    """This attempt no longer holds the job: stop working on it. Nothing was written."""

    def __init__(self, job: str, attempt: int, current: int) -> None:
        self.job, self.attempt, self.current = job, attempt, current
        super().__init__(job, attempt, current)

    def _own_text(self) -> str:
        newest = f"its newest is {self.current}"
        return f"attempt {self.attempt} no longer holds job {self.job} ({newest}); nothing was written"


class QueueFull(HoldfastError, RuntimeError):
    """A queue holds as many jobs as it may: nothing was stored, and it is worth trying again after a while."""

    def __init__(self, queue: str, depth: int, retry_after_seconds: float) -> None:
        self.queue, self.depth, self.retry_after_seconds = queue, depth, retry_after_seconds
        super().__init__(queue, depth, retry_after_seconds)

    def _own_text(self) -> str:
        return (
            f"the queue {self.queue!r} holds {self.depth:,} jobs that wait, and takes no more:"
            f" try again in {self.retry_after_seconds:g} s, or raise its depth"
        )


class IdempotencyConflict(HoldfastError, ValueError):
    """The key was used before, with other arguments: use another key, or the same arguments."""

    def __init__(self, key: str, job: str) -> None:
        self.key, self.job = key, job
        super().__init__(key, job)

    def _own_text(self) -> str:
        return f"the key {self.key!r} belongs to job {self.job}, which was started with something else"


class _OfCall(HoldfastError):
    """Something about the call `node` of the job `job`."""

    def __init__(self, job: str, node: str) -> None:
        self.job, self.node = job, node
        super().__init__(job, node)


class EffectConflict(_OfCall, ValueError):
    """A call has an effect already, and this is a different one; the first stands (E7)."""

    def _own_text(self) -> str:
        return f"{self.node} of job {self.job} has an effect already, and this is a different one: the first stands"


class NotInDoubt(_OfCall, RuntimeError):
    """The job does not wait for an answer about this tool; look at its events for what it waits for."""

    def _own_text(self) -> str:
        return f"job {self.job} does not ask about {self.node!r}: there is nothing to resolve"


class NotAllowed(HoldfastError, PermissionError):
    """A server knows no such token, or the token may not do this: ask for one with the scope that the message names."""


class UnknownJob(HoldfastError, LookupError):
    """No job has this id: check it, and which database you look at."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(job)

    def _own_text(self) -> str:
        return f"no job has the id {self.job!r}"


class StoreUnavailable(HoldfastError, RuntimeError):
    """The database cannot be used now. Nothing of the refused batch was written; the engine goes on when it can be."""


class StoreReplaced(StoreUnavailable):
    """A file of the database was deleted or replaced while this process had it open: stop, and start again.

    What this process has written since then is in a file that no other process reads. Nothing more is written. `file`
    is the file, `happened` is ``deleted`` or ``replaced``.
    """

    def __init__(self, file: str, happened: str) -> None:
        self.file, self.happened = file, happened
        super().__init__(file, happened)

    def _own_text(self) -> str:
        return (
            f"{self.file} was {self.happened} while this process had it open, so nothing more is written: stop every"
            " process that uses the database, put back the files you want to keep, and start again"
        )


class LoopDied(HoldfastError, RuntimeError):
    """The event loop of an app or a worker has ended, or hangs: nothing that was asked of it will be answered.

    A worker whose loop has died has given its leases up, so that other workers take its jobs. Close the app, or start
    the process again.
    """


class NotInsideJob(HoldfastError, RuntimeError):
    """This can be asked for inside a job only: call it from a function marked with ``@app.job``."""

    def _own_text(self) -> str:
        return "this works inside a job only: call it from a function marked with @app.job, while a worker runs it"


class _Unfit(HoldfastError, TypeError):
    """What belongs to a function of this name is not fit for it, for this reason."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(name, reason)

    def _own_text(self) -> str:
        return f"{self.name}: {self.reason}"


class InvalidArguments(_Unfit):
    """The arguments do not fit the function, or cannot be kept; nothing was stored."""


class InvalidResult(_Unfit):
    """What the function returned cannot be kept, or is not what its type hint says."""

    def _own_text(self) -> str:
        return f"the result of {self.name} cannot be kept: {self.reason}"


class InvalidSetting(HoldfastError, ValueError):
    """A setting that cannot work: a field of `Config`, an environment variable, or a URL; the message names it."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        self.name, self.value, self.reason = name, value, reason
        super().__init__(name, value, reason)

    def _own_text(self) -> str:
        return f"{self.name}={self.value!r}: {self.reason}"


class PayloadTooLarge(HoldfastError, ValueError):
    """`what` has `size` bytes of JSON, and the settings allow `limit`; nothing of it was stored."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(what, size, limit)

    def _own_text(self) -> str:
        return (
            f"{self.what}: {self.size:,} bytes of JSON, and {self.limit:,} are allowed: keep the data elsewhere and "
            "pass a reference to it, or raise payload_bytes_max (HOLDFAST_PAYLOAD_BYTES_MAX)"
        )


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

    def _own_text(self) -> str:
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

    def _own_text(self) -> str:
        return "Pending needs at least one wake source (io_ready, timer, config_reload); none was named"


class InvalidWake(WakeRefused):
    """The wake came from a source that nothing has registered (`registered` lists what is), or from none at all."""

    def __init__(self, source: str, registered: frozenset[str] = frozenset()) -> None:
        self.source, self.registered = source, registered
        super().__init__(source, registered)

    def _own_text(self) -> str:
        if not self.registered:
            return f"{self.source!s} is no wake source; there are io_ready, timer and config_reload"
        names = ", ".join(sorted(self.registered))
        return f"wake from {self.source!s} refused: registered is {names}; watch the source before you wait on it"


class WakeOutsidePending(WakeRefused):
    """A wake came while nothing is Pending and nobody is about to be."""

    def __init__(self, source: str, state: str) -> None:
        self.source, self.state = source, state
        super().__init__(source, state)

    def _own_text(self) -> str:
        return f"wake from {self.source!s} refused: the state is {self.state!s}; the next poll sees what changed"


class MissingWake(WakeRefused):
    """Pending cannot be left without a wake: readiness that nobody announced would be silent."""

    def __init__(self, target: str, registered: frozenset[str]) -> None:
        self.target, self.registered = target, registered
        super().__init__(target, registered)

    def _own_text(self) -> str:
        names = ", ".join(sorted(self.registered))
        return f"pending cannot become {self.target!s}: no wake from {names} was seen; call wake() before the poll"


class Permanent(HoldfastError):
    """Raise it in a step, tool or job to say: trying again is no use."""


class StepFailed(HoldfastError):
    """A step or tool has failed for good. The job's code may catch it; a replay raises it again, the same.

    `step` is its name, `kind` the name of the exception's class, as text, for errors are kept as data and never
    rebuilt, and `reason` its message; `node` is the call's identity.
    """

    def __init__(self, step: str, kind: str, reason: str, node: str = "") -> None:
        self.step, self.kind, self.reason, self.node = step, kind, reason, node
        super().__init__(step, kind, reason)

    def _own_text(self) -> str:
        return f"{self.step} failed: {self.kind}: {self.reason}"


class InDoubt(StepFailed):
    """A tool was started and nobody knows whether it acted; by its policy the job does not ask but fails."""


class PlanFailed(StepFailed):
    """Nodes of a plan have failed; `reason` lists them all. What did not depend on them was done, or not begun."""


class SecretUnavailable(HoldfastError, LookupError):
    """This process cannot reveal a secret: it lacks the variable or the codec, or the codec cannot open it."""


class WaitTimeout(HoldfastError, TimeoutError):
    """Nobody signalled in time."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)

    def _own_text(self) -> str:
        return f"no signal {self.key!r} came in time"


class NotInJobCode(HoldfastError, RuntimeError):
    """Job code asked its event loop for something that a replay could not repeat. It names what to do instead."""

    def __init__(self, what: str, cure: str) -> None:
        self.what, self.cure = what, cure
        super().__init__(what, cure)

    def _own_text(self) -> str:
        return f"the code of a job cannot use {self.what}: {self.cure}"


class NotRecorded(HoldfastError, RuntimeError):
    """A tool was called where its call cannot be recorded: inside a step, or in a thread that no job started (E15)."""

    def __init__(self, name: str, where: str) -> None:
        self.name, self.where = name, where
        super().__init__(name, where)

    def _own_text(self) -> str:
        return (
            f"the tool {self.name} was called {self.where}, where the call cannot be recorded: "
            f"call it in the code of the job, use asyncio.to_thread for a thread, or {self.name}.function(…) "
            "if it is part of what you do there"
        )


class NotAwaited(HoldfastError, RuntimeError):
    """The code called steps, tools, waits or jobs and did not await them, so that they never ran."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        super().__init__(calls)

    def _own_text(self) -> str:
        what = ", ".join(f"{name}(…)" for name in self.calls)
        return f"{what} was called and not awaited, so it did not run: write `await` before the call"


class JobStuck(HoldfastError, RuntimeError):
    """Every task of the job waits for another, and nothing outside can wake one."""

    def __init__(self, tasks: list[str]) -> None:
        self.tasks = tasks
        super().__init__(tasks)

    def _own_text(self) -> str:
        return (
            f"the job can never go on: {'; '.join(self.tasks)}. Each of its tasks waits for another task, a lock or a "
            "queue, and none for a step, a signal or a time"
        )


class NonDeterminism(HoldfastError, RuntimeError):
    """A replay asked for something else than what was recorded. See both sides, and how to mend it."""

    def __init__(self, asked: str, recorded: list[str]) -> None:
        self.asked, self.recorded = asked, recorded
        super().__init__(asked, recorded)

    def _own_text(self) -> str:
        return (
            f"the code now asks for {self.asked}, but recorded and not asked for again: {', '.join(self.recorded)}. "
            "A job's code must ask for the same calls each time it runs: put what changes (time, random numbers, "
            "outside data) into steps, or give the call a key of its own, or finish old jobs with the old code"
        )


class RunFailed(HoldfastError, RuntimeError):
    """The run has failed; the error of its record says why."""


class RunCanceled(HoldfastError, RuntimeError):
    """The run was canceled."""


class RunTimedOut(HoldfastError, TimeoutError):
    """The run's deadline passed."""


class UnknownEntry(HoldfastError, LookupError):
    """No job of this app has that name."""

    def __init__(self, name: str, known: list[str]) -> None:
        self.name, self.known = name, known
        super().__init__(name, known)

    def _own_text(self) -> str:
        return f"there is no job {self.name!r}; there are: {', '.join(sorted(self.known)) or 'none'}"


# Functions and not methods: a user's subclass of `Permanent` may have a `code` or `params` of its own.


def code_of(kind: type[HoldfastError]) -> str:
    """Return the name of an error's class for programs: ``unknown_job`` for `UnknownJob`."""
    name = kind.__name__
    return name[0].lower() + "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name[1:])


def params_of(error: HoldfastError) -> dict[str, Any]:
    """Return the constructor's arguments by name, as JSON values. An error that is text alone has none."""
    import msgspec  # noqa: PLC0415 - the command line imports the errors, and starts without it

    params = {name: getattr(error, name) for name in _fields(type(error))}
    plain: dict[str, Any] = msgspec.to_builtins(params, enc_hook=str)
    return plain


def from_params(code: str, params: Mapping[str, Any], message: str | None = None) -> HoldfastError | None:
    """Build an error again from its code and params.

    Args:
        code: as `code_of` gives it.
        params: as `params_of` gives them; names that the class does not know are left out.
        message: its text as the sender has it; None is the text that the class makes of its fields.

    Returns:
        The error, or None if no class has this code, or the params are not those of its constructor.
    """
    import msgspec  # noqa: PLC0415 - as above

    kind = _CLASSES.get(code)
    if kind is None:
        return None
    fields = _fields(kind)
    try:
        error = kind(**{name: msgspec.convert(params[name], fields[name]) for name in fields if name in params})
    except (TypeError, msgspec.ValidationError):  # a field is missing, or is of another type
        return None
    if message is None or str(error) == message:
        return error
    return error.with_server_text(message) if fields else kind(message)


def _fields(kind: type[HoldfastError]) -> dict[str, Any]:
    """Return the names and types of the constructor's arguments."""
    hints = get_type_hints(kind.__init__)
    hints.pop("return", None)
    return hints


_CLASSES: dict[str, type[HoldfastError]] = {code_of(globals()[name]): globals()[name] for name in __all__}
