"""The command `holdfast doctor`: checks of a deployment, each with what was found and what to do.

A check that fails does not end the others. The doctor creates no store and applies no migration. It prints no password
and no token. What can fail: a store or server that does not answer ends the command with exit code 5, after the report.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import click

from holdfast import HoldfastError, __version__, errors
from holdfast.cli.options import Where, json_option, local_app, open_client, show_result, where_options

if TYPE_CHECKING:
    from holdfast import App
    from holdfast.client.interface import Client
    from holdfast.config import Config

SQLITE_OLDEST = (3, 51, 3)  # older ones can corrupt a file under two writers
POSTGRES_OLDEST = 140_000
CLOCK_SECONDS_MAX = 2.0  # more is not explained by a slow answer
DISK_LOW, DISK_EMPTY = 1 << 30, 100 << 20
INODES_LOW = 10_000
DUE_SECONDS_MAX = 60  # a due job that has waited longer needs a worker
CONNECTIONS_LOW = 10  # free connections of a server: one more worker or two
LOG_LARGE = 256 << 20  # of a write-ahead log: SQLite keeps it far smaller unless a reader never ends
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "glusterfs", "afs"}
TOKEN_SHORT = 20
LOCAL = {"127.0.0.1", "::1", "localhost"}


class Check(NamedTuple):
    """The result of one check: what was found, and what to do unless it is ok."""

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    do: str = ""


@click.command(epilog="Example: holdfast doctor --json")
@where_options
@click.option("--strict", is_flag=True, help="Exit with code 1 on warnings, too.")
@json_option
def doctor(where: Where, strict: bool, as_json: bool) -> None:
    """Check a deployment: store, schema, clock, workers, tokens, files and disk.

    With --server, check the server, its workers and the token. The exit code is 1 if a check fails, and 5 if the store
    or the server does not answer. Nothing is created or changed.
    """
    import platform

    report: dict[str, Any] = {"holdfast": __version__, "python": platform.python_version()}
    checks = [Check("holdfast", "ok", f"{__version__} on Python {report['python']}, {sys.platform}")]
    lost: HoldfastError | None = None
    try:
        for check in _server(where, report) if where.server is not None else _store(where.url, report):
            checks.append(check)  # noqa: PERF402 - those before an error are kept
    except errors.StoreUnavailable as error:
        lost = error
        checks.append(Check("store" if where.server is None else "server", "fail", _line(error)))
    failed = [check for check in checks if check.status == "fail" or (strict and check.status == "warn")]
    report |= {"ok": not failed, "checks": [check._asdict() for check in checks]}
    show_result(report, as_json=as_json, text=lambda: _table(checks))
    if lost is not None:
        raise lost
    sys.exit(1 if failed else 0)


def _table(checks: list[Check]) -> str:
    width = max(len(check.name) for check in checks)
    shown = (f"{one.status:<5} {one.name:<{width}}  {one.found}{f': {one.do}' if one.do else ''}" for one in checks)
    return "\n".join(shown)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _store(url: str | None, report: dict[str, Any]) -> Iterator[Check]:
    """Check the store of a URL and everything on this machine that a worker or server uses."""
    app = local_app(url)
    try:
        yield from _place(app, report)
    finally:
        app.close()


def _place(app: App, report: dict[str, Any]) -> Iterator[Check]:
    from holdfast.client.store_url import is_postgres
    from holdfast.errors import shown_url

    report |= {"store": shown_url(app.url), "store_works": False}
    is_file = app.url.startswith("sqlite:///")
    yield from _settings(app)
    if is_file:
        yield from _sqlite_files(Path(app.url.removeprefix("sqlite:///")), report)
    if not is_file and not is_postgres(app.url):
        yield Check("store", "warn", f"{report['store']} ends with its process", "use sqlite:///… or postgresql://…")
        return
    ready = False
    for check in _schema(app):
        ready = ready or check.status == "ok"
        yield check
    if is_postgres(app.url):
        yield from _postgres(app.url)
        if ready and app.config.retention_rules() is not None:
            yield _may_remove(app.url)
    if ready:
        yield from _answers(app, report)


def _settings(app: App) -> Iterator[Check]:
    from holdfast.http.tokens import token_path

    config = app.config
    yield from _tokens(config, token_path(config, app.url))
    for name in ("effects", "blobs"):
        if place := getattr(config, name).removeprefix("file://"):
            yield _folder(name, Path(place))
    if config.settings_file:
        try:
            config.reloaded()
            found = Path(config.settings_file).exists()
            yield Check(
                "settings", "ok" if found else "warn", f"{config.settings_file}{'' if found else ' is missing'}"
            )
        except errors.InvalidSetting as error:
            yield Check("settings", "fail", _line(error))


def _tokens(config: Config, path: Path) -> Iterator[Check]:
    from holdfast.http.tokens import TokenFile

    if config.token and len(config.token) < TOKEN_SHORT:
        say = "use one of holdfast tokens create, or 32 random characters"
        yield Check("token", "warn", f"HOLDFAST_TOKEN has only {len(config.token)} characters", say)
    try:
        tokens = TokenFile(path).all()
    except errors.InvalidSetting as error:
        yield Check("tokens", "fail", _line(error))
        return
    expired = sum(token.expires_at is not None and token.expires_at <= time.time() for token in tokens)
    count = len(tokens) - expired + bool(config.token)
    if not count:
        say = "make one with holdfast tokens create"
        yield Check("tokens", "warn", f"no valid token, {expired} expired" if expired else "no token", say)
    else:
        yield Check("tokens", "ok", f"{count} valid, {expired} expired")
    if path.exists():
        yield _private("tokens file", path)


def _private(name: str, path: Path) -> Check:
    mode = path.stat().st_mode & 0o777
    if os.name == "posix" and mode & 0o077:
        return Check(name, "warn", f"{path} has mode {mode:o}: other users can open it", f"chmod go= {path}")
    return Check(name, "ok", f"{path} is private")


def _folder(name: str, path: Path) -> Check:
    if not path.is_dir():
        return Check(name, "warn", f"{path} is missing", "a worker makes it if it may; else create it")
    if not os.access(path, os.W_OK | os.X_OK):
        return Check(name, "fail", f"{path} cannot be written by this user", "change its owner or mode")
    return _private(name, path)


def _sqlite_files(path: Path, report: dict[str, Any]) -> Iterator[Check]:
    import apsw

    report["sqlite"] = apsw.sqlite_lib_version()
    is_new = tuple(map(int, report["sqlite"].split("."))) >= SQLITE_OLDEST
    yield Check("sqlite", "ok" if is_new else "fail", report["sqlite"], "" if is_new else "upgrade apsw")
    yield _locks()
    folder = path.absolute().parent
    if not folder.is_dir():
        return  # the check of the schema says so
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Check("folder", "fail", f"{folder} cannot be written by this user", "SQLite keeps its log there")
    yield from _disk(folder)
    kind = _file_system(folder)
    if kind in NETWORK:
        yield Check("file system", "fail", f"{folder} is on {kind}", "use a local disk, or PostgreSQL for many hosts")
    if path.exists():
        yield _private("store file", path)
        log = Path(f"{path.resolve()}-wal")
        size = log.stat().st_size if log.exists() else 0
        say = "a program that reads without end keeps SQLite from emptying it"
        yield (
            Check("log", "ok", f"{size >> 10} KiB")
            if size < LOG_LARGE
            else Check("log", "warn", f"{log} has {size >> 20} MiB", say)
        )


def _locks() -> Check:
    from holdfast.store.sqlite import descriptor_locks

    if descriptor_locks.install():
        return Check("locks", "ok", "no other code of a process can drop them")
    say = "do not open the store's file with another SQLite library, such as sqlite3, in a process that uses it"
    return Check("locks", "warn", "other code of the process drops them when it closes the file", say)


def _disk(folder: Path) -> Iterator[Check]:
    import shutil

    free = shutil.disk_usage(folder).free
    status: Literal["ok", "warn", "fail"] = "ok" if free >= DISK_LOW else "warn" if free >= DISK_EMPTY else "fail"
    yield Check("disk", status, f"{free >> 20} MiB free", "" if status == "ok" else "make room, or purge ended runs")
    if hasattr(os, "statvfs") and (about := os.statvfs(folder)).f_files:
        few = about.f_favail < INODES_LOW
        yield Check("inodes", "warn" if few else "ok", f"{about.f_favail} free", "remove small files" if few else "")


def _file_system(folder: Path) -> str:
    """Return the type of the file system of a folder; empty where the system does not tell."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    parts = [line.split() for line in mounts]
    inside = [(len(part[1]), part[2]) for part in parts if folder.is_relative_to(part[1].replace("\\040", " "))]
    return max(inside, default=(0, ""))[1]


