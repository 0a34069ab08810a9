"""Submissions and claims: an accepted job is stored, and is claimed once, in order."""

from __future__ import annotations

from typing import Any

from holdfast.errors import IdempotencyConflict
from holdfast.machines import JobState
from holdfast.store.commands import Append, Cancel, Reclaim, SetLimits
from holdfast.store.contract.harness import LEASE, Lab, claiming, clause, submission
from holdfast.store.limits import Limits


@clause
async def a_submitted_job_is_queued_with_its_arguments_in_its_first_event(lab: Lab) -> None:
    await lab.submit(args={"sku": "A1", "n": [1, None, 2.5]}, priority=3, queue="mail", trace_id="t")
    row = await lab.job()
    assert (row.state, row.version, row.queue, row.priority) == (JobState.QUEUED, 1, "mail", 3)
    (created,) = await lab.store.events("a")
    assert created.payload["args"] == {"sku": "A1", "n": [1, None, 2.5]}
    assert created.at == row.created_at == lab.clock.now()


@clause
async def the_same_key_with_the_same_arguments_gives_the_existing_job(lab: Lab) -> None:
    await lab.submit("a", idempotency_key="k", fingerprint="f")
    again = submission("b", idempotency_key="k", fingerprint="f")
    answer = await lab.do(again)
    assert (answer.job, answer.existing) == ("a", True)
    assert await lab.store.get("b") is None
    other = submission("c", entry="refund", idempotency_key="k", fingerprint="f")
    assert (await lab.do(other)).existing is False, "a key belongs to one entry"


@clause
async def the_same_key_with_other_arguments_is_refused(lab: Lab) -> None:
    await lab.submit("a", idempotency_key="k", fingerprint="f")
    other = submission("b", idempotency_key="k", fingerprint="g")
    refusal = await lab.refused(other, IdempotencyConflict)
    assert isinstance(refusal, IdempotencyConflict)
    assert refusal.job == "a"


@clause
async def the_same_id_submitted_again_changes_nothing(lab: Lab) -> None:
    await lab.submit("a", fingerprint="f")
    again = await lab.do(submission("a", fingerprint="f"))
    assert again.existing
    await lab.refused(submission("a", entry="refund", fingerprint="f"), IdempotencyConflict)
    assert (await lab.job()).version == 1


@clause
async def a_key_used_twice_in_one_batch_makes_one_job(lab: Lab) -> None:
    one, two = (submission(name, idempotency_key="k", fingerprint="f") for name in "ab")
    answers = await lab.store.commit([one, two])
    assert [answer.job for answer in answers] == ["a", "a"]


@clause
async def one_refusal_in_a_batch_leaves_the_others_alone(lab: Lab) -> None:
    held = await lab.running("a")
    stale = Append("a", held.attempt + 1, (("node_started", {"node": "x"}),))
    good = Append("a", held.attempt, (("node_started", {"node": "y"}),))
    unknown = Cancel("missing", None)
    bad = Append("a", held.attempt, (("job_running", {}),))
    answers = await lab.store.commit([stale, good, unknown, bad, good])
    kinds = [type(answer).__name__ for answer in answers]
    assert kinds == ["StaleAttempt", "Appended", "UnknownJob", "InvalidTransition", "Appended"]
    assert await lab.types() == ["job_created", "job_running", "node_started", "node_started"]
    await lab.job()


@clause
async def a_claim_that_follows_the_end_of_a_job_in_its_batch_takes_others(lab: Lab) -> None:
    held = await lab.running("a")
    await lab.submit("b")
    end = Append("a", held.attempt, (("job_completed", {"result": 1}),))
    ended, claims = await lab.store.commit([end, claiming(limit=5)])
    assert (ended.state, [each.job.id for each in claims.claimed]) == (JobState.COMPLETED, ["b"])
    assert [(await lab.job(name)).state for name in "ab"] == [JobState.COMPLETED, JobState.RUNNING]
    assert [each.payload for each in claims.claimed[0].events] == [
        event.payload for event in await lab.store.events("b")
    ]


@clause
async def a_claim_finds_what_the_writes_before_it_in_its_batch_have_queued(lab: Lab) -> None:
    held = await lab.running("a")
    back = Append("a", held.attempt, (("job_requeued", {"reason": "worker_shutdown"}),))
    _, claims = await lab.store.commit([back, claiming(limit=5)])
    (again,) = claims.claimed
    assert (again.job.id, again.job.attempt) == ("a", 2)
    await lab.append(again.job, ("job_waiting", {"correlation_key": "child:1", "wait_type": "child"}))
    child = await lab.running("b", parent="a", parent_key="child:1")
    end = Append("b", child.attempt, (("job_completed", {"result": 1}),), parent="a")
    _, claims = await lab.store.commit([end, claiming(limit=5)])
    assert [each.job.id for each in claims.claimed] == ["a"], "the end of its child has woken it"


@clause
async def a_claim_leaves_the_children_that_a_failure_in_its_batch_cancels(lab: Lab) -> None:
    held = await lab.running("a")
    await lab.submit("b", parent="a", parent_key="child:1")
    failure = Append("a", held.attempt, (("job_failed", {"reason": "error"}),))
    _, claims = await lab.store.commit([failure, claiming(limit=5)])
    assert claims.claimed == []
    assert (await lab.job("b")).state is JobState.CANCELLED


