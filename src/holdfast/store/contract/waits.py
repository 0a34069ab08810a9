"""Waits and signals: no signal is lost or used twice, whichever comes first."""

from __future__ import annotations

from holdfast.errors import QuestionClosed, UnknownJob
from holdfast.machines import JobState
from holdfast.machines.keys import CHILD_KEY
from holdfast.store.commands import Append, Cancel, Expire, Purge, SendSignal, SignalResult
from holdfast.store.contract.harness import WAIT, Lab, clause
from holdfast.store.decide import WAKE_SECONDS_MAX, WAKE_SECONDS_PER_CHILD
from holdfast.store.rows import Job


@clause
async def a_signal_completes_the_wait_with_its_key_and_payload(lab: Lab) -> None:
    await lab.waiting(key="shipped", node="n", park=True)
    assert await lab.do(SendSignal("a", "shipped", {"by": "dhl"}, "s1")) == SignalResult("delivered")
    row = await lab.job()
    assert (row.state, row.wait) == (JobState.QUEUED, None)
    last = (await lab.store.events("a"))[-1]
    completed = {name: last.payload[name] for name in ("correlation_key", "outcome", "payload", "node", "signal")}
    assert completed == {
        "correlation_key": "shipped", "outcome": "signal", "payload": {"by": "dhl"}, "node": "n", "signal": "s1"
    }  # fmt: skip
    assert len(await lab.claim()) == 1


@clause
async def an_answer_that_names_its_question_counts_for_no_other(lab: Lab) -> None:
    held = await lab.running()
    also = [{"node": "n2", "correlation_key": "k"}]
    await lab.append(held, ("job_waiting", {**WAIT, "node": "n1", "correlation_key": "k", "also": also}))
    before = await lab.store.events("a")
    for key, node in (("k", "n3"), ("other", "n1")):
        await lab.refused(SendSignal("a", key, 1, "s0", node=node), QuestionClosed)
    assert (await lab.store.events("a"), await lab.store.inbox("a")) == (before, [])
    assert await lab.do(SendSignal("a", "k", 2, "s2", node="n2")) == SignalResult("delivered")
    ended = (await lab.store.events("a"))[-1].payload
    assert (ended["node"], ended["payload"]) == ("n2", 2), "also where an earlier place has the same key"
    await lab.refused(SendSignal("a", "k", 1, "s1", node="n1"), QuestionClosed)  # it may ask again later
    assert await lab.do(SendSignal("a", "k", 2, "s2", node="n2")) == SignalResult("repeat")
    await lab.do(Cancel("a", None))
    await lab.refused(SendSignal("a", "k", 1, "s1", node="n1"), QuestionClosed)
    assert await lab.store.inbox("a") == []
    await lab.job()


@clause
async def a_signal_with_another_key_is_kept_and_wakes_no_job(lab: Lab) -> None:
    await lab.waiting(key="shipped")
    assert await lab.do(SendSignal("a", "paid", 1, "s1")) == SignalResult("kept")
    assert (await lab.job()).state is JobState.WAITING
    assert [signal.key for signal in await lab.store.inbox("a")] == ["paid"]


@clause
async def a_signal_that_comes_before_its_wait_completes_it_at_once(lab: Lab) -> None:
    held = await lab.running()
    assert await lab.do(SendSignal("a", "k", "early", "s1")) == SignalResult("kept")
    assert await lab.do(SendSignal("a", "k", "second", "s2")) == SignalResult("kept")
    answer = await lab.append(held, ("job_waiting", WAIT))
    assert answer.state is JobState.QUEUED
    assert (await lab.types())[-2:] == ["job_waiting", "wait_completed"]
    assert (await lab.store.events("a"))[-1].payload["payload"] == "early", "the first that came is used first"
    assert [signal.id for signal in await lab.store.inbox("a")] == ["s2"]
    await lab.job()


@clause
async def a_repeated_signal_changes_nothing(lab: Lab) -> None:
    await lab.waiting()
    await lab.do(SendSignal("a", "k", 1, "s1"))
    version = (await lab.job()).version
    assert await lab.do(SendSignal("a", "k", 1, "s1")) == SignalResult("repeat")
    assert (await lab.job()).version == version
    assert await lab.store.inbox("a") == []


@clause
async def a_worker_learns_which_of_its_jobs_have_signals(lab: Lab) -> None:
    held = await lab.running()
    await lab.waiting("b")
    assert (await lab.store.requests_for("w1")).signalled == frozenset()
    await lab.do(SendSignal("a", "k", 1, "s1"))
    await lab.do(SendSignal("b", "other", 1, "s1"))
    assert (await lab.store.requests_for("w1")).signalled == {"a"}, (
        "another attempt will look for those of a job that waits"
    )
    assert (await lab.store.requests_for("w2")).signalled == frozenset()
    await lab.do(Append("a", held.attempt, (("value_recorded", {"node": "n:ended", "value": {}}),), ("s1",)))
    assert (await lab.store.requests_for("w1")).signalled == frozenset()


