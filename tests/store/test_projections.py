"""What is kept of runs beside the streams can be made anew from them; `verify` sees when it is not what it must be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec
import psycopg
import pytest

from holdfast import App, export, progress, wait_for
from holdfast.client.verify import violations_of
from holdfast.machines import RunStatus, run_paths
from holdfast.store import Append, Cancel, Claim, Job, Retry, Submit
from holdfast.store.memory import MemoryStore
from holdfast.store.run_queries import RunFilter
from holdfast.store.sql.event_rows import EVENT_COLUMNS, EVENT_READ
from holdfast.store.sql.migrate import project
from holdfast.store.sql.run_sql import may_be_past
from support.postgres import fresh_schema, server
from support.stories import play, quick
from support.streams import sealed


class Place(NamedTuple):
    """A database, and how somebody who goes past the store reads and writes it."""

    url: str
    prefix: str
    mark: str
    events: str
    execute: Callable[[str, Any], list[Any]]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        path = tmp_path / "jobs.db"

        def on_file(sql: str, bindings: Any) -> list[Any]:
            connection = apsw.Connection(str(path))
            found: list[Any] = connection.execute(sql, bindings).fetchall()
            connection.close()
            return found

        yield Place(f"sqlite:///{path}", "", "?", EVENT_COLUMNS, on_file)
        return
    name = fresh_schema()
    with psycopg.connect(server().url, autocommit=True) as connection:

        def on_server(sql: str, bindings: Any) -> list[Any]:
            found = connection.execute(sql.encode(), bindings)
            return found.fetchall() if found.description is not None else []

        yield Place(f"{server().url}?schema={name}", f"{name}.", "%s", EVENT_READ, on_server)


def lived(url: str) -> App:
    """An app whose jobs have ended in every way, wait, were retried, have reported and exported."""
    app = App("shop", config=quick(url))

    @app.job
    async def work(how: str) -> str:
        progress(0.5, message="half")
        for number in range(3):
            export(f"{how} {number}", "note")
        if how == "wait":
            await wait_for("never")
        if how == "badly":
            raise RuntimeError(how)
        return how

    tenant = work.options(attributes={"tenant": "acme", "size": 3}, group="acme")
    failed = tenant.start("badly")
    for how in ("well", "badly", "wait"):
        tenant.options(deadline=3600).start(how)
    app.worker().run(until_idle=True)
    app.retry(failed.id, actor="ana", reason="again")
    app.worker().run(until_idle=True)
    app.retry(failed.id, actor="ana", reason="and again")
    app.cancel(work.options(delay=90).start("well").id, "no more")
    work.options(delay=90, deadline=1800).start("well")
    return app


KEPT = {
    "jobs": "SELECT id, course, status FROM {}jobs ORDER BY id",
    "past_runs": "SELECT job, run, status, record FROM {}past_runs ORDER BY job, run",
}


def kept(place: Place) -> dict[str, list[Any]]:
    """What is kept; JSON as what it says, since a stream has it in canonical order."""
    rows = {name: place.execute(sql.format(place.prefix), ()) for name, sql in KEPT.items()}
    return {name: [[_read(part) for part in row] for row in found] for name, found in rows.items()}


def _read(part: Any) -> Any:
    return json.loads(part) if isinstance(part, str) and part.startswith("{") else part


def test_what_is_kept_of_runs_is_made_anew_from_the_streams_as_it_was(place: Place) -> None:
    app = lived(place.url)
    told, before = app.list(), kept(place)
    assert len(before["past_runs"]) == 2
    assert {status for _, _, status in before["jobs"]} >= {"succeeded", "failed", "canceled", "queued", "running"}
    place.execute(f"UPDATE {place.prefix}jobs SET course = '{{}}', status = 'queued'", ())
    place.execute(f"DELETE FROM {place.prefix}past_runs", ())
    assert app.verify() != {}

    project(place.execute, place.mark, place.prefix, place.events)

    assert kept(place) == before
    assert app.list() == told
    assert app.verify() == {}
    app.close()


TAMPERED = {
    "the status in its column": "UPDATE {0}jobs SET status = 'failed' WHERE status = 'succeeded'",
    "the course": "UPDATE {0}jobs SET course = replace(course, 'succeeded', 'failed')",
    "the reason of a cancel": "UPDATE {0}jobs SET course = replace(course, 'no more', 'some more')",
    "an earlier record": "UPDATE {0}past_runs SET record = replace(record, 'badly', 'gladly') WHERE run = 2",
    "the status of an earlier record": "UPDATE {0}past_runs SET status = 'timeout' WHERE run = 1",
    "an earlier record, taken away": "DELETE FROM {0}past_runs WHERE run = 1",
    "an earlier record, made up": "INSERT INTO {0}past_runs SELECT id, 7, 'failed', '{{}}' FROM {0}jobs"
    " WHERE status = 'succeeded'",
    "an earlier record that is none": "UPDATE {0}past_runs SET record = 'nothing' WHERE run = 1",
    "the number of exports": "UPDATE {0}jobs SET exported = 2 WHERE status = 'succeeded'",
    "an export, taken away": "DELETE FROM {0}exports WHERE number = 2 AND run = 1",
    "the last export, taken away": "DELETE FROM {0}exports WHERE number = 3 AND run = 3",
    "exports and their number": "UPDATE {0}jobs SET exported = 0 WHERE status = 'succeeded'; DELETE FROM {0}exports"
    " WHERE job IN (SELECT id FROM {0}jobs WHERE status = 'succeeded')",
    "an attribute": "UPDATE {0}attributes SET value = '4' WHERE name = 'size'",
    "an attribute, taken away": "DELETE FROM {0}attributes WHERE name = 'tenant'",
    "whose it is": "UPDATE {0}jobs SET group_name = 'bolt' WHERE group_name = 'acme'",
    "whose it is, taken away": "UPDATE {0}jobs SET group_name = '' WHERE group_name = 'acme'",
    "whose it is, made up": "UPDATE {0}jobs SET group_name = 'acme' WHERE group_name = ''",
    "when the deadline is": "UPDATE {0}jobs SET ends_at = NULL WHERE ends_at IS NOT NULL",
    "the number of the run": "UPDATE {0}jobs SET run = 2 WHERE run = 3",
}


@pytest.mark.parametrize("what", TAMPERED)
def test_verify_finds_a_projection_that_was_tampered_with(place: Place, what: str) -> None:
    app = lived(place.url)
    assert app.verify() == {}
    for statement in TAMPERED[what].format(place.prefix).split("; "):
        place.execute(statement, ())
    found = app.verify()
    assert found, "nobody has noticed"
    assert {violation.rule for wrong in found.values() for violation in wrong} <= {"J6", "P8"}
    app.close()


def test_a_run_that_was_canceled_by_a_failure_of_its_job_is_listed_when_another_follows_it() -> None:
    """An older release wrote a deadline during a cancel as a failure of the job, which an operator may retry."""
    stream = sealed(
        [
            ("job_created", {}),
            ("job_running", {}),
            ("cancel_requested", {"reason": "enough"}),
            ("job_failed", {"reason": "deadline"}),
            ("job_requeued", {"actor": "ana", "reason": "again"}),
        ]
    )
    assert [path[-1] for path in run_paths(stream)] == [RunStatus.CANCELED, RunStatus.QUEUED]
    assert may_be_past(RunFilter(status=("canceled",)))
    assert not may_be_past(RunFilter(status=("succeeded", "running")))


class Moving(MemoryStore):
    """A store whose job moves on whenever somebody reads its stream, as often as is said; and is then purged, if so."""

    def __init__(self, moves: int, *, gone: bool = False) -> None:
        super().__init__()
        self.moves = moves
        self.gone = gone

    async def get(self, job: str) -> Job | None:
        return None if self.gone and not self.moves else await super().get(job)

    async def events(self, job: str, after: int = 0, limit: int | None = None) -> list[Any]:
        if self.moves:
            self.moves -= 1
            await self.commit([Append(job, 1, (("value_recorded", {"node": f"n{self.moves}", "value": 1}),))])
        return await super().events(job, after, limit)


@pytest.mark.parametrize("gone", [False, True])
def test_a_job_that_moves_while_it_is_verified_is_not_taken_for_a_broken_one(*, gone: bool) -> None:
    async def story() -> None:
        store = Moving(0, gone=False)
        await store.commit([Submit(job="a", plugin="p", entry="e", args={})])
        await store.commit([Claim(worker="w", entries=frozenset({("p", "e")}), queues=None, limit=1, lease_seconds=60)])
        row = await store.get("a")
        assert row is not None
        store.moves, store.gone = 3, gone
        assert await violations_of(store, row) == []
        assert store.moves == 0

    play(story())


def test_a_job_without_what_it_is_found_by_is_found_out() -> None:
    async def story() -> None:
        store = MemoryStore()
        assert await store.index_entries("a") is None
        await store.commit([Submit(job="a", plugin="p", entry="e", args={}, attributes={"size": 3})])
        await store.commit([Claim(worker="w", entries=frozenset({("p", "e")}), queues=None, limit=1, lease_seconds=60)])
        await store.commit([Append("a", 1, (("job_failed", {"reason": "no"}),)), Retry("a", "ana", "again")])
        filing = await store.index_entries("a")
        assert filing is not None
        assert (filing.status, filing.past, filing.attributes) == ("queued", {1: "failed"}, {"size": "3"})
        await store.commit([Cancel("a", None)])
        row = await store.get("a")
        assert row is not None
        assert await violations_of(store, row) == []

    asyncio.run(story())


def test_verify_reads_every_page_of_jobs_and_every_long_stream() -> None:
    async def story() -> None:
        app = App("p", config=quick("memory:"))
        store = app._opened = MemoryStore()
        names = [f"{number:03}" for number in range(101)]
        await store.commit([Submit(job=name, plugin="p", entry="e", args={}) for name in names])
        await store.commit([Claim(worker="w", entries=frozenset({("p", "e")}), queues=None, limit=1, lease_seconds=60)])
        written = tuple(("value_recorded", {"node": f"n{number}", "value": 1}) for number in range(300))
        await store.commit([Append("000", 1, written)])
        assert await app.averify() == {}
        store._jobs["000"] = msgspec.structs.replace(store._jobs["000"], head="0" * 64)
        assert list(await app.averify()) == ["000"]

    play(story())
