"""Moves that are decided without a reader: the same as those of a stream writer, and none of an unusual row."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.machines import CancelRequest, JobEvent, JobState, OpenWait
from holdfast.machines.event import Frozen, freeze
from holdfast.machines.run_projection import HANDED_OVER
from holdfast.store import Claim, Submit, decide, plain_moves
from holdfast.store.rows import Job, Lease
from holdfast.store.stream_writer import Decision, StreamWriter

NOW = 1_000.0
LEASE = Lease("worker", NOW + 30)
CLAIM = Claim(worker="worker", entries=frozenset({("p", "e")}), queues=None, limit=1, lease_seconds=30.0)
TAKEN_BY = freeze({"worker": "worker", "build": "b1"})[0]
RESULT = freeze({"result": [1, {"a": None}]})[0]
UNUSUAL: dict[str, dict[str, Any]] = {
    "cancel": {"cancel": CancelRequest("because", NOW)},
    "pause": {"pause": True},
    "wait": {"wait": OpenWait(None, "key", "signal", None, park=False)},
    "wake": {"wake_at": NOW + 1},
}


def queued(**fields: Any) -> Job:
    submit = Submit(job="00000000-0000-7000-8000-000000000001", plugin="p", entry="e", args={}, **fields)
    return decide.submit(submit, NOW - 5, None).job


def running(**fields: Any) -> Job:
    return decide.claim(queued(**fields), CLAIM, NOW - 3).job


def retried() -> Job:
    """A job whose first try failed: its run goes on, and began with that try."""
    writer = StreamWriter(running(), NOW - 2)
    writer.put(JobEvent.REQUEUED, {"reason": "error"}, attempt=1)
    return writer.end().job


def reopened() -> Job:
    """A failed job that an operator retries: a new run."""
    writer = StreamWriter(running(), NOW - 2)
    writer.put(JobEvent.FAILED, {"reason": "error"}, attempt=1)
    writer.put(JobEvent.REQUEUED, {"reason": "again", "actor": "ann"})
    return writer.end().job


def by_writer(job: Job, kind: str, payload: Frozen, attempt: int, **fields: object) -> Decision:
    writer = StreamWriter(job, NOW)
    writer.put(kind, payload, attempt=attempt)
    if fields:
        writer.set(**fields)
    return writer.end()


def parts(decision: Decision | None) -> tuple[Any, ...]:
    """What a store writes of a decision; it stores the texts of payloads."""
    assert decision is not None
    events = [msgspec.structs.replace(event, payload={}) for event in decision.events]
    more = decision.kept, decision.used, decision.follow, decision.successor, decision.moving, decision.orphans
    return decision.job, events, decision.payloads, more, decision.past, decision.grew_only, decision.change


@pytest.mark.parametrize("job", [queued(), queued(deadline=NOW + 60, group="g", parent="a", parent_key="k"),
                                 retried(), reopened()])  # fmt: skip
def test_a_claim_is_that_of_a_stream_writer(job: Job) -> None:
    plain = plain_moves.claimed(job, TAKEN_BY, "b1", LEASE, "b1", NOW)
    assert parts(plain) == parts(
        by_writer(job, JobEvent.RUNNING, TAKEN_BY, job.attempt + 1, lease=LEASE, kept_for="b1")
    )


@pytest.mark.parametrize("job", [running(), running(deadline=NOW + 60, group="g"),
                                 decide.claim(retried(), CLAIM, NOW - 1).job,
                                 decide.claim(reopened(), CLAIM, NOW - 1).job])  # fmt: skip
def test_an_end_is_that_of_a_stream_writer(job: Job) -> None:
    plain = plain_moves.completed(job, RESULT, job.attempt, NOW)
    assert parts(plain) == parts(by_writer(job, JobEvent.COMPLETED, RESULT, job.attempt))


@pytest.mark.parametrize("fields", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_rows_are_left_to_the_stream_writer(fields: dict[str, Any]) -> None:
    taken = msgspec.structs.replace(queued(), **fields)
    assert plain_moves.claimed(taken, TAKEN_BY, "b1", LEASE, None, NOW) is None
    ended = msgspec.structs.replace(running(), **fields)
    assert plain_moves.completed(ended, RESULT, 1, NOW) is None


def test_a_claim_from_another_state_is_left_to_the_stream_writer() -> None:
    for state in set(JobState) - {JobState.QUEUED}:
        job = msgspec.structs.replace(queued(), state=state)
        assert plain_moves.claimed(job, TAKEN_BY, None, LEASE, None, NOW) is None
    for state in set(JobState) - {JobState.RUNNING}:
        job = msgspec.structs.replace(running(), state=state)
        assert plain_moves.completed(job, RESULT, 1, NOW) is None


def test_a_job_that_was_handed_over_is_left_to_the_stream_writer() -> None:
    job = queued()
    job = msgspec.structs.replace(job, course=msgspec.structs.replace(job.course, stage=HANDED_OVER))
    assert plain_moves.claimed(job, TAKEN_BY, None, LEASE, None, NOW) is None


def test_a_parent_is_told_by_the_stream_writer() -> None:
    job = running(parent="00000000-0000-7000-8000-000000000000", parent_key="child")
    assert plain_moves.completed(job, RESULT, 1, NOW) is None


@pytest.mark.parametrize("name", ["continued_as", "result_refs"])
def test_a_result_that_names_something_else_is_left_to_the_stream_writer(name: str) -> None:
    assert plain_moves.completed(running(), freeze({"result": None, name: []})[0], 1, NOW) is None
