"""The command that lists who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import Where, json_option, open_client, show_result, where_options

if TYPE_CHECKING:
    from holdfast.store.audit import AuditRow


@click.command(epilog="Example: holdfast audit --limit 20")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number of rows.")
@click.option("--before", type=click.IntRange(1), help="Only rows before this number.")
@where_options
@json_option
def audit(limit: int, before: int | None, where: Where, as_json: bool) -> None:
    """List who did what to which run or queue, newest first.

    Every command of an operator has a row. Created runs and signals have one if a token was used.
    """
    from holdfast.cli.text_table import show_table

    rows = open_client(where).audit(before=before, limit=limit)
    if as_json:
        show_result(rows, as_json=True, text=str)
        return
    heads = ("NUMBER", "TIME", "ACTOR", "VERB", "SUBJECT", "DETAIL")
    show_table(heads, [_cells(row) for row in rows], empty="no audit rows", spare=("NUMBER",))


def _cells(row: AuditRow) -> list[str]:
    import json
    import time

    detail: Any = json.dumps(row.detail, ensure_ascii=False) if row.detail else ""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row.at))
    actor = row.actor if row.said is None else f"{row.actor} as {row.said}"
    return [str(row.number), at, actor, row.verb, row.subject, detail]


COMMANDS = (audit,)
