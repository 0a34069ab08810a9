"""Jobs started by the database's own function: the same bytes, the same hash, the same rows as by the Python client."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import example
from hypothesis import strategies as st

from holdfast import App
from holdfast.authoring.job_api import to_millionths
from holdfast.authoring.signature import fingerprint
from holdfast.errors import IdempotencyConflict
from holdfast.ids import new_id
from holdfast.machines import check
from holdfast.machines.event import freeze_plain
from holdfast.store import rebuilt
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sql.columns import JOB_COLUMNS, job_of
from holdfast.store.sql.event_rows import EVENT_READ, events_of
from support.postgres import fresh_schema, server
from support.timeless import given, settings

Connection = psycopg.Connection[Any]

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def schema() -> str:
    name = fresh_schema()
    asyncio.run(PostgresStore(server().url, name).close())
    return name


@pytest.fixture(scope="module")
def sql(schema: str) -> Iterator[Connection]:
    with psycopg.connect(server().url, autocommit=True, options=f"-c search_path={schema}") as connection:
        yield connection


def one(connection: Connection, statement: str, *values: Any) -> Any:
    row = connection.execute(statement.encode(), values).fetchone()
    assert row is not None
    return row[0]


@settings(deadline=None, max_examples=300)
@given(st.floats(min_value=-1e16, max_value=1e16, exclude_min=True, exclude_max=True))
@example(1e-5)
@example(9.999999e-6)
@example(9999999999999998.0)
@example(5e-324)
@example(-0.0)
def test_floats_are_written_in_sql_as_in_python(sql: Connection, value: float) -> None:
    sql.execute("SET extra_float_digits = -3")  # whatever a caller has set for himself
    assert one(sql, "SELECT canonical_double(%s)", value).encode() == msgspec.json.encode(value)
    sql.execute("RESET extra_float_digits")


@pytest.mark.parametrize("value", ["1e16", "-1e23", "NaN", "Infinity"])
def test_floats_that_sql_would_write_otherwise_are_refused(sql: Connection, value: str) -> None:
    with pytest.raises(psycopg.errors.NumericValueOutOfRange, match="would not be kept exactly"):
        one(sql, "SELECT canonical_double(%s)", value)


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_arguments_are_written_in_sql_as_in_python_or_refused(sql: Connection, arguments: dict[str, Any]) -> None:
    try:
        found = one(sql, "SELECT canonical(%s::jsonb)", freeze_plain(arguments).text.decode())
    except psycopg.errors.NumericValueOutOfRange as refusal:
        assert refusal.diag.message_hint == "pass it as text, or start the job with the Python client"
        assert any(isinstance(one, float) and not 1e-300 < abs(one) < 1e308 for one in leaves(arguments))
    else:
        assert found.encode() == freeze_plain(as_jsonb(arguments)).canonical


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value


def as_jsonb(value: Any) -> Any:
    """What jsonb makes of a value: it has no -0.0, and what has no digits behind the point is whole (1e22)."""
    if isinstance(value, dict):
        return {key: as_jsonb(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_jsonb(item) for item in value]
    if isinstance(value, float) and (value == 0 or abs(value) >= 1e16):
        return int(Decimal(repr(value))) if value else 0.0
    return value


@pytest.mark.parametrize(
    "number", ["0.1000000000000000055", "12345678901234567.5", "1e400", "1e-400", "0.30000000000000004441"]
)
def test_a_number_that_a_float_would_change_is_refused_with_what_to_do(sql: Connection, number: str) -> None:
    with pytest.raises(psycopg.errors.NumericValueOutOfRange) as refusal:
        one(sql, "SELECT start_job('shop', 'checkout', %s::jsonb)", f'{{"n": {number}}}')
    assert refusal.value.diag.message_hint == "pass it as text, or start the job with the Python client"


@settings(deadline=None, max_examples=100)
@given(
    arguments=st.dictionaries(TEXT, VALUES, max_size=3),
    names=st.tuples(*[TEXT.filter(lambda text: 0 < len(text) < 200)] * 4),
    delay=st.none() | st.floats(0, 1e6),
    deadline=st.none() | st.floats(0, 1e6),
)
def test_a_job_started_in_sql_is_legal_unbroken_and_as_python_would_have_made_it(
    sql: Connection, arguments: dict[str, Any], names: tuple[str, ...],
    delay: float | None, deadline: float | None,
) -> None:  # fmt: skip
    plugin, entry, queue, key = *names[:3], names[3] + new_id()
    try:
        job = one(
            sql,
            "SELECT start_job(%s, %s, %s::jsonb, queue => %s, priority => -3, key => %s, delay => make_interval(secs =>"
            " %s), deadline => make_interval(secs => %s))",
            plugin, entry, freeze_plain(arguments).text.decode(), queue, key, delay, deadline,
        )  # fmt: skip
    except psycopg.errors.NumericValueOutOfRange:
        return  # shown above
    (row,) = map(job_of, sql.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = %s".encode(), (job,)))
    (stored,) = sql.execute(f"SELECT {EVENT_READ} FROM events WHERE job = %s".encode(), (job,))
    (event,) = events_of(stored)
    assert check([event], head=row.head) == []
    assert rebuilt(row, [event]) == row
    assert (row.plugin, row.entry, row.queue, row.priority, row.idempotency_key) == (plugin, entry, queue, -3, key)
    assert row.fingerprint == fingerprint(as_jsonb(arguments))
    assert event.payload["args"] == as_jsonb(arguments)
    assert abs(row.due_at - event.at - (delay or 0)) < 0.01
    assert row.deadline is None if not deadline else row.deadline is None or row.deadline - event.at < deadline + 0.01


def test_a_worker_runs_what_was_started_in_sql_and_verify_is_clean() -> None:
    schema = fresh_schema()
    app = App("shop", f"{server().url}?schema={schema}")

    @app.job
    async def checkout(sku: str, cents: float = 0.5) -> str:
        return f"{sku}:{cents}"

    app.verify()  # opened, and so made
    with psycopg.connect(server().url, autocommit=True) as sql:
        call = f"SELECT {schema}.start_job('shop', 'checkout', '{{\"sku\": \"Ä1\", \"cents\": 19.90}}', key => 'k')"
        job = one(sql, call)
        assert one(sql, call) == job
        with pytest.raises(psycopg.errors.UniqueViolation, match=f"the key 'k' belongs to job {job}"):
            one(sql, f"SELECT {schema}.start_job('shop', 'checkout', '{{\"sku\": \"B\"}}', key => 'k')")
        later = one(sql, f"SELECT {schema}.start_job('shop', 'checkout', '{{}}', delay => interval '1 day', id => 'x')")
    assert later == "x"
    assert checkout.options(key="k").start("Ä1", 19.9).id == job, "a key is the same from both sides"
    with pytest.raises(IdempotencyConflict):
        checkout.options(key="k").start("B")
    app.worker().run(until_idle=True)
    assert app.get(job).status == "succeeded"
    assert app.get("x").status == "queued"
    assert app.verify() == {}
    app.close()


def test_ids_made_in_sql_are_in_order_with_those_made_in_python(sql: Connection) -> None:
    names = []
    for _ in range(20):
        names += [new_id(), one(sql, "SELECT new_id()")]
        time.sleep(0.001)
    assert names == sorted(names)
    assert {len(name) for name in names} == {36}
    assert all(uuid.UUID(name).version == 7 and uuid.UUID(name).variant == uuid.RFC_4122 for name in names)


@pytest.mark.parametrize(
    "call",
    [
        "'shop', 'checkout', '[]'", "'shop', 'checkout', NULL", "'', 'checkout'", "'shop', NULL", "'s', 'c', key => ''",
        "'s', 'c', max_attempts => 0", "'s', 'c', delay => interval '-1 s'", "'s', 'c', priority => NULL",
        "'s', 'c', id => repeat('x', 256)", "'s', 'c', queue => ''",
        "'s', 'c', budget => '{}'", "'s', 'c', budget => '7'",
        "'s', 'c', budget => '{\"tokens\": -1}'", "'s', 'c', budget => '{\"tokens\": \"many\"}'",
        "'s', 'c', budget => '{\"a b\": 1}'", "'s', 'c', budget => '{\"tokens\": 1e10}'",
    ],
)  # fmt: skip
def test_what_cannot_be_a_job_is_refused_in_sql(sql: Connection, call: str) -> None:
    before = one(sql, "SELECT count(*) FROM jobs")
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        one(sql, f"SELECT start_job({call})")
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        one(sql, "SELECT start_job('s', 'c', %s::jsonb)", '{"a":' * 62 + "1" + "}" * 62)
    assert one(sql, "SELECT count(*) FROM jobs") == before


def test_two_transactions_that_start_the_same_key_make_one_job(schema: str) -> None:
    call = f"SELECT {schema}.start_job('shop', 'race', '{{}}', key => 'one')"
    with psycopg.connect(server().url) as first, psycopg.connect(server().url) as second:
        made = one(first, call)
        found: list[str] = []
        other = threading.Thread(target=lambda: found.append(one(second, call)))
        other.start()
        other.join(0.2)
        assert not found, "the second waits for the first"
        first.commit()
        other.join(60)
        assert found == [made]
        second.commit()
        third = one(first, call.replace("'one'", "'two'"))
        other = threading.Thread(target=lambda: found.append(one(second, call.replace("'one'", "'two'"))))
        other.start()
        other.join(0.2)
        first.rollback()
        other.join(60)
        assert found[1] != third, "the first was rolled back: the second has made its own"


def test_a_budget_given_in_sql_is_kept_as_python_keeps_it(sql: Connection) -> None:
    job = one(sql, "SELECT start_job('shop', 'checkout', budget => '{\"usd\": 0.1, \"tokens\": 1000}')")
    (row,) = map(job_of, sql.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = %s".encode(), (job,)))
    (stored,) = sql.execute(f"SELECT {EVENT_READ} FROM events WHERE job = %s".encode(), (job,))
    (event,) = events_of(stored)
    assert event.payload["budget"] == to_millionths("budget", {"tokens": 1000, "usd": 0.1})
    assert check([event], head=row.head) == []
    assert rebuilt(row, [event]) == row
