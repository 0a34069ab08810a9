"""The remote client: `connect` returns a client of a Holdfast server with the same calls as an `App`.

A caller starts runs by name: ``"shop.checkout"``, or ``"checkout"`` if only one app has such a job. Results are JSON
values. Errors are those of an `App`. The client generates an idempotency key for a run that has none, so that a lost
response cannot start it twice. Such a key starts with ``auto:``. It is reserved, and this client does not show it.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from holdfast.authoring.signature import checked_payload as kept
from holdfast.authoring.signature import payload_for_server
from holdfast.client.bulk import BULK_MAX, BulkResult
from holdfast.client.interface import Client, blocking
from holdfast.client.overview.builds import BuildMove, BuildStatus
from holdfast.client.overview.family import Family
from holdfast.client.overview.marked_changes import RUNS_MAX, Changes, joined
from holdfast.client.overview.plan_view import PlanView
from holdfast.client.overview.questions import Question
from holdfast.client.overview.series import MINUTES, Series
from holdfast.client.overview.story import STORY_PAGE, StoryEvent
from holdfast.client.remote.error_decoder import error_of
from holdfast.client.remote.remote_job import AUTO, RemoteJob, plan_dict
from holdfast.client.remote.remote_schedules import RemoteSchedules
from holdfast.client.remote.transport import Wire, at_run
from holdfast.client.run_handle import RunHandle
from holdfast.client.views import (
    PAGE,
    Created,
    Creation,
    Entry,
    Explanation,
    Export,
    RunFilter,
    Stats,
    limits_tag,
    run_filter,
)
from holdfast.client.worker_status import GateView, WorkerStatus
from holdfast.config import Config
from holdfast.durations import Duration, seconds
from holdfast.errors import HoldfastError, InvalidArguments, StoreUnavailable, UnknownEntry, UnknownJob, shown_url
from holdfast.ids import new_id
from holdfast.machines import TERMINAL_RUN_STATUSES, Event, RunRecord
from holdfast.store import Evidence, Limits, QueueState
from holdfast.store.audit import AuditRow

if TYPE_CHECKING:
    from holdfast.plans.builder import Draft
    from holdfast.plans.model import Plan

T = TypeVar("T")
OnProgress = Callable[[RunRecord], object]

PAGE_MAX = 1000  # longest page that a server returns
PAGES_MAX = 10_000  # pages of one listing
BATCH_MAX = 500  # runs of one request
BATCH_BYTES = 1024 * 1024  # of the runs of one request; a larger run has a request of its own
CREATED_STATUS = 201
ACCEPTED_STATUS = 202


def connect(url: str, *, token: str | None = None, timeout: Duration = 30.0) -> RemoteClient:
    """Return a client of the server at `url`. This sends no request.

    The client is a context manager: ``with connect(url) as client: …`` closes its connections at the end.

    Args:
        url: The address of the server, such as ``http://127.0.0.1:4653``, with the mount path if there is one.
        token: The API token. Default: the environment variable ``HOLDFAST_TOKEN``.
        timeout: Maximum duration of a call, including its retries. A watch has no limit.

    Raises:
        InvalidSetting: The URL is not an ``http://`` or ``https://`` address, or the token has invalid characters.
    """
    return RemoteClient(url, token if token is not None else Config.read().token or None, seconds(timeout))


class _Page(msgspec.Struct, Generic[T]):
    items: list[T]
    next: str | None = None


class _Outcome(msgspec.Struct):
    run_id: str = ""
    result: Any = None


class _SignalOutcome(msgspec.Struct):
    outcome: str


class _Violations(msgspec.Struct):
    wrong: dict[str, list[str]]


class _States(msgspec.Struct):
    items: list[QueueState]


class _BatchItem(msgspec.Struct):
    status: int
    run: RunRecord | None = None
    problem: msgspec.Raw = msgspec.Raw(b"{}")


class _BatchAnswer(msgspec.Struct):
    items: list[_BatchItem]


class RemoteClient(Client):
    """A client of a server: every operation of `Client`, and `start` by name. `connect` creates it."""

    def __init__(self, url: str, token: str | None, timeout_seconds: float) -> None:
        super().__init__("remote")
        self._wire = Wire(url, token, timeout_seconds)
        self.url = self._wire.url

    # Start

    def entry(self, job: RemoteJob | str) -> RemoteJob:
        """Return a job by name, for its `options`. This sends no request; `start` fails if the job does not exist."""
        return job if isinstance(job, RemoteJob) else RemoteJob(self, job)

    async def astart(self, job: RemoteJob | str, /, **arguments: Any) -> RunHandle:
        """Start a run of a job by name. When this returns, the run is durable.

        Args:
            job: The name, such as ``"shop.checkout"``, or a job from `entry` with options.
            arguments: Keyword arguments of the job.

        Raises:
            UnknownEntry: The server has no such job.
            InvalidArguments: The arguments do not fit the job, or several apps have a job with this name.
            IdempotencyConflict: Another run has the same key and other arguments.
            QueueFull: The queue has reached its depth limit.
            NotAllowed: The token may not start runs.
            StoreUnavailable: The server does not answer.
        """
        remote_job = self.entry(job)
        plugin, name = await self._names(remote_job.name)
        created = await self.acreate(remote_job.creation(plugin, name, arguments))
        return RunHandle(self, created.record.run_id)

    async def astart_many(self, job: RemoteJob | str, arguments: Iterable[Mapping[str, Any]]) -> builtins.list[str]:
        """Start many runs of one job and return their ids in order.

        The server checks all runs of a request before it creates the first. If the store refuses one of them, such as
        for a full queue, the others are started before this raises.
        """
        remote_job = self.entry(job)
        plugin, name = await self._names(remote_job.name)
        creations = [remote_job.creation(plugin, name, dict(kwargs)) for kwargs in arguments]
        outcomes = await self.acreate_many(creations)
        for outcome in outcomes:
            if isinstance(outcome, HoldfastError):
                raise outcome
        return [outcome.record.run_id for outcome in outcomes if isinstance(outcome, Created)]

    start = blocking(astart)
    start_many = blocking(astart_many)

    async def acreate(self, creation: Creation) -> Created:
        name = f"{creation.plugin_id}.{creation.entry_id}"
        generated = creation.idempotency_key is None
        key = f"{AUTO}{new_id()}" if creation.idempotency_key is None else creation.idempotency_key
        body = payload_for_server(creation.entry_id, msgspec.structs.replace(creation, idempotency_key=key))
        about = name if generated else key
        status, record = await self._wire.ask("POST", "/runs", RunRecord, body=body, again=True, about=about)
        return Created(_shown(record), existing=status != CREATED_STATUS and not generated)

    async def acreate_many(self, creations: Sequence[Creation]) -> builtins.list[Created | HoldfastError]:
        """Create runs by the names of their apps and jobs. See `Client.acreate_many`.

        The server checks the runs of one request before it creates the first. The client sends several requests for
        more runs than fit into one.
        """
        outcomes: builtins.list[Created | HoldfastError] = []
        for batch in _batches(creations):
            body = {"runs": [encoded for _, encoded, _ in batch]}
            _, answer = await self._wire.ask("POST", "/runs/batch", _BatchAnswer, body=body, again=True)
            for (creation, _, generated), item in zip(batch, answer.items, strict=True):
                if item.run is not None:
                    existing = item.status != CREATED_STATUS and not generated
                    outcomes.append(Created(_shown(item.run), existing=existing))
                else:
                    about = f"{creation.plugin_id}.{creation.entry_id}"
                    outcomes.append(error_of(item.status, bytes(item.problem), about, self.url))
        return outcomes

    async def _names(self, job: str) -> tuple[str, str]:
        """Split a name into app and job. Ask the server if the name has only the job."""
        if job.count(".") == 1:
            plugin, _, name = job.partition(".")
            return plugin, name
        entries = await self.aentries()
        known = [f"{entry.plugin_id}.{entry.entry_id}" for entry in entries]
        matches = [entry for entry, full in zip(entries, known, strict=True) if job in {full, entry.entry_id}]
        if not matches:
            raise UnknownEntry(job, known)
        if len(matches) > 1:
            names = " and ".join(f"{entry.plugin_id}.{entry.entry_id}" for entry in matches)
            raise InvalidArguments(job, f"several apps have a job with this name: use {names}")
        return matches[0].plugin_id, matches[0].entry_id

    # Read

    async def aget(self, run_id: str) -> RunRecord:
        return _shown(await self._get(at_run(run_id), RunRecord, run_id))

    async def apage(self, where: RunFilter, limit: int, before: str | None) -> builtins.list[RunRecord]:
        query = [*_query(where), *([("before", before)] if before is not None else [])]
        records = await self.pages("/runs", RunRecord, limit, None, query=query)
        return [_shown(record) for record in records]

    async def aoutcome(self, run_id: str) -> Any:
        return (await self._get(at_run(run_id, "result"), _Outcome, run_id)).result

    async def acurrent(self, run_id: str) -> str:
        return (await self._get(at_run(run_id, "result"), _Outcome, run_id)).run_id

    async def aevents(self, run_id: str, *, after: int = 0, limit: int | None = None) -> builtins.list[Event]:
        return await self.pages(at_run(run_id, "events"), Event, limit, _number(after), about=run_id)

    async def astory(self, run_id: str, *, after: int = 0, limit: int = STORY_PAGE) -> builtins.list[StoryEvent]:
        return await self.pages(at_run(run_id, "story"), StoryEvent, limit, _number(after), about=run_id)

    async def arun_plan(self, run_id: str) -> PlanView | None:
        try:
            return await self._get(at_run(run_id, "plan"), PlanView, run_id)
        except UnknownJob:
            await self.aget(run_id)  # raises if it is the run that is missing
            return None

    async def aseries(self, *, minutes: int = MINUTES, queue: str | None = None) -> Series:
        query = urlencode(_without_none(minutes=minutes, queue=queue))
        return await self._get(f"/series?{query}", Series, "")

    async def afamily(self, run_id: str, *, group: str | None = None) -> Family:
        """Return the family of a run. The group of the token restricts it; `group` is for an app."""
        del group
        return await self._get(at_run(run_id, "family"), Family, run_id)

    async def ainbox(
        self,
        *,
        after: str | None = None,
        limit: int = PAGE,
        kind: str | None = None,
        group: str | None = None,
        run_id: str | None = None,
    ) -> builtins.list[Question]:
        query = [*_without_none(kind=kind, group=group, run_id=run_id).items()]
        cursor = None if after is None else f"~{after}"
        return await self.pages("/inbox", Question, limit, cursor, query=query)

    async def abuilds(self) -> builtins.list[BuildStatus]:
        return await self._items("/builds", BuildStatus)

    async def amove_build(self, old: str, new: str, *, actor: str | None = None, check: bool = True) -> BuildMove:
        """Move the runs of a build, in a run of the built-in job `holdfast.move`. This waits for its end.

        See `Client.amove_build`.
        """
        body = _without_none(old=old, new=new, actor=actor, check=check)
        return msgspec.convert(await self._built_in("/builds/move", body, None), BuildMove)

    async def achanges(self, *, limit: int = RUNS_MAX, replay: bool = True, before: str | None = None) -> Changes:
        """List the marked changes of the server's code, without replays. See `Client.achanges`."""
        del replay
        counted: Changes | None = None
        while True:
            left = min(RUNS_MAX, limit - counted.runs if counted is not None else limit)
            query = urlencode(_without_none(limit=left, cursor=counted.next if counted is not None else before))
            page = await self._get(f"/changes?{query}", Changes, "")
            counted = page if counted is None else joined(counted, page)
            if counted.next is None or counted.runs >= limit:
                return counted

    async def aexports(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> builtins.list[Export]:
        return await self.pages(at_run(run_id, "exports"), Export, limit, _number(after), about=run_id)

    def acontent(self, run_id: str, number: int) -> AsyncIterator[bytes]:
        return self._wire.content(at_run(run_id, "exports", str(int(number)), "content"), run_id)

    async def awatch(self, run_id: str) -> AsyncIterator[RunRecord]:
        last: RunRecord | None = None
        async with aclosing(self._wire.follow(at_run(run_id, "stream") + "?events=no", run_id)) as stream:
            async for sent in stream:
                if sent.kind != "run":
                    continue
                record = _shown(msgspec.json.decode(sent.data, type=RunRecord))
                if record != last:
                    yield record
                    last = record
                if record.status in TERMINAL_RUN_STATUSES:
                    return

    async def aevidence(self, run_id: str, *, after: int = 0, limit: int | None = None) -> builtins.list[Evidence]:
        return await self.pages(at_run(run_id, "evidence"), Evidence, limit, _number(after), about=run_id)

    async def aexplain(self, run_id: str) -> Explanation:
        return await self._get(at_run(run_id, "explain"), Explanation, run_id)

    async def aworkers(self) -> builtins.list[WorkerStatus]:
        return await self._items("/workers", WorkerStatus)

    async def agates(self) -> builtins.list[GateView]:
        return await self._items("/gates", GateView)

    async def aentries(self) -> builtins.list[Entry]:
        """List the jobs that the server can start."""
        return await self._items("/entries", Entry)

    async def astats(self) -> Stats:
        return await self._get("/stats", Stats, "")

    async def averify(
        self, run_id: str | None = None, *, on_progress: OnProgress | None = None
    ) -> dict[str, builtins.list[Any]]:
        """Check histories. See `Client.averify`.

        For all runs, the server starts a run of the built-in job `holdfast.verify`, and this waits for its end. The
        result names damaged jobs up to 256 KiB of text.

        Args:
            run_id: The run to check. None checks every job that the token can reach.
            on_progress: Called with the record of the built-in run at each change.
        """
        if run_id is None:
            return dict((await self._built_in("/verify", {}, on_progress))["wrong"])
        body = {"run_id": run_id}
        _, violations = await self._wire.ask("POST", "/verify", _Violations, body=body, again=True, about=run_id)
        return dict(violations.wrong)

    async def _built_in(self, path: str, body: dict[str, Any], on_progress: OnProgress | None) -> dict[str, Any]:
        """Start a built-in run and return its result. A lost response does not start it twice."""
        answer = await self._post(path, dict[str, Any], body, about=path)
        if answer[0] != ACCEPTED_STATUS:  # the server has done a small request at once
            return answer[1]
        run_id: str = answer[1]["run_id"]
        watching: Any = self.awatch(run_id)
        async with aclosing(watching) as records:
            async for latest in records:
                if on_progress is not None:
                    on_progress(latest)
        result: dict[str, Any] = await RunHandle(self, run_id).aresult()
        return result

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
        """Send a signal to a run: the result is delivered, kept, repeat or too_late. See `Client.asignal`."""
        encoded = kept(f"the payload of the signal {key!r}", payload)
        body = {"key": key, "payload": encoded, "id": id or new_id(), **_without_none(actor=actor, node=node)}
        path = at_run(run_id, "signal")
        return (await self._post(path, _SignalOutcome, body, about=run_id))[1].outcome

    async def acancel(self, run_id: str, reason: str | None = None, *, actor: str | None = None) -> RunRecord:
        """Request the cancellation of a run. A run that no worker holds is canceled at once."""
        return await self._control(run_id, "cancel", reason=reason, actor=actor)

    async def aretry(self, run_id: str, *, actor: str, reason: str) -> RunRecord:
        return await self._control(run_id, "retry", actor=actor, reason=reason)

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
        body = _without_none(reason=reason, actor=actor, dry_run=dry_run)
        return await self._bulk("cancel", body, run_filter(where), limit, before)

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
        body = _without_none(reason=reason, actor=actor, dry_run=dry_run)
        return await self._bulk("retry", body, run_filter(where), limit, before)

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
        encoded = kept(f"the payload of the signal {key!r}", payload)
        body = {"key": key, "payload": encoded, "id": id or new_id(), "dry_run": dry_run}
        return await self._bulk("signal", body, run_filter(where), limit, before)

    async def apurge_runs(
        self,
        *,
        actor: str | None = None,
        dry_run: bool = False,
        limit: int = BULK_MAX,
        before: str | None = None,
        **where: Any,
    ) -> BulkResult:
        body = _without_none(actor=actor, dry_run=dry_run)
        return await self._bulk("purge", body, run_filter(where), limit, before)

    async def _bulk(
        self, verb: str, body: dict[str, Any], where: RunFilter, limit: int, cursor: str | None
    ) -> BulkResult:
        query = [*_query(where), ("limit", str(limit)), *([("cursor", cursor)] if cursor is not None else [])]
        return (await self._post(f"/runs/{verb}", BulkResult, body, about=verb, query=query))[1]

    async def apause(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        return await self._control(run_id, "pause", actor=actor)

    async def aresume(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        return await self._control(run_id, "resume", actor=actor)

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
        body = _without_none(amounts={**(granted or {}), **more}, actor=actor, id=id or new_id(), node=node)
        path = at_run(run_id, "grant")
        return (await self._post(path, _SignalOutcome, body, about=run_id))[1].outcome

    async def aanswer(
        self, run_id: str, answer: str, *, node: str | None = None, actor: str | None = None
    ) -> RunRecord:
        return await self._control(run_id, "answer", answer=answer, node=node, actor=actor)

    async def _resolve(
        self, run_id: str, step: str, answer: str, result: Any, actor: str | None, started: int | None
    ) -> RunRecord:
        result = kept(f"the result of {step}", result) if answer == "done" else None
        return await self._control(
            run_id, "resolve", step=step, answer=answer, result=result, actor=actor, started=started
        )

    async def apurge(
        self,
        *,
        older_than: Duration,
        statuses: Iterable[str] | None = None,
        limit: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> int:
        """Remove ended runs permanently. See `Client.apurge`.

        The server starts a run of the built-in job `holdfast.purge`, and this waits for its end. `on_progress` is
        called with the record of that run at each change.
        """
        body = _without_none(
            older_than=seconds(older_than), statuses=None if statuses is None else list(statuses), limit=limit
        )
        return int((await self._built_in("/purge", body, on_progress))["removed"])

    async def aaudit(self, *, before: int | None = None, limit: int = PAGE) -> builtins.list[AuditRow]:
        """List who did what to which run or queue, newest first. See `Client.aaudit`."""
        return await self.pages("/audit", AuditRow, limit, str(before) if before is not None else None)

    # Forks and queue limits

    async def afork(
        self,
        run_id: str | RunHandle,
        *,
        from_node: str | None = None,
        from_step: str | None = None,
        plan: Plan | Draft | dict[str, Any] | None = None,
        key: str | None = None,
    ) -> RunHandle:
        """Start a new run that reuses the results of another run. See `Client.afork` for the arguments.

        The request has a key, so the client repeats it if the response is lost.
        """
        body = _without_none(
            from_node=from_node,
            from_step=from_step,
            plan=plan_dict(plan) if plan is not None else None,
            idempotency_key=key if key is not None else f"{AUTO}{new_id()}",
        )
        name = run_id.id if isinstance(run_id, RunHandle) else run_id
        _, record = await self._wire.ask("POST", at_run(name, "fork"), RunRecord, body=body, again=True, about=name)
        return RunHandle(self, record.run_id)

    async def alimits(self) -> builtins.list[QueueState]:
        return (await self._wire.ask("GET", "/limits", _States))[1].items

    async def aset_limits(
        self, limits: Limits, *, actor: str | None = None, expected: Limits | None = None
    ) -> QueueState:
        fields = msgspec.to_builtins(limits)
        body = {name: value for name, value in fields.items() if name not in {"queue", "paused"}}
        headers = {"If-Match": limits_tag(expected)} if expected is not None else {}
        path = f"/limits/{quote(limits.queue, safe='')}"
        again = not headers  # the first request may have changed what the repeat expects
        sent = await self._wire.ask(
            "PUT", path, QueueState, body={**body, **_actor(actor)}, again=again, about=limits.queue, headers=headers
        )
        return sent[1]

    async def apause_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        path = f"/limits/{quote(queue, safe='')}/pause"
        return (await self._post(path, QueueState, _actor(actor), about=queue))[1]

    async def aresume_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        path = f"/limits/{quote(queue, safe='')}/resume"
        return (await self._post(path, QueueState, _actor(actor), about=queue))[1]

    async def _control(self, run_id: str, verb: str, **fields: Any) -> RunRecord:
        return _shown((await self._post(at_run(run_id, verb), RunRecord, _without_none(**fields), about=run_id))[1])

    async def _post(
        self,
        path: str,
        kind: type[T],
        body: dict[str, Any],
        *,
        about: str,
        query: builtins.list[tuple[str, str]] | None = None,
    ) -> tuple[int, T]:
        """Send a request with a key. The server executes it once, so the client repeats it if the response is lost."""
        key = {"Idempotency-Key": f"{AUTO}{new_id()}"}
        return await self._wire.ask(
            "POST", path, kind, query=query or (), body=body, again=True, about=about, headers=key
        )

    # Schedules

    @property
    def schedules(self) -> RemoteSchedules:
        return RemoteSchedules(self)

    async def read(self, path: str, kind: type[T], about: str) -> T:
        """Read a resource."""
        return await self._get(path, kind, about)

    async def send(self, path: str, kind: type[T], body: dict[str, Any], about: str) -> T:
        """Send a request that the server executes once."""
        return (await self._post(path, kind, body, about=about))[1]

    async def remove(self, path: str, kind: type[T], about: str) -> T:
        """Delete a resource."""
        return (await self._wire.ask("DELETE", path, kind, about=about))[1]

    # Connections and pages

    async def aclose(self) -> None:
        """Close the connections of the current event loop."""
        await self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _get(self, path: str, kind: type[T], about: str) -> T:
        return (await self._wire.ask("GET", path, kind, about=about))[1]

    async def _items(self, path: str, kind: type[T], about: str = "") -> builtins.list[T]:
        return (await self._page(path, kind, (), about)).items

    async def pages(
        self,
        path: str,
        kind: type[T],
        limit: int | None,
        cursor: str | None,
        *,
        query: builtins.list[tuple[str, str]] | None = None,
        about: str = "",
    ) -> builtins.list[T]:
        """Read a listing page by page, up to `limit` items."""
        items: builtins.list[T] = []
        for _ in range(PAGES_MAX):
            if limit is not None and len(items) >= limit:
                return items[:limit]
            size = PAGE_MAX if limit is None else min(PAGE_MAX, limit - len(items))
            parameters = [*(query or []), ("limit", str(size)), *([("cursor", cursor)] if cursor is not None else [])]
            page = await self._page(path, kind, parameters, about)
            items += page.items
            if page.next is None or page.next == cursor or not page.items:
                return items[:limit]
            cursor = page.next
        raise StoreUnavailable(f"{shown_url(self.url)} lists more than {PAGES_MAX} pages: ask for less")

    async def _page(self, path: str, kind: type[T], query: Sequence[tuple[str, str]], about: str) -> _Page[T]:
        page: type[_Page[T]] = _Page[kind]  # type: ignore[valid-type]  # - a type from a value, for msgspec
        return (await self._wire.ask("GET", path, page, query=query, about=about))[1]


def _shown(record: RunRecord) -> RunRecord:
    """Return a record without its key if this client generated the key."""
    if (record.idempotency_key or "").startswith(AUTO):
        return msgspec.structs.replace(record, idempotency_key=None)
    return record


def _batches(creations: Sequence[Creation]) -> Iterator[builtins.list[tuple[Creation, Any, bool]]]:
    """Split creations into requests. Each has a key, generated if it had none, so that a repeat is harmless."""
    batch: builtins.list[tuple[Creation, Any, bool]] = []
    size = 0
    for creation in creations:
        generated = creation.idempotency_key is None
        keyed = msgspec.structs.replace(creation, idempotency_key=f"{AUTO}{new_id()}") if generated else creation
        encoded = payload_for_server(keyed.entry_id, keyed)
        length = len(msgspec.json.encode(encoded))
        if batch and (len(batch) == BATCH_MAX or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((keyed, encoded, generated))
        size += length
    if batch:
        yield batch


def _query(where: RunFilter) -> builtins.list[tuple[str, str]]:
    query = [("status", str(status)) for status in where.status]
    names = {"plugin_id", "entry_id", "queue", "group", "idempotency_key", "task_id", "parent"}
    names |= {f"{when}_{side}" for when in ("created", "finished") for side in ("after", "before")}
    query += [(name, str(getattr(where, name))) for name in sorted(names) if getattr(where, name) is not None]
    query += [("order", "oldest")] if where.oldest_first else []
    query += [(name, "yes") for name in ("newest", "top", "asks") if getattr(where, name)]
    query += [(f"attr.{name}", msgspec.json.encode(value).decode()) for name, value in where.attributes.items()]
    return query


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _number(after: int) -> str | None:
    return str(after) if after else None


def _actor(actor: str | None) -> dict[str, str]:
    return {"actor": actor} if actor is not None else {}
