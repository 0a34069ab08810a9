"""Handlers of the reads for people: the story and the family of a run, its plan, the inbox, and series."""

from __future__ import annotations

import re

import msgspec

from holdfast.client.overview.marked_changes import RUNS_MAX
from holdfast.client.overview.questions import KINDS
from holdfast.client.overview.series import MINUTES, MINUTES_MAX
from holdfast.client.overview.story import STORY_MAX, STORY_PAGE
from holdfast.client.views import PAGE
from holdfast.errors import InvalidArguments
from holdfast.http.handlers.reads import LIMIT, NUMBER_CURSOR, PAGE_BYTES, bounded_page, page
from holdfast.http.problems import Problem
from holdfast.http.request import Call, Query
from holdfast.http.response import Answer, json
from holdfast.machines import Event, canonical

JOB_CURSOR = r"^[A-Za-z0-9_~:@-]{1,255}$"
QUESTION_CURSOR = r"^~[A-Za-z0-9_~:@-][A-Za-z0-9_~:@.-]{0,254}~[0-9]{1,9}$"
STORY_PAGED = (
    Query("limit", "integer", f"Maximum number of events, {STORY_PAGE} by default.", 1, STORY_MAX),
    NUMBER_CURSOR,
)
INBOX = (
    Query("kind", "string", "Only questions of this kind.", words=KINDS),
    Query("group", "string", "Only runs of this group. A token of a group allows that group only."),
    Query("run_id", "string", "Only questions of this run."),
    LIMIT,
    Query("cursor", "string", "`next` of the previous page.", pattern=QUESTION_CURSOR),
)
CHANGED_MAX = 1000  # runs that one request looks at for marked changes: a server must not be held up
CHANGES = (
    Query("limit", "integer", f"Maximum number of runs to look at; {CHANGED_MAX} in any case.", 1, RUNS_MAX),
    Query("cursor", "string", "`next` of the previous response, to count older runs.", pattern=JOB_CURSOR),
)
SERIES = (
    Query("minutes", "integer", f"Length of the window, {MINUTES} by default.", 1, MINUTES_MAX),
    Query("queue", "string", "Only runs in this queue."),
)


class SealedEvent(msgspec.Struct):
    """The text that the hash of an event covers, exactly.

    `hash` is the SHA-256 of `sealed` in UTF-8. `previous` is the hash of the event before it, 64 zeros for the first.
    It is the last value in `sealed`, too.
    """

    seq: int
    sealed: str
    hash: str
    previous: str


async def get_story(call: Call) -> Answer:
    """List what each event of a job has changed."""
    asked = call.query(STORY_PAGED)
    limit, after = asked.get("limit", STORY_PAGE), asked.get("cursor", 0)
    events = await call.client.astory(call.run_id, after=after, limit=limit + 1)
    items: list[msgspec.Raw] = []
    size = 0
    for event in events[:limit]:
        items.append(msgspec.Raw(msgspec.json.encode(event)))
        size += len(items[-1])
        if size > PAGE_BYTES:
            break
    return page(items, events[len(items) - 1].seq if len(items) < len(events) else None)


async def get_plan(call: Call) -> Answer:
    """Return the nodes of a run's plan."""
    plan = await call.client.arun_plan(call.run_id)
    if plan is None:
        raise Problem(404, "no_plan", "the run has no plan", "GET the run's story: it has the calls of the job's code")
    return json(plan)


async def get_family(call: Call) -> Answer:
    """Return the family of a run, as far as the token may see it."""
    return json(await call.client.afamily(call.run_id, group=call.principal.group))


async def list_chain(call: Call) -> Answer:
    """List the texts that the hashes of a job's events cover."""

    async def read(after: int, count: int) -> list[SealedEvent]:
        return list(map(_sealed, await call.client.aevents(call.run_id, after=after, limit=count)))

    return await bounded_page(call, read, lambda event, _: event.seq)


def _sealed(event: Event) -> SealedEvent:
    return SealedEvent(event.seq, canonical(event).decode(), event.hash, event.prev)


async def list_inbox(call: Call) -> Answer:
    """List everything that waits for a person."""
    asked = call.query(INBOX)
    limit, cursor = asked.get("limit", PAGE), asked.get("cursor")
    if cursor is not None and not re.fullmatch(QUESTION_CURSOR, cursor, re.ASCII):
        raise InvalidArguments("cursor", "must be `next` of the previous page")
    after = cursor[1:] if cursor is not None else None
    group = call.group(asked.get("group"))
    found = await call.client.ainbox(
        after=after, limit=limit + 1, kind=asked.get("kind"), group=group, run_id=asked.get("run_id")
    )
    return page(found[:limit], f"~{found[limit - 1].id}" if len(found) > limit else None)


async def list_changes(call: Call) -> Answer:
    """List the marked changes of job code."""
    asked = call.query(CHANGES)
    limit, cursor = min(asked.get("limit", CHANGED_MAX), CHANGED_MAX), asked.get("cursor")
    if cursor is not None and not re.fullmatch(JOB_CURSOR, cursor, re.ASCII):
        raise InvalidArguments("cursor", "must be `next` of the previous response")
    return json(await call.client.achanges(limit=limit, replay=False, before=cursor))


async def get_series(call: Call) -> Answer:
    """Return what happened to runs in the last minutes."""
    asked = call.query(SERIES)
    return json(await call.service.shared.series(asked.get("minutes", MINUTES), asked.get("queue")))
