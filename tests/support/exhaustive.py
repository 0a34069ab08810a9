"""All legal job streams up to a depth, and what must be true of each. Used by the tests and by `make prove`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from holdfast.machines import Event, derive, fold, run_paths
from holdfast.machines.event import GENESIS
from support import oracle, spec

TERMINAL = {"completed", "failed", "cancelled"}
FIRST = ["job_created", "job_queued", "job_requeued"]
SECOND = ["job_requeued", "job_leased", "job_running", "wait_completed", "cancel_requested"]

# The one letter that needs a payload, once per attempt number: a failure because the run's deadline passed.
_LATE = {
    attempt: Event("x", "", 1, "job_failed", {"reason": "deadline"}, attempt, 0.0, 1, GENESIS, GENESIS)
    for attempt in range(1, 64)
}


def legal_streams(first: str, second: str, depth: int) -> Iterator[list[oracle.Letter]]:
    """Every stream of 2 to `depth` events that begins with these two, each one once."""
    start = spec.JOB_CELLS[None, first]
    assert start is not None
    stack = [step for step in _steps([(first, {})], start, asked=False) if step[0][-1][0] == second]
    while stack:
        stream, state, asked = stack.pop()
        yield stream
        if len(stream) < depth:
            stack.extend(_steps(stream, state, asked=asked))


def _steps(stream: list[oracle.Letter], state: str, *, asked: bool) -> Iterator[tuple[list[oracle.Letter], str, bool]]:
    for event in spec.JOB_EVENTS:
        target = spec.JOB_CELLS[state, event]
        if target is not None:
            still_asked = asked and state != "failed"  # a retry opens a new run, which nobody has asked to cancel
            yield [*stream, (event, {})], target, still_asked
            if event == "job_failed":
                yield [*stream, (event, {"reason": "deadline"})], target, still_asked
    if not asked and state not in TERMINAL:
        yield [*stream, ("cancel_requested", {})], state, True


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


def examine(stream: list[oracle.Letter]) -> None:
    """Assert that strict, lenient and table agree, that J7 holds, and that the path of every run is the right one."""
    events = _events(stream)
    expected = oracle.state(stream)
    snapshot = fold(events)
    assert snapshot.state == derive(events) == expected
    assert snapshot.blocked == (expected == "waiting")
    assert_invariants(stream, expected)
    parts = oracle.split_at_retries(stream)
    assert snapshot.run == len(parts)
    assert run_paths(events) == [oracle.run_path(part) for part in parts]


def _events(stream: list[oracle.Letter]) -> list[object]:
    claims = 0
    events: list[object] = []
    for name, payload in stream:
        claims += name in {"job_running", "job_leased"}
        events.append(_LATE[claims] if payload else name)
    return events


def assert_invariants(stream: list[oracle.Letter], state: str) -> None:
    """J7, from the state events alone."""
    moves = oracle.state_events(stream)
    for ended, following in pairwise(moves):
        assert ended not in {"job_completed", "job_cancelled"}
        assert ended != "job_failed" or following == "job_requeued"
        assert ended != "job_waiting" or following in {"wait_completed", "job_cancelled"}
    assert (state == "waiting") == (moves[-1] == "job_waiting")
    assert state != "running" or moves[-1] in {"job_running", "job_leased"}
