"""All errors that Holdfast raises, as one tree.

::

    HoldfastError
    │
    ├── the caller is wrong
    │   ├── InvalidArguments (TypeError)          arguments that do not fit the function; nothing was stored
    │   ├── InvalidResult (TypeError)             a result that cannot be stored, or does not fit its type hint
    │   ├── PayloadTooLarge (ValueError)          arguments, a result or a signal over the limit; nothing was stored
    │   ├── InvalidSetting (ValueError)           a setting with an invalid value; the message names it
    │   ├── InvalidEvent (ValueError)             bytes or values that are not a valid event record
    │   ├── InvalidPlan (ValueError)              a plan that cannot run; lists all its problems, each with its place
    │   ├── InvalidTable (ValueError)             rows that are not a valid state machine
    │   ├── IdempotencyConflict (ValueError)      the key or id was used before with other arguments
    │   ├── IdempotencyKeyReused (ValueError)     the key of the request was used before for another request
    │   ├── UnknownEntry (LookupError)            no job function has this name
    │   ├── UnknownJob (LookupError)              no job has this id
    │   ├── UnknownBuild (LookupError)            nothing in the store needs or has this build of the code
    │   ├── UnknownSchedule (LookupError)         no schedule has this name
    │   ├── ScheduleExists (ValueError)           another schedule has this name; nothing was stored
    │   ├── EffectConflict (ValueError)           the call already has a different effect
    │   ├── NotInDoubt (RuntimeError)             the job does not wait for an answer about this tool
    │   ├── QuestionClosed (RuntimeError)         the run no longer asks this question; nothing was stored
    │   ├── NotAllowed (PermissionError)          the token is unknown, or lacks the scope
    │   └── NotInsideJob (RuntimeError)           the call works only inside a job, step or tool
    │
    ├── TransitionRefused (RuntimeError)          a state machine refused; nothing was changed
    │   ├── InvalidTransition                     Job and ReadyState
    │   └── InvalidRunTransition                  Run
    ├── WakeRefused (RuntimeError)                a caller broke the contract of Pending; nothing was recorded
    │   ├── EmptyWakeSet                          Pending without a source that could end it
    │   ├── InvalidWake                           a wake from a source that is not registered
    │   ├── WakeOutsidePending                    a wake while nothing is Pending
    │   └── MissingWake                           Pending ended without a registered wake
    │
    ├── inside a job
    │   ├── Permanent                             raised by user code: a retry would not help
    │   ├── StepFailed                            a step or tool failed permanently
    │   │   ├── InDoubt                           a tool may have acted, and its policy is to fail
    │   │   └── PlanFailed                        nodes of a plan failed, and all that could still run have ended
    │   ├── SecretUnavailable (LookupError)       this process cannot reveal a secret; the message says what to do
    │   ├── WaitTimeout (TimeoutError)            no signal arrived in time
    │   ├── NotInJobCode (RuntimeError)           job code used its event loop for what only a step may do
    │   ├── NotRecorded (RuntimeError)            a tool was called where its call cannot be recorded
    │   ├── NotAwaited (RuntimeError)             the code called a step, tool or wait without await
    │   ├── JobStuck (RuntimeError)               the tasks of the job wait for each other; nothing can wake them
    │   └── NonDeterminism (RuntimeError)         a replay made other calls than the recorded ones
    ├── how a run ended
    │   ├── RunFailed (RuntimeError)
    │   ├── RunCanceled (RuntimeError)
    │   └── RunTimedOut (TimeoutError)
    └── the world failed
        ├── LoopDied (RuntimeError)               the event loop of an app or worker has ended, or hangs
        ├── LimitsChanged (RuntimeError)          the limits of the queue have changed since they were read
        ├── QueueFull (RuntimeError)              the queue has reached its depth limit; nothing was stored, try later
        ├── StaleAttempt (RuntimeError)           the writer no longer holds the job; nothing was written
        └── StoreUnavailable (RuntimeError)       the database cannot be used now; the message says what to do
            └── StoreReplaced                     a database file was deleted or replaced; restart the process

Each error is named after its condition. It has the details as fields, and its message says what to do.

Fields travel between processes by name. A constructor stores each argument in an attribute of the same name.
`params_of` returns them as JSON values, and `from_params` builds the error again. A test checks this for every class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, get_type_hints

__all__ = [
    "EffectConflict", "EmptyWakeSet", "HoldfastError", "IdempotencyConflict", "IdempotencyKeyReused", "InDoubt",
    "InvalidArguments", "InvalidEvent", "InvalidPlan", "InvalidResult", "InvalidRunTransition", "InvalidSetting",
    "InvalidTable", "InvalidTransition", "InvalidWake", "JobStuck", "LimitsChanged", "LoopDied", "MissingWake",
    "NonDeterminism", "NotAllowed", "NotAwaited", "NotInDoubt", "NotInJobCode", "NotInsideJob", "NotRecorded",
    "PayloadTooLarge", "Permanent", "PlanFailed", "QuestionClosed", "QueueFull", "RunCanceled", "RunFailed",
    "RunTimedOut", "ScheduleExists", "SecretUnavailable", "StaleAttempt", "StepFailed", "StoreReplaced",
    "StoreUnavailable", "TransitionRefused", "UnknownBuild", "UnknownEntry", "UnknownJob", "UnknownSchedule",
    "WaitTimeout", "WakeOutsidePending", "WakeRefused",
]  # fmt: skip


def shown_url(text: str) -> str:
    """Return a URL, or a text with URLs in it, without passwords. Every URL that is printed or raised passes here."""
    words = text.split(" ")
    return " ".join(_without_password(word) if "://" in word else word for word in words)


def _without_password(word: str) -> str:
    scheme, _, rest = word.partition("://")
    user_info, at, place = rest.rpartition("@")  # up to the last @: a pasted password may have one
    user, colon, _ = user_info.partition(":")
    in_path = rest.startswith("/")  # a file: it has no user
    shown = f"{scheme}://{user}:…@{place}" if at and colon and not in_path else word
    for name in ("password=", "sslpassword="):
        for mark in "?&":
            before, found, after = shown.partition(mark + name)
            if found:
                shown = f"{before}{found}…{after[len(after.partition('&')[0]) :]}"
    return shown


class HoldfastError(Exception):
    """Base class of all errors that Holdfast raises."""

    _server_text: str | None = None  # message of a server, if it differs from the message of this class

    def __str__(self) -> str:
        return self._own_text() if self._server_text is None else self._server_text

    def _own_text(self) -> str:
        """Return the message that the class builds from its fields."""
        return super().__str__()

    def with_server_text(self, text: str) -> Self:
        """Use `text` from a server as the message of this error, and return the error. The fields stay."""
        self._server_text = text
        return self


class InvalidTable(HoldfastError, ValueError):
    """The rows are not a valid state machine: a cell occurs twice, a state is unreachable, or a name is unknown."""


class InvalidPlan(HoldfastError, ValueError):
    """The plan cannot run, and nothing was started. `problems` lists all its problems, each with its place."""

    def __init__(self, plan: str, problems: list[str]) -> None:
        self.plan, self.problems = plan, problems
        super().__init__(plan, problems)

    def _own_text(self) -> str:
        count = f"{len(self.problems)} problems" if len(self.problems) > 1 else "a problem"
        return "\n".join([f"the plan {self.plan!r} has {count}, and nothing was started:", *self.problems])


class InvalidEvent(HoldfastError, ValueError):
    """The bytes or values are not a valid event record. The message names the first problem."""


class StaleAttempt(HoldfastError, RuntimeError):
    """This attempt no longer holds the job, and nothing was written. The worker must stop working on it."""

    def __init__(self, job: str, attempt: int, current: int) -> None:
        self.job, self.attempt, self.current = job, attempt, current
        super().__init__(job, attempt, current)

    def _own_text(self) -> str:
        newest = f"its newest is {self.current}"
        return f"attempt {self.attempt} no longer holds job {self.job} ({newest}); nothing was written"


class QueueFull(HoldfastError, RuntimeError):
    """The queue has reached its depth limit, and nothing was stored. Try again after `retry_after_seconds`."""

    def __init__(self, queue: str, depth: int, retry_after_seconds: float) -> None:
        self.queue, self.depth, self.retry_after_seconds = queue, depth, retry_after_seconds
        super().__init__(queue, depth, retry_after_seconds)

    def _own_text(self) -> str:
        return (
            f"the queue {self.queue!r} has {self.depth:,} waiting jobs and takes no more:"
            f" try again in {self.retry_after_seconds:g} s, or raise its depth"
        )


class LimitsChanged(HoldfastError, RuntimeError):
    """The limits of the queue have changed since the caller read them, and nothing was stored."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(queue)

    def _own_text(self) -> str:
        return f"the limits of the queue {self.queue!r} have changed since you read them: read them again"


