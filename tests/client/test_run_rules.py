"""SPEC section 4, rule by rule, as a user meets it, on every store. The tables themselves are in tests/machines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import App, check_cancelled, export, progress, wait_for
from holdfast.errors import IdempotencyConflict, InvalidArguments, InvalidRunTransition, InvalidTransition, UnknownJob
from holdfast.machines import RUN, TERMINAL_RUN_STATUSES, RunError, RunRecord, RunStatus, run_paths, runs
from holdfast.store import Append, Claim, Progress, SendSignal
from support.stories import TooLate, drain, in_time, play, quick, until

FIELDS = {
    "run_id", "plugin_id", "entry_id", "status", "created_at", "updated_at", "task_id", "trace_id", "idempotency_key",
    "started_at", "finished_at", "progress", "stage", "message", "step", "step_total", "eta_seconds", "metrics",
    "cancel_requested", "cancel_reason", "cancel_requested_at", "error", "result_refs", "attributes",
    "continues", "continued_as", "build",
}  # fmt: skip


@asynccontextmanager
async def working(app: App) -> AsyncIterator[None]:
    """A worker, at work."""
    worker = app.worker()
    task = asyncio.create_task(worker.arun())
    try:
        yield
    finally:
        worker.stop()
        await task


async def has(app: App, run: str, **wanted: Any) -> RunRecord:
    """Wait until a record says so."""
    found: list[RunRecord] = []

    async def is_so() -> bool:
        found[:] = [await app.aget(run)]
        is_so = all(getattr(found[0], name) == value for name, value in wanted.items())
        assert is_so or found[0].finished_at is None, f"it has ended, and will never be so: {found[0]}"
        return is_so

    await until(is_so)
    return found[0]


async def has_in_time(app: App, run: str, **wanted: Any) -> None:
    """Wait until a record says so, while it has not ended."""
    try:
        await has(app, run, **wanted)
    except AssertionError as ended:
        raise TooLate(run) from ended


def shop(app: App, mended: list[bool]) -> None:
    """The jobs of these stories."""

    @app.job
    async def quickly(number: int = 0) -> int:
        return number

    @app.job
    async def waits() -> Any:
        return await wait_for("go")

    @app.job
    async def endless() -> None:
        progress(0.25, stage="turning")
        await asyncio.sleep(60)

    hard_to_end(app)

    @app.job
    async def breaks() -> str:
        progress(0.5, stage="half", message="so far")
        export("part", "part")
        if not mended:
            raise ValueError("broken")
        return "mended"


def hard_to_end(app: App) -> None:
    """Jobs that do something of their own when they are cancelled."""

    @app.job
    async def stubborn() -> None:
        for _ in range(2):  # it is told once, and once more when it is given up
            try:
                progress(stage="turning")
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                progress(message="no")
        await asyncio.sleep(60)

    @app.job
    async def finishes(how: str) -> str:
        progress(stage="turning")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if how == "raises":
                raise ValueError("broken while cleaning up") from None
        return "done all the same"

    @app.job
    def plain() -> None:
        progress(stage="turning")
        turning = threading.Event()
        while not turning.wait(0.002):
            check_cancelled()


@pytest.fixture
def made(app: App) -> App:
    shop(app, mended=[])
    return app


# R1, R2, R3


def test_r1_an_illegal_change_of_status_is_refused_and_named() -> None:
    legal = {
        ("queued", "running"), ("queued", "canceled"), ("running", "succeeded"), ("running", "failed"),
        ("running", "timeout"), ("running", "cancel_requested"), ("cancel_requested", "canceled"),
        ("cancel_requested", "succeeded"), ("cancel_requested", "failed"),
    }  # fmt: skip
    for current in RunStatus:
        for target in RunStatus:
            if (current, target) in legal:
                assert RUN.advance(current, target) is target
                continue
            with pytest.raises(InvalidRunTransition) as refused:
                RUN.advance(current, target)
            assert isinstance(refused.value, RuntimeError)
            assert (refused.value.current, refused.value.target) == (current, target)


def test_r1_what_a_run_that_has_ended_is_asked_for_changes_nothing(made: App) -> None:
    async def story() -> None:
        handle = await made.astart("quickly", 7)
        await drain(made)
        before = msgspec.json.encode(await handle.arecord()), await handle.aevents()
        with pytest.raises(InvalidTransition):
            await made.aretry(handle.id, actor="ana", reason="again")
        await handle.acancel("too late")
        await made.apause(handle.id)
        await made.aresume(handle.id)
        assert await handle.asignal("go", 1) == "too_late"
        assert (msgspec.json.encode(await handle.arecord()), await handle.aevents()) == before

    play(story())


def test_r2_a_record_has_every_field_with_times_in_epoch_seconds(made: App) -> None:
    assert {*RunRecord.__struct_fields__} == FIELDS
    now = made.block(made.store().now())
    run = made.entry("breaks").options(key="k", attributes={"tenant": "acme"}).start()
    made.worker().run(until_idle=True)
    record = run.record()
    assert (record.run_id, record.task_id, record.plugin_id, record.entry_id) == (run.id, run.id, "shop", "breaks")
    assert (record.idempotency_key, record.attributes) == ("k", {"tenant": "acme"})
    assert (record.progress, record.stage, record.message) == (0.5, "half", "so far")
    assert record.started_at is not None
    assert record.finished_at is not None
    assert now <= record.created_at <= record.started_at <= record.finished_at == record.updated_at < now + 60


def test_r3_a_run_shows_where_its_job_is_and_every_path_is_legal(made: App) -> None:
    async def story() -> None:
        waits = await made.astart("waits")
        assert ((await waits.arecord()).status, (await waits.arecord()).stage) == ("queued", "queued")
        await made.apause(waits.id)
        assert ((await waits.arecord()).status, (await waits.arecord()).stage) == ("queued", "paused")
        await made.aresume(waits.id)
        await drain(made)
        assert ((await waits.arecord()).status, (await waits.arecord()).stage) == ("running", "parked")
        await waits.asignal("go", 5)
        assert ((await waits.arecord()).status, (await waits.arecord()).stage) == ("running", "requeued")
        await drain(made)
        assert ((await waits.arecord()).status, (await waits.arecord()).stage) == ("succeeded", None)
        late = await made.entry("waits").options(delay=60, deadline=0.001).astart()
        await drain(made)
        assert run_paths(await late.aevents()) == [["queued", "running", "timeout"]]
        assert (await late.arecord()).started_at is None, "its code was never started"
        assert run_paths(await waits.aevents()) == [["queued", "running", "succeeded"]]

    play(story())


# R4, R5


def test_r4_a_retry_opens_a_new_run_and_the_old_record_is_the_same_byte_for_byte_for_ever(app: App) -> None:
    mended: list[bool] = []
    shop(app, mended)

    async def story() -> None:
        handle = await app.entry("breaks").options(deadline=60).astart()
        await drain(app)
        old = msgspec.json.encode(await app.aget(handle.id))

        async def is_the_same() -> None:
            assert msgspec.json.encode(await app.aget(handle.id)) == old
            listed = [one for one in await app.alist() if one.run_id == handle.id]
            assert [msgspec.json.encode(one) for one in listed] == [old]

        new = await app.aretry(handle.id, actor="ana", reason="again")
        assert (new.run_id, new.task_id, new.status) == (f"{handle.id}.2", handle.id, "queued")
        assert (new.progress, new.message, new.error, new.started_at, new.finished_at) == (None,) * 5
        assert (new.cancel_requested, new.created_at > (await app.aget(handle.id)).created_at) == (False, True)
        await is_the_same()
        for steer in (app.apause, app.aresume):
            await steer(new.run_id)
            await is_the_same()
        await app.asignal(new.run_id, "go", 1)
        await drain(app)
        await is_the_same()
        mended.append(True)
        third = await app.aretry(new.run_id, actor="ana", reason="once more")
        await is_the_same()
        await drain(app)
        await is_the_same()
        assert [(one.run_id, one.status) for one in await app.alist()] == [
            (third.run_id, "succeeded"),
            (new.run_id, "failed"),
            (handle.id, "failed"),
        ]
        assert await app.averify() == {}

    play(story())


def test_r4_what_was_asked_of_the_old_run_is_not_asked_of_the_new_one(made: App) -> None:
    async def story() -> None:
        handle = await made.astart("finishes", "raises")
        async with working(made):
            await has(made, handle.id, stage="turning")
            await handle.acancel("enough")
            old = await has(made, handle.id, status="failed")
        new = await made.aretry(handle.id, actor="ana", reason="again")
        assert (old.cancel_requested, old.cancel_reason) == (True, "enough")
        assert (new.cancel_requested, new.cancel_reason, new.cancel_requested_at) == (False, None, None)
        async with working(made):
            await has(made, new.run_id, stage="turning", status="running")
        assert await made.averify() == {}

    play(story())


def test_r5_finished_iff_terminal_and_success_is_whole_progress(made: App) -> None:
    async def story() -> None:
        ended = [await made.astart("quickly"), await made.astart("breaks"), await made.astart("waits")]
        await ended[2].acancel()
        ended.append(await made.entry("waits").options(deadline=0.001, delay=60).astart())
        open_ones = [await made.astart("waits"), await made.entry("quickly").options(delay=60).astart()]
        await drain(made)
        records = [await one.arecord() for one in ended]
        assert [record.status for record in records] == ["succeeded", "failed", "canceled", "timeout"]
        assert all(record.finished_at == record.updated_at for record in records)
        assert [record.progress for record in records] == [1.0, 0.5, None, None]
        for one in open_ones:
            assert ((await one.arecord()).finished_at, (await one.arecord()).progress) == (None, None)

    play(story())


# R6


def test_r6_a_run_that_nobody_runs_is_canceled_at_once(made: App) -> None:
    async def story() -> None:
        queued = await made.astart("waits")
        delayed = await made.entry("waits").options(delay=60).astart()
        paused = await made.entry("waits").options(delay=60).astart()
        await made.apause(paused.id)
        for run, path in ((queued, []), (delayed, []), (paused, [])):
            record = await run.acancel("enough")
            assert (record.status, record.cancel_reason) == ("canceled", "enough")
            assert record.error == RunError("CANCELED", "canceled: enough")
            assert run_paths(await run.aevents()) == [["queued", *path, "canceled"]]
        waiting = await made.astart("waits")
        await drain(made)
        assert (await waiting.acancel("enough")).status == "canceled"
        assert run_paths(await waiting.aevents()) == [["queued", "running", "cancel_requested", "canceled"]]
        for run in (queued, delayed, paused, waiting):
            again = await run.acancel("another reason")
            assert (again.cancel_reason, (await run.aevents())[-1].payload["reason"]) == ("enough", "enough")
        assert await made.averify() == {}

    play(story())


@pytest.mark.parametrize("entry", ["endless", "plain", "stubborn"])
def test_r6_running_code_sees_its_cancel_and_ends_canceled_with_the_first_reason(made: App, entry: str) -> None:
    async def story() -> None:
        handle = await made.astart(entry)
        async with working(made):
            await has(made, handle.id, stage="turning")
            asked = await made.acancel(handle.id, "first", actor="ana")
            assert asked.status in {"cancel_requested", "canceled"}
            again = await made.acancel(handle.id, "second", actor="bob")
            assert (again.cancel_reason, again.cancel_requested_at) == ("first", asked.cancel_requested_at)
            record = await has(made, handle.id, status="canceled")
        last = (await handle.aevents())[-1]
        assert (last.type, last.payload) == ("job_cancelled", {"reason": "first"})
        assert (record.cancel_reason, record.error) == ("first", RunError("CANCELED", "canceled: first"))
        assert run_paths(await handle.aevents()) == [["queued", "running", "cancel_requested", "canceled"]]

    play(story())


@pytest.mark.parametrize(("how", "status"), [("returns", "succeeded"), ("raises", "failed")])
def test_r6_code_that_finishes_first_ends_as_it_ended(made: App, how: str, status: str) -> None:
    async def story() -> None:
        handle = await made.astart("finishes", how)
        async with working(made):
            await has(made, handle.id, stage="turning")
            await handle.acancel("enough")
            record = await has(made, handle.id, status=status)
        assert (record.cancel_requested, record.cancel_reason) == (True, "enough")
        assert run_paths(await handle.aevents()) == [["queued", "running", "cancel_requested", status]]

    play(story())


def test_r6_a_deadline_that_passes_during_a_cancel_ends_canceled_and_says_so(url: str) -> None:
    app = App("shop", config=quick(url, grace_seconds=1.6))
    shop(app, [])

    async def story() -> None:
        async with working(app):
            handle = await app.entry("stubborn").options(deadline=1.2).astart()
            await has_in_time(app, handle.id, stage="turning")
            await handle.acancel("enough")
            record = await has(app, handle.id, status="canceled")
        assert record.error == RunError("CANCELED", "canceled: enough", {"deadline": True})
        assert (await handle.aevents())[-1].payload == {"reason": "enough", "deadline": True}
        assert await app.averify() == {}

    play(in_time(story))
    app.close()


def test_r6_a_cancel_that_comes_while_the_deadline_ends_the_code_ends_canceled_and_says_so(url: str) -> None:
    app = App("shop", config=quick(url, grace_seconds=1.0))
    shop(app, [])

    async def story() -> None:
        async with working(app):
            handle = await app.entry("stubborn").options(deadline=1).astart()
            await has_in_time(app, handle.id, message="no")
            if (await handle.acancel("enough")).status == "timeout":
                raise TooLate(handle.id)
            record = await has(app, handle.id, status="canceled")
        assert record.error == RunError("CANCELED", "canceled: enough", {"deadline": True})
        with pytest.raises(InvalidTransition):
            await app.aretry(handle.id, actor="ana", reason="a job that was cancelled stays so")

    play(in_time(story))
    app.close()


# R7


def test_r7_none_is_the_default_and_nought_is_no_limit(app: App) -> None:
    @app.job(deadline=60)
    async def limited() -> None: ...

    @app.job
    async def unlimited() -> None: ...

    async def deadline(handle: Any) -> float | None:
        row = await app.store().get(handle.id)
        assert row is not None
        return None if row.deadline is None else round(row.deadline - row.created_at)

    async def story() -> None:
        assert await deadline(await limited.astart()) == 60
        assert await deadline(await limited.options(deadline=None).astart()) == 60
        assert await deadline(await limited.options(deadline=0).astart()) is None
        assert await deadline(await limited.options(deadline="2m").astart()) == 120
        assert await deadline(await unlimited.astart()) is None
        assert await deadline(await unlimited.options(deadline=0).astart()) is None

    play(story())


async def must_end(app: App, job: str) -> float:
    """When a job's newest run must have ended, to the last digit: its time counts from when it was asked for."""
    row = await app.store().get(job)
    assert row is not None
    assert row.ends_by is not None
    return row.ends_by


