"""All legal job streams up to a depth, cancel and deadline included, and properties far beyond it (P2)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.machines import JOB, RUN, Event, JobState, RunStatus, check, derive, fold, run_paths, runs
from holdfast.machines.event import GENESIS
from support import oracle, spec
from support.streams import Author, sealed

# HOLDFAST_PROOF_DEPTH=11 walks eight million streams; the depth every `make test` walks is over half a million.
DEPTH = int(os.environ.get("HOLDFAST_PROOF_DEPTH", "9"))
TERMINAL = {"completed", "failed", "cancelled"}

# The one letter that needs a payload, once per attempt number: a failure because the run's deadline passed.
_LATE = {
    attempt: Event("x", "", 1, "job_failed", {"reason": "deadline"}, attempt, 0.0, 1, GENESIS, GENESIS)
    for attempt in range(1, 32)
}


def legal_streams(first: str, second: str) -> Iterator[list[oracle.Letter]]:
    """Every stream that begins with these two events, each one once, shortest first along each branch."""
    stack: list[tuple[list[oracle.Letter], str, bool]] = []
    start = spec.JOB_CELLS[None, first]
    assert start is not None
    beginning: list[oracle.Letter] = [(first, {})]
    stack.extend(step for step in _steps(beginning, start, asked=False) if step[0][-1][0] == second)
    while stack:
        stream, state, asked = stack.pop()
        yield stream
        if len(stream) < DEPTH:
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
    for ended, following in zip(moves, moves[1:], strict=False):
        assert ended not in {"job_completed", "job_cancelled"}
        assert ended != "job_failed" or following == "job_requeued"
    assert (state == "waiting") == (moves[-1] == "job_waiting")
    if state == "running":
        assert moves[-1] in {"job_running", "job_leased"}
    for waited, following in zip(moves, moves[1:], strict=False):
        assert waited != "job_waiting" or following in {"wait_completed", "job_cancelled"}


SECOND = ["job_requeued", "job_leased", "job_running", "wait_completed", "cancel_requested"]


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("first", ["job_created", "job_queued", "job_requeued"])
def test_every_legal_stream_reads_the_same_three_ways_and_gives_a_legal_run(first: str, second: str) -> None:
    seen = 0
    for stream in legal_streams(first, second):
        events = _events(stream)
        expected = oracle.state(stream)
        snapshot = fold(events)
        assert snapshot.state == derive(events) == expected
        assert_invariants(stream, expected)
        assert snapshot.blocked == (expected == "waiting")
        parts = oracle.split_at_retries(stream)
        assert snapshot.run == len(parts)
        assert run_paths(events) == [oracle.run_path(part) for part in parts]
        seen += 1
    assert seen > 10_000 or second == "cancel_requested" or DEPTH < 9


def test_the_streams_walked_are_all_there_are() -> None:
    """Counted another way: how many ways there are to go on depends on the state and the cancel flag alone."""
    total = sum(1 for first in ("job_created", "job_queued", "job_requeued") for _ in _all_of(first, 6))
    assert total == _count(None, 6, asked=False) - 1 - 3  # without the empty stream and those of one event


def _all_of(first: str, depth: int) -> Iterator[list[oracle.Letter]]:
    for second in SECOND:
        for stream in legal_streams(first, second):
            if len(stream) <= depth:
                yield stream


def _count(state: str | None, depth: int, *, asked: bool) -> int:
    if depth == 0:
        return 1
    ways = 1
    for event in spec.JOB_EVENTS:
        target = spec.JOB_CELLS[state, event]
        if target is not None:
            ways += (1 + (event == "job_failed")) * _count(target, depth - 1, asked=asked and state != "failed")
    if not asked and state is not None and state not in TERMINAL:
        ways += _count(state, depth - 1, asked=True)
    return ways


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**64), length=st.integers(2, 300))
def test_long_streams_of_whole_records_are_legal_after_every_prefix(seed: int, length: int) -> None:
    letters = Author(random.Random(seed)).write(length)  # noqa: S311
    events = sealed(letters)
    assert check(events) == []
    for end in {1, 2, len(events) // 3 + 1, len(events) // 2 + 1, len(events)}:
        prefix, written = events[:end], letters[:end]
        snapshot = fold(prefix)
        assert snapshot.state == derive(prefix) == oracle.state(written)
        assert_invariants(written, snapshot.state)
        records, paths = runs(prefix), run_paths(prefix)
        assert paths == [oracle.run_path(part) for part in oracle.split_at_retries(written)]
        assert [record.status for record in records] == [path[-1] for path in paths]
        for path in paths:
            current: RunStatus | None = None
            for status in path:
                current = RUN.advance(current, status)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**64), length=st.integers(2, 60), data=st.data())
def test_strict_stops_exactly_where_the_table_does(seed: int, length: int, data: st.DataObject) -> None:
    names = oracle.state_events(Author(random.Random(seed)).write(length))  # noqa: S311
    at = data.draw(st.integers(0, len(names)))
    event = data.draw(st.sampled_from(spec.JOB_EVENTS))
    before = fold(names[:at])
    legal = spec.JOB_CELLS[before.state if at else None, event] is not None
    found = check([*names[:at], event])
    assert [violation.index for violation in found] == ([] if legal else [at])
    assert derive([*names[:at], event]) == next(row.target for row in JOB.rows() if row.event == event)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(spec.JOB_EVENTS), st.text(max_size=20), st.none(), st.integers(), st.binary()))
)
def test_the_lenient_reading_never_raises(events: list[object]) -> None:
    assert derive(events) in set(JobState)
    assert all(0 <= violation.index < len(events) for violation in check(events))