class IdempotencyConflict(HoldfastError, ValueError):
    """The key was used before with other arguments. Use another key, or the same arguments."""

    def __init__(self, key: str, job: str) -> None:
        self.key, self.job = key, job
        super().__init__(key, job)

    def _own_text(self) -> str:
        return f"the key {self.key!r} belongs to job {self.job}, which was started with other arguments"


class IdempotencyKeyReused(HoldfastError, ValueError):
    """The key of the request was used before for another request. Use another key. Nothing was done."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)

    def _own_text(self) -> str:
        return f"the key {self.key!r} was used for another request: use a new key for each request"


class _OfCall(HoldfastError):
    """Base of errors about the call `node` of the job `job`."""

    def __init__(self, job: str, node: str) -> None:
        self.job, self.node = job, node
        super().__init__(job, node)


class EffectConflict(_OfCall, ValueError):
    """The call already has a different effect. The first effect stays (E7)."""

    def _own_text(self) -> str:
        return f"{self.node} of job {self.job} already has a different effect, which stays"


class NotInDoubt(_OfCall, RuntimeError):
    """The job does not wait for an answer about this tool. Its events show what it waits for."""

    def _own_text(self) -> str:
        return f"job {self.job} does not ask about {self.node!r}, so there is nothing to resolve"


class QuestionClosed(HoldfastError, RuntimeError):
    """The answer names a question that its run no longer asks. Nothing was stored. The inbox lists open questions.

    `node` is the place of the wait in `job`. `answered_by` is who has answered it, if that is known.
    """

    def __init__(self, job: str, node: str, answered_by: str | None = None) -> None:
        self.job, self.node, self.answered_by = job, node, answered_by
        super().__init__(job, node, answered_by)

    def _own_text(self) -> str:
        if self.node == "deploy":  # no node is known: the job has not asked this
            asks = "does not ask which code goes on, so there is nothing to answer"
            return f"job {self.job} {asks}: `holdfast explain` says what it does"
        why = f"was answered by {self.answered_by}" if self.answered_by is not None else "is no longer open"
        return f"the question {self.node!r} of job {self.job} {why}, so this answer was not stored"


class NotAllowed(HoldfastError, PermissionError):
    """The server does not know the token, or the token lacks the scope. Use a token with the scope in the message."""


class UnknownJob(HoldfastError, LookupError):
    """No job has this id. Check the id, and which database you use."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(job)

    def _own_text(self) -> str:
        return f"no job has the id {self.job!r}: check the id and the store; `holdfast runs` lists runs"


