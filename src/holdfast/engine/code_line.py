"""The line of a user's code that waits for a call, for messages. It is found when it is needed, from the stacks.

Nothing raises. A call that `gather` awaits itself has no line of its own. Then it is that of the job's function. The
line is None where no stack has code of the user.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARY = str(Path(asyncio.__file__).parents[1])


def line_of(future: Any, tasks: Iterable[Any], threads: Mapping[Any, Any]) -> str | None:
    """Return the line that waits for a future, as file:line.

    Args:
        future: what the line waits for.
        tasks: the unfinished tasks of the job; the first is that of its function.
        threads: what blocks a thread of the job, by the task that makes its call.
    """
    listed = list(tasks)
    waiting = [task for task in listed if getattr(task, "_fut_waiter", None) is future]
    for task in [*waiting, *listed[:1]]:
        frames = _frames_of_thread(threads[task]) if task in threads else _frames_of_task(task)
        for frame in frames:
            if not frame.f_code.co_filename.startswith((_PACKAGE, _LIBRARY, "<")):
                return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    return None


def _frames_of_task(task: Any) -> list[FrameType]:
    """Return the frames of a suspended task, innermost first."""
    frames: list[FrameType] = []
    waits: Any = task.get_coro()
    while waits is not None:
        frame = getattr(waits, "cr_frame", None) or getattr(waits, "gi_frame", None) or getattr(waits, "ag_frame", None)
        frames += [frame] if frame is not None else []
        waits = getattr(waits, "cr_await", None) or getattr(waits, "gi_yieldfrom", None)
    return frames[::-1]


def _frames_of_thread(waiter: Any) -> list[FrameType]:
    """Return the frames of the thread that a waiter blocks, innermost first."""
    for innermost in sys._current_frames().values():  # noqa: SLF001 - the documented way to a thread's stack
        frames: list[FrameType] = []
        frame: FrameType | None = innermost
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        if any(one.f_locals.get("waiter") is waiter for one in frames if one.f_code.co_name == "from_thread"):
            return frames
    return []
