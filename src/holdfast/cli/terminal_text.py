"""Text of others on a terminal: control characters are shown, not obeyed.

Names, messages, payloads and results come from clients and job code. An escape sequence in them could change the title
or the clipboard of an operator's terminal, or overwrite lines. So every text that may hold such data is printed here.
So is the progress of a built-in run, while a command waits for its result. In tracebacks, the frames of Holdfast itself
are folded into one line.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from holdfast.machines import RunRecord

# Control characters other than tab and line feed, those of the second set, and marks that change the direction of text.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_FRAME = re.compile(r'\s+File "(?P<file>[^"]*)", line \d+')
_OWN = re.compile(
    r"[/\\]holdfast[/\\](?:authoring|cli|client|engine|http|machines|plans|ready|schedules|store)[/\\]|<string>|[/\\]asyncio[/\\]"
)


def safe_text(text: str) -> str:
    """Return text with each control character as an escape of JSON. In a JSON document it keeps its meaning."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(text: str, *, err: bool = False) -> None:
    """Print a text that may hold data of others."""
    click.echo(safe_text(text), err=err)


def echo_json(value: Any, indent: int | None = None) -> None:
    """Print a value as JSON."""
    echo(json.dumps(value, indent=indent, ensure_ascii=False))


class ProgressLine:
    """The progress of a run on standard error: how to cancel it, then one line that changes, on a terminal only."""

    def __init__(self) -> None:
        self._started = False

    def __call__(self, record: RunRecord) -> None:
        """Show the latest record of the run."""
        if not self._started:
            self._started = True
            echo(f"run {record.run_id} (holdfast cancel {record.run_id} stops it)", err=True)
        if sys.stderr.isatty():
            share = f"{record.progress:4.0%} " if record.progress is not None else ""
            end = "\n" if record.finished_at is not None else ""
            click.echo(f"\r\x1b[K{share}{safe_text(record.message or record.status)}{end}", err=True, nl=False)


def folded(trace: str) -> Iterator[str]:
    """Yield the lines of a traceback. Frames of Holdfast and asyncio in a row become one line with their number."""
    own = 0  # frames of Holdfast since the last line
    inside = False  # in a frame of Holdfast
    for line in trace.rstrip().splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            inside = _OWN.search(frame["file"]) is not None
            own += inside
        elif not line.startswith("    "):
            inside = False
        if inside:
            continue
        if own:
            yield f"  … {own} frame{'s' if own > 1 else ''} of Holdfast"
            own = 0
        yield line