@clause
async def a_job_that_has_ended_takes_no_signal(lab: Lab) -> None:
    held = await lab.running()
    await lab.append(held, ("job_completed", {}))
    assert await lab.do(SendSignal("a", "k", 1, "s1")) == SignalResult("too_late")
    assert await lab.store.inbox("a") == []
    await lab.refused(SendSignal("missing", "k", 1, "s1"), UnknownJob)


@clause
async def a_wait_whose_time_is_up_is_completed_as_expired(lab: Lab) -> None:
    await lab.waiting(deadline=lab.clock.now() + 60)
    assert await lab.store.next_due() == lab.clock.now() + 60
    lab.clock.move(59.9)
    assert (await lab.do(Expire())).jobs == []
    lab.clock.move(0.2)
    assert (await lab.do(Expire())).jobs == ["a"]
    assert (await lab.store.events("a"))[-1].payload["outcome"] == "expired"
    assert await lab.do(SendSignal("a", "k", 1, "late")) == SignalResult("kept")
    assert (await lab.job()).state is JobState.QUEUED


@clause
async def a_signal_for_any_of_several_places_completes_the_wait_there(lab: Lab) -> None:
    also = [{"node": "m", "correlation_key": "paid"}, {"node": "o", "correlation_key": "seen"}]
    await lab.waiting(key="shipped", node="n", also=also, deadline=lab.clock.now() + 60)
    assert await lab.do(SendSignal("a", "paid", 7, "s1")) == SignalResult("delivered")
    last = (await lab.store.events("a"))[-1]
    assert (last.payload["node"], last.payload["correlation_key"], last.payload["payload"]) == ("m", "paid", 7)
    (held,) = await lab.claim()
    assert await lab.do(SendSignal("a", "seen", 8, "s2")) == SignalResult("kept")
    wait = {"correlation_key": "shipped", "node": "n", "wait_type": "signal", "also": also[1:]}
    await lab.append(held.job, ("job_waiting", wait))
    assert (await lab.store.events("a"))[-1].payload["node"] == "o", "the inbox is looked into for every place"
    await lab.job()


@clause
async def the_end_of_a_child_is_signalled_to_its_parent(lab: Lab) -> None:
    held = await lab.running("parent")
    await lab.submit("child", parent="parent", parent_key="child:child")
    await lab.append(held, ("job_waiting", {"correlation_key": "child:child", "wait_type": "child"}))
    (child,) = await lab.claim()
    await lab.append(child.job, ("job_completed", {"result": 42}))
    row = await lab.job("parent")
    assert row.state is JobState.QUEUED
    ending = (await lab.store.events("parent"))[-1].payload["payload"]
    assert (ending["state"], ending["result"]) == ("completed", 42)


def _place(number: int) -> dict[str, str]:
    return {"node": f"n{number}", "correlation_key": f"{CHILD_KEY}{number}"}


async def _fan_out(lab: Lab, children: int, **wait: object) -> dict[str, Job]:
    """Create a parent that waits for several running children."""
    held = await lab.running("parent")
    for number in range(children):
        await lab.submit(f"c{number}", parent="parent", parent_key=f"{CHILD_KEY}{number}")
    also = [_place(number) for number in range(1, children)]
    await lab.append(held, ("job_waiting", {**_place(0), "wait_type": "child", "also": also, **wait}))
    return {claimed.job.id: claimed.job for claimed in await lab.claim(children, worker="w2")}


async def _end(lab: Lab, child: Job, kind: str = "job_completed", result: object = None) -> None:
    payload = {"result": result} if kind == "job_completed" else {"reason": "error"}
    await lab.do(Append(child.id, child.attempt, ((kind, payload),), parent="parent"))


@clause
async def the_results_of_several_children_wake_their_parent_once(lab: Lab) -> None:
    children = await _fan_out(lab, 4)
    begun = lab.clock.now()
    await _end(lab, children["c2"], result="c2")
    await _end(lab, children["c1"], result="c1")
    row = await lab.job("parent")
    assert (row.state, row.wake_at) == (JobState.WAITING, begun + 4 * WAKE_SECONDS_PER_CHILD)
    assert await lab.store.next_due() == row.wake_at
    assert (await lab.do(Expire())).jobs == []
    lab.clock.move(4 * WAKE_SECONDS_PER_CHILD)
    assert await lab.store.has_work()
    assert (await lab.do(Expire())).jobs == ["parent"]
    row = await lab.job("parent")
    assert (row.state, row.wake_at) == (JobState.QUEUED, None)
    last = (await lab.store.events("parent"))[-1].payload
    assert (last["node"], last["payload"]["result"]) == ("n2", "c2"), "the first that came"
    assert [signal.payload["result"] for signal in await lab.store.inbox("parent")] == ["c1"]