def _schema(app: App) -> Iterator[Check]:
    from holdfast.client.maintenance.store_migration import migrate

    found = app.block(migrate(app.url, check=True))
    if not found.schema:
        yield Check("schema", "fail", "there is no store yet", "run holdfast migrate, or start a worker")
    elif found.missing:
        say = "run holdfast migrate, or start a worker of this release"
        yield Check("schema", "fail", f"{found.schema}, and this release needs {found.newest}", say)
    else:
        yield Check("schema", "ok", f"{found.schema}, the newest of this release")


def _answers(app: App, report: dict[str, Any]) -> Iterator[Check]:
    from holdfast.store import Reclaim

    store = app.store()
    answers = store.commit_blocking([Reclaim(0)])  # a complete transaction that changes nothing
    report["store_works"] = not any(isinstance(answer, Exception) for answer in answers)
    yield Check("store", "ok" if report["store_works"] else "fail", f"{report['store']} commits")
    before = time.time()
    theirs = app.block(store.now())
    yield _clock(theirs, before, time.time())
    yield from _workers(app, report)


def _clock(theirs: float, before: float, after: float) -> Check:
    off = max(before - theirs, theirs - after, 0.0)
    if off <= CLOCK_SECONDS_MAX:
        return Check("clock", "ok", "as the store's")
    say = "the store's clock decides, and times in logs will not fit: run NTP on both"
    return Check("clock", "warn", f"{off:.0f} s away from the store's", say)


