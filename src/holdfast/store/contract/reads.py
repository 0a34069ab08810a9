"""Reads: rows, streams, listings and the next due time."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast.machines import Event, JobState
from holdfast.store.commands import Cancel, Progress, Retry
from holdfast.store.contract.harness import LEASE, Lab, clause
from holdfast.store.run_queries import RunFilter


@clause
async def jobs_are_listed_newest_first_by_what_they_are(lab: Lab) -> None:
    for name in "abcd":
        await lab.submit(name, entry="refund" if name == "c" else "checkout")
    await lab.do(Cancel("b", None))
    assert [job.id for job in await lab.store.jobs()] == ["d", "c", "b", "a"]
    assert [job.id for job in await lab.store.jobs(limit=2)] == ["d", "c"]
    assert [job.id for job in await lab.store.jobs(before="c")] == ["b", "a"]
    assert [job.id for job in await lab.store.jobs(state=JobState.CANCELLED)] == ["b"]
    assert [job.id for job in await lab.store.jobs(plugin="shop", entry="refund")] == ["c"]
    assert await lab.store.jobs(plugin="bank") == []


@clause
async def the_event_that_ended_the_newest_run_is_read_with_its_record(lab: Lab) -> None:
    async def ending(number: int) -> Event | None:
        outcome = await lab.store.outcome("a", number)
        assert outcome is not None
        return outcome[1]

    held = await lab.running()
    await lab.append(held, ("node_started", {"node": "s:1"}))
    assert await ending(1) is None, "it has not ended"
    await lab.append(held, ("job_failed", {"reason": "broken", "code": "E"}))
    assert await ending(1) == await lab.store.last_event("a")
    await lab.do(Retry("a", "ana", "again"))
    assert (await ending(1), await ending(2)) == (None, None), "the newest run has not ended"
    (claimed,) = await lab.claim()
    rest = (("node_started", {"node": "s:2"}), ("job_completed", {"result": {"paid": 7}}))
    await lab.append(claimed.job, *rest)  # they share a row
    last = await ending(2)
    assert last == await lab.store.last_event("a")
    assert last is not None
    assert last.payload == {"result": {"paid": 7}}
    assert await ending(1) is None, "another run has followed"


@clause
async def open_jobs_are_listed_newest_first_and_keep_their_place(lab: Lab) -> None:
    for name in "abcdef":
        await lab.submit(name)
    (first, second) = await lab.claim(2)
    await lab.append(first.job, ("job_completed", {"result": None}))
    await lab.do(Cancel("d", None))
    assert [job.id for job in await lab.store.open_jobs()] == ["f", "e", "c", "b"]
    assert [job.id for job in await lab.store.open_jobs(limit=2)] == ["f", "e"]
    await lab.append(second.job, ("job_requeued", {"reason": "shutdown"}))
    assert [job.id for job in await lab.store.open_jobs("e", 1)] == ["c"]
    assert await lab.store.open_jobs("c", 5) == [await lab.store.get("b")]
    assert await lab.store.open_jobs("b", 5) == []


@clause
async def streams_are_read_whole_or_from_after_a_number(lab: Lab) -> None:
    held = await lab.running()
    await lab.append(held, *(("node_started", {"node": f"n{number}"}) for number in range(5)))
    whole = await lab.store.events("a")
    assert [event.seq for event in whole] == list(range(1, 8))
    assert await lab.store.events("a", after=5) == whole[5:]
    assert await lab.store.events("a", after=2, limit=3) == whole[2:5]
    assert await lab.store.events("a", limit=1) == whole[:1]
    assert await lab.store.last_event("a") == whole[-1]
    assert await lab.store.events("missing") == []
    assert await lab.store.last_event("missing") is None
    assert await lab.store.get("missing") is None


@clause
async def versions_of_many_jobs_change_with_their_records(lab: Lab) -> None:
    held = await lab.running("a")
    await lab.submit("b")
    first = await lab.store.versions(["a", "b", "missing"])
    assert first.keys() == {"a", "b"}
    assert await lab.store.versions(["b", "a"]) == first
    lab.clock.move(1)
    await lab.do(Progress(held.id, held.attempt, {"done": 1}))
    second = await lab.store.versions(["a", "b"])
    assert second["a"] != first["a"], "a report has no event"
    assert second["b"] == first["b"]
    await lab.append(held, ("node_started", {"node": "n"}))
    assert (await lab.store.versions(["a"]))["a"] not in {first["a"], second["a"]}
    assert await lab.store.versions([]) == {}


@clause
async def the_marks_of_changes_are_read_for_many_jobs(lab: Lab) -> None:
    for name in "abc":
        held = await lab.running(name)
        mark = {"node": "changed:fee", "value": name == "a"}
        other = {"node": "now:value", "value": "changed:fee"}  # looks like one
        await lab.append(held, ("node_started", {"node": "n"}), ("value_recorded", other))
        if name != "c":
            await lab.append(held, ("value_recorded", mark), ("value_recorded", {"node": "changed:x:y", "value": True}))
    assert await lab.store.marks(["a", "b", "c", "missing"]) == {
        "a": {"fee": True, "x:y": True},
        "b": {"fee": False, "x:y": True},
    }
    assert await lab.store.marks(["b"]) == {"b": {"fee": False, "x:y": True}}
    assert await lab.store.marks([]) == {}


@clause
async def the_next_due_time_is_the_earliest_of_all(lab: Lab) -> None:
    assert await lab.store.next_due() is None
    now = lab.clock.now()
    held = await lab.running("a")
    assert await lab.store.next_due() == now + LEASE
    await lab.append(held, ("job_waiting", {"correlation_key": "k", "wait_type": "timer", "deadline": now + 9}))
    assert await lab.store.next_due() == now + 9
    await lab.submit("b", due_at=now + 4)
    assert await lab.store.next_due() == now + 4
    assert await lab.store.next_due(after=now + 3) == now + 4
    assert await lab.store.next_due(after=now + 4) == now + 9, "a claim at that time has seen it"
    await lab.submit("c", due_at=now + 90, deadline=now + 3)
    assert await lab.store.next_due() == now + 3


@clause
async def a_store_has_work_when_there_is_something_to_do(lab: Lab) -> None:
    assert not await lab.store.has_work()
    await lab.submit("a", due_at=lab.clock.now() + 4)
    assert not await lab.store.has_work()
    lab.clock.move(4)
    assert await lab.store.has_work()
    (held,) = await lab.claim()
    assert not await lab.store.has_work(), "it is held"
    lab.clock.move(LEASE)
    assert await lab.store.has_work(), f"the lease of {held.job.id} has run out"


@clause
async def runs_are_counted_by_status_as_they_are_listed(lab: Lab) -> None:
    for number, name in enumerate("abcdefg"):
        group, of_two = "acme" if number % 2 else None, {"tenant": "acme", "even": number % 2 == 0}
        await lab.append(
            await lab.running(name, group=group, attributes=of_two, queue="mail" if number > 3 else "default"),
            ("job_failed", {"reason": "broken"}),
        )
    for name in "bce":
        await lab.do(Retry(name, "ana", "again"))
    await lab.do(Cancel("c", None))
    now = await lab.store.now()
    filters: list[dict[str, Any]] = [
        {},
        {"newest": True},
        {"status": ("failed",)},
        {"status": ("failed", "queued", "canceled")},
        {"status": ("canceled", "queued"), "newest": True},
        {"group": "acme"},
        {"group": "acme", "status": ("queued", "failed")},
        {"queue": "mail"},
        {"attributes": {"tenant": "acme"}},
        {"attributes": {"tenant": "acme", "even": True}, "status": ("failed",)},
        {"entry_id": "nothing"},
        {"task_id": "c"},
        {"finished_before": now + 1, "newest": True},
        {"finished_after": now + 1},
        {"finished_before": now + 1, "status": ("queued",)},
        {"asks": True},
        {"top": True, "created_before": now + 1},
    ]
    for where in filters:
        listed = await lab.store.records(RunFilter(**where), 100)
        expected = Counter(record.status.value for record in listed)
        for limit in (2, 3, 100):
            counted: Counter[str] = Counter()
            place, answers = None, 0
            while place is not None or not answers:
                part = await lab.store.count_records(RunFilter(**where), limit, place)
                counted, place, answers = counted + Counter(part.runs), part.next, answers + 1
            assert counted == expected, where
            assert answers <= 7 // limit + 1, "each answer looks at as many jobs as it may"
