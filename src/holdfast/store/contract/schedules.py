"""Clauses about schedules: a tick is one transaction, whatever asks for it and however often."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import InvalidArguments, ScheduleExists, UnknownSchedule
from holdfast.machines import JobState
from holdfast.machines.chain import breaks
from holdfast.schedules.definition import Definition, define
from holdfast.schedules.schedule import JobTemplate, Schedule, ScheduleState, stream_of
from holdfast.store.commands import Append, Purge, SetLimits
from holdfast.store.contract.harness import Lab, clause
from holdfast.store.limits import Limits
from holdfast.store.schedule_commands import (
    Advance,
    Advanced,
    BackfillSchedule,
    ChangeSchedule,
    CreateSchedule,
    Declaration,
    Declared,
    DeclareSchedules,
    DeleteSchedule,
    FireSchedule,
    PauseSchedule,
    ResumeSchedule,
)
from holdfast.store.schedule_writes import rebuilt_schedule

NIGHTLY = "shop.nightly"
JOB = JobTemplate(plugin="shop", entry="checkout", args={"a": 1}, tick_argument="tick", attributes={"by": "clock"})
HOUR = 3600.0


async def _schedule(lab: Lab, name: str = NIGHTLY) -> Schedule:
    """Read a row that must exist; check that it follows from its stream."""
    row = await lab.store.schedule(name)
    assert row is not None
    stream = await lab.store.events(stream_of(name))
    assert list(breaks(stream, row.head)) == []
    assert rebuilt_schedule(row, stream) == row, "the row differs from what its stream makes"
    return row


async def _create(lab: Lab, name: str = "nightly", job: JobTemplate = JOB, **options: Any) -> Schedule:
    definition = define(**{"every": "1h", **options})
    row: Schedule = await lab.do(CreateSchedule(plugin="shop", name=name, definition=definition, template=job))
    return row


async def _types(lab: Lab, name: str = NIGHTLY) -> list[str]:
    return [event.type for event in await lab.store.events(stream_of(name))]


async def _advance(lab: Lab, seconds: float = 0.0) -> list[str]:
    lab.clock.move(seconds)
    advanced: Advanced = await lab.do(Advance(100))
    return advanced.runs


async def _until_due(lab: Lab, name: str = NIGHTLY) -> list[str]:
    row = await _schedule(lab, name)
    assert row.due_at is not None
    return await _advance(lab, max(0.0, row.due_at - lab.clock.now()))


async def _finish(lab: Lab, status: str = "job_completed") -> str:
    (claimed,) = await lab.claim()
    payload: dict[str, Any] = {"reason": "error"} if status == "job_failed" else {"result": None}
    await lab.append(claimed.job, (status, payload))
    return claimed.job.id


@clause
async def a_tick_starts_one_run_and_moves_the_schedule_on(lab: Lab) -> None:
    row = await _create(lab)
    assert await _advance(lab) == [], "it is not due yet"
    (run,) = await _until_due(lab)
    assert await _advance(lab) == [], "the tick is gone"
    job = await lab.job(run)
    assert (job.state, job.schedule, job.attributes) == (JobState.QUEUED, NIGHTLY, {"by": "clock"})
    assert job.idempotency_key is not None
    assert job.idempotency_key.startswith("schedule:shop.nightly:20")
    created = (await lab.store.events(run))[0].payload
    assert (created["args"]["a"], created["args"]["tick"]["schedule"]) == (1, NIGHTLY)
    after = await _schedule(lab)
    assert row.next is not None
    assert (after.last, after.next, after.last_run) == (row.next, row.next + HOUR, run)
    assert await _types(lab) == ["declared", "fired"]


@clause
async def the_next_tick_is_a_due_time_of_the_store(lab: Lab) -> None:
    assert await lab.store.next_due() is None
    row = await _create(lab, jitter="10m")
    assert await lab.store.next_due() == row.due_at
    assert not await lab.store.has_work()
    assert row.due_at is not None
    lab.clock.move(row.due_at - lab.clock.now())
    assert await lab.store.has_work()
    await lab.do(PauseSchedule(NIGHTLY))
    assert await lab.store.next_due() is None


@clause
async def the_oldest_tick_without_an_outcome_is_counted(lab: Lab) -> None:
    assert (await lab.store.counts()).oldest_tick is None
    row = await _create(lab, jitter="10m")
    await _create(lab, "later", every="1d")
    assert (await lab.store.counts()).oldest_tick is None, "none is due yet"
    assert row.due_at is not None
    lab.clock.move(row.due_at - lab.clock.now() + 30)
    assert (await lab.store.counts()).oldest_tick == row.due_at
    await _advance(lab)
    assert (await lab.store.counts()).oldest_tick is None


@clause
async def ticks_of_two_advances_in_one_batch_fire_once(lab: Lab) -> None:
    for number in range(5):
        await _create(lab, f"s{number}", catch_up="all", overlap="allow")
    lab.clock.move(2 * HOUR)
    first, second = await lab.store.commit([Advance(3), Advance(100)])
    assert (len(first.schedules), len(second.schedules)) == (3, 2)
    jobs = await lab.store.jobs(limit=100)
    assert len(jobs) == 10
    assert sorted(job.id for job in jobs) == sorted([*first.runs, *second.runs])


@clause
async def every_command_of_a_batch_sees_the_schedules_that_those_before_it_have_written(lab: Lab) -> None:
    create = CreateSchedule(plugin="shop", name="nightly", definition=define(every="1h"), template=JOB)
    pause, other = PauseSchedule(NIGHTLY, "once", "ann"), define(every="2h")
    made, paused, again, resumed = await lab.store.commit([create, pause, create, ResumeSchedule(NIGHTLY)])
    assert (made.version, paused.version, resumed.version) == (1, 2, 3)
    assert isinstance(again, ScheduleExists)
    await _schedule(lab)
    lab.clock.move(HOUR)
    changed, advanced, second = await lab.store.commit([ChangeSchedule(NIGHTLY, other, JOB), Advance(100), Advance(9)])
    assert (changed.definition, advanced.schedules, second.schedules) == (other, [], []), (
        "the change has moved the tick"
    )
    await _schedule(lab)
    deleted, gone, new = await lab.store.commit([DeleteSchedule(NIGHTLY), pause, create])
    assert (deleted.version, new.version, new.definition) == (changed.version, 1, create.definition)
    assert isinstance(gone, UnknownSchedule)
    declare = DeclareSchedules("shop", "2", _declarations("b", "c"))
    fired, declared, undeclared = await lab.store.commit(
        [FireSchedule(NIGHTLY), declare, DeclareSchedules("shop", "3", ())]
    )
    assert (declared.created, undeclared.paused) == (["b", "c"], ["b", "c"])
    assert (await _schedule(lab)).last_run == fired.job
    assert [(await _schedule(lab, f"shop.{name}")).version for name in ("b", "c")] == [2, 2]
    await lab.store.commit([pause, DeleteSchedule(NIGHTLY), DeleteSchedule("shop.b")])
    assert [row.id for row in await lab.store.schedules()] == ["shop.c"]
    assert await lab.store.events(stream_of(NIGHTLY)) == []


@clause
async def an_open_run_skips_a_tick_until_it_has_ended(lab: Lab) -> None:
    await _create(lab)
    (run,) = await _until_due(lab)
    assert await _until_due(lab) == []
    assert await _finish(lab) == run
    assert len(await _until_due(lab)) == 1
    assert await _types(lab) == ["declared", "fired", "skipped", "fired"]
    skipped = (await lab.store.events(stream_of(NIGHTLY)))[2].payload
    assert (skipped["reason"], skipped["run"]) == ("overlap", run)
    await _schedule(lab)


@clause
async def a_buffered_tick_fires_when_the_open_run_ends(lab: Lab) -> None:
    await _create(lab, overlap="buffer_one")
    await _until_due(lab)
    assert await _until_due(lab) == []
    assert not await lab.store.has_work() or (await lab.store.next_due(0.0)) is not None
    await _finish(lab)
    assert await lab.store.next_due() == lab.clock.now(), "the end of the run is something to do"
    (second,) = await _advance(lab)
    assert (await lab.job(second)).state is JobState.QUEUED
    assert (await lab.store.next_due() or 0) > lab.clock.now()
    assert await _types(lab) == ["declared", "fired", "buffered", "fired"]
    await _schedule(lab)


@clause
async def a_tick_cancels_the_open_run_before_it_fires(lab: Lab) -> None:
    await _create(lab, overlap="cancel_other")
    (queued,) = await _until_due(lab)
    (running,) = await _until_due(lab)
    assert (await lab.job(queued)).state is JobState.CANCELLED
    (claimed,) = await lab.claim(lease_seconds=10 * HOUR)
    assert await _until_due(lab) == [], "the running one is asked, and waited for"
    assert (await lab.job(running)).cancel is not None
    await lab.append(claimed.job, ("job_cancelled", {"reason": "asked"}))
    assert len(await _advance(lab)) == 1
    await _schedule(lab)


@clause
async def failures_in_a_row_pause_a_schedule(lab: Lab) -> None:
    await _create(lab, pause_after_failures=2)
    for status in ("job_failed", "job_completed", "job_failed", "job_failed"):
        await _until_due(lab)
        await _finish(lab, status)
        await _advance(lab)
    row = await _schedule(lab)
    assert row.pause is not None
    assert (row.state, row.pause.reason, row.due_at) == (ScheduleState.PAUSED, "failures", None)
    resumed: Schedule = await lab.do(ResumeSchedule(NIGHTLY, "ann"))
    assert (resumed.state, resumed.failures) == (ScheduleState.ACTIVE, 0)
    await _schedule(lab)


@clause
async def a_pause_and_a_resume_account_for_the_ticks_between(lab: Lab) -> None:
    await _create(lab)
    paused: Schedule = await lab.do(PauseSchedule(NIGHTLY, "the disk is full", "ann"))
    assert paused.pause is not None
    assert (paused.pause.note, paused.pause.by) == ("the disk is full", "ann")
    assert await _advance(lab, 3 * HOUR) == []
    await lab.do(ResumeSchedule(NIGHTLY))
    assert len(await _until_due(lab)) == 1
    assert await _types(lab) == ["declared", "paused", "skipped", "resumed", "fired"]
    await _schedule(lab)


@clause
async def a_backfill_and_a_tick_share_one_run(lab: Lab) -> None:
    row = await _create(lab, overlap="allow")
    assert row.next is not None
    lab.clock.move(row.next + 1 - lab.clock.now())
    backfill = BackfillSchedule(NIGHTLY, row.next - 2 * HOUR, row.next)
    done = await lab.do(backfill)
    assert (len(done["fired"]), done["existing"]) == (3, 0)
    assert await _advance(lab) == [done["fired"][-1]["job"]], "the tick takes the run that is there"
    assert (await lab.do(backfill))["existing"] == 3
    assert len(await lab.store.jobs()) == 3
    await lab.do(DeleteSchedule(NIGHTLY))
    await lab.refused(backfill, UnknownSchedule)


@clause
async def a_schedule_fires_by_hand_unless_a_run_is_open(lab: Lab) -> None:
    row = await _create(lab)
    run: str = (await lab.do(FireSchedule(NIGHTLY, "ann"))).job
    assert (await lab.job(run)).schedule == NIGHTLY
    await lab.refused(FireSchedule(NIGHTLY, "ann"), InvalidArguments)
    lab.clock.move(1.0)
    assert (await lab.do(FireSchedule(NIGHTLY, "ann", allow_overlap=True))).job != run
    assert (await _schedule(lab)).next == row.next
    assert await _types(lab) == ["declared", "fired", "fired"]


@clause
async def a_name_has_one_schedule(lab: Lab) -> None:
    await _create(lab)
    again = CreateSchedule(plugin="shop", name="nightly", definition=define(every="2h"), template=JOB)
    await lab.refused(again, ScheduleExists)
    for command in (
        PauseSchedule("shop.other"), ResumeSchedule("shop.other"), FireSchedule("shop.other"),
        DeleteSchedule("shop.other"), ChangeSchedule("shop.other", define(every=5), JOB),
    ):  # fmt: skip
        await lab.refused(command, UnknownSchedule)
    assert await _types(lab) == ["declared"]


@clause
async def a_deleted_schedule_leaves_its_runs_and_nothing_to_do(lab: Lab) -> None:
    await _create(lab)
    (run,) = await _until_due(lab)
    await lab.do(DeleteSchedule(NIGHTLY))
    assert await lab.store.schedule(NIGHTLY) is None
    assert await lab.store.events(stream_of(NIGHTLY)) == []
    assert await _finish(lab) == run
    await _advance(lab)
    assert await lab.store.next_due() is None
    assert (await _create(lab)).version == 1


@clause
async def a_change_moves_the_next_tick_and_keeps_what_did_not_change(lab: Lab) -> None:
    row = await _create(lab)
    other = msgspec.structs.replace(JOB, queue="mail")
    changed: Schedule = await lab.do(ChangeSchedule(NIGHTLY, row.definition, other, "ann"))
    assert (changed.next, changed.job.queue) == (row.next, "mail")
    later: Schedule = await lab.do(ChangeSchedule(NIGHTLY, define(every="24h"), other))
    assert later.next != row.next
    same: Schedule = await lab.do(ChangeSchedule(NIGHTLY, define(every="24h"), other))
    assert same.version == later.version, "nothing has changed, so nothing is written"
    await _schedule(lab)


def _declarations(*names: str, definition: Definition | None = None) -> tuple[Declaration, ...]:
    times = definition or define(every="1h")
    return tuple(Declaration(name=name, definition=times, template=JOB) for name in names)


@clause
async def the_newest_build_declares_and_an_older_one_changes_nothing(lab: Lab) -> None:
    done: Declared = await lab.do(DeclareSchedules("shop", "1.0", _declarations("a", "b")))
    assert done.created == ["a", "b"]
    other = define(every="2h")
    done = await lab.do(DeclareSchedules("shop", "2.0", _declarations("b", "c", definition=other)))
    assert (done.created, done.changed, done.paused) == (["c"], ["b"], ["a"])
    removed = await _schedule(lab, "shop.a")
    assert removed.pause is not None
    assert removed.pause.reason == "removed"
    before = await lab.store.schedules()
    done = await lab.do(DeclareSchedules("shop", "1.0", _declarations("a", "b")))
    assert (done.newer, done.created, done.changed, done.resumed) == ("2.0", [], [], [])
    assert await lab.store.schedules() == before
    done = await lab.do(DeclareSchedules("shop", "3.0", _declarations("a", "b", "c", definition=other)))
    assert (done.changed, done.resumed, done.paused) == (["a"], ["a"], [])
    for row in await lab.store.schedules():
        assert (await _schedule(lab, row.id)).state is ScheduleState.ACTIVE


@clause
async def a_declaration_leaves_alone_what_an_operator_has_changed(lab: Lab) -> None:
    await lab.do(DeclareSchedules("shop", None, _declarations("a")))
    await lab.do(ChangeSchedule("shop.a", define(every="5h"), JOB, "ann"))
    await lab.do(PauseSchedule("shop.a", "not today", "ann"))
    assert await lab.do(DeclareSchedules("shop", None, _declarations("a"))) == Declared()
    row = await _schedule(lab, "shop.a")
    assert (row.definition.every_seconds, row.state) == (5 * HOUR, ScheduleState.PAUSED)
    done: Declared = await lab.do(DeclareSchedules("shop", None, _declarations("a", definition=define(every="2h"))))
    assert done.changed == ["a"]
    assert (await _schedule(lab, "shop.a")).state is ScheduleState.PAUSED


@clause
async def a_declaration_does_not_take_over_a_schedule_that_was_made_at_run_time(lab: Lab) -> None:
    await _create(lab)
    await lab.refused(DeclareSchedules("shop", "1.0", _declarations("first", "nightly")), ScheduleExists)
    assert await lab.store.schedule("shop.first") is None, "a refusal changes nothing"
    assert (await lab.do(DeclareSchedules("shop", "0.9", _declarations("second")))).created == ["second"]
    assert (await lab.do(DeclareSchedules("shop", "1.0", _declarations("second")))).newer is None
    await lab.do(DeclareSchedules("shop", None, ()))
    assert (await _schedule(lab)).state is ScheduleState.ACTIVE


@clause
async def a_declaration_whose_end_has_passed_makes_a_schedule_that_has_ended(lab: Lab) -> None:
    passed = define(every="1h", end="2001-01-01T00:00")
    create = CreateSchedule(plugin="shop", name="nightly", definition=passed, template=JOB)
    await lab.refused(create, InvalidArguments)
    declarations = (*_declarations("first"), *_declarations("nightly", definition=passed), *_declarations("last"))
    done: Declared = await lab.do(DeclareSchedules("shop", "1.0", declarations))
    assert done.created == ["first", "nightly", "last"]
    row = await _schedule(lab)
    assert (row.state, row.next, row.due_at) == (ScheduleState.ENDED, None, None)
    assert await _types(lab) == ["declared", "ended"]
    assert await lab.do(DeclareSchedules("shop", "1.0", declarations)) == Declared()


@clause
async def a_queue_at_its_depth_skips_a_tick(lab: Lab) -> None:
    await _create(lab, overlap="allow")
    await lab.do(SetLimits(Limits(queue="default", depth=1)))
    assert len(await _until_due(lab)) == 1
    assert await _until_due(lab) == []
    skipped = (await lab.store.events(stream_of(NIGHTLY)))[-1].payload
    assert (skipped["reason"], "depth" in skipped["detail"]) == ("queue_full", True)
    await _schedule(lab)


@clause
async def a_tick_and_the_ends_of_runs_in_one_batch_agree(lab: Lab) -> None:
    await _create(lab)
    await _until_due(lab)
    (claimed,) = await lab.claim(lease_seconds=10 * HOUR)
    lab.clock.move(HOUR)
    end = Append(claimed.job.id, claimed.job.attempt, (("job_completed", {"result": 1}),))
    _, advanced = await lab.store.commit([end, Advance(100)])
    assert len(advanced.runs) == 1
    assert await lab.store.next_due(lab.clock.now()) == (await _schedule(lab)).due_at


@clause
async def schedules_are_listed_in_pages(lab: Lab) -> None:
    for name in ("c", "a", "b"):
        await _create(lab, name)
    page = await lab.store.schedules(None, 2)
    assert [row.id for row in page] == ["shop.a", "shop.b"]
    assert [row.id for row in await lab.store.schedules("shop.b", 2)] == ["shop.c"]


@clause
async def the_newest_outcomes_of_many_schedules_are_one_read(lab: Lab) -> None:
    await _create(lab, overlap="buffer_one")
    other = await _create(lab, "quiet", every="1d")
    (run,) = await _until_due(lab)  # fired
    await _until_due(lab)  # buffered: the run is open
    await _until_due(lab)  # skipped: the buffer is full
    row = await _schedule(lab)
    found = await lab.store.outcomes([row, other], 10)
    assert found[other.id] == []
    shown = [(each.outcome, each.reason, each.run_id, each.status) for each in found[NIGHTLY]]
    assert shown == [("skipped", "overlap", run, None), ("buffered", "", run, None), ("fired", "", run, "queued")]
    assert await _finish(lab) == run
    (second,) = await _advance(lab)  # the tick that waited has one outcome
    await lab.do(FireSchedule(NIGHTLY, "ann", allow_overlap=True))
    await lab.do(PauseSchedule(NIGHTLY))
    row = await _schedule(lab)
    newest = (await lab.store.outcomes([row], 10))[NIGHTLY]
    assert [each.outcome for each in newest] == ["fired", "fired", "skipped", "fired"]
    assert (newest[0].tick, newest[0].by, newest[0].status) == (None, "ann", "queued")
    assert (newest[1].run_id, newest[1].tick, newest[1].status) == (
        second,
        row.created_at // HOUR * HOUR + 2 * HOUR,
        "queued",
    )
    assert (newest[3].run_id, newest[3].status) == (run, "succeeded")
    assert (await lab.store.outcomes([row], 2))[NIGHTLY] == newest[:2]
    assert await lab.store.outcomes([], 10) == {}


@clause
async def an_outcome_of_many_ticks_says_how_many_and_a_deleted_run_has_no_status(lab: Lab) -> None:
    row = await _create(lab, overlap="allow")
    (run,) = await _until_due(lab)
    await _finish(lab)
    assert len(await _advance(lab, 3 * HOUR + 120)) == 1
    newest = (await lab.store.outcomes([await _schedule(lab)], 10))[NIGHTLY]
    assert row.next is not None
    assert [(each.outcome, each.catch_up) for each in newest] == [("fired", True), ("missed", False), ("fired", False)]
    assert (newest[1].tick, newest[1].last, newest[1].ticks) == (row.next + HOUR, row.next + 2 * HOUR, 2)
    assert newest[1].reason == "last"
    await lab.do(Purge(lab.clock.now(), jobs=(run,)))
    newest = (await lab.store.outcomes([await _schedule(lab)], 10))[NIGHTLY]
    assert (newest[2].run_id, newest[2].status) == (run, None)
