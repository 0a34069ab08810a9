"""The app: where jobs are declared, and the client through which they are started, watched and steered.

An `App` opens its store when it is first needed. Every verb has two colours, ``start`` and ``astart`` and so on: the
async one runs on the caller's loop; the plain one on a loop of the app's own, in a thread, and blocks.
"""

from __future__ import annotations

import asyncio
import builtins
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.authoring.conductor import conductor, on_worker_loop
from holdfast.authoring.functions import JobFunction
from holdfast.authoring.job_api import to_millionths
from holdfast.authoring.secrets import Codec
from holdfast.authoring.signature import checked_payload as kept
from holdfast.authoring.signature import fingerprint, user_key
from holdfast.client import transactional
from holdfast.client.budget_ledger import StoreLedger
from holdfast.client.entry_views import chosen, described, following
from holdfast.client.explain import explain, look
from holdfast.client.fork import Forking
from holdfast.client.logs import guard
from holdfast.client.plans import Planning
from holdfast.client.retention import ENDED, evict, purge
from holdfast.client.run_handle import RunHandle, job_of_run
from holdfast.client.run_reads import content, exported, watch
from holdfast.client.store_url import OpenedStore, open_effects
from holdfast.client.verify import judged
from holdfast.client.views import PAGE, Created, Creation, Entry, Explanation, Export, RunFilter, Stats
from holdfast.client.worker_status import GateView, WorkerStatus, gates, stats, workers
from holdfast.config import Config
from holdfast.durations import Duration
from holdfast.errors import InvalidArguments, UnknownEntry, UnknownJob
from holdfast.ids import new_id
from holdfast.journal import BATCH_MAX, Journal
from holdfast.machines import Event, RunRecord, RunStatus, Violation
from holdfast.machines.run_projection import run_name
from holdfast.store import (
    Cancel,
    Evidence,
    Job,
    Limits,
    Pause,
    PauseQueue,
    QueueState,
    Resolve,
    Resume,
    Retry,
    SendSignal,
    SetLimits,
    Store,
    Submit,
)
from holdfast.store.blobs import DirectoryBlobs
from holdfast.store.decide import BUDGET_KEY
from holdfast.store.effects import EffectStore

if TYPE_CHECKING:
    from holdfast.client.app_worker import AppWorker

__all__ = ["App"]


