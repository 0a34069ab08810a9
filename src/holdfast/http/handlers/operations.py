"""Handlers that change the store. The store records the actor of each operator action."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from holdfast.client.retention.removal import BATCH, ENDED, age_of, states_of
from holdfast.client.views import Created, Creation
from holdfast.errors import IdempotencyConflict
from holdfast.http.request import Call
from holdfast.http.response import Answer, json

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
LongText = Annotated[str, msgspec.Meta(max_length=2000)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class Cancel(msgspec.Struct, forbid_unknown_fields=True):
    """The reason and the actor of a cancellation."""

    reason: LongText | None = None
    actor: Name | None = None


class Retry(msgspec.Struct, forbid_unknown_fields=True):
    """The reason and the actor of a retry."""

    reason: LongText
    actor: Name | None = None


class Pause(msgspec.Struct, forbid_unknown_fields=True):
    """The actor of a pause or resume."""

    actor: Name | None = None


class Signal(msgspec.Struct, forbid_unknown_fields=True):
    """A signal: its key, its payload, and an id. A repeat with the same id has no effect. `actor` is who answers.

    With the `node` of a question in the inbox, the signal counts for this question only. If the question is no longer
    open, the signal is refused with `question_closed`, and nothing is stored.
    """

    key: Text
    payload: Any = None
    id: Name | None = None
    actor: Name | None = None
    node: Text | None = None


class Outcome(msgspec.Struct):
    """The outcome of a signal or grant."""

    outcome: Literal["delivered", "kept", "repeat", "too_late"]


class Grant(msgspec.Struct, forbid_unknown_fields=True):
    """Amounts to add to the budget of a run, by unit. A repeat with the same id has no effect.

    With the `node` of a question in the inbox, the grant counts for this question only, as for a signal.
    """

    amounts: dict[Name, Annotated[float, msgspec.Meta(ge=0)]]
    actor: Name | None = None
    id: Name | None = None
    node: Text | None = None


class Resolve(msgspec.Struct, forbid_unknown_fields=True):
    """The answer about a tool call in doubt. `result` applies to `done` only.

    With the `started` of a question in the inbox, the answer counts for this try of the call only.
    """

    step: Text
    answer: Literal["done", "not_done", "fail"]
    result: Any = None
    actor: Name | None = None
    started: Annotated[int, msgspec.Meta(ge=1)] | None = None


class MisfitAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """The answer about a run whose history does not fit the code.

    With the `node` of a question in the inbox, the answer counts for this question only.
    """

    answer: Literal["accept", "build", "fork", "fail"]
    node: Text | None = None
    actor: Name | None = None


class Move(msgspec.Struct, forbid_unknown_fields=True):
    """The build that runs are kept for, and the build whose workers may run them then.

    With `check`, each run is replayed through the code of the server first, which must be that of the new build. If one
    does not fit, none is moved, and the result of the run lists the misfits.
    """

    old: Name
    new: Name
    check: bool = True
    actor: Name | None = None


class Verify(msgspec.Struct, forbid_unknown_fields=True):
    """The run to check, or null for all runs that the token can reach."""

    run_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_~:@-][A-Za-z0-9_~:@-]{0,250}(\.[0-9]{1,9})?$")] | None = (
        None
    )


class Verified(msgspec.Struct):
    """The violations found, by job. It is empty if the histories are correct."""

    wrong: dict[str, list[str]]


class Purge(msgspec.Struct, forbid_unknown_fields=True):
    """The runs to delete. `older_than` is the time since their end, in seconds or as text such as "30d".

    With a `limit` of at most 1,000 and a token without a group, the response has the number of deleted runs. Otherwise
    it has a run, whose result has the number.
    """

    older_than: Annotated[float, msgspec.Meta(ge=0)] | Text
    statuses: list[Literal["succeeded", "failed", "canceled"]] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None


class Purged(msgspec.Struct):
    """The number of deleted runs."""

    removed: int


async def create_run(call: Call) -> Answer:
    """Create a run. The status is 201, or 200 if a run with the same key exists."""
    asked = await call.body(Creation)
    bound = call.principal.group is not None
    if bound:
        asked = msgspec.structs.replace(asked, group=call.group(asked.group))
    created = await call.client.acreate(with_headers(call, asked))
    if bound and created.existing and not await call.owns(created.record.run_id):
        raise IdempotencyConflict(created.record.idempotency_key or "", created.record.run_id)
    status = 200 if created.existing else 201
    return json(created.record, status, [(b"location", call.place(created.record.run_id))])


def with_headers(call: Call, creation: Creation) -> Creation:
    """Return a creation with the idempotency key and the trace id of the request's headers, if the body has none."""
    key = creation.idempotency_key or call.idempotency_key
    trace_id = creation.trace_id or call.trace_id
    if (key, trace_id) == (creation.idempotency_key, creation.trace_id):
        return creation
    return msgspec.structs.replace(creation, idempotency_key=key, trace_id=trace_id)


