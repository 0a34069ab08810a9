"""The schema migration of the store that a URL names: apply the missing migrations, or only list them.

Migrations are numbered and go forward only. Workers apply them when they open a store. This module lets an operator
choose the time and the database role. What can fail: `StoreUnavailable`, if the store is newer than this release or
does not answer.
"""

from __future__ import annotations

import msgspec

from holdfast.client.store_url import is_postgres, open_store, postgres_place
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.store.sql.migrate import migrations, number_in, too_new


class Migration(msgspec.Struct, frozen=True):
    """The schema number before the call, the newest one of this release, and the missing (now applied) migrations."""

    schema: int
    newest: int
    missing: list[int]


async def migrate(url: str, *, check: bool = False) -> Migration:
    """Apply the missing migrations and return them. With `check`, apply nothing.

    Raises:
        InvalidSetting: The URL does not name a SQLite file or a PostgreSQL database.
        StoreUnavailable: The store is newer than this release or does not answer.
    """
    if is_postgres(url):
        return _postgres(url, check=check)
    if not url.startswith("sqlite:///"):
        raise InvalidSetting(
            "url", url, "only a database can be migrated: use sqlite:///path/to/jobs.db or postgresql://…"
        )
    current, newest = number_in(url.removeprefix("sqlite:///")), len(migrations("sqlite"))
    if current > newest:
        raise too_new(current, newest)
    if not check:
        await open_store(url).close()  # opening applies the migrations, under a lock against other processes
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
        message = " ".join(str(error).split())
        raise StoreUnavailable(
            f"PostgreSQL reported: {message}; check the server, the URL and the permissions of this user"
        ) from error
    return Migration(current, len(migrations("postgres")), lacking)