@clause
async def a_claim_takes_a_new_attempt_and_writes_one_event(lab: Lab) -> None:
    await lab.submit()
    (claimed,) = await lab.claim(worker="w7")
    row = await lab.job()
    assert claimed.job == row
    assert (row.state, row.attempt, row.lease and row.lease.worker) == (JobState.RUNNING, 1, "w7")
    assert row.lease is not None
    assert row.lease.until == lab.clock.now() + LEASE
    written = [(event.type, event.attempt, event.payload) for event in await lab.store.events("a")]
    assert [(event.type, event.attempt, event.payload) for event in claimed.events] == written
    assert [event.type for event in claimed.events] == ["job_created", "job_running"]


@clause
async def claims_come_by_priority_then_due_time_then_age(lab: Lab) -> None:
    now = lab.clock.now()
    await lab.submit("a", priority=0)
    await lab.submit("b", priority=5, due_at=now + 2)
    await lab.submit("c", priority=5, due_at=now + 1)
    lab.clock.move(3)
    await lab.submit("d", priority=5)
    await lab.submit("e", priority=0)
    assert [claimed.job.id for claimed in await lab.claim(limit=10)] == ["c", "b", "d", "a", "e"]


@clause
async def a_claim_takes_no_more_than_asked_and_nothing_twice(lab: Lab) -> None:
    for name in "abcde":
        await lab.submit(name)
    first, second = await lab.claim(limit=2), await lab.claim(limit=9, worker="w2")
    assert [claimed.job.id for claimed in first] == ["a", "b"]
    assert [claimed.job.id for claimed in second] == ["c", "d", "e"]
    assert await lab.claim(limit=9) == []


@clause
async def each_attempt_has_the_build_of_its_worker_and_the_record_the_newest(lab: Lab) -> None:
    await lab.submit()
    for build in ("1.0", None, "2.0"):
        (claimed,) = await lab.claim(build=build)
        assert claimed.events[-1].payload == {"worker": "w1", **({"build": build} if build else {})}
        record = await lab.store.record("a", 1)
        assert record is not None
        assert (record.build, claimed.job.course.build) == (build, build)
        lab.clock.move(LEASE + 1)
        await lab.do(Reclaim())
    assert (await lab.job()).course.build == "2.0", "until another attempt begins"


@clause
async def a_job_is_kept_for_the_build_that_its_entry_is_pinned_to(lab: Lab) -> None:
    pins = frozenset({("shop", "checkout")})
    wanted: dict[str, Any] = {"limit": 3, "entries": pins | {("shop", "refund")}, "pins": pins}
    for name in "ab":
        await lab.submit(name)
    await lab.submit("c", entry="refund")
    assert [one.job.kept_for for one in await lab.claim(**wanted, build="1.0")] == ["1.0", "1.0", None]
    lab.clock.move(LEASE + 1)
    await lab.do(Reclaim())
    assert await lab.claim(limit=3, build=None, pins=pins) == []
    assert [one.job.id for one in await lab.claim(**wanted, build="2.0")] == ["c"]
    assert [one.job.id for one in await lab.claim(limit=1, build="1.0")] == ["a"]
    assert (await lab.job("b")).kept_for == "1.0"
    await lab.submit("e")
    assert [one.job.id for one in await lab.claim(limit=3, build="1.0", kept_only=True)] == ["b"]
    assert [one.job.id for one in await lab.claim(limit=3)] == ["e"]
    await lab.submit("d", due_at=lab.clock.now() + 10)
    lab.clock.move(11)
    assert [one.job.id for one in await lab.claim(limit=3, build="2.0")] == ["d"], "what was delayed is found, too"


@clause
async def a_kept_job_counts_against_the_limits_of_its_queue(lab: Lab) -> None:
    await lab.do(SetLimits(Limits(queue="default", concurrency=1)))
    pins = frozenset({("shop", "checkout")})
    for name in "ab":
        await lab.submit(name, group="g")
    (first,) = await lab.claim(limit=2, build="1.0", pins=pins)
    assert await lab.claim(limit=2, build="1.0") == []
    await lab.append(first.job, ("job_requeued", {"reason": "worker_shutdown"}))
    assert [one.job.id for one in await lab.claim(limit=2, build="2.0")] == ["b"]


@clause
async def a_job_is_not_claimed_before_it_is_due(lab: Lab) -> None:
    await lab.submit(due_at=lab.clock.now() + 10)
    assert await lab.store.next_due() == lab.clock.now() + 10
    lab.clock.move(9.99)
    assert await lab.claim() == []
    lab.clock.move(0.02)
    assert len(await lab.claim()) == 1


@clause
async def only_the_entries_and_queues_named_are_claimed(lab: Lab) -> None:
    await lab.submit("a", entry="refund")
    await lab.submit("b", plugin="bank")
    await lab.submit("c", queue="mail")
    await lab.submit("d")
    assert [claimed.job.id for claimed in await lab.claim(limit=9, queues=frozenset({"mail"}))] == ["c"]
    assert [claimed.job.id for claimed in await lab.claim(limit=9)] == ["d"]
    both = frozenset({("bank", "checkout"), ("shop", "refund")})
    assert [claimed.job.id for claimed in await lab.claim(limit=9, entries=both)] == ["a", "b"]


@clause
async def a_waiting_job_is_never_claimed_and_never_reclaimed(lab: Lab) -> None:
    await lab.waiting()
    lab.clock.move(1000)
    assert await lab.claim() == []
    assert (await lab.do(Reclaim())).jobs == []
    assert (await lab.job()).state is JobState.WAITING
