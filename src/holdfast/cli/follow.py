"""Commands that stay: what happens to a run, as it happens, until it has ended.

On a terminal finished steps scroll by above a live bar; anywhere else each event is one plain line, and with ``--json``
one JSON document a line. Ctrl-C leaves the run alone and exits with 130.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.event_lines import Line, Story
from holdfast.cli.node_line import Nodes
from holdfast.cli.options import (
    Where,
    as_exit_code,
    client,
    full_id,
    json_option,
    plain,
    run_argument,
    show_result,
    where_options,
)
from holdfast.cli.text_table import lasted, on_terminal

if TYPE_CHECKING:
    from holdfast.client.interface import Client
    from holdfast.machines import Event, RunRecord

__all__ = ["COMMANDS", "follow_run"]


def follow_run(asked: Client, run_id: str, *, as_json: bool) -> int:
    """Show a run, and the runs that go on for it, until the last has ended; the exit code for how it did."""
    show = _as_json if as_json else _live if on_terminal() else _as_lines
    try:
        record = show(asked, run_id)
        while record.continued_as is not None:
            if not as_json:
                click.echo(f"continued as {record.continued_as}")
            run_id = asked.current(run_id)
            record = show(asked, run_id)
    except KeyboardInterrupt:
        click.echo(f"the run goes on: holdfast follow {run_id}", err=True)
        raise
    if not as_json and record.status == "succeeded":
        click.echo(json.dumps(asked.outcome(run_id), ensure_ascii=False))
    return as_exit_code(record.status)


def _followed(asked: Client, run_id: str, tell: Callable[[RunRecord, list[Event]], None]) -> RunRecord:
    from holdfast.cli.run_changes import follow as watched

    return asked.block(watched(asked, run_id, tell))


def _as_json(asked: Client, run_id: str) -> RunRecord:
    def tell(record: RunRecord, news: list[Event]) -> None:
        for event in news:
            click.echo(json.dumps({"event": plain(event)}, ensure_ascii=False))
        click.echo(json.dumps({"run": plain(record)}, ensure_ascii=False))

    return _followed(asked, run_id, tell)


def _as_lines(asked: Client, run_id: str) -> RunRecord:
    story, nodes = Story(), Nodes()
    shown: list[tuple[Any, ...]] = [()]
    far: list[str | None] = [None]

    def tell(record: RunRecord, news: list[Event]) -> None:
        for line in filter(None, map(story.tell, news)):
            click.echo(_line(line))
        far.append(nodes.take(news))
        if far[-1] is not None and far[-1] != far[-2]:
            click.echo(f"{'':>12}{far[-1]}")
        reported = (record.progress, record.message)
        if any(reported) and reported != shown[-1] and record.finished_at is None:
            click.echo(f"{'':>12}{_reported(record)}")
            shown.append(reported)

    click.echo(f"run {run_id}")
    record = _followed(asked, run_id, tell)
    click.echo(_ended(record))
    return record


def _live(asked: Client, run_id: str) -> RunRecord:
    from holdfast.cli.live_view import Screen

    story, nodes = Story(), Nodes()
    with Screen(run_id) as screen:

        def tell(record: RunRecord, news: list[Event]) -> None:
            for line in filter(None, map(story.tell, news)):
                screen.say(line)
            far = nodes.take(news)
            screen.show(record, {**({far: far} if far else {}), **{node: story.called(node) for node in story.open}})

        record = _followed(asked, run_id, tell)
    screen.end(_ended(record), str(record.status))
    return record


def _line(line: Line) -> str:
    return f"{line.seconds:>9.3f}s  {line.text}"


def _reported(record: RunRecord) -> str:
    steps = f"step {record.step} of {record.step_total}" if record.step_total else None
    done = f"{record.progress:.0%}" if record.progress is not None else None
    return "  ".join(part for part in (done, record.stage, steps, record.message) if part)


def _ended(record: RunRecord) -> str:
    took = f" in {lasted(record.finished_at - record.created_at)}" if record.finished_at is not None else ""
    reason = f": {record.error.message}" if record.error is not None else ""
    return f"{record.status}{took}{reason}"


@click.command(epilog="Example: holdfast follow 3f2a")
@run_argument
@where_options
@json_option
def follow(run: str, where: Where, as_json: bool) -> None:
    """Show RUN live, step by step, until it has ended; then its result.

    With --json, one document a line: events as they happen, and the record at each change. Exit code 1 if the run
    did not succeed.
    """
    asked = client(where)
    click.get_current_context().exit(follow_run(asked, full_id(asked, run), as_json=as_json))


@click.command(epilog="Example: holdfast events 3f2a --follow")
@run_argument
@where_options
@click.option("--follow", "following", is_flag=True, help="Stay, and list more as it happens, until the run has ended.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only those behind this number.")
@json_option
def events(run: str, where: Where, following: bool, after: int, as_json: bool) -> None:
    """List what has happened to the job of RUN, oldest first. With --follow --json, one document a line."""
    asked = client(where)
    run_id = full_id(asked, run)
    if not following:
        found = asked.events(run_id, after=after)
        since = found[0].at if found else 0.0
        show_result(found, as_json=as_json, text=lambda: "\n".join(_event(one, since) for one in found))
        return

    first: list[float] = []

    def tell(record: RunRecord, news: list[Event]) -> None:
        del record
        for one in news:
            first[:] = first or [one.at]
            if one.seq > after:
                click.echo(json.dumps(plain(one), ensure_ascii=False) if as_json else _event(one, first[0]))

    _followed(asked, run_id, tell)


def _event(one: Event, first: float) -> str:
    said = ("node", "reason", "worker", "correlation_key", "outcome", "result")
    return f"{one.seq:>4} {one.at - first:>9.3f}s  {one.attempt or '':>3}  {one.type:<26}" + "  ".join(
        f"{name}={one.payload[name]}" for name in said if one.payload.get(name) is not None
    )


COMMANDS = (follow, events)
