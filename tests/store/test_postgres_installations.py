"""Whatever a role, a database or a URL says: what is kept is right, or the store refuses with what to do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast import App
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.machines import RunStatus
from holdfast.store import Submit
from holdfast.store.postgres.store import PostgresStore
from support.pooler import Pooler
from support.postgres import fresh_schema, server
from support.scripts import ROOT
from support.stories import play, until


@pytest.fixture
def role() -> Iterator[str]:
    name = f"r{fresh_schema()}"
    with psycopg.connect(server().url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN SUPERUSER".encode())
        yield name
        owner.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


def setting(role: str, said: str) -> str:
    """Have a role begin its sessions with a setting; its URL."""
    with psycopg.connect(server().url, autocommit=True) as owner:
        owner.execute(f"ALTER ROLE {role} SET {said}".encode())
    return server().url.replace("postgres@", f"{role}@")


@pytest.mark.parametrize(
    "said",
    [
        "client_encoding = 'SQL_ASCII'",
        "client_encoding = 'LATIN1'",
        "extra_float_digits = -10",
        "bytea_output = 'escape'",
        "standard_conforming_strings = off",
        "default_transaction_isolation = 'serializable'",
        "search_path = 'nowhere'",
    ],
)
def test_jobs_run_and_verify_whatever_the_role_sets_for_its_sessions(said: str, role: str) -> None:
    schema = fresh_schema()
    app = App("shop", f"{setting(role, said)}?schema={schema}")

    @app.step
    async def double(text: str) -> str:
        return text * 2

    @app.job
    async def price(text: str) -> str:
        return await double(text)

    run = price.options(attributes={"currency": "€"}).start("5 €")
    with psycopg.connect(server().url, autocommit=True) as other:
        sql = f"""SELECT {schema}.start_job('shop', 'price', '{{"text": "ü€"}}'::jsonb)"""
        found = other.execute(sql.encode()).fetchone()
    assert found is not None
    app.worker().run(until_idle=True)
    assert run.result(timeout=60) == "5 €5 €"
    assert app.get(found[0]).status is RunStatus.SUCCEEDED
    assert app.verify() == {}
    app.close()


def test_a_batch_is_read_committed_whatever_the_role_begins_with(role: str) -> None:
    """A count under a lock is right only if it sees what was committed before the lock was had."""
    schema = fresh_schema()
    url = setting(role, "default_transaction_isolation = 'repeatable read'")

    async def story() -> None:
        store = PostgresStore(url, schema)
        with psycopg.connect(server().url, autocommit=True) as other:
            other.execute(
                f"CREATE TABLE {schema}.levels (said text); CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS"
                f" double precision LANGUAGE sql VOLATILE AS $$ INSERT INTO {schema}.levels VALUES"
                " (current_setting('transaction_isolation')); SELECT 7.0::double precision $$".encode()
            )
            await store.commit([Submit(job="a", plugin="shop", entry="checkout", args={})])
            assert other.execute(f"SELECT DISTINCT said FROM {schema}.levels".encode()).fetchall() == [
                ("read committed",)
            ]
        await store.close()

    asyncio.run(story())


def test_a_server_that_only_reads_is_told_as_such_and_written_to_as_soon_as_it_may_be(role: str) -> None:
    """As a standby is, until it is promoted."""

    async def story() -> None:
        store = PostgresStore(server().url.replace("postgres@", f"{role}@"), schema)
        new = Submit(job="a", plugin="shop", entry="checkout", args={})
        await store.close()
        store = PostgresStore(setting(role, "default_transaction_read_only = on"), schema)
        with pytest.raises(StoreUnavailable, match=r"is read-only.*use the URL of the primary server"):
            await store.commit([new])
        assert await store.get("a") is None
        setting(role, "default_transaction_read_only = off")
        with psycopg.connect(server().url, autocommit=True) as owner:
            sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"
            owner.execute(sql, (role,))
        (answer,) = await store.commit([new])
        assert not isinstance(answer, Exception)
        await store.close()

    schema = fresh_schema()
    asyncio.run(story())


def test_a_role_that_reads_rounded_times_through_a_pooler_is_told_so(role: str) -> None:
    setting(role, "extra_float_digits = 0")
    with Pooler() as pooler:
        with pytest.raises(StoreUnavailable, match="ALTER ROLE … SET extra_float_digits = 1"):
            PostgresStore(pooler.url.replace("postgres@", f"{role}@"), fresh_schema())
        pooler.shutdown()


def test_a_database_that_cannot_keep_all_text_is_refused() -> None:
    with psycopg.connect(server().url, autocommit=True) as owner:
        name = fresh_schema()
        owner.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'".encode())
        with pytest.raises(StoreUnavailable, match="is LATIN1, which cannot store all text: create a database in UTF8"):
            PostgresStore(server().url.replace("/postgres", f"/{name}").replace(f"//{name}", "//postgres"))
        owner.execute(f"DROP DATABASE {name}".encode())


def test_a_commit_counts_though_its_notice_is_refused(role: str) -> None:
    """The notice follows the commit. Other processes poll, so they miss nothing."""
    name = fresh_schema()
    url = server().url.replace("/postgres", f"/{name}").replace(f"//{name}", f"//{role}")
    with psycopg.connect(server().url, autocommit=True) as owner:
        owner.execute(f"ALTER ROLE {role} NOSUPERUSER".encode())
        owner.execute(f"CREATE DATABASE {name} OWNER {role}".encode())
    with psycopg.connect(url.replace(f"{role}@", "postgres@"), autocommit=True) as owner:
        owner.execute("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC")

    async def story() -> None:
        store = PostgresStore(url)
        for job in ("a", "b"):
            (answer,) = await store.commit([Submit(job=job, plugin="shop", entry="checkout", args={})])
            assert not isinstance(answer, Exception)
        assert sorted(row.id for row in await store.jobs()) == ["a", "b"]
        await store.close()

    asyncio.run(story())
    with psycopg.connect(server().url, autocommit=True) as owner:
        owner.execute(f"DROP DATABASE {name}".encode())


def test_a_schema_has_a_name_that_its_channel_can_have() -> None:
    longest = fresh_schema().ljust(54, "x")

    async def story() -> None:
        store = PostgresStore(server().url, longest)
        (answer,) = await store.commit([Submit(job="a", plugin="shop", entry="checkout", args={})])
        assert not isinstance(answer, Exception)
        await store.close()

    asyncio.run(story())
    with pytest.raises(InvalidSetting, match="at most 54"):
        App("shop", f"{server().url}?schema={longest}x").store()
    with pytest.raises(StoreUnavailable, match="is an SQL keyword: choose another"):
        App("shop", f"{server().url}?schema=select").store()


def test_a_url_with_an_option_that_there_is_not_is_told_to_be_wrong() -> None:
    with pytest.raises(StoreUnavailable, match='"schma": check the server and the URL'):
        App("shop", f"{server().url}?schma=jobs").store()


def test_connections_are_made_in_one_place_which_prepares_nothing() -> None:
    """A prepared statement stays with the server's session: behind a pooler whoever has it next stumbles."""
    source = Path(holdfast.__file__).parent
    connecting = [path.name for path in source.rglob("*.py") if "psycopg.connect(" in path.read_text()]
    assert connecting == ["connection.py"]
    assert "prepare_threshold=None" in (source / "store" / "postgres" / "connection.py").read_text()


def test_the_server_of_a_test_process_that_is_killed_ends_with_it_and_leaves_no_files() -> None:
    code = "from support.postgres import server as s\nprint(s()._process.pid, s()._folder, flush=True)\ninput()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT / "tests", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    process, folder = holder.stdout.readline().split()
    assert Path(folder, "data").exists()
    holder.kill()
    holder.communicate()

    async def is_gone() -> bool:
        return not Path(f"/proc/{process}").exists() and not Path(folder).exists()

    play(until(is_gone))
