"""Continued jobs (`continue_as`): one successor, which gets every signal and command that is meant for it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import InvalidTransition, QuestionClosed, StaleAttempt
from holdfast.machines import JobState
from holdfast.store.commands import (
    Append,
    Cancel,
    Pause,
    Purge,
    Reclaim,
    Resume,
    Retry,
    SendSignal,
    SetLimits,
    SignalResult,
    Successor,
)
from holdfast.store.contract.harness import LEASE, WAIT, Lab, clause
from holdfast.store.limits import Limits
from holdfast.store.rows import Job


def _continuation(held: Job, job: str, **options: Any) -> Append:
    """Return the command that ends a job with a successor."""
    first = held.first or held.id
    successor = Successor(job=job, args={"from": held.id}, fingerprint=f"of {job}", first=first, **options)
    events = (("job_completed", {"result": None, "continued_as": job}),)
    return Append(held.id, held.attempt, events, parent=held.parent, successor=successor)


async def _continued(lab: Lab, held: Job, job: str, **options: Any) -> Job:
    """Continue a job, and claim its successor."""
    await lab.do(_continuation(held, job, **options))
    (claimed,) = await lab.claim()
    assert claimed.job.id == job
    return claimed.job


async def _chain(lab: Lab, *names: str, **options: Any) -> Job:
    """Create a chain whose last job runs."""
    held = await lab.running(names[0], **options)
    for name in names[1:]:
        held = await _continued(lab, held, name)
    return held


@clause
async def a_continued_job_ends_and_its_successor_has_what_it_had(lab: Lab) -> None:
    begun = lab.clock.now()
    options: dict[str, Any] = {
        "queue": "slow",
        "priority": 7,
        "group": "acme",
        "attributes": {"customer": 42},
        "trace_id": "t1",
        "max_attempts": 3,
        "idempotency_key": "k",
        "deadline": begun + 60,
    }
    held = await lab.running("a", **options)
    lab.clock.move(5)
    answer = await lab.do(_continuation(held, "b", budget={"usd": 5}))
    old, new = await lab.job("a"), await lab.job("b")
    assert (answer.state, old.state, old.course.continued_as) == (JobState.COMPLETED, JobState.COMPLETED, "b")
    assert (old.newest, old.continues, old.first) == ("b", None, None)
    assert (new.state, new.continues, new.first, new.newest) == (JobState.QUEUED, "a", "a", None)
    assert (new.plugin, new.entry, new.queue, new.priority) == ("shop", "checkout", "slow", 7)
    assert (new.group, new.attributes, new.trace_id, new.max_attempts) == ("acme", {"customer": 42}, "t1", 3)
    assert (new.idempotency_key, new.fingerprint) == (None, "of b"), "the key stays with the first"
    assert new.ends_by == lab.clock.now() + 60, "each run has as long as the first had (R7)"
    (created,) = await lab.store.events("b")
    assert (created.payload["args"], created.payload["budget"]) == ({"from": "a"}, {"usd": 5})
    assert (created.payload["continues"], created.payload["first"]) == ("a", "a")
    record = await lab.store.record("a", 1)
    assert record is not None
    assert (record.status, record.continued_as) == ("succeeded", "b")


@clause
async def an_end_that_is_written_again_makes_no_second_successor(lab: Lab) -> None:
    held = await lab.running("a")
    await lab.do(_continuation(held, "b"))
    await lab.refused(_continuation(held, "b"), StaleAttempt)
    await lab.refused(_continuation(held, "c"), StaleAttempt)
    assert sorted(job.id for job in await lab.store.jobs()) == ["a", "b"]


@clause
async def an_attempt_that_lost_its_lease_continues_nothing(lab: Lab) -> None:
    held = await lab.running("a")
    lab.clock.move(LEASE + 1)
    await lab.do(Reclaim())
    await lab.refused(_continuation(held, "b"), StaleAttempt)
    assert await lab.store.get("b") is None


@clause
async def unused_signals_move_along_and_later_ones_are_forwarded(lab: Lab) -> None:
    held = await lab.running("a")
    for number in range(3):
        await lab.do(SendSignal("a", "k", number, f"s{number}"))
    await lab.do(SendSignal("a", "holdfast:child:1", {"state": "completed"}, "of a child"))
    await lab.do(msgspec.structs.replace(_continuation(held, "b"), uses=("s0",)))
    assert [(signal.id, signal.payload) for signal in await lab.store.inbox("b")] == [("s1", 1), ("s2", 2)]
    assert await lab.do(SendSignal("a", "k", 3, "s3")) == SignalResult("kept")
    for name in ("s0", "s1", "s3"):
        assert await lab.do(SendSignal("a", "k", "again", name)) == SignalResult("repeat"), name
    (claimed,) = await lab.claim()
    await lab.do(_continuation(claimed.job, "c"))
    assert [signal.id for signal in await lab.store.inbox("c")] == ["s1", "s2", "s3"]
    assert await lab.store.inbox("b") == []
    for link in ("a", "b"):
        assert await lab.do(SendSignal(link, "k", link, f"to {link}")) == SignalResult("kept")
        assert await lab.do(SendSignal(link, "k", link, f"to {link}")) == SignalResult("repeat")
    assert await lab.do(SendSignal("a", "holdfast:child:1", {}, "late")) == SignalResult("too_late"), (
        "no call of c waits for it"
    )
    await lab.refused(SendSignal("a", "k", 1, "answer", node="n"), QuestionClosed)
    (claimed,) = await lab.claim()
    await lab.append(claimed.job, ("job_waiting", WAIT))
    assert (await lab.job("c")).state is JobState.QUEUED, "a signal that came before the wait completes it"
    assert [signal.id for signal in await lab.store.inbox("c")] == ["s2", "s3", "to a", "to b"]


@clause
async def a_signal_to_any_of_a_chain_completes_the_wait_of_the_newest(lab: Lab) -> None:
    held = await _chain(lab, "a", "b", "c", "d")
    for link in ("a", "b", "c", "d"):
        await lab.append(held, ("job_waiting", {"correlation_key": link, "wait_type": "signal"}))
        assert await lab.do(SendSignal(link, link, 1, f"to {link}")) == SignalResult("delivered")
        (held,) = [claimed.job for claimed in await lab.claim()]
    assert [name for name in "abc" if (await lab.job(name)).version != 3] == [], "links that have ended do not change"


@clause
async def an_operator_steers_the_newest_of_a_chain_by_any_of_its_names(lab: Lab) -> None:
    held = await _chain(lab, "a", "b", "c")
    assert (await lab.do(Pause("a", "ana"))).id == "c"
    assert (await lab.job("c")).pause
    assert not (await lab.do(Resume("b", "ana"))).pause
    await lab.append(held, ("job_failed", {"reason": "error"}))
    assert (await lab.do(Retry("a", "ana", "again"))).state is JobState.QUEUED
    assert (await lab.do(Cancel("a", "enough"))).state is JobState.CANCELLED
    assert [(await lab.job(name)).state for name in "abc"] == [JobState.COMPLETED] * 2 + [JobState.CANCELLED]
    await lab.refused(Retry("a", "ana", "again"), InvalidTransition)


@clause
async def a_cancel_that_was_requested_ends_the_chain(lab: Lab) -> None:
    held = await lab.running("a")
    await lab.do(Cancel("a", "enough"))
    await lab.do(_continuation(held, "b"))
    row = await lab.job("a")
    assert (row.state, row.course.continued_as) == (JobState.CANCELLED, None)
    assert (await lab.store.events("a"))[-1].payload["reason"] == "enough"
    assert await lab.store.get("b") is None


@clause
async def a_pause_that_was_requested_moves_along(lab: Lab) -> None:
    held = await lab.running("a")
    await lab.do(Pause("a"))
    await lab.do(_continuation(held, "b"))
    row = await lab.job("b")
    assert (row.state, row.record().stage) == (JobState.WAITING, "paused")
    assert not (await lab.job("a")).pause
    await lab.do(Resume("a"))
    assert (await lab.job("b")).state is JobState.QUEUED


@clause
async def a_parent_hears_of_the_end_of_the_chain_only(lab: Lab) -> None:
    parent = await lab.running("parent")
    await lab.submit("a", parent="parent", parent_key="holdfast:child:1")
    (child,) = await lab.claim()
    await lab.append(parent, ("job_waiting", {"correlation_key": "holdfast:child:1", "wait_type": "child"}))
    held = await _continued(lab, child.job, "b")
    assert (await lab.job("parent")).state is JobState.WAITING
    assert (held.parent, held.parent_key) == ("parent", "holdfast:child:1")
    await lab.do(Append("b", held.attempt, (("job_completed", {"result": 7}),), parent="parent"))
    (event,) = [event for event in await lab.store.events("parent") if event.type == "wait_completed"]
    assert event.payload["payload"]["result"] == 7


@clause
async def a_chain_is_cancelled_with_its_parent(lab: Lab) -> None:
    parent = await lab.running("parent")
    await lab.submit("a", parent="parent", parent_key="holdfast:child:1")
    (child,) = await lab.claim()
    ended = Append("parent", parent.attempt, (("job_failed", {"reason": "error"}),))
    answers = await lab.store.commit([_continuation(child.job, "b"), ended])
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    assert (await lab.job("b")).state is JobState.CANCELLED


@clause
async def a_full_queue_takes_the_successor(lab: Lab) -> None:
    held = await lab.running("a")
    await lab.do(SetLimits(Limits(queue="default", depth=1, concurrency=1)))
    await lab.submit("other")
    await lab.do(_continuation(held, "b"))
    assert (await lab.job("b")).state is JobState.QUEUED


@clause
async def the_first_of_a_chain_is_kept_until_the_chain_has_ended(lab: Lab) -> None:
    held = await _chain(lab, "a", "b", "c", "d", idempotency_key="k")
    lab.clock.move(1)
    assert (await lab.do(Purge(lab.clock.now()))).jobs == ["b", "c"], "links between may go"
    assert await lab.do(SendSignal("a", "k", 1, "s1")) == SignalResult("kept")
    assert [signal.id for signal in await lab.store.inbox("d")] == ["s1"], "the first names the newest"
    await lab.append(held, ("job_completed", {"result": 1}))
    assert (await lab.job("a")).newest == "d"
    lab.clock.move(1)
    assert (await lab.do(Purge(lab.clock.now()))).jobs == ["a", "d"]


@clause
async def what_is_asked_of_a_chain_whose_end_is_gone_changes_nothing(lab: Lab) -> None:
    held = await _chain(lab, "a", "b")
    await lab.append(held, ("job_failed", {"reason": "error"}))
    lab.clock.move(1)
    assert (await lab.do(Purge(lab.clock.now(), states=frozenset({JobState.FAILED})))).jobs == ["b"]
    before = await lab.job("a"), await lab.store.events("a")
    assert await lab.do(SendSignal("a", "k", 1, "s1")) == SignalResult("too_late")
    assert (await lab.do(Cancel("a", "enough"))).state is JobState.COMPLETED
    assert (await lab.job("a"), await lab.store.events("a")) == before
