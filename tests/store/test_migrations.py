"""Migrations: one by one or all at once they make the same; what older releases do still works; who may do what."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import App, Limits, wait_for
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.ids import new_id
from holdfast.machines import RunRecord
from holdfast.store import Append, Claim, PutWorker, SendSignal, Submit, WorkerCard
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres import schema as postgres_schema
from holdfast.store.shared_budgets import SpendBudget
from holdfast.store.sql import migrate
from holdfast.store.sql.event_rows import EVENT_COLUMNS
from holdfast.store.sqlite import SqliteStore
from support.postgres import fresh_schema, server
from support.scripts import ROOT
from support.shell import Shell

STEPS = {dialect: migrate.migrations(dialect) for dialect in ("postgres", "sqlite")}

CATALOGUE = {
    "columns": "SELECT table_name, column_name, data_type, is_nullable, column_default, collation_name, is_identity"
    " FROM information_schema.columns WHERE table_schema = %s ORDER BY table_name, ordinal_position",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = %s ORDER BY 1, 2",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = %s::regnamespace ORDER BY 1, 2",
    "functions": "SELECT proname, pg_get_functiondef(oid) FROM pg_proc"
    " WHERE pronamespace = %s::regnamespace ORDER BY 1, 2",
    "options": "SELECT relname, relkind, reloptions FROM pg_class WHERE relnamespace = %s::regnamespace ORDER BY 1",
    "triggers": "SELECT tgname, pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid"
    " WHERE relnamespace = %s::regnamespace ORDER BY 1",
    "rights": "SELECT table_name, grantee, privilege_type FROM information_schema.table_privileges"
    " WHERE table_schema = %s ORDER BY 1, 2, 3",
}


def catalogue(name: str) -> dict[str, list[Any]]:
    with psycopg.connect(server().url) as connection:
        return {
            what: [
                tuple(part.replace(name, "X") if isinstance(part, str) else part for part in row)
                for row in connection.execute(sql.encode(), (name,))
            ]
            for what, sql in CATALOGUE.items()
        }


def release(monkeypatch: pytest.MonkeyPatch, number: int, *more: tuple[int, str]) -> None:
    """Be the release that knew so many migrations."""
    steps = [*STEPS["postgres"][:number], *more]
    monkeypatch.setattr(postgres_schema, "migrations", lambda _: steps)


async def live(store: SqliteStore) -> None:
    """What a worker does, from a start to an end."""
    job = new_id()
    card = WorkerCard("w", "host", 1, 1, None, ("shop.checkout",), 15.0)
    entries = frozenset({("shop", "checkout")})
    claim = Claim(worker="w", entries=entries, queues=None, limit=1, lease_seconds=15)
    submit = Submit(job=job, plugin="shop", entry="checkout", args={}, idempotency_key=job)
    answers = await store.commit([PutWorker(card), submit, SendSignal(job, "k", 1, "s"), claim])
    assert [claimed.job.id for claimed in answers[3]] == [job]
    done = ("job_waiting", {"correlation_key": "k", "wait_type": "signal"})
    answers += await store.commit([Append(job, 1, (done,)), claim, Append(job, 2, (("job_completed", {"result": 1}),))])
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    row = await store.get(job)
    assert row is not None
    assert row.state == "completed"


OLD_JOBS = (
    "id, plugin, entry, queue, priority, created_at, deadline, max_attempts, idempotency_key, fingerprint, parent,"
    " parent_key, version, head, state, attempt, attempts, run, started, due_at, wait, cancel, updated_at,"
    " lease_worker, lease_until, pause, claimable, ends_at"
)


def some_history(app: App) -> list[RunRecord]:
    """Jobs that have ended in every way, one that was retried, one that waits, one that was not started."""

    @app.job
    async def work(how: str) -> str:
        if how == "wait":
            await wait_for("never")
        if how != "well":
            raise RuntimeError(how)
        return how

    ended = [work.start(how).id for how in ("well", "badly", "twice", "wait")]
    app.worker().run(until_idle=True)
    app.retry(ended[2], actor="ana", reason="again")
    app.worker().run(until_idle=True)
    app.cancel(work.options(delay=90).start("well").id, "no more")
    work.options(delay=90).start("well")
    return app.list()


def test_a_fresh_schema_equals_one_that_was_migrated_step_by_step_with_jobs_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the release before runs were kept has written is shown as if they always had been."""
    grown, fresh = fresh_schema(), fresh_schema()
    app = App("shop", f"{server().url}?schema={fresh}")
    told = some_history(app)
    with psycopg.connect(server().url, autocommit=True) as connection:
        newest, before = len(STEPS["postgres"]), 0
        for number in (*range(1, migrate.RUNS), newest):  # rows are made anew by this release alone, with what it knows
            release(monkeypatch, number)
            assert postgres_schema.migrate(connection, grown) == list(range(before + 1, number + 1))
            before = number
            if number == migrate.RUNS - 1:
                for table, columns in (("jobs", OLD_JOBS), ("events", EVENT_COLUMNS)):
                    copied = f"INSERT INTO {grown}.{table} ({columns}) SELECT {columns} FROM {fresh}.{table}"
                    connection.execute(copied.encode())
    assert catalogue(grown) == catalogue(fresh)
    assert all(catalogue(fresh)[what] for what in ("columns", "indexes", "constraints", "functions", "options"))
    moved = App("shop", f"{server().url}?schema={grown}")
    assert moved.list() == told
    assert moved.verify() == {}
    for one in (app, moved):
        one.close()


