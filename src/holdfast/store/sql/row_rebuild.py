"""Rebuild of all jobs' rows from their streams, after a migration that added columns (SPEC J6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.errors import TransitionRefused
from holdfast.machines import Event, RunRecord, runs
from holdfast.store.rows import rebuilt
from holdfast.store.sql.columns import JOB_COLUMNS, event_of, job_of

BATCH = 500  # jobs read at once

Execute = Callable[[str, Sequence[Any]], list[Any]]


def project(execute: Execute, mark: str, schema: str, event_columns: str) -> None:
    """Write the run fields and records that each job's stream results in.

    Args:
        execute: executes a statement in a transaction and returns its rows.
        mark: the parameter mark.
        schema: the prefix of a table's name, with its dot.
        event_columns: the columns of an event.
    """
    jobs = f"SELECT {JOB_COLUMNS} FROM {schema}jobs WHERE id > {mark} ORDER BY id LIMIT {BATCH}"
    events = f"SELECT {event_columns} FROM {schema}events WHERE job = {mark} ORDER BY seq"
    update = f"UPDATE {schema}jobs SET course = {mark}, status = {mark} WHERE id = {mark}"
    insert = f"INSERT INTO {schema}past_runs (job, run, status, record) VALUES ({mark}, {mark}, {mark}, {mark})"
    last = ""
    while rows := execute(jobs, (last,)):
        for job in map(job_of, rows):
            stream = [event_of(row) for row in execute(events, (job.id,))]
            course = rebuilt(job, stream).course
            execute(update, (msgspec.json.encode(course).decode(), course.status.value, job.id))
            for number, record in enumerate(_ended(stream), 1):
                execute(insert, (job.id, number, record.status.value, msgspec.json.encode(record).decode()))
        last = rows[-1][0]


def _ended(stream: list[Event]) -> list[RunRecord]:
    """Return the runs that another has followed; none for an illegal stream."""
    try:
        return runs(stream)[:-1]
    except TransitionRefused:
        return []
