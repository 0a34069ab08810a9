"""Commands that show the events and progress of a run until it has ended.

On a terminal, finished steps scroll above a live bar. Elsewhere each event is one line of text, and with ``--json``
each line is one JSON document. Ctrl-C does not change the run and exits with 130.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.event_lines import Line, NodeProgress, Story
from holdfast.cli.options import (
    Where,
    as_exit_code,
    full_id,
    json_option,
    json_value,
    reader,
    run_argument,
    show_result,
    where_options,
)
from holdfast.cli.terminal_text import echo, echo_json
from holdfast.cli.text_table import lasted, on_terminal

if TYPE_CHECKING:
    from holdfast.client.interface import Client
    from holdfast.machines import Event, RunRecord

POLL_SECONDS = 1.0  # between two reads of events while the record does not change


def follow_run(client: Client, run_id: str, *, as_json: bool) -> int:
    """Show a run, and the runs that continue it, until the last one has ended. Return the exit code."""
    show = _as_json if as_json else _live if on_terminal() else _as_lines
    try:
        record = show(client, run_id)
        while record.continued_as is not None:
            if not as_json:
                echo(f"continued as {record.continued_as}")
            run_id = client.current(run_id)
            record = show(client, run_id)
    except KeyboardInterrupt:
        echo(f"the run continues: holdfast follow {run_id}", err=True)
        raise
    if not as_json and record.status == "succeeded":
        echo_json(client.outcome(run_id))
    return as_exit_code(record.status)


def _watch(client: Client, run_id: str, show: Callable[[RunRecord, list[Event]], None]) -> RunRecord:
    return client.block(_changes(client, run_id, show))


async def _changes(client: Client, run_id: str, show: Callable[[RunRecord, list[Event]], None]) -> RunRecord:
    """Call `show` with the record and the new events at each change until the run has ended. Return the last record.

    A watch reports changed records. The start of a step does not change the record on every client, so this also reads
    the events every second.
    """
    import asyncio

    from holdfast.machines import TERMINAL_RUN_STATUSES

    records = client.awatch(run_id)
    record = await anext(records)
    coming: asyncio.Future[RunRecord | None] | None = None
    seen, changed = 0, True
    try:
        while True:
            news = await client.aevents(run_id, after=seen)
            seen = news[-1].seq if news else seen
            mine = [event for event in news if record.created_at <= event.at <= (record.finished_at or event.at)]
            if mine or changed:
                show(record, mine)
            if record.status in TERMINAL_RUN_STATUSES:
                return record
            coming = coming or asyncio.ensure_future(_next(records))
            await asyncio.wait({coming}, timeout=POLL_SECONDS)
            changed = coming.done()
            if changed:
                record, coming = coming.result() or await client.aget(run_id), None
    finally:
        if coming is not None:
            coming.cancel()


async def _next(records: AsyncIterator[RunRecord]) -> RunRecord | None:
    return await anext(records, None)


def _as_json(client: Client, run_id: str) -> RunRecord:
    def show(record: RunRecord, news: list[Event]) -> None:
        for event in news:
            echo_json({"event": json_value(event)})
        echo_json({"run": json_value(record)})

    return _watch(client, run_id, show)


def _as_lines(client: Client, run_id: str) -> RunRecord:
    story, nodes = Story(), NodeProgress()
    shown: list[tuple[Any, ...]] = [()]
    progress: list[str | None] = [None]

    def show(record: RunRecord, news: list[Event]) -> None:
        for line in filter(None, map(story.tell, news)):
            echo(_line(line))
        progress.append(nodes.take(news))
        if progress[-1] is not None and progress[-1] != progress[-2]:
            echo(f"{'':>12}{progress[-1]}")
        reported = (record.progress, record.message)
        if any(reported) and reported != shown[-1] and record.finished_at is None:
            echo(f"{'':>12}{_reported(record)}")
            shown.append(reported)

    echo(f"run {run_id}")
    record = _watch(client, run_id, show)
    echo(_ended(record))
    return record


def _live(client: Client, run_id: str) -> RunRecord:
    from holdfast.cli.live_view import Screen

    story, nodes = Story(), NodeProgress()
    with Screen(run_id) as screen:

        def show(record: RunRecord, news: list[Event]) -> None:
            for line in filter(None, map(story.tell, news)):
                screen.say(line)
            line_of_nodes = nodes.take(news)
            progress = {line_of_nodes: line_of_nodes} if line_of_nodes else {}
            screen.show(record, {**progress, **{node: story.called(node) for node in story.open}})

        record = _watch(client, run_id, show)
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
    """Show RUN live until it has ended.

    Print each step, then the result. With --json, print one document per line: each event, and the record at each
    change. The exit code is 1 if the run did not succeed.
    """
    client = reader(where)
    click.get_current_context().exit(follow_run(client, full_id(client, run), as_json=as_json))


@click.command(epilog="Example: holdfast events 3f2a --follow")
@run_argument
@where_options
@click.option("--follow", "following", is_flag=True, help="Also list new events until the run has ended.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only events after this number.")
@json_option
def events(run: str, where: Where, following: bool, after: int, as_json: bool) -> None:
    """List the events of the job of RUN, oldest first. With --follow --json, print one document per line."""
    client = reader(where)
    run_id = full_id(client, run)
    if not following:
        listed = client.events(run_id, after=after)
        since = listed[0].at if listed else 0.0
        show_result(listed, as_json=as_json, text=lambda: "\n".join(_event(event, since) for event in listed))
        return

    first: list[float] = []

    def show(record: RunRecord, news: list[Event]) -> None:
        del record
        for event in news:
            first[:] = first or [event.at]
            if event.seq > after:
                echo(json.dumps(json_value(event), ensure_ascii=False) if as_json else _event(event, first[0]))

    _watch(client, run_id, show)


def _event(event: Event, first: float) -> str:
    fields = ("node", "reason", "worker", "correlation_key", "outcome", "result")
    return f"{event.seq:>4} {event.at - first:>9.3f}s  {event.attempt or '':>3}  {event.type:<26}" + "  ".join(
        f"{name}={event.payload[name]}" for name in fields if event.payload.get(name) is not None
    )


COMMANDS = (follow, events)
