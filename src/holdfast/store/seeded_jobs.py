"""Jobs that are created with a plan, or with what another job has done already."""

from __future__ import annotations

from holdfast.machines import HistoryEvent, JobEvent
from holdfast.store import commands as c
from holdfast.store.stream_writer import Decision, Pen

__all__ = ["with_past"]

FORK = "fork"


def with_past(command: c.Submit, made: Decision, now: float) -> Decision:
    """Create a job that has a plan, or a past, already: a claim that never starts user code writes the past (J8)."""
    if command.plan is None and not command.past:
        return made
    pen = Pen(made.job, now)
    if command.plan is not None:
        pen.put(HistoryEvent.PLAN_GENERATED, {"plan": command.plan})
    if command.past:
        pen.put(JobEvent.LEASED, {"purpose": FORK}, attempt=1)
        for kind, payload in command.past:
            pen.put(kind, payload, attempt=1)
        pen.put(JobEvent.REQUEUED, {"reason": FORK}, attempt=1)
    decision = pen.end()
    decision.events[:0], decision.payloads[:0] = made.events, made.payloads
    decision.answer, decision.change = made.answer, made.change
    return decision
