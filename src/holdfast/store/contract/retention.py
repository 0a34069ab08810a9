"""Purges: ended jobs are removed completely and in order; open jobs, and those still needed, stay."""

from __future__ import annotations

from typing import Any

from holdfast.errors import UnknownJob
from holdfast.machines import JobState
from holdfast.store.audit import Audited
from holdfast.store.commands import Cancel, Claim, KeepEvidence, Pause, Purge, PurgeAudit, Resume, Retry, SendSignal
from holdfast.store.contract.harness import LEASE, Lab, clause, submission
from holdfast.store.rows import Evidence


async def _ended(lab: Lab, job: str, event: str = "job_completed", **options: Any) -> None:
    held = await lab.running(job, **options)
    await lab.append(held, (event, {"reason": "so it is"}))


@clause
async def only_what_ended_long_enough_ago_is_removed_the_oldest_first(lab: Lab) -> None:
    for name, event in (("c", "job_completed"), ("a", "job_failed"), ("b", "job_completed")):
        await _ended(lab, name, event)
        lab.clock.move(10)
    await lab.submit("queued", due_at=lab.clock.now() + 1000)
    await lab.waiting("waiting")
    await lab.running("running")
    await lab.submit("d", due_at=lab.clock.now() + 1000)
    before = lab.clock.now() - 10
    lab.clock.move(5)
    await lab.do(Cancel("d", None))
    assert (await lab.do(Purge(before - 10.001))).jobs == ["c"]
    assert (await lab.do(Purge(before, limit=1))).jobs == ["a"], "at that time or earlier"
    assert (await lab.do(Purge(before))).jobs == ["b"]
    assert (await lab.do(Purge(before))).jobs == []
    lab.clock.move(1)
    assert (await lab.do(Purge(lab.clock.now()))).jobs == ["d"]
    for name in ("queued", "waiting", "running"):
        await lab.job(name)
    assert await lab.store.next_due() is not None


@clause
async def a_purge_takes_only_the_states_named_and_never_an_active_job(lab: Lab) -> None:
    await _ended(lab, "failed", "job_failed")
    await _ended(lab, "done")
    await lab.submit("queued", due_at=lab.clock.now() + 1000)
    lab.clock.move(1)
    now = lab.clock.now()
    assert (await lab.do(Purge(now, states=frozenset({JobState.QUEUED, JobState.CANCELLED})))).jobs == []
    assert (await lab.do(Purge(now, states=frozenset({JobState.FAILED})))).jobs == ["failed"]
    assert (await lab.do(Purge(now))).jobs == ["done"]
    assert [job.id for job in await lab.store.jobs()] == ["queued"]


@clause
async def a_purge_of_named_jobs_takes_no_other_and_none_that_has_to_stay(lab: Lab) -> None:
    for name in ("a", "b", "c"):
        await _ended(lab, name)
    await lab.submit("queued", due_at=lab.clock.now() + 1000)
    lab.clock.move(1)
    now = lab.clock.now()
    assert (await lab.do(Purge(now, jobs=()))).jobs == []
    assert (await lab.do(Purge(now, jobs=("c", "queued", "missing", "a")))).jobs == ["a", "c"]
    assert (await lab.do(Purge(now - 2, jobs=("b",)))).jobs == [], "it ended later"
    assert (await lab.do(Purge(now, jobs=("b",), states=frozenset({JobState.FAILED})))).jobs == []
    assert sorted(job.id for job in await lab.store.jobs()) == ["b", "queued"]


@clause
async def old_rows_of_the_audit_log_are_removed_in_order_and_numbers_are_not_used_again(lab: Lab) -> None:
    await lab.submit("a")
    for actor in ("ana", "bob", "cy", "di"):
        await lab.do(Audited(Pause("a", actor), "pause", "a", actor))
        lab.clock.move(10)
    before = lab.clock.now() - 15
    assert await lab.do(PurgeAudit(before, limit=2)) == 2
    assert await lab.do(PurgeAudit(before, limit=2)) == 1
    assert await lab.do(PurgeAudit(before)) == 0
    await lab.do(Audited(Resume("a", "eve"), "resume", "a", "eve"))
    rows = await lab.store.audit(None, 10)
    assert [row.actor for row in rows] == ["eve", "di"]
    assert [row.actor for row in await lab.store.audit(rows[0].number, 10)] == ["di"]
    assert await lab.do(PurgeAudit(lab.clock.now() + 1)) == 2
    await lab.do(Audited(Pause("a", "flo"), "pause", "a", "flo"))
    assert (await lab.store.audit(None, 10))[0].number > rows[0].number


