"""Commands that look and change nothing: runs, their records and events, why they stand still, and who works."""

from __future__ import annotations

import click

from holdfast.surfaces.common import client, full_id, json_option, plain, show_result, url_option

__all__ = ["COMMANDS"]


@click.command()
@url_option
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many.")
@json_option
def runs(url: str | None, limit: int, as_json: bool) -> None:  # noqa: FBT001 - a flag of the command line
    """List runs, newest first."""
    found = client(url).list(limit=limit)

    def table() -> str:
        lines = [f"{'RUN':<38} {'JOB':<30} {'STATUS':<17} STAGE"]
        lines += [
            f"{one.run_id:<38} {one.plugin_id + '.' + one.entry_id:<30} {one.status:<17} {one.stage or ''}"
            for one in found
        ]
        return "\n".join(lines) if found else "no runs"

    show_result(found, as_json=as_json, text=table)


@click.command()
@click.argument("run")
@url_option
@json_option
def show(run: str, url: str | None, as_json: bool) -> None:  # noqa: FBT001 - a flag of the command line
    """Show the record of RUN."""
    app = client(url)
    record = app.get(full_id(app, run))
    show_result(
        record,
        as_json=as_json,
        text=lambda: "\n".join(
            f"{name:<20} {value}" for name, value in plain(record).items() if value not in (None, {}, [])
        ),
    )


@click.command()
@click.argument("run")
@url_option
@json_option
def events(run: str, url: str | None, as_json: bool) -> None:  # noqa: FBT001 - a flag of the command line
    """List what has happened to RUN, oldest first."""
    app = client(url)
    found = app.block(app.store().events(full_id(app, run).partition(".")[0]))

    def table() -> str:
        first = found[0].at
        said = ("node", "reason", "worker", "correlation_key", "outcome", "result")
        return "\n".join(
            f"{one.seq:>4} {one.at - first:>9.3f}s  {one.attempt or '':>3}  {one.type:<26}"
            + "  ".join(f"{name}={one.payload[name]}" for name in said if one.payload.get(name) is not None)
            for one in found
        )

    show_result(found, as_json=as_json, text=table)


@click.command(name="explain")
@click.argument("run")
@click.option("--target", help="The file or module with the App, to know what it can run.")
@url_option
@json_option
def explain_run(run: str, target: str | None, url: str | None, as_json: bool) -> None:  # noqa: FBT001 - a flag of the command line
    """Say in plain words where RUN is, who holds it, what will wake it and when."""
    from holdfast.client.explain import explain  # noqa: PLC0415 - see the module's promise
    from holdfast.surfaces.targets import load  # noqa: PLC0415 - see the module's promise

    app = load(target, url) if target is not None else client(url)
    job = full_id(app, run).partition(".")[0]
    row, now = app.block(app.store().get(job)), app.block(app.store().now())
    assert row is not None, "its id was completed from the store"
    said = explain(row, now, app.entries if target is not None else None, app.evidence(job))
    show_result({"job": row.id, "state": row.state, "explanation": said}, as_json=as_json, text=lambda: said)


@click.command()
@url_option
@json_option
def workers(url: str | None, as_json: bool) -> None:  # noqa: FBT001 - a flag of the command line
    """List who works here, what each runs, and which step that is in since when."""
    app = client(url)
    found, now = app.workers(), app.block(app.store().now())

    def table() -> str:
        lines = []
        for one in found:
            card, heard = one.card, now - one.card.seen_at
            lines.append(
                f"{card.name}  {card.host} pid {card.pid}  {len(one.running)} of {card.slots} slots"
                f"  heard of {heard:.0f} s ago{'' if one.alive else ', LOST'}"
            )
            for job in one.running:
                steps = ", ".join(f"{step.node} for {now - step.since:.1f} s" for step in job.steps)
                lines.append(f"    {job.job}  {job.entry}  attempt {job.attempt}  {steps}".rstrip())
        return "\n".join(lines) or "no workers"

    show_result(found, as_json=as_json, text=table)


COMMANDS = (runs, show, events, explain_run, workers)