class App(OpenedStore, Planning, Forking):
    """A plugin: its job functions are its entries, its name is their namespace.

    Args:
        name: namespace of the entries; two apps with one name in one database are one app.
        url: where jobs are kept: ``sqlite:///path``, ``postgresql://…`` or ``memory:``. Default: ``HOLDFAST_URL``, or
            ./holdfast.db.
        config: all other settings.
        codec: what encrypts secrets; without it they are kept as references alone. See `holdfast.Secret`.
    """

    def __init__(
        self, name: str = "app", url: str | None = None, *, config: Config | None = None, codec: Codec | None = None
    ) -> None:
        self.config = config if config is not None else Config.read({"url": url} if url is not None else None)
        self.url = url if url is not None else self.config.url
        Planning.__init__(self, name, max_attempts=self.config.max_attempts, codec=codec)
        Forking.__init__(self, name)
        guard()
        self.own_workers: set[AppWorker] = set()  # those that run in this process
        self._opened: Store | None = None
        self._effects: EffectStore | None = None
        self._journals: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Journal] = weakref.WeakKeyDictionary()

    # Starting

    async def astart(
        self, job: JobFunction[..., Any] | str, *args: Any, connection: Any = None, **kwargs: Any
    ) -> RunHandle:
        """Start a run, durably: when this returns, the job will not be lost.

        With a `connection` of your own the job is created in its transaction: committed with it, rolled back with it.
        """
        function = self.entry(job)
        given = connection if connection is not None else function.chosen.connection
        if given is not None:
            made = await transactional.astart(self._relative(function, args, kwargs), self.url, given)
            return RunHandle(self, made, function)
        plain = function.signature.encode(args, kwargs, self.config.payload_bytes_max)
        running = conductor.get()
        if running is not None:  # job code: recorded, and done once (E15)
            name = await running.start_run(function, plain, partial(self._submitted, function, plain))
        else:
            name = await self._submitted(function, plain, new_id())
        return RunHandle(self, name, function)

    async def _submitted(self, function: JobFunction[..., Any], plain: dict[str, Any], name: str) -> str:
        submit = self.submission(function, name, plain, await self._moment(function))
        return str((await self._journal().write(submit)).job)

    def _relative(self, function: JobFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Submit:
        """Put together a command whose times are seconds from a moment that is not known yet."""
        plain = function.signature.encode(args, kwargs, self.config.payload_bytes_max)
        if getattr(function, "replaced", False):
            raise InvalidArguments(
                function.name, "a plan of its own cannot be recorded in your transaction: start it without `connection`"
            )
        return self.submission(function, new_id(), plain, 0.0)

    async def acreate(self, creation: Creation) -> Created:
        """Create a run by the names of its app and job; see `Client.acreate`."""
        function = self.entries.get((creation.plugin_id, creation.entry_id))
        if function is None:
            raise UnknownEntry(f"{creation.plugin_id}.{creation.entry_id}", [".".join(name) for name in self.entries])
        if creation.plan is not None:  # a large one takes a while to check, and others are served meanwhile
            function = await asyncio.to_thread(following, function, creation.plan)
        plain = function.signature.encode((), creation.args, self.config.payload_bytes_max)
        function = chosen(function, creation)
        submit = self.submission(function, new_id(), plain, await self._moment(function))
        submitted = await self._journal().write(submit)
        if submitted.at is None:
            return Created(await self.aget(submitted.job), submitted.existing)
        record = RunRecord(  # nobody can have changed it before it was there, so it need not be read
            run_id=submitted.job,
            plugin_id=submit.plugin,
            entry_id=submit.entry,
            status=RunStatus.QUEUED,
            created_at=submitted.at,
            updated_at=submitted.at,
            task_id=submitted.job,
            idempotency_key=submit.idempotency_key,
            stage="queued",
            attributes=submit.attributes or {},
        )
        return Created(record, existing=False)

    async def astart_many(
        self, job: JobFunction[..., Any] | str, arguments: Iterable[Mapping[str, Any]]
    ) -> builtins.list[str]:
        """Start many runs of one job at once; the list of their ids, in order."""
        function = self.entry(job)
        limit = self.config.payload_bytes_max
        now = await self._moment(function)
        commands = [
            self.submission(function, new_id(), plain, now)
            for plain in [function.signature.encode((), dict(one), limit) for one in arguments]  # all are checked first
        ]
        names: list[str] = []
        for first in range(0, len(commands), BATCH_MAX):
            for submitted in await self._store().commit(commands[first : first + BATCH_MAX]):
                if isinstance(submitted, Exception):
                    raise submitted
                names.append(submitted.job)
        return names

    async def _moment(self, job: JobFunction[..., Any]) -> float:
        """The store's time, where something counts from it."""
        return await self._store().now() if job.timed else 0.0

    def submission(self, job: JobFunction[..., Any], name: str, plain: dict[str, Any], now: float) -> Submit:
        """Put together the command that creates a job."""
        chosen = job.chosen
        limit = chosen.deadline_seconds if chosen.deadline_seconds is not None else job.deadline_seconds
        plan = job.recorded_plan()
        if plan is not None:
            kept(f"the plan of {job.name}", plan, self.config.payload_bytes_max)
        return Submit(
            job=name,
            plugin=job.plugin,
            entry=job.name,
            args=plain,
            queue=chosen.queue or job.queue,
            priority=chosen.priority,
            due_at=now + chosen.delay_seconds if chosen.delay_seconds else None,
            deadline=now + limit if limit else None,
            max_attempts=job.max_attempts,
            idempotency_key=chosen.key,
            fingerprint=fingerprint([plain, plan] if getattr(job, "replaced", False) else plain),
            attributes=chosen.attributes or None,
            plan=plan,
            budget=chosen.budget,
            group=chosen.group,
        )

    # Looking

    async def aget(self, run_id: str) -> RunRecord:
        """Read a run's record."""
        record = await self._store().record(*job_of_run(run_id))
        if record is None:
            raise UnknownJob(run_id)
        return record

    async def apage(self, where: RunFilter, limit: int, before: str | None) -> builtins.list[RunRecord]:
        """List runs; see `Client.apage`."""
        return await self._store().records(where, limit, job_of_run(before) if before is not None else None)

    async def aoutcome(self, run_id: str) -> Any:
        """Read what a run returned; see `Client.aoutcome`."""
        run_id = await self.acurrent(run_id)
        record = await self.aget(run_id)
        if record.status is not RunStatus.SUCCEEDED:
            return None
        job = job_of_run(run_id)[0]
        (last,) = await self._store().events(job, (await self._row(job)).version - 1)  # nothing follows it
        return last.payload.get("result")

    async def acurrent(self, run_id: str) -> str:
        """Give the id of the run that goes on for this one; see `Client.acurrent`."""
        job, number = job_of_run(run_id)
        row = await self._row(job)
        if row.course.continued_as is None or number != row.run:
            return run_id
        first = await self._store().get(row.first) if row.first is not None else row
        newest = await self._store().get(first.newest) if first is not None and first.newest is not None else None
        row = newest if newest is not None else row
        while row.course.continued_as is not None:  # it was continued just now, or the first of the chain is gone
            row = await self._row(row.course.continued_as)
        return run_name(row.id, row.run)

    async def aevents(self, run_id: str, *, after: int = 0, limit: int | None = None) -> builtins.list[Event]:
        """Read what happened; see `Client.aevents`."""
        found = await self._store().events((await self._row(job_of_run(run_id)[0])).id, after)
        return found if limit is None else found[:limit]

    async def aexports(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> builtins.list[Export]:
        """List what a run has produced; see `Client.aexports`."""
        record = await self.aget(run_id)
        rows = await self._store().exports(*job_of_run(run_id), after, limit)
        return [exported(record, row) for row in rows]

    async def acontent(self, run_id: str, number: int) -> AsyncIterator[bytes]:
        """Read one export's bytes; see `Client.acontent`."""
        await self.aget(run_id)
        rows = await self._store().exports(*job_of_run(run_id), number - 1, 1)
        if not rows or rows[0].number != number:
            raise UnknownJob(f"{run_id}/exports/{number}")
        async for piece in content(self._store(), self.blobs(), job_of_run(run_id)[0], rows[0]):
            yield piece

    def awatch(self, run_id: str) -> AsyncIterator[RunRecord]:
        """Give a run's record now and at each change; see `Client.awatch`."""
        return watch(self, run_id)

    async def aexplain(self, run_id: str) -> Explanation:
        """Say where a run is; see `Client.aexplain`."""
        job, number = job_of_run(run_id)
        row = await self._row(job)
        now, late = await self._store().now(), await self._store().evidence(row.id)
        said = explain(row, now, self.entries or None, late, await look(self._store(), row, now))
        if number < row.run:
            said = f"This run has ended; its job was retried, and its newest run is {row.id}.{row.run}. {said}"
        return Explanation(run_id, row.id, row.state, said)

    async def aentries(self) -> builtins.list[Entry]:
        """List the jobs of this app; see `Client.aentries`."""
        return [described(function) for _, function in sorted(self.entries.items())]

    async def astats(self) -> Stats:
        """Count; see `Client.astats`."""
        return await stats(self._store())

    async def averify(self, run_id: str | None = None) -> dict[str, list[Violation]]:
        """Check histories: rules, hash chain, and that each projection is what its stream makes. Empty: all is well."""
        rows = [await self._row(job_of_run(run_id)[0])] if run_id is not None else await self._everything()
        found = {row.id: await judged(self._store(), row) for row in rows}
        return {name: wrong for name, wrong in found.items() if wrong}

    async def aevidence(self, run_id: str) -> builtins.list[Evidence]:
        """List what calls of a run reported when it was too late: shown to people, never applied by itself (E5)."""
        return await self._store().evidence((await self._row(job_of_run(run_id)[0])).id)

    async def aworkers(self) -> builtins.list[WorkerStatus]:
        """List who works on this store, what each runs, and which step that is in since when (L9)."""
        return await workers(self._store())

    async def _everything(self) -> list[Job]:
        rows: list[Job] = []
        while page := await self._store().jobs(limit=1000, before=rows[-1].id if rows else None):
            rows += page
        return rows

    async def _row(self, job: str) -> Job:
        row = await self._store().get(job)
        if row is None:
            raise UnknownJob(job)
        return row

    # Steering

    async def asignal(
        self,
        run_id: str,
        key: str,
        payload: Any = None,
        id: str | None = None,
    ) -> str:
        """Send a signal; what became of it: delivered, kept, repeat or too_late."""
        plain = kept(f"the payload of the signal {key!r}", payload, self.config.payload_bytes_max)
        job, key = job_of_run(run_id)[0], user_key("signal", key)

        async def send(name: str) -> str:
            return str((await self._journal().write(SendSignal(job, key, plain, id or name))).outcome)

        running = conductor.get()
        if running is not None:  # job code: recorded, and done once (E15)
            return await running.send_signal({"job": job, "key": key, "payload": plain}, send)
        return await send(new_id())

    async def acancel(self, run_id: str, reason: str | None = None, *, actor: str | None = None) -> RunRecord:
        """Ask a run to cancel; at once if nobody runs it."""
        return await self._steer(Cancel(job_of_run(run_id)[0], reason, actor))

    async def aretry(self, run_id: str, *, actor: str, reason: str) -> RunRecord:
        """Reopen a failed job: the record of its new run."""
        return await self._steer(Retry(job_of_run(run_id)[0], actor, reason))

    async def apause(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        """Pause a run at its next step boundary; at once if it is queued."""
        return await self._steer(Pause(job_of_run(run_id)[0], actor))

    async def aresume(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        """Let a paused run go on."""
        return await self._steer(Resume(job_of_run(run_id)[0], actor))

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
        answers = [("done", done is not msgspec.UNSET), ("not_done", not_done), ("fail", fail)]
        given = [answer for answer, chosen in answers if chosen]
        if len(given) != 1:
            raise ValueError("answer with one of done=result, not_done=True, fail=True")
        result = done if given == ["done"] else None
        result = kept(f"the result of {step}", result, self.config.payload_bytes_max)
        return await self._steer(Resolve(job_of_run(run_id)[0], step, given[0], result, actor))

    async def apurge(self, *, older_than: Duration, statuses: Iterable[str] = ENDED, limit: int | None = None) -> int:
        """Remove runs that ended so long ago, for good, in batches; how many. See `holdfast.client.retention`."""
        return await purge(self._store(), self._outside(), older_than, statuses, limit)

    async def aevict(self) -> int:
        """Remove what `keep_seconds` and `keep_runs` do not keep; how many. Workers do it by themselves."""
        return await evict(self._store(), self._outside(), self.config.keep_seconds, self.config.keep_runs)

    def _outside(self) -> builtins.list[EffectStore | DirectoryBlobs]:
        """Where else something of a job may be kept."""
        return [place for place in (self.effects(), self.blobs()) if place is not None]

    async def _steer(self, command: Any) -> RunRecord:
        kept("what is asked for", command)
        row: Job = await self._journal().write(command)
        record = await self._store().record(row.id, row.run)
        return record if record is not None else row.record()

    # The plain colour of what an app alone can do

    def start(self, job: JobFunction[..., Any] | str, *args: Any, connection: Any = None, **kwargs: Any) -> RunHandle:
        """Start a run; see `astart`."""
        function = self.entry(job)
        given = connection if connection is not None else function.chosen.connection
        if given is None:
            return self.block(self.astart(function, *args, **kwargs))
        return RunHandle(self, transactional.start(self._relative(function, args, kwargs), self.url, given), function)

    def start_many(
        self, job: JobFunction[..., Any] | str, arguments: Iterable[Mapping[str, Any]]
    ) -> builtins.list[str]:
        """Start many runs; see `astart_many`."""
        return self.block(self.astart_many(job, arguments))

    def worker(
        self, *, concurrency: int | None = None, queues: Iterable[str] | None = None, name: str | None = None
    ) -> AppWorker:
        """Make a worker for this app's jobs; all queues unless some are named.

        A name is given by a supervisor, which tells the store when the worker's process has died. It must be a new one.
        """
        from holdfast.client.app_worker import AppWorker  # noqa: PLC0415 - a program that only asks needs no engine

        return AppWorker(self, concurrency, frozenset(queues) if queues else None, name)

    # Gates, grants, limits of queues

    def ledger(self) -> StoreLedger:
        """Give a ledger for budgets that all processes of this store share: ``BudgetGate(…, ledger=app.ledger())``."""
        return StoreLedger(self.store)

    def own_gates(self) -> builtins.list[GateView]:
        """List the readiness of the workers in this process; see `Client.own_gates`."""
        return [view for one in list(self.own_workers) if (view := one.gate()) is not None]

    async def agates(self) -> builtins.list[GateView]:
        """List gates; see `Client.agates`."""
        return await gates(self.store())

    async def agrant(
        self,
        run_id: str,
        granted: Mapping[str, float] | None = None,
        *,
        actor: str | None = None,
        id: str | None = None,
        **more: float,
    ) -> str:
        """Let a run spend more than its budget; see `Client.agrant`. Who granted it is in the signal's id."""
        name = f"grant by {actor or 'somebody'}: {id or new_id()}"
        given: dict[str, Any] = {**(granted or {}), **more}
        command = SendSignal(job_of_run(run_id)[0], BUDGET_KEY, to_millionths("grant", given), name)
        (answer,) = await self.store().commit([command])
        if isinstance(answer, Exception):
            raise answer
        return str(answer.outcome)

    async def alimits(self) -> builtins.list[QueueState]:
        """List limits; see `Client.alimits`."""
        return await self.store().limits()

    async def aset_limits(self, limits: Limits, *, actor: str | None = None) -> QueueState:
        """Set limits; see `Client.aset_limits`."""
        return await self._change_queue(SetLimits(limits, actor), limits.queue)

    async def apause_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Pause a queue; see `Client.apause_queue`."""
        return await self._change_queue(PauseQueue(queue, paused=True, actor=actor), queue)

    async def aresume_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Have a queue go on; see `Client.aresume_queue`."""
        return await self._change_queue(PauseQueue(queue, paused=False, actor=actor), queue)

    async def _change_queue(self, command: SetLimits | PauseQueue, queue: str) -> QueueState:
        (answer,) = await self.store().commit([command])
        if isinstance(answer, Exception):
            raise answer
        found = [state for state in await self.store().limits() if state.limits.queue == queue]
        blank = QueueState(
            limits=Limits(queue=queue), running=0, queued=0, tokens=None, held_until=None, groups={}
        )  # without limits nobody counts
        return found[0] if found else blank

    # Machinery

    def store(self) -> Store:
        """Give the store, opened."""
        return self._store()

    def effects(self) -> EffectStore | None:
        """Give the effect store, opened; None if results are kept in the job's own database alone."""
        with self._opening:
            if self._effects is None:
                self._effects = open_effects(self.config.effects)
            return self._effects

    def blobs(self) -> DirectoryBlobs | None:
        """Give the place of large exports; None if they are kept in the job's own database."""
        return DirectoryBlobs(self.config.blobs) if self.config.blobs else None

    async def aclose(self) -> None:
        """Let go of the store."""
        if self._effects is not None:
            effects, self._effects = self._effects, None
            await effects.close()
        if self._opened is not None:
            store, self._opened = self._opened, None
            await store.close()

    def _store(self) -> Store:
        with self._opening:
            if self._opened is None:
                config = self.config
                self._opened = self.open_own(self.url, config.poll_seconds, config.busy_seconds, config.lease_seconds)
            return self._opened

    def _journal(self) -> Journal:
        loop = asyncio.get_running_loop()
        if (found := self._journals.get(loop)) is None:
            found = self._journals[loop] = Journal(self._store())
        return found


# Job code runs on a loop of its own, on which the store was not opened.
for _verb in (
    "acreate", "afork", "aget", "apage", "aoutcome", "acurrent", "aevents", "aexports", "aexplain", "astats",
    "averify", "aevidence", "aworkers", "agates", "acancel", "aretry", "apause", "aresume", "aresolve", "agrant",
    "apurge", "aevict",
):  # fmt: skip
    setattr(App, _verb, on_worker_loop(getattr(App, _verb)))