def test_r7_a_deadline_holds_while_queued_waiting_paused_and_running(made: App) -> None:
    async def story() -> None:
        soon = 0.3
        queued = await made.entry("quickly").options(deadline=soon, delay=60).astart()
        paused = await made.entry("quickly").options(deadline=soon, delay=60).astart()
        await made.apause(paused.id)
        waiting = await made.entry("waits").options(deadline=soon).astart()
        running = await made.entry("endless").options(deadline=soon).astart()
        free = await made.entry("waits").options(deadline=0).astart()
        async with working(made):
            for run in (queued, paused, waiting, running):
                record = await has(made, run.id, status="timeout")
                assert record.error == RunError("TIMEOUT", "the run's deadline passed")
                assert record.finished_at is not None
                assert record.finished_at >= await must_end(made, run.id)
        assert (await free.arecord()).status == "running"
        assert await made.averify() == {}

    play(story())


def test_r7_each_run_of_a_job_has_a_deadline_of_its_own(made: App) -> None:
    async def story() -> None:
        async with working(made):
            handle = await made.entry("waits").options(deadline=1).astart()
            await has(made, handle.id, status="timeout")
            new = await made.aretry(handle.id, actor="ana", reason="again")
            record = await has(made, new.run_id, status="timeout")
        if record.started_at is None:  # its code was to be started again, and have its time
            raise TooLate(record)
        assert record.finished_at is not None
        assert record.finished_at >= await must_end(made, handle.id)

    play(in_time(story))


