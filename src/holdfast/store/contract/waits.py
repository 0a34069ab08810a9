"""Waits and signals: none is lost, none is used twice, whichever comes first."""

from __future__ import annotations

from holdfast.errors import UnknownJob
from holdfast.machines import JobState
from holdfast.store.commands import Expire, Kept, SendSignal
from holdfast.store.contract.lab import Lab, clause


@clause
async def a_signal_completes_the_wait_with_its_key_and_payload(lab: Lab) -> None:
    await lab.waiting(key="shipped", node="n", park=True)
    assert await lab.do(SendSignal("a", "shipped", {"by": "dhl"}, "s1")) == Kept("delivered")
    row = await lab.job()
    assert (row.state, row.wait) == (JobState.QUEUED, None)
    last = (await lab.store.events("a"))[-1]
    said = {name: last.payload[name] for name in ("correlation_key", "outcome", "payload", "node", "signal")}
    assert said == {
        "correlation_key": "shipped", "outcome": "signal", "payload": {"by": "dhl"}, "node": "n", "signal": "s1"
    }  # fmt: skip
    assert len(await lab.claim()) == 1


@clause
async def a_signal_with_another_key_is_kept_and_wakes_nobody(lab: Lab) -> None:
    await lab.waiting(key="shipped")
    assert await lab.do(SendSignal("a", "paid", 1, "s1")) == Kept("kept")
    assert (await lab.job()).state is JobState.WAITING
    assert [signal.key for signal in await lab.store.inbox("a")] == ["paid"]


@clause
async def a_signal_that_comes_before_its_wait_completes_it_at_once(lab: Lab) -> None:
    held = await lab.running()
    assert await lab.do(SendSignal("a", "k", "early", "s1")) == Kept("kept")
    assert await lab.do(SendSignal("a", "k", "second", "s2")) == Kept("kept")
    answer = await lab.append(held, ("job_waiting", {"correlation_key": "k", "wait_type": "signal"}))
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
    assert await lab.do(SendSignal("a", "k", 1, "s1")) == Kept("repeat")
    assert (await lab.job()).version == version
    assert await lab.store.inbox("a") == []


@clause
async def a_job_that_has_ended_takes_no_signal(lab: Lab) -> None:
    held = await lab.running()
    await lab.append(held, ("job_completed", {}))
    assert await lab.do(SendSignal("a", "k", 1, "s1")) == Kept("too_late")
    assert await lab.store.inbox("a") == []
    await lab.refused(SendSignal("nobody", "k", 1, "s1"), UnknownJob)


@clause
async def a_wait_whose_time_is_up_is_completed_as_expired(lab: Lab) -> None:
    await lab.waiting(deadline=lab.clock.now() + 60)
    assert await lab.store.next_due() == lab.clock.now() + 60
    lab.clock.move(59.9)
    assert (await lab.do(Expire())).jobs == []
    lab.clock.move(0.2)
    assert (await lab.do(Expire())).jobs == ["a"]
    assert (await lab.store.events("a"))[-1].payload["outcome"] == "expired"
    assert await lab.do(SendSignal("a", "k", 1, "late")) == Kept("kept")
    assert (await lab.job()).state is JobState.QUEUED


@clause
async def a_signal_for_any_of_several_places_completes_the_wait_there(lab: Lab) -> None:
    also = [{"node": "m", "correlation_key": "paid"}, {"node": "o", "correlation_key": "seen"}]
    await lab.waiting(key="shipped", node="n", also=also, deadline=lab.clock.now() + 60)
    assert await lab.do(SendSignal("a", "paid", 7, "s1")) == Kept("delivered")
    last = (await lab.store.events("a"))[-1]
    assert (last.payload["node"], last.payload["correlation_key"], last.payload["payload"]) == ("m", "paid", 7)
    (held,) = await lab.claim()
    assert await lab.do(SendSignal("a", "seen", 8, "s2")) == Kept("kept")
    said = {"correlation_key": "shipped", "node": "n", "wait_type": "signal", "also": also[1:]}
    await lab.append(held.job, ("job_waiting", said))
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
    told = (await lab.store.events("parent"))[-1].payload["payload"]
    assert (told["state"], told["result"]) == ("completed", 42)
