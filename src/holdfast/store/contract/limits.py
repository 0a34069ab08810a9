"""Queue limits: no set of claims exceeds them, and groups that share a queue take turns."""

from __future__ import annotations

from collections import Counter

from holdfast.errors import LimitsChanged, QueueFull
from holdfast.store.commands import (
    ROOM,
    Append,
    KeepEvidence,
    PauseQueue,
    Reclaim,
    ReleaseLeases,
    SetLimits,
)
from holdfast.store.contract.harness import LEASE, Lab, claiming, clause, submission
from holdfast.store.limits import Blocked, Limits
from holdfast.store.rows import Evidence, Job

LATE = LEASE + 1
DONE = ("job_completed", {"result": 1})


async def _limit(lab: Lab, **limits: object) -> None:
    await lab.do(SetLimits(Limits(**{"queue": "default", **limits}), "ana"))  # type: ignore[arg-type]  # - each is as its clause says


async def _many(lab: Lab, count: int, *, name: str = "", **options: object) -> None:
    for number in range(count):
        await lab.submit(f"{name}{number:03}", **options)


def _names(jobs: list[Job]) -> list[str]:
    return [job.id for job in jobs]


async def _taken(lab: Lab, limit: int, worker: str = "w1") -> list[Job]:
    return [claimed.job for claimed in await lab.claim(limit=limit, worker=worker)]


@clause
async def no_more_run_at_once_than_the_queue_may(lab: Lab) -> None:
    await _limit(lab, concurrency=3)
    await _many(lab, 9)
    await lab.submit("other", queue="mail")
    first = await _taken(lab, 10)
    assert _names(first) == ["000", "001", "002", "other"]
    assert lab.held == (Blocked("default", "concurrency", 3, 0),)
    assert await _taken(lab, 10, "w2") == []
    assert lab.held == (Blocked("default", "concurrency", 3, 0),)
    await lab.append(first[0], DONE)
    assert _names(await _taken(lab, 10, "w2")) == ["003"]


@clause
async def a_place_is_handed_on_in_the_transaction_that_leaves_it(lab: Lab) -> None:
    await _limit(lab, concurrency=2)
    await _many(lab, 9)
    first, second = await _taken(lab, 2)
    changes: list[int] = []
    end = lab.store.subscribe(changes.append)
    _, claims = await lab.store.commit([Append(first.id, first.attempt, (DONE,)), claiming(9)])
    assert [(claimed.job.id, claimed.job.updated_at) for claimed in claims] == [("002", lab.clock.now())], (
        "as many as have ended"
    )
    assert not changes[-1] & ROOM, "no other worker can take the place"
    await lab.append(second, DONE)
    assert changes[-1] & ROOM, "another worker can take it"
    end()
    assert (await lab.store.events(first.id))[-1].at == lab.clock.now()
    assert _names(await _taken(lab, 9, "w2")) == ["003"]


@clause
async def a_limit_that_holds_nothing_back_is_not_named(lab: Lab) -> None:
    await _limit(lab, concurrency=3, rate=10)
    await _many(lab, 3)
    assert len(await _taken(lab, 2)) == 2
    assert lab.held == ()
    assert len(await _taken(lab, 5)) == 1
    assert lab.held == (), "nothing waits any more"


@clause
async def what_runs_is_counted_from_live_leases_alone(lab: Lab) -> None:
    await _limit(lab, concurrency=2)
    await _many(lab, 6)
    held = await _taken(lab, 5)
    await lab.append(held[0], ("job_waiting", {"correlation_key": "k", "wait_type": "signal", "park": True}))
    assert _names(await _taken(lab, 5)) == ["002"], "a job that waits holds nothing"
    lab.clock.move(LATE)
    assert _names(await _taken(lab, 5, "w2")) == ["003", "004"], "leases that are over hold nothing, before any sweep"
    await lab.do(ReleaseLeases("w2"))
    assert (await lab.store.limits())[0].running == 0
    await lab.do(Reclaim())
    assert len(await _taken(lab, 5)) == 2


@clause
async def no_more_are_started_than_the_rate_allows(lab: Lab) -> None:
    await _limit(lab, rate=10, burst=4)
    await _many(lab, 20)
    now = lab.clock.now()
    assert len(await _taken(lab, 10)) == 4
    (held,) = lab.held
    assert (held.why, held.limit, held.remaining) == ("rate", 10, 0)
    assert held.until is not None
    assert abs(held.until - now - 0.1) < 1e-6
    assert held.slack == 0.3, "for how long after that no token is lost"
    due = await lab.store.next_due(now)
    assert due == now + LEASE, "only the worker that was held back learns when the next job may start"
    lab.clock.move(0.1)
    assert len(await _taken(lab, 10)) == 1
    lab.clock.move(100)
    assert len(await _taken(lab, 3)) == 3
    assert lab.held == ()
    assert len(await _taken(lab, 10)) == 1, "no more is saved up than the burst"


