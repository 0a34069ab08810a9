"""The record is exact: what was sealed is what is read, and nothing else can be read at all."""

from __future__ import annotations

import hashlib
import json
import math
from collections import ChainMap, UserDict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import example
from hypothesis import strategies as st

from holdfast.machines import GENESIS, Event, InvalidEvent, JobEvent, canonical, check, decode, digest, encode, seal
from holdfast.machines.event import (
    EVENT_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PAYLOAD_DEPTH_MAX,
    freeze,
    freeze_plain,
    seal_at,
    seal_frozen,
    seal_span,
    vouch,
)
from support.timeless import given, settings

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
PAYLOADS = st.dictionaries(TEXTS, JSON, max_size=5)


def first(payload: Any = None, **fields: Any) -> Event:
    return seal(None, fields.pop("type", "job_created"), payload, **{"at": 1.5, "job": "j", **fields})


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth - 1):
        value = [value]
    return {"deep": value}


@settings(max_examples=300, deadline=None)
@given(PAYLOADS, TEXTS.filter(bool), st.floats(0, 1e11), st.none() | st.integers(1, 2**63 - 1))
def test_a_sealed_event_reads_back_as_itself(
    payload: dict[str, Any], kind: str, at: float, attempt: int | None
) -> None:
    one = first(payload, type=kind)
    two = seal(one, kind, payload, at=at, attempt=attempt)
    for event in (one, two):
        assert decode(encode(event)) == event
        assert decode(encode(event).decode()) == event
        assert event.payload == payload
        assert event.hash == digest(event) == digest(decode(encode(event)))
    assert (two.seq, two.prev, two.job, two.id, two.attempt) == (2, one.hash, "j", "j:2", attempt)
    assert (one.seq, one.prev, one.schema) == (1, GENESIS, 1)


@settings(max_examples=200, deadline=None)
@given(PAYLOADS)
def test_the_hash_depends_on_values_alone(payload: dict[str, Any]) -> None:
    """Whatever form a store keeps the payload in: other key order, white space, escapes."""
    event = first(payload)
    reordered = dict(reversed(event.payload.items()))
    stored = json.loads(json.dumps(reordered, indent=3))
    assert digest(msgspec.structs.replace(event, payload=stored)) == event.hash


def test_the_chain_can_be_checked_without_holdfast() -> None:
    """The published form: SHA-256 over compact, sorted JSON, which the standard library writes too."""
    one = first({"b": [1, 2.5, None, True], "a": 'é – 漢字 \u2028 "quoted" \x01'})
    two = seal(one, JobEvent.RUNNING, {"worker": "w"}, at=2.25, attempt=1)
    prev = "0" * 64
    for event in (one, two):
        record = json.loads(encode(event))
        fields = ["schema", "job", "seq", "id", "type", "attempt", "at", "payload"]
        parts = [*(record[field] for field in fields), prev]
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert canonical(event) == text.encode()
        assert hashlib.sha256(text.encode()).hexdigest() == record["hash"]
        prev = record["hash"]


def ordered(value: Any) -> Any:
    """A value as pairs and lists, so that two are equal only if their keys are in the same order."""
    if isinstance(value, dict):
        return [(key, ordered(item)) for key, item in value.items()]
    return [ordered(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=200, deadline=None)
@given(PAYLOADS)
@example({"b": {"z": 1, "a": [{"y": 1, "x": 2}]}, "a": 2})
def test_keys_are_stored_in_the_order_given_and_hashed_sorted(payload: dict[str, Any]) -> None:
    event, frozen = first(payload), freeze_plain(payload)
    for kept in (event.payload, decode(encode(event)).payload, json.loads(frozen.text)):
        assert ordered(kept) == ordered(payload)
    turned = dict(reversed(payload.items()))
    assert freeze_plain(turned).canonical == frozen.canonical
    assert first(turned).hash == event.hash


SORTED_ONCE = """\
{"id":"j:1","job":"j","seq":1,"type":"job_created","payload":{"args":{"card":{"a":[{"c":null,"d":1.5}],"b":2},"sku":"A1"},"entry":"checkout","plugin":"shop"},"attempt":null,"at":1700000000.25,"schema":1,"prev":"0000000000000000000000000000000000000000000000000000000000000000","hash":"6b44586259675cc12b9d232a24c7d717b655019245f807e5634d8af341f3bfb2"}
{"id":"j:2","job":"j","seq":2,"type":"job_running","payload":{"hosts":{"a":2,"z":1},"worker":"w"},"attempt":1,"at":1700000001.5,"schema":1,"prev":"6b44586259675cc12b9d232a24c7d717b655019245f807e5634d8af341f3bfb2","hash":"9e428d302865309710e31f6eb834c4256555ab197cfa079ba577cc46f3d8eb66"}"""


def test_a_stream_whose_keys_were_stored_sorted_still_verifies() -> None:
    """Written by a release that sorted what it stored; the same values in the order given have the same hashes."""
    created, running = map(decode, SORTED_ONCE.splitlines())
    assert check([created, running], head=running.hash) == []
    card = {"b": 2, "a": [{"d": 1.5, "c": None}]}
    again = first({"plugin": "shop", "entry": "checkout", "args": {"sku": "A1", "card": card}}, at=1700000000.25)
    assert again.hash == created.hash
    assert seal(again, "job_running", {"worker": "w", "hosts": {"z": 1, "a": 2}}, at=1700000001.5, attempt=1) == running


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "x"),
        ("job", "other"),
        ("seq", 3),
        ("type", "job_queued"),
        ("payload", {"a": 2}),
        ("payload", {"a": 1.0}),
        ("attempt", 1),
        ("at", 1.25),
        ("schema", 2),
        ("prev", "1" * 64),
    ],
)
def test_every_field_is_under_the_hash(field: str, value: object) -> None:
    event = first({"a": 1})
    assert digest(msgspec.structs.replace(event, **{field: value})) != event.hash


