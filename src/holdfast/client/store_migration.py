"""Brings the store that a URL names up to this release, or tells what it lacks and changes nothing.

Migrations are numbered and go forward only. Workers do this by themselves when they open a store; this is for roles and
times that are chosen. What can go wrong: the store is newer than this release, or away: `StoreUnavailable`.
"""

from __future__ import annotations

import msgspec

from holdfast.client.store_url import is_postgres, open_store, postgres_place
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.store.sql.migrate import migrations, number_in, too_new

__all__ = ["Migration", "migrate"]


class Migration(msgspec.Struct, frozen=True):
    """Where a schema stood, what this release has, and which migrations it lacked; applied, unless only looked at."""

    schema: int
    newest: int
    missing: list[int]


async def migrate(url: str, *, check: bool = False) -> Migration:
    """Apply what is missing; with `check`, only tell."""
    if is_postgres(url):
        return _postgres(url, check=check)
    if not url.startswith("sqlite:///"):
        raise InvalidSetting("url", url, "it names nothing that lasts: use sqlite:///path/to/jobs.db or postgresql://…")
    current, newest = number_in(url.removeprefix("sqlite:///")), len(migrations("sqlite"))
    if current > newest:
        raise too_new(current, newest)
    if not check:
        await open_store(url).close()  # which brings it up, with other processes kept out
    return Migration(current, newest, list(range(current + 1, newest + 1)))


def _postgres(url: str, *, check: bool) -> Migration:
    import psycopg  # noqa: PLC0415 - a backend is imported when it is used

    from holdfast.store.postgres import connection, schema  # noqa: PLC0415 - as above

    place, ours = postgres_place(url)
    name = ours.get("schema", "holdfast")
    try:
        with connection.connect(place) as connection:
            current = schema.schema_number(connection, name)
            lacking = [number for number, _ in schema.missing(connection, name)]
            lacking = lacking if check else schema.migrate(connection, name)
    except ValueError as error:
        raise InvalidSetting("url", url, str(error)) from error
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        raise StoreUnavailable(
            f"PostgreSQL says: {said}: check the server, the URL and the rights of this user"
        ) from error
    return Migration(current, len(migrations("postgres")), lacking)
