"""All legal job streams up to a depth, cancel and deadline included, and properties far beyond it (P2)."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import strategies as st

from holdfast.machines import JOB, RUN, JobState, RunStatus, check, derive, fold, run_paths, runs
from support import exhaustive, oracle, spec
from support.streams import Author, sealed
from support.timeless import given, settings

# Mutants are examined at a smaller depth, and `make prove` walks a greater one.
DEPTH = int(os.environ.get("HOLDFAST_PROOF_DEPTH", "9"))


@pytest.mark.parametrize("second", exhaustive.SECOND)
@pytest.mark.parametrize("first", exhaustive.FIRST)
def test_every_legal_stream_reads_the_same_three_ways_and_gives_a_legal_run(first: str, second: str) -> None:
    walked = 0
    for stream in exhaustive.legal_streams(first, second, DEPTH):
        exhaustive.examine(stream)
        walked += 1
    assert walked > 3 ** (DEPTH - 4), "a walk of nothing would show nothing"


def test_the_streams_walked_are_all_there_are() -> None:
    walked = [
        stream
        for first in exhaustive.FIRST
        for second in exhaustive.SECOND
        for stream in exhaustive.legal_streams(first, second, 7)
    ]
    assert len({str(stream.letters) for stream in walked}) == len(walked)
    assert len(walked) == exhaustive.count(7) - 1 - 3  # without the empty stream and those of one event
    assert exhaustive.count(9) == 527_329


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**64), length=st.integers(2, 300))
def test_long_streams_of_whole_records_are_legal_after_every_prefix(seed: int, length: int) -> None:
    letters = Author(random.Random(seed)).write(length)
    events = sealed(letters)
    assert check(events) == []
    for end in {1, 2, len(events) // 3 + 1, len(events) // 2 + 1, len(events)}:
        prefix, written = events[:end], letters[:end]
        snapshot = fold(prefix)
        assert snapshot.state == derive(prefix) == oracle.state(written)
        exhaustive.assert_invariants(written, snapshot.state)
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
    names = oracle.state_events(Author(random.Random(seed)).write(length))
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
