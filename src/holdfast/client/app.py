"""The app: it declares jobs, and it is the client that starts, reads and controls their runs.

An `App` opens its store on first use. Every operation has two forms, such as ``start`` and ``astart``. The async form
runs on the caller's loop. The blocking form runs on the app's own loop, in a thread, and blocks the caller.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import math
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from holdfast.authoring.conductor import conductor, on_worker_loop
from holdfast.authoring.functions import JobFunction
from holdfast.authoring.job_api import to_millionths
from holdfast.authoring.secrets import Codec
from holdfast.authoring.signature import checked_name, fingerprint, user_key
from holdfast.authoring.signature import checked_payload as kept
from holdfast.client import transactional
from holdfast.client.bulk import BULK_MAX, PURGE_STATUSES, BulkResult, apply_to_runs
from holdfast.client.entry_views import apply_options, describe_entry, with_plan
from holdfast.client.explain import explain, look
from holdfast.client.fork import fork_command, signals_after
from holdfast.client.interface import Client, blocking
from holdfast.client.logs import guard
from holdfast.client.overview.builds import BuildMove, BuildStatus, move_build, read_builds, stranded_build
from holdfast.client.overview.family import Family, read_family
from holdfast.client.overview.marked_changes import REPLAYS_MAX, RUNS_MAX, Changes, read_changes
from holdfast.client.overview.plan_view import PlanView
from holdfast.client.overview.questions import (
    Misfit,
    Question,
    answered_by,
    asked_misfit,
    check_answer,
    misfit_text,
    questions,
    version_of_try,
)
from holdfast.client.overview.series import MINUTES, Series, read_series
from holdfast.client.overview.story import STORY_PAGE, StoryEvent
from holdfast.client.overview.story_cache import StoryCache
from holdfast.client.plans import Planning
from holdfast.client.portal import Portal
from holdfast.client.process_fork import abandon_store, leave
from holdfast.client.retention.removal import ENDED, evict, evict_audit, purge, remove_jobs
from holdfast.client.run_handle import RunHandle, job_of_run
from holdfast.client.run_reads import RunWatcher, content, ended, exported, watch
from holdfast.client.schedules.store_schedules import StoreSchedules, declaration_of
from holdfast.client.store_url import open_effects, open_store
from holdfast.client.verify import violations_of, wrong_schedules
from holdfast.client.views import PAGE, Created, Creation, Entry, Explanation, Export, RunFilter, Stats, run_filter
from holdfast.client.worker_status import GateView, WorkerStatus, gates, stats, workers
from holdfast.config import Config, check_build
from holdfast.durations import Duration
from holdfast.errors import (
    HoldfastError,
    InvalidArguments,
    InvalidResult,
    InvalidSetting,
    InvalidTransition,
    NonDeterminism,
    QuestionClosed,
    ScheduleExists,
    StoreUnavailable,
    UnknownEntry,
    UnknownJob,
)
from holdfast.group_commit import BATCH_MAX, Journal, ThreadJournal
from holdfast.ids import new_id
from holdfast.import_guard import refuse_while_importing
from holdfast.machines import TERMINAL_JOB_STATES, Event, RunRecord, RunStatus, Violation
from holdfast.machines.keys import BUDGET_KEY, BUILTIN
from holdfast.machines.run_projection import run_name
from holdfast.plans.builder import Draft
from holdfast.plans.model import Plan
from holdfast.schedules.retention_rules import Retention
from holdfast.store import (
    Answer,
    Cancel,
    Evidence,
    Job,
    Limits,
    Pause,
    PauseQueue,
    Purge,
    QueueState,
    Resolve,
    Resume,
    Retry,
    SendSignal,
    SetLimits,
    Store,
    Submit,
)
from holdfast.store.audit import AuditRow, audited, audited_creation
from holdfast.store.blobs import DirectoryBlobs
from holdfast.store.commands import Submitted
from holdfast.store.effects import EffectStore
from holdfast.store.limits import no_limits
from holdfast.store.memory import MemoryStore
from holdfast.store.request_keys import KeepAnswer, Repeat, once, request_key
from holdfast.store.result_blobs import ResultBlob, read_pieces, read_result, reference_in, with_results
from holdfast.store.run_queries import RecordCounts
from holdfast.store.schedule_commands import Declaration
from holdfast.store.shared_budgets import StoreLedger

if TYPE_CHECKING:
    from holdfast.client.app_worker import AppWorker

J = TypeVar("J", bound=JobFunction[..., Any])

MISFIT_ANSWERS = ("accept", "build", "fork", "fail")  # about code that does not fit a history
COUNTED_MAX = 20_000  # jobs that one count of runs looks at


class App(Planning, Client):
    """A set of durable jobs, and the client that starts and controls their runs.

    Declare jobs with ``@app.job``, ``@app.step`` and ``@app.tool``. Start them with ``app.start(job, …)``. Run them
    with ``app.worker().run()`` or ``holdfast worker``::

        app = App("shop", "sqlite:///jobs.db")

        @app.job
        def checkout(order: int) -> str: ...

        run = app.start(checkout, order=1)
        print(run.result())

    Args:
        name: Namespace of the jobs. Two apps with the same name in one database are the same app.
        url: The store: ``sqlite:///path``, ``postgresql://…`` or ``memory:``. Default: ``HOLDFAST_URL``, or
            ./holdfast.db.
        config: All other settings. Default: the ``HOLDFAST_…`` environment variables.
        codec: Encrypts secrets. Without a codec the store keeps only references to them. See `holdfast.Secret`.
        build: The build of the code, such as ``"1.4.2"``. ``HOLDFAST_BUILD`` has precedence. Default: the version of
            the installed distribution and the git revision, as far as they are known.
        retention: How long runs stay after their end: a duration such as ``"30d"``, or a mapping by status and job,
            such as ``{"succeeded": "7d", "failed": "90d", "shop.checkout": "keep"}``. Workers remove older ones.
            Default: ``HOLDFAST_RETENTION``, or all runs stay.
    """

    _is_builtin = False  # whether it declares Holdfast's own jobs

    def __init__(
        self,
        name: str = "app",
        url: str | None = None,
        *,
        config: Config | None = None,
        codec: Codec | None = None,
        build: str | None = None,
        retention: Retention | None = None,
    ) -> None:
        if name == BUILTIN and not self._is_builtin:
            raise InvalidSetting("name", name, "Holdfast's own jobs have this name: give the app another one")
        self.config = config if config is not None else Config.read({"url": url} if url is not None else None)
        if retention is not None:
            self.config = msgspec.structs.replace(self.config, retention=retention)
        self.url = url if url is not None else self.config.url
        Planning.__init__(self, name, max_attempts=self.config.max_attempts, codec=codec)
        Client.__init__(self, name)
        if build is not None:
            check_build(build)
        self._found_build: tuple[str | None] | None = None  # once it was looked for
        self._build = build
        guard()
        self.own_workers: set[AppWorker] = set()  # workers that run in this process
        self.declared_schedules: dict[str, Declaration] = {}  # by name
        self._opened: Store | None = None
        self._effects: EffectStore | None = None
        self._is_opening = False  # whether a thread opens the store
        self._forked_memory = False  # whether the parent of this process had a store in memory
        self._threads: ThreadJournal | None = None
        self._journals: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Journal] = weakref.WeakKeyDictionary()
        self._stories = StoryCache()
        self._watchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, RunWatcher] = weakref.WeakKeyDictionary()

    @property
    def build(self) -> str | None:
        """The build of the code, which attempts and workers show. None if it is not known.

        The first of these: ``HOLDFAST_BUILD``, ``App(build=…)``, and what the files of the code say. That is the
        version of the installed distribution that has the app's jobs, and the git revision.
        """
        if self.config.build is not None or self._build is not None:
            return self.config.build or self._build
        if self._found_build is None:  # not a cached_property: a fork may come while it holds its lock
            self._found_build = (self._find_build(),)
        return self._found_build[0]

    def _find_build(self) -> str | None:
        from holdfast.build_id import found_build  # noqa: PLC0415 - most programs run no worker

        jobs = sorted(self.entries.values(), key=self._is_other)
        modules = [getattr(job.function, "__module__", None) or "" for job in jobs]  # code that `exec` runs has none
        return next((found_build(name) for name in modules if name and not name.startswith("holdfast.")), None)

    def _is_other(self, job: JobFunction[..., Any]) -> bool:
        return job.plugin != self.name

    # Start

    async def astart(
        self, job: JobFunction[..., Any] | str, *args: Any, connection: Any = None, **kwargs: Any
    ) -> RunHandle:
        """Start a run of a job. When this returns, the run is durable. See `start` for the arguments and errors."""
        refuse_while_importing("starts a run")
        function = self.entry(job)
        own_connection = connection if connection is not None else function.chosen.connection
        if own_connection is not None:
            job_id = await transactional.astart(self._relative(function, args, kwargs), self.url, own_connection)
            return RunHandle(self, job_id, function)
        encoded = function.signature.encode(args, kwargs, self.config.payload_bytes_max)
        running = conductor.get()
        if running is not None:  # in job code: the engine records the start and does it once (E15)
            name = await running.start_run(function, encoded, partial(self._submitted, function, encoded))
        else:
            name = await self._submitted(function, encoded, new_id())
        return RunHandle(self, name, function)

    async def _submitted(self, function: JobFunction[..., Any], encoded: dict[str, Any], name: str) -> str:
        submit = self.submission(function, name, encoded, await self._moment(function))
        return str((await self._journal().write(submit)).job)

    def _relative(self, function: JobFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Submit:
        """Build a command whose times are seconds after its transaction. The server adds its own clock."""
        encoded = function.signature.encode(args, kwargs, self.config.payload_bytes_max)
        if getattr(function, "replaced", False):
            raise InvalidArguments(
                function.name, "a run with its own plan cannot start in your transaction: start it without `connection`"
            )
        return self.submission(function, new_id(), encoded, 0.0)

    async def acreate(self, creation: Creation) -> Created:
        submit = await self._creation(creation)
        return await self._created(submit, await self._journal().write(_audited_create(submit)))

    async def acreate_many(self, creations: Sequence[Creation]) -> builtins.list[Created | HoldfastError]:
        submits = [await self._creation(creation) for creation in creations]
        if request_key.get() is not None:  # after the checks: a refused batch leaves no key
            await self.keep_answer({})
        outcomes: list[Created | HoldfastError] = []
        for first in range(0, len(submits), BATCH_MAX):
            batch = submits[first : first + BATCH_MAX]
            answers = await self._store().commit([_audited_create(submit) for submit in batch])
            for submit, submitted in zip(batch, answers, strict=True):
                if isinstance(submitted, HoldfastError):
                    outcomes.append(submitted)
                elif isinstance(submitted, Exception):
                    raise submitted
                else:
                    outcomes.append(await self._created(submit, submitted))
        return outcomes

    async def _creation(self, creation: Creation) -> Submit:
        """Check a creation and build its command."""
        function = self.entries.get((creation.plugin_id, creation.entry_id))
        if function is None:
            raise UnknownEntry(f"{creation.plugin_id}.{creation.entry_id}", [".".join(name) for name in self.entries])
        if creation.plan is not None:  # in a thread: the check of a large plan would block the loop
            function = await asyncio.to_thread(with_plan, function, creation.plan)
        encoded = function.signature.encode((), creation.args, self.config.payload_bytes_max)
        function = apply_options(function, creation)
        submit = self.submission(function, new_id(), encoded, await self._moment(function))
        return msgspec.structs.replace(submit, trace_id=creation.trace_id) if creation.trace_id else submit

    async def _created(self, submit: Submit, submitted: Submitted) -> Created:
        if submitted.at is None:
            return Created(await self.aget(submitted.job), submitted.existing)
        record = RunRecord(  # the run is new, so its record is known without a read
            run_id=submitted.job,
            plugin_id=submit.plugin,
            entry_id=submit.entry,
            status=RunStatus.QUEUED,
            created_at=submitted.at,
            updated_at=submitted.at,
            task_id=submitted.job,
            idempotency_key=submit.idempotency_key,
            trace_id=submit.trace_id,
            stage="queued",
            attributes=submit.attributes or {},
        )
        return Created(record, existing=False)

    async def astart_many(
        self, job: JobFunction[..., Any] | str, arguments: Iterable[Mapping[str, Any]]
    ) -> builtins.list[str]:
        """Start many runs of one job and return their ids in order.

        Args:
            job: The job function, with or without ``.options(…)``, or its name.
            arguments: The keyword arguments of each run. All are checked before the first run is created.
        """
        refuse_while_importing("starts runs")
        function = self.entry(job)
        limit = self.config.payload_bytes_max
        now = await self._moment(function)
        encoded = [function.signature.encode((), dict(kwargs), limit) for kwargs in arguments]
        commands = [self.submission(function, new_id(), args, now) for args in encoded]
        names: list[str] = []
        for first in range(0, len(commands), BATCH_MAX):
            for submitted in await self._store().commit(commands[first : first + BATCH_MAX]):
                if isinstance(submitted, Exception):
                    raise submitted
                names.append(submitted.job)
        return names

    async def afork(
        self,
        run_id: str | RunHandle,
        *,
        from_node: str | None = None,
        from_step: str | None = None,
        plan: Plan | Draft | dict[str, Any] | None = None,
        key: str | None = None,
    ) -> RunHandle:
        events = await self.aevents(run_id.id if isinstance(run_id, RunHandle) else run_id)
        submit = await fork_command(events, self.names(), from_node, from_step, plan)
        kept("the plan of the fork", submit.plan, self.config.payload_bytes_max)
        if key is not None:
            submit = msgspec.structs.replace(submit, idempotency_key=checked_name("key", key))
        origin = {"from": run_id.id if isinstance(run_id, RunHandle) else run_id}
        submitted = await self._journal().write(audited_creation(submit, "fork", detail=origin))
        return RunHandle(self, submitted.job, self.entries.get((submit.plugin, submit.entry)))

    async def _moment(self, job: JobFunction[..., Any]) -> float:
        """Return the store's time if a delay or deadline needs it, else 0."""
        return await self._store().now() if job.timed else 0.0

    def submission(self, job: JobFunction[..., Any], name: str, encoded: dict[str, Any], now: float) -> Submit:
        """Build the command that creates a job with the id `name` and encoded arguments."""
        chosen = job.chosen
        limit = chosen.deadline_seconds if chosen.deadline_seconds is not None else job.deadline_seconds
        plan = job.recorded_plan()
        if plan is not None:
            kept(f"the plan of {job.name}", plan, self.config.payload_bytes_max)
        return Submit(
            job=name,
            plugin=job.plugin,
            entry=job.name,
            args=encoded,
            queue=chosen.queue or job.queue,
            priority=chosen.priority,
            due_at=now + chosen.delay_seconds if chosen.delay_seconds else None,
            deadline=now + limit if limit else None,
            max_attempts=job.max_attempts,
            idempotency_key=chosen.key,
            fingerprint=fingerprint([encoded, plan] if getattr(job, "replaced", False) else encoded),
            attributes=chosen.attributes or None,
            plan=plan,
            budget=chosen.budget,
            group=chosen.group,
        )

    # Read

    async def aget(self, run_id: str) -> RunRecord:
        record = await self._store().record(*job_of_run(run_id))
        if record is None:
            raise UnknownJob(run_id)
        return record

    async def aget_outcome(self, run_id: str) -> tuple[RunRecord, dict[str, Any] | None]:
        """Return the record of a run, and the payload of the event that ended it if it is the newest of its job."""
        found = await self._store().outcome(*job_of_run(run_id))
        if found is None:
            raise UnknownJob(run_id)
        record, last = found
        return record, last.payload if last is not None else None

    async def apage(self, where: RunFilter, limit: int, before: str | None) -> builtins.list[RunRecord]:
        return await self._store().records(where, limit, job_of_run(before) if before is not None else None)

    async def acount_runs(self, where: RunFilter, before: str | None = None) -> RecordCounts:
        """Count the runs that match a filter, by status, among the newest 20,000 jobs from before the given job."""
        return await self._store().count_records(where, COUNTED_MAX, before)

    async def aoutcome(self, run_id: str) -> Any:
        run_id = await self.acurrent(run_id)
        record = await self.aget(run_id)
        if record.status is not RunStatus.SUCCEEDED:
            return None
        return await self.aresult_of(record)

    async def aresult_of(self, record: RunRecord, ending: dict[str, Any] | None = None) -> Any:
        payload = ending if ending is not None else await self.aending(record.run_id)
        large = reference_in(payload)
        if large is None:
            return payload.get("result")
        return await read_result(self._store().blob, self.blobs(), job_of_run(record.run_id)[0], large)

    async def aending(self, run_id: str) -> dict[str, Any]:
        """Return the payload of the event that ended a succeeded run: the last one of its job."""
        last = await self._store().last_event(job_of_run(run_id)[0])
        if last is None:
            raise UnknownJob(run_id)
        return last.payload

    async def awith_results(self, events: Iterable[Event]) -> builtins.list[Event]:
        """Return events with their large results, as if these were in the events themselves."""
        return await with_results(self._store().blob, self.blobs(), events)

    def aresult_pieces(self, run_id: str, result: ResultBlob) -> AsyncIterator[bytes]:
        """Yield the JSON of a large result, a piece at a time."""
        return read_pieces(self._store().blob, self.blobs(), job_of_run(run_id)[0], result)

    async def acurrent(self, run_id: str) -> str:
        job, number = job_of_run(run_id)
        row = await self._row(job)
        if row.course.continued_as is None or number != row.run:
            return run_id
        first = await self._store().get(row.first) if row.first is not None else row
        newest = await self._store().get(first.newest) if first is not None and first.newest is not None else None
        row = newest if newest is not None else row
        while row.course.continued_as is not None:  # continued since that read, or the chain's first job is removed
            row = await self._row(row.course.continued_as)
        return run_name(row.id, row.run)

    async def aevents(self, run_id: str, *, after: int = 0, limit: int | None = None) -> builtins.list[Event]:
        job = job_of_run(run_id)[0]
        events = await self._store().events(job, after, limit)
        if not events:
            await self._row(job)  # raises if there is no such job
        return events

    async def astory(self, run_id: str, *, after: int = 0, limit: int = STORY_PAGE) -> builtins.list[StoryEvent]:
        return await self._stories.read(self._store(), await self._row(job_of_run(run_id)[0]), after, limit)

    async def arun_plan(self, run_id: str) -> PlanView | None:
        return await self._stories.plan(self._store(), await self._row(job_of_run(run_id)[0]))

    async def aseries(self, *, minutes: int = MINUTES, queue: str | None = None) -> Series:
        return await read_series(self._store(), minutes, queue)

    async def afamily(self, run_id: str, *, group: str | None = None) -> Family:
        return await read_family(self._store(), *job_of_run(run_id), group)

    async def ainbox(
        self,
        *,
        after: str | None = None,
        limit: int = PAGE,
        kind: str | None = None,
        group: str | None = None,
        run_id: str | None = None,
    ) -> builtins.list[Question]:
        run = job_of_run(run_id) if run_id is not None else None
        return await questions(self._store(), after=after, limit=limit, kind=kind, group=group, run=run)

    async def abuilds(self) -> builtins.list[BuildStatus]:
        return await read_builds(self._store())

    async def amove_build(self, old: str, new: str, *, actor: str | None = None, check: bool = True) -> BuildMove:
        return await move_build(self, self._store(), old, new, actor, check=check)

    async def achanges(self, *, limit: int = RUNS_MAX, replay: bool = True, before: str | None = None) -> Changes:
        return await read_changes(self, self._store(), limit, REPLAYS_MAX if replay else 0, before)

    async def aexports(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> builtins.list[Export]:
        record = await self.aget(run_id)
        rows = await self._store().exports(*job_of_run(run_id), after, limit)
        return [exported(record, row) for row in rows]

    async def acontent(self, run_id: str, number: int) -> AsyncIterator[bytes]:
        await self.aget(run_id)
        rows = await self._store().exports(*job_of_run(run_id), number - 1, 1)
        if not rows or rows[0].number != number:
            raise UnknownJob(f"{run_id}/exports/{number}")
        async for piece in content(self._store(), self.blobs(), job_of_run(run_id)[0], rows[0]):
            yield piece

    def awatch(self, run_id: str) -> AsyncIterator[RunRecord]:
        return watch(self, run_id)

    async def aended(self, run_id: str) -> tuple[RunRecord, dict[str, Any] | None]:
        return await ended(self, run_id)

    async def aexplain(self, run_id: str) -> Explanation:
        job, number = job_of_run(run_id)
        row = await self._row(job)
        now, late = await self._store().now(), await self._store().evidence(row.id)
        text = explain(row, now, self.entries or None, late, await look(self._store(), row, now))
        if number < row.run:
            text = f"This run has ended. Its job was retried, and the newest run is {row.id}.{row.run}. {text}"
        return Explanation(run_id, row.id, row.state, text)

    async def aentries(self) -> builtins.list[Entry]:
        """List the jobs of this app."""
        listed = [(key, function) for key, function in sorted(self.entries.items()) if key[1] == function.name]
        return [describe_entry(function) for _, function in listed]

    async def astats(self) -> Stats:
        return await stats(self._store())

    async def averify(self, run_id: str | None = None) -> dict[str, list[Violation]]:
        """Check histories: the rules, the hash chain, and that each projection follows from its stream.

        Args:
            run_id: The run to check. None checks every job and every schedule of the store.

        Returns:
            The violations by job, or by ``schedule:`` and the id of a schedule. An empty dict means that all histories
            are valid.
        """
        wrong: dict[str, list[Violation]] = {}
        rows = [await self._row(job_of_run(run_id)[0])] if run_id is not None else await self._store().jobs()
        while rows:
            for row in rows:
                if problems := await violations_of(self._store(), row):
                    wrong[row.id] = problems
                await asyncio.sleep(0)  # a store in memory answers without a pause
            rows = await self._store().jobs(before=rows[-1].id) if run_id is None else []
        return wrong if run_id is not None else wrong | await wrong_schedules(self._store())

    async def aevidence(self, run_id: str, *, after: int = 0, limit: int | None = None) -> builtins.list[Evidence]:
        return await self._store().evidence((await self._row(job_of_run(run_id)[0])).id, after, limit)

    async def aworkers(self) -> builtins.list[WorkerStatus]:
        return await workers(self._store())

    async def _aversions(self, jobs: Sequence[str]) -> dict[str, Any]:
        return await self._store().versions(jobs)

    async def _row(self, job: str) -> Job:
        row = await self._store().get(job)
        if row is None:
            raise UnknownJob(job)
        return row

    # Control

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
        encoded = kept(f"the payload of the signal {key!r}", payload, self.config.payload_bytes_max)
        job, key = job_of_run(run_id)[0], user_key("signal", key)

        async def send(name: str) -> str:
            signal = SendSignal(job, key, encoded, id or name, node=node)
            sent = audited_creation(signal, "signal", job, {"key": key})
            outcome = _outcome(await self._journal().write(once(sent, job)))
            if outcome == "asks":
                asking = job if node is not None else job_of_run(await self.acurrent(run_id))[0]
                await check_answer(self._store(), asking, key, encoded, node)
                answer = audited(signal, "answer", job, actor, {"key": key})
                by = answer.actor if answer.said is None else f"{answer.actor} as {answer.said}"
                command = msgspec.structs.replace(signal, checked=True, actor=by)
                answer = msgspec.structs.replace(answer, command=command)
                outcome = _outcome(await self._journal().write(once(answer, job)))
            return outcome

        running = conductor.get()
        if running is not None:  # in job code: the engine records the signal and sends it once (E15)
            asked = {"node": node} if node is not None else {}
            return await running.send_signal({"job": job, "key": key, "payload": encoded, **asked}, send)
        try:
            return await send(new_id())
        except QuestionClosed as closed:
            raise await self._with_answerer(closed) from None

    async def _with_answerer(self, closed: QuestionClosed) -> QuestionClosed:
        """Return the error with the name of the person who has answered, if it is known."""
        return QuestionClosed(closed.job, closed.node, await answered_by(self._store(), closed.job, closed.node))

    async def acancel(self, run_id: str, reason: str | None = None, *, actor: str | None = None) -> RunRecord:
        """Request the cancellation of a run. A run that no worker holds is canceled at once."""
        return await self._apply(Cancel(job_of_run(run_id)[0], reason, actor))

    async def aretry(self, run_id: str, *, actor: str, reason: str) -> RunRecord:
        job = job_of_run(run_id)[0]
        return await self._apply(Retry(job, actor, reason, await stranded_build(self._store(), job)))

    async def apause(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        return await self._apply(Pause(job_of_run(run_id)[0], actor))

    async def aresume(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        return await self._apply(Resume(job_of_run(run_id)[0], actor))

    async def aanswer(
        self, run_id: str, answer: str, *, node: str | None = None, actor: str | None = None
    ) -> RunRecord:
        if answer not in MISFIT_ANSWERS:
            raise InvalidArguments("answer", f"it must be one of {', '.join(MISFIT_ANSWERS)}, got {answer!r:.80}")
        job = job_of_run(run_id)[0]
        while True:
            row, asked, misfit = await asked_misfit(self._store(), job, node)
            command = await self._misfit_answer(row, asked, misfit, answer, actor)
            try:
                record = await self._apply(command)
            except QuestionClosed:
                if (await self._row(job)).version == row.version:
                    raise
                continue  # the stream has moved since: ask again whether the question is open
            return record if command.fork is None else await self.aget(command.fork.job)

    async def _misfit_answer(self, row: Job, node: str, misfit: Misfit, answer: str, actor: str | None) -> Answer:
        """Build the command for an answer about code that does not fit a history."""
        more: dict[str, Any] = {}
        if answer == "build":
            if not misfit.has_other_build:
                raise InvalidArguments("answer", "no other build is known that has recorded the history of this run")
            more["build"] = misfit.began
        elif answer == "accept":
            more["nodes"] = tuple(misfit.nodes)
        elif answer == "fork":
            events = await self._store().events(row.id)
            more["fork"] = await fork_command(events, self.names(), None, misfit.nodes[0], None)
            more["signals"] = tuple(signals_after(events, misfit.nodes[0]))
        else:
            error = {"code": NonDeterminism.__name__, "message": misfit_text(misfit)}
            more["error"] = {**error, "error": error}
        return Answer(row.id, node, answer, row.version, actor, **more)

    async def _resolve(
        self, run_id: str, step: str, answer: str, result: Any, actor: str | None, started: int | None
    ) -> RunRecord:
        result = kept(f"the result of {step}", result, self.config.payload_bytes_max)
        job = job_of_run(run_id)[0]
        call = self.calls_by_name().get(step.partition(":")[0]) if answer == "done" else None
        if call is not None and (row := await self._store().get(job)) is not None and row.plugin == self.name:
            try:
                call.signature.encode_outcome(result, self.config.payload_bytes_max)
            except InvalidResult as error:
                raise InvalidArguments(f"the result of {call.name}", error.reason) from error
        if started is None:
            return await self._apply(Resolve(job, step, answer, result, actor))
        while True:
            version = await version_of_try(self._store(), job, step, started)
            try:  # with version 0 as well: only the store knows whether this request is a repeat
                return await self._apply(Resolve(job, step, answer, result, actor, version))
            except QuestionClosed as closed:
                if version == 0:
                    raise await self._with_answerer(closed) from None

    async def apurge(self, *, older_than: Duration, statuses: Iterable[str] = ENDED, limit: int | None = None) -> int:
        batches = count()

        def request(command: Purge) -> Any:
            detail = {"ended_before": command.before, "states": sorted(command.states)}
            return once(audited(command, "purge", "", None, detail), str(next(batches)))

        return await purge(self._store(), self._outside(), older_than, statuses, limit, wrap=request)

    async def keep_answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer that the request in this context was given first. Without a request key, return this one.

        Raises:
            IdempotencyKeyReused: The key was used for another request.
        """
        (kept_answer,) = await self._store().commit([once(KeepAnswer(answer))])
        if isinstance(kept_answer, Exception):
            raise kept_answer
        return kept_answer.answer if isinstance(kept_answer, Repeat) else answer

    async def apurge_runs(
        self,
        *,
        actor: str | None = None,
        dry_run: bool = False,
        limit: int = BULK_MAX,
        before: str | None = None,
        **where: Any,
    ) -> BulkResult:
        return await apply_to_runs(
            self, run_filter(where), PURGE_STATUSES, partial(self.remove_runs, actor=actor),
            limit=limit, before=before, dry_run=dry_run,
        )  # fmt: skip

    async def remove_runs(self, run_ids: builtins.list[str], *, actor: str | None = None) -> builtins.list[Any]:
        """Remove the jobs of ended runs in one transaction. Return the id of each run, or the error of a refusal."""
        jobs = tuple(job_of_run(run_id)[0] for run_id in run_ids)
        command = audited(Purge(math.inf, len(jobs), jobs=jobs), "purge", "", actor, {"runs": run_ids})
        removed = await remove_jobs(self._store(), self._outside(), once(command, jobs[0]))
        return [run_id if job in removed else await self._stays(job) for run_id, job in zip(run_ids, jobs, strict=True)]

    async def _stays(self, job: str) -> HoldfastError:
        """Return why a job was not removed."""
        row = await self._store().get(job)
        if row is None:
            return UnknownJob(job)
        why = "its parent or its chain still needs it" if row.state in TERMINAL_JOB_STATES else "it has not ended"
        return InvalidTransition(row.state, "purge", detail=f"{why}, so it stays", rule="R10")

    async def aaudit(self, *, before: int | None = None, limit: int = PAGE) -> builtins.list[AuditRow]:
        return await self._store().audit(before, limit)

    async def aevict(self) -> int:
        """Remove the runs that `keep_seconds` and `keep_runs` do not keep, and return their number.

        Also remove the rows of the audit log that `keep_audit_seconds` does not keep. Workers call this by themselves.
        """
        await evict_audit(self._store(), self.config.keep_audit_seconds)
        return await evict(self._store(), self._outside(), self.config.keep_seconds, self.config.keep_runs)

    def _outside(self) -> builtins.list[EffectStore | DirectoryBlobs]:
        """Return the places outside the store that may hold data of jobs."""
        return [place for place in (self.effects(), self.blobs()) if place is not None]

    async def _apply(self, command: Any) -> RunRecord:
        if not isinstance(command, Answer):  # a fork in it has the events of its run, which have their own limits
            kept("the request", command)
        names = ("reason", "node", "answer", "build", "released")
        detail = {name: value for name in names if (value := getattr(command, name, None)) is not None}
        verb = type(command).__name__.lower()
        request = once(audited(command, verb, command.job, command.actor, detail), command.job)
        answer: Job | Repeat = await self._journal().write(request)
        if isinstance(answer, Repeat):  # the run that the first request has answered with, as it is now
            return await self.aget(run_name(answer.answer["job"], answer.answer["run"]))
        record = await self._store().record(answer.id, answer.run)
        return record if record is not None else answer.record()

    # The blocking form of what only an app can do

    def start(self, job: JobFunction[..., Any] | str, *args: Any, connection: Any = None, **kwargs: Any) -> RunHandle:
        """Start a run of a job. When this returns, the run is durable.

        Args:
            job: The job function, with or without ``.options(…)``, or its name.
            args: Positional arguments of the job.
            connection: An open PostgreSQL connection of yours. The run is then created in its transaction: it is
                committed or rolled back with it.
            kwargs: Keyword arguments of the job.

        Raises:
            InvalidArguments: The arguments do not fit the job, or the connection cannot be used.
            UnknownEntry: The app has no job with this name.
            IdempotencyConflict: Another run has the same key and other arguments.
            QueueFull: The queue has reached its depth limit.
            StoreUnavailable: The store does not answer.
        """
        refuse_while_importing("starts a run")
        function = self.entry(job)
        own_connection = connection if connection is not None else function.chosen.connection
        if own_connection is not None:
            job_id = transactional.start(self._relative(function, args, kwargs), self.url, own_connection)
        elif conductor.get() is not None or function.timed or self.has_dead_loop:
            return self.block(self.astart(function, *args, **kwargs))
        else:  # needs no loop, so it does not wait for one
            encoded = function.signature.encode(args, kwargs, self.config.payload_bytes_max)
            job_id = self._thread_journal().write(self.submission(function, new_id(), encoded, 0.0)).job
        return RunHandle(self, job_id, function)

    start_many = blocking(astart_many)

    def worker(
        self, *, concurrency: int | None = None, queues: Iterable[str] | None = None, name: str | None = None
    ) -> AppWorker:
        """Return a worker for the jobs of this app. Call its `run` or `arun` to start it.

        Args:
            concurrency: Maximum number of jobs at the same time. Default: the setting `concurrency`.
            queues: The queues to serve. Default: all queues.
            name: A unique name that no worker has had before. A supervisor passes it, because it tells the store by
                this name when the worker's process has died. Default: a generated name.
        """
        from holdfast.client.app_worker import AppWorker  # noqa: PLC0415 - a client without workers needs no engine

        return AppWorker(self, concurrency, frozenset(queues) if queues else None, name)

    # Gates, grants, queue limits

    def ledger(self) -> StoreLedger:
        """Return a ledger for budgets that all processes share: ``BudgetGate(…, ledger=app.ledger())``."""
        return StoreLedger(self.store)

    def own_gates(self) -> builtins.list[GateView]:
        """List the current readiness of each worker in this process."""
        return [view for worker in list(self.own_workers) if (view := worker.gate()) is not None]

    async def agates(self) -> builtins.list[GateView]:
        return await gates(self.store())

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
        name = f"grant by {actor or 'unknown'}: {id or new_id()}"
        units: dict[str, Any] = {**(granted or {}), **more}
        command = SendSignal(job_of_run(run_id)[0], BUDGET_KEY, to_millionths("grant", units), name, node=node)
        request = once(audited(command, "grant", command.job, actor, dict(units)), command.job)
        (answer,) = await self.store().commit([request])
        if isinstance(answer, Exception):
            raise answer
        return _outcome(answer)

    async def alimits(self) -> builtins.list[QueueState]:
        return await self.store().limits()

    async def aset_limits(
        self, limits: Limits, *, actor: str | None = None, expected: Limits | None = None
    ) -> QueueState:
        return await self._change_queue(SetLimits(limits, actor, expected), limits.queue)

    async def apause_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        return await self._change_queue(PauseQueue(queue, paused=True, actor=actor), queue)

    async def aresume_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        return await self._change_queue(PauseQueue(queue, paused=False, actor=actor), queue)

    async def _change_queue(self, command: SetLimits | PauseQueue, queue: str) -> QueueState:
        if isinstance(command, SetLimits):
            verb, detail = "set_limits", msgspec.to_builtins(command.limits)
        else:
            verb, detail = "pause_queue" if command.paused else "resume_queue", {}
        (answer,) = await self.store().commit([once(audited(command, verb, queue, command.actor, detail), queue)])
        if isinstance(answer, Exception):
            raise answer
        states = [state for state in await self.store().limits() if state.limits.queue == queue]
        return states[0] if states else no_limits(queue)

    # Schedules

    @property
    def schedules(self) -> StoreSchedules:
        """The schedules of the store: create, list, pause, fire and so on."""
        return StoreSchedules(self)

    @overload
    def schedule(self, name: str, *, args: Mapping[str, Any] | None = None, **options: Any) -> Callable[[J], J]: ...
    @overload
    def schedule(self, name: str, job: J, *, args: Mapping[str, Any] | None = None, **options: Any) -> J: ...

    def schedule(self, name: str, job: Any = None, *, args: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Declare a schedule, as a decorator above ``@app.job`` or as a call with the job.

        Workers of the newest build create or change the schedule when they start. If a later build does not declare it
        any more, it is paused.

        Args:
            name: Its name, which no other schedule of the app has.
            job: The job. Without it, the result is a decorator.
            args: The arguments of its runs. A parameter of the type `Tick` gets the tick.
            options: The times and policies:

                - ``cron``: five fields in local time, or ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``,
                  ``@yearly``. Or ``every``: an interval such as ``"15m"``, with a ``phase``.
                - ``tz``: the time zone. Default: UTC.
                - ``jitter``: the longest delay of a tick. It follows from the schedule and the tick.
                - ``exclude``: dates and cron expressions whose ticks are skipped.
                - ``start``, ``end``, ``remaining``: the first and last instant, and the number of runs.
                - ``overlap``: what a tick does while a run is open: ``skip`` (default), ``buffer_one``, ``buffer_all``
                  with ``buffer``, ``allow``, ``cancel_other``.
                - ``catch_up``: what happens to ticks that were due while no worker ran: ``none``, ``last`` (default),
                  ``all``; ``window``: how old they may be.
                - ``gap``: a local time that does not exist: ``shift`` or ``skip``. ``fold``: one that exists twice:
                  ``first``, ``last`` or ``both``.
                - ``pause_after_failures``: how many failed runs in a row pause the schedule.

        Raises:
            InvalidArguments: An option or an argument is not valid. The message says what to do.
            ScheduleExists: The app has declared a schedule with this name.
        """
        if job is None:
            return lambda decorated: self.schedule(name, decorated, args=args, **options)
        if not isinstance(job, JobFunction):
            raise InvalidArguments("schedule", f"takes a job: write @app.schedule above @app.job, got {job!r:.60}")
        if name in self.declared_schedules:
            raise ScheduleExists(f"{self.name}.{name}")
        self.declared_schedules[name] = declaration_of(self, name, job, args, options)
        return job

    # The store

    def store(self) -> Store:
        """Return the store. Open it on first use."""
        return self._store()

    def effects(self) -> EffectStore | None:
        """Return the opened effect store, or None if the job's own database keeps all results."""
        with self._opening:
            if self._effects is None:
                self._effects = open_effects(self.config.effects)
            return self._effects

    def blobs(self) -> DirectoryBlobs | None:
        """Return the directory of large exports, or None if the job's own database keeps them."""
        return DirectoryBlobs(self.config.blobs) if self.config.blobs else None

    async def aclose(self) -> None:
        """Close the store. A later call opens it again."""
        if self._effects is not None:
            effects, self._effects = self._effects, None
            await effects.close()
        if self._opened is not None:
            store, self._opened = self._opened, None
            await store.close()

    @contextlib.contextmanager
    def _borrowed(self, store: Store, config: Config, portal: Portal) -> Iterator[None]:
        """Use another store, other settings and another loop for a while, as a test does."""
        own = (self._opened, self.config, self._portal, self._effects, self._threads, self._journals, self._watchers)
        self._opened, self.config, self._portal = store, config, portal
        self._effects = self._threads = None
        self._journals, self._watchers = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()
        try:
            yield
        finally:
            self._opened, self.config, self._portal, self._effects, self._threads, self._journals, self._watchers = own

    def after_fork_in_child(self) -> None:
        """Leave the loop, the store and the workers to the parent process."""
        super().after_fork_in_child()
        for worker in self.own_workers:
            worker.after_fork_in_child()
        self.own_workers.clear()
        store, self._opened, self._is_opening = self._opened, None, False
        leave(self._effects)
        self._effects = None
        self._stories = StoryCache()  # another thread of the parent may have held its lock
        if store is not None:
            abandon_store(store)
            self._forked_memory = self._forked_memory or isinstance(store, MemoryStore)

    def _store(self) -> Store:
        with self._opening:
            if self._opened is None and self._forked_memory:  # an empty store must not replace the parent's
                raise StoreUnavailable(
                    "a store in memory belongs to the process that opened it, and this process was forked later: use"
                    " sqlite:///path/to/jobs.db, or create the App after the fork"
                )
            if self._opened is None:
                if self._is_opening:
                    raise StoreUnavailable(
                        "a signal handler has interrupted the code that opens the store, and cannot use the store"
                        " before that is done: try again, or use the app once before the handler is installed"
                    )
                self._is_opening = True
                try:
                    config = self.config
                    self._opened = open_store(self.url, config.poll_seconds, config.busy_seconds, config.lease_seconds)
                finally:
                    self._is_opening = False
            return self._opened

    def run_watcher(self) -> RunWatcher:
        """Return the watcher of runs for the current event loop."""
        loop = asyncio.get_running_loop()
        watcher = self._watchers.get(loop)
        if watcher is None or watcher.store is not self._store():  # the app was closed and opened again
            watcher = self._watchers[loop] = RunWatcher(self._store(), self._aversions)
        return watcher

    def _thread_journal(self) -> ThreadJournal:
        store = self._store()
        if self._threads is None or self._threads.store is not store:  # the app was closed and opened again
            with self._opening:
                if self._threads is None or self._threads.store is not store:
                    self._threads = ThreadJournal(store)
        return self._threads

    def _journal(self) -> Journal:
        loop = asyncio.get_running_loop()
        if (journal := self._journals.get(loop)) is None:
            journal = self._journals[loop] = Journal(self._store())
        return journal


def _audited_create(submit: Submit) -> Any:
    return audited_creation(submit, "create", detail={"entry": f"{submit.plugin}.{submit.entry}"})


def _outcome(answer: Any) -> str:
    """Return the outcome of a signal, or of the first request with the same key."""
    return str(answer.answer["outcome"] if isinstance(answer, Repeat) else answer.outcome)


# Job code runs on its own loop, but the store was opened on the worker's loop. So these calls go there.
for _verb in (
    "acreate", "acreate_many", "afork", "aget", "aget_outcome", "apage", "aoutcome", "aresult_of", "acurrent",
    "aevents", "aexports", "aexplain", "astats", "averify", "aevidence", "aworkers", "agates", "acancel", "aretry",
    "apause", "aresume", "aresolve", "agrant", "apurge", "apurge_runs", "aevict", "aaudit", "_aversions",
):  # fmt: skip
    setattr(App, _verb, on_worker_loop(getattr(App, _verb)))
