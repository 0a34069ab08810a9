"""Listings of very many runs are answered from indexes, on both databases: by status, attribute, group, by cursor."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast.store import Append, Claim, Submit
from holdfast.store.postgres.statements import Statements
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.run_queries import RunFilter
from holdfast.store.sql.columns import JOB_WRITTEN
from holdfast.store.sqlite.store import READS, SqliteStore
from support.postgres import fresh_schema, server

RUNS = 200_000
PAGE = 1000

Explain = Callable[[tuple[str, list[Any]]], str]


async def _seed(store: SqliteStore | PostgresStore) -> None:
    """One run that has succeeded, one that has failed, one that is queued."""
    entries = frozenset({("b", "e")})
    for name, end in (("good", "job_completed"), ("bad", "job_failed"), ("open", None)):
        await store.commit([Submit(job=name, plugin="b", entry="e", args={}, attributes={"tenant": name}, group=name)])
        if end is not None:
            await store.commit([Claim(worker="w", entries=entries, queues=None, limit=1, lease_seconds=3600)])
            await store.commit([Append(name, 1, ((end, {"reason": "no"}),))])
    await store.close()


def _copies(prefix: str, numbers: str, few: int) -> list[str]:
    """Statements that make many of them: most have succeeded, a few are the others; attributes with them."""
    columns = ", ".join(JOB_WRITTEN[1:])
    return [
        (
            f"INSERT INTO {prefix}jobs (id, {columns}) SELECT id || '-' || n, {columns} FROM {prefix}jobs, {numbers}"
            f" WHERE id = 'good' OR n <= {few}"
        ),
        (
            f"INSERT INTO {prefix}attributes (name, value, job) SELECT a.name, a.value, j.id FROM {prefix}jobs j"
            f" JOIN {prefix}attributes a ON j.id LIKE a.job || '-%'"
        ),
    ]


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explain]:
    path: Path = tmp_path_factory.mktemp("many") / "jobs.db"
    asyncio.run(_seed(SqliteStore(path)))
    connection = apsw.Connection(str(path))
    numbers = f"(WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < {RUNS}) SELECT n FROM t)"
    for statement in _copies("", numbers, 500):
        connection.execute(statement)

    def explain(asked: tuple[str, list[Any]]) -> str:
        return "\n".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {asked[0]}", asked[1]))

    yield explain
    connection.close()


LISTINGS = {
    "all": (RunFilter(), None),
    "all, from a cursor": (RunFilter(), ("good-5", 1)),
    "a rare status": (RunFilter(status=("failed",)), None),
    "a common status, from a cursor": (RunFilter(status=("succeeded",)), ("good-5", 1)),
    "open runs": (RunFilter(status=("queued", "running", "cancel_requested")), None),
    "several statuses, from a cursor": (RunFilter(status=("succeeded", "failed"), newest=True), ("good-5", 1)),
    "several statuses of a group": (RunFilter(group="good", status=("succeeded", "failed")), None),
    "ended runs": (RunFilter(finished_after=0.0), None),
    "a rare attribute": (RunFilter(attributes={"tenant": "bad"}), None),
    "a common attribute, from a cursor": (RunFilter(attributes={"tenant": "good"}), ("good-5", 1)),
    "a small group": (RunFilter(group="bad"), None),
    "a large group, from a cursor": (RunFilter(group="good"), ("good-5", 1)),
    "nothing of a large group": (RunFilter(group="good", status=("failed",)), None),
    "one run, if it is of a group": (RunFilter(group="bad", task_id="good-5"), None),
}


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_listing_on_sqlite_walks_an_index(on_sqlite: Explain, listing: str) -> None:
    where, before = LISTINGS[listing]
    plan = on_sqlite(READS.newest_runs(where, before, PAGE))
    plan = re.sub(r"SCAN s\d\nUSE TEMP B-TREE FOR ORDER BY", "", plan)  # merges one page of each status
    walked = [line for line in plan.splitlines() if line.startswith("SCAN")]
    assert "TEMP B-TREE" not in plan, f"all that fit would be read and sorted for one page: {plan}"
    # Without a filter the table itself is walked, in the order of its key, until the page is full.
    assert walked == (["SCAN j"] if listing == "all" else []), plan
    assert (
        "jobs_group_status (group_name=? AND status=?" if where.group else "jobs_status"
    ) in plan or not where.status
    assert "jobs_group (group_name=?" in plan or not where.group or where.status or where.task_id, plan
    assert "SEARCH a USING PRIMARY KEY" in plan or not where.attributes, plan


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_count_on_sqlite_sorts_no_jobs(on_sqlite: Explain, listing: str) -> None:
    where, before = LISTINGS[listing]
    plan = on_sqlite(READS.count_newest(where, before[0] if before is not None else None, PAGE))
    assert "FOR ORDER BY" not in plan, f"all that fit would be read and sorted, and not only those looked at: {plan}"


@pytest.mark.parametrize("group", [None, "bad"])
def test_what_waits_for_a_person_is_looked_for_among_open_runs_only(on_sqlite: Explain, group: str | None) -> None:
    plan = on_sqlite(READS.questions("running", group, "good-5", PAGE))
    assert ("jobs_status (status=? AND id>?" if group is None else "jobs_group_status (group_name=? AND") in plan, plan
    assert "TEMP B-TREE" not in plan, plan


def test_jobs_that_are_kept_for_a_build_are_found_by_their_index_on_sqlite(on_sqlite: Explain) -> None:
    for asked in ((READS.kept_builds, []), (READS.kept_jobs, ["1.0", "", 5])):
        plan = on_sqlite(asked)
        assert {line for line in plan.splitlines() if "jobs" in line} <= {
            "SEARCH jobs USING INDEX jobs_kept (kept_for>?)",
            "SEARCH jobs USING INDEX jobs_kept (kept_for=? AND id>?)",
        }, plan


def test_ended_jobs_are_walked_by_their_index_on_sqlite(on_sqlite: Explain) -> None:
    plan = on_sqlite((READS.ended_jobs, [1e9, 5.0, "a", PAGE]))
    assert "USING INDEX jobs_finished (" in plan, plan
    assert "TEMP B-TREE" not in plan, plan


@pytest.mark.parametrize("before", [None, "good-5"])
def test_open_jobs_are_listed_by_the_index_of_their_status(on_sqlite: Explain, before: str | None) -> None:
    plan = on_sqlite(READS.open_jobs(before, PAGE))
    searches = [line for line in plan.splitlines() if "jobs" in line]
    assert len(searches) == 3, plan
    assert all("jobs_status (status=?" in line for line in searches), plan


def test_open_jobs_are_counted_by_build_without_a_look_at_ended_ones(on_sqlite: Explain) -> None:
    plan = on_sqlite((READS.build_counts, []))
    assert [line.strip() for line in plan.splitlines() if " jobs" in line] == [
        "SEARCH jobs USING INDEX jobs_status (status=?)",
        "SCAN jobs USING INDEX jobs_running",
        "SCAN jobs USING INDEX jobs_kept",
    ], plan


def test_the_past_runs_of_a_group_are_looked_for_among_past_runs_and_not_among_its_jobs(on_sqlite: Explain) -> None:
    plan = on_sqlite(READS.past_runs(RunFilter(group="good"), None, PAGE))
    first, second, *_ = plan.splitlines()
    assert (first, second[:8], second[-6:]) == ("SCAN r", "SEARCH j", " id=?)"), plan
    assert "TEMP B-TREE" not in plan, plan


@pytest.fixture(scope="module")
def schema() -> str:
    name = fresh_schema()
    asyncio.run(_seed(PostgresStore(server().url, name)))
    with psycopg.connect(server().url, autocommit=True) as connection:
        for statement in _copies(f"{name}.", f"generate_series(1, {RUNS}) AS n", 500):
            connection.execute(statement.encode())
        for table in ("jobs", "attributes", "progress", "past_runs"):
            connection.execute(f"ANALYZE {name}.{table}".encode())
    return name


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_listing_on_postgres_reads_about_a_page_and_never_the_whole_table(schema: str, listing: str) -> None:
    where, before = LISTINGS[listing]
    reads = Statements(schema).reads
    for sql, bindings in (
        reads.newest_runs(where, before, PAGE),
        reads.count_newest(where, before[0] if before is not None else None, PAGE),
    ):
        with psycopg.connect(server().url) as connection:
            found = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}".encode(), bindings).fetchone()
        assert found is not None
        scans = list(_scans(found[0][0]["Plan"]))
        walked = [scan for scan in scans if scan["Node Type"] == "Seq Scan" and scan["Relation Name"] == "jobs"]
        assert not walked, scans
        read = max(scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0) for scan in scans)
        assert read <= 3 * PAGE, scans


def _scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Scan" in plan["Node Type"]:
        yield plan
    for part in plan.get("Plans", []):
        yield from _scans(part)
