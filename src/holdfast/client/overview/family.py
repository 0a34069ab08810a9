"""The family of a run: its parents and children, and the runs that it continues, retries or forks."""

from __future__ import annotations

import msgspec

from holdfast.errors import UnknownJob
from holdfast.machines import RunRecord
from holdfast.machines.run_projection import run_name
from holdfast.store import Job, Store
from holdfast.store.run_queries import RunFilter

CHILDREN = 200  # that are listed
CHILDREN_MAX = 1000  # that are counted
RELATIVES = 100  # parents of parents, retries, and forks that are listed


class Relative(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the family. `relation` is parent, child, retry, continuation or fork."""

    relation: str
    run_id: str
    plugin_id: str
    entry_id: str
    status: str
    created_at: float
    finished_at: float | None


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """The family of a run.

    Attributes:
        parent: The run that started it as a child. None if there is none.
        ancestors: The parent, its parent, and so on.
        children: The runs that it started as children, oldest first, 200 at most.
        children_total: The number of its children, counted up to 1,000.
        earlier: The runs that it retries, continues or was forked from, oldest first.
        later: The runs that retry it, continue it or were forked from it, oldest first.
    """

    parent: Relative | None
    ancestors: list[Relative]
    children: list[Relative]
    children_total: int
    earlier: list[Relative]
    later: list[Relative]


async def read_family(store: Store, job: str, number: int, group: str | None) -> Family:
    """Read the family of a run of a job. With a group, leave out the runs of other groups.

    Raises:
        UnknownJob: The job does not exist, or has no such run.
    """
    row = await store.get(job)
    if row is None or not 1 <= number <= row.run:
        raise UnknownJob(run_name(job, number))
    ancestors = await _ancestors(store, row, group)
    born = RunFilter(parent=job, group=group, newest=True, oldest_first=True)
    children = await store.records(born, CHILDREN_MAX + 1)
    earlier, later = await _siblings(store, row, number, group)
    return Family(
        parent=ancestors[0] if ancestors else None,
        ancestors=ancestors,
        children=[_relative("child", record) for record in children[:CHILDREN]],
        children_total=min(len(children), CHILDREN_MAX),
        earlier=earlier,
        later=later,
    )


async def _ancestors(store: Store, row: Job, group: str | None) -> list[Relative]:
    found: list[Relative] = []
    while row.parent is not None and len(found) < RELATIVES:
        above = await store.get(row.parent)
        if above is None or (group is not None and above.group != group):
            break
        found.append(_relative("parent", above.record()))
        row = above
    return found


async def _siblings(store: Store, row: Job, number: int, group: str | None) -> tuple[list[Relative], list[Relative]]:
    """Return the runs before and after this one: of its job, of its chain, and forks."""
    earlier: list[Relative] = []
    later: list[Relative] = []
    origin = (row.attributes or {}).get("forked_from")
    for relation, name in (("fork", origin), ("continuation", row.continues)):
        if isinstance(name, str) and (record := await _newest(store, name, group)) is not None:
            earlier.append(_relative(relation, record))
    own = await store.records(RunFilter(task_id=row.id, oldest_first=True), RELATIVES)
    earlier += [_relative("retry", record) for record in own[: number - 1]]
    later += [_relative("retry", record) for record in own[number:]]
    if row.course.continued_as is not None and number == row.run:
        record = await _newest(store, row.course.continued_as, group)
        later += [_relative("continuation", record)] if record is not None else []
    forks = RunFilter(attributes={"forked_from": row.id}, group=group, newest=True, oldest_first=True)
    later += [_relative("fork", record) for record in await store.records(forks, RELATIVES)]
    return earlier, later


async def _newest(store: Store, job: str, group: str | None) -> RunRecord | None:
    row = await store.get(job)
    if row is None or (group is not None and row.group != group):
        return None
    return await store.record(row.id, row.run)


def _relative(relation: str, record: RunRecord) -> Relative:
    return Relative(
        relation=relation,
        run_id=record.run_id,
        plugin_id=record.plugin_id,
        entry_id=record.entry_id,
        status=record.status.value,
        created_at=record.created_at,
        finished_at=record.finished_at,
    )
