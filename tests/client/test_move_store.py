"""A store moves up, whatever happens meanwhile: nothing is lost, nothing is run twice, the old file is closed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import App, Limits, wait_for
from holdfast.client.maintenance.move_store import move, take_back
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.schedules.definition import define
from holdfast.schedules.schedule import JobTemplate, stream_of
from holdfast.store import (
    Append,
    Cancel,
    Claim,
    Evidence,
    Job,
    KeepEvidence,
    PutWorker,
    Renew,
    SendSignal,
    Store,
    Submit,
    WorkerCard,
)
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.request_keys import KeepAnswer, Once, Repeat
from holdfast.store.schedule_commands import (
    Advance,
    Declaration,
    DeclareSchedules,
    FireSchedule,
    PauseSchedule,
    ResumeSchedule,
)
from holdfast.store.sql.event_rows import count_events
from holdfast.store.sqlite.store import SqliteStore
from support.postgres import fresh_schema, server
from support.shell import Shell

ENTRIES = frozenset({("shop", "checkout")})


def submit(job: str, **options: Any) -> Submit:
    usual: dict[str, Any] = {"plugin": "shop", "entry": "checkout", "args": {"text": "é\0"}}
    return Submit(job=job, **{**usual, **options})


def claim(worker: str = "w") -> Claim:
    return Claim(worker=worker, entries=ENTRIES, queues=None, limit=1, lease_seconds=600)


async def filled(store: SqliteStore, more: int = 0) -> None:
    """Jobs in every state, with everything that can be kept of one."""
    wait = ("job_waiting", {"correlation_key": "k", "wait_type": "signal", "deadline": 4e9})
    for job, end in (("done", "job_completed"), ("failed", "job_failed"), ("waiting", ""), ("running", "-")):
        await store.commit([submit(job, idempotency_key=job), claim()])
        if end != "-":
            await store.commit([Append(job, 1, ((end, {"reason": "so"}) if end else wait,))])
    await store.commit([submit("asked"), claim(), Cancel("asked", "no more")])
    await store.commit([submit("twice"), claim(), SendSignal("twice", "k", {"n": 1}, "s1")])
    await store.commit([Append("twice", 1, (wait,)), *(SendSignal("twice", "z", n, f"s{n}") for n in (9, 3, 5))])
    await store.commit([claim(), KeepEvidence(Evidence("twice", "n", 1, 1, [1.5, None], "late"))])
    await store.commit([submit("child", parent="running", parent_key="c", due_at=4e9), submit("queued", priority=3)])
    await store.commit([PutWorker(WorkerCard("w", "host", 1, 1, None, ("shop.checkout",), 15.0))])
    await store.commit([submit(f"more{number:04}", priority=-1) for number in range(more)])


async def everything(store: Store) -> dict[str, Any]:
    rows = await store.jobs(limit=10_000)
    return {
        row.id: (row, await store.events(row.id), await store.inbox(row.id), await store.evidence(row.id))
        for row in rows
    }


async def scheduled(store: Store) -> list[Any]:
    return [(row, await store.events(stream_of(row.id))) for row in await store.schedules()]


def made_file(tmp_path: Path, more: int) -> Path:
    async def made() -> None:
        store = SqliteStore(tmp_path / "jobs.db")
        await filled(store, more)
        await store.close()

    asyncio.run(made())
    return tmp_path / "jobs.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return made_file(tmp_path, more=12)


def content(path: Path) -> Any:
    """Everything in a file, whoever may open it."""
    connection = apsw.Connection(str(path))
    tables = ("jobs", "events", "signals", "evidence", "workers")
    try:
        return {table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables}
    finally:
        connection.close()


async def arrived(schema: str) -> dict[str, Any]:
    store = PostgresStore(server().url, schema)
    try:
        return await everything(store)
    finally:
        await store.close()


def test_schedules_move_with_their_history_and_the_order_of_builds(tmp_path: Path) -> None:
    schema = fresh_schema()

    async def story() -> None:
        old = SqliteStore(tmp_path / "jobs.db")
        template = JobTemplate(plugin="shop", entry="checkout")
        definition = define(cron="@yearly", tz="Asia/Tokyo", pause_after_failures=9)
        yearly = Declaration(name="yearly", definition=definition, template=template)
        for build in ("2.0", "1.0"):
            await old.commit([DeclareSchedules("shop", build, (yearly,))])
        await old.commit([PauseSchedule("shop.yearly", "moving"), FireSchedule("shop.yearly"), claim()])
        (run,) = await old.jobs()
        await old.commit([Append(run.id, 1, (("job_failed", {"reason": "so"}),))])
        before = await scheduled(old)
        move(f"sqlite:///{tmp_path / 'jobs.db'}", f"{server().url}?schema={schema}")
        (answer,) = await said(old, ResumeSchedule("shop.yearly"))
        assert isinstance(answer, StoreUnavailable)
        await old.close()
        new = PostgresStore(server().url, schema)
        assert await scheduled(new) == before
        assert [row.id for row, _ in before] == ["shop.yearly"]
        older, advanced = await new.commit([DeclareSchedules("shop", "2.0", ()), Advance()])
        assert older.newer == "1.0", "it was declared later"
        assert advanced.schedules == ["shop.yearly"], "its run has ended"
        await new.close()

    asyncio.run(story())


def test_everything_is_moved_and_running_jobs_wait_under_a_stale_attempt(tmp_path: Path) -> None:
    path = made_file(tmp_path, more=1200)  # more than two batches
    schema = fresh_schema()
    target = f"{server().url}?schema={schema}"

    async def story() -> None:
        old = SqliteStore(path)
        before = await everything(old)
        summary = move(f"sqlite:///{path}", target)
        assert (summary.jobs, summary.requeued, summary.broken) == (len(before), 3, [])
        assert summary.target.startswith("postgresql://127.0.0.1:"), "nobody's name or password is shown"
        after = await arrived(schema)
        assert set(after) == set(before)
        untouched = set(before) - {"running", "asked", "twice"}
        assert {name: after[name] for name in untouched} == {name: before[name] for name in untouched}
        row, events, _, _ = after["running"]
        assert (row.state, row.lease, row.attempt) == ("queued", None, 1)
        assert (events[-1].type, events[-1].payload["reason"]) == ("job_requeued", "moved")
        assert after["asked"][0].state == "cancelled"
        assert [one.id for one in after["twice"][2]] == ["s9", "s3", "s5"], "in the order they came"
        assert after["twice"][3] == before["twice"][3]
        assert after == await everything(old), "both sides are equal"
        kept = content(path)
        for command in (
            Append("running", 1, (("job_completed", {}),)),
            Renew("w", (("running", 1),), 15),
            claim("late"),
        ):
            (answer,) = await said(old, command)
            assert isinstance(answer, (Exception, type(None))) or answer.lost == {"running"}, answer
        for late in (submit("new"), SendSignal("waiting", "k", 1, "s"), Cancel("queued", None)):
            (answer,) = await said(old, late)
            assert isinstance(answer, StoreUnavailable)
            assert f"this store has moved to {summary.target}" in str(answer)
        assert content(path) == kept
        await old.close()
        with pytest.raises(StoreUnavailable, match="this store has moved to postgresql://127"):
            SqliteStore(path)
        new = PostgresStore(server().url, schema)
        answers = await new.commit([
            Append("running", 1, (("job_completed", {}),)), SendSignal("twice", "k", 1, "s1"),
            submit("x", idempotency_key="done"),
        ])  # fmt: skip
        assert type(answers[0]).__name__ == "StaleAttempt"
        assert answers[1].outcome == "repeat", "a used signal is still known"
        assert answers[2].job == "done"
        taken = [await new.commit([claim()]) for _ in range(3)]
        attempts: dict[str, int] = {one.job.id: one.job.attempt for ((one,),) in taken}
        assert attempts == {"queued": 1, "running": 2, "twice": 3}
        await new.close()

    asyncio.run(story())
    app = App("shop", target)
    assert app.verify() == {}
    app.close()
    assert move(f"sqlite:///{path}", target).jobs > 1200, "once more changes nothing"


async def said(store: Store, command: Any) -> list[Any]:
    try:
        return await store.commit([command])
    except StoreUnavailable as error:
        return [error]


KILLED = """
import os, signal, sys
from holdfast.client.maintenance import move_store
from holdfast.store.postgres import importer
from holdfast.store.sqlite import export
def deadly(owner, name, number, after=False):
    count, real = [0], getattr(owner, name)
    def wrapped(self, *args):
        count[0] += 1
        found = real(self, *args) if after or count[0] != number else None
        if count[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    setattr(owner, name, wrapped)
source, target, where = sys.argv[1:]
export.BATCH = 8  # so that few jobs are three batches
out, into = export.MovingSource, importer.MovingTarget
deadly(*{
    "closing": (out, "_open_again", 1), "closed": (out, "shut", 1, True), "first": (into, "take", 1, True),
    "third": (into, "take", 3, True), "before the commit": (into, "end", 1), "after the commit": (into, "end", 1, True),
    "before the note": (out, "leave", 1), "at the end": (out, "leave", 1, True),
}[where])
move_store.move(source, target)
"""


@pytest.mark.parametrize(
    "where", ["closed", "first", "third", "before the commit", "after the commit", "before the note", "at the end"]
)
def test_a_mover_that_is_killed_anywhere_is_run_again_and_loses_nothing(path: Path, where: str) -> None:
    schema = fresh_schema()
    source, target = f"sqlite:///{path}", f"{server().url}?schema={schema}"
    jobs = len(content(path)["jobs"])
    ran = subprocess.run([sys.executable, "-c", KILLED, source, target, where], check=False, timeout=60)
    assert ran.returncode == -signal.SIGKILL
    with pytest.raises(StoreUnavailable, match=r"this store (is being|has) moved to"):
        SqliteStore(path)
    closed = content(path)
    half = where in {"closed", "first", "third", "before the commit"}
    assert len(asyncio.run(arrived(schema))) == (0 if half else jobs), "all or nothing is seen"
    with pytest.raises(StoreUnavailable):
        move(source, f"{server().url}?schema={fresh_schema()}")  # nowhere else
    summary = move(source, target)
    assert (summary.jobs, summary.requeued) == (jobs, 3)
    after = asyncio.run(arrived(schema))
    assert {row.head for row, *_ in after.values()} == {row[13] for row in closed["jobs"]}
    moved = sum(map(count_events, closed["events"]))
    assert sum(len(events) for _, events, *_ in after.values()) == moved == summary.events
    assert content(path) == closed
    app = App("shop", target)
    assert app.verify() == {}
    app.close()


@pytest.mark.parametrize("where", ["closed", "third", "after the commit"])
def test_a_move_is_taken_back_unless_it_has_arrived(path: Path, where: str) -> None:
    source, target = f"sqlite:///{path}", f"{server().url}?schema={fresh_schema()}"
    assert not take_back(source, target)
    subprocess.run([sys.executable, "-c", KILLED, source, target, where], check=False, timeout=60)
    if where == "after the commit":
        with pytest.raises(StoreUnavailable, match="all data is already in the target"):
            take_back(source, target)
        return
    assert take_back(source, target)

    async def goes_on() -> list[Any]:
        store = SqliteStore(path)
        answers = await store.commit([claim(), claim(), Append("running", 1, (("job_completed", {}),))])
        await store.close()
        return answers

    answers = asyncio.run(goes_on())
    assert [one.job.id for (one,) in answers[:2]] == ["queued", "running"]
    assert type(answers[2]).__name__ == "StaleAttempt"


def test_a_move_that_cannot_succeed_leaves_the_source_open_and_the_target_as_it_was(path: Path) -> None:
    schema = fresh_schema()
    source, target = f"sqlite:///{path}", f"{server().url}?schema={schema}"

    async def occupied() -> None:
        store = PostgresStore(server().url, schema)
        await store.commit([submit("other", args={}, idempotency_key="waiting")])
        await store.close()

    asyncio.run(occupied())
    with pytest.raises(StoreUnavailable, match=r"the target already has such a row.*waiting"):
        move(source, target)
    assert set(asyncio.run(arrived(schema))) == {"other"}
    asyncio.run(SqliteStore(path).close())
    for wrong in ((source, source), ("memory:", target), (target, target)):
        with pytest.raises(InvalidSetting):
            move(*wrong)
    with pytest.raises(StoreUnavailable, match="there is no such file"):
        move("sqlite:///nowhere.db", target)
    with pytest.raises(StoreUnavailable, match="check the server"):
        move(source, "postgresql://nobody@127.0.0.1:1/x")
    asyncio.run(SqliteStore(path).close())


def test_a_tampered_job_is_moved_as_it_is_and_told(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE events SET at = at + 1 WHERE job = 'done' AND seq = 1")
    connection.close()
    schema = fresh_schema()
    assert move(f"sqlite:///{path}", f"{server().url}?schema={schema}").broken == ["done"]
    app = App("shop", f"{server().url}?schema={schema}")
    assert set(app.verify()) == {"done"}
    app.close()


def test_a_worker_that_still_runs_on_the_source_writes_nothing_and_its_tool_is_not_repeated(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    ledger = tmp_path / "ledger"
    target = tmp_path / "shop.py"
    target.write_text(
        "import asyncio, pathlib\nfrom holdfast import App, attempt\napp = App('shop')\n"
        "@app.step\nasync def price() -> int:\n    return 7\n"
        "@app.tool\nasync def charge(cents: int) -> str:\n"
        f"    with open({str(ledger)!r}, 'a') as file:\n        file.write(f'{{attempt()}}\\n')\n"
        "    print('acting', flush=True)\n"
        "    while not pathlib.Path('moved').exists():\n        await asyncio.sleep(0.01)\n"
        "    print('acted', flush=True)\n"
        "    return 'receipt'\n"
        "@app.job\nasync def pay() -> str:\n    return await charge(await price())\n"
        "@app.job\nasync def note(text: str) -> str:\n    return text\n"
    )
    shell.environment["HOLDFAST_LEASE_SECONDS"] = (
        "300"  # it gives its job up by itself when it could not renew for long
    )
    run = shell.run("start", str(target), "pay")
    source = shell.environment["HOLDFAST_URL"]
    place = f"{server().url}?schema={fresh_schema()}"
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", str(target)],
        env=shell.environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "acting\n"
        shown = shell.run("migrate-store", source, place)
        assert "moved 1 jobs" in shown
        assert "1 jobs were running" in shown
        (tmp_path / "moved").touch()
        kept = content(tmp_path / "jobs.db")
        assert worker.stdout.readline() == "acted\n", "the tool ends after its store has gone"
        assert "this store has moved to" in shell.run("start", str(target), "pay", code=5)
        shell.environment["HOLDFAST_URL"] = place
        shell.run("worker", str(target), "--until-idle")
        asks = shell.run("explain", run)
        assert asks.startswith("The call charge:"), asks
        assert ledger.read_text() == "1\n", "the tool was called once"
        shell.run("resolve", run, asks.split()[2], "--done", "receipt")
        shell.run("worker", str(target), "--until-idle")
        assert shell.json("show", run)["status"] == "succeeded"
        assert shell.run("verify") == "every history is valid"
        assert content(tmp_path / "jobs.db") == kept, "the old worker has written nothing"
        assert worker.poll() is None
    finally:
        worker.kill()
        worker.wait()
        if worker.stdout is not None:
            worker.stdout.close()
    assert ledger.read_text() == "1\n"


def test_waiting_parents_and_children_go_on_in_the_target(tmp_path: Path) -> None:
    source, place = f"sqlite:///{tmp_path / 'jobs.db'}", f"{server().url}?schema={fresh_schema()}"

    def made(url: str) -> App:
        app = App("shop", url)

        @app.step
        async def once() -> int:
            return os.getpid()

        @app.job
        async def child() -> Any:
            return [await once(), await wait_for("go")]

        @app.job
        async def parent() -> Any:
            return [await once(), await child()]

        return app

    old = made(source)
    run = old.start("parent")
    old.worker().run(until_idle=True)
    old.close()
    move(source, place)
    new = made(place)
    (waiting,) = [record.run_id for record in new.list() if record.entry_id == "child"]
    assert new.signal(waiting, "go", "now") == "delivered"
    new.worker().run(until_idle=True)
    events = [event for event in new.block(new.store().events(run.id)) if event.type == "job_completed"]
    assert events[0].payload["result"] == [os.getpid(), [os.getpid(), "now"]]
    assert new.verify() == {}
    new.close()


def test_limits_and_groups_move_along(tmp_path: Path) -> None:
    source, place = f"sqlite:///{tmp_path / 'jobs.db'}", f"{server().url}?schema={fresh_schema()}"
    old = App("shop", source)
    old.job(name="nothing")(lambda: None).options(group="g").start()
    before = [old.set_limits(Limits(queue="default", concurrency=3, rate=5), actor="ana")]
    old.pause_queue("mail", actor="bo")
    log = [(row.at, row.actor, row.verb, row.subject, row.detail) for row in old.audit()]
    assert old.block(old.store().commit([Once(KeepAnswer({"page": 1}), "ana\nk", "one")])) == [{"page": 1}]
    assert [row[1:3] for row in log] == [("bo", "pause_queue"), ("ana", "set_limits")]
    old.close()
    move(source, place)
    new = App("shop", place)
    assert [one.limits for one in new.limits()][:1] == [one.limits for one in before]
    assert [(row.at, row.actor, row.verb, row.subject, row.detail) for row in new.audit()] == log
    repeat = new.block(new.store().commit([Once(KeepAnswer({"page": 2}), "ana\nk", "one")]))
    assert repeat == [Repeat({"page": 1})], "a request that was executed before the move is not executed again"
    assert [job.group for job in new.block(new.store().jobs())] == ["g"]
    new.job(name="nothing")(lambda: None)
    new.worker().run(until_idle=True)
    assert [record.status for record in new.list()] == ["succeeded"]
    new.close()


def test_what_is_spent_of_shared_budgets_moves_along_and_cannot_be_spent_in_the_old_file(tmp_path: Path) -> None:
    """The same window in both counts together, of two the newer one does, and nothing is spent behind the move."""
    source, place = f"sqlite:///{tmp_path / 'jobs.db'}", f"{server().url}?schema={fresh_schema()}"
    old, new = App("shop", source), App("shop", place)
    for budget, here, there in (("model", 60.0, None), ("both", 60.0, 60.0), ("behind", 60.0, 120.0)):
        assert old.ledger().take(budget, here, 7, 10)
        assert there is None or new.ledger().take(budget, there, 2, 10)
    move(source, place)
    assert [new.ledger().peek(budget, 60.0) for budget in ("model", "both")] == [7, 9]
    assert new.ledger().peek("behind", 120.0) == 2
    assert not new.ledger().take("model", 60.0, 4, 10)
    with pytest.raises(StoreUnavailable, match="moved"):
        old.ledger().take("model", 60.0, 1, 10)
    old.close()
    new.close()


def test_migrate_store_on_the_command_line(path: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    source, place = f"sqlite:///{path}", f"{server().url}?schema={fresh_schema()}"
    assert shell.run("migrate-store", source, place, "--abort") == "there was no move to undo"
    told = shell.json("migrate-store", source, place)
    assert (told["jobs"], told["requeued"], told["broken"]) == (len(content(path)["jobs"]), 3, [])
    assert "this store has moved to" in shell.run("runs", "--url", source, code=5)
    assert "this store has moved to" in shell.run("migrate-store", source, place, "--abort", code=5)
    assert "the source must be sqlite:///" in shell.run("migrate-store", place, place, code=2)
    with psycopg.connect(server().url) as connection:
        schema = place.rpartition("=")[2]
        row = connection.execute(f"SELECT source, jobs FROM {schema}.moves".encode()).fetchone()
    assert row == (str(path), told["jobs"])


def test_a_job_that_was_asked_to_cancel_ends_with_the_move_and_tells_its_parent(tmp_path: Path) -> None:
    path, schema = tmp_path / "jobs.db", fresh_schema()
    wait = ("job_waiting", {"correlation_key": "c", "wait_type": "child"})

    async def made() -> None:
        store = SqliteStore(path)
        await store.commit(
            [submit("p"), claim(), Append("p", 1, (wait,)), submit("c", parent="p", parent_key="c"), claim()]
        )
        await store.commit([Cancel("c", "enough")])
        await store.close()

    asyncio.run(made())
    move(f"sqlite:///{path}", f"{server().url}?schema={schema}")
    after = asyncio.run(arrived(schema))
    states: dict[str, Job] = {name: row for name, (row, *_) in after.items()}
    assert (states["c"].state, states["p"].state) == ("cancelled", "queued")