# R8


def test_r8_a_key_is_unique_per_plugin_and_entry_and_guards_its_arguments(made: App, url: str) -> None:
    other = App("bank", config=quick(url)) if url != "memory:" else None

    async def story() -> None:
        keyed = made.entry("quickly").options(key="k")
        first = await keyed.astart(1)
        assert (await keyed.astart(1)).id == first.id
        assert (await keyed.options(key="k", priority=5).astart(1)).id == first.id
        with pytest.raises(IdempotencyConflict, match=r"'?k'?.*other arguments|k") as conflict:
            await keyed.astart(2)
        assert first.id in str(conflict.value)
        assert (await made.entry("breaks").options(key="k").astart()).id != first.id
        await drain(made)
        assert (await keyed.astart(1)).id == first.id, "also when it has ended"
        assert len(await made.alist(entry_id="quickly")) == 1
        assert await asyncio.gather(*[_id(made, "many", 1) for _ in range(20)]) == [await _id(made, "many", 1)] * 20

    play(story())
    if other is not None:
        shop(other, [])
        assert other.entry("quickly").options(key="k").start(2).id
        other.close()


async def _id(app: App, key: str, number: int) -> str:
    return str((await app.entry("quickly").options(key=key).astart(number)).id)


# R9: see also test_progress.py


