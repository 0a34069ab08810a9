"""The move of a store from a SQLite file to PostgreSQL, with its running jobs. No job is lost or run twice.

1. One transaction closes the file. It requeues running jobs, so the attempts of workers that still run are stale. From
   then on no process writes to the file (`holdfast.store.sqlite.export`).
2. One transaction of the target copies everything, reads it back and compares it. It also stores the id of the move
   (`holdfast.store.postgres.importer`). Workers of the target see all jobs or none.
3. The note in the file becomes final.

If the process is killed, the same call continues the move. Before the commit of step 2 it copies again. After that
commit it finds the id. A move that fails before that commit opens the file again by itself. `take_back` undoes a move
that was killed. The move checks all streams. It moves a broken stream unchanged and reports it.

What can also fail: the connection breaks during the commit of step 2, so its outcome is unknown. Then the file stays
closed, and the same call finds out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from holdfast.client.store_url import is_postgres, postgres_place
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.ids import new_id
from holdfast.machines import Event, check
from holdfast.store import rebuilt
from holdfast.store.sql.event_rows import events_of
from holdfast.store.sqlite.export import JobDump, MovingSource

if TYPE_CHECKING:
    from holdfast.store.postgres.importer import Arrived, MovingTarget


class Moved(msgspec.Struct, frozen=True):
    """The result of a move.

    Attributes:
        target: The store that has the jobs now, without a password.
        jobs: Number of jobs. `events`, `signals` and `evidence` are the numbers of those rows.
        requeued: Number of jobs that were running. They wait for a worker of the target.
        broken: Jobs whose stream or row `verify` rejects, in the source and so in the target.
    """

    target: str
    jobs: int
    events: int
    signals: int
    evidence: int
    requeued: int
    broken: list[str]


def move(source: str, target: str) -> Moved:
    """Move a store, or continue a move that was interrupted.

    Raises:
        InvalidSetting: The source is not a SQLite file, or the target is not a PostgreSQL database.
        StoreUnavailable: A store failed. The source is open again, unless the message says that the outcome is unknown.
    """
    path, place, schema, name = _way(source, target)
    from holdfast.store.postgres.importer import MovingTarget  # noqa: PLC0415 - a backend is imported when it is used

    leaving = MovingSource(path)
    try:
        arriving = MovingTarget(place, schema)
        try:
            return leaving.alone(lambda: _move(leaving, arriving, path, name))
        finally:
            arriving.close()
    finally:
        leaving.close()


def take_back(source: str, target: str) -> bool:
    """Open the source of an interrupted move again. Return whether there was such a move.

    Raises:
        InvalidSetting: As for `move`.
        StoreUnavailable: A store failed, or all jobs have arrived already and the move cannot be undone.
    """
    path, place, schema, name = _way(source, target)
    from holdfast.store.postgres.importer import MovingTarget  # noqa: PLC0415 - a backend is imported when it is used

    leaving = MovingSource(path)

    def back() -> bool:
        note = leaving.note()
        if note is None:
            return False
        if note.complete or note.target != name:
            raise StoreUnavailable(f"{path}: {note}")
        arriving = MovingTarget(place, schema)
        try:
            if arriving.begin(note.id) is not None:
                raise StoreUnavailable("all data is already in the target: run the command without --abort to finish")
            leaving.take_back()
        finally:
            arriving.close()
        return True

    try:
        return leaving.alone(back)
    finally:
        leaving.close()


def _move(leaving: MovingSource, arriving: MovingTarget, path: str, name: str) -> Moved:
    fresh = new_id()
    note = leaving.shut(fresh, name)
    broken: list[str] = []
    arrived: Arrived | None = None
    surely_not_there = note.id == fresh
    try:
        arrived = arriving.begin(note.id)
        surely_not_there = arrived is None and not note.complete
        if surely_not_there:
            arriving.take_limits(leaving.limits())
            arriving.take_budgets(leaving.budgets())
            arriving.take_audit(leaving.audit())
            arriving.take_request_keys(leaving.request_keys())
            arriving.take_schedules(leaving.schedules())
        for luggage in leaving.batches() if surely_not_there else ():
            broken += _wrong(luggage)
            arriving.take(luggage)
    except BaseException:
        if surely_not_there:
            leaving.take_back()
        raise
    if arrived is None and note.complete:
        raise StoreUnavailable(
            f"{path}: {note}; but the target has no record of the move: restore a backup of the target"
        )
    if arrived is None:
        arrived = arriving.end(note.id, path)
    leaving.leave()
    return Moved(name, **msgspec.structs.asdict(arrived), requeued=note.requeued, broken=broken)


def _wrong(luggage: JobDump) -> list[str]:
    streams: dict[str, list[Event]] = {job.id: [] for job in luggage.jobs}
    for row in luggage.events:
        streams[row[0]] += events_of(row)
    return [
        job.id for job in luggage.jobs if check(streams[job.id], head=job.head) or rebuilt(job, streams[job.id]) != job
    ]


def _way(source: str, target: str) -> tuple[str, str, str, str]:
    """Return the file, the server's URL, the schema, and the target's URL for display, without a password."""
    if not source.startswith("sqlite:///"):
        raise InvalidSetting("source", source, "the source must be sqlite:///path/to/jobs.db")
    if not is_postgres(target):
        raise InvalidSetting("target", target, "the target must be postgresql://…")
    place, ours = postgres_place(target)
    schema = ours.get("schema", "holdfast")
    parts = urlsplit(place)
    name = f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}?schema={schema}"
    return source.removeprefix("sqlite:///"), place, schema, name
