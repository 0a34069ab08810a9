"""One event of a job: the record, its bytes, and the hash that ties it to the event before it.

A job is its stream of events. A record must never silently differ from what was written:

- `seal` makes a record of plain JSON values: numbered, hashed, tied to its predecessor. Nothing else makes records.
- `encode` and `decode` are exact. `decode` returns the record that was encoded, or raises `InvalidEvent` with the
  reason, for every input.
- `canonical` returns the bytes that are hashed. They depend on the values alone, not on key order or white space.
- The stored text keeps the keys of every object in the order given (E13). Only the hashed bytes are sorted.
- The type is an open name. Events of a newer release are kept; they do not move the machine.

The hash is SHA-256 over the canonical bytes of ``[schema, job, seq, id, type, attempt, at, payload, prev]``. Canonical
JSON here: UTF-8, keys sorted by code point, no white space, only the escapes JSON demands; floats with the fewest
digits that read back the same, written out (``0.00001``, ``100.0``) from 1e-5 to below 1e16, else ``1e-6``, ``1.5e16``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from holdfast.errors import InvalidEvent

SCHEMA = 1  # version of the record's own shape; raised only when a field of `Event` changes its meaning
GENESIS = "0" * 64  # what the first event of a job names as its predecessor
EVENT_BYTES_MAX = 16 * 1024 * 1024  # a record over this is refused before it is parsed
PAYLOAD_BYTES_MAX = (
    EVENT_BYTES_MAX - 16 * 1024
)  # leaves room for the longest names, so that a sealed record can be read
PAYLOAD_DEPTH_MAX = 64  # nesting over this is refused: deep values exhaust the stack of a later reader


class HistoryEvent(StrEnum):
    """The other events that this release writes and understands. They never move the machine."""

    CANCEL_REQUESTED = "cancel_requested"
    VALUE_RECORDED = "value_recorded"
    PLAN_GENERATED = "plan_generated"
    NODE_STARTED = "node_started"
    NODE_FINISHED = "node_finished"
    COMMAND_COMMITTED = "command_committed"
    TOOL_STARTED = "tool_invocation_started"
    TOOL_FINISHED = "tool_invocation_finished"


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Counting = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One event of a job. `seal` and `decode` make it; nothing changes it.

    Attributes:
        id: unique name of this event.
        job: the job whose stream this is.
        seq: position in the stream, from 1, without gaps.
        type: what happened; a `JobEvent`, a `HistoryEvent`, or a name of a newer release.
        payload: its data, plain JSON.
        attempt: the attempt that wrote it (the fencing token), or None for a writer outside any attempt.
        at: when, in UTC epoch seconds, by the store's clock.
        schema: version of this record's shape.
        prev: hash of the event before it, `GENESIS` for the first.
        hash: hash of this event.
    """

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    job: _Name
    seq: _Counting
    type: _Name
    payload: dict[str, Any]
    attempt: _Counting | None
    at: float
    schema: _Counting
    prev: _Hash
    hash: _Hash


class Frozen(msgspec.Struct, frozen=True, gc=False):
    """A payload that cannot change any more, written twice.

    Attributes:
        text: the JSON that is stored, keys in the order given.
        canonical: the JSON that is hashed, keys sorted; the same object as `text` where they do not differ.
    """

    text: bytes
    canonical: bytes


class SealedSpan(msgspec.Struct, frozen=True, gc=False):
    """Events of one job that follow one another, of one attempt and one time: a list for each field that differs.

    Attributes:
        job: the job whose stream this is.
        seq: position of the first one.
        types: what happened.
        texts: the payloads, as the JSON that is stored.
        hashes: their hashes.
        prev: hash of the event before the first one.
        attempt: the attempt that wrote them.
        at: when.
    """

    job: str
    seq: int
    types: list[str]
    texts: list[bytes]
    hashes: list[str]
    prev: str
    attempt: int | None
    at: float

    def events(self) -> list[tuple[Event, bytes]]:
        """Return each event without its payload, and the payload's text."""
        columns = zip(self.types, self.texts, self.hashes, [self.prev, *self.hashes], strict=False)
        return [
            (Event(f"{self.job}:{seq}", self.job, seq, name, {}, self.attempt, self.at, SCHEMA, prev, hashed), text)
            for seq, (name, text, hashed, prev) in enumerate(columns, self.seq)
        ]


_NESTING = frozenset({dict, list, tuple})
_encoder = msgspec.json.Encoder(order="sorted")
_record_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)
_payload_decoder = msgspec.json.Decoder(dict[str, Any])


