"""Operator commands and deadlines, for a job in any state."""

from __future__ import annotations

from typing import Any

from holdfast.errors import InvalidTransition, NotInDoubt, QuestionClosed
from holdfast.machines import JobState, RunError, run_paths, runs
from holdfast.store.audit import Audited
from holdfast.store.commands import (
    Cancel,
    Expire,
    Pause,
    Purge,
    Reclaim,
    Renew,
    Resolve,
    Resume,
    Retry,
    SendSignal,
    Submit,
)
from holdfast.store.contract.harness import LEASE, WAIT, Lab, clause


@clause
async def a_queued_job_is_cancelled_at_once_and_never_starts(lab: Lab) -> None:
    await lab.submit()
    row = await lab.do(Cancel("a", "changed my mind", "ana"))
    assert row.state is JobState.CANCELLED
    assert await lab.types() == ["job_created", "job_leased", "job_cancelled"]
    assert await lab.claim() == []
    assert run_paths(await lab.store.events("a")) == [["queued", "canceled"]]


@clause
async def a_waiting_job_is_cancelled_at_once(lab: Lab) -> None:
    await lab.waiting()
    assert (await lab.do(Cancel("a", None))).state is JobState.CANCELLED
    assert (await lab.types())[-1] == "job_cancelled"


@clause
async def a_running_job_is_asked_to_cancel_and_its_worker_learns_of_it(lab: Lab) -> None:
    held = await lab.running()
    assert (await lab.do(Cancel("a", "first"))).state is JobState.RUNNING
    await lab.do(Cancel("a", "second"))
    row = await lab.job()
    assert row.cancel is not None
    assert row.cancel.reason == "first"
    assert (await lab.types()).count("cancel_requested") == 1
    assert (await lab.do(Renew("w1", ((held.id, held.attempt),), LEASE))).cancel == {"a"}
    requests = await lab.store.requests_for("w1")
    assert (requests.lost, requests.cancel, requests.pause) == (frozenset(), frozenset({"a"}), frozenset())
    assert (await lab.store.requests_for("w2")).cancel == frozenset()
    await lab.append(held, ("job_completed", {}))
    assert runs(await lab.store.events("a"))[0].status == "succeeded", "it finished first"


@clause
async def a_cancel_that_meets_a_job_on_its_way_to_a_wait_ends_it(lab: Lab) -> None:
    held = await lab.running()
    await lab.do(Cancel("a", "changed my mind"))
    await lab.append(held, ("job_waiting", WAIT))
    assert (await lab.job()).state is JobState.CANCELLED, "no worker holds it that could see the request"
    assert runs(await lab.store.events("a"))[0].cancel_reason == "changed my mind"
    later = await lab.running("b")
    await lab.do(Cancel("b", "this one, too"))
    await lab.append(later, ("job_requeued", {"reason": "retry", "not_before": lab.clock.now() + 3600}))
    assert (await lab.job("b")).state is JobState.CANCELLED


@clause
async def cancelling_what_has_ended_changes_nothing(lab: Lab) -> None:
    held = await lab.running()
    await lab.append(held, ("job_completed", {}))
    version = (await lab.job()).version
    assert (await lab.do(Cancel("a", "late"))).state is JobState.COMPLETED
    assert (await lab.job()).version == version


@clause
async def a_job_that_is_paused_and_resumed_before_it_is_due_is_still_not_due(lab: Lab) -> None:
    await lab.submit(due_at=lab.clock.now() + 3600)
    held = await lab.running("b")
    await lab.append(held, ("job_requeued", {"reason": "retry", "not_before": lab.clock.now() + 1800}))
    for job in ("a", "b"):
        await lab.do(Pause(job))
        await lab.do(Resume(job))
        await lab.job(job)
    assert await lab.claim(limit=2) == []
    lab.clock.move(1801)
    assert [claimed.job.id for claimed in await lab.claim(limit=2)] == ["b"]


@clause
async def a_queued_job_is_paused_at_once_and_goes_on_when_resumed(lab: Lab) -> None:
    await lab.submit()
    assert (await lab.do(Pause("a"))).state is JobState.WAITING
    assert await lab.types() == ["job_created", "job_leased", "job_waiting"]
    assert await lab.claim() == []
    assert (await lab.do(Resume("a"))).state is JobState.QUEUED
    assert len(await lab.claim()) == 1


