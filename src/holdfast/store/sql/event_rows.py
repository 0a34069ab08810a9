"""Rows of events. The events that one transaction appends to a job share a row, so that a short job has few rows.

A row of several events has the columns of a row of one. Its `seq` is the number of its last event, its `type` has a
letter for the type of each, its `payload` is a list of their payloads. `prev` belongs to the first event, and `hash`
has the hashes of all, 32 bytes each. So the length of `hash` tells how many there are. `attempt`, `at` and `schema` are
the same for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.machines import Event, HistoryEvent, JobEvent
from holdfast.machines.event import SCHEMA, SealedSpan
from holdfast.store.rows import PastEvent

EVENT_COLUMNS = "job, seq, type, payload, attempt, at, schema, prev, hash"
HISTORY_COLUMNS = "job, type, payload, attempt, length(hash)"  # what a replay needs
HISTORY_READ = HISTORY_COLUMNS.replace("payload", "payload::text")
EVENT_READ = EVENT_COLUMNS.replace("payload", "payload::text")  # where JSON is a type of its own
SHARING_MAX = 64  # events of a row; a read of a part of the stream reads up to so many that it did not ask for
# Of their payloads, unless a store has another limit; a larger event has its own row. With their hashes, two or three
# such rows fill a page of SQLite. With 1024 a third of the pages of ten-step jobs stayed empty.
SHARING_BYTES_MAX = 900
HASH_BYTES = 32

Sealed = tuple[Event, bytes]  # an event, and its payload as the JSON text that is stored
EventRow = tuple[str, int, str, bytes, int | None, float, int, str, str]  # the hashes are still in hex

# Other types have a row of their own. The letters are on disk, so they never change.
LETTERS = {
    JobEvent.CREATED.value: "C",
    JobEvent.QUEUED.value: "Q",
    JobEvent.REQUEUED.value: "R",
    JobEvent.LEASED.value: "L",
    JobEvent.RUNNING.value: "N",
    JobEvent.WAITING.value: "W",
    JobEvent.WAIT_COMPLETED.value: "E",
    JobEvent.COMPLETED.value: "D",
    JobEvent.FAILED.value: "F",
    JobEvent.CANCELLED.value: "X",
    HistoryEvent.CANCEL_REQUESTED.value: "x",
    HistoryEvent.VALUE_RECORDED.value: "v",
    HistoryEvent.PLAN_GENERATED.value: "p",
    HistoryEvent.NODE_STARTED.value: "s",
    HistoryEvent.NODE_FINISHED.value: "f",
    HistoryEvent.COMMAND_COMMITTED.value: "c",
    HistoryEvent.TOOL_STARTED.value: "t",
    HistoryEvent.TOOL_FINISHED.value: "u",
}

_TYPES: dict[str, str] = {letter: name for name, letter in LETTERS.items()}
_NAMES: dict[str, str] = {name: name for name in LETTERS}  # one text for all rows
_decode = msgspec.json.Decoder().decode
_split = msgspec.json.Decoder(list[msgspec.Raw]).decode


def event_rows(sealed: Iterable[Sealed | SealedSpan], bytes_max: int = SHARING_BYTES_MAX) -> list[EventRow]:
    """Return the rows of events that one transaction appends. The events of a job are in order."""
    by_job: dict[str, list[Sealed | SealedSpan]] = {}
    for one in sealed:
        by_job.setdefault(one.job if isinstance(one, SealedSpan) else one[0].job, []).append(one)
    rows: list[EventRow] = []
    for appended in by_job.values():
        first = appended[0]
        if len(appended) == 1 and not isinstance(first, SealedSpan):
            rows.append(_row_of_one(*first))  # most jobs that are claimed or end
            continue
        spans = [one if isinstance(one, SealedSpan) else _span_of(*one) for one in appended]
        for span in _joined(spans):
            rows += _rows(span, bytes_max)
    return rows


def _row_of_one(event: Event, payload: bytes) -> EventRow:
    return (event.job, event.seq, event.type, payload, event.attempt, event.at, SCHEMA, event.prev, event.hash)


def _span_of(event: Event, payload: bytes) -> SealedSpan:
    return SealedSpan(event.job, event.seq, [event.type], [payload], [event.hash], event.prev, event.attempt, event.at)


def _joined(spans: list[SealedSpan]) -> list[SealedSpan]:
    """Join the spans of a job that have one attempt. All events of a transaction have one time."""
    if len(spans) == 1:
        return spans
    joined: list[SealedSpan] = []
    for attempt, group in groupby(spans, attrgetter("attempt")):
        same = list(group)
        first = same[0]
        types = list(chain.from_iterable(span.types for span in same))
        texts = list(chain.from_iterable(span.texts for span in same))
        hashes = list(chain.from_iterable(span.hashes for span in same))
        joined.append(SealedSpan(first.job, first.seq, types, texts, hashes, first.prev, attempt, first.at))
    return joined


def _rows(span: SealedSpan, bytes_max: int) -> Iterable[EventRow]:
    count = len(span.types)
    if count == 1:
        return [_row(span, span.types, 0, 1)]
    letters = [LETTERS.get(name, "") for name in span.types]
    if count <= SHARING_MAX and "" not in letters and sum(map(len, span.texts)) <= bytes_max:
        return [_row(span, letters, 0, count)]
    return _rows_in_portions(span, letters, bytes_max)


def _rows_in_portions(span: SealedSpan, letters: list[str], bytes_max: int) -> Iterator[EventRow]:
    first, size = 0, 0
    for place, text in enumerate(span.texts):
        size += len(text)
        shares = letters[place] and letters[first] and place - first < SHARING_MAX and size <= bytes_max
        if place > first and not shares:
            yield _row(span, letters, first, place)
            first, size = place, len(text)
    yield _row(span, letters, first, len(span.texts))


def _row(span: SealedSpan, letters: list[str], first: int, after: int) -> EventRow:
    """Return the row of some events of a span; the letters count only if they are several."""
    prev = span.hashes[first - 1] if first else span.prev
    if after - first == 1:
        types, payload, hashes = span.types[first], span.texts[first], span.hashes[first]
    else:
        types, hashes = "".join(letters[first:after]), "".join(span.hashes[first:after])
        payload = b"[%b]" % b",".join(span.texts[first:after])
    return (span.job, span.seq + after - 1, types, payload, span.attempt, span.at, SCHEMA, prev, hashes)


def event_values(row: EventRow) -> tuple[Any, ...]:
    """Return a row as the values of its columns."""
    job, seq, types, payload, attempt, at, schema, prev, hashes = row
    return job, seq, types, payload.decode(), attempt, at, schema, bytes.fromhex(prev), bytes.fromhex(hashes)


def event_row(event: Event, payload: bytes) -> tuple[Any, ...]:
    """Return the columns of a row with one event."""
    return event_values(_row_of_one(event, payload))


def count_events(row: tuple[Any, ...]) -> int:
    """Return how many events a row has."""
    return max(1, len(row[-1]) // HASH_BYTES)


def events_of(row: tuple[Any, ...]) -> list[Event]:
    """Return the events of a row, in order. A damaged row becomes one event as it is; `check` finds the damage."""
    job, seq, types, payload, attempt, at, schema, prev, hashed = row
    hashes, values = hashed.hex(), _decode(payload)
    if len(hashed) <= HASH_BYTES:
        return [Event(f"{job}:{seq}", job, seq, types, values, attempt, at, schema, prev.hex(), hashes)]
    count = len(hashed) // HASH_BYTES
    names = [_TYPES.get(letter, letter) for letter in str(types)]
    if not (isinstance(values, list) and len(names) == len(values) == count):
        return [Event(f"{job}:{seq}", job, seq, types, {"damaged": values}, attempt, at, schema, prev.hex(), hashes)]
    before, number, events = prev.hex(), seq - count, []
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        number += 1
        own = hashes[64 * place : 64 * place + 64]
        events.append(Event(f"{job}:{number}", job, number, name, value, attempt, at, schema, before, own))
        before = own
    return events


def history_of(row: tuple[Any, ...]) -> list[PastEvent]:
    """Return the events of a row of a claimed job, in order. Their payloads are not decoded yet."""
    types: str = row[1]
    payload, attempt, hash_bytes = row[2:]
    if hash_bytes <= HASH_BYTES:
        return [PastEvent(_NAMES.get(types, types), attempt, payload)]
    texts = _split(payload) if payload.startswith("[") else []
    if not len(texts) == len(types) == hash_bytes // HASH_BYTES:
        return [PastEvent(types, attempt, b"{}")]  # damaged, as in `events_of`
    return [PastEvent(_TYPES.get(letter, letter), attempt, text) for letter, text in zip(types, texts, strict=True)]