def test_r9_only_the_current_attempt_of_a_started_run_is_heard(made: App) -> None:
    async def story() -> None:
        store = made.store()
        handle = await made.astart("waits")
        (early,) = await store.commit([Progress(handle.id, 1, {"progress": 0.1})])
        claim = Claim(worker="w", entries=frozenset({("shop", "waits")}), queues=None, limit=1, lease_seconds=60)
        await store.commit([claim])
        (heard,) = await store.commit([Progress(handle.id, 1, {"progress": 0.2})])
        (stale,) = await store.commit([Progress(handle.id, 0, {"progress": 0.9})])
        assert ([type(one).__name__ for one in (early, heard, stale)]) == ["StaleAttempt", "NoneType", "StaleAttempt"]
        assert (await handle.arecord()).progress == 0.2
        version = len(await handle.aevents())
        await store.commit([Append(handle.id, 1, (("job_failed", {"reason": "no"}),))])
        (late,) = await store.commit([Progress(handle.id, 1, {"progress": 0.9})])
        assert type(late).__name__ == "StaleAttempt"
        assert ((await handle.arecord()).progress, len(await handle.aevents())) == (0.2, version + 1)

    play(story())


# R10


def test_r10_exports_are_listed_by_cursor_while_the_job_produces_them_without_loss_or_repeat(app: App) -> None:
    halfway = asyncio.Event()
    other_half: list[asyncio.Future[None]] = []

    @app.job
    async def produce() -> None:
        for number in range(60):
            export(number, f"n{number}")
            if number % 7 == 6:
                await asyncio.sleep(0)
            if number == 30:
                other_half.append(asyncio.get_running_loop().create_future())
                halfway.set()
                await other_half[0]

    async def story() -> None:
        handle = await produce.astart()
        seen: list[Any] = []
        during: list[RunRecord] = []
        async with working(app):
            await halfway.wait()
            while len(seen) < 31:
                seen += await app.aexports(handle.id, after=seen[-1].number if seen else 0, limit=4)
                await asyncio.sleep(0)  # memory answers at once: the job needs its turn
            assert all(one.provisional for one in seen)
            during.append(await handle.arecord())
            other_half[0].set_result(None)
            while (await handle.arecord()).finished_at is None or len(seen) < 60:
                seen += await app.aexports(handle.id, after=seen[-1].number, limit=4)
                await asyncio.sleep(0)
        assert [(one.number, one.value) for one in seen] == [(n + 1, n) for n in range(60)]
        assert (during[0].status, during[0].result_refs) == ("running", [])
        assert (await handle.arecord()).result_refs == [f"{handle.id}/exports/{n}" for n in range(1, 61)]
        last = (await handle.aevents())[-1]
        assert (last.type, len(last.payload["result_refs"])) == ("job_completed", 60)
        assert not any(one.provisional for one in await app.aexports(handle.id))

    play(story())