def test_the_payload_is_a_copy_of_plain_values() -> None:
    @dataclass
    class Money:
        cents: int

    mutable = {"list": [1]}
    event = first({"m": Money(5), "t": (1, 2), "d": datetime(2026, 1, 2, tzinfo=UTC), "s": {3}, "x": mutable})
    mutable["list"].append(2)
    assert event.payload == {"m": {"cents": 5}, "t": [1, 2], "d": "2026-01-02T00:00:00Z", "s": [3], "x": {"list": [1]}}
    assert event.hash == digest(event)


@dataclass
class Measured:
    value: float


@pytest.mark.parametrize(
    "payload",
    [
        {"x": math.nan},
        {"x": (math.nan, 1.0)},
        {"x": [1, {"y": math.inf}]},
        {"x": Measured(-math.inf), "nothing": None},
        {"x": object()},
        {"x": "\ud800"},
        {"\ud800": 1},
        {1: "number as key"},
        {None: 1},
        {"x": 10**5000},
        {"x": lambda: None},
        nested(PAYLOAD_DEPTH_MAX + 1),
        nested(5000),
    ],
    ids=range(13),
)
def test_what_json_cannot_hold_exactly_is_refused(payload: dict[Any, Any]) -> None:
    with pytest.raises(InvalidEvent, match="payload"):
        first(payload)


@pytest.mark.parametrize("raw", [b'{"b":1, "a":2}', b"1e2", b'"\\u0041"', b'{"a":1,"a":2}'])
def test_raw_json_that_is_passed_in_is_hashed_in_its_canonical_form(raw: bytes) -> None:
    event = first({"x": msgspec.Raw(raw)})
    assert event.hash == digest(event) == digest(decode(encode(event)))
    frozen, plain = freeze({"x": msgspec.Raw(raw)})
    assert frozen == freeze_plain(plain), "and stored without the white space it came with"


@pytest.mark.parametrize("mapping", [MappingProxyType({"a": None}), UserDict({"a": None}), ChainMap({"a": None})])
def test_any_mapping_can_be_a_payload(mapping: Any) -> None:
    assert first(mapping).payload == {"a": None}


def test_records_are_read_from_any_kind_of_bytes() -> None:
    event = first({"wide": [[[]]] * 100})
    assert decode(bytearray(encode(event))) == decode(memoryview(encode(event))) == event


GOLDEN = {  # the form that is published in docs/reference/events.md: a change here makes every stored hash wrong
    1.0: "1.0", 100.0: "100.0", -0.0: "-0.0", 0.1: "0.1", 0.0001: "0.0001", 0.00001: "0.00001", 9.99e-5: "0.0000999",
    9.9e-6: "9.9e-6", 1e-6: "1e-6", 1e-7: "1e-7", 1.5e-7: "1.5e-7", 123456789012345.6: "123456789012345.6",
    1e15: "1000000000000000.0", 1e16: "1e16", 1.5e16: "1.5e16", 1e22: "1e22", 1e300: "1e300", 5e-324: "5e-324",
}  # fmt: skip


@pytest.mark.parametrize(("number", "text"), GOLDEN.items())
def test_floats_are_written_in_the_published_form(number: float, text: str) -> None:
    assert f'{{"x":{text}}}'.encode() in canonical(first({"x": number}))