@clause
async def a_rate_can_be_slower_than_one_in_a_second(lab: Lab) -> None:
    await _limit(lab, rate=2, rate_seconds=60)
    await _many(lab, 5)
    assert len(await _taken(lab, 10)) == 2
    lab.clock.move(29)
    assert await _taken(lab, 10) == []
    lab.clock.move(1.001)
    assert len(await _taken(lab, 10)) == 1


@clause
async def a_queue_that_is_paused_starts_nothing_and_goes_on_where_it_was(lab: Lab) -> None:
    await _many(lab, 2)
    (running,) = await _taken(lab, 1)
    await lab.do(PauseQueue("default", paused=True, actor="ana"))
    assert await _taken(lab, 5) == []
    assert lab.held == (Blocked("default", "paused", 0, 0),)
    await lab.append(running, DONE)
    await _limit(lab, concurrency=5)
    assert await _taken(lab, 5) == [], "other limits do not end the pause"
    await lab.do(PauseQueue("default", paused=False))
    assert _names(await _taken(lab, 5)) == ["001"]


@clause
async def limits_are_changed_while_jobs_run(lab: Lab) -> None:
    await _many(lab, 9)
    assert len(await _taken(lab, 4)) == 4
    await _limit(lab, concurrency=2)
    assert await _taken(lab, 9) == [], "what runs already counts, and is let be"
    await _limit(lab, concurrency=5)
    assert len(await _taken(lab, 9)) == 1
    await _limit(lab)
    assert await lab.store.limits() == []
    assert len(await _taken(lab, 9)) == 4


@clause
async def groups_take_turns_in_any_order_of_arrival(lab: Lab) -> None:
    await _many(lab, 30, name="big", group="big")
    for group in ("ant", "bee", "cat"):
        await _many(lab, 2, name=group, group=group)
    await lab.submit("alone")
    first = await _taken(lab, 5)
    assert Counter(job.group for job in first) == Counter(["ant", "bee", "big", "cat", None])
    for job in first:
        await lab.append(job, DONE)
    second = await _taken(lab, 4)
    assert Counter(job.group for job in second) == Counter(["ant", "bee", "big", "cat"])
    third = await _taken(lab, 50)
    assert {job.group for job in third} == {"big"}
    assert len(third) == 28


@clause
async def one_slot_goes_round_all_groups(lab: Lab) -> None:
    await _limit(lab, concurrency=1)
    for group in ("ant", "bee", "cat"):
        await _many(lab, 3, name=group, group=group)
    served = []
    for _ in range(9):
        (job,) = await _taken(lab, 5)
        served.append(job.group)
        await lab.append(job, DONE)
    assert Counter(served[:3]) == Counter(served[3:6]) == Counter(served[6:]) == Counter(["ant", "bee", "cat"])


@clause
async def a_group_runs_no_more_than_each_may_and_holds_back_no_other_group(lab: Lab) -> None:
    await _limit(lab, group_concurrency=2)
    await _many(lab, 9, name="big", group="big")
    await _many(lab, 3, name="ant", group="ant")
    await _many(lab, 3)
    first = await _taken(lab, 20)
    assert Counter(job.group for job in first) == Counter({"big": 2, "ant": 2, None: 3})
    assert lab.held == (Blocked("default", "group_concurrency", 2, 0),)
    (state,) = await lab.store.limits()
    assert (state.running, state.queued, state.groups) == (7, 8, {"ant": 2, "big": 2})


@clause
async def a_group_with_more_weight_runs_more(lab: Lab) -> None:
    await _limit(lab, concurrency=8, weights={"big": 3.0})
    await _many(lab, 20, name="ant", group="ant")
    await _many(lab, 20, name="big", group="big")
    assert Counter(job.group for job in await _taken(lab, 20)) == Counter({"big": 6, "ant": 2})


@clause
async def within_a_group_priority_due_time_and_age_decide(lab: Lab) -> None:
    await lab.submit("a", group="g")
    await lab.submit("b", group="g", priority=5)
    await lab.submit("c", group="g", due_at=lab.clock.now() + 5)
    assert _names(await _taken(lab, 5)) == ["b", "a"]
    lab.clock.move(6)
    assert _names(await _taken(lab, 5)) == ["c"]