def _workers(client: Client, report: dict[str, Any]) -> Iterator[Check]:
    workers, counts = client.workers(), client.stats()
    alive = [one.card.name for one in workers if one.alive]
    report["workers"] = len(alive)
    blocked = [one.card.name for one in workers if one.alive and one.card.blocked]
    if not alive:
        yield Check("workers", "warn", "none is alive", "start one: holdfast worker TARGET")
    else:
        yield Check("workers", "ok", f"{len(alive)} alive, {len(workers) - len(alive)} gone")
    if blocked:
        yield Check("blocked", "warn", f"the event loop of {', '.join(blocked)} is blocked", "see holdfast workers")
    late = counts.oldest_due_seconds
    if late is not None and late > DUE_SECONDS_MAX:
        yield Check("queue", "warn", f"the oldest due job has waited for {late:.0f} s", "see holdfast explain")


def _postgres(url: str) -> Iterator[Check]:
    """Check what a PostgreSQL server must do for the guarantees to hold."""
    import psycopg

    from holdfast.client.store_url import postgres_place
    from holdfast.store.postgres.connection import connect, is_a_session

    wanted: dict[str, tuple[Callable[[str], bool], Literal["warn", "fail"], str]] = {
        "fsync": (lambda value: value == "on", "fail", "a crash of the server loses or damages jobs: set it to on"),
        "full_page_writes": (lambda value: value == "on", "fail", "a crash may damage pages: set it to on"),
        "synchronous_commit": (
            lambda value: value != "off", "fail", "a crash loses acknowledged events: set it to on for this role",
        ),
        "transaction_read_only": (lambda value: value == "off", "fail", "connect to the primary"),
        "statement_timeout": (lambda value: value == "0", "warn", "long claims may be cut off: set it to 0"),
        "idle_session_timeout": (lambda value: value == "0", "warn", "listeners are cut off: set it to 0"),
    }  # fmt: skip
    try:
        with connect(postgres_place(url)[0]) as connection:
            number = connection.info.server_version
            found = ".".join(map(str, divmod(number, 10_000)))
            is_new = number >= POSTGRES_OLDEST
            yield Check("postgres", "ok" if is_new else "fail", found, "" if is_new else "upgrade to 14 or newer")
            for name, (holds, status, say) in wanted.items():
                row = connection.execute("SELECT current_setting(%s, true)", (name,)).fetchone()
                value = str(row[0]) if row is not None and row[0] is not None else "0"
                yield Check(name, "ok", value) if holds(value) else Check(name, status, value, say)
            counts = "SELECT count(*), current_setting('max_connections')::int FROM pg_stat_activity"
            used, most = connection.execute(counts).fetchone() or (0, 0)
            few = most - used < CONNECTIONS_LOW
            say = "raise max_connections, or use a pooler" if few else ""
            yield Check("connections", "warn" if few else "ok", f"{used} of {most} in use", say)
            host = connection.info.host
            if host and not host.startswith("/") and host not in LOCAL and not connection.pgconn.ssl_in_use:
                yield Check("tls", "warn", f"the connection to {host} is not encrypted", "add sslmode=verify-full")
            if not is_a_session(connection):
                yield Check("pooler", "warn", "a pooler stands in between", "see the page on PostgreSQL")
    except psycopg.Error as error:
        raise errors.StoreUnavailable(f"PostgreSQL says: {_line(error)}") from error


