"""The audit log: who did what to which run or queue, written in the transaction that did it.

`Audited` wraps a command. The store executes the command and writes a row for it in the same transaction. A refused
command leaves no row. Rows are never changed, and a purge of runs does not remove them. Workers remove old rows if
`keep_audit_seconds` is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import msgspec

__all__ = ["Acting", "AuditRow", "Audited", "acting", "audit_rows", "audited", "audited_creation", "unwrapped"]

UNCHANGED = {"repeat", "asks"}  # outcomes of signals that have changed nothing
_encode = msgspec.json.Encoder(enc_hook=str).encode


class Acting(msgspec.Struct):
    """Who acts in this context.

    Attributes:
        actor: the authenticated name, such as ``token:ci``, or the name that a local caller gives.
        said: the name that a client with a token gives in addition; nothing proves it.
        creations: whether runs and signals are recorded too. Without a token the actor is not known.
    """

    actor: str
    said: str | None = None
    creations: bool = False


class AuditRow(msgspec.Struct, frozen=True):
    """One row of the audit log.

    Attributes:
        number: its place in the log; it grows.
        at: when, in UTC epoch seconds, by the store's clock.
        actor: who did it: ``token:NAME``, ``http`` for an open server, or the name that a local caller gave.
        said: the name that a client gave in addition to its token; nothing proves it.
        verb: what was done: create, fork, signal, answer, cancel, retry, pause, resume, resolve, grant, purge,
            set_limits, pause_queue or resume_queue.
        subject: the run's job or the queue.
        detail: more about it, such as a reason or the number of removed runs.
    """

    number: int
    at: float
    actor: str
    said: str | None
    verb: str
    subject: str
    detail: dict[str, Any]


class Audited(msgspec.Struct, frozen=True):
    """A command with the row that is written if the store does not refuse it. Result: that of the command."""

    command: Any
    verb: str
    subject: str
    actor: str
    said: str | None = None
    detail: dict[str, Any] = {}


acting: ContextVar[Acting | None] = ContextVar("acting", default=None)


def audited(command: Any, verb: str, subject: str, actor: str | None, detail: dict[str, Any] | None = None) -> Audited:
    """Wrap a command of an operator. Without an authenticated actor, the given name is recorded."""
    who = acting.get() or Acting(actor or "app")
    given = {name: value for name, value in (detail or {}).items() if value is not None}
    return Audited(command, verb, subject, who.actor, who.said, given)


def audited_creation(command: Any, verb: str, subject: str = "", detail: dict[str, Any] | None = None) -> Any:
    """Wrap a command that creates a run or sends a signal, if a token does it. Otherwise return the command."""
    who = acting.get()
    return audited(command, verb, subject, None, detail) if who is not None and who.creations else command


def unwrapped(batch: Sequence[Any]) -> list[Any]:
    """Return the commands of a batch without their wrappers."""
    return [command.command if isinstance(command, Audited) else command for command in batch]


def audit_rows(batch: Sequence[Any], answers: Sequence[Any]) -> list[tuple[str, str | None, str, str, str]]:
    """Return the rows of executed commands, without number and time: actor, said, verb, subject, detail as JSON.

    A repeat that has changed nothing leaves no row: a run or signal that existed, a purge that removed nothing.
    """
    rows = []
    for command, answer in zip(batch, answers, strict=True):
        if not isinstance(command, Audited) or isinstance(answer, Exception):
            continue
        if getattr(answer, "existing", False) or getattr(answer, "outcome", None) in UNCHANGED:
            continue
        subject, detail = command.subject or getattr(answer, "job", ""), command.detail
        if command.verb == "purge":
            if not answer.jobs:
                continue
            detail = {**detail, "removed": len(answer.jobs)}
        rows.append((command.actor, command.said, command.verb, subject, _encode(detail).decode()))
    return rows