@clause
async def a_purged_job_is_gone_whole_and_its_id_and_key_are_free(lab: Lab) -> None:
    await lab.submit("a", idempotency_key="k", fingerprint="one")
    await lab.do(SendSignal("a", "never used", 1, "s1"))
    (claimed,) = await lab.claim()
    await lab.append(claimed.job, ("job_completed", {}))
    await lab.do(KeepEvidence(Evidence("a", "n", 1, 1, "late")))
    await _ended(lab, "b")
    lab.clock.move(1)
    assert (await lab.do(Purge(lab.clock.now(), limit=1))).jobs == ["a"]
    assert await lab.store.get("a") is None
    assert await lab.store.events("a") == []
    assert await lab.store.inbox("a") == []
    assert await lab.store.evidence("a") == []
    await lab.job("b")
    await lab.refused(Retry("a", "ana", "again"), UnknownJob)
    await lab.refused(SendSignal("a", "k", 1, "s2"), UnknownJob)
    await lab.submit("a", idempotency_key="k", fingerprint="other")
    assert await lab.types("a") == ["job_created"]
    assert (await lab.do(SendSignal("a", "k", 1, "s1"))).outcome == "kept", "the old signal's id is forgotten"
    await lab.job("a")


@clause
async def a_child_is_kept_while_its_parent_may_ask_for_it(lab: Lab) -> None:
    family = {"parent": "p", "parent_key": "holdfast:child:c"}
    await lab.submit("p")
    (parent,) = await lab.claim()
    await _ended(lab, "c", **family)
    lab.clock.move(1)
    assert (await lab.do(Purge(lab.clock.now()))).jobs == [], "the parent runs"
    await lab.append(parent.job, ("job_failed", {"reason": "no"}))
    lab.clock.move(1)
    only = frozenset({JobState.COMPLETED})
    assert (await lab.do(Purge(lab.clock.now(), states=only))).jobs == [], "the parent may be retried"
    assert (await lab.do(Purge(lab.clock.now()))).jobs == ["p"]
    assert (await lab.do(Purge(lab.clock.now()))).jobs == ["c"]


@clause
async def a_parent_that_is_gone_is_not_missed_by_its_child(lab: Lab) -> None:
    held = await lab.running("p")
    await lab.submit("c", parent="p", parent_key="holdfast:child:c")
    await lab.append(held, ("job_completed", {}))
    lab.clock.move(1)
    assert (await lab.do(Purge(lab.clock.now()))).jobs == ["p"]
    (child,) = await lab.claim()
    await lab.append(child.job, ("job_completed", {"result": 1}))
    assert (await lab.job("c")).state is JobState.COMPLETED


@clause
async def ended_jobs_are_listed_in_pages_oldest_first(lab: Lab) -> None:
    for name in ("c", "a", "b"):
        await _ended(lab, name)
        lab.clock.move(1)
    await lab.submit("open")
    end = lab.clock.now()
    page = await lab.store.ended_jobs(end, None, 2)
    assert [job.id for job in page] == ["c", "a"]
    assert (page[0].plugin, page[0].entry, page[0].state) == ("shop", "checkout", "completed")
    assert page[0].created_at <= page[0].updated_at < page[1].created_at
    place = page[-1].created_at, page[-1].id
    assert [job.id for job in await lab.store.ended_jobs(end, place, 2)] == ["b"]
    assert [job.id for job in await lab.store.ended_jobs(page[0].created_at)] == ["c"]
    assert await lab.store.ended_jobs(page[0].created_at, place) == []


@clause
async def a_purge_and_what_follows_it_in_one_batch_see_each_other(lab: Lab) -> None:
    await _ended(lab, "a", idempotency_key="k", fingerprint="one")
    lab.clock.move(1)
    again = submission("a", idempotency_key="k", fingerprint="two")
    entries = frozenset({("shop", "checkout")})
    claim = Claim(worker="w", entries=entries, queues=None, limit=5, lease_seconds=LEASE)
    answers = await lab.store.commit(
        [SendSignal("a", "k", 1, "s"), Purge(lab.clock.now()), Cancel("a", None), again, claim]
    )
    assert answers[1].jobs == ["a"]
    assert isinstance(answers[2], UnknownJob)
    assert not answers[3].existing
    assert [claimed.job.id for claimed in answers[4]] == ["a"]
    assert await lab.types("a") == ["job_created", "job_running"]
    await lab.job("a")
