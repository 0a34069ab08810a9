"""Jobs that continue others (`continue_as`): what moves to the successor, and which job of a chain is current.

A chain of jobs is linked from both sides. A job that was continued names the next one in its last event. Each job
names, in its first event, the one before it and the first. The row of the first also names the newest, so no code walks
the chain. A fork that replaces a job gets what a successor gets. Everything here is pure, as in `decide`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.machines.keys import BUDGET_KEY, is_reserved
from holdfast.store import commands as c
from holdfast.store.inbox import Inbox
from holdfast.store.rows import Job, Signal
from holdfast.store.stream_writer import Decision


def hand_over(decision: Decision, successor: c.Successor, job: Job, now: float, inbox: Inbox) -> None:
    """Let a successor continue a job that has ended by `continue_as`; `job` is its row before the end.

    Unused signals move to the successor, except results of children, which only calls of the old job wait for. A
    requested pause moves too. A child stays kept for the build of its parent.
    """
    facts = {
        **job.spec(),
        "deadline": _deadline(job, now),
        "idempotency_key": None,
        "fingerprint": successor.fingerprint,
        "continues": job.id,
        "first": successor.first,
    }
    kept_for = job.kept_for if job.parent is not None else None  # the parent waits for it, and is kept, too
    decision.successor = c.Submit(
        job=successor.job, args=successor.args, budget=successor.budget, kept_for=kept_for, **facts
    )
    taken = {signal.id for signal in decision.used}
    moving = tuple(signal for signal in inbox.unused() if signal.id not in taken and _is_for_the_chain(signal.key))
    decision.used = (*decision.used, *moving)
    decision.moving = tuple(msgspec.structs.replace(signal, job=successor.job) for signal in moving)
    if job.pause:
        decision.follow = (*decision.follow, c.Pause(successor.job))


def replace(
    decision: Decision, fork: c.Submit, job: Job, again: Sequence[tuple[str, str, Any]], now: float, inbox: Inbox
) -> None:
    """Let a fork replace a job that was cancelled for it; `job` is its row before the end.

    The fork of a child is a child of the same parent, which waits for the end of the fork in its place. The fork gets
    the unused signals, and those of `again`: waits have used them that the fork does not reuse. It has as long as the
    job had.
    """
    facts: dict[str, Any] = {"deadline": _deadline(job, now)}
    if job.parent is not None:
        facts |= {"parent": job.parent, "parent_key": job.parent_key, "trace_id": job.trace_id}
        facts["kept_for"] = job.kept_for  # of a child: its parent may be kept for the same build
    decision.successor = msgspec.structs.replace(fork, **facts)
    taken = {signal.id for signal in decision.used}
    unused = tuple(signal for signal in inbox.unused() if signal.id not in taken and _is_for_the_chain(signal.key))
    decision.used = (*decision.used, *unused)
    used = tuple(Signal(fork.job, name, key, payload, now) for name, key, payload in again)
    decision.moving = (*used, *(msgspec.structs.replace(signal, job=fork.job) for signal in unused))
    if job.pause:
        decision.follow = (*decision.follow, c.Pause(fork.job))


def _deadline(job: Job, now: float) -> float | None:
    """Return the deadline of a job that begins now and has as long as another had."""
    return now + (job.deadline - job.created_at) if job.deadline is not None else None


def _is_for_the_chain(key: str) -> bool:
    """Return whether a signal with this key is for the successor: not if only a call of the old job waits for it."""
    return key == BUDGET_KEY or not is_reserved(key)


def current(job: Job, row_of: Callable[[str], Job | None]) -> Job:
    """Return the current job of a chain: the newest, or the nearest to it that still exists.

    Args:
        job: any job.
        row_of: reads a row; None if it is gone.
    """
    if job.course.continued_as is None:
        return job
    first = row_of(job.first) if job.first is not None else job
    newest = row_of(first.newest) if first is not None and first.newest is not None else None
    at = newest if newest is not None else job
    while at.course.continued_as is not None and (following := row_of(at.course.continued_as)) is not None:
        at = following
    return at


def stays(command: c.SendSignal, inbox: Inbox) -> bool:
    """Return whether a signal to a continued job is not for its successor: a repeat, an answer, or a child's end."""
    return inbox.knows(command.id) or command.node is not None or not _is_for_the_chain(command.key)


def noted(command: c.SendSignal, job: Job, now: float) -> Decision:
    """Record a signal that is forwarded to the successor, so that a repeat is known here."""
    seen = Signal(job.id, command.id, command.key, None, now)
    return Decision(job, kept=(seen,), used=(seen,))
