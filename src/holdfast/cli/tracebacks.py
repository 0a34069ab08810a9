"""Tracebacks as text for people: the frames of Holdfast itself are folded into one line."""

from __future__ import annotations

import re
from collections.abc import Iterator

_FRAME = re.compile(r'\s+File "(?P<file>[^"]*)", line \d+')
_OWN = re.compile(
    r"[/\\]holdfast[/\\](?:authoring|cli|client|engine|http|machines|plans|ready|store)[/\\]|<string>|[/\\]asyncio[/\\]"
)


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
