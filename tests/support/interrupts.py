"""Interrupts of plain code at each point where Python could run a signal handler."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

FINALIZERS = {"weakref", "_weakrefset"}  # modules whose functions run when an object is freed
CHECKS = ("CALL", "JUMP_BACKWARD")  # the instructions after which Python looks for signals, besides a function's start


def interrupted_at(point: int, work: Callable[[], object]) -> bool:
    """Run a function and raise KeyboardInterrupt at one of its points, from 1; return whether it came that far.

    What the function does with the interrupt is its own affair; one that it lets through ends here. The interrupt comes
    before the instruction that follows a call, and not at its end. So do not `return call()` inside `with`: there, this
    would be after the end of the block.
    """
    tracer = _Tracer(point)
    try:
        tracer.run(work)
    except KeyboardInterrupt:
        assert tracer.has_raised
    return tracer.has_raised


class _Tracer:
    def __init__(self, point: int) -> None:
        self.seen = 0
        self.has_raised = False
        self._point = point
        self._checks: dict[FrameType, bool] = {}  # whether the last instruction of a frame looks for signals

    def run(self, work: Callable[[], object]) -> None:
        """Run a function without the garbage collector: Python ignores what is raised in a finalizer."""
        before, collects = sys.gettrace(), gc.isenabled()
        gc.disable()
        sys.settrace(self._trace)
        try:
            work()
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if self.has_raised or frame.f_code is _STOP or frame.f_globals.get("__name__") in FINALIZERS:
            return None
        frame.f_trace_opcodes = True
        if event == "call" or (event == "opcode" and self._checks.get(frame)):
            self._reach()
        if event == "opcode":
            self._checks[frame] = _instructions(frame.f_code)[frame.f_lasti].startswith(CHECKS)
        return self._trace

    def _reach(self) -> None:
        self.seen += 1
        if self.seen == self._point:
            self.has_raised = True
            raise KeyboardInterrupt


@cache
def _instructions(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}


_STOP = _Tracer.run.__code__