async def cancel_run(call: Call) -> Answer:
    """Request the cancellation of a run."""
    asked = await call.body(Cancel, Cancel())
    return json(await call.client.acancel(call.run_id, asked.reason, actor=call.actor(asked.actor)))


async def retry_run(call: Call) -> Answer:
    """Reopen a failed job as a new run."""
    asked = await call.body(Retry)
    record = await call.client.aretry(call.run_id, actor=call.actor(asked.actor), reason=asked.reason)
    call.service.maintenance.noticed(record)
    return json(record, 201, [(b"location", call.place(record.run_id))])


async def pause_run(call: Call) -> Answer:
    """Pause a run at its next step."""
    asked = await call.body(Pause, Pause())
    return json(await call.client.apause(call.run_id, actor=call.actor(asked.actor)))


async def resume_run(call: Call) -> Answer:
    """Resume a paused run."""
    asked = await call.body(Pause, Pause())
    record = await call.client.aresume(call.run_id, actor=call.actor(asked.actor))
    return json(call.service.maintenance.noticed(record))


async def signal_run(call: Call) -> Answer:
    """Send a signal to a run."""
    asked = await call.body(Signal)
    outcome = await call.client.asignal(
        call.run_id, asked.key, asked.payload, asked.id or _signal_id(call), actor=call.actor(asked.actor),
        node=asked.node,
    )  # fmt: skip
    return json({"outcome": outcome})


def _signal_id(call: Call) -> str | None:
    """Return the id of a signal without its own: the key of the request. The keys of different tokens differ."""
    key = call.idempotency_key
    return f"{call.principal.actor}: {key}" if key is not None else None


async def grant_run(call: Call) -> Answer:
    """Add to the budget of a run."""
    asked = await call.body(Grant)
    granted = await call.client.agrant(
        call.run_id, asked.amounts, actor=call.actor(asked.actor), id=asked.id or call.idempotency_key,
        node=asked.node,
    )  # fmt: skip
    return json({"outcome": granted})


async def resolve_run(call: Call) -> Answer:
    """Resolve a tool call in doubt."""
    asked = await call.body(Resolve)
    answer: dict[str, Any] = {"done": asked.result} if asked.answer == "done" else {asked.answer: True}
    actor, started = call.actor(asked.actor), asked.started
    return json(await call.client.aresolve(call.run_id, asked.step, actor=actor, started=started, **answer))


async def answer_run(call: Call) -> Answer:
    """Say which code goes on with a run. The response has the run that goes on, which is another one after a fork."""
    asked = await call.body(MisfitAnswer)
    return json(await call.client.aanswer(call.run_id, asked.answer, node=asked.node, actor=call.actor(asked.actor)))


async def verify(call: Call) -> Answer:
    """Check the history of a run, or start a built-in run that checks all."""
    asked = await call.body(Verify, Verify())
    if asked.run_id is None:
        created = await call.service.maintenance.jobs.start_verify(
            call.principal.group, call.idempotency_key, call.trace_id
        )
        return await _started(call, created)
    if call.principal.group is not None:
        await call.check_own(asked.run_id)
    found = await call.client.averify(asked.run_id)
    return json(Verified({job: [str(one) for one in wrong] for job, wrong in found.items()}))


async def purge(call: Call) -> Answer:
    """Delete runs that ended long ago: a small number at once, others in a built-in run."""
    asked = await call.body(Purge)
    statuses = list(ENDED if asked.statuses is None else asked.statuses)
    states_of(statuses)
    older_than_seconds, group = age_of(asked.older_than), call.principal.group
    if group is None and asked.limit is not None and asked.limit <= BATCH:
        call.expect_many()
        removed = await call.client.apurge(older_than=older_than_seconds, limit=asked.limit, statuses=statuses)
        return json(Purged(removed))
    created = await call.service.maintenance.jobs.start_purge(
        older_than_seconds=older_than_seconds,
        statuses=statuses,
        limit=asked.limit,
        group=group,
        actor=call.principal.actor,
        key=call.idempotency_key,
        trace_id=call.trace_id,
    )
    return await _started(call, created)


async def move_build(call: Call) -> Answer:
    """Move runs to another build, in a built-in run: each of them is replayed first."""
    asked = await call.body(Move)
    created = await call.service.maintenance.jobs.start_move(
        asked.old,
        asked.new,
        check=asked.check,
        actor=call.actor(asked.actor),
        key=call.idempotency_key,
        trace_id=call.trace_id,
    )
    return await _started(call, created)


async def _started(call: Call, created: Created) -> Answer:
    """Return the response for a built-in run. The client follows the run to its result."""
    record = created.record
    if created.existing and call.principal.group is not None and not await call.owns(record.run_id):
        raise IdempotencyConflict(record.idempotency_key or "", record.run_id)
    call.service.maintenance.wake()
    return json(record, 202, [(b"location", call.place(record.run_id))])
