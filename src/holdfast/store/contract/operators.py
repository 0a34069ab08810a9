"""Operator commands and deadlines, for a job in any state."""

from __future__ import annotations

from typing import Any

from holdfast.errors import InvalidTransition, NotInDoubt, QuestionClosed
from holdfast.machines import JobState, RunError, run_paths, runs
from holdfast.store.audit import Audited
from holdfast.store.commands import (
    Answer,
    Append,
    Cancel,
    Expire,
    Keep,
    Pause,
    Purge,
    Reclaim,
    Renew,
    Resolve,
    Resume,
    Retry,
    SendSignal,
    SignalResult,
    Submit,
    Successor,
)
from holdfast.store.contract.harness import LEASE, WAIT, Lab, clause, submission


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


async def _misfit(lab: Lab, job: str = "a", *, submitted: bool = False) -> int:
    """Let a job ask which code goes on. Return its version."""
    held = (await lab.claim())[0].job if submitted else await lab.running(job)
    await lab.append(held, ("node_started", {"node": "pay:1", "name": "pay"}), ("command_committed", {"node": "pay:1"}))
    wait = {"node": "pay:2", "correlation_key": "holdfast:deploy:pay:2", "wait_type": "deploy", "park": True}
    await lab.append(held, ("job_waiting", {**wait, "deploy": {"call": "pay(2)", "recorded": ["pay(1)"]}}))
    return (await lab.job(job)).version


@clause
async def a_job_that_does_not_fit_asks_as_others_do_and_one_answer_counts(lab: Lab) -> None:
    version = await _misfit(lab)
    assert [job.id for job in await lab.store.questions()] == ["a"]
    assert await lab.claim() == []
    await lab.refused(Answer("a", "pay:3", "accept", version), QuestionClosed)
    await lab.refused(Answer("a", "pay:2", "accept", version - 1), QuestionClosed)
    row = await lab.do(Answer("a", "pay:2", "accept", version, "ana", nodes=("pay:1",)))
    assert (row.state, row.kept_for) == (JobState.QUEUED, None)
    answer = (await lab.store.events("a"))[-1].payload["payload"]
    assert answer == {"answer": "accept", "actor": "ana", "nodes": ["pay:1"]}
    await lab.refused(Answer("a", "pay:2", "fail", row.version), QuestionClosed)
    assert await lab.store.questions() == []
    (claimed,) = await lab.claim(build="2.0")
    assert claimed.job.attempts == 1, "what ended in the question does not count"


@clause
async def a_job_that_goes_on_with_a_build_is_kept_for_it(lab: Lab) -> None:
    version = await _misfit(lab)
    assert (await lab.do(Answer("a", "pay:2", "build", version, build="1.0"))).kept_for == "1.0"
    assert await lab.claim(build="2.0") == []
    assert [one.job.id for one in await lab.claim(build="1.0")] == ["a"]
    assert (await lab.job()).kept_for == "1.0"


@clause
async def a_job_that_does_not_fit_fails_without_a_worker(lab: Lab) -> None:
    error = {"code": "NonDeterminism", "message": "it does not fit"}
    row = await lab.do(Answer("a", "pay:2", "fail", await _misfit(lab), error={**error, "error": error}))
    assert row.state is JobState.FAILED
    record = await lab.store.record("a", 1)
    assert record is not None
    assert record.error is not None
    assert (record.status, record.error.code) == ("failed", "NonDeterminism")
    await lab.job()


@clause
async def a_fork_is_created_with_the_cancel_of_the_job_that_it_replaces(lab: Lab) -> None:
    version = await _misfit(lab)
    fork = submission("b", past=(("value_recorded", {"node": "now:value", "value": 1.0}),))
    await lab.refused(Answer("a", "pay:2", "fork", version - 1, fork=fork), QuestionClosed)
    assert await lab.store.get("b") is None
    row = await lab.do(Answer("a", "pay:2", "fork", version, "ana", fork=fork))
    assert row.state is JobState.CANCELLED
    assert "forked as b" in str((await lab.store.events("a"))[-1].payload["reason"])
    assert (await lab.job("b")).state is JobState.QUEUED
    await lab.job()


@clause
async def the_parent_of_a_child_waits_for_the_fork_that_replaces_it(lab: Lab) -> None:
    parent = await lab.running("p")
    key = "holdfast:child:job.checkout:1"
    await lab.do(submission("a", parent="p", parent_key=key, parent_attempt=parent.attempt, trace_id="t"))
    await lab.append(parent, ("job_waiting", {"node": "job.checkout:1", "correlation_key": key, "wait_type": "child"}))
    version = await _misfit(lab, submitted=True)
    await lab.do(Answer("a", "pay:2", "fork", version, fork=submission("b")))
    row = await lab.job("b")
    assert (row.parent, row.parent_key, row.trace_id) == ("p", key, "t")
    assert (await lab.job("p")).state is JobState.WAITING
    assert await lab.store.inbox("p") == []
    (claimed,) = await lab.claim()
    await lab.append(claimed.job, ("job_completed", {"result": 5}))
    told = (await lab.store.events("p"))[-1].payload
    assert (told["node"], told["signal"], told["payload"]["result"]) == ("job.checkout:1", "b.1", 5)


