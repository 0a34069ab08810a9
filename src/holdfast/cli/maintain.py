"""Commands about the store itself: whether its schema is up to date, what it may forget, and where it goes."""

from __future__ import annotations

import sys

import click

from holdfast.cli.options import Where, client, json_option, local_app, show_result, url_option, where_options

__all__ = ["COMMANDS"]


@click.command(epilog="Example: holdfast migrate --check || holdfast migrate")
@url_option
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if something is missing.")
@json_option
def migrate(url: str | None, check: bool, as_json: bool) -> None:
    """Bring the store's schema up to this release: numbered migrations, forward only, one process at a time."""
    from holdfast.client.store_migration import migrate as bring_up

    app = local_app(url)
    found = app.block(bring_up(app.url, check=check))

    def text() -> str:
        if not found.missing:
            return f"schema {found.newest}: nothing is missing"
        numbers = ", ".join(map(str, found.missing))
        return f"schema {found.schema} of {found.newest}: {'missing' if check else 'applied'} {numbers}"

    show_result(found, as_json=as_json, text=text)
    sys.exit(1 if check and found.missing else 0)


@click.command(epilog="Example: holdfast purge --older-than 30d --status succeeded")
@where_options
@click.option("--older-than", required=True, help="How long ago a run must have ended: 30d, 12h, 1w.")
@click.option("--limit", type=click.IntRange(1), help="Remove so many at most.  [default: all]")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(["succeeded", "failed", "canceled"]),
    help="Only runs that ended so; may be given again.  [default: all]",
)
@json_option
def purge(
    where: Where,
    older_than: str,
    limit: int | None,
    statuses: tuple[str, ...],
    as_json: bool,
) -> None:
    """Remove runs that ended long ago, oldest first, with everything that is kept of them; never one that goes on."""
    chosen = {"statuses": statuses} if statuses else {}
    removed = client(where).purge(older_than=older_than, limit=limit, **chosen)
    show_result({"removed": removed}, as_json=as_json, text=lambda: f"removed {removed}")


@click.command(name="migrate-store", epilog="Example: holdfast migrate-store sqlite:///holdfast.db postgresql:///shop")
@click.argument("source")
@click.argument("target")
@click.option("--abort", is_flag=True, help="Take back a move that was interrupted: open SOURCE again.")
@json_option
def migrate_store(source: str, target: str, abort: bool, as_json: bool) -> None:
    """Move all jobs from SOURCE, sqlite:///…, to TARGET, postgresql://…, running ones included.

    SOURCE is closed for ever. Interrupted, the same command goes on.
    """
    from holdfast.client.move_store import move, take_back

    if abort:
        back = take_back(source, target)
        said = "the move is taken back: the source is open again" if back else "there was no move to take back"
        show_result({"taken_back": back}, as_json=as_json, text=lambda: said)
        return
    moved = move(source, target)

    def text() -> str:
        lines = [
            f"moved {moved.jobs} jobs, {moved.events} events, {moved.signals} signals, {moved.evidence} of evidence",
            f"to {moved.target}; read back and compared",
            f"{moved.requeued} were running and wait for a worker there",
            *(f"{job}: moved as it is, and verify objects to it" for job in moved.broken),
        ]
        return "\n".join(lines)

    show_result(moved, as_json=as_json, text=text)


@click.command(epilog="Example: holdfast backup backups/monday.db")
@click.argument("destination")
@url_option
@click.option("--force", is_flag=True, help="Replace DESTINATION if it exists.")
@json_option
def backup(destination: str, url: str | None, force: bool, as_json: bool) -> None:
    """Copy the SQLite database to the file DESTINATION while workers use it, and check the copy.

    DESTINATION appears when the copy is complete and on disk. A PostgreSQL database is backed up with pg_dump.
    """
    from holdfast.client.backup import backup as back_up

    made = back_up(local_app(url).url, destination, force=force)
    counts = f"{made.bytes:,} bytes, {made.jobs:,} jobs, {made.events:,} events"
    show_result(made, as_json=as_json, text=lambda: f"{made.path}: {counts}, integrity ok")


COMMANDS = (migrate, purge, migrate_store, backup)