@clause
async def a_running_job_is_asked_to_pause_and_may_be_let_go_on(lab: Lab) -> None:
    held = await lab.running()
    assert (await lab.do(Pause("a"))).pause
    assert (await lab.do(Renew("w1", ((held.id, held.attempt),), LEASE))).pause == {"a"}
    assert (await lab.store.requests_for("w1")).pause == {"a"}
    assert not (await lab.do(Resume("a"))).pause
    assert (await lab.do(Renew("w1", ((held.id, held.attempt),), LEASE))).pause == frozenset()


@clause
async def a_failed_job_is_retried_as_a_new_run(lab: Lab) -> None:
    held = await lab.running()
    await lab.refused(Retry("a", "ana", "now"), InvalidTransition)
    await lab.append(held, ("job_failed", {"reason": "no"}))
    row = await lab.do(Retry("a", "ana", "fixed it"))
    assert (row.state, row.run, row.attempts) == (JobState.QUEUED, 2, 0)
    assert [run.status for run in runs(await lab.store.events("a"))] == ["failed", "queued"]
    (claimed,) = await lab.claim()
    await lab.append(claimed.job, ("job_completed", {}))
    await lab.refused(Retry("a", "ana", "again"), InvalidTransition)
    await lab.job()


@clause
async def an_answer_to_a_tool_in_doubt_lets_the_job_go_on(lab: Lab) -> None:
    held = await lab.running()
    await lab.refused(Resolve("a", "charge", "done", 7), NotInDoubt)
    asks = {"node": "charge", "correlation_key": "holdfast:doubt:charge", "wait_type": "human", "park": True}
    await lab.append(held, ("job_waiting", asks))
    await lab.refused(Resolve("a", "refund", "done", 7), NotInDoubt)
    version = (await lab.job()).version
    await lab.refused(Resolve("a", "charge", "done", 7, "ana", version - 1), QuestionClosed)
    assert (await lab.do(Resolve("a", "charge", "done", 7, "ana", version))).state is JobState.QUEUED
    completed = (await lab.store.events("a"))[-1].payload
    assert (completed["outcome"], completed["payload"]) == ("resolved", {"answer": "done", "result": 7, "actor": "ana"})


@clause
async def a_deadline_ends_a_queued_run_as_timeout(lab: Lab) -> None:
    await lab.submit(deadline=lab.clock.now() + 5)
    lab.clock.move(5)
    assert (await lab.do(Expire())).jobs == ["a"]
    assert (await lab.job()).state is JobState.FAILED
    assert runs(await lab.store.events("a"))[0].status == "timeout"


@clause
async def a_deadline_ends_a_waiting_run_as_timeout(lab: Lab) -> None:
    await lab.submit(deadline=lab.clock.now() + 5)
    (claimed,) = await lab.claim()
    await lab.append(claimed.job, ("job_waiting", WAIT))
    lab.clock.move(6)
    assert (await lab.do(Expire())).jobs == ["a"]
    assert runs(await lab.store.events("a"))[0].status == "timeout"
    await lab.job()


@clause
async def a_deadline_leaves_a_held_job_to_its_worker_until_the_lease_ends(lab: Lab) -> None:
    await lab.running(deadline=lab.clock.now() + 5)
    lab.clock.move(6)
    assert (await lab.do(Expire())).jobs == []
    lab.clock.move(LEASE)
    assert (await lab.do(Reclaim())).jobs == ["a"]
    assert runs(await lab.store.events("a"))[0].status == "timeout"


@clause
async def a_cancel_that_came_while_the_job_ran_is_told_with_its_first_reason(lab: Lab) -> None:
    for job, end in (("a", ("job_cancelled", {})), ("b", ("job_waiting", WAIT)), ("c", ("job_requeued", {}))):
        held = await lab.running(job)
        await lab.do(Cancel(job, "first", "ana"))
        await lab.do(Cancel(job, "second", "bob"))
        await lab.append(held, end)
        assert (await lab.store.events(job))[-1].payload == {"reason": "first"}
        record = (await lab.job(job)).record()
        assert (record.status, record.cancel_reason, record.error) == (
            "canceled",
            "first",
            RunError("CANCELED", "canceled: first"),
        )