def seal(
    after: Event | None,
    type: str,
    payload: Mapping[str, Any] | None = None,
    *,
    at: float,
    attempt: int | None = None,
    job: str | None = None,
    id: str | None = None,
) -> Event:
    """Make the event that follows `after`, or the first event of `job` when `after` is None.

    The payload is normalised to plain JSON values, a private copy. The id is ``job:seq`` unless given.

    Raises:
        InvalidEvent: a value that JSON cannot hold exactly, or a name, number or time out of range.
    """
    job = _text("job", job) if job is not None else (after.job if after is not None else "")
    if after is not None and job != after.job:
        raise InvalidEvent(f"an event of job {job!r} cannot follow one of job {after.job!r}")
    seq, prev = (after.seq + 1, after.hash) if after is not None else (1, GENESIS)
    return seal_at(job, seq, prev, type, payload, at=at, attempt=attempt, id=id)


def seal_at(
    job: str,
    seq: int,
    prev: str,
    type: str,
    payload: Mapping[str, Any] | None = None,
    *,
    at: float,
    attempt: int | None = None,
    id: str | None = None,
) -> Event:
    """Seal as `seal` does, from only the number and the hash of the event before it."""
    frozen, plain = freeze(payload if payload is not None else {})
    unsealed = {
        "id": _text("id", id) if id is not None else f"{job}:{seq}",
        "job": job,
        "seq": seq,
        "type": _text("type", type),
        "payload": plain,
        "attempt": attempt,
        "at": at,
        "schema": SCHEMA,
        "prev": prev,
    }
    return _sealed(unsealed, frozen.canonical)


def freeze(payload: Mapping[str, Any]) -> tuple[Frozen, dict[str, Any]]:
    """Return a payload's bytes, and the plain JSON values that they decode to, as a new copy.

    The bytes are what is sealed later, even if the values change in the meantime.

    Raises:
        InvalidEvent: a value that JSON cannot hold exactly.
    """
    try:
        written = _encoder.encode(dict(payload))  # refuses keys that are not text, which the other would write as text
        plain = _payload_decoder.decode(_record_encoder.encode(dict(payload)))
        if b"null" in written:  # NaN and infinity would have become null without a word
            _refuse_not_finite(msgspec.to_builtins(dict(payload)))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:  # ValueError: lone surrogates
        raise _no_json(error) from error
    return freeze_plain(plain), plain  # encoded again: raw JSON that was passed in is compact only now


def freeze_plain(payload: Mapping[str, Any]) -> Frozen:
    """Freeze a payload that already has plain JSON values and text keys: the same result, much faster.

    Raises:
        InvalidEvent: a number that JSON does not have, text that UTF-8 cannot write, or too much of it.
    """
    try:
        text, canonical = _record_encoder.encode(payload), _encoder.encode(payload)
        if len(text) > 2 * PAYLOAD_DEPTH_MAX:
            if len(text) > PAYLOAD_BYTES_MAX:
                raise InvalidEvent(f"a payload may have {PAYLOAD_BYTES_MAX} bytes, this one has {len(text)}")
            if _may_be_deep(text):
                _refuse_depth(payload)
        # A number that is not finite was written as null. `find` is faster than `in`, which tries a number first.
        if text.find(b"null") >= 0 and _payload_decoder.decode(text) != payload:
            _refuse_not_finite(payload)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise _no_json(error) from error
    return Frozen(text, text if text == canonical else canonical)


def seal_frozen(
    job: str,
    seq: int,
    prev: str,
    type: str,
    frozen: Frozen,
    *,
    at: float,
    attempt: int | None,
    payload: dict[str, Any] | None = None,
) -> Event:
    """Seal as `seal_at` does, with a frozen payload; the record's own payload is the argument, or empty.

    For writers of many events that keep the bytes. It does not check names and numbers: `vouch` does.
    """
    name = f"{job}:{seq}"
    hashed = hashlib.sha256(
        _encoder.encode((SCHEMA, job, seq, name, type, attempt, at, msgspec.Raw(frozen.canonical), prev))
    ).hexdigest()
    return Event(name, job, seq, type, payload if payload is not None else {}, attempt, at, SCHEMA, prev, hashed)


