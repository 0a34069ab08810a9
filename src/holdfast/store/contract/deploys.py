"""Deploys: jobs that do not fit the code, forks that replace them, and jobs that are kept for a build."""

from __future__ import annotations

from holdfast.errors import QuestionClosed
from holdfast.machines import JobState
from holdfast.store.commands import (
    Answer,
    Append,
    Keep,
    Pause,
    Resume,
    Retry,
    SendSignal,
    SignalResult,
    Successor,
)
from holdfast.store.contract.harness import Lab, clause, submission


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
async def a_fork_has_as_long_as_the_job_that_it_replaces(lab: Lab) -> None:
    await lab.do(submission("a", deadline=lab.clock.now() + 60))
    version = await _misfit(lab, submitted=True)
    lab.clock.move(10)
    await lab.do(Answer("a", "pay:2", "fork", version, fork=submission("b")))
    row = await lab.job("b")
    assert row.ends_by == lab.clock.now() + 60


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
    sent_at = (await lab.store.inbox("a"))[-1].at
    await lab.do(SendSignal("a", "holdfast:child:x", {"n": 3}, "c.1"))
    await lab.do(Pause("a"))
    again = (("s1", "go", {"n": 1}),)
    lab.clock.move(10)
    await lab.do(Answer("a", "pay:2", "fork", version, fork=submission("b"), signals=again))
    inbox = [(signal.id, signal.key, signal.payload) for signal in await lab.store.inbox("b")]
    assert inbox == [("s1", "go", {"n": 1}), ("s2", "later", {"n": 2})]
    assert (await lab.store.inbox("b"))[-1].at == sent_at, "when it was sent"
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


@clause
async def open_jobs_are_counted_by_the_build_that_they_need(lab: Lab) -> None:
    empty = await lab.store.build_counts()
    assert (empty.waiting, empty.running, empty.kept) == ({}, {}, {})
    for name in "abcdef":
        await lab.submit(name)
    pins = frozenset({("shop", "checkout")})
    held = await lab.claim(2, build="1.0", worker="w1", pins=pins) + await lab.claim(2, build="2.0", worker="w2")
    for claimed in (held[0], held[3]):
        await lab.append(claimed.job, ("job_requeued", {"reason": "shutdown"}))
    counts = await lab.store.build_counts()
    assert (counts.waiting, counts.running) == ({"1.0": 1, "2.0": 1}, {"w1": 1, "w2": 1}), "e and f have no build"
    assert counts.kept == {"1.0": (2, "a")}
    await lab.append(await lab.job("b"), ("job_completed", {"result": None}))
    counts = await lab.store.build_counts()
    assert (counts.running, counts.kept) == ({"w2": 1}, {"1.0": (1, "a")})
