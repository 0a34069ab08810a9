"""The live view of one run on a terminal: what is done scrolls by, what is under way stays below it, with a bar.

The only module that draws; it is imported on a terminal only. Colours are rich's to decide: it honours NO_COLOR and
terminals that have none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.spinner import Spinner
from rich.text import Text

from holdfast.surfaces.tables import STYLES, lasted

if TYPE_CHECKING:
    from holdfast.machines import RunRecord
    from holdfast.surfaces.telling import Line

__all__ = ["Screen"]

SHOWN_MAX = 8  # steps under way that are listed one by one


class Screen:
    """A terminal on which one run is followed."""

    def __init__(self, run_id: str, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("queued", total=None)
        self._spinners: dict[str, Spinner] = {}
        self._live = Live(self._bar, console=self._console, transient=True, refresh_per_second=10)
        self._console.print(Text.assemble("run ", (run_id, "bold")), soft_wrap=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def say(self, line: Line) -> None:
        """Print what has happened, above; what has only begun is shown below."""
        if not line.text.endswith(" began"):
            self._console.print(Text(f"{line.seconds:>8.2f}s {line.mark} {line.text}", style=line.style))

    def show(self, record: RunRecord, under_way: Mapping[str, float]) -> None:
        """Draw what is under way, and how far the run is."""
        now = time.time()
        shown = dict(list(under_way.items())[:SHOWN_MAX])
        for node, since in shown.items():
            if node not in self._spinners:
                self._spinners[node] = Spinner("dots", Text(f"{node}  since {lasted(max(0.0, now - since))}"))
        self._spinners = {node: spinner for node, spinner in self._spinners.items() if node in shown}
        more = len(under_way) - len(shown)
        rest = [Text(f"  and {more} more", style="dim")] if more else []
        self._bar.update(
            self._task,
            description=_description(record),
            total=1.0 if record.progress is not None else None,
            completed=record.progress or 0.0,
        )
        self._live.update(Group(*self._spinners.values(), *rest, self._bar))

    def end(self, text: str, status: str) -> None:
        """Say how it has ended."""
        self._console.print(Text(text, style=f"bold {STYLES.get(status, '')}".strip()))


def _description(record: RunRecord) -> str:
    steps = f"{record.step}/{record.step_total}" if record.step_total else None
    return "  ".join(part for part in (record.stage or str(record.status), steps, record.message) if part)