class UnknownSchedule(HoldfastError, LookupError):
    """No schedule has this name. Check the name, and which database you use."""

    def __init__(self, schedule: str) -> None:
        self.schedule = schedule
        super().__init__(schedule)

    def _own_text(self) -> str:
        return f"no schedule has the name {self.schedule!r}: `holdfast schedules list` lists schedules"


class ScheduleExists(HoldfastError, ValueError):
    """Another schedule has this name, and nothing was stored. Choose another name, or change the existing one."""

    def __init__(self, schedule: str) -> None:
        self.schedule = schedule
        super().__init__(schedule)

    def _own_text(self) -> str:
        return f"the schedule {self.schedule!r} exists: choose another name, change it, or delete it first"


class StoreUnavailable(HoldfastError, RuntimeError):
    """The database cannot be used now. Nothing of the refused batch was written. The engine continues when it can."""


class StoreReplaced(StoreUnavailable):
    """A database file was deleted or replaced while this process had it open. Stop the process and start it again.

    No other process reads what this process has written since then. This process writes nothing more. `file` is the
    path of the file, and `happened` is ``deleted`` or ``replaced``.
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
    """The event loop of an app or a worker has ended or hangs, so pending calls will not return.

    A worker whose loop has died has given up its leases, so that other workers take its jobs. Close the app, or
    restart the process.
    """


class NotInsideJob(HoldfastError, RuntimeError):
    """A function was called where it does not work: outside a job, step or tool. `cure` says what to do instead."""

    def __init__(self, what: str, cure: str) -> None:
        self.what, self.cure = what, cure
        super().__init__(what, cure)

    def _own_text(self) -> str:
        return f"{self.what}: {self.cure}"


class _Unfit(HoldfastError, TypeError):
    """Base of errors about a value of the function `name`. `reason` says why the value does not fit."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(name, reason)

    def _own_text(self) -> str:
        return f"{self.name}: {self.reason}"


