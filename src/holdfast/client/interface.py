"""The client interface: every operation on runs, in an async and a blocking form.

`App` and the remote client both implement `Client`. An `App` implements the async methods on a store, a remote client
on an HTTP server. The blocking methods are defined here once. Each one runs its async twin on an event loop in the
client's own thread and blocks the caller.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from holdfast.authoring.conductor import conductor
from holdfast.client.bulk import BULK_MAX, CANCEL_STATUSES, RETRY_STATUSES, BulkResult, apply_to_runs, one_by_one
from holdfast.client.overview.builds import BuildMove, BuildStatus
from holdfast.client.overview.family import Family
from holdfast.client.overview.marked_changes import RUNS_MAX, Changes
from holdfast.client.overview.plan_view import PlanView
from holdfast.client.overview.questions import Question
from holdfast.client.overview.series import MINUTES, Series
from holdfast.client.overview.story import STORY_PAGE, StoryEvent
from holdfast.client.portal import Portal
from holdfast.client.process_fork import leave, survive_fork
from holdfast.client.views import PAGE, Created, Creation, Entry, Explanation, Export, RunFilter, Stats, run_filter
from holdfast.client.worker_status import GateView, WorkerStatus
from holdfast.durations import Duration
from holdfast.errors import HoldfastError, LoopDied
from holdfast.machines import TERMINAL_RUN_STATUSES, Event, RunRecord
from holdfast.store import Evidence, Limits, QueueState
from holdfast.store.audit import AuditRow

if TYPE_CHECKING:
    from holdfast.client.run_handle import RunHandle
    from holdfast.client.schedules.schedules_interface import Schedules
    from holdfast.plans.builder import Draft
    from holdfast.plans.model import Plan

P = ParamSpec("P")
T = TypeVar("T")


def blocking(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the blocking form of an async method of a client or handle: same arguments, result and docstring."""

    @wraps(verb, updated=())  # not its `__dict__`, which may say that it is abstract
    def block(*args: P.args, **kwargs: P.kwargs) -> T:
        owner: Any = args[0]
        client = owner if isinstance(owner, Client) else owner._client  # noqa: SLF001 - of a handle
        result: T = client.block(getattr(owner, verb.__name__)(*args[1:], **kwargs))
        return result

    block.__name__, block.__qualname__ = verb.__name__[1:], verb.__qualname__.replace(".a", ".")
    return block


