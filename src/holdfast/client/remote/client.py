"""A Holdfast server in the hand of a Python program: `connect` gives the same calls as an `App` has.

Runs are started by name, ``"shop.checkout"``, or ``"checkout"`` where only one app has it; what they return comes as
plain JSON values. Errors are those of an app. A run that is started without a key is given one here, so that a lost
answer cannot start it twice; it begins with ``auto:``, is nobody's to use, and is not shown by this client.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.authoring.signature import checked_payload as kept
from holdfast.authoring.signature import payload_for_server
from holdfast.client.interface import Client
from holdfast.client.remote.remote_job import AUTO, RemoteJob, as_plain
from holdfast.client.remote.transport import Wire, at_run
from holdfast.client.run_handle import RunHandle
from holdfast.client.views import PAGE, Created, Creation, Entry, Explanation, Export, RunFilter, Stats
from holdfast.client.worker_status import GateView, WorkerStatus
from holdfast.config import Config
from holdfast.durations import Duration, seconds
from holdfast.errors import InvalidArguments, UnknownEntry
from holdfast.ids import new_id
from holdfast.machines import TERMINAL_RUN_STATUSES, Event, RunRecord
from holdfast.store import Evidence, Limits, QueueState

if TYPE_CHECKING:
    from holdfast.plans.builder import Draft
    from holdfast.plans.model import Plan

__all__ = ["RemoteClient", "connect"]

T = TypeVar("T")

PAGE_MAX = 1000  # what a server gives at once
AT_ONCE = 16  # requests of one `start_many`
LONG_SECONDS = 600.0  # for what looks at everything
CREATED_STATUS = 201


def connect(url: str, *, token: str | None = None, timeout: Duration = 30.0) -> RemoteClient:
    """Give a client of the server at `url`. Nothing is sent yet.

    Args:
        url: its address, as in ``http://127.0.0.1:4653``; with the path at which it is mounted, if it is.
        token: who asks; ``HOLDFAST_TOKEN`` unless given.
        timeout: how long a call may take, its repeats included; streams are as long as the run.

    Raises:
        InvalidSetting: no address of a server.
    """
    return RemoteClient(url, token if token is not None else Config.read().token or None, seconds(timeout))


class _Page(msgspec.Struct, Generic[T]):
    items: list[T]
    next: str | None = None


class _Outcome(msgspec.Struct):
    run_id: str = ""
    result: Any = None


class _Told(msgspec.Struct):
    outcome: str


class _Wrong(msgspec.Struct):
    wrong: dict[str, list[str]]


class _States(msgspec.Struct):
    items: list[QueueState]


class _Removed(msgspec.Struct):
    removed: int


class RemoteClient(Client):
    """Runs on a server: every verb of `Client`, and starting by name."""

    def __init__(self, url: str, token: str | None, timeout_seconds: float) -> None:
        super().__init__("remote")
        self._wire = Wire(url, token, timeout_seconds)
        self.url = self._wire.url

    # Starting

    def entry(self, job: RemoteJob | str) -> RemoteJob:
        """Give a job by name, to choose options for; whether the server has it, starting it tells."""
        return job if isinstance(job, RemoteJob) else RemoteJob(self, job)

    async def astart(self, job: RemoteJob | str, /, **arguments: Any) -> RunHandle:
        """Start a run, durably: when this returns, the job will not be lost."""
        chosen = self.entry(job)
        plugin, name = await self._names(chosen.name)
        created = await self.acreate(chosen.creation(plugin, name, arguments))
        return RunHandle(self, created.record.run_id)

    async def astart_many(self, job: RemoteJob | str, arguments: Iterable[Mapping[str, Any]]) -> builtins.list[str]:
        """Start many runs of one job, several at a time; the list of their ids, in order."""
        chosen = self.entry(job)
        plugin, name = await self._names(chosen.name)
        creations = [chosen.creation(plugin, name, dict(one)) for one in arguments]
        door = asyncio.Semaphore(AT_ONCE)

        async def one(creation: Creation) -> str:
            async with door:
                return (await self.acreate(creation)).record.run_id

        found = await asyncio.gather(*map(one, creations), return_exceptions=True)  # one refusal stops no other
        for failure in found:
            if isinstance(failure, BaseException):
                raise failure
        return [name for name in found if isinstance(name, str)]

    def start(self, job: RemoteJob | str, /, **arguments: Any) -> RunHandle:
        """Start a run; see `astart`."""
        return self.block(self.astart(job, **arguments))

    def start_many(self, job: RemoteJob | str, arguments: Iterable[Mapping[str, Any]]) -> builtins.list[str]:
        """Start many runs; see `astart_many`."""
        return self.block(self.astart_many(job, arguments))

    async def acreate(self, creation: Creation) -> Created:
        """Create a run by the names of its app and job; see `Client.acreate`."""
        name = f"{creation.plugin_id}.{creation.entry_id}"
        ours = creation.idempotency_key is None
        key = f"{AUTO}{new_id()}" if creation.idempotency_key is None else creation.idempotency_key
        plain = payload_for_server(creation.entry_id, msgspec.structs.replace(creation, idempotency_key=key))
        about = name if ours else key
        status, record = await self._wire.ask("POST", "/runs", RunRecord, body=plain, again=True, about=about)
        return Created(_shown(record), existing=status != CREATED_STATUS and not ours)

    async def _names(self, job: str) -> tuple[str, str]:
        """Split a name into app and job, with the server's help where it says only the job."""
        if job.count(".") == 1:
            plugin, _, name = job.partition(".")
            return plugin, name
        found = await self.aentries()
        known = [f"{one.plugin_id}.{one.entry_id}" for one in found]
        fits = [one for one, full in zip(found, known, strict=True) if job in {full, one.entry_id}]
        if not fits:
            raise UnknownEntry(job, known)
        if len(fits) > 1:
            names = " and ".join(f"{one.plugin_id}.{one.entry_id}" for one in fits)
            raise InvalidArguments(job, f"several apps have it: say which, {names}")
        return fits[0].plugin_id, fits[0].entry_id

    # Looking

    async def aget(self, run_id: str) -> RunRecord:
        """Read a run's record."""
        return _shown(await self._get(at_run(run_id), RunRecord, run_id))

    async def apage(self, where: RunFilter, limit: int, before: str | None) -> builtins.list[RunRecord]:
        """List runs; see `Client.apage`."""
        found = await self._pages("/runs", RunRecord, limit, before, query=_query(where))
        return [_shown(record) for record in found]

    async def aoutcome(self, run_id: str) -> Any:
        """Read what a run returned; see `Client.aoutcome`."""
        return (await self._get(at_run(run_id, "result"), _Outcome, run_id)).result

    async def acurrent(self, run_id: str) -> str:
        """Give the id of the run that goes on for this one; see `Client.acurrent`."""
        return (await self._get(at_run(run_id, "result"), _Outcome, run_id)).run_id

    async def aevents(self, run_id: str, *, after: int = 0, limit: int | None = None) -> builtins.list[Event]:
        """Read what happened; see `Client.aevents`."""
        return await self._pages(at_run(run_id, "events"), Event, limit, _number(after), about=run_id)

    async def aexports(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> builtins.list[Export]:
        """List what a run has produced; see `Client.aexports`."""
        return await self._pages(at_run(run_id, "exports"), Export, limit, _number(after), about=run_id)

    def acontent(self, run_id: str, number: int) -> AsyncIterator[bytes]:
        """Read one export's bytes; see `Client.acontent`."""
        return self._wire.content(at_run(run_id, "exports", str(int(number)), "content"), run_id)

    async def awatch(self, run_id: str) -> AsyncIterator[RunRecord]:
        """Give a run's record now and at each change; see `Client.awatch`."""
        last: RunRecord | None = None
        async with aclosing(self._wire.follow(at_run(run_id, "stream") + "?events=no", run_id)) as sent:
            async for one in sent:
                if one.kind != "run":
                    continue
                record = _shown(msgspec.json.decode(one.data, type=RunRecord))
                if record != last:
                    yield record
                    last = record
                if record.status in TERMINAL_RUN_STATUSES:
                    return

    async def aevidence(self, run_id: str) -> builtins.list[Evidence]:
        """List what came too late; see `Client.aevidence`."""
        return await self._items(at_run(run_id, "evidence"), Evidence, about=run_id)

    async def aexplain(self, run_id: str) -> Explanation:
        """Say where a run is; see `Client.aexplain`."""
        return await self._get(at_run(run_id, "explain"), Explanation, run_id)

    async def aworkers(self) -> builtins.list[WorkerStatus]:
        """List who works; see `Client.aworkers`."""
        return await self._items("/workers", WorkerStatus)

    async def agates(self) -> builtins.list[GateView]:
        """List gates; see `Client.agates`."""
        return await self._items("/gates", GateView)

    async def aentries(self) -> builtins.list[Entry]:
        """List the jobs that the server can start."""
        return await self._items("/entries", Entry)

    async def astats(self) -> Stats:
        """Count; see `Client.astats`."""
        return await self._get("/stats", Stats, "")

    async def averify(self, run_id: str | None = None) -> dict[str, builtins.list[Any]]:
        """Check histories; see `Client.averify`. What is wrong comes as text."""
        body = {} if run_id is None else {"run_id": run_id}
        _, found = await self._wire.ask(
            "POST", "/verify", _Wrong, body=body, again=True, about=run_id or "", timeout_seconds=LONG_SECONDS
        )
        return dict(found.wrong)

    # Steering

    async def asignal(
        self,
        run_id: str,
        key: str,
        payload: Any = None,
        id: str | None = None,
    ) -> str:
        """Send a signal; what became of it.

        It is sent again when an answer is lost: it has an id. So ``repeat`` may mean that the first one has arrived.
        """
        plain = kept(f"the payload of the signal {key!r}", payload)
        body = {"key": key, "payload": plain, "id": id or new_id()}
        _, told = await self._wire.ask("POST", at_run(run_id, "signal"), _Told, body=body, again=True, about=run_id)
        return told.outcome

    async def acancel(self, run_id: str, reason: str | None = None, *, actor: str | None = None) -> RunRecord:
        """Ask a run to cancel; at once if nobody runs it. To ask again does no harm, so a lost request is."""
        return await self._steer(run_id, "cancel", again=True, reason=reason, actor=actor)

    async def aretry(self, run_id: str, *, actor: str, reason: str) -> RunRecord:
        """Reopen a failed job: the record of its new run."""
        return await self._steer(run_id, "retry", actor=actor, reason=reason)

    async def apause(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        """Pause a run at its next step boundary; at once if it is queued."""
        return await self._steer(run_id, "pause", actor=actor)

    async def aresume(self, run_id: str, *, actor: str | None = None) -> RunRecord:
        """Let a paused run go on."""
        return await self._steer(run_id, "resume", actor=actor)

    async def agrant(
        self,
        run_id: str,
        granted: Mapping[str, float] | None = None,
        *,
        actor: str | None = None,
        id: str | None = None,
        **more: float,
    ) -> str:
        """Let a run spend more than its budget, by so much; see `Client.agrant`."""
        body = _given(amounts={**(granted or {}), **more}, actor=actor, id=id or new_id())
        _, told = await self._wire.ask("POST", at_run(run_id, "grant"), _Told, body=body, again=True, about=run_id)
        return told.outcome

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
        result = kept(f"the result of {step}", done) if given == ["done"] else None
        return await self._steer(run_id, "resolve", step=step, answer=given[0], result=result, actor=actor)

    async def apurge(self, *, older_than: Duration, statuses: Iterable[str] = (), limit: int | None = None) -> int:
        """Remove old runs; see `Client.apurge`."""
        body = _given(older_than=seconds(older_than), statuses=list(statuses) or None, limit=limit)
        _, done = await self._wire.ask("POST", "/purge", _Removed, body=body, timeout_seconds=LONG_SECONDS)
        return done.removed

    # Forks, and limits of queues

    async def afork(
        self,
        run_id: str | RunHandle,
        *,
        from_node: str | None = None,
        from_step: str | None = None,
        plan: Plan | Draft | dict[str, Any] | None = None,
        key: str | None = None,
    ) -> RunHandle:
        """Start a run anew from where another was; see `Client.afork`. It has a key, so a lost request is repeated."""
        said = {
            "from_node": from_node,
            "from_step": from_step,
            "plan": as_plain(plan) if plan is not None else None,
            "idempotency_key": key if key is not None else f"{AUTO}{new_id()}",
        }
        body = {name: value for name, value in said.items() if value is not None}
        name = run_id.id if isinstance(run_id, RunHandle) else run_id
        _, record = await self._wire.ask("POST", at_run(name, "fork"), RunRecord, body=body, again=True, about=name)
        return RunHandle(self, record.run_id)

    async def alimits(self) -> builtins.list[QueueState]:
        """List limits; see `Client.alimits`."""
        return (await self._wire.ask("GET", "/limits", _States))[1].items

    async def aset_limits(self, limits: Limits, *, actor: str | None = None) -> QueueState:
        """Set limits; see `Client.aset_limits`."""
        said = msgspec.to_builtins(limits)
        body = {name: value for name, value in said.items() if name not in {"queue", "paused"}}
        return await self._queue("PUT", limits.queue, "", {**body, **_actor(actor)})

    async def apause_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Pause a queue; see `Client.apause_queue`."""
        return await self._queue("POST", queue, "/pause", _actor(actor))

    async def aresume_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Have a queue go on; see `Client.aresume_queue`."""
        return await self._queue("POST", queue, "/resume", _actor(actor))

    async def _queue(self, method: str, queue: str, verb: str, body: dict[str, Any]) -> QueueState:
        path = f"/limits/{quote(queue, safe='')}{verb}"
        return (await self._wire.ask(method, path, QueueState, body=body, again=True, about=queue))[1]

    async def _steer(self, run_id: str, verb: str, *, again: bool = False, **said: Any) -> RunRecord:
        _, record = await self._wire.ask(
            "POST", at_run(run_id, verb), RunRecord, body=_given(**said), again=again, about=run_id
        )
        return _shown(record)

    # Machinery

    async def aclose(self) -> None:
        """Let go of the connections of this loop."""
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

    async def _pages(
        self,
        path: str,
        kind: type[T],
        limit: int | None,
        cursor: str | None,
        *,
        query: builtins.list[tuple[str, str]] | None = None,
        about: str = "",
    ) -> builtins.list[T]:
        """Read a listing, page by page, as far as asked for."""
        found: builtins.list[T] = []
        while limit is None or len(found) < limit:
            size = PAGE_MAX if limit is None else min(PAGE_MAX, limit - len(found))
            asked = [*(query or []), ("limit", str(size)), *([("cursor", cursor)] if cursor is not None else [])]
            page = await self._page(path, kind, asked, about)
            found += page.items
            if page.next is None or page.next == cursor:
                break
            cursor = page.next
        return found

    async def _page(self, path: str, kind: type[T], query: Sequence[tuple[str, str]], about: str) -> _Page[T]:
        made: type[_Page[T]] = _Page[kind]  # type: ignore[valid-type]  # - a type by its value, which msgspec reads
        return (await self._wire.ask("GET", path, made, query=query, about=about))[1]


def _shown(record: RunRecord) -> RunRecord:
    """Give a record without a key that was made up here."""
    if (record.idempotency_key or "").startswith(AUTO):
        return msgspec.structs.replace(record, idempotency_key=None)
    return record


def _query(where: RunFilter) -> builtins.list[tuple[str, str]]:
    query = [("status", str(status)) for status in where.status]
    names = ("plugin_id", "entry_id", "queue", "group", "idempotency_key", "created_after", "created_before")
    query += [(name, str(getattr(where, name))) for name in names if getattr(where, name) is not None]
    query += [(f"attr.{name}", msgspec.json.encode(value).decode()) for name, value in where.attributes.items()]
    return query


def _given(**said: Any) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}


def _number(after: int) -> str | None:
    return str(after) if after else None


def _actor(actor: str | None) -> dict[str, str]:
    return {"actor": actor} if actor is not None else {}