@clause
async def a_deadline_that_passes_while_a_cancel_is_under_way_ends_canceled_and_says_so(lab: Lab) -> None:
    ends: dict[str, tuple[str, dict[str, Any]] | None] = {
        "a": ("job_cancelled", {}),
        "b": ("job_failed", {"reason": "deadline"}),
        "c": ("job_waiting", WAIT),
        "d": ("job_requeued", {"reason": "retry"}),
        "e": None,  # its worker dies
    }
    held = [await lab.running(job, deadline=lab.clock.now() + 5) for job in ends]
    for job in ends:
        await lab.do(Cancel(job, "enough"))
    lab.clock.move(5)
    for job_held in held:
        end = ends[job_held.id]
        if end is not None:
            await lab.append(job_held, end)
    lab.clock.move(LEASE)
    await lab.do(Reclaim())
    for job in ends:
        row = await lab.job(job)
        assert (row.state, row.record().status) == (JobState.CANCELLED, "canceled")
        assert row.record().error == RunError("CANCELED", "canceled: enough", {"deadline": True})
        await lab.refused(Retry(job, "ana", "again"), InvalidTransition)


@clause
async def who_finishes_first_has_finished_whatever_was_asked_of_it(lab: Lab) -> None:
    for job, end, status in (("a", "job_completed", "succeeded"), ("b", "job_failed", "failed")):
        held = await lab.running(job, deadline=lab.clock.now() + 5)
        await lab.do(Cancel(job, "enough"))
        lab.clock.move(6)
        await lab.append(held, (end, {"reason": "its own"}))
        record = (await lab.job(job)).record()
        assert (record.status, record.cancel_requested, record.cancel_reason) == (status, True, "enough")


@clause
async def each_run_of_a_job_has_the_whole_time_of_its_deadline(lab: Lab) -> None:
    await lab.submit(deadline=lab.clock.now() + 5)
    lab.clock.move(5)
    await lab.do(Expire())
    lab.clock.move(100)
    await lab.do(Retry("a", "ana", "again"))
    assert await lab.store.next_due(lab.clock.now()) == lab.clock.now() + 5
    lab.clock.move(4)
    assert (await lab.do(Expire())).jobs == []
    (claimed,) = await lab.claim()
    await lab.append(claimed.job, ("job_waiting", WAIT))
    lab.clock.move(1)
    assert (await lab.do(Expire())).jobs == ["a"]
    assert [run.status for run in runs(await lab.store.events("a"))] == ["timeout", "timeout"]
    await lab.job()


@clause
async def an_audited_command_leaves_one_row_in_its_transaction_and_a_refused_one_none(lab: Lab) -> None:
    await lab.submit("a")
    who: dict[str, Any] = {"actor": "token:ana", "said": "alice", "detail": {"reason": "why"}}
    refused, done = await lab.store.commit(
        [Audited(Retry("a", "ana", "why"), "retry", "a", **who), Audited(Cancel("a", "why"), "cancel", "a", **who)]
    )
    assert isinstance(refused, InvalidTransition)
    assert done.state is JobState.CANCELLED
    (row,) = await lab.store.audit(None, 10)
    assert (row.actor, row.said, row.verb, row.subject) == ("token:ana", "alice", "cancel", "a")
    assert row.at == lab.clock.now()
    assert row.detail == {"reason": "why"}


@clause
async def the_audit_log_is_read_newest_first_and_outlives_what_it_is_about(lab: Lab) -> None:
    create = Audited(Submit(job="a", plugin="shop", entry="checkout", args={}, idempotency_key="k"), "create", "", "bo")
    await lab.store.commit([create])
    await lab.store.commit([create])
    signal = Audited(SendSignal("a", "go", None, "once"), "signal", "a", "bo")
    await lab.store.commit([signal, signal])
    await lab.store.commit([Audited(Cancel("a", None), "cancel", "a", "bo"), Cancel("a", None)])
    purge = Audited(Purge(lab.clock.now(), 10, frozenset({JobState.CANCELLED})), "purge", "", "bo")
    await lab.store.commit([purge])
    await lab.store.commit([purge])
    assert await lab.store.get("a") is None
    rows = await lab.store.audit(None, 10)
    assert [(row.verb, row.subject) for row in rows] == [
        ("purge", ""),
        ("cancel", "a"),
        ("signal", "a"),
        ("create", "a"),
    ]
    assert rows[0].detail == {"removed": 1}
    assert await lab.store.audit(rows[0].number, 2) == rows[1:3]
    assert await lab.store.audit(rows[-1].number, 2) == []
