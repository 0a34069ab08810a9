"""Check of one job's hash chain: finds events that were edited, removed, added or reordered (SPEC P8).

Each event carries its own hash and the hash of the event before it, so the check needs no other source. It checks every
link by itself. The first index that it reports is the first bad event.

A chain alone cannot show a tail that was cut off, or a stream that was rewritten from some event on. To find those,
pass the `head` from another source: the last event's hash, from the store's projection or from a backup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.machines.event import GENESIS, Event, digest

RULE = "P8"


def breaks(events: Sequence[object], head: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield (index, problem) for every bad link; skip items that are not records."""
    before: Event | None = None
    last: Event | None = None
    for index, event in enumerate(events):
        if not isinstance(event, Event):
            before = None  # nothing is known of what precedes the next record
            continue
        unknown_past = before is None and index > 0
        problem = _problem(event, before, unknown_past=unknown_past)
        if problem:
            yield index, problem
        before = last = event
    end = last.hash if last is not None else GENESIS
    if head is not None and head != end:
        yield len(events), f"the stream ends with {end}, but its head should be {head}"


def _problem(event: Event, before: Event | None, *, unknown_past: bool) -> str | None:
    if event.hash != digest(event):
        return "its contents do not match its hash: it was edited"
    if unknown_past:
        return None
    seq, prev = (before.seq + 1, before.hash) if before is not None else (1, GENESIS)
    if before is not None and event.job != before.job:
        return f"it belongs to job {event.job!r}, the stream to {before.job!r}"
    if event.seq != seq:
        return f"its number is {event.seq}, and {seq} was expected: an event was removed, added or moved"
    if event.prev != prev:
        return "it does not follow the event before it: one of the two was replaced"
    return None
