"""Replays of every prefix of a history, to find code that does not repeat itself.

A job's code must ask for the same things each time it runs. The check runs the code, and nothing that it calls, through
each prefix of a recorded history. It then does so again with another clock and other random numbers. A difference is
a failure, with the line that asked for something else.

It also reads the source of the job and warns of what often goes wrong: clocks, random numbers, and calls in the order
of a set.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import random
import textwrap
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
from holdfast.testing.virtual_loop import HoldfastTestWarning

LATER_SECONDS = 40_000_000.0  # by which another clock is ahead: more than a year, and another time of the day
OTHER_SEED = 20_260_101

# What code of a job must not call, and what to use in its place.
CLOCKS = {
    "time.time", "time.time_ns", "time.monotonic", "time.perf_counter", "datetime.now", "datetime.utcnow",
    "datetime.today", "date.today", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today",
}  # fmt: skip
RANDOM = {"uuid.uuid4", "uuid.uuid1", "uuid4", "uuid1", "os.urandom"}
MODULES = {"random": "random numbers", "secrets": "random numbers"}


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


def suspicious_lines(function: Callable[..., Any]) -> list[str]:
    """Return the lines of a job's code that probably differ between two runs, with what to do."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # there is no source, as for code in a shell
        return []
    reader = _Reader(inspect.getsourcefile(function) or "?", first, function)
    reader.visit(tree)
    return reader.found


class _Reader(ast.NodeVisitor):
    """Finds clocks, random numbers and loops over sets in the code of a function."""

    def __init__(self, file: str, first: int, function: Callable[..., Any]) -> None:
        self._file = file
        self._first = first
        self._globals = getattr(function, "__globals__", {})
        self._sets: set[str] = set()  # names that hold sets
        self.found: list[str] = []

    def _note(self, node: ast.AST, text: str) -> None:
        line = self._first + getattr(node, "lineno", 1) - 1
        self.found.append(f"{self._file}:{line}: {text}")

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        module = name.partition(".")[0]
        known = self._globals.get(module)
        is_holdfasts = getattr(known, "__module__", "").startswith("holdfast")
        if not is_holdfasts:
            if name in CLOCKS:
                self._note(
                    node, f"{name}() in the code of a job differs in a replay: use `now()` of holdfast, or a step"
                )
            elif name in RANDOM or (module in MODULES and "." in name):
                cure = "use `random()` or `uuid4()` of holdfast, or a step"
                self._note(node, f"{name}() in the code of a job differs in a replay: {cure}")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        self._sets = self._sets | names if self._is_set(node.value) else self._sets - names
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._look_at_loop(node, node.iter)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self._look_at_loop(node, node.iter)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        if self._is_set(node.iter):
            self._note(node.iter, "the order of a set differs between two processes: loop over sorted(…)")
        self.generic_visit(node)

    def _look_at_loop(self, node: ast.For | ast.AsyncFor, looped: ast.expr) -> None:
        if self._is_set(looped):
            self._note(looped, "the order of a set differs between two processes: loop over sorted(…)")
        self.generic_visit(node)

    def _is_set(self, value: ast.expr) -> bool:
        if isinstance(value, (ast.Set, ast.SetComp)):
            return True
        if isinstance(value, ast.Call):
            return ast.unparse(value.func) in {"set", "frozenset"}
        return isinstance(value, ast.Name) and value.id in self._sets
