"""Replays of every prefix of a history, to find code that does not repeat itself.

A job's code must ask for the same things each time it runs. The check runs the code, and nothing that it calls, through
each prefix of a recorded history. It then does so again with another clock and other random numbers. A difference is
a failure, with the line that asked for something else.

It also reads the source of the job and warns of what often goes wrong; see `code_warnings`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import msgspec

from holdfast.authoring.functions import JobFunction
from holdfast.engine.replay_check import ReplayCheck
from holdfast.engine.replay_report import ReplayReport, Verdict
from holdfast.machines import Event
from holdfast.testing.code_warnings import suspicious_lines
from holdfast.testing.virtual_loop import HoldfastTestWarning

LATER_SECONDS = 40_000_000.0  # by which another clock is ahead: more than a year, and another time of the day
OTHER_SEED = 20_260_101


class ReplayFailure(AssertionError):
    """The code of a job does not repeat itself."""


class ReplaysReport(msgspec.Struct, frozen=True):
    """What replays of a history have shown.

    Attributes:
        prefixes: how many prefixes of the history the code was run through.
        warnings: lines of the job's code that are probably not meant, with what to do.
    """

    prefixes: int
    warnings: list[str]


def check_replays(events: Sequence[Event], function: JobFunction[..., Any]) -> ReplaysReport:
    """Run code through every prefix of a history; see the module's docstring."""
    found = suspicious_lines(function.function)
    for text in found:
        warnings.warn(text, HoldfastTestWarning, stacklevel=3)
    for length in range(1, len(events) + 1):
        _require(events[:length], function, "")
    with _another_time():
        _require(events, function, " with another clock and other random numbers")
    return ReplaysReport(len(events), found)


def _require(events: Sequence[Event], function: JobFunction[..., Any], how: str) -> None:
    report = _replayed(events, function)
    if report.fits and report.verdict is not Verdict.UNUSED:
        return
    reasons = "; ".join(report.reasons) or f"it no longer asks for {', '.join(report.unasked)}"
    line = f" at {report.line}" if report.line else ""
    raise ReplayFailure(f"replayed up to event {len(events)}{how}, {function.name} is not the same{line}: {reasons}")


def require_fit(events: Sequence[Event], function: JobFunction[..., Any], name: str) -> None:
    """Check that code fits a recorded history. Results that it no longer asks for are no failure."""
    report = _replayed(events, function)
    if not report.fits:
        line = f" at {report.line}" if report.line else ""
        raise ReplayFailure(f"{name}: {function.name} no longer fits this history{line}: {'; '.join(report.reasons)}")


def _replayed(events: Sequence[Event], function: JobFunction[..., Any]) -> ReplayReport:
    """Run a check in a thread of its own: the caller may have a running loop."""
    reports: list[ReplayReport] = []

    async def check() -> None:
        reports.append(await ReplayCheck(events, function).run())

    thread = threading.Thread(target=lambda: asyncio.run(check()), name="holdfast-replay")
    thread.start()
    thread.join()
    return reports[0]


@contextlib.contextmanager
def _another_time() -> Iterator[None]:
    """Let code see another clock and other random numbers."""
    now, now_ns = time.time, time.time_ns
    ahead: dict[str, Callable[[], float]] = {
        "time": lambda: now() + LATER_SECONDS,
        "time_ns": lambda: now_ns() + int(LATER_SECONDS * 1e9),
    }
    state = random.getstate()
    with contextlib.ExitStack() as stack:
        stack.callback(random.setstate, state)
        for name, other in ahead.items():
            stack.enter_context(mock.patch.object(time, name, other))
        random.seed(OTHER_SEED)
        yield