class InvalidArguments(_Unfit):
    """The arguments do not fit the function or cannot be stored. Nothing was stored."""


class InvalidResult(_Unfit):
    """The result of the function cannot be stored, or does not fit its type hint."""

    def _own_text(self) -> str:
        return f"the result of {self.name} cannot be stored: {self.reason}"


class InvalidSetting(HoldfastError, ValueError):
    """A field of `Config`, an environment variable or a URL has an invalid value. The message names it."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        value, reason = shown_url(value) if isinstance(value, str) else value, shown_url(reason)
        self.name, self.value, self.reason = name, value, reason
        super().__init__(name, value, reason)

    def _own_text(self) -> str:
        return f"{self.name}={self.value!r}: {self.reason}"


class PayloadTooLarge(HoldfastError, ValueError):
    """`what` has `size` bytes, but the setting `option` allows `limit`. Nothing of it was stored."""

    def __init__(self, what: str, size: int, limit: int, option: str = "payload_bytes_max") -> None:
        self.what, self.size, self.limit, self.option = what, size, limit, option
        super().__init__(what, size, limit, option)

    def _own_text(self) -> str:
        unit = "bytes" if self.option == "export_bytes_max" else "bytes of JSON"
        return (
            f"{self.what}: {self.size:,} {unit}; the limit is {self.limit:,}: store the data elsewhere and "
            f"pass a reference to it, or raise {self.option} (HOLDFAST_{self.option.upper()})"
        )


class TransitionRefused(HoldfastError, RuntimeError):
    """A state machine has no row for the requested transition. Nothing was changed.

    Attributes:
        machine: name of the machine, for example ``"Job"``.
        current: the state of the machine, or None before its first event.
        event: the refused event.
        target: the requested state, for machines whose callers request states (Run, ReadyState); None for Job.
        detail: the reason, and what the machine accepts.
        index: position in the stream if a whole stream was read, else None.
        rule: number of the broken rule in the specification, if known.
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
        """The state of the machine: another name of `current`."""
        return self.current

    def _own_text(self) -> str:
        where = f"event {self.index}: " if self.index is not None else ""
        state = "(initial)" if self.current is None else str(self.current)
        rule = f" [{self.rule}]" if self.rule else ""
        reason = f": {self.detail}" if self.detail else ""
        return f"{where}{self.machine} in {state} refuses {self.event}{rule}{reason}"

    def __reduce__(self) -> tuple[object, ...]:
        # The default rebuilds from `args` alone, so a pickled error would lose its keyword fields.
        return (type(self), self.args, self.__dict__)


class InvalidTransition(TransitionRefused):
    """The Job or ReadyState machine has no row for this event in this state."""

    machine = "Job"


class InvalidRunTransition(TransitionRefused):
    """The Run machine has no transition from `current` to `target`."""

    machine = "Run"
    asks_for_states = True


class WakeRefused(HoldfastError, RuntimeError):
    """A wake or the end of a Pending interval broke the contract. Nothing was recorded."""