def test_a_file_of_an_older_release_shows_its_runs(tmp_path: Path) -> None:
    app = App("shop", f"sqlite:///{tmp_path / 'new.db'}")
    told = some_history(app)
    app.close()
    old = apsw.Connection(str(tmp_path / "old.db"))
    for number, sql in STEPS["sqlite"][: migrate.RUNS - 1]:
        old.execute(sql)
        old.pragma("user_version", number)
    old.execute("ATTACH ? AS new", (str(tmp_path / "new.db"),))
    for table, columns in (("jobs", OLD_JOBS), ("events", EVENT_COLUMNS)):
        old.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}")
    old.close()
    moved = App("shop", f"sqlite:///{tmp_path / 'old.db'}")
    assert moved.list() == told
    assert moved.verify() == {}
    moved.close()


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_what_a_worker_of_an_older_release_leaves_behind_is_made_anew(backend: str, tmp_path: Path) -> None:
    """It moves jobs and says nothing of their runs; it is still at work while a newer one reads, and writes."""
    name = fresh_schema()
    app = App("shop", f"sqlite:///{tmp_path / 'jobs.db'}" if backend == "sqlite" else f"{server().url}?schema={name}")
    told = some_history(app)

    def as_an_older_one_writes(connection: Any, prefix: str) -> None:
        """Each row moves from where it was created to where it is, and nothing else of it."""
        rows = connection.execute(f"SELECT id, state FROM {prefix}jobs").fetchall()
        connection.execute(f"UPDATE {prefix}jobs SET state = 'queued', course = '{{}}', status = 'queued'")
        for job, state in rows:
            connection.execute(f"UPDATE {prefix}jobs SET state = '{state}' WHERE id = '{job}'")

    if backend == "sqlite":
        connection = apsw.Connection(str(tmp_path / "jobs.db"))
        as_an_older_one_writes(connection, "")
        connection.close()
    else:
        with psycopg.connect(server().url) as other:
            as_an_older_one_writes(other, f"{name}.")
    assert app.list() == told
    assert [one.status for one in app.list(status="succeeded")] == ["succeeded"]
    assert len(app.list(status="failed")) == 3
    assert app.verify() == {}
    waiting = next(one for one in told if one.stage in {"waiting", "parked"})
    app.cancel(waiting.run_id, "done with it")
    assert app.get(waiting.run_id).status == "canceled"
    assert app.verify() == {}
    app.close()


async def lived(path: Path) -> None:
    store = SqliteStore(path)
    await live(store)
    await store.close()


def test_a_fresh_file_equals_one_that_was_migrated_step_by_step(tmp_path: Path) -> None:
    grown = apsw.Connection(str(tmp_path / "grown.db"))
    for number, sql in STEPS["sqlite"]:
        grown.execute(sql)
        grown.pragma("user_version", number)
    asyncio.run(lived(tmp_path / "grown.db"))
    asyncio.run(lived(tmp_path / "fresh.db"))
    fresh = apsw.Connection(str(tmp_path / "fresh.db"))
    sql = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
    assert grown.execute(sql).fetchall() == fresh.execute(sql).fetchall()
    grown.close()
    fresh.close()


def test_a_migration_gives_up_where_others_use_a_table_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    name = fresh_schema()
    asyncio.run(PostgresStore(server().url, name).close())
    newest = len(STEPS["postgres"])
    monkeypatch.setattr(postgres_schema, "LOCK_TIMEOUT_MS", 50)
    release(
        monkeypatch, newest,
        (newest + 1, "CREATE TABLE {schema}.one (n int)"), (newest + 2, "ALTER TABLE {schema}.jobs ADD COLUMN n int"),
    )  # fmt: skip
    with psycopg.connect(server().url) as other, psycopg.connect(server().url, autocommit=True) as mine:
        other.execute(f"SELECT * FROM {name}.jobs".encode())
        with pytest.raises(StoreUnavailable, match="others use, and was rolled back"):
            postgres_schema.migrate(mine, name)
        assert postgres_schema.schema_number(mine, name) == newest
        assert mine.execute("SELECT to_regclass(%s)", (f"{name}.one",)).fetchone() == (None,)
        other.rollback()
        assert postgres_schema.migrate(mine, name) == [newest + 1, newest + 2]
    monkeypatch.undo()
    with pytest.raises(StoreUnavailable, match="upgrade Holdfast"):
        PostgresStore(server().url, name, migrating=False)
    with pytest.raises(StoreUnavailable, match="upgrade Holdfast"):
        PostgresStore(server().url, name)


