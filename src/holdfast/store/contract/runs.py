"""Run records, their progress and exports, and run listings (SPEC section 4)."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import StaleAttempt, UnknownJob
from holdfast.machines import RunRecord, RunStatus, runs
from holdfast.store.commands import (
    Cancel,
    KeepExport,
    Pause,
    Progress,
    Purge,
    PutBlob,
    Reclaim,
    Retry,
    SendSignal,
    SignalResult,
)
from holdfast.store.contract.harness import LEASE, Lab, clause
from holdfast.store.rows import Job
from holdfast.store.run_queries import RunFilter, Window


async def _names(lab: Lab, limit: int = 100, before: tuple[str, int] | None = None, **where: Any) -> list[str]:
    return [record.run_id for record in await lab.store.records(RunFilter(**where), limit, before)]


async def _record(lab: Lab, job: str = "a", number: int = 1) -> RunRecord:
    record = await lab.store.record(job, number)
    assert record is not None
    outcome = await lab.store.outcome(job, number)
    assert outcome is not None
    assert outcome[0] == record
    return record


def _export(held: Job, key: str, **more: Any) -> KeepExport:
    fields = {"name": key, "kind": "text", "media_type": "text/plain", "size": len(key), "value": key, **more}
    return KeepExport(job=held.id, attempt=held.attempt, key=key, **fields)


@clause
async def a_record_is_what_the_stream_makes_of_it_at_every_point(lab: Lab) -> None:
    await lab.submit(trace_id="t", idempotency_key="k", attributes={"tenant": "acme", "size": 3})
    assert (await _record(lab)).attributes == {"tenant": "acme", "size": 3}
    assert (await _record(lab)) == runs(await lab.store.events("a"))[0]
    (claimed,) = await lab.claim()
    assert (await _record(lab)).status is RunStatus.RUNNING
    await lab.append(claimed.job, ("job_waiting", {"correlation_key": "k", "wait_type": "signal", "park": True}))
    assert (await _record(lab)).stage == "parked"
    await lab.do(Cancel("a", "enough"))
    record = await _record(lab)
    assert (record.status, record.cancel_reason, record.trace_id) == (RunStatus.CANCELED, "enough", "t")
    assert record == runs(await lab.store.events("a"))[0]
    assert await lab.store.record("a", 2) is None
    assert await lab.store.outcome("a", 2) is None
    assert await lab.store.outcome("b", 1) is None
    assert await lab.store.record("b", 1) is None


@clause
async def runs_that_ask_and_children_and_runs_without_a_parent_are_found(lab: Lab) -> None:
    held = await lab.running()
    await lab.submit("b", parent="a", parent_key="holdfast:child:b")
    await lab.submit("c")
    doubt = {"correlation_key": "holdfast:doubt:pay:1", "wait_type": "human", "park": True}
    await lab.append(held, ("job_waiting", doubt))
    assert (await _record(lab)).stage == "in_doubt"
    assert await _names(lab, asks=True) == ["a"]
    assert await _names(lab, parent="a") == ["b"]
    assert await _names(lab, top=True) == ["c", "a"]
    await lab.do(Cancel("a", "enough"))
    assert await _names(lab, asks=True) == []


@clause
async def a_retried_job_has_a_new_run_and_the_old_record_stays(lab: Lab) -> None:
    held = await lab.running()
    await lab.do(Progress("a", held.attempt, {"progress": 0.5, "message": "half"}))
    await lab.append(held, ("job_failed", {"reason": "broken", "code": "E"}))
    before = await _record(lab)
    assert (before.status, before.progress, before.message) == (RunStatus.FAILED, 0.5, "half")
    lab.clock.move(5)
    await lab.do(Retry("a", "ana", "again"))
    assert await _record(lab) == before, "a run that has ended never changes (R4, R5)"
    new = await _record(lab, "a", 2)
    assert (new.run_id, new.status, new.progress, new.started_at) == ("a.2", RunStatus.QUEUED, None, None)
    assert new.created_at == before.created_at + 5
    (claimed,) = await lab.claim()
    await lab.append(claimed.job, ("job_completed", {"result": 1}))
    assert await _record(lab) == before
    assert (await _record(lab, "a", 2)).status is RunStatus.SUCCEEDED
    assert await _names(lab) == ["a.2", "a"]
    assert await _names(lab, status=("failed",)) == ["a"]
    assert await _names(lab, status=("succeeded",)) == ["a.2"]
    assert await _names(lab, before=("a", 2)) == ["a"]
    assert await _names(lab, limit=1) == ["a.2"]
    assert await _names(lab, task_id="a") == ["a.2", "a"]
    assert await _names(lab, task_id="b") == []
    await lab.job()


@clause
async def runs_are_found_by_what_they_are(lab: Lab) -> None:
    start = lab.clock.now()
    for place, name in enumerate("abcd"):
        lab.clock.move(1)
        attributes = {"tenant": "acme" if name in "ac" else "other", "size": place}
        await lab.submit(name, entry="refund" if name == "d" else "checkout", queue=name, attributes=attributes)
    await lab.submit("e", idempotency_key="order-7")
    await lab.do(Cancel("b", None))
    assert await _names(lab) == ["e", "d", "c", "b", "a"]
    assert await _names(lab, attributes={"tenant": "acme"}) == ["c", "a"]
    assert await _names(lab, attributes={"tenant": "acme", "size": 2}) == ["c"]
    assert await _names(lab, attributes={"size": "2"}) == [], "a number is no text"
    assert await _names(lab, attributes={"tenant": "x' OR 1=1 --"}) == []
    assert await _names(lab, entry_id="refund") == ["d"]
    assert await _names(lab, plugin_id="bank") == []
    assert await _names(lab, queue="c") == ["c"]
    assert await _names(lab, idempotency_key="order-7") == ["e"]
    assert await _names(lab, status=("canceled",)) == ["b"]
    assert await _names(lab, status=("canceled", "queued"), before=("c", 1)) == ["b", "a"]
    assert await _names(lab, created_after=start + 2, created_before=start + 4) == ["c", "b"]


@clause
async def runs_of_a_group_are_found_and_no_others(lab: Lab) -> None:
    for name, group in (("a", "acme"), ("b", "bolt"), ("c", "acme"), ("d", None), ("e", "acm"), ("f", "Acme")):
        await lab.append(await lab.running(name, group=group), ("job_failed", {"reason": "broken"}))
    for name in "abcdef":
        await lab.do(Retry(name, "ana", "again"))
    await lab.do(Cancel("c", None))
    assert await _names(lab, group="acme") == ["c.2", "c", "a.2", "a"]
    assert await _names(lab, group="bolt") == ["b.2", "b"]
    assert await _names(lab, group="acme", limit=1) == ["c.2"]
    assert await _names(lab, group="acme", before=("c", 1)) == ["a.2", "a"]
    assert await _names(lab, group="acme", status=("queued",)) == ["a.2"]
    assert await _names(lab, group="acme", status=("queued", "canceled")) == ["c.2", "a.2"]
    assert await _names(lab, group="acme", status=("failed",)) == ["c", "a"]
    assert await _names(lab, group="acme", task_id="a") == ["a.2", "a"]
    for other in ("b", "d", "nothing"):
        assert await _names(lab, group="acme", task_id=other) == []
    for none in ("", "none", "%", "acme' OR '1'='1"):
        assert await _names(lab, group=none) == []


@clause
async def a_listing_by_cursor_shows_each_run_once(lab: Lab) -> None:
    for number in range(7):
        held = await lab.running(f"j{number}")
        await lab.append(held, ("job_failed", {"reason": "broken"}))
        if number % 2:
            await lab.do(Retry(f"j{number}", "ana", "again"))
            await lab.do(Cancel(f"j{number}", None))
    listed: list[str] = []
    place: tuple[str, int] | None = None
    while page := await lab.store.records(RunFilter(), 2, place):
        listed += [record.run_id for record in page]
        last = page[-1]
        place = (last.task_id or "", int(last.run_id.partition(".")[2] or 1))
    expected = [f"j{number}{end}" for number in reversed(range(7)) for end in ([".2", ""] if number % 2 else [""])]
    assert listed == expected


@clause
async def runs_are_found_by_their_end_and_listed_in_both_orders(lab: Lab) -> None:
    for name in ("a", "b"):
        held = await lab.running(name)
        await lab.append(held, ("job_failed", {"reason": "broken"}))
        lab.clock.move(10)
    await lab.do(Retry("a", "ana", "again"))
    await lab.do(Cancel("a", "enough"))
    await lab.submit("c")
    ends = {name: (await _record(lab, *job)).finished_at for name, job in {"a": ("a", 1), "b": ("b", 1)}.items()}
    assert ends["a"] is not None
    assert ends["b"] is not None
    everything = ["c", "b", "a.2", "a"]
    assert await _names(lab) == everything
    assert await _names(lab, oldest_first=True) == everything[::-1]
    assert await _names(lab, 1, ("a", 1), oldest_first=True) == ["a.2"]
    assert await _names(lab, before=("a", 2), oldest_first=True) == ["b", "c"]
    assert await _names(lab, newest=True) == ["c", "b", "a.2"]
    assert await _names(lab, finished_after=ends["b"]) == ["b", "a.2"]
    assert await _names(lab, finished_before=ends["b"]) == ["a"]
    assert await _names(lab, finished_after=ends["a"], finished_before=ends["b"], newest=True) == []
    assert await _names(lab, finished_after=ends["a"], status=("failed",)) == ["b", "a"]
    assert await _names(lab, finished_after=ends["a"], status=("queued",)) == [], "it has not ended"


@clause
async def the_latest_progress_of_the_current_attempt_counts(lab: Lab) -> None:
    await lab.submit()
    await lab.refused(Progress("a", 1, {"progress": 0.1}), StaleAttempt)
    (claimed,) = await lab.claim()
    held = claimed.job
    version = (await lab.job()).version
    await lab.do(Progress("a", held.attempt, {"progress": 0.2, "stage": "reading", "metrics": {"rows": 7}}))
    lab.clock.move(1)
    await lab.do(Progress("a", held.attempt, {"progress": 0.4, "stage": "writing"}))
    record = await _record(lab)
    assert (record.progress, record.stage, record.metrics) == (0.4, "writing", {})
    assert record.updated_at == lab.clock.now()
    assert (await lab.job()).version == version, "progress costs no event (R9)"
    lab.clock.move(LEASE)
    await lab.refused(Progress("a", held.attempt, {"progress": 0.9}), StaleAttempt)
    await lab.do(Reclaim())
    assert (await _record(lab)).stage == "requeued", "where the job is says more than where its code was"
    (again,) = await lab.claim()
    await lab.append(again.job, ("job_completed", {"result": None}))
    ended = await _record(lab)
    assert (ended.progress, ended.stage) == (1.0, "writing")
    await lab.refused(Progress("a", again.job.attempt, {"progress": 0.5}), StaleAttempt)
    assert await _record(lab) == ended
    (answer,) = await lab.store.commit([Progress("missing", 1, {})])
    assert isinstance(answer, UnknownJob)


@clause
async def exports_are_listed_in_order_and_a_repeat_is_none(lab: Lab) -> None:
    held = await lab.running()
    assert [await lab.do(_export(held, key)) for key in ("x", "y", "x", "z")] == [1, 2, 1, 3]
    listed = await lab.store.exports("a", 1, 0, 2)
    assert [(export.number, export.name, export.value) for export in listed] == [(1, "x", "x"), (2, "y", "y")]
    assert [export.number for export in await lab.store.exports("a", 1, 2, 10)] == [3]
    assert await lab.store.exports("a", 2, 0, 10) == []
    assert (await lab.job()).exported == 3
    lab.clock.move(LEASE)
    await lab.refused(_export(held, "w"), StaleAttempt)
    await lab.refused(PutBlob("a", held.attempt, "b", 1, b"x"), StaleAttempt)
    assert len(await lab.store.exports("a", 1, 0, 10)) == 3


@clause
async def a_new_run_begins_with_what_the_old_one_exported(lab: Lab) -> None:
    held = await lab.running()
    await lab.do(_export(held, "x"))
    await lab.append(held, ("job_failed", {"reason": "broken"}))
    await lab.do(Retry("a", "ana", "again"))
    (claimed,) = await lab.claim()
    assert [await lab.do(_export(claimed.job, key)) for key in ("x", "y")] == [1, 2]
    assert [export.key for export in await lab.store.exports("a", 1, 0, 10)] == ["x"]
    assert [export.key for export in await lab.store.exports("a", 2, 0, 10)] == ["x", "y"]


@clause
async def a_blob_is_read_in_the_pieces_it_was_put(lab: Lab) -> None:
    held = await lab.running()
    pieces = [bytes(range(256)) * 40, b"\0" * 10, b""]
    for number, piece in enumerate(pieces, 1):
        await lab.do(PutBlob("a", held.attempt, "b1", number, piece))
    await lab.do(PutBlob("a", held.attempt, "b1", 1, b"another"))
    await lab.do(_export(held, "x", kind="binary", value=None, blob="b1"))
    assert [await lab.store.blob("a", "b1", number) for number in (1, 2, 3, 4)] == [*pieces, None]
    (export,) = await lab.store.exports("a", 1, 0, 10)
    assert (export.blob, export.value) == ("b1", None)


@clause
async def what_a_purged_run_left_is_gone_with_it(lab: Lab) -> None:
    held = await lab.running(attributes={"tenant": "acme"})
    await lab.do(Progress("a", held.attempt, {"progress": 0.2}))
    await lab.do(_export(held, "x"))
    await lab.do(PutBlob("a", held.attempt, "b1", 1, b"piece"))
    await lab.append(held, ("job_failed", {"reason": "broken"}))
    await lab.do(Retry("a", "ana", "again"))
    await lab.do(Cancel("a", None))
    await lab.do(Purge(lab.clock.now()))
    assert await _names(lab) == []
    await lab.submit("a")
    assert await _names(lab, attributes={"tenant": "acme"}) == []
    assert await _names(lab) == ["a"]
    record = await _record(lab)
    assert record == runs(await lab.store.events("a"))[0]
    assert await lab.store.exports("a", 1, 0, 10) == []
    assert await lab.store.blob("a", "b1", 1) is None


@clause
async def runs_and_queues_are_counted(lab: Lab) -> None:
    empty = await lab.store.counts()
    assert (empty.runs, empty.queues, empty.oldest_due) == ({}, {}, None)
    start = lab.clock.now()
    await lab.waiting("a")
    await lab.running("b")
    await lab.submit("c", queue="mail")
    await lab.submit("d", queue="mail", due_at=start + 100)
    await lab.submit("e")
    await lab.do(Cancel("e", None))
    lab.clock.move(5)
    counts = await lab.store.counts()
    assert counts.runs == {"running": 2, "queued": 2, "canceled": 1}
    assert counts.queues == {"default": {"waiting": 1, "running": 1}, "mail": {"queued": 1, "delayed": 1}}
    assert counts.oldest_due == start


@clause
async def a_record_is_kept_whole_whatever_it_says(lab: Lab) -> None:
    held = await lab.running(attributes={"ключ": "значение 🙂", "flag": True, "pi": 3.25})
    report = {"progress": 0.25, "message": '½ "fertig"\n', "step": 1, "step_total": 4, "eta_seconds": 1.5}
    await lab.do(Progress("a", held.attempt, {**report, "metrics": {"x": [1, None, {"y": "ü"}]}}))
    record = await _record(lab)
    assert msgspec.structs.asdict(record).items() >= {**report, "metrics": {"x": [1, None, {"y": "ü"}]}}.items()
    assert await _names(lab, attributes={"ключ": "значение 🙂", "flag": True, "pi": 3.25}) == ["a"]


@clause
async def the_starts_ends_and_waits_of_a_window_are_counted(lab: Lab) -> None:
    began = lab.clock.now()
    await lab.submit("a1")
    await lab.submit("a2", queue="mail", due_at=began + 90)
    await lab.submit("a3")
    lab.clock.move(70)
    claimed = await lab.claim(2)
    await lab.append(claimed[0].job, ("job_completed", {"result": 1}))
    await lab.append(claimed[1].job, ("job_requeued", {"reason": "retry", "not_before": lab.clock.now() + 5}))
    lab.clock.move(60)
    await lab.submit("a4")
    await lab.do(Cancel("a4", "enough"))
    await lab.submit("a5")
    now = lab.clock.now()
    window = Window(start=began, end=now + 1, seconds=60.0, oldest="a", limit=100)
    counts = await lab.store.window_counts(window)
    assert (counts.seen, counts.since) == (5, began)
    waits = {(0, 1, True, 2, began), (1, None, False, 1, began + 90), (2, 2, False, 1, now), (2, None, False, 1, now)}
    assert {tuple(wait) for wait in counts.waits} == waits
    assert counts.ends == {(1, "succeeded"): 1, (2, "canceled"): 1}
    later = Window(start=began + 60, end=now + 1, seconds=60.0, oldest="a3", limit=100)
    counts = await lab.store.window_counts(later)
    assert counts.seen == 4, "a2 is still queued"
    assert (-1, 0, True, 1, began) in counts.waits
    mail = Window(start=began, end=now + 1, seconds=60.0, oldest="a", limit=100, queue="mail")
    assert (await lab.store.window_counts(mail)).waits == [(1, None, False, 1, began + 90)]
    few = Window(start=began, end=now + 1, seconds=60.0, oldest="a", limit=2)
    counts = await lab.store.window_counts(few)
    assert (counts.seen, counts.since) == (2, now)
    await lab.do(Pause("a5"))
    assert sum(wait.number for wait in (await lab.store.window_counts(few)).waits) == 1, "a paused job does not wait"


@clause
async def jobs_that_wait_for_a_person_are_listed_oldest_first(lab: Lab) -> None:
    human = {"node": "w", "correlation_key": "ok", "wait_type": "human", "park": True}
    doubt = {"correlation_key": "holdfast:doubt:pay:1", "wait_type": "human", "park": True}
    signal = {"correlation_key": "go", "wait_type": "signal"}
    place = {"node": "w", "correlation_key": "ok"}
    waits: dict[str, dict[str, Any]] = {
        "a": human,
        "b": signal,
        "c": doubt,
        "d": {**signal, "also": [{**place, "wait_type": "human"}]},
        "e": {**signal, "also": [place]},
        "f": {**signal, "also": [{"correlation_key": "holdfast:budget"}]},
    }
    for name, wait in waits.items():
        held = await lab.running(name, group="g" if name in {"a", "e"} else None)
        await lab.append(held, ("job_waiting", wait))
    await lab.submit("q")
    await lab.do(Pause("q"))

    async def names(**where: Any) -> list[str]:
        return [job.id for job in await lab.store.questions(**where)]

    assert await names() == ["a", "c", "d", "f"]
    assert await names(limit=2) == ["a", "c"]
    assert await names(after="c") == ["d", "f"]
    assert await names(group="g") == ["a"]
    row = await lab.job("d")
    assert row.wait is not None
    assert [row.wait.asks_person(key) for key in ("go", "ok", "no", "holdfast:pause")] == [False, True, False, False]


@clause
async def an_answer_that_was_not_checked_changes_nothing(lab: Lab) -> None:
    held = await lab.running()
    await lab.append(held, ("job_waiting", {"node": "w", "correlation_key": "ok", "wait_type": "human"}))
    before = await lab.store.events("a")
    assert await lab.do(SendSignal("a", "ok", 1, "s1")) == SignalResult("asks")
    assert (await lab.store.events("a"), await lab.store.inbox("a")) == (before, [])
    assert await lab.do(SendSignal("a", "ok", 1, "s1", checked=True, actor="ana")) == SignalResult("delivered")
    ended = (await lab.store.events("a"))[-1]
    assert (ended.type, ended.payload["actor"], ended.payload["payload"]) == ("wait_completed", "ana", 1)
    assert await lab.do(SendSignal("a", "ok", 1, "s1", checked=True)) == SignalResult("repeat")
    await lab.job()