class EmptyWakeSet(WakeRefused):
    """Pending names no wake source, so nothing could ever end it. Name at least one."""

    def _own_text(self) -> str:
        return "Pending needs at least one wake source (io_ready, timer, config_reload); none was named"


class InvalidWake(WakeRefused):
    """The wake came from a source that is not registered, or is not a source. `registered` lists the valid ones."""

    def __init__(self, source: str, registered: frozenset[str] = frozenset()) -> None:
        self.source, self.registered = source, registered
        super().__init__(source, registered)

    def _own_text(self) -> str:
        if not self.registered:
            return f"{self.source!s} is not a wake source; the sources are io_ready, timer and config_reload"
        names = ", ".join(sorted(self.registered))
        return f"wake from {self.source!s} refused: the registered sources are {names}; watch a source before the wait"


class WakeOutsidePending(WakeRefused):
    """A wake came while nothing is Pending or about to become Pending."""

    def __init__(self, source: str, state: str) -> None:
        self.source, self.state = source, state
        super().__init__(source, state)

    def _own_text(self) -> str:
        return f"wake from {self.source!s} refused: the state is {self.state!s}; the next poll sees what changed"


class MissingWake(WakeRefused):
    """Pending cannot end without a wake, because waiting callers would not notice the change."""

    def __init__(self, target: str, registered: frozenset[str]) -> None:
        self.target, self.registered = target, registered
        super().__init__(target, registered)

    def _own_text(self) -> str:
        names = ", ".join(sorted(self.registered))
        return f"pending cannot become {self.target!s}: no wake from {names} was seen; call wake() before the poll"


class Permanent(HoldfastError):
    """Raise this in a step, tool or job if a retry would not help."""


class StepFailed(HoldfastError):
    """A step or tool has failed permanently. The code of the job may catch this error. A replay raises it again.

    `step` is the name of the step or tool, and `node` is the identity of the call. `kind` is the class name of the
    exception and `reason` its message. Both are text, because exceptions are stored as data and never rebuilt.
    """

    def __init__(self, step: str, kind: str, reason: str, node: str = "") -> None:
        self.step, self.kind, self.reason, self.node = step, kind, reason, node
        super().__init__(step, kind, reason)

    def _own_text(self) -> str:
        return f"{self.step} failed: {self.kind}: {self.reason}"


class InDoubt(StepFailed):
    """A tool was started, and it is not known whether it acted. By its policy the job fails and does not ask."""


class PlanFailed(StepFailed):
    """Nodes of a plan have failed, and `reason` lists them all. Independent nodes are done or were not started."""


class SecretUnavailable(HoldfastError, LookupError):
    """This process cannot reveal a secret. The variable or the codec is missing, or the codec cannot decode it."""


class WaitTimeout(HoldfastError, TimeoutError):
    """No signal arrived in time."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)

    def _own_text(self) -> str:
        return f"no signal {self.key!r} arrived in time"


class NotInJobCode(HoldfastError, RuntimeError):
    """Job code used its event loop for something that a replay cannot repeat. `cure` says what to do instead."""

    def __init__(self, what: str, cure: str) -> None:
        self.what, self.cure = what, cure
        super().__init__(what, cure)

    def _own_text(self) -> str:
        return f"the code of a job cannot use {self.what}: {self.cure}"


class NotRecorded(HoldfastError, RuntimeError):
    """A tool was called inside a step or in a thread that no job started. Such a call cannot be recorded (E15)."""

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
    """The code called steps, tools, waits or jobs without awaiting them, so they never ran."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        super().__init__(calls)

    def _own_text(self) -> str:
        what = ", ".join(f"{name}(…)" for name in self.calls)
        return f"{what} was called and not awaited, so it did not run: write `await` before the call"


class JobStuck(HoldfastError, RuntimeError):
    """Every task of the job waits for another task, and nothing outside can wake one."""

    def __init__(self, tasks: list[str]) -> None:
        self.tasks = tasks
        super().__init__(tasks)

    def _own_text(self) -> str:
        return (
            f"the job cannot continue: {'; '.join(self.tasks)}. Each of its tasks waits for another task, a lock or a "
            "queue, and no task waits for a step, a signal or a time"
        )