@settings(max_examples=1000, deadline=None)
@given(FLOATS | st.floats(1e-8, 1e-3) | st.floats(-1e18, -1e14))
def test_every_float_is_written_by_the_published_rule(number: float) -> None:
    """Rebuilt from the digits of `repr`: written out from 1e-5 to below 1e16, else with a bare exponent."""
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + exponent  # where the point stands, counted from the first digit
    if number == 0:
        written = "0.0"
    elif 1e-5 <= abs(number) < 1e16:
        padded = "0" * max(0, 1 - point) + text.ljust(point, "0")
        at = max(point, 1)
        written = f"{padded[:at]}.{padded[at:] or '0'}"
    else:
        written = f"{text[0]}{'.' + text[1:] if len(text) > 1 else ''}e{point - 1}"
    assert f'{{"x":{"-" if sign else ""}{written}}}'.encode() in canonical(first({"x": number}))


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidEvent, match="payload is not JSON"):
        first({"loop": loop})


def test_depth_and_size_are_taken_up_to_their_limit() -> None:
    deepest = first(nested(PAYLOAD_DEPTH_MAX))
    assert decode(encode(deepest)) == deepest
    wide = first({"wide": [[[]]] * 100, "null": None})  # many brackets, little depth
    assert decode(encode(wide)) == wide
    with pytest.raises(InvalidEvent, match="may have"):
        first({"x": "y" * PAYLOAD_BYTES_MAX})
    largest = first({"x": "y" * (PAYLOAD_BYTES_MAX - 8)}, job="\x01" * 255, type="\x01" * 255, id="\x01" * 512)
    assert decode(encode(largest)) == largest


def test_a_deep_record_from_outside_is_refused() -> None:
    record = json.loads(encode(first()))
    record["payload"] = nested(PAYLOAD_DEPTH_MAX + 1)
    with pytest.raises(InvalidEvent, match="nests deeper"):
        decode(json.dumps(record))


@pytest.mark.parametrize(
    "fields",
    [
        {"job": ""},
        {"job": None},
        {"job": "j" * 256},
        {"job": 5},
        {"job": "\ud800"},
        {"type": None},
        {"type": b"job_created"},
        {"id": 5},
        {"type": ""},
        {"type": "t" * 256},
        {"type": "\udfff"},
        {"id": ""},
        {"id": "i" * 513},
        {"at": math.nan},
        {"at": -math.inf},
        {"at": "1"},
        {"at": None},
        {"attempt": 0},
        {"attempt": -1},
        {"attempt": True},
        {"attempt": 1.0},
        {"attempt": 2**63},
    ],
    ids=str,
)
def test_an_event_with_a_part_out_of_range_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidEvent, match="not an event record"):
        first(**fields)


def test_an_event_cannot_follow_another_jobs_event() -> None:
    with pytest.raises(InvalidEvent, match="cannot follow"):
        seal(first(), "job_running", at=2.0, attempt=1, job="other")


GOOD_LINE = encode(first({"a": [1, 2]}))


@settings(max_examples=1000, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200))
@example(b"")
@example(b"null")
@example(b"{}")
@example(b"[" * 1_000_000)
@example(b'{"id":' * 100_000)
@example(b'"\xff"')
@example(b'"\\ud800"')
@example(b"1" * 5000)
@example("\ud800")
@example(bytearray(b"{}"))
def test_any_bytes_give_a_record_or_a_clear_error(data: bytes | str) -> None:
    try:
        event = decode(data)
    except InvalidEvent as error:
        assert str(error)
    else:
        assert decode(encode(event)) == event


@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_a_damaged_record_gives_a_record_or_a_clear_error(data: st.DataObject) -> None:
    line = bytearray(GOOD_LINE)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(line) - 1))
        action = data.draw(st.sampled_from(["flip", "cut", "put"]))
        if action == "flip":
            line[position] ^= 1 << data.draw(st.integers(0, 7))
        elif action == "cut":
            del line[position : position + data.draw(st.integers(1, 9))]
        else:
            line[position:position] = data.draw(st.binary(min_size=1, max_size=5))
        if not line:
            break
    try:
        event = decode(bytes(line))
    except InvalidEvent as error:
        assert "event record" in str(error)
    else:
        assert event.hash != digest(event) or decode(encode(event)) == event


