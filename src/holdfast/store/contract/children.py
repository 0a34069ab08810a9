"""Parents and children, late evidence, and the list of workers."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import StaleAttempt, UnknownJob
from holdfast.machines import JobState
from holdfast.store.commands import (
    Cancel,
    Expire,
    KeepEvidence,
    PutWorker,
    Reclaim,
    ReleaseLeases,
    RemoveWorker,
    Submit,
)
from holdfast.store.contract.harness import LEASE, Lab, clause, submission
from holdfast.store.rows import FORGOTTEN_SECONDS, Evidence, WorkerCard

CARD = WorkerCard("w1", "host", 4711, 100, None, ("shop.checkout",), LEASE, build="1.4.2")


async def _family(lab: Lab) -> None:
    """Create a parent that waits for a child with a child of its own, and a child that has ended."""
    held = await lab.running("parent")
    await lab.submit("child", parent="parent", parent_key="child:1")
    await lab.submit("done", parent="parent", parent_key="child:2")
    await lab.submit("grandchild", parent="child", parent_key="child:1", due_at=lab.clock.now() + 1e6)
    await lab.append(held, ("job_waiting", {"correlation_key": "child:1", "wait_type": "child"}))
    claimed = {claimed.job.id: claimed.job for claimed in await lab.claim(2, worker="w2")}
    await lab.append(claimed["done"], ("job_completed", {"result": 1}))
    await lab.append(claimed["child"], ("job_waiting", {"correlation_key": "child:1", "wait_type": "child"}))


@clause
async def the_children_of_a_cancelled_job_are_cancelled_with_it(lab: Lab) -> None:
    await _family(lab)
    await lab.submit("stranger")
    await lab.do(Cancel("parent", "wrong order"))
    assert [(await lab.job(name)).state for name in ("parent", "child", "grandchild")] == [JobState.CANCELLED] * 3
    assert (await lab.job("done")).state is JobState.COMPLETED
    assert (await lab.job("stranger")).state is JobState.QUEUED
    assert "parent" in (await lab.store.events("child"))[-1].payload["reason"]


@clause
async def a_running_child_of_a_job_that_failed_is_asked_to_cancel(lab: Lab) -> None:
    held = await lab.running("parent")
    await lab.submit("child", parent="parent", parent_key="child:1")
    (child,) = await lab.claim(worker="w2")
    await lab.append(held, ("job_failed", {"reason": "error"}))
    row = await lab.job("child")
    assert (row.state, row.cancel is not None) == (JobState.RUNNING, True)
    assert (await lab.store.requests_for("w2")).cancel == {"child"}
    await lab.append(child.job, ("job_cancelled", {}))
    assert (await lab.job("parent")).state is JobState.FAILED, "the child's end reopens nothing"


@clause
async def children_outlive_a_parent_that_completed(lab: Lab) -> None:
    held = await lab.running("parent")
    await lab.submit("child", parent="parent", parent_key="child:1")
    await lab.append(held, ("job_completed", {}))
    assert (await lab.job("child")).state is JobState.QUEUED


@clause
async def a_deadline_or_poison_of_the_parent_ends_its_children(lab: Lab) -> None:
    await lab.submit("late", deadline=lab.clock.now() + 5)
    await lab.submit("of-late", parent="late", parent_key="c", due_at=lab.clock.now() + 1e6)
    lab.clock.move(6)
    await lab.do(Expire())
    assert (await lab.job("of-late")).state is JobState.CANCELLED
    await lab.running("poison", max_attempts=1)
    await lab.submit("of-poison", parent="poison", parent_key="c", due_at=lab.clock.now() + 1e6)
    lab.clock.move(LEASE + 1)
    await lab.do(Reclaim())
    assert (await lab.job("poison")).state is JobState.FAILED
    assert (await lab.job("of-poison")).state is JobState.CANCELLED


@clause
async def a_long_line_of_descendants_is_cancelled_whole(lab: Lab) -> None:
    far = lab.clock.now() + 1e6
    await lab.submit("j0000", due_at=far)
    for number in range(1, 400):
        await lab.submit(f"j{number:04}", parent=f"j{number - 1:04}", parent_key="c", due_at=far)
    await lab.do(Cancel("j0000", None))
    assert (await lab.job("j0399")).state is JobState.CANCELLED


@clause
async def a_child_is_started_only_under_an_attempt_that_holds_its_parent(lab: Lab) -> None:
    held = await lab.running("parent")

    def child(name: str, attempt: int) -> Submit:
        family: dict[str, Any] = {"parent": "parent", "parent_key": name, "parent_attempt": attempt}
        return submission(name, **family)

    await lab.do(child("first", held.attempt))
    await lab.refused(child("ahead", held.attempt + 1), StaleAttempt)
    lab.clock.move(LEASE)
    await lab.refused(child("expired", held.attempt), StaleAttempt)
    await lab.do(Reclaim())
    await lab.refused(child("reclaimed", held.attempt), StaleAttempt)
    await lab.do(Cancel("first", None))
    (again,) = await lab.claim(worker="w2")
    await lab.refused(child("late", held.attempt), StaleAttempt)
    await lab.refused(child("first", held.attempt), StaleAttempt)
    assert (await lab.do(child("first", again.job.attempt))).existing
    await lab.append(again.job, ("job_cancelled", {}))
    await lab.refused(child("after-the-end", again.job.attempt), StaleAttempt)
    orphan = submission("orphan", parent="missing", parent_attempt=1)
    await lab.refused(orphan, StaleAttempt)
    for name in ("ahead", "expired", "reclaimed", "late", "after-the-end", "orphan"):
        assert await lab.store.get(name) is None


@clause
async def evidence_is_kept_once_and_moves_nothing(lab: Lab) -> None:
    await lab.running()
    before = await lab.job()
    first = Evidence("a", "charge:1", 1, 1, {"receipt": 7})
    assert await lab.do(KeepEvidence(first)) is True
    assert await lab.do(KeepEvidence(Evidence("a", "charge:1", 1, 1, {"receipt": 8}))) is False
    lab.clock.move(1)
    assert await lab.do(KeepEvidence(Evidence("a", "charge:1", 1, 2, None, "it broke"))) is True
    kept = await lab.store.evidence("a")
    assert await lab.store.evidence("a", after=1) == kept[1:]
    assert await lab.store.evidence("a", limit=1) == kept[:1]
    assert await lab.store.evidence("a", 2, 5) == []
    assert [(report.number, report.result, report.error) for report in kept] == [
        (1, {"receipt": 7}, None),
        (2, None, "it broke"),
    ]
    assert kept[1].at - kept[0].at == 1
    assert await lab.job() == before
    await lab.refused(KeepEvidence(Evidence("missing", "n", 1, 1)), UnknownJob)


@clause
async def workers_are_listed_from_their_report_until_they_leave_or_are_dead(lab: Lab) -> None:
    begun = lab.clock.now()
    await lab.do(PutWorker(CARD))
    lab.clock.move(5)
    await lab.do(PutWorker(CARD))
    (seen,) = await lab.store.workers()
    assert (seen.name, seen.host, seen.pid, seen.slots, seen.queues) == ("w1", "host", 4711, 100, None)
    assert (seen.started_at, seen.seen_at, seen.build) == (begun, begun + 5, "1.4.2")
    await lab.do(PutWorker(msgspec.structs.replace(CARD, build=None)))
    assert [card.build for card in await lab.store.workers()] == [None], "a worker of the same name has other code"
    await lab.do(RemoveWorker("w1"))
    assert await lab.store.workers() == []
    await lab.do(PutWorker(CARD))
    await lab.do(ReleaseLeases("w1"))
    assert await lab.store.workers() == []


@clause
async def a_worker_not_heard_of_for_long_is_forgotten(lab: Lab) -> None:
    await lab.do(PutWorker(CARD))
    lab.clock.move(FORGOTTEN_SECONDS + 1)
    await lab.do(PutWorker(WorkerCard("w2", "host", 1, 1, ("mail",), (), LEASE)))
    assert [(card.name, card.queues) for card in await lab.store.workers()] == [("w2", ("mail",))]