class NonDeterminism(HoldfastError, RuntimeError):
    """A replay made another call than the recorded ones. The message shows both, and says how to fix the code."""

    def __init__(self, asked: str, recorded: list[str]) -> None:
        self.asked, self.recorded = asked, recorded
        self.node = ""  # of the call that the code makes
        self.nodes: list[str] = []  # of the recorded calls
        self.line: str | None = None  # of the code, as file:line
        super().__init__(asked, recorded)

    def _own_text(self) -> str:
        if self.asked == "end":
            return (
                f"the code ends, but its history has {', '.join(self.recorded)}, which was begun, and whether it has "
                "acted is not known. The code of a job must make the same calls each time it runs"
            )
        return (
            f"the code now calls {self.asked}, but its history has {', '.join(self.recorded)}. "
            "The code of a job must make the same calls each time it runs: put what changes (time, random numbers, "
            "outside data) into steps, or give the call a key of its own, or finish old jobs with the old code"
        )


class RunFailed(HoldfastError, RuntimeError):
    """The run has failed. The error in its record says why."""


class RunCanceled(HoldfastError, RuntimeError):
    """The run was canceled."""


class RunTimedOut(HoldfastError, TimeoutError):
    """The deadline of the run has passed."""


class UnknownBuild(HoldfastError, LookupError):
    """No live worker has this build, and no run that has not ended needs it. `known` lists the builds."""

    def __init__(self, name: str, known: list[str]) -> None:
        self.name, self.known = name, known
        super().__init__(name, known)

    def _own_text(self) -> str:
        return (
            f"no worker and no run has the build {self.name!r}; the known builds are: {', '.join(self.known) or 'none'}"
        )


class UnknownEntry(HoldfastError, LookupError):
    """No job of this app has this name. `known` lists the names."""

    def __init__(self, name: str, known: list[str]) -> None:
        self.name, self.known = name, known
        super().__init__(name, known)

    def _own_text(self) -> str:
        return f"no job is named {self.name!r}; the known jobs are: {', '.join(sorted(self.known)) or 'none'}"


# Functions, not methods: a user's subclass of `Permanent` may define its own `code` or `params`.


def code_of(kind: type[HoldfastError]) -> str:
    """Return the code of an error class, for programs: ``unknown_job`` for `UnknownJob`."""
    name = kind.__name__
    return name[0].lower() + "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name[1:])


def params_of(error: HoldfastError) -> dict[str, Any]:
    """Return the arguments of the constructor by name, as JSON values. An error with only a text has none."""
    import msgspec  # noqa: PLC0415 - the command line imports this module, and must start without msgspec

    params = {name: getattr(error, name) for name in _fields(type(error))}
    encoded: dict[str, Any] = msgspec.to_builtins(params, enc_hook=str)
    return encoded


def from_params(code: str, params: Mapping[str, Any], message: str | None = None) -> HoldfastError | None:
    """Return the error with this code and these params.

    Args:
        code: the code that `code_of` returns.
        params: the params that `params_of` returns; names that the class does not know are ignored.
        message: the message of the sender; None means the message that the class builds from its fields.

    Returns:
        The error, or None if no class has this code or the params do not fit its constructor.
    """
    import msgspec  # noqa: PLC0415 - as above

    kind = _CLASSES.get(code)
    if kind is None:
        return None
    fields = _fields(kind)
    try:
        error = kind(**{name: msgspec.convert(params[name], fields[name]) for name in fields if name in params})
    except (TypeError, msgspec.ValidationError):  # a field is missing or has another type
        return None
    if message is None or str(error) == message:
        return error
    return error.with_server_text(message) if fields else kind(message)


def _fields(kind: type[HoldfastError]) -> dict[str, Any]:
    """Return the types of the constructor arguments by name."""
    hints = get_type_hints(kind.__init__)
    hints.pop("return", None)
    return hints


_CLASSES: dict[str, type[HoldfastError]] = {code_of(globals()[name]): globals()[name] for name in __all__}