def _may_remove(url: str) -> Check:
    """Check that the role may delete what retention removes."""
    import psycopg

    from holdfast.client.store_url import postgres_place
    from holdfast.store.postgres.connection import connect
    from holdfast.store.sql.run_sql import OF_A_JOB

    place, ours = postgres_place(url)
    tables = [f"{ours.get('schema', 'holdfast')}.{table}" for table in ("jobs", "events", *OF_A_JOB)]
    missing_ones = "array_agg(name) FILTER (WHERE NOT has_table_privilege(name, 'DELETE'))"
    asked = f"SELECT current_user, {missing_ones} FROM unnest(%s::text[]) AS name"
    try:
        with connect(place) as connection:
            role, missing = connection.execute(asked.encode(), (tables,)).fetchone() or ("", [])
    except psycopg.Error as error:
        raise errors.StoreUnavailable(f"PostgreSQL says: {_line(error)}") from error
    if not missing:
        return Check("retention", "ok", "this role may remove runs")
    say = f"as the owner: GRANT DELETE ON {', '.join(missing)} TO {role}"
    return Check("retention", "fail", f"the role {role} may not remove runs", say)


def _server(where: Where, report: dict[str, Any]) -> Iterator[Check]:
    """Check a server from a client's place."""
    from holdfast.errors import shown_url

    assert where.server is not None
    address = urlsplit(where.server)
    report |= {"server": shown_url(where.server), "server_works": False}
    if address.scheme == "http" and address.hostname not in LOCAL:
        yield Check("tls", "warn", "the token travels unencrypted", "serve HTTPS through a proxy")
    client = open_client(where)
    try:
        yield from _remote(client, where.server, report)
    finally:
        client.close()


def _remote(client: Client, server: str, report: dict[str, Any]) -> Iterator[Check]:
    import httpx

    counts = client.stats()
    report["server_works"] = True
    yield Check("server", "ok", f"{report['server']} answers, and the token is valid")
    ready = httpx.get(server.rstrip("/") + "/readyz", timeout=10)
    say = "" if ready.is_success else "see the body of GET /readyz and the log of the server"
    yield Check("ready", "ok" if ready.is_success else "fail", f"/readyz answers {ready.status_code}", say)
    yield _clock(counts.now, time.time() - CLOCK_SECONDS_MAX, time.time())
    yield from _workers(client, report)


COMMANDS = (doctor,)
