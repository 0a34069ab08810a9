"""Moves a store up, from a SQLite file to PostgreSQL, running jobs included: nothing lost, nothing run twice.

1. The file is closed in one transaction: running jobs are requeued, so that the attempts of workers that still run are
   stale, and from then on nobody writes there (`holdfast.store.sqlite.export`).
2. Everything is copied, read back and compared in one transaction of the target, with the id of the move
   (`holdfast.store.postgres.importer`). Workers there see all of it, or nothing.
3. The file's note is made final.

Killed at any moment, the same call goes on: before the commit of 2 it copies anew; after it, it finds the id. A move
that fails before that commit opens the file again by itself; one that was killed is taken back by `take_back`. Streams
are checked on the way; what is wrong with one is moved as it is, and told.

What can go wrong beside that: the commit of 2 fails, and nobody knows whether it counts. Then the file stays closed,
and the same call finds out.
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
from holdfast.store.sql.columns import event_of
from holdfast.store.sqlite.export import Luggage, MovingSource

if TYPE_CHECKING:
    from holdfast.store.postgres.importer import Arrived, MovingTarget

__all__ = ["Moved", "move", "take_back"]


class Moved(msgspec.Struct, frozen=True):
    """What was moved.

    Attributes:
        target: where it is now.
        jobs: how many jobs; and so on.
        requeued: how many of them were running, and wait for a worker of the target now.
        broken: jobs whose stream or row `verify` objects to, in the source and so in the target.
    """

    target: str
    jobs: int
    events: int
    signals: int
    evidence: int
    requeued: int
    broken: list[str]


def move(source: str, target: str) -> Moved:
    """Move a store; or go on with a move that was interrupted.

    Raises:
        InvalidSetting: this is not a way that a store can go.
        StoreUnavailable: the source is open again, unless it is said that nobody knows.
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
    """Open the source of an interrupted move again; whether there was one.

    Raises:
        InvalidSetting, StoreUnavailable: as above, or everything has arrived already and the move cannot be taken back.
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
                raise StoreUnavailable("everything has arrived in the target: run it without --abort to finish")
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
        for luggage in leaving.batches() if surely_not_there else ():
            broken += _wrong(luggage)
            arriving.take(luggage)
    except BaseException:
        if surely_not_there:
            leaving.take_back()
        raise
    if arrived is None and note.complete:
        raise StoreUnavailable(f"{path}: {note}; but that one knows nothing of it: restore a backup of it")
    if arrived is None:
        arrived = arriving.end(note.id, path)
    leaving.leave()
    return Moved(name, **msgspec.structs.asdict(arrived), requeued=note.requeued, broken=broken)


def _wrong(luggage: Luggage) -> list[str]:
    streams: dict[str, list[Event]] = {job.id: [] for job in luggage.jobs}
    for row in luggage.events:
        streams[row[0]].append(event_of(row))
    return [
        job.id for job in luggage.jobs if check(streams[job.id], head=job.head) or rebuilt(job, streams[job.id]) != job
    ]


def _way(source: str, target: str) -> tuple[str, str, str, str]:
    """The file; the server, the schema there; and the target as it may be shown: without anybody's password."""
    if not source.startswith("sqlite:///"):
        raise InvalidSetting("source", source, "a store is moved from sqlite:///path/to/jobs.db")
    if not is_postgres(target):
        raise InvalidSetting("target", target, "a store is moved to postgresql://…")
    place, ours = postgres_place(target)
    schema = ours.get("schema", "holdfast")
    parts = urlsplit(place)
    name = f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}?schema={schema}"
    return source.removeprefix("sqlite:///"), place, schema, name
