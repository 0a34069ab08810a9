"""Leases: only one attempt can write, and the death of a worker loses nothing."""

from __future__ import annotations

from typing import Any

from holdfast.errors import InvalidTransition, StaleAttempt
from holdfast.machines import JobState, run_paths
from holdfast.store.commands import Append, Cancel, Reclaim, ReleaseLeases, Renew, SendSignal
from holdfast.store.contract.harness import LEASE, WAIT, Lab, clause


@clause
async def a_renewed_lease_lasts_longer_under_the_same_attempt(lab: Lab) -> None:
    held = await lab.running()
    lab.clock.move(10)
    leases = await lab.do(Renew("w1", ((held.id, held.attempt),), LEASE))
    assert leases.lost == frozenset()
    lab.clock.move(10)
    await lab.append(held, ("node_started", {"node": "x"}))
    assert (await lab.job()).attempt == held.attempt


@clause
async def a_lease_ends_at_its_time_exactly_and_is_not_revived(lab: Lab) -> None:
    held = await lab.running()
    lab.clock.move(LEASE)
    await lab.refused(Append(held.id, held.attempt, (("node_started", {"node": "x"}),)), StaleAttempt)
    assert (await lab.do(Renew("w1", ((held.id, held.attempt),), LEASE))).lost == {"a"}
    assert (await lab.do(Reclaim())).jobs == ["a"]


@clause
async def a_lease_is_renewed_by_its_own_worker_and_attempt_only(lab: Lab) -> None:
    held = await lab.running()
    assert (await lab.do(Renew("w2", ((held.id, held.attempt),), LEASE))).lost == {"a"}
    assert (await lab.do(Renew("w1", ((held.id, held.attempt + 1),), LEASE))).lost == {"a"}
    assert (await lab.do(Renew("w1", (("missing", 1),), LEASE))).lost == {"missing"}
    assert (await lab.do(Renew("w1", ((held.id, held.attempt),), LEASE))).lost == frozenset()


@clause
async def a_stale_attempt_writes_nothing_of_any_kind(lab: Lab) -> None:
    old = await lab.running()
    lab.clock.move(LEASE + 1)
    await lab.do(Reclaim())
    (new,) = await lab.claim(worker="w2")
    for kind, payload in [
        ("node_started", {"node": "x"}),
        ("command_committed", {"node": "x"}),
        ("job_completed", {}),
        ("job_failed", {}),
        ("job_requeued", {}),
        ("job_cancelled", {}),
        ("job_waiting", WAIT),
    ]:
        await lab.refused(Append(old.id, old.attempt, ((kind, payload),)), StaleAttempt)
    await lab.append(new.job, ("job_completed", {}))
    await lab.refused(Append(new.job.id, new.job.attempt, (("job_completed", {}),)), StaleAttempt)


@clause
async def events_of_one_append_are_written_together_or_not_at_all(lab: Lab) -> None:
    held = await lab.running()
    events: tuple[tuple[str, dict[str, Any]], ...] = (("node_started", {"node": "x"}), ("job_created", {}))
    await lab.refused(Append(held.id, held.attempt, events), InvalidTransition)


@clause
async def leaving_running_ends_the_lease_in_the_same_transaction(lab: Lab) -> None:
    ends: list[tuple[str, dict[str, Any]]] = [
        ("job_completed", {}),
        ("job_failed", {"reason": "no"}),
        ("job_cancelled", {}),
        ("job_requeued", {"reason": "worker_shutdown"}),
        ("job_waiting", WAIT),
    ]
    for number, end in enumerate(ends):
        held = await lab.running(f"j{number}")
        await lab.append(held, end)
        row = await lab.job(f"j{number}")
        assert row.lease is None
        if row.state is JobState.QUEUED:
            (claimed,) = await lab.claim()
            await lab.append(claimed.job, ("job_completed", {}))


@clause
async def an_expired_lease_is_reclaimed_and_the_job_goes_on_under_a_higher_attempt(lab: Lab) -> None:
    await lab.running()
    assert (await lab.do(Reclaim())).jobs == []
    lab.clock.move(LEASE)
    assert (await lab.do(Reclaim())).jobs == ["a"]
    assert (await lab.do(Reclaim())).jobs == []
    last = (await lab.store.events("a"))[-1]
    assert (last.type, last.payload["reason"], last.payload["attempt"]) == ("job_requeued", "lease_expired", 1)
    (claimed,) = await lab.claim(worker="w2")
    assert claimed.job.attempt == 2


@clause
async def a_job_that_keeps_killing_its_worker_fails_as_poison(lab: Lab) -> None:
    await lab.submit(max_attempts=3)
    for _ in range(3):
        assert len(await lab.claim()) == 1
        lab.clock.move(LEASE)
        await lab.do(Reclaim())
    row = await lab.job()
    assert (row.state, row.attempts) == (JobState.FAILED, 3)
    assert (await lab.types())[-3:] == ["job_requeued", "job_leased", "job_failed"]
    assert (await lab.store.events("a"))[-1].payload["reason"] == "poison"
    assert await lab.claim() == []


@clause
async def waits_and_shutdowns_do_not_poison(lab: Lab) -> None:
    await lab.submit(max_attempts=2)
    for number in range(6):
        (claimed,) = await lab.claim()
        if number in {1, 3, 5}:
            await lab.append(claimed.job, ("job_requeued", {"reason": "worker_shutdown"}))
        else:
            await lab.append(claimed.job, ("job_waiting", {"correlation_key": f"k{number}", "wait_type": "signal"}))
            await lab.do(SendSignal("a", f"k{number}", None, f"s{number}"))
    (claimed,) = await lab.claim()
    lab.clock.move(LEASE)
    await lab.do(Reclaim())
    assert (await lab.job()).state is JobState.QUEUED


@clause
async def a_reclaim_takes_no_more_than_asked_oldest_lease_first(lab: Lab) -> None:
    for name in "abc":
        await lab.running(name)
        lab.clock.move(1)
    lab.clock.move(LEASE)
    assert (await lab.do(Reclaim(limit=2))).jobs == ["a", "b"]
    assert (await lab.do(Reclaim(limit=2))).jobs == ["c"]


@clause
async def a_dead_workers_jobs_are_free_at_once_and_only_its_own(lab: Lab) -> None:
    await lab.submit("a")
    await lab.submit("b")
    await lab.claim(worker="dead")
    await lab.claim(worker="alive")
    assert (await lab.do(ReleaseLeases("dead"))).jobs == ["a"]
    await lab.refused(Append("a", 1, (("node_started", {"node": "x"}),)), StaleAttempt)
    assert (await lab.do(Reclaim())).jobs == ["a"]
    assert (await lab.job("b")).state is JobState.RUNNING


@clause
async def a_job_asked_to_cancel_is_cancelled_when_its_worker_dies(lab: Lab) -> None:
    await lab.running()
    await lab.do(Cancel("a", "enough"))
    lab.clock.move(LEASE)
    await lab.do(Reclaim())
    assert (await lab.job()).state is JobState.CANCELLED
    assert run_paths(await lab.store.events("a")) == [["queued", "running", "cancel_requested", "canceled"]]