def changed(**fields: Any) -> bytes:
    record = json.loads(GOOD_LINE)
    record.update(fields)
    return json.dumps({key: value for key, value in record.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    "line",
    [
        changed(seq=0),
        changed(seq=1.0),
        changed(seq="1"),
        changed(seq=2**63),
        changed(at=None),
        GOOD_LINE.replace(b'"at":1.5', b'"at":1e999'),
        GOOD_LINE.replace(b'"at":1.5', b'"at":1' + b"0" * 400),
        changed(payload=None),
        changed(payload=[]),
        changed(hash="A" * 64),
        changed(hash="a" * 63),
        changed(hash="a" * 64 + "\n"),
        changed(prev=""),
        changed(schema=0),
        changed(type=""),
        changed(color="red"),
        changed(hash=...),
        changed(attempt=...),
        GOOD_LINE + b"{}",
        GOOD_LINE[:-1],
        b"\xef\xbb\xbf" + GOOD_LINE,
    ],
    ids=lambda line: str(line)[-30:],
)
def test_a_record_of_another_shape_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidEvent, match="not an event record"):
        decode(line)


def test_a_record_over_the_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(InvalidEvent, match="may have 10 bytes, this one has"):
        decode(GOOD_LINE, bytes_max=10)
    with pytest.raises(InvalidEvent, match="may have"):
        decode(b"[" * (EVENT_BYTES_MAX + 1))


def test_a_type_of_a_newer_release_is_kept() -> None:
    event = first({"soul": "found"}, type="soul_searched")
    assert decode(encode(event)).type == "soul_searched"


# Freezing: the way of writers that keep the bytes


@settings(deadline=None)
@given(PAYLOADS)
def test_what_is_frozen_first_gets_the_same_hash(payload: dict[str, Any]) -> None:
    sealed = seal_at("a", 7, GENESIS, "node_started", payload, at=2.5, attempt=3)
    frozen = freeze_plain(payload)
    assert freeze(payload) == (frozen, sealed.payload)
    early = seal_frozen("a", 7, GENESIS, "node_started", frozen, at=2.5, attempt=3)
    assert early.hash == sealed.hash
    assert seal_frozen("a", 7, GENESIS, "node_started", frozen, at=2.5, attempt=3, payload=sealed.payload) == sealed


@settings(deadline=None)
@given(
    st.text(min_size=1, max_size=8),
    st.lists(st.tuples(st.text(min_size=1, max_size=8), PAYLOADS), max_size=4),
    st.none() | st.integers(1, 2**40),
    st.floats(0, 2**40),
)
def test_a_span_has_the_hashes_of_events_sealed_one_by_one(
    job: str, drawn: list[tuple[str, dict[str, Any]]], attempt: int | None, at: float
) -> None:
    frozen = [(kind, freeze_plain(payload)) for kind, payload in drawn]
    span = seal_span(job, 7, GENESIS, frozen, at=at, attempt=attempt)
    head, sealed = GENESIS, []
    for number, (kind, payload) in enumerate(frozen, 7):
        event = seal_frozen(job, number, head, kind, payload, at=at, attempt=attempt)
        sealed.append((event, payload.text))
        head = event.hash
    assert span.events() == sealed


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        [1, {"x": math.inf}],
        "\ud800",
        object(),
        nested(PAYLOAD_DEPTH_MAX + 1),
        "x" * EVENT_BYTES_MAX,
    ],
    ids=["nan", "inf", "surrogate", "object", "deep", "large"],
)
def test_what_json_cannot_hold_is_not_frozen(value: object) -> None:
    for way in (freeze, freeze_plain):
        with pytest.raises(InvalidEvent):
            way({"value": value})


@pytest.mark.parametrize(
    ("job", "kind", "at", "attempt"),
    [
        ("", "t", 1.0, 1),
        ("a" * 300, "t", 1.0, 1),
        ("a", "", 1.0, 1),
        ("a", "\ud800", 1.0, 1),
        ("a", "t", math.inf, 1),
        ("a", "t", 1.0, 0),
    ],
)
def test_names_and_numbers_out_of_range_are_not_vouched_for(job: str, kind: str, at: float, attempt: int) -> None:
    good = seal_frozen("a", 1, GENESIS, "t", freeze_plain({}), at=1.0, attempt=1)
    assert vouch(good) is good
    with pytest.raises(InvalidEvent):
        vouch(msgspec.structs.replace(good, job=job, type=kind, at=at, attempt=attempt))


def test_an_empty_container_on_the_deepest_level_nests_no_deeper() -> None:
    value: Any = {}
    for _ in range(PAYLOAD_DEPTH_MAX):
        value = {"in": value}
    padded = {**value, "pad": "x" * 3 * PAYLOAD_DEPTH_MAX}
    assert freeze_plain(padded).text.count(b"{") == PAYLOAD_DEPTH_MAX + 1
    with pytest.raises(InvalidEvent, match="nests deeper"):
        freeze_plain({"in": padded})
