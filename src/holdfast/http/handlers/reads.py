"""Handlers that read and change nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from holdfast.client.views import PAGE, Attribute, Export, RunFilter
from holdfast.errors import InvalidArguments
from holdfast.http.problems import Problem
from holdfast.http.request import Call, Query, matches_tag
from holdfast.http.response import Answer, StreamAnswer, json, not_modified
from holdfast.machines import JOB, READY, RUN, TERMINAL_RUN_STATUSES, Event, RunRecord, RunStatus
from holdfast.store import Evidence
from holdfast.store.result_blobs import ResultBlob, reference_in

T = TypeVar("T")

PAGE_MAX = 1000
PAGE_BYTES = 8 * 1024 * 1024  # a page ends at this size, even with few items
CHUNK = 16  # items per read from the store, each of which may have a megabyte

NUMBER_MAX = 10**15 - 1  # more events than any stream has
TIME_MAX = 10**12  # seconds, far beyond any real date
RUN_ID = r"^[A-Za-z0-9_~:@.-]{1,255}$"
CURSOR = r"^~[A-Za-z0-9_~:@.-]{1,255}$"  # clients must not read it: its form may change
LIMIT = Query("limit", "integer", f"Maximum number of items, {PAGE} by default.", 1, PAGE_MAX)
NUMBER_CURSOR = Query("cursor", "integer", "`next` of the previous page.", 0, NUMBER_MAX)
RUN_FILTERS = (
    Query("status", "string", "Only runs with this status.", repeat=True, words=tuple(RunStatus)),
    Query("plugin_id", "string", "Only runs of this app."),
    Query("entry_id", "string", "Only runs of this job."),
    Query("task_id", "string", "Only runs of this job, by its id."),
    Query("newest", "string", "`yes`: only the newest run of each job.", words=("yes", "no")),
    Query("queue", "string", "Only runs in this queue."),
    Query("group", "string", "Only runs of this group. A token of a group allows that group only."),
    Query("idempotency_key", "string", "Only runs with this key."),
    Query("created_after", "number", "Only runs created at this time or later.", -TIME_MAX, TIME_MAX),
    Query("created_before", "number", "Only runs created before this time.", -TIME_MAX, TIME_MAX),
    Query("finished_after", "number", "Only runs that ended at this time or later.", -TIME_MAX, TIME_MAX),
    Query("finished_before", "number", "Only runs that ended before this time.", -TIME_MAX, TIME_MAX),
    Query("parent", "string", "Only children of this job."),
    Query("top", "string", "`yes`: only runs of jobs without a parent.", words=("yes", "no")),
    Query("asks", "string", "`yes`: only runs that wait for an operator's answer about a call.", words=("yes", "no")),
    Query("attr.", "string", "`attr.NAME=VALUE`: only runs whose attribute NAME has this value.", repeat=True),
    Query("before", "string", "Only runs that follow the run with this id in the list.", pattern=RUN_ID),
    Query("order", "string", "The order of the list, `newest` first by default.", words=("newest", "oldest")),
    LIMIT,
    Query("cursor", "string", "`next` of the previous page.", pattern=CURSOR),
)
COUNT_FILTERS = tuple(query for query in RUN_FILTERS if query.name not in {"before", "order", "limit"})
PAGED = (LIMIT, NUMBER_CURSOR)
WAIT_MAX = 60  # seconds: proxies often close a silent connection after that
RESULT = (Query("wait", "number", "Seconds to wait for the end of the run, 0 by default.", 0, WAIT_MAX),)
RESULT_RETRY = b"1"  # Retry-After of a result that is not there yet

_PLAIN_MEDIA = {"application/json": b"application/json", "text/plain": b"text/plain; charset=utf-8"}
_TABLES: dict[str, Any] = {"job": JOB, "run": RUN, "ready": READY}


class Result(msgspec.Struct):
    """The result of a run. It is null until the run ends, and if the run did not succeed.

    For a run that was continued (`continue_as`), `run_id` and `result` are those of the last run of the chain.
    """

    run_id: str
    status: RunStatus
    result: Any


class RunCounts(msgspec.Struct):
    """Numbers of runs that match a filter, by status. A status without runs is left out.

    One answer covers at most 20,000 jobs, the newest first. `next` is the cursor of the answer about older jobs; it is
    null if there are none. The sum of all answers is the number of runs that match.
    """

    runs: dict[RunStatus, int]
    next: str | None


class TokenView(msgspec.Struct):
    """What the server knows of the token in a request.

    `name` is null if the server needs no token. `actor` is the name that the store records for actions with the token.
    """

    name: str | None
    scope: str
    group: str | None
    expires_at: float | None
    actor: str


def page(items: list[Any], following: Any = None) -> Answer:
    """Return a response with a page of items and the cursor of the next page."""
    return json({"items": items, "next": None if following is None else str(following)})


async def list_runs(call: Call) -> Answer:
    """List runs that match the filters, newest first."""
    where, limit, before = filter_of(call, RUN_FILTERS, PAGE)
    records = await call.client.apage(where, limit + 1, before)
    return page(records[:limit], cursor_of(records[limit - 1].run_id) if len(records) > limit else None)


async def count_runs(call: Call) -> Answer:
    """Count runs that match the filters, by status."""
    where, _, before = filter_of(call, COUNT_FILTERS, PAGE)
    counted = await call.service.client.acount_runs(where, before)
    runs = {RunStatus(status): number for status, number in counted.runs.items()}
    return json(RunCounts(runs, None if counted.next is None else cursor_of(counted.next)))


def cursor_of(run_id: str) -> str:
    """Return the cursor of the page that follows a run."""
    return f"~{run_id[::-1]}"


def filter_of(call: Call, allowed: tuple[Query, ...], limit: int) -> tuple[RunFilter, int, str | None]:
    """Return the filter of runs in a query, the limit (by default the given one), and the run before the page.

    Raises:
        InvalidArguments: a parameter is not allowed here, or its value does not fit.
    """
    asked = call.query(allowed)
    limit = asked.pop("limit", limit)
    before, cursor = asked.pop("before", None), asked.pop("cursor", None)
    oldest_first = asked.pop("order", "newest") == "oldest"
    asked |= {name: asked[name] == "yes" for name in ("newest", "top", "asks") if name in asked}
    if before is not None and not re.fullmatch(RUN_ID, before):
        raise InvalidArguments("before", "must be the id of a run")
    if cursor is not None:
        before = _run_of(cursor)
    attributes = {name[5:]: _attribute(asked.pop(name)) for name in [*asked] if name.startswith("attr.")}
    if "status" in asked:
        asked["status"] = tuple(asked["status"])
    asked["group"] = call.group(asked.get("group"))
    return RunFilter(**asked, attributes=attributes, oldest_first=oldest_first), limit, before


def _run_of(cursor: str) -> str:
    """Return the run after which a page begins."""
    if not re.fullmatch(CURSOR, cursor):
        raise InvalidArguments("cursor", "must be the `next` of a previous page")
    return cursor[:0:-1]


async def get_run(call: Call) -> Answer:
    """Return the record of a run."""
    return json(await call.client.aget(call.run_id))


async def get_result(call: Call) -> Response:
    """Return the result of a run, or of the last run that continues it. With `wait`, wait for its end."""
    loop = asyncio.get_running_loop()
    end = loop.time() + call.query(RESULT).get("wait", 0)
    record = await call.client.aget(await call.client.acurrent(call.run_id))
    while record.status not in TERMINAL_RUN_STATUSES and loop.time() < end:
        await call.service.hub.wait_for_end(record.run_id, end - loop.time(), call.request.receive)
        record = await call.client.aget(await call.client.acurrent(call.run_id))
        if call.service.readiness.stopping or await call.request.is_disconnected():
            break
    if record.status not in TERMINAL_RUN_STATUSES:
        return json(Result(record.run_id, record.status, None), 202, [(b"retry-after", RESULT_RETRY)])
    if record.status is not RunStatus.SUCCEEDED:
        return json(Result(record.run_id, record.status, None))
    payload = await call.service.client.aending(record.run_id)
    large = reference_in(payload)
    if large is None:
        return json(Result(record.run_id, record.status, payload.get("result")))
    return await _large_answer(call, record, large)


async def _large_answer(call: Call, record: RunRecord, large: ResultBlob) -> Response:
    """Return a large result in pieces, as they are stored, so that the server never has all of it."""
    before, after = msgspec.json.encode(Result(record.run_id, record.status, msgspec.Raw(b"|"))).split(b"|")
    parts = call.service.client.aresult_pieces(record.run_id, large)
    first = await anext(parts)  # errors must be raised before the response starts

    async def body() -> AsyncIterator[bytes]:
        yield before + first
        async for part in parts:
            yield part
        yield after

    length = str(len(before) + large.size + len(after)).encode()
    return StreamAnswer(body(), b"application/json", [(b"content-length", length)])


async def explain_run(call: Call) -> Answer:
    """Explain where a run is, and what will wake it."""
    return json(await call.client.aexplain(call.run_id))


async def list_events(call: Call) -> Answer:
    """List the events of a job."""

    async def read(after: int, count: int) -> list[Event]:
        return await call.client.aevents(call.run_id, after=after, limit=count)

    return await bounded_page(call, read, lambda event, _: event.seq)


async def list_evidence(call: Call) -> Answer:
    """List results that arrived too late."""

    async def read(after: int, count: int) -> list[Evidence]:
        return await call.client.aevidence(call.run_id, after=after, limit=count)

    return await bounded_page(call, read, lambda _, place: place)


async def list_exports(call: Call) -> Answer:
    """List the exports of a run."""

    async def read(after: int, count: int) -> list[Export]:
        return await call.client.aexports(call.run_id, after=after, limit=count)

    return await bounded_page(call, read, lambda export, _: export.number)


async def bounded_page(
    call: Call, read: Callable[[int, int], Awaitable[list[T]]], cursor_of: Callable[[T, int], int]
) -> Answer:
    """Return a page of items that may be large, up to the limit of the request and the size limit of a page.

    Args:
        call: the request.
        read: reads so many items after a cursor.
        cursor_of: returns the cursor of an item, from the item and its place in the listing.
    """
    asked = call.query(PAGED)
    limit, after = asked.get("limit", PAGE), asked.get("cursor", 0)
    items: list[msgspec.Raw] = []
    size = 0
    while True:
        wanted = min(CHUNK, limit - len(items)) + 1
        found = await read(after, wanted)
        for item in found[: wanted - 1]:
            items.append(msgspec.Raw(msgspec.json.encode(item)))
            size, after = size + len(items[-1]), cursor_of(item, after + 1)
            if size > PAGE_BYTES:
                break
        if len(found) < wanted and size <= PAGE_BYTES:
            return page(items)
        if len(items) >= limit or size > PAGE_BYTES:
            return page(items, after)


async def get_content(call: Call) -> Response:
    """Return the content of an export as a download, so that a browser never runs it as a page."""
    text = call.request.path_params["number"]
    export = await _export(call, int(text)) if re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII) else None
    if export is None:
        raise Problem(
            404, "not_found", "the run has no export with this number", "GET the run's exports for their numbers"
        )
    kind = export.media_type.partition(";")[0].strip().lower()
    tag = f'"{export.run_id}-{export.number}"'.encode()  # an export never changes
    name = quote(export.name, safe="")
    headers = [
        (b"content-disposition", f"attachment; filename=\"export-{export.number}\"; filename*=UTF-8''{name}".encode()),
        (b"etag", tag),
    ]
    if matches_tag(call.request.headers.get("if-none-match"), tag):
        return not_modified(tag)
    parts = call.client.acontent(call.run_id, export.number)
    first = await anext(parts, b"")  # errors must be raised before the response starts
    size = export.size if export.value is None else len(first)  # a small export is one part
    headers.append((b"content-length", str(size).encode()))
    return StreamAnswer(_joined(first, parts), _PLAIN_MEDIA.get(kind, b"application/octet-stream"), headers)


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for part in rest:
        yield part


async def _export(call: Call, number: int) -> Export | None:
    found = await call.client.aexports(call.run_id, after=number - 1, limit=1)
    return found[0] if found and found[0].number == number else None


async def list_workers(call: Call) -> Answer:
    """List the workers and their jobs."""
    return page(await call.client.aworkers())


async def list_builds(call: Call) -> Answer:
    """List the builds of the code."""
    return page(await call.service.shared.builds())


async def list_gates(call: Call) -> Answer:
    """List the gates of all workers."""
    return page(await call.client.agates())


async def list_entries(call: Call) -> Answer:
    """List the jobs that can be started."""
    return page(await call.client.aentries())


async def list_machines(call: Call) -> Answer:
    """List the three state machines."""
    del call
    return page([table.as_dict() for table in _TABLES.values()])


async def get_machine(call: Call) -> Answer:
    """Return a state machine."""
    name = call.request.path_params["machine"]
    if name not in _TABLES:
        raise Problem(404, "not_found", "no machine has this name", f"the machines are {', '.join(_TABLES)}")
    return json(_TABLES[name].as_dict())


async def get_token(call: Call) -> Answer:
    """Return what the server knows of the token in the request."""
    who = call.principal
    name, expires_at = (who.token.name, who.token.expires_at) if who.token is not None else (None, None)
    return json(TokenView(name, who.scope.name.lower(), who.group, expires_at, who.actor))


async def get_stats(call: Call) -> Answer:
    """Return statistics of the store."""
    return json(await call.client.astats())


async def list_audit(call: Call) -> Answer:
    """List who did what, newest first."""
    asked = call.query(PAGED)
    limit = asked.get("limit", PAGE)
    found = await call.client.aaudit(before=asked.get("cursor"), limit=limit + 1)
    return page(found[:limit], found[limit - 1].number if len(found) > limit else None)


def _attribute(text: str) -> Attribute:
    """Return the value of an attribute. A JSON number, boolean or string is decoded, other text stays as it is."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text
    return value if isinstance(value, (bool, int, float, str)) else text
