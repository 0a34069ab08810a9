"""Commands that maintain a store: schema migration, removal of old runs, moves to PostgreSQL, and backups."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import click

from holdfast.cli.operate import act_on_matching, actor_of, actor_option
from holdfast.cli.options import Where, json_option, local_app, open_client, show_result, url_option, where_options
from holdfast.cli.run_filters import filter_options, moment
from holdfast.cli.terminal_text import ProgressLine


@click.command(epilog="Example: holdfast migrate --check || holdfast migrate")
@url_option
@click.option("--check", is_flag=True, help="Change nothing. The exit code is 1 if a migration is missing.")
@json_option
def migrate(url: str | None, check: bool, as_json: bool) -> None:
    """Migrate the schema of the store to this release. Migrations go forward only, one process at a time."""
    from holdfast.client.maintenance.store_migration import migrate as apply_migrations

    app = local_app(url)
    migration = app.block(apply_migrations(app.url, check=check))

    def text() -> str:
        if not migration.missing:
            return f"schema {migration.newest}: up to date"
        numbers = ", ".join(map(str, migration.missing))
        return f"schema {migration.schema} of {migration.newest}: {'missing' if check else 'applied'} {numbers}"

    show_result(migration, as_json=as_json, text=text)
    sys.exit(1 if check and migration.missing else 0)


@click.command(epilog="Example: holdfast purge --older-than 30d --status succeeded")
@where_options
@filter_options
@click.option("--older-than", help="Minimum time since the end of a run: 30d, 12h, 1w.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of runs to remove.  [default: all]")
@actor_option
@click.option("--dry-run", is_flag=True, help="List the runs that match, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before runs are removed.")
@json_option
def purge(
    *,
    where: Where,
    filters: dict[str, Any],
    older_than: str | None,
    limit: int | None,
    actor: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove ended runs with all their data. Runs that have not ended are never removed.

    With --older-than, and no other filter than --status, remove all such runs, oldest first, without a question. With
    --server, the server does it in a run of its own, which you can cancel.

    With other filters, list the runs first and ask. Retention has its usual rules: a run that its parent or its chain
    needs is refused, and the exit code is 4.
    """
    if older_than is None and not filters:
        raise click.UsageError("give --older-than, or another option that selects runs, such as --finished-before")
    if older_than is not None and dry_run and limit is not None:
        raise click.UsageError("--dry-run lists all runs that are old enough: leave --limit out")
    if older_than is not None and not (
        dry_run or filters.keys() - {"status"} or "timeout" in filters.get("status", ())
    ):
        _purge_all(where, older_than, limit, filters.get("status", ()), as_json=as_json)
        return
    if older_than is not None:
        oldest = moment(older_than, "--older-than")
        filters["finished_before"] = min(oldest, filters.get("finished_before", oldest))
    client = open_client(where)
    act = partial(client.purge_runs, actor=actor_of(where, actor), **filters)
    act_on_matching("purge", act, as_json=as_json, dry_run=dry_run, yes=yes, most=limit)


def _purge_all(where: Where, older_than: str, limit: int | None, statuses: tuple[str, ...], *, as_json: bool) -> None:
    options: dict[str, Any] = {"statuses": statuses} if statuses else {}
    if where.server is not None:
        options["on_progress"] = ProgressLine()
    removed = open_client(where).purge(older_than=older_than, limit=limit, **options)
    show_result({"removed": removed}, as_json=as_json, text=lambda: f"removed {removed}")


@click.command(name="migrate-store", epilog="Example: holdfast migrate-store sqlite:///holdfast.db postgresql:///shop")
@click.argument("source")
@click.argument("target")
@click.option("--abort", is_flag=True, help="Undo an interrupted move: open SOURCE again.")
@json_option
def migrate_store(source: str, target: str, abort: bool, as_json: bool) -> None:
    """Move all jobs from SQLite to PostgreSQL.

    SOURCE is sqlite:///path and TARGET is postgresql://host/database. Running jobs move, too. SOURCE is closed
    permanently. After an interruption, run the same command again to continue.
    """
    from holdfast.client.maintenance.move_store import move, take_back

    if abort:
        back = take_back(source, target)
        message = "the move was undone: the source is open again" if back else "there was no move to undo"
        show_result({"taken_back": back}, as_json=as_json, text=lambda: message)
        return
    moved = move(source, target)

    def text() -> str:
        lines = [
            f"moved {moved.jobs} jobs, {moved.events} events, {moved.signals} signals, {moved.evidence} of evidence",
            f"to {moved.target}; the copy was read back and compared",
            f"{moved.requeued} jobs were running and now wait for a worker there",
            *(f"{job}: moved unchanged, and verify reports problems with it" for job in moved.broken),
        ]
        return "\n".join(lines)

    show_result(moved, as_json=as_json, text=text)


@click.command(epilog="Example: holdfast backup backups/monday.db")
@click.argument("destination")
@url_option
@click.option("--force", is_flag=True, help="Replace DESTINATION if it exists.")
@json_option
def backup(destination: str, url: str | None, force: bool, as_json: bool) -> None:
    """Back up the SQLite database to DESTINATION.

    Workers may use the database during the copy. The command checks the copy. The file DESTINATION appears when the
    copy is complete and on disk. For a PostgreSQL database, use pg_dump.
    """
    from holdfast.client.backup import backup as back_up

    copy = back_up(local_app(url).url, destination, force=force)
    counts = f"{copy.bytes:,} bytes, {copy.jobs:,} jobs, {copy.events:,} events"
    show_result(copy, as_json=as_json, text=lambda: f"{copy.path}: {counts}, integrity ok")


COMMANDS = (migrate, purge, migrate_store, backup)
