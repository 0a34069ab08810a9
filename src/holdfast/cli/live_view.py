"""The live view of one run on a terminal. Finished steps scroll; steps in progress and a bar stay below them.

Only this module draws, and it is imported on a terminal only. rich decides about colours. It respects NO_COLOR and
terminals without colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from holdfast.cli.event_lines import BEGAN
from holdfast.cli.terminal_text import safe_text
from holdfast.cli.text_table import STYLES

if TYPE_CHECKING:
    from holdfast.cli.event_lines import Line
    from holdfast.machines import RunRecord

SHOWN_MAX = 8  # steps in progress that are listed one by one


class Screen:
    """A terminal that shows one run live."""

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
        self._steps = Progress(
            SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(), console=self._console
        )
        self._under_way: dict[str, TaskID] = {}
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
        """Print a line above the bar. A step that has only started is left out: `show` draws it below."""
        if line.mark != BEGAN:
            self._console.print(Text(f"{line.seconds:>8.2f}s {line.mark} {safe_text(line.text)}", style=line.style))

    def show(self, record: RunRecord, under_way: Mapping[str, str]) -> None:
        """Draw the steps in progress, given by node and text, and the progress of the run."""
        shown = dict(list(under_way.items())[:SHOWN_MAX])
        for node in [node for node in self._under_way if node not in shown]:
            self._steps.remove_task(self._under_way.pop(node))
        for node, text in shown.items():
            if node not in self._under_way:
                self._under_way[node] = self._steps.add_task(safe_text(text), total=None)
        more = len(under_way) - len(shown)
        rest = [Text(f"  and {more} more", style="dim")] if more else []
        self._bar.update(
            self._task,
            description=_description(record),
            total=1.0 if record.progress is not None else None,
            completed=record.progress or 0.0,
        )
        self._live.update(Group(*([self._steps] if shown else []), *rest, self._bar))

    def end(self, text: str, status: str) -> None:
        """Print how the run has ended."""
        self._console.print(Text(safe_text(text), style=f"bold {STYLES.get(status, '')}".strip()))


def _description(record: RunRecord) -> str:
    steps = f"{record.step}/{record.step_total}" if record.step_total else None
    return "  ".join(safe_text(part) for part in (record.stage or str(record.status), steps, record.message) if part)