def seal_span(
    job: str, seq: int, prev: str, events: Iterable[tuple[str, Frozen]], *, at: float, attempt: int | None
) -> SealedSpan:
    """Seal events that follow one another, the first one as number `seq`, each as `seal_frozen` does.

    Most events are sealed here. Writing what they have in common once halves the time of each event.
    """
    name, common = _encoder.encode(job), _encoder.encode((attempt, at))
    first, then, before = b"[%d,%b," % (SCHEMA, name), b",%b:" % name[:-1], b",%b," % common[1:-1]
    types, texts, hashes, head, sha256 = [], [], [], prev, hashlib.sha256
    for number, (kind, frozen) in enumerate(events, seq):
        digits, written = b"%d" % number, _encoder.encode(kind)
        hashed = first, digits, then, digits, b'",', written, before, frozen.canonical, b',"', head.encode(), b'"]'
        head = sha256(b"".join(hashed)).hexdigest()
        types.append(kind)
        texts.append(frozen.text)
        hashes.append(head)
    return SealedSpan(job, seq, types, texts, hashes, prev, attempt, at)


def vouch(event: Event) -> Event:
    """Check the names and numbers of a record that was made unchecked, and return it.

    Raises:
        InvalidEvent: one of them is out of range.
    """
    try:
        msgspec.convert(msgspec.structs.asdict(event), Event, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidEvent(f"not an event record: {error}") from error
    if not math.isfinite(event.at):
        raise InvalidEvent(f"not an event record: `at` must be a finite number of seconds, got {event.at}")
    for name in (event.id, event.job, event.type):
        if not _is_unicode(name):
            raise InvalidEvent(f"not an event record: {name!r} holds a character that UTF-8 cannot write")
    return event


def encode(event: Event) -> bytes:
    """Return the record as one line of JSON."""
    return _record_encoder.encode(event)


def decode(data: bytes | bytearray | memoryview | str, *, bytes_max: int = EVENT_BYTES_MAX) -> Event:
    """Read a record back.

    Its shape is checked; its place in the chain is checked by `holdfast.machines.check`.

    Raises:
        InvalidEvent: for every input that is not a record; the message names the first problem.
    """
    data = data if isinstance(data, (bytes, str)) else bytes(data)
    if len(data) > bytes_max:
        raise InvalidEvent(f"an event record may have {bytes_max} bytes, this one has {len(data)}")
    try:
        event = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: bad UTF-8
        raise InvalidEvent(f"not an event record: {error}") from error
    if _may_be_deep(data.encode() if isinstance(data, str) else data):
        _refuse_depth(event.payload)
    return event


def canonical(event: Event) -> bytes:
    """Return the bytes that are hashed; see the module's text for their form."""
    return _canonical(event, event.payload)


def digest(event: Event) -> str:
    """Return the hash that this event should carry."""
    return hashlib.sha256(canonical(event)).hexdigest()


def _sealed(unsealed: dict[str, Any], hashed_payload: bytes) -> Event:
    try:
        draft = msgspec.convert({**unsealed, "hash": GENESIS}, Event, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidEvent(f"not an event record: {error}") from error
    vouch(draft)
    # Raw: the payload was encoded once already, canonically.
    hashed = hashlib.sha256(_canonical(draft, msgspec.Raw(hashed_payload))).hexdigest()
    return msgspec.structs.replace(draft, hash=hashed)


def _canonical(event: Event, payload: object) -> bytes:
    return _encoder.encode(
        (event.schema, event.job, event.seq, event.id, event.type, event.attempt, event.at, payload, event.prev)
    )


def _no_json(error: Exception) -> InvalidEvent:
    return error if isinstance(error, InvalidEvent) else InvalidEvent(f"the payload is not JSON: {error}")


def _may_be_deep(raw: bytes) -> bool:
    # Counting brackets bounds the depth from above at the speed of C; only then is the value walked.
    return len(raw) > 2 * PAYLOAD_DEPTH_MAX and raw.count(b"[") + raw.count(b"{") > PAYLOAD_DEPTH_MAX


def _refuse_depth(value: Mapping[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(PAYLOAD_DEPTH_MAX):
        inside = (container.values() if isinstance(container, dict) else container for container in level)
        level = [item for items in inside for item in items if type(item) in _NESTING]
        if not level:
            return
    if any(level):  # an empty one on the last level holds nothing deeper
        raise InvalidEvent(f"the payload nests deeper than {PAYLOAD_DEPTH_MAX} levels")


def _refuse_not_finite(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidEvent(f"the payload is not JSON: it holds {value}")
    for item in _items(value):
        _refuse_not_finite(item)


def _items(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else []


def _text(field: str, value: object) -> str:
    """Return a name as a plain str: for a member of an enumeration, its value."""
    if not isinstance(value, str):
        raise InvalidEvent(f"not an event record: `{field}` must be text, got {value.__class__.__name__}")
    return str.__str__(value)


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
