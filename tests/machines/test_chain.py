"""An edited, removed, added or reordered event is found, and the first bad one is named (P8)."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import strategies as st

from holdfast.machines import Event, check, digest, seal
from support.streams import Author, sealed
from support.timeless import given, settings


def stream(seed: int = 3, length: int = 24) -> list[Event]:
    events = sealed(Author(random.Random(seed), unknown_events=True).write(length))
    assert check(events, head=events[-1].hash) == []
    return events


def first_broken_link(events: list[Event], head: str | None = None) -> int | None:
    found = [violation.index for violation in check(events, head=head) if violation.rule == "P8"]
    return min(found, default=None)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.integers(3, 40), st.data())
def test_any_change_of_the_stream_is_found_at_its_first_bad_event(seed: int, length: int, data: st.DataObject) -> None:
    events = stream(seed, length)
    at = data.draw(st.integers(0, len(events) - 1))
    kind = data.draw(st.sampled_from(["edit", "remove", "repeat", "insert", "swap", "forge"]))
    head = events[-1].hash
    match kind:
        case "edit":
            events[at] = msgspec.structs.replace(events[at], at=events[at].at + 1)
            expected = at
        case "remove":
            del events[at]
            expected = at  # the event now in its place; past the end, the head tells
        case "repeat":
            events.insert(at, events[at])
            expected = at + 1
        case "insert":
            events.insert(at + 1, seal(events[at], "audit_noted", {"new": True}, at=1.0))
            expected = at + 2  # the new one is sound in itself; what follows it, or the head, tells
        case "swap":
            at = min(at, len(events) - 2)
            events[at], events[at + 1] = events[at + 1], events[at]
            expected = at
        case _:
            forged = msgspec.structs.replace(events[at], payload={"forged": True})
            events[at] = msgspec.structs.replace(forged, hash=digest(forged))
            expected = at + 1  # it is sound in itself; the next one does not follow it
    assert first_broken_link(events, head) == expected


def test_a_wrong_number_is_found_even_where_the_hashes_follow() -> None:
    events = stream()
    skipped = msgspec.structs.replace(events[1], seq=7)
    skipped = msgspec.structs.replace(skipped, hash=digest(skipped))
    assert first_broken_link([events[0], skipped]) == 1
    late = msgspec.structs.replace(events[0], seq=2)
    late = msgspec.structs.replace(late, hash=digest(late))
    assert first_broken_link([late]) == 0


@pytest.mark.parametrize("field", ["id", "job", "type"])
def test_an_edited_name_is_found(field: str) -> None:
    events = stream()
    events[5] = msgspec.structs.replace(events[5], **{field: "edited"})
    assert first_broken_link(events) == 5


def test_a_tail_that_was_cut_off_is_found_by_the_head_alone() -> None:
    events = stream()
    assert first_broken_link(events[:-1]) is None
    assert first_broken_link(events[:-1], head=events[-1].hash) == len(events) - 1
    assert first_broken_link([], head=events[-1].hash) == 0


def test_a_stream_written_anew_is_found_by_the_head_alone() -> None:
    events = stream()
    rewritten = [seal(None, "job_created", {"forged": True}, at=1.0, job="job-1")]
    assert first_broken_link(rewritten) is None
    assert first_broken_link(rewritten, head=events[-1].hash) == 1


def test_an_event_of_another_job_is_found() -> None:
    events = stream()
    other = sealed([("job_created", {}), ("job_running", {})], job="job-2")
    mixed = [events[0], other[1]]
    violations = check(mixed)
    assert any(violation.index == 1 and "belongs to job 'job-2'" in violation.message for violation in violations)


def test_the_first_violation_comes_first_whatever_its_kind() -> None:
    events = stream()
    events[2] = msgspec.structs.replace(events[2], at=0.0)
    events.append(seal(events[-1], "job_created", at=1.0))
    indexes = [violation.index for violation in check(events)]
    assert indexes == sorted(indexes)
    assert indexes[0] == 2


def test_where_one_event_breaks_a_rule_and_the_chain_the_chain_comes_first() -> None:
    events = sealed(
        [
            ("job_created", {}),
            ("job_running", {}),
            ("node_started", {"node": "a"}),
            ("command_committed", {"node": "a"}),
            ("node_finished", {"node": "a"}),
        ]
    )
    del events[3]
    assert [(violation.index, violation.rule) for violation in check(events)] == [(3, "P8"), (3, "E2")]
    assert str(check(events[:3], head=events[3].hash)[0]).startswith("event 3, the end in running, breaks P8")


def test_bare_names_between_records_only_hide_what_they_replace() -> None:
    events = stream()
    with_a_name: list[object] = [*events[:4], events[4].type, *events[5:]]
    assert all(violation.rule != "P8" for violation in check(with_a_name))
    assert check(["job_created", "job_running"], head="1" * 64)[-1].rule == "P8"
    assert check([], head="0" * 64) == []
