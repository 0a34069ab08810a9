"""Tables: with colours on a terminal, and as aligned text elsewhere.

rich is imported on a terminal only. It respects NO_COLOR. Ids are never truncated, so that users can copy them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from holdfast.cli.terminal_text import safe_text

# Terminal styles of run statuses and worker states.
STYLES = {
    "queued": "cyan",
    "running": "blue",
    "succeeded": "green",
    "failed": "red",
    "timeout": "red",
    "canceled": "yellow",
    "cancel_requested": "yellow",
    "alive": "green",
    "lost": "red",
}
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
GAP = 2  # between columns
MILLISECONDS_BELOW = 10.0  # seconds; shorter durations have a fraction or milliseconds


def on_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str, spare: Sequence[str] = ()) -> None:
    """Print rows under their heads, or `empty`. On a terminal that is too narrow, leave out the `spare` columns."""
    rows = [[safe_text(cell) for cell in row] for row in rows]
    if not rows:
        click.echo(empty)
    elif on_terminal():
        _rich(heads, rows, spare)
    else:
        widths = [max(len(row[place]) for row in [heads, *rows]) for place in range(len(heads))]
        for row in [heads, *rows]:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rich(heads: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    widths = {head: max(len(row[place]) for row in [heads, *rows]) for place, head in enumerate(heads)}
    left = list(heads)
    for head in reversed(spare):
        if sum(widths[column] + GAP for column in left) > console.width + GAP:
            left.remove(head)
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="bold", pad_edge=False)
    for head in left:
        fixed = head is not left[-1]  # only the last column wraps
        table.add_column(head, no_wrap=fixed, min_width=widths[head] if fixed else None, overflow="fold")
    for row in rows:
        cells = [cell for head, cell in zip(heads, row, strict=True) if head in left]
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in cells))
    console.print(table)


def ago(at: float | None, now: float | None = None) -> str:
    """Return the time since a moment, such as ``5 min ago``, or until it, such as ``in 5 min``."""
    if at is None:
        return ""
    distance = (time.time() if now is None else now) - at
    return f"in {lasted(-distance)}" if distance < 0 else f"{lasted(distance)} ago"


def lasted(duration: float) -> str:
    """Return a duration with its unit, such as ``12 min``."""
    if duration < MILLISECONDS_BELOW:
        return f"{duration:.2g} s" if duration >= 0.1 else f"{duration * 1000:.0f} ms"  # noqa: PLR2004 - a tenth
    size, unit = next((size, unit) for size, unit in _UNITS if duration >= size)
    return f"{duration / size:.0f} {unit}"


def bar(progress: float | None) -> str:
    """Return a progress in per cent."""
    return "" if progress is None else f"{progress:.0%}"