class Client(ABC):
    """A client that starts, reads and controls runs.

    Each operation has two forms. The form with the prefix ``a`` is async and runs on the caller's event loop. The form
    without it blocks the calling thread.
    """

    def __init__(self, name: str) -> None:
        self._client_name = name
        self._opening = threading.RLock()  # a signal handler may come while its thread holds it
        self._portal: Portal | None = None
        survive_fork(self)

    # Start and read

    @abstractmethod
    async def acreate(self, creation: Creation) -> Created:
        """Create a run by the names of its app and job. When this returns, the run is durable.

        If another run already has the idempotency key of the creation, return that run.
        """

    @abstractmethod
    async def acreate_many(self, creations: Sequence[Creation]) -> builtins.list[Created | HoldfastError]:
        """Create runs by the names of their apps and jobs, durably, and return the outcome of each in order.

        All creations are checked before the first run is created. An outcome is the created run, or the error of a
        creation that the store refused, such as `QueueFull` or `IdempotencyConflict`.

        Raises:
            InvalidArguments: A creation is not valid. No run was created.
            UnknownEntry: A creation names a job that does not exist. No run was created.
        """

    @abstractmethod
    async def afork(
        self,
        run_id: str | RunHandle,
        *,
        from_node: str | None = None,
        from_step: str | None = None,
        plan: Plan | Draft | dict[str, Any] | None = None,
        key: str | None = None,
    ) -> RunHandle:
        """Start a new run that reuses the results of another run.

        The new run repeats the named node or step and everything that depends on it. It reuses the other results.

        Args:
            run_id: The run to fork, as an id or a handle.
            from_node: For a run with a plan: the first node to repeat.
            from_step: For a run without a plan: the first step or tool to repeat.
            plan: Another plan for the new run. The new run reuses the results of nodes that are equal in both plans.
            key: An idempotency key. A repeated call with the same key returns the same new run.

        Raises:
            InvalidArguments: The node or step does not exist, or the arguments do not fit the run.
            InvalidPlan: The plan has problems. The error lists all of them.
        """

    @abstractmethod
    async def aget(self, run_id: str) -> RunRecord:
        """Return the record of a run.

        Raises:
            UnknownJob: No run has this id.
        """

    @abstractmethod
    async def apage(self, where: RunFilter, limit: int, before: str | None) -> builtins.list[RunRecord]:
        """Return one page of runs, newest first. `before` is the last id of the previous page: ids grow with time."""

    async def alist(self, *, limit: int = PAGE, before: str | None = None, **where: Any) -> builtins.list[RunRecord]:
        """List runs, newest first.

        Args:
            limit: Maximum number of records.
            before: Return only runs older than the run with this id.
            where: Filters: fields of `RunFilter`, such as ``status="failed"`` or ``queue="mail"``.

        Raises:
            InvalidArguments: A filter does not exist, or its value has the wrong type.
        """
        return await self.apage(run_filter(where), limit, before)

    @abstractmethod
    async def aoutcome(self, run_id: str) -> Any:
        """Return the result of a succeeded run as a JSON value, or None if the run has not succeeded.

        If the job continued in other runs (`continue_as`), return the result of the last one.
        """

    async def aresult_of(self, record: RunRecord, ending: dict[str, Any] | None = None) -> Any:
        """Return the result of a run that has succeeded, whose record is known, as a JSON value.

        `ending` is the payload of the event that ended the run, if `aended` has returned it.
        """
        del ending
        return await self.aoutcome(record.run_id)

    async def aended(self, run_id: str) -> tuple[RunRecord, dict[str, Any] | None]:
        """Wait for the end of a run. Return its record and, if it is known by then, the payload of its last event."""
        watching: Any = self.awatch(run_id)
        async with contextlib.aclosing(watching) as records:  # an unfinished watch would keep its connection open
            async for record in records:
                if record.status in TERMINAL_RUN_STATUSES:
                    return record, None
        raise AssertionError("a watch ends with the run")

    @abstractmethod
    async def acurrent(self, run_id: str) -> str:
        """Return the id of the run that continues this one (`continue_as`), or its own id if no run does.

        Raises:
            UnknownJob: The run that continues this one has been removed.
        """

    @abstractmethod
    async def aevents(self, run_id: str, *, after: int = 0, limit: int | None = None) -> builtins.list[Event]:
        """Return the events of a run's job, oldest first, that have a number greater than `after`."""

    @abstractmethod
    async def astory(self, run_id: str, *, after: int = 0, limit: int = STORY_PAGE) -> builtins.list[StoryEvent]:
        """Return the story of a run's job: what each event after the number `after` has changed, oldest first.

        The changes are JSON merge patches (RFC 7396). Applied in order to an empty object, they give the view of the
        job after each event: state, attempts, waits, calls with their tries, children and plan nodes.
        """

    @abstractmethod
    async def arun_plan(self, run_id: str) -> PlanView | None:
        """Return the plan of a run with all nodes that extended it, or None if the run has no plan."""

    @abstractmethod
    async def aseries(self, *, minutes: int = MINUTES, queue: str | None = None) -> Series:
        """Return the starts, ends, failures and waiting runs of the last minutes, for charts.

        Args:
            minutes: The length of the window, 1,440 at most.
            queue: Only runs in this queue.

        Raises:
            InvalidArguments: The number of minutes is out of bounds.
        """

    @abstractmethod
    async def afamily(self, run_id: str, *, group: str | None = None) -> Family:
        """Return the family of a run: parents, children, and the runs that it continues, retries or was forked from.

        Args:
            run_id: The run.
            group: Leave out runs of other groups.

        Raises:
            UnknownJob: No run has this id.
        """

    @abstractmethod
    async def ainbox(
        self,
        *,
        after: str | None = None,
        limit: int = PAGE,
        kind: str | None = None,
        group: str | None = None,
        run_id: str | None = None,
    ) -> builtins.list[Question]:
        """List everything that waits for a person, oldest run first.

        Args:
            after: The `id` of the last question of the previous page.
            limit: Maximum number of questions.
            kind: Only ``doubt``, ``answer``, ``budget`` or ``deploy``.
            group: Only runs of this group.
            run_id: Only questions of this run.
        """

    @abstractmethod
    async def abuilds(self) -> builtins.list[BuildStatus]:
        """List the builds of live workers and of runs that have not ended, with what still needs each."""

    @abstractmethod
    async def amove_build(self, old: str, new: str, *, actor: str | None = None, check: bool = True) -> BuildMove:
        """Move the runs that are kept for a build to another one.

        Args:
            old: The build that the runs are kept for.
            new: The build whose workers may run them then.
            actor: The name of the operator or program that decided.
            check: Replay each run through the code of this app first. This calls nothing. If a run does not fit, none
                is moved. A server replays them through its own code, in a run of the built-in job `holdfast.move`.

        Raises:
            InvalidArguments: Both builds are the same, `new` is not the name of a build, or the code that would check
                the runs is of another build. Nothing was moved.
            UnknownBuild: No worker and no run has the build `old`.
        """

    @abstractmethod
    async def achanges(self, *, limit: int = RUNS_MAX, replay: bool = True, before: str | None = None) -> Changes:
        """List the marked changes of job code, `changed`, with the runs on each side, and when a side can be removed.

        The code of this app is parsed for uses of each mark. A run that has recorded no side is replayed through it, up
        to 500 of them. This calls no step and no tool. A server replays nothing, and counts these runs as unknown.

        Args:
            limit: Maximum number of runs to look at, newest first. They have not ended.
            replay: Whether to replay runs that have recorded no side.
            before: `next` of an earlier result, to count the runs after it.
        """

    @abstractmethod
    async def aexports(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> builtins.list[Export]:
        """List the exports of a run in order, starting after the number `after` (R10)."""

    @abstractmethod
    def acontent(self, run_id: str, number: int) -> AsyncIterator[bytes]:
        """Yield the bytes of one export in pieces."""

    @abstractmethod
    def awatch(self, run_id: str) -> AsyncIterator[RunRecord]:
        """Yield the record of a run now and after each change, until the run has ended."""

    @abstractmethod
    async def aevidence(self, run_id: str, *, after: int = 0, limit: int | None = None) -> builtins.list[Evidence]:
        """List the results that calls of a run reported too late, without the first `after`.

        The engine never applies them by itself (E5).
        """

    @abstractmethod
    async def aexplain(self, run_id: str) -> Explanation:
        """Explain in words where a run is, which worker holds it, what will wake it, and when."""

    @abstractmethod
    async def aworkers(self) -> builtins.list[WorkerStatus]:
        """List the workers, the jobs that each one runs, and the current step of each job with its start time (L9)."""

    @abstractmethod
    async def agates(self) -> builtins.list[GateView]:
        """List the gates of live workers as each worker last reported them. A worker's own gate comes first."""

    def own_gates(self) -> builtins.list[GateView]:
        """List the current readiness of each worker in this process."""
        return []

    @abstractmethod
    async def aentries(self) -> builtins.list[Entry]:
        """List the jobs that a caller can start by name."""

    @abstractmethod
    async def astats(self) -> Stats:
        """Count runs, queues and workers."""

    @abstractmethod
    async def averify(self, run_id: str | None = None) -> dict[str, builtins.list[Any]]:
        """Check histories: the rules, the hash chain and the projections.

        Args:
            run_id: The run to check. None checks every job of the store.

        Returns:
            The violations by job. An empty dict means that all histories are valid.
        """

    # Control

    @abstractmethod
    async def asignal(
        self,
        run_id: str,
        key: str,
        payload: Any = None,
        id: str | None = None,
        *,
        actor: str | None = None,
        node: str | None = None,
    ) -> str:
        """Send a signal to a run.

        Args:
            run_id: The run.
            key: The key that the job waits for with `wait_for`.
            payload: A JSON value for the waiting job.
            id: An id of the signal. The job receives signals with the same id once.
            actor: Who answers, if a person has to. The name is recorded with the answer.
            node: The `node` of a question in the inbox. The signal then counts for this question only.

        Raises:
            InvalidArguments: The payload does not fit the form that the job waits for (`wait_for` with ``form=``).
            QuestionClosed: The run no longer asks the question at `node`. Nothing was stored.

        Returns:
            ``delivered``, ``kept`` (the job does not wait for it yet), ``repeat`` (the id is known) or ``too_late``
            (the job has ended).
        """

    @abstractmethod
    async def acancel(self, run_id: str, reason: str | None = None, *, actor: str | None = None) -> RunRecord:
        """Request the cancellation of a run. A run that no worker holds is canceled at once."""

    @abstractmethod
    async def aretry(self, run_id: str, *, actor: str, reason: str) -> RunRecord:
        """Reopen a failed job and return the record of its new run."""

    async def acancel_runs(
        self,
        *,
        reason: str | None = None,
        actor: str | None = None,
        dry_run: bool = False,
        limit: int = BULK_MAX,
        before: str | None = None,
        **where: Any,
    ) -> BulkResult:
        """Cancel the runs that match a filter, one page of them: ``acancel_runs(entry_id="pay", status="queued")``.

        Args:
            reason: The reason to record.
            actor: The name of the operator or program.
            dry_run: List the runs, and change nothing.
            limit: Maximum number of runs, 1,000 at most.
            before: The `next` of the previous page.
            where: Filters: fields of `RunFilter`. At least one is needed.

        Raises:
            InvalidArguments: A filter is missing or not valid.
        """
        return await apply_to_runs(
            self, run_filter(where), CANCEL_STATUSES, one_by_one(partial(self.acancel, reason=reason, actor=actor)),
            limit=limit, before=before, dry_run=dry_run,
        )  # fmt: skip

    async def aretry_runs(
        self,
        *,
        reason: str,
        actor: str | None = None,
        dry_run: bool = False,
        limit: int = BULK_MAX,
        before: str | None = None,
        **where: Any,
    ) -> BulkResult:
        """Retry the failed runs that match a filter, one page of them. See `acancel_runs` for the arguments."""
        retry = partial(self.aretry, reason=reason, actor=actor or "unknown")
        return await apply_to_runs(
            self, run_filter(where), RETRY_STATUSES, one_by_one(retry),
            limit=limit, before=before, dry_run=dry_run,
        )  # fmt: skip

    async def asignal_runs(
        self,
        key: str,
        payload: Any = None,
        id: str | None = None,
        *,
        dry_run: bool = False,
        limit: int = BULK_MAX,
        before: str | None = None,
        **where: Any,
    ) -> BulkResult:
        """Send a signal to the runs that match a filter, one page of them. See `acancel_runs` and `asignal`."""
        signal = partial(self.asignal, key=key, payload=payload, id=id)
        return await apply_to_runs(
            self, run_filter(where), CANCEL_STATUSES, one_by_one(signal),
            limit=limit, before=before, dry_run=dry_run,
        )  # fmt: skip

    @abstractmethod
    async def apause(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        """Pause a run at its next step boundary. A queued run pauses at once."""

    @abstractmethod
    async def aresume(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        """Resume a paused run."""

    @abstractmethod
    async def agrant(
        self,
        run_id: str,
        granted: Mapping[str, float] | None = None,
        *,
        actor: str | None = None,
        id: str | None = None,
        node: str | None = None,
        **more: float,
    ) -> str:
        """Grant a run more budget, such as ``tokens=50_000``.

        The store keeps the grant until the run needs it. A repeated grant with the same id changes nothing. The result
        is that of `signal`. With the `node` of a question, the grant counts for this question only.

        Raises:
            QuestionClosed: The run no longer asks the question at `node`. Nothing was stored.
        """

    @abstractmethod
    async def aanswer(
        self, run_id: str, answer: str, *, node: str | None = None, actor: str | None = None
    ) -> RunRecord:
        """Say which code goes on with a run whose history does not fit the code. Return the run that goes on.

        Args:
            run_id: The run.
            answer: ``accept`` goes on with the new call, and leaves the recorded ones unused. ``build`` goes on with
                workers of the build that recorded the history. ``fork`` cancels the run, and starts one that reuses
                its results up to this call. ``fail`` fails the run with `NonDeterminism`.
            node: The `node` of a question in the inbox. The answer then counts for this question only.
            actor: The name of the operator or program that decided.

        Raises:
            UnknownJob: No run has this id.
            QuestionClosed: The run does not ask this, or not any more. Nothing was stored.
            InvalidArguments: The answer is not one of these, or the build that recorded the history is not known.
        """

    async def aresolve(
        self,
        run_id: str,
        step: str,
        *,
        done: Any = msgspec.UNSET,
        not_done: bool = False,
        fail: bool = False,
        actor: str | None = None,
        started: int | None = None,
    ) -> RunRecord:
        """Resolve a tool call in doubt. Pass exactly one of `done`, `not_done` and `fail`.

        Args:
            run_id: The run.
            step: The tool call, as `explain` names it.
            done: The tool acted, and this is its result.
            not_done: The tool did not act. The engine calls it.
            fail: Give up. The call raises `InDoubt` in the job.
            actor: The name of the operator or program that decided.
            started: The `started` of a question in the inbox. The answer then counts for this try of the call only.

        Raises:
            NotInDoubt: The run has no such call in doubt.
            QuestionClosed: The call was started again since `started`. Nothing was stored.
            ValueError: Not exactly one answer was passed.
        """
        answers = [("done", done is not msgspec.UNSET), ("not_done", not_done), ("fail", fail)]
        chosen = [answer for answer, is_chosen in answers if is_chosen]
        if len(chosen) != 1:
            raise ValueError("pass exactly one of done=result, not_done=True and fail=True")
        return await self._resolve(run_id, step, chosen[0], done if chosen == ["done"] else None, actor, started)

    @abstractmethod
    async def _resolve(
        self, run_id: str, step: str, answer: str, result: Any, actor: str | None, started: int | None
    ) -> RunRecord:
        """Resolve a tool call in doubt with ``done``, ``not_done`` or ``fail``."""

    @abstractmethod
    async def apurge(self, *, older_than: Duration, statuses: Iterable[str] = (), limit: int | None = None) -> int:
        """Remove ended runs permanently, in batches, and return their number.

        Args:
            older_than: Remove only runs that ended at least this long ago.
            statuses: Remove only runs that ended with one of these statuses. Default: all of them.
            limit: Maximum number of runs to remove. None means no maximum.
        """

    @abstractmethod
    async def apurge_runs(
        self,
        *,
        actor: str | None = None,
        dry_run: bool = False,
        limit: int = BULK_MAX,
        before: str | None = None,
        **where: Any,
    ) -> BulkResult:
        """Remove the ended runs that match a filter, permanently, one page of them.

        The job of a run is removed with all its runs. Retention has its usual rules: a run that has not ended, or that
        its parent or its chain needs, is in `refused`. See `acancel_runs` for the arguments.
        """

    # Queue limits

    @abstractmethod
    async def aaudit(self, *, before: int | None = None, limit: int = PAGE) -> builtins.list[AuditRow]:
        """List who did what to which run or queue, newest first.

        Commands of operators have a row each. Created runs and signals have one if a token was used. A row is written
        in the transaction of its command, and stays when runs are removed.

        Args:
            before: Only rows before this number.
            limit: Maximum number of rows.
        """

    @abstractmethod
    async def alimits(self) -> builtins.list[QueueState]:
        """Return the state of each queue that has limits or jobs with groups."""

    @abstractmethod
    async def aset_limits(
        self, limits: Limits, *, actor: str | None = None, expected: Limits | None = None
    ) -> QueueState:
        """Replace all limits of a queue except its pause. They apply from the next claim on.

        Args:
            limits: The new limits.
            actor: The name of the operator or program that changes them.
            expected: The limits that the caller has read. None replaces any.

        Raises:
            LimitsChanged: The queue has other limits than the expected ones.
        """

    @abstractmethod
    async def apause_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Stop workers from starting jobs of a queue. Running jobs continue."""

    @abstractmethod
    async def aresume_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Resume a paused queue."""

    async def aclear_limits(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Remove all limits of a queue. A paused queue stays paused."""
        return await self.aset_limits(Limits(queue=queue), actor=actor)

    @property
    @abstractmethod
    def schedules(self) -> Schedules:
        """The schedules: create, list, pause, fire and so on."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the store or the connections of this client."""

    # The blocking form of each verb. The arguments, the result and the errors are the same.

    create = blocking(acreate)
    create_many = blocking(acreate_many)
    fork = blocking(afork)
    get = blocking(aget)
    list = blocking(alist)
    outcome = blocking(aoutcome)
    current = blocking(acurrent)
    events = blocking(aevents)
    story = blocking(astory)
    run_plan = blocking(arun_plan)
    family = blocking(afamily)
    inbox = blocking(ainbox)
    builds = blocking(abuilds)
    move_build = blocking(amove_build)
    changes = blocking(achanges)
    answer = blocking(aanswer)
    series = blocking(aseries)
    exports = blocking(aexports)
    evidence = blocking(aevidence)
    explain = blocking(aexplain)
    workers = blocking(aworkers)
    stats = blocking(astats)
    verify = blocking(averify)
    signal = blocking(asignal)
    cancel = blocking(acancel)
    retry = blocking(aretry)
    cancel_runs = blocking(acancel_runs)
    retry_runs = blocking(aretry_runs)
    signal_runs = blocking(asignal_runs)
    purge_runs = blocking(apurge_runs)
    pause = blocking(apause)
    resume = blocking(aresume)
    grant = blocking(agrant)
    gates = blocking(agates)
    resolve = blocking(aresolve)
    purge = blocking(apurge)
    audit = blocking(aaudit)
    limits = blocking(alimits)
    set_limits = blocking(aset_limits)
    clear_limits = blocking(aclear_limits)
    pause_queue = blocking(apause_queue)
    resume_queue = blocking(aresume_queue)

    def content(self, run_id: str, number: int) -> Iterator[bytes]:
        """Yield the bytes of one export in pieces."""
        return self._each(self.acontent(run_id, number))

    def watch(self, run_id: str) -> Iterator[RunRecord]:
        """Yield the record of a run now and after each change, until the run has ended."""
        return self._each(self.awatch(run_id))

    # The event loop of blocking calls

    def block(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's own loop and wait for its result. In a thread of a job, use the job's loop.

        Raises:
            LoopDied: The loop has ended or hangs.
        """
        running = conductor.get()
        if running is not None and not running.in_loop():
            done: T = running.from_thread(coroutine)
            return done
        with self._opening:
            if self._portal is None:
                self._portal = Portal(self._client_name)
            portal = self._portal
        return portal.run(coroutine)

    def after_fork_in_child(self) -> None:
        """Abandon the loop of the parent process. The next call in the child creates a new one."""
        leave(self._portal)
        self._opening = threading.RLock()
        self._portal = None

    def loop_died(self, loop: asyncio.AbstractEventLoop, error: LoopDied) -> None:
        """Make blocking calls raise `LoopDied` if the dead loop is the client's own. Calls in progress raise, too."""
        portal = self._portal
        if portal is not None and portal.loop is loop:
            portal.die(error)

    @property
    def has_dead_loop(self) -> bool:
        """Return whether the client's own loop has died, so that blocking calls raise `LoopDied`."""
        return self._portal is not None and self._portal.is_dead

    def close(self) -> None:
        """Close the client and its own event loop. A later call opens them again."""
        with contextlib.suppress(LoopDied):
            self.block(self.aclose())
        if self._portal is not None:
            self._portal.stop()
            self._portal = None

    def _each(self, items: AsyncIterator[T]) -> Iterator[T]:
        end: Any = object()

        async def next_item() -> T:
            return await anext(items, end)

        while (item := self.block(next_item())) is not end:
            yield item