@pytest.mark.parametrize("blobs", ["database", "directory"])
def test_r10_eviction_removes_the_oldest_that_have_ended_with_all_they_left_and_active_runs_never(
    url: str, blobs: str, tmp_path: Path
) -> None:
    places = {"effects": str(tmp_path / "effects"), "blobs": str(tmp_path / "blobs") if blobs == "directory" else ""}
    app = App("shop", config=quick(url, keep_runs=2, **places))

    @app.step
    async def double(number: int) -> int:
        return 2 * number

    @app.job
    async def work(number: int) -> int:
        export(b"x" * 70_000, f"large {number}")
        export(number, "small")
        if number == 9:
            await wait_for("never")
        return await double(number)

    active = work.start(9)
    names = [work.start(number).id for number in range(4)]
    app.worker(concurrency=1).run(until_idle=True)
    assert [one.run_id for one in app.list()] == [*names[:1:-1], active.id], "the oldest run is active, and stays"
    left = {active.id, *names[2:]}
    for gone in names[:2]:
        for look in (app.get, app.events, app.exports):
            with pytest.raises(UnknownJob):
                look(gone)
        assert not app.block(app.store().events(gone))
        assert not app.block(app.store().exports(gone, 1, 0, 10))
        assert app.block(app.store().index_entries(gone)) is None
    for place in (Path(folder) for folder in places.values() if folder):
        assert {path.name for path in place.iterdir()} <= left
    assert app.block(app.aevict()) == 0
    assert b"".join(app.content(active.id, 1)) == b"x" * 70_000
    assert app.verify() == {}
    app.close()