@clause
async def the_last_result_of_several_children_wakes_their_parent_at_once(lab: Lab) -> None:
    children = await _fan_out(lab, 3, deadline=lab.clock.now() + 60)
    await lab.do(SendSignal("parent", "early", None, "s1"))
    await lab.do(SendSignal("parent", "early", None, "s2"))
    await _end(lab, children["c0"])
    await _end(lab, children["c1"])
    assert (await lab.job("parent")).state is JobState.WAITING, "signals for no place do not count as results"
    await _end(lab, children["c2"])
    row = await lab.job("parent")
    assert (row.state, row.wake_at) == (JobState.QUEUED, None)
    assert {signal.key for signal in await lab.store.inbox("parent")} == {"early", f"{CHILD_KEY}0", f"{CHILD_KEY}1"}


@clause
async def results_in_one_batch_wake_their_parent_with_the_last(lab: Lab) -> None:
    children = await _fan_out(lab, 3)
    ends = [Append(job.id, job.attempt, (("job_completed", {}),), parent="parent") for job in children.values()]
    await lab.store.commit(ends[:2])
    assert (await lab.job("parent")).state is JobState.WAITING
    await lab.store.commit(ends[2:])
    assert (await lab.job("parent")).state is JobState.QUEUED
    assert len(await lab.store.inbox("parent")) == 2


@clause
async def a_result_after_a_long_wait_wakes_the_parent_at_once(lab: Lab) -> None:
    children = await _fan_out(lab, 3)
    lab.clock.move(WAKE_SECONDS_MAX)
    await _end(lab, children["c1"])
    assert (await lab.job("parent")).state is JobState.QUEUED


@clause
async def everything_but_a_result_wakes_a_parent_at_once_and_loses_no_result(lab: Lab) -> None:
    async def cancelled(children: dict[str, Job]) -> None:
        await lab.do(Cancel("c1", None))
        await _end(lab, children["c1"], "job_cancelled")

    async def failed(children: dict[str, Job]) -> None:
        await _end(lab, children["c1"], "job_failed")

    async def signalled(children: dict[str, Job]) -> None:
        del children
        await lab.do(SendSignal("parent", "go", None, "s"))

    for happens in (cancelled, failed, signalled):
        children = await _fan_out(lab, 4, also=[*map(_place, range(1, 4)), {"node": "s", "correlation_key": "go"}])
        await _end(lab, children["c0"])
        assert (await lab.job("parent")).wake_at is not None
        await happens(children)
        row = await lab.job("parent")
        assert (row.state, row.wake_at) == (JobState.QUEUED, None), happens.__name__
        assert [signal.key for signal in await lab.store.inbox("parent")] == [f"{CHILD_KEY}0"]
        (again,) = await lab.claim()
        answer = await lab.append(again.job, ("job_waiting", {**_place(0), "wait_type": "child", "also": [_place(3)]}))
        assert answer.state is JobState.QUEUED, "a result that is in the inbox completes the next wait at once"
        await _forget(lab)


async def _forget(lab: Lab) -> None:
    """Cancel everything and remove it."""
    await lab.do(Cancel("parent", None))
    for name in ("c0", "c1", "c2", "c3"):
        row = await lab.job(name)
        if row.state is JobState.RUNNING:
            await lab.append(row, ("job_cancelled", {}))
    await lab.do(Purge(lab.clock.now()))
    await lab.do(Purge(lab.clock.now()))
    assert await lab.store.jobs() == []


@clause
async def a_deadline_ends_a_parent_that_is_about_to_be_woken(lab: Lab) -> None:
    held = await lab.running("parent", deadline=lab.clock.now() + 0.001)
    for number in range(3):
        await lab.submit(f"c{number}", parent="parent", parent_key=f"{CHILD_KEY}{number}")
    also = [_place(number) for number in range(1, 3)]
    await lab.append(held, ("job_waiting", {**_place(0), "wait_type": "child", "also": also}))
    (child,) = await lab.claim(1, worker="w2")
    await _end(lab, child.job)
    assert await lab.store.next_due() == lab.clock.now() + 0.001
    lab.clock.move(1)
    assert (await lab.do(Expire())).jobs == ["parent"]
    row = await lab.job("parent")
    assert (row.state, row.wake_at) == (JobState.FAILED, None)


@clause
async def a_parent_that_no_result_is_for_is_not_woken(lab: Lab) -> None:
    children = await _fan_out(lab, 3)
    await _end(lab, children["c0"])
    (kept,) = await lab.store.inbox("parent")
    lab.clock.move(1)
    await lab.do(Expire())
    (again,) = await lab.claim()
    await lab.append(again.job, ("job_waiting", {**_place(1), "wait_type": "child", "also": [_place(2)]}))
    assert await lab.do(SendSignal("parent", kept.key, kept.payload, kept.id, may_wait=True)) == SignalResult("repeat")
    assert await lab.do(SendSignal("parent", f"{CHILD_KEY}0", None, "another", may_wait=True)) == SignalResult("kept")
    row = await lab.job("parent")
    assert (row.state, row.wake_at) == (JobState.WAITING, None)
