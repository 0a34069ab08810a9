"""A description of what blocks an event loop: the job, the step and the line of user code.

It is read from another thread, so it shows one moment only. What cannot be determined is left out.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from holdfast.authoring.functions import Call
from holdfast.engine.job_attempt import Attempt

T = TypeVar("T")

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARY = str(Path(threading.__file__).parent)


def describe(thread: threading.Thread) -> str:
    """Return one line for the log that says what a thread is doing."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the documented way to see another thread
    if frame is None:
        return "its thread has ended"
    frames = list(_outwards(frame))
    attempt = next((value for each in frames for value in _values(each, Attempt)), None)
    call: Call[..., Any] | None = next((value for each in frames for value in _values(each, Call)), None)
    parts = []
    if attempt is not None:
        parts.append(f"job {attempt.job} ({attempt.row.plugin}.{attempt.row.entry})")
    if call is not None:
        parts.append(f"{'tool' if call.tool else 'step'} {call.name}")
    return ", ".join([*parts, _line(frames)])


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _values(frame: FrameType, kind: type[T]) -> Iterator[T]:
    """Yield objects of one kind from a frame, if it is a frame of the engine."""
    if frame.f_code.co_filename.startswith(_PACKAGE):
        yield from (value for value in list(frame.f_locals.values()) if isinstance(value, kind))


def _line(frames: list[FrameType]) -> str:
    """Return the innermost line of user code. If there is none, return the innermost line."""
    users = [frame for frame in frames if _is_users(frame.f_code.co_filename)]
    frame = (users or frames)[0]
    path, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, number).strip()
    return f"{path}, line {number}, in {frame.f_code.co_name}{f': {text}' if text else ''}"


def _is_users(path: str) -> bool:
    """Return whether a file belongs neither to the engine nor to Python itself."""
    if path.startswith((_PACKAGE, "<frozen")):
        return False
    return "-packages" in path or not path.startswith(_LIBRARY)