@clause
async def a_queue_that_is_full_takes_no_more_until_some_have_gone(lab: Lab) -> None:
    await _limit(lab, depth=3)
    batch = [submission(f"{n}", idempotency_key=f"{n}") for n in range(5)]
    answers = await lab.store.commit(batch)
    assert [type(answer).__name__ for answer in answers] == ["Submitted"] * 3 + ["QueueFull"] * 2
    refusal = await lab.refused(batch[4], QueueFull)
    assert isinstance(refusal, QueueFull)
    assert (refusal.queue, refusal.depth, refusal.retry_after_seconds) == ("default", 3, 1.0)
    assert (await lab.do(batch[0])).existing, "what was taken is known"
    await lab.submit("elsewhere", queue="mail")
    await lab.submit("later", queue="mail", due_at=lab.clock.now() + 60)
    (running,) = [job for job in await _taken(lab, 2) if job.queue == "default"][:1]
    await lab.submit("child", parent=running.id)
    await lab.do(batch[3])
    await lab.refused(batch[4], QueueFull)


@clause
async def a_job_that_is_there_is_known_to_a_batch_that_starts_it_again_in_a_full_queue(lab: Lab) -> None:
    await lab.submit("a")
    await _limit(lab, depth=1)
    again = submission("a")
    evidence, known = await lab.store.commit([KeepEvidence(Evidence("a", "charge:1", 1, 1)), again])
    assert evidence is True, "stored, although the job's start comes after it"
    assert known.existing


@clause
async def a_job_that_is_there_is_known_to_a_batch_that_claims_it_and_starts_it_again(lab: Lab) -> None:
    await lab.submit("a")
    again = submission("a")
    late_report = KeepEvidence(Evidence("a", "charge:1", 1, 1))
    evidence, claims, known = await lab.store.commit([late_report, claiming(), again])
    assert evidence is True, "stored, although the job is found only after it"
    assert _names([claimed.job for claimed in claims.claimed]) == ["a"]
    assert known.existing


@clause
async def a_full_queue_says_when_a_tenth_of_it_will_have_gone(lab: Lab) -> None:
    await _limit(lab, depth=20)
    await _many(lab, 20)
    new = submission("new")

    async def retry_after() -> float:
        refusal = await lab.refused(new, QueueFull)
        assert isinstance(refusal, QueueFull)
        return refusal.retry_after_seconds

    assert await retry_after() == 1.0, "nothing runs, and nothing is known"
    await _taken(lab, 2)
    await lab.submit("x")
    await lab.submit("y")
    lab.clock.move(5.0)
    assert await retry_after() == 10.0, "two run for five seconds, so that they take ten; two will have gone after that"
    await _limit(lab, depth=20, rate=0.1)
    assert await retry_after() == 20.0, "the rate is slower than that"
    await lab.do(PauseQueue("default", paused=True))
    assert await retry_after() == 60.0


@clause
async def jobs_for_later_do_not_fill_a_queue_before_they_are_due(lab: Lab) -> None:
    await _limit(lab, depth=2)
    await _many(lab, 5, due_at=lab.clock.now() + 60)
    await lab.submit("now")
    lab.clock.move(61)
    new = submission("new")
    await lab.refused(new, QueueFull)
    assert (await lab.store.limits())[0].queued == 6


@clause
async def a_queue_tells_its_limits_and_how_it_stands(lab: Lab) -> None:
    assert await lab.store.limits() == []
    limits = Limits(queue="default", concurrency=4, rate=8, depth=100, weights={"a": 2.0})
    await lab.do(SetLimits(limits, "ana"))
    await _many(lab, 6, group="a")
    assert len(await _taken(lab, 2)) == 2
    (state,) = await lab.store.limits()
    assert state.limits == limits
    assert (state.running, state.queued, state.tokens, state.held_until) == (2, 4, 6.0, None)
    assert (state.groups, state.changed_by, state.changed_at) == ({"a": 2}, "ana", lab.clock.now())
    row = await lab.job("000")
    assert row.group == "a"
    assert (await lab.store.events("000"))[0].payload["group"] == "a"


@clause
async def limits_are_replaced_only_if_they_are_the_expected_ones(lab: Lab) -> None:
    bare, first, second = (Limits(queue="default", concurrency=count) for count in (None, 1, 2))
    await lab.do(SetLimits(first, "ana", bare))
    await lab.refused(SetLimits(second, "bob", bare), LimitsChanged)
    (state,) = await lab.store.limits()
    assert (state.limits, state.changed_by) == (first, "ana")
    await lab.do(SetLimits(second, "bob", first))
    assert (await lab.store.limits())[0].limits == second