def test_a_store_that_may_not_migrate_refuses_a_schema_that_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    name = fresh_schema()
    with pytest.raises(StoreUnavailable, match="run `holdfast migrate`"):
        App("shop", f"{server().url}?schema={name}&migrate=no").store()
    release(monkeypatch, 1)
    asyncio.run(PostgresStore(server().url, name).close())
    asyncio.run(PostgresStore(server().url, name, migrating=False).close())
    monkeypatch.undo()
    with pytest.raises(StoreUnavailable, match=r"lacks the migrations \[2.*run `holdfast migrate`"):
        PostgresStore(server().url, name, migrating=False)
    with pytest.raises(InvalidSetting, match="migrate must be yes or no"):
        App("shop", f"{server().url}?migrate=perhaps").store()


@pytest.fixture
def role() -> Iterator[tuple[str, str]]:
    """A schema, and a role with the rights that the documents give it."""
    name, role = fresh_schema(), f"r{fresh_schema()}"
    asyncio.run(PostgresStore(server().url, name).close())
    block = re.search(r"```sql\n(CREATE ROLE.*?)```", (ROOT / "docs" / "how-to" / "postgres.md").read_text(), re.DOTALL)
    assert block is not None
    grants = block[1].replace("holdfast_runtime", role).replace("holdfast", name)
    with psycopg.connect(server().url, autocommit=True) as owner:
        owner.execute(grants.encode())
        yield name, role
        owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.mark.parametrize("migrate", ["yes", "no"])
def test_a_role_with_the_documented_rights_runs_jobs_and_cannot_rewrite_history(
    role: tuple[str, str], migrate: str
) -> None:
    name, user = role
    url = server().url.replace("postgres@", f"{user}@")
    app = App("shop", f"{url}?schema={name}&migrate={migrate}")

    @app.tool
    async def charge(cents: int) -> str:
        return f"receipt for {cents}"

    @app.job
    async def child(text: str) -> str:
        return text

    @app.job
    async def checkout(cents: int) -> list[Any]:
        return [await charge(cents), await child("c"), await wait_for("shipped")]

    run = checkout.options(key="k").start(7)
    app.worker().run(until_idle=True)
    run.signal("shipped", "dhl")
    app.worker().run(until_idle=True)
    assert run.result(60) == ["receipt for 7", "c", "dhl"]
    with psycopg.connect(url, autocommit=True) as connection:
        started = connection.execute(f"SELECT {name}.start_job('shop', 'checkout', '{{\"cents\": 1}}')".encode())
        second = started.fetchone()
        assert second is not None
        app.cancel(second[0])
        app.store().commit_blocking([SpendBudget("tokens", 0.0, 5, 10)])
        app.set_limits(Limits(queue="mail", concurrency=1))
        kept = "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relnamespace = %s::regnamespace"
        may = f"{kept} AND has_table_privilege(oid, 'INSERT') AND has_table_privilege(oid, 'SELECT')"
        all_of_it, mine = [{row[0] for row in connection.execute(sql.encode(), (name,))} for sql in (kept, may)]
        assert all_of_it - mine == {"migrations", "moves"}, "the documents give rights to every table that jobs need"
        for attack in (
            "UPDATE {}.events SET at = 0", "DELETE FROM {}.events", "TRUNCATE {}.events", "DROP TABLE {}.events",
            "ALTER TABLE {}.events DISABLE TRIGGER ALL", "DELETE FROM {}.jobs", "DELETE FROM {}.evidence",
            "UPDATE {}.evidence SET at = 0", "CREATE TABLE {}.mine (n int)", "INSERT INTO {}.migrations VALUES (99)",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(attack.format(name).encode())
    assert app.verify() == {}
    app.close()


def test_migrate_on_the_command_line(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for url in (f"sqlite:///{tmp_path / 'new.db'}", f"{server().url}?schema={fresh_schema()}"):
        newest = len(STEPS["sqlite" if url.startswith("sqlite") else "postgres"])
        numbers = ", ".join(str(number) for number in range(1, newest + 1))
        assert shell.run("migrate", "--check", "--url", url, code=1) == f"schema 0 of {newest}: missing {numbers}"
        assert shell.run("migrate", "--url", url) == f"schema 0 of {newest}: applied {numbers}"
        assert shell.run("migrate", "--check", "--url", url) == f"schema {newest}: up to date"
        assert shell.json("migrate", "--url", url) == {"schema": newest, "newest": newest, "missing": []}
    assert "only a database can be migrated" in shell.run("migrate", "--url", "memory:", code=2)
    assert "lower-case letters" in shell.run("migrate", "--url", f"{server().url}?schema=A-B", code=2)
    assert "check the server" in shell.run("migrate", "--url", "postgresql://nobody@127.0.0.1:1/x", code=5)
    connection = apsw.Connection(str(tmp_path / "new.db"))
    connection.pragma("user_version", 99)
    connection.close()
    assert "upgrade Holdfast" in shell.run("migrate", "--url", f"sqlite:///{tmp_path / 'new.db'}", "--check", code=5)
