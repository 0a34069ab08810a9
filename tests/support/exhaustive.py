"""All legal job streams up to a depth, and what must be true of each. Used by the tests and by `make prove`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from holdfast.machines import Event, derive, fold, run_paths, runs
from holdfast.machines.event import GENESIS
from holdfast.machines.fold import Fold
from holdfast.machines.run_projection import RunProjection
from support import oracle, spec

TERMINAL = {"completed", "failed", "cancelled"}
FIRST = ["job_created", "job_queued", "job_requeued"]
SECOND = ["job_requeued", "job_leased", "job_running", "wait_completed", "cancel_requested"]

READ_WHOLE = 6  # streams up to this length are also read from their start, by the functions that users call

_JOB = Fold.__slots__
_RUNS = [name for name in RunProjection.__slots__ if name not in {"_job", "paths", "runs"}]

# The one letter that needs a payload, once per attempt number: a failure because the run's deadline passed.
_LATE = {
    attempt: Event("x", "", 1, "job_failed", {"reason": "deadline"}, attempt, 0.0, 1, GENESIS, GENESIS)
    for attempt in range(1, 64)
}


def _copy(runs: RunProjection) -> RunProjection:
    """Copy a reader of runs and its reader of the job, with the containers that they change."""
    job, copied_job, copied = runs._job, Fold(), RunProjection()
    for name in _JOB:
        value: Any = getattr(job, name)
        setattr(copied_job, name, value.copy() if isinstance(value, (dict, list, set)) else value)
    for name in _RUNS:
        setattr(copied, name, getattr(runs, name))
    copied._job = copied_job
    copied.runs = runs.runs.copy()
    copied.paths = [*runs.paths[:-1], *(path.copy() for path in runs.paths[-1:])]  # only the last one grows
    return copied


class Stream:
    """A legal stream and the product's readers at its end: copies of those of the shorter stream, one event later.

    They are made when they are asked for: an event which a reader refuses is an error of this stream.
    """

    __slots__ = ("_before", "_runs", "letters")

    def __init__(self, letters: list[oracle.Letter], before: Stream | None) -> None:
        self.letters = letters
        self._before = before
        self._runs: RunProjection | None = None

    @property
    def runs(self) -> RunProjection:
        if self._runs is None:
            runs = _copy(self._before.runs) if self._before is not None else RunProjection()
            runs.push(_event(self.letters))
            self._runs = runs
        return self._runs

    def longer(self, letter: oracle.Letter) -> Stream:
        return Stream([*self.letters, letter], self)


def legal_streams(first: str, second: str, depth: int) -> Iterator[Stream]:
    """Every stream of 2 to `depth` events that begins with these two, each one once."""
    start = spec.JOB_CELLS[None, first]
    assert start is not None
    stack = [
        step for step in _steps(Stream([(first, {})], None), start, asked=False) if step[0].letters[-1][0] == second
    ]
    while stack:
        stream, state, asked = stack.pop()
        yield stream
        if len(stream.letters) < depth:
            stack.extend(_steps(stream, state, asked=asked))


def _steps(stream: Stream, state: str, *, asked: bool) -> Iterator[tuple[Stream, str, bool]]:
    for event in spec.JOB_EVENTS:
        target = spec.JOB_CELLS[state, event]
        if target is not None:
            still_asked = asked and state != "failed"  # a retry opens a new run, which nobody has asked to cancel
            yield stream.longer((event, {})), target, still_asked
            if event == "job_failed":
                yield stream.longer((event, {"reason": "deadline"})), target, still_asked
    if not asked and state not in TERMINAL:
        yield stream.longer(("cancel_requested", {})), state, True


def count(depth: int, state: str | None = None, *, asked: bool = False) -> int:
    """How many streams there are, the empty one included: how a stream may go on depends on these two alone."""
    if depth == 0:
        return 1
    ways = 1
    for event in spec.JOB_EVENTS:
        target = spec.JOB_CELLS[state, event]
        if target is not None:
            ways += (1 + (event == "job_failed")) * count(depth - 1, target, asked=asked and state != "failed")
    if not asked and state is not None and state not in TERMINAL:
        ways += count(depth - 1, state, asked=True)
    return ways


def examine(stream: Stream) -> None:
    """Assert that strict, lenient and table agree, that J7 holds, and that the path of every run is the right one."""
    letters, projection = stream.letters, stream.runs
    expected = oracle.state(letters)
    snapshot = projection._job.snapshot()
    assert snapshot.state == derive([name for name, _ in letters]) == expected
    assert snapshot.blocked == (expected == "waiting")
    assert_invariants(letters, expected)
    parts = oracle.split_at_retries(letters)
    assert snapshot.run == len(parts)
    assert projection.paths == [oracle.run_path(part) for part in parts]
    if len(letters) <= READ_WHOLE:
        events = [_event(letters[:length]) for length in range(1, len(letters) + 1)]
        assert fold(events) == snapshot
        assert derive(events) == expected
        assert run_paths(events) == projection.paths
        assert runs(events) == projection.runs


def _event(letters: list[oracle.Letter]) -> object:
    """Return the last event: a bare name, or a record if it needs a payload."""
    name, payload = letters[-1]
    return _LATE[sum(claim in {"job_running", "job_leased"} for claim, _ in letters)] if payload else name


def assert_invariants(stream: list[oracle.Letter], state: str) -> None:
    """J7, from the state events alone."""
    moves = oracle.state_events(stream)
    for ended, following in pairwise(moves):
        assert ended not in {"job_completed", "job_cancelled"}
        assert ended != "job_failed" or following == "job_requeued"
        assert ended != "job_waiting" or following in {"wait_completed", "job_cancelled"}
    assert (state == "waiting") == (moves[-1] == "job_waiting")
    assert state != "running" or moves[-1] in {"job_running", "job_leased"}
