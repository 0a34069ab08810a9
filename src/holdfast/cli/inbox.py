"""The command that lists what waits for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.options import Where, json_option, reader, show_result, where_options

if TYPE_CHECKING:
    from holdfast.client.overview.inbox import Question


@click.command(epilog="Example: holdfast inbox --kind doubt")
@click.option("--kind", type=click.Choice(["doubt", "answer", "budget"]), help="Only questions of this kind.")
@click.option("--group", help="Only runs of this group.")
@click.option("--after", help="Only questions after this one, the last id of the previous page.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number.")
@where_options
@json_option
def inbox(kind: str | None, group: str | None, after: str | None, limit: int, where: Where, as_json: bool) -> None:
    """List everything that waits for a person, oldest run first.

    Print each question, and the command that answers it.
    """
    from holdfast.cli.terminal_text import echo
    from holdfast.cli.text_table import ago

    asked = reader(where).inbox(kind=kind, group=group, after=after, limit=limit)
    if as_json:
        show_result(asked, as_json=True, text=str)
        return
    for one in asked:
        echo(f"{one.run_id}  {one.plugin_id}.{one.entry_id}  {one.kind}  {ago(one.since)}")
        echo(f"    {one.question}")
        if one.misfit is not None:
            echo(f"    The last answer could not be used: {one.misfit}")
        echo(f"    {_command(one)}")
    if not asked:
        echo("nothing waits for a person", err=True)


def _command(question: Question) -> str:
    """Return the command that answers a question."""
    import shlex

    run, key = question.run_id, shlex.quote(question.key)
    if question.kind == "doubt":
        return f"holdfast resolve {run} {key} --done RESULT | --not-done | --fail"
    if question.kind == "budget":
        units = " ".join(f"{shlex.quote(unit)}=N" for unit in question.amounts or {}) or "UNIT=N"
        return f"holdfast grant {run} {units}"
    return f"holdfast signal {run} {key} JSON"


COMMANDS = (inbox,)
