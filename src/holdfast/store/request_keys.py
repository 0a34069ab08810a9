"""Request keys: a request with a key is executed once, and a repeat gets the answer of the first.

`Once` wraps a command. In one transaction the store looks for the key, executes the command and keeps its answer. So a
crash leaves both or neither. A refused command leaves no key, and may be tried again. Neither does an answer of a
person that the caller has yet to check. The same key with another fingerprint is refused with `IdempotencyKeyReused`.
A key is kept for `KEPT_SECONDS` at least.

The key of a request over HTTP is in a context variable, so that the verbs of an app need no argument for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec

from holdfast.errors import IdempotencyKeyReused
from holdfast.schedules.schedule import Schedule
from holdfast.store.rows import Job

__all__ = [
    "KEPT_SECONDS",
    "KeepAnswer",
    "Once",
    "Repeat",
    "RequestKey",
    "Requests",
    "once",
    "request_key",
    "without_keys",
]

KEPT_SECONDS = 86_400.0
DROPPED_MAX = 100  # old keys that one transaction removes
_SPLIT = "\n"  # between the parts of a stored key; no part has it

_encode = msgspec.json.Encoder(enc_hook=str).encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

Known = Mapping[str, tuple[str, str]]  # fingerprint and answer, by key


class Once(msgspec.Struct, frozen=True):
    """A command that is executed once for its key. Result: that of the command, or `Repeat`."""

    command: Any
    key: str
    fingerprint: str


class Repeat(msgspec.Struct, frozen=True):
    """The kept answer of an earlier request with the same key."""

    answer: dict[str, Any]


class KeepAnswer(msgspec.Struct, frozen=True):
    """Change nothing. Result: `answer`. With `Once`, the first of several answers is kept."""

    answer: dict[str, Any]


class RequestKey(msgspec.Struct, frozen=True):
    """The key of the request that is answered in this context.

    Attributes:
        actor: who sent it; keys of different actors differ.
        key: what the client sent.
        fingerprint: of the whole request.
        many: whether the request executes several commands, each of which has a key of its own.
    """

    actor: str
    key: str
    fingerprint: str
    many: bool = False


request_key: ContextVar[RequestKey | None] = ContextVar("request_key", default=None)


def once(command: Any, subject: str = "") -> Any:
    """Return a command that is executed once, if the request in this context has a key. Otherwise return it unchanged.

    Args:
        command: The command.
        subject: What the command is about. It tells the commands of one request apart.
    """
    request = request_key.get()
    if request is None:
        return command
    parts = (request.actor, request.key, *((subject,) if request.many else ()))
    return Once(command, _SPLIT.join(parts), request.fingerprint)


def without_keys(batch: Sequence[Any]) -> list[Any]:
    """Return the commands of a batch without their keys."""
    return [command.command if isinstance(command, Once) else command for command in batch]


class Requests:
    """The commands of one batch, without those that were executed before."""

    def __init__(self, batch: Sequence[Any]) -> None:
        self._batch = batch
        self._first: dict[str, int] = {}  # the place of the first command with a key
        for place, command in enumerate(batch):
            if isinstance(command, Once):
                self._first.setdefault(command.key, place)
        self._known: Known = {}
        self._places: list[int] = list(range(len(batch)))
        self.todo: list[Any] = list(batch)

    def __bool__(self) -> bool:
        """Return whether a command has a key."""
        return bool(self._first)

    def fingerprints(self) -> list[tuple[str, str]]:
        """Return each key with the fingerprint of its first command, in a fixed order."""
        return sorted((key, self._batch[place].fingerprint) for key, place in self._first.items())

    def have(self, known: Known) -> None:
        """Take the keys that the store knows. The commands of others are to be executed."""
        self._known = known
        self._places = [place for place, command in enumerate(self._batch) if self._is_first(place, command)]
        commands = [self._batch[place] for place in self._places]
        self.todo = without_keys(commands)

    def _is_first(self, place: int, command: Any) -> bool:
        if not isinstance(command, Once):
            return True
        return command.key not in self._known and self._first[command.key] == place

    def answers(self, done: Sequence[Any]) -> list[Any]:
        """Return the answer of every command of the batch, from those that were executed."""
        by_place = dict(zip(self._places, done, strict=True))
        return [
            by_place[place] if place in by_place else self._repeated(command, by_place)
            for place, command in enumerate(self._batch)
        ]

    def _repeated(self, command: Once, done: Mapping[int, Any]) -> Any:
        if command.key in self._known:
            fingerprint, answer_json = self._known[command.key]
        else:
            first = self._first[command.key]
            if isinstance(done[first], Exception):
                return done[first]
            fingerprint, answer_json = self._batch[first].fingerprint, _answer_json(done[first])
        if fingerprint != command.fingerprint:
            return IdempotencyKeyReused(_sent(command.key))
        return Repeat(_decode(answer_json))

    def kept(self, done: Sequence[Any]) -> list[tuple[str, str, str]]:
        """Return the rows to keep: key, fingerprint, answer as JSON."""
        return [
            (command.key, command.fingerprint, _answer_json(answer))
            for place, answer in zip(self._places, done, strict=True)
            if isinstance(command := self._batch[place], Once) and not _leaves_no_key(answer)
        ]

    def refused(self, done: Sequence[Any]) -> list[str]:
        """Return the keys of commands that have changed nothing and may be tried again."""
        return [
            command.key
            for place, answer in zip(self._places, done, strict=True)
            if isinstance(command := self._batch[place], Once) and _leaves_no_key(answer)
        ]


def _leaves_no_key(answer: Any) -> bool:
    """Return whether a command was refused, or is an answer of a person that must be checked first."""
    return isinstance(answer, Exception) or getattr(answer, "outcome", None) == "asks"


def _sent(key: str) -> str:
    """Return the part of a stored key that the client has sent."""
    parts = key.split(_SPLIT)
    return parts[1] if len(parts) > 1 else key


def _answer_json(answer: Any) -> str:
    """Return what a repeat needs of an answer."""
    match answer:
        case dict():
            kept = answer
        case Job():
            kept = {"job": answer.id, "run": answer.run}
        case Schedule():
            kept = {"schedule": answer.id}
        case _:
            kept = {name: getattr(answer, name) for name in ("job", "jobs", "outcome") if hasattr(answer, name)}
    return _encode(kept).decode()
