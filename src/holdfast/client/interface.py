"""Everything that can be asked about runs, in two colours: what an app and a connection to a server have in common.

A `Client` says the async verbs; how each is done is its own: an `App` asks the store, a remote client a server. The
plain twins are here, once: each blocks the caller on a loop that the client keeps in a thread.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.authoring.conductor import conductor
from holdfast.client.portal import Portal
from holdfast.client.process_fork import leave, survive_fork
from holdfast.client.views import PAGE, Created, Creation, Entry, Explanation, Export, RunFilter, Stats, run_filter
from holdfast.client.worker_status import GateView, WorkerStatus
from holdfast.durations import Duration
from holdfast.errors import LoopDied
from holdfast.machines import Event, RunRecord
from holdfast.store import Evidence, Limits, QueueState

if TYPE_CHECKING:
    from holdfast.client.run_handle import RunHandle
    from holdfast.plans.builder import Draft
    from holdfast.plans.model import Plan

__all__ = ["Client"]

T = TypeVar("T")


class Client(ABC):
    """Whoever can start, watch and steer runs."""

    def __init__(self, name: str) -> None:
        self._client_name = name
        self._opening = threading.Lock()
        self._portal: Portal | None = None
        survive_fork(self)

    # Starting and looking

    @abstractmethod
    async def acreate(self, creation: Creation) -> Created:
        """Create a run by the names of its app and job, durably; or find the one that its key gave before."""

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
        """Start a new run that reuses what another has done, up to a node of its plan or a step, which is done again.

        With another `plan`, what is the same in both is reused. The same `key` gives the same new run.
        """

    @abstractmethod
    async def aget(self, run_id: str) -> RunRecord:
        """Read a run's record."""

    @abstractmethod
    async def apage(self, where: RunFilter, limit: int, before: str | None) -> builtins.list[RunRecord]:
        """List runs by id, newest first, from before the id given: ids grow with time, so this is a cursor."""

    async def alist(self, *, limit: int = PAGE, before: str | None = None, **where: Any) -> builtins.list[RunRecord]:
        """List runs, newest first, from before the run given; `where` names fields of `RunFilter`.

        Raises:
            InvalidArguments: a filter that there is not, or of another type.
        """
        return await self.apage(run_filter(where), limit, before)

    @abstractmethod
    async def aoutcome(self, run_id: str) -> Any:
        """Read what a run that has succeeded returned, as a JSON value; None if it has not.

        If it went on in other runs (`continue_as`), what the last of them returned.
        """

    @abstractmethod
    async def acurrent(self, run_id: str) -> str:
        """Give the id of the run that goes on for this one (`continue_as`): its own, unless it was continued.

        Raises:
            UnknownJob: it was continued by a run that has been removed.
        """

    @abstractmethod
    async def aevents(self, run_id: str, *, after: int = 0, limit: int | None = None) -> builtins.list[Event]:
        """Read the events of a run's job, oldest first, from behind the number given."""

    @abstractmethod
    async def aexports(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> builtins.list[Export]:
        """List what a run has produced, in order, from behind the number given (R10)."""

    @abstractmethod
    def acontent(self, run_id: str, number: int) -> AsyncIterator[bytes]:
        """Read one export's bytes, a piece at a time."""

    @abstractmethod
    def awatch(self, run_id: str) -> AsyncIterator[RunRecord]:
        """Give a run's record now and at each change, until it has ended."""

    @abstractmethod
    async def aevidence(self, run_id: str) -> builtins.list[Evidence]:
        """List what calls of a run reported when it was too late: shown to people, never applied by itself (E5)."""

    @abstractmethod
    async def aexplain(self, run_id: str) -> Explanation:
        """Say in plain words where a run is, who holds it, what will wake it and when."""

    @abstractmethod
    async def aworkers(self) -> builtins.list[WorkerStatus]:
        """List who works here, what each runs, and which step that is in since when (L9)."""

    @abstractmethod
    async def agates(self) -> builtins.list[GateView]:
        """List the gates of the workers that were heard of lately, as they were then; each worker's own one first."""

    def own_gates(self) -> builtins.list[GateView]:
        """List the readiness of each worker that runs in this very process, as it is at this moment."""
        return []

    @abstractmethod
    async def aentries(self) -> builtins.list[Entry]:
        """List the jobs that can be started by name."""

    @abstractmethod
    async def astats(self) -> Stats:
        """Count runs, queues and workers."""

    @abstractmethod
    async def averify(self, run_id: str | None = None) -> dict[str, builtins.list[Any]]:
        """Check histories: rules, hash chain, projections; what is wrong, by job. Empty: all is well."""

    # Steering

    @abstractmethod
    async def asignal(
        self,
        run_id: str,
        key: str,
        payload: Any = None,
        id: str | None = None,
    ) -> str:
        """Send a signal; what became of it: delivered, kept, repeat or too_late."""

    @abstractmethod
    async def acancel(self, run_id: str, reason: str | None = None, *, actor: str | None = None) -> RunRecord:
        """Ask a run to cancel; at once if nobody runs it."""

    @abstractmethod
    async def aretry(self, run_id: str, *, actor: str, reason: str) -> RunRecord:
        """Reopen a failed job: the record of its new run."""

    @abstractmethod
    async def apause(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        """Pause a run at its next step boundary; at once if it is queued."""

    @abstractmethod
    async def aresume(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        """Let a paused run go on."""

    @abstractmethod
    async def agrant(
        self,
        run_id: str,
        granted: Mapping[str, float] | None = None,
        *,
        actor: str | None = None,
        id: str | None = None,
        **more: float,
    ) -> str:
        """Let a run spend more than its budget, by so much: ``agrant(run, tokens=50_000)``.

        It is kept until the run needs it. A repeat with the same id changes nothing. What became of it: as `asignal`.
        """

    @abstractmethod
    async def aresolve(
        self,
        run_id: str,
        step: str,
        *,
        done: Any = msgspec.UNSET,
        not_done: bool = False,
        fail: bool = False,
        actor: str | None = None,
    ) -> RunRecord:
        """Answer for a tool in doubt: it was done, with this result; it was not done; or give up."""

    @abstractmethod
    async def apurge(self, *, older_than: Duration, statuses: Iterable[str] = (), limit: int | None = None) -> int:
        """Remove runs that ended so long ago, for good, in batches; how many."""

    # Limits of queues

    @abstractmethod
    async def alimits(self) -> builtins.list[QueueState]:
        """List the queues that have limits, or jobs with groups, and how they stand."""

    @abstractmethod
    async def aset_limits(self, limits: Limits, *, actor: str | None = None) -> QueueState:
        """Set the limits of a queue, all of them but whether it is paused; they hold with the next claim."""

    @abstractmethod
    async def apause_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Have nothing more of a queue started; what runs goes on."""

    @abstractmethod
    async def aresume_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Have a paused queue go on."""

    async def aclear_limits(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Take all limits from a queue; one that is paused stays so."""
        return await self.aset_limits(Limits(queue=queue), actor=actor)

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything that was opened."""

    # The plain colour

    def create(self, creation: Creation) -> Created:
        """Create a run by name; see `acreate`."""
        return self.block(self.acreate(creation))

    def fork(
        self,
        run_id: str | RunHandle,
        *,
        from_node: str | None = None,
        from_step: str | None = None,
        plan: Plan | Draft | dict[str, Any] | None = None,
        key: str | None = None,
    ) -> RunHandle:
        """Start a run anew from where another was; see `afork`."""
        return self.block(self.afork(run_id, from_node=from_node, from_step=from_step, plan=plan, key=key))

    def get(self, run_id: str) -> RunRecord:
        """Read a run's record."""
        return self.block(self.aget(run_id))

    def list(self, *, limit: int = PAGE, before: str | None = None, **where: Any) -> builtins.list[RunRecord]:
        """List runs; see `alist`."""
        return self.block(self.alist(limit=limit, before=before, **where))

    def outcome(self, run_id: str) -> Any:
        """Read what a run returned; see `aoutcome`."""
        return self.block(self.aoutcome(run_id))

    def current(self, run_id: str) -> str:
        """Give the id of the run that goes on for this one; see `acurrent`."""
        return self.block(self.acurrent(run_id))

    def events(self, run_id: str, *, after: int = 0, limit: int | None = None) -> builtins.list[Event]:
        """Read what happened; see `aevents`."""
        return self.block(self.aevents(run_id, after=after, limit=limit))

    def exports(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> builtins.list[Export]:
        """List what a run has produced; see `aexports`."""
        return self.block(self.aexports(run_id, after=after, limit=limit))

    def content(self, run_id: str, number: int) -> Iterator[bytes]:
        """Read one export's bytes; see `acontent`."""
        return self._each(self.acontent(run_id, number))

    def watch(self, run_id: str) -> Iterator[RunRecord]:
        """Give a run's record now and at each change; see `awatch`."""
        return self._each(self.awatch(run_id))

    def evidence(self, run_id: str) -> builtins.list[Evidence]:
        """List what came too late; see `aevidence`."""
        return self.block(self.aevidence(run_id))

    def explain(self, run_id: str) -> Explanation:
        """Say where a run is; see `aexplain`."""
        return self.block(self.aexplain(run_id))

    def workers(self) -> builtins.list[WorkerStatus]:
        """List who works; see `aworkers`."""
        return self.block(self.aworkers())

    def stats(self) -> Stats:
        """Count; see `astats`."""
        return self.block(self.astats())

    def verify(self, run_id: str | None = None) -> dict[str, builtins.list[Any]]:
        """Check histories; see `averify`."""
        return self.block(self.averify(run_id))

    def signal(
        self,
        run_id: str,
        key: str,
        payload: Any = None,
        id: str | None = None,
    ) -> str:
        """Send a signal; see `asignal`."""
        return self.block(self.asignal(run_id, key, payload, id))

    def cancel(self, run_id: str, reason: str | None = None, *, actor: str | None = None) -> RunRecord:
        """Ask a run to cancel; see `acancel`."""
        return self.block(self.acancel(run_id, reason, actor=actor))

    def retry(self, run_id: str, *, actor: str, reason: str) -> RunRecord:
        """Reopen a failed job; see `aretry`."""
        return self.block(self.aretry(run_id, actor=actor, reason=reason))

    def pause(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        """Pause a run; see `apause`."""
        return self.block(self.apause(run_id, actor=actor))

    def resume(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        """Let a paused run go on; see `aresume`."""
        return self.block(self.aresume(run_id, actor=actor))

    def grant(self, run_id: str, granted: Mapping[str, float] | None = None, **more: Any) -> str:
        """Let a run spend more; see `agrant`."""
        return self.block(self.agrant(run_id, granted, **more))

    def gates(self) -> builtins.list[GateView]:
        """List gates; see `agates`."""
        return self.block(self.agates())

    def resolve(self, run_id: str, step: str, **answer: Any) -> RunRecord:
        """Answer for a tool in doubt; see `aresolve`."""
        return self.block(self.aresolve(run_id, step, **answer))

    def purge(self, **chosen: Any) -> int:
        """Remove old runs; see `apurge`."""
        return self.block(self.apurge(**chosen))

    def limits(self) -> builtins.list[QueueState]:
        """List limits; see `alimits`."""
        return self.block(self.alimits())

    def set_limits(self, limits: Limits, *, actor: str | None = None) -> QueueState:
        """Set limits; see `aset_limits`."""
        return self.block(self.aset_limits(limits, actor=actor))

    def clear_limits(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Take limits away; see `aclear_limits`."""
        return self.block(self.aclear_limits(queue, actor=actor))

    def pause_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Pause a queue; see `apause_queue`."""
        return self.block(self.apause_queue(queue, actor=actor))

    def resume_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Have a queue go on; see `aresume_queue`."""
        return self.block(self.aresume_queue(queue, actor=actor))

    # Machinery

    def block(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something on the client's own loop and wait for it; in a thread of a job, on that of its code."""
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
        """Leave the parent's loop to it, and whatever belongs to that; the next call makes a new one."""
        leave(self._portal)
        self._opening = threading.Lock()
        self._portal = None

    def loop_died(self, loop: asyncio.AbstractEventLoop, error: LoopDied) -> None:
        """A loop answers no more: if it is the client's own, plain calls raise, those that are under way too."""
        portal = self._portal
        if portal is not None and portal.loop is loop:
            portal.die(error)

    def close(self) -> None:
        """Let go of everything, the client's own loop too. After it a client may be used again."""
        with contextlib.suppress(LoopDied):
            self.block(self.aclose())
        if self._portal is not None:
            self._portal.stop()
            self._portal = None

    def _each(self, items: AsyncIterator[T]) -> Iterator[T]:
        end: Any = object()

        async def following() -> T:
            return await anext(items, end)

        while (item := self.block(following())) is not end:
            yield item