# R11


@pytest.mark.parametrize("wrong", [("one",), (1, 2), ({"n": 1},), (None,)])
def test_r11_arguments_that_do_not_fit_the_hints_are_refused_before_anything_is_stored(made: App, wrong: Any) -> None:
    with pytest.raises(InvalidArguments):
        made.start("quickly", *wrong)
    with pytest.raises(InvalidArguments):
        made.start_many("quickly", [{"number": 1}, {"number": "one"}])
    with pytest.raises(InvalidArguments):
        made.start("quickly", numbr=1)
    assert made.list() == []
    assert made.block(made.store().jobs()) == []


def test_r11_an_app_is_a_plugin_and_its_functions_are_entries(made: App) -> None:
    listed = {(one.plugin_id, one.entry_id) for one in made.block(made.aentries())}
    assert {("shop", "quickly"), ("shop", "waits")} <= listed
    assert made.start("quickly").record().plugin_id == "shop"


def test_a_record_is_what_its_stream_makes_at_every_point_of_a_life(made: App) -> None:
    """The store's record, the row's and the stream's are one, whatever comes (R3, J6)."""

    async def story() -> None:
        handle = await made.astart("waits")

        async def agrees() -> None:
            row, record = await made.store().get(handle.id), await handle.arecord()
            assert row is not None
            assert record == row.record() == runs(await handle.aevents())[-1]
            assert (record.finished_at is not None) == (record.status in TERMINAL_RUN_STATUSES)

        await agrees()
        await made.apause(handle.id)
        await agrees()
        await made.aresume(handle.id)
        await agrees()
        await drain(made)
        await agrees()
        await made.store().commit([SendSignal(handle.id, "go", 1, "s")])
        await agrees()
        await drain(made)
        await agrees()

    play(story())