@clause
async def the_fork_of_a_child_is_cancelled_with_the_parent(lab: Lab) -> None:
    parent = await lab.running("p")
    await lab.do(submission("a", parent="p", parent_key="holdfast:child:x", parent_attempt=parent.attempt))
    version = await _misfit(lab, submitted=True)
    await lab.do(Answer("a", "pay:2", "fork", version, fork=submission("b")))
    await lab.append(parent, ("job_failed", {"reason": "error"}))
    assert (await lab.job("b")).state is JobState.CANCELLED


@clause
async def a_fork_gets_the_signals_that_it_waits_for_again_and_those_that_were_not_used(lab: Lab) -> None:
    version = await _misfit(lab)
    await lab.do(SendSignal("a", "later", {"n": 2}, "s2"))
    await lab.do(SendSignal("a", "holdfast:child:x", {"n": 3}, "c.1"))
    await lab.do(Pause("a"))
    again = (("s1", "go", {"n": 1}),)
    await lab.do(Answer("a", "pay:2", "fork", version, fork=submission("b"), signals=again))
    inbox = [(signal.id, signal.key, signal.payload) for signal in await lab.store.inbox("b")]
    assert inbox == [("s1", "go", {"n": 1}), ("s2", "later", {"n": 2})]
    assert (await lab.job("b")).state is JobState.WAITING, "it is paused"
    assert await lab.do(SendSignal("b", "go", None, "s1")) == SignalResult("repeat")
    await lab.do(Resume("b"))
    (claimed,) = await lab.claim()
    await lab.append(claimed.job, ("job_waiting", {"node": "wait:go", "correlation_key": "go", "wait_type": "signal"}))
    assert (await lab.store.events("b"))[-1].payload["payload"] == {"n": 1}


@clause
async def a_job_that_was_handed_over_is_kept_until_it_is_claimed_or_released(lab: Lab) -> None:
    for name in "abc":
        held = await lab.running(name)
        await lab.append(held, ("job_requeued", {"reason": "deploy", "build": "1.0"}))
        row = await lab.job(name)
        assert (row.kept_for, row.course.stage, row.attempts) == ("1.0", "handed_over", 0)
    assert await lab.claim(build="2.0") == []
    (claimed,) = await lab.claim(build="1.0")
    assert (claimed.job.id, claimed.job.kept_for) == ("a", None)
    assert await lab.store.kept_builds() == ["1.0"]
    assert [job.id for job in await lab.store.kept_jobs("1.0")] == ["b", "c"]
    assert [job.id for job in await lab.store.kept_jobs("1.0", "b", 1)] == ["c"]
    assert await lab.store.kept_jobs("2.0") == []
    assert (await lab.do(Keep("b", "other", None))).kept_for == "1.0", "it is kept for another one by now"
    assert (await lab.do(Keep("b", "1.0", None, unclaimed=True))).kept_for is None
    assert (await lab.do(Keep("c", "1.0", "2.0", "ana"))).kept_for == "2.0"
    assert [one.job.id for one in await lab.claim(3, build="2.0")] == ["b", "c"]
    assert await lab.store.kept_builds() == []


@clause
async def a_retry_releases_a_job_from_the_build_that_it_names(lab: Lab) -> None:
    for name in "ab":
        await lab.submit(name)
    for claimed in await lab.claim(2, build="1.0", pins=frozenset({("shop", "checkout")})):
        await lab.append(claimed.job, ("job_failed", {"reason": "error"}))
    for name, released in (("a", "2.0"), ("b", "1.0")):
        await lab.do(Retry(name, "ana", "again", released=released))
    assert [(await lab.job(name)).kept_for for name in "ab"] == ["1.0", None]
    assert [one.job.id for one in await lab.claim(2, build="2.0")] == ["b"]


@clause
async def a_job_is_created_for_a_build_and_so_is_the_successor_of_a_child(lab: Lab) -> None:
    parent = await lab.running("p")
    for name, key in (("a", "holdfast:child:x"), ("b", None)):
        above = {"parent": "p", "parent_key": key, "parent_attempt": parent.attempt} if key is not None else {}
        await lab.do(submission(name, kept_for="1.0", **above))
    assert await lab.claim(2, build="2.0") == []
    for claimed in await lab.claim(2, build="1.0"):
        assert claimed.job.kept_for == "1.0"
        job = claimed.job
        after = Successor(job=f"{job.id}2", args={}, fingerprint="f", first=job.id)
        end = ("job_completed", {"result": None, "continued_as": after.job})
        await lab.do(Append(job.id, job.attempt, (end,), parent=job.parent, successor=after))
    assert [(await lab.job(name)).kept_for for name in ("a2", "b2")] == ["1.0", None]


@clause
async def a_pinned_job_is_not_released_like_one_that_was_handed_over(lab: Lab) -> None:
    await lab.submit()
    (claimed,) = await lab.claim(build="1.0", pins=frozenset({("shop", "checkout")}))
    assert (await lab.do(Keep("a", "1.0", None, unclaimed=True))).kept_for == "1.0"
    await lab.append(claimed.job, ("job_completed", {"result": None}))
    assert (await lab.do(Keep("a", "1.0", "2.0"))).kept_for == "1.0", "it has ended"
    assert await lab.store.kept_builds() == []
