"""Rows of events: whatever is written is read back, and a row never holds more than its limits."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.machines import GENESIS, Event, HistoryEvent, JobEvent, check
from holdfast.machines.event import SealedSpan, freeze, seal_frozen
from holdfast.store.sql.event_rows import (
    LETTERS,
    SHARING_BYTES_MAX,
    SHARING_MAX,
    Sealed,
    count_events,
    event_rows,
    event_values,
    events_of,
    history_of,
)

TYPES = st.sampled_from([*LETTERS, "s", "sf", "node_started,node_finished", "of_a_newer_release"])
PAYLOADS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5) | st.none(), max_size=3)
SIZES = st.sampled_from([0] * 20 + [SHARING_BYTES_MAX // 2, SHARING_BYTES_MAX, 2 * SHARING_BYTES_MAX])
EVENTS = st.lists(st.tuples(st.sampled_from("ab"), TYPES, PAYLOADS, SIZES, st.sampled_from([None, 1, 1, 1, 2])))


def sealed_of(drawn: list[tuple[str, str, dict[str, Any], int, int | None]]) -> list[Sealed]:
    ends: dict[str, tuple[int, str]] = {}
    made = []
    for job, kind, payload, size, attempt in drawn:
        frozen, plain = freeze({**payload, **({"large": "x" * size} if size else {})})
        seq, head = ends.get(job, (0, GENESIS))
        event = seal_frozen(job, seq + 1, head, kind, frozen, at=1.5, attempt=attempt, payload=plain)
        ends[job] = event.seq, event.hash
        made.append((event, frozen.text))
    return made


def claimed(row: tuple[Any, ...]) -> list[tuple[str, int | None, Any]]:
    """Return what a claim reads of a row."""
    job, _, types, payload, attempt, *_, hashed = row
    return [
        (event.type, event.attempt, event.payload) for event in history_of((job, types, payload, attempt, len(hashed)))
    ]


@given(EVENTS)
def test_events_come_back_as_they_were_sealed(drawn: list[tuple[str, str, dict[str, Any], int, int | None]]) -> None:
    sealed = sealed_of(drawn)
    rows = [event_values(row) for row in event_rows(sealed)]
    read: dict[str, list[Event]] = {"a": [], "b": []}
    for row in rows:
        events = events_of(row)
        assert len(events) == count_events(row) <= SHARING_MAX
        assert len(events) == 1 or len(row[3]) <= SHARING_BYTES_MAX + len(events) + 1
        assert row[1] == events[-1].seq, "the row has the number of its last event"
        assert claimed(row) == [(event.type, event.attempt, event.payload) for event in events]
        read[row[0]] += events
    for job, events in read.items():
        assert events == [event for event, _ in sealed if event.job == job]


@given(EVENTS, st.integers(1, 5))
def test_events_sealed_together_take_the_same_rows(
    drawn: list[tuple[str, str, dict[str, Any], int, int | None]], most: int
) -> None:
    sealed = sealed_of(drawn)
    mixed: list[Sealed | SealedSpan] = []
    for job, group in groupby(sealed, lambda pair: (pair[0].job, pair[0].attempt)):
        part = list(group)
        for first in range(0, len(part), most):
            events, texts = zip(*part[first : first + most], strict=True)
            types, hashes = [event.type for event in events], [event.hash for event in events]
            start = events[0]
            mixed.append(SealedSpan(job[0], start.seq, types, list(texts), hashes, start.prev, start.attempt, 1.5))
    assert event_rows(mixed) == event_rows(sealed)


def test_a_long_stream_of_small_events_takes_few_rows() -> None:
    step = [HistoryEvent.NODE_STARTED, HistoryEvent.COMMAND_COMMITTED, HistoryEvent.NODE_FINISHED]
    sealed = sealed_of([("a", kind.value, {"node": "s:1"}, 0, 1) for kind in step * SHARING_MAX])
    assert len(event_rows(sealed)) == len(step)


def test_every_type_has_a_letter_of_its_own() -> None:
    assert LETTERS.keys() == {event.value for event in (*JobEvent, *HistoryEvent)}
    assert len(set(LETTERS.values())) == len(LETTERS)
    assert {len(letter) for letter in LETTERS.values()} == {1}


def test_a_damaged_row_is_read_and_its_damage_found() -> None:
    sealed = sealed_of([("a", "node_started", {"node": str(number)}, 0, 1) for number in range(3)])
    head = sealed[-1][0].hash
    (row,) = map(event_values, event_rows(sealed))
    before, after = row[:2], row[4:]
    clean = check(events_of(row), head=head)  # about the machine alone: the stream does not begin with a job
    for types, payload in (
        ("ss", row[3]),
        ("sss", '[{"node":"0"}]'),
        ("sss", '{"node":"0"}'),
        ("sfs", row[3]),
        ("s?s", row[3]),
    ):
        damaged = (*before, types, payload, *after)
        assert check(events_of(damaged), head=head) != clean, (types, payload)
        assert [event.type for event in events_of(damaged)] == [kind for kind, _, _ in claimed(damaged)]
    changed = row[3].replace('"1"', '"7"')
    found = check(events_of((*before, row[2], changed, *after)), head=head)
    assert [one.index for one in found if one not in clean] == [1], "exactly the event that was changed"
