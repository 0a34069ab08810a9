"""However many jobs there are, what a worker asks for is found by the index made for it.

Plans are taken with the parameters in place, as they are without prepared statements, from a table of real rows that
was analysed; and as a session keeps them that has prepared its statements while there was no job. Leases have no index
of their own: it would be written with every renewal, and running jobs are few.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.sql import Literal

from holdfast.store import Append, Claim, Submit
from holdfast.store.postgres.statements import Statements
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sql.columns import JOB_WRITTEN
from support.postgres import fresh_schema, server

JOBS = 20_000
ENTRY = frozenset({("b", "e")})


async def _seed(store: PostgresStore) -> None:
    """One job of each kind: queued, delayed, ending by time, running, finished."""
    later: dict[str, dict[str, Any]] = {"delayed": {"due_at": 1e10}, "ending": {"deadline": 1e10, "due_at": 1e10}}
    names = ("running", "finished", "queued", "delayed", "ending")
    await store.commit([Submit(job=name, plugin="b", entry="e", args={}, **later.get(name, {})) for name in names])
    await store.commit([Claim(worker="w", entries=ENTRY, queues=None, limit=2, lease_seconds=3600)])
    for name in ("running", "finished", "queued"):
        job = await store.get(name)
        if job is not None and job.lease is not None:
            await store.commit([Append(name, job.attempt, (("job_completed", {"result": 1}),))])
            break


@pytest.fixture(scope="module")
def schema() -> Iterator[str]:
    """A schema with many jobs, most of them finished or queued."""
    name = fresh_schema()
    store = PostgresStore(server().url, name)
    asyncio.run(_seed(store))
    columns = ", ".join(JOB_WRITTEN[1:])
    share = "CASE WHEN state IN ('queued', 'completed') AND deadline IS NULL THEN %s ELSE %s END"
    with psycopg.connect(server().url, autocommit=True) as connection:
        connection.execute(
            f"INSERT INTO {name}.jobs (id, {columns}) SELECT id || '-' || n, {columns} FROM {name}.jobs,"
            f" LATERAL generate_series(1, {share}) AS n".encode(),
            (JOBS // 3, 100),
        )
        connection.execute(
            f"INSERT INTO {name}.events (job, seq, type, payload, attempt, at, schema, prev, hash)"
            f" SELECT j.id, e.seq, e.type, e.payload, e.attempt, e.at, e.schema, e.prev, e.hash FROM {name}.events e"
            f" JOIN {name}.jobs j ON split_part(j.id, '-', 1) = e.job WHERE j.id <> e.job".encode()
        )
        connection.execute(f"ANALYZE {name}.jobs".encode())
        connection.execute(f"ANALYZE {name}.events".encode())
    yield name
    asyncio.run(store.close())


def _plan(sql: str, bindings: Any) -> dict[str, Any]:
    with psycopg.ClientCursor(psycopg.connect(server().url, autocommit=True)) as cursor, cursor.connection:
        found = cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}".encode(), bindings).fetchone()
    assert found is not None
    plan: dict[str, Any] = found[0][0]["Plan"]
    return plan


def _scans(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if plan["Node Type"] in {"Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Index Scan"}:
        yield plan["Node Type"], plan.get("Index Name", f"no index of {plan.get('Relation Name')}")
    for part in plan.get("Plans", []):
        yield from _scans(part)


CLAIM = {"plugins": ["b"], "entries": ["e"], "builds": ["", "1.0"], "queues": None, "limit": 100}
CLAIM_USES = {"jobs_claimable", "events_pkey", "limits_pkey", "no index of limits"}  # limits are few
RUNNING = {"jobs_running", "jobs_held"}  # both have what runs and nothing else, which is little
HEADS = {**CLAIM, "queue": "default", "groups": ["", "g"], "counts": [5, 2]}
ROWS = json.dumps([{"id": f"queued-{n}", "version": 2, "head": "x", "updated_at": 1.0} for n in range(100)])
KEYS = json.dumps([{"plugin": "b", "entry": "e", "key": "k"}])
NAMES = [f"queued-{n}" for n in range(100)]


ASKED = pytest.mark.parametrize(
    ("statement", "bindings", "indexes"),
    [
        pytest.param("claim", CLAIM, CLAIM_USES, id="claim"),
        pytest.param("claim", {**CLAIM, "queues": ["default"]}, CLAIM_USES, id="claim of one queue"),
        pytest.param("look_at", {**CLAIM, "wanted": ["default"]}, {"jobs_claimable", *RUNNING}, id="look at queues"),
        pytest.param("running", (["default"],), RUNNING, id="what runs in queues"),
        pytest.param("groups", {**CLAIM, "queue": "default", "turn": "g", "most": 9}, {"jobs_claimable"}, id="groups"),
        pytest.param("heads", HEADS, {"jobs_claimable"}, id="first of groups"),
        pytest.param("promote", (1e9,), {"jobs_delayed", "jobs_pkey"}, id="promote"),
        pytest.param("expired", (1e9, 100), RUNNING, id="expired leases"),
        pytest.param("ended", (1e9, 100), {"jobs_ending"}, id="ended waits"),
        pytest.param("held", ("w",), RUNNING, id="held by a worker"),
        pytest.param("lock_rows", (NAMES,), {"jobs_pkey"}, id="rows by name"),
        pytest.param("streams", (NAMES[:1],), {"events_pkey"}, id="stream"),
        pytest.param("keys", (KEYS,), {"jobs_key"}, id="idempotency key"),
        pytest.param("children", (["p", "q"],), {"jobs_children"}, id="children"),
    ],
)


@ASKED
def test_what_a_worker_asks_for_is_found_by_its_index(
    schema: str, statement: str, bindings: Any, indexes: set[str]
) -> None:
    plan = _plan(getattr(Statements(schema), statement), bindings)
    found = set(_scans(plan))

    assert {index for _, index in found} <= indexes, found
    assert {index for _, index in found} & indexes, found


@pytest.fixture(scope="module")
def empty() -> Iterator[str]:
    """A schema without a job."""
    name = fresh_schema()
    store = PostgresStore(server().url, name)
    yield name
    asyncio.run(store.close())


def _prepared_plan(schema: str, sql: str, bindings: Any) -> dict[str, Any]:
    """Give the plan that a session of a writer keeps for a statement."""
    order: list[Any] = []

    def number(found: re.Match[str]) -> str:
        key = found[1] if found[1] is not None else len(order)
        if key not in order:
            order.append(key)
        return f"${order.index(key) + 1}"

    numbered = re.sub(r"%(?:\((\w+)\))?[sb]", number, sql)
    with psycopg.connect(server().url, autocommit=True) as connection:
        connection.execute(Statements(schema).set_up_session.encode(), {"milliseconds": "10000"})
        connection.execute(f"PREPARE ask AS {numbered}".encode())
        values = ", ".join(Literal(bindings[key]).as_string(connection) for key in order)
        found = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE ask ({values})".encode()).fetchone()
    assert found is not None
    plan: dict[str, Any] = found[0][0]["Plan"]
    return plan


@ASKED
def test_a_plan_that_is_kept_uses_the_index_though_there_was_no_job_when_it_was_made(
    empty: str, statement: str, bindings: Any, indexes: set[str]
) -> None:
    found = set(_scans(_prepared_plan(empty, getattr(Statements(empty), statement), bindings)))

    assert {index for _, index in found} <= indexes, found
    assert {index for _, index in found} & indexes, found


def test_rows_that_are_written_are_found_by_their_key(schema: str) -> None:
    rows = {"grown": ROWS, "changed": ROWS}
    sql = Statements(schema).write_rows(tuple(rows), events=False)

    for plan in (_plan(sql, rows), _prepared_plan(schema, sql, rows)):
        assert {index for _, index in _scans(plan)} == {"jobs_pkey"}


def test_rows_that_an_optimistic_batch_checks_and_writes_are_found_by_their_key(schema: str) -> None:
    texts = dict.fromkeys(("mark", "jobs", "seqs", "types", "payloads", "attempts", "hashes", "row_versions"), "x")
    checked = {"names": NAMES, "at": 1.0, "until": 2.0, "queues": ["default"], "schema": 1, "prevs": b""}
    sql = Statements(schema).write_if_current(("grown",))

    plan = _prepared_plan(schema, sql, {**texts, **checked, "grown": ROWS})
    assert {index for _, index in _scans(plan)} == {"jobs_pkey"}


def test_what_comes_next_by_time_is_found_by_indexes(schema: str) -> None:
    plan = _plan(Statements(schema).next_due, (None,))

    by_time = {"jobs_delayed", "jobs_held", "jobs_ending", "schedules_due", "schedule_ends_pkey"}
    assert {index for _, index in _scans(plan)} == by_time


def test_jobs_that_are_kept_for_a_build_are_found_by_their_index(schema: str) -> None:
    reads = Statements(schema).reads
    for sql, values in ((reads.kept_builds, ()), (reads.kept_jobs, ("1.0", "", 5))):
        assert {index for _, index in _scans(_plan(sql, values))} <= {"jobs_kept"}


def test_outcomes_of_schedules_are_found_by_keys(schema: str) -> None:
    sql = Statements(schema)
    streams = [f"schedule:b.s{number}" for number in range(50)]
    plan = _plan(sql.reads.outcomes.format(sql.outcome_marks), (streams, [900] * 50))

    assert {index for _, index in _scans(plan)} == {"events_pkey", "jobs_pkey"}


def test_ended_jobs_are_walked_by_their_index(schema: str) -> None:
    plan = _plan(Statements(schema).reads.ended_jobs, (1e9, 5.0, "a", 5))
    assert {index for _, index in _scans(plan)} == {"jobs_finished"}


def test_open_jobs_are_listed_by_the_index_of_their_status(schema: str) -> None:
    for before in (None, "good-5"):
        assert {index for _, index in _scans(_plan(*Statements(schema).reads.open_jobs(before, 5)))} == {"jobs_open"}


def test_what_was_asked_of_a_workers_jobs_is_found_by_an_index(schema: str) -> None:
    plan = _plan(Statements(schema).reads.requests_for, ("w",))

    assert {index for _, index in _scans(plan)} == {"jobs_held", "signals_unused"}


def test_a_row_that_grows_or_whose_lease_is_renewed_leaves_no_trace_in_an_index(schema: str) -> None:
    with psycopg.connect(server().url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT indexdef FROM pg_indexes WHERE schemaname = %s AND tablename = 'jobs'", (schema,)
        )
        named = {word for (definition,) in found for word in re.findall(r"\w+", definition.partition(" USING ")[2])}

    assert not named & {"version", "head", "updated_at", "lease_until"}
