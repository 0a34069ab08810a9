"""The stream writer: appends checked events to one job's stream and collects the writes of one command.

It seals every event and passes it to a strict reader first, so it cannot produce an illegal write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.machines import TERMINAL_JOB_STATES, Event, HistoryEvent, JobEvent, JobState, RunRecord, WaitPlace
from holdfast.machines.event import Frozen, SealedSpan, freeze, seal_frozen, vouch
from holdfast.store import commands as c
from holdfast.store.commands import ASKED, EVENTS, WORK
from holdfast.store.rows import Job, Signal, course_after, grown, projected, reader_of

FORK = "fork"

# Events that the holder may always write and that move nothing. A plan is recorded only once (E11).
GROWING = frozenset(event.value for event in HistoryEvent) - {
    HistoryEvent.CANCEL_REQUESTED.value,
    HistoryEvent.PLAN_GENERATED.value,
}
# Names that need no check. A job's first event carries the job's own name, and is checked in full.
_VOUCHED = frozenset(event.value for event in (*JobEvent, *HistoryEvent)) - {JobEvent.CREATED.value}
_thaw = msgspec.json.Decoder(dict[str, Any]).decode


class Decision(msgspec.Struct):
    """The writes of one command, and its result.

    `payloads` holds the payload of each event, as the JSON text that is stored. An event has its own payload only where
    a rule or the row needs it. `span` holds events that move nothing and come before the others.
    """

    job: Job
    events: list[Event] = []
    payloads: list[bytes] = []
    kept: tuple[Signal, ...] = ()
    used: tuple[Signal, ...] = ()
    follow: tuple[c.SendSignal | c.Pause, ...] = ()
    successor: c.Submit | None = None  # creates the successor of this job
    moving: tuple[Signal, ...] = ()  # unused signals that move to the successor's inbox
    orphans: str | None = None  # the job failed or was cancelled: cancel its open children, for this reason
    past: RunRecord | None = None  # a run that has ended and that another follows
    answer: Any = None
    grew_only: bool = False  # only the end of the stream has changed in the row
    change: int = 0  # change flags; see `holdfast.store.commands`
    span: SealedSpan | None = None


class StreamWriter:
    """Appends events to one job's stream. It refuses illegal ones."""

    def __init__(self, job: Job, now: float) -> None:
        self.decision = Decision(job)
        self._reader = reader_of(job)
        self._now = now
        self._seq = job.version
        self._head = job.head
        self._course = job.course
        self._behind = False  # whether the row is older than the stream
        self._moved = False

    @property
    def job(self) -> Job:
        """Return the row, updated to every event that was put."""
        if self._behind:
            project = projected if self._moved else grown
            self.decision.job = project(self.decision.job, self._reader, self.decision.events[-1], self._course)
            self._behind = False
        return self.decision.job

    def put(self, kind: str, payload: Mapping[str, Any] | Frozen, *, attempt: int | None = None) -> None:
        """Append an event; its payload is values or frozen."""
        name = str.__str__(kind)  # the value of an enumeration's member
        frozen, plain = (payload, _thaw(payload.text)) if isinstance(payload, Frozen) else freeze(payload)
        job, seq, prev = self.decision.job.id, self._seq + 1, self._head
        event = seal_frozen(job, seq, prev, name, frozen, at=self._now, attempt=attempt, payload=plain)
        if name not in _VOUCHED:
            vouch(event)
        moves = name not in GROWING
        self._reader.take(event)
        if moves:
            self._course = course_after(self._course, self._reader, event)
        self.decision.events.append(event)
        self.decision.payloads.append(frozen.text)
        self._seq, self._head, self._behind = event.seq, event.hash, True
        self._moved = self._moved or moves

    def set(self, **fields: object) -> None:
        """Change fields of the row that are not in the stream."""
        self._moved = True
        self.decision.job = msgspec.structs.replace(self.job, **fields)

    def administrative(self, purpose: str, kind: str, payload: Mapping[str, Any]) -> None:
        """Write a claim that never starts user code, and the event it is for, under one new attempt (J8)."""
        attempt = self.job.attempt + 1
        self.put(JobEvent.LEASED, {"purpose": purpose}, attempt=attempt)
        self.put(kind, payload, attempt=attempt)

    def complete_wait(
        self,
        outcome: str,
        payload: Any = None,
        *,
        signal: str | None = None,
        place: WaitPlace | None = None,
        actor: str | None = None,
    ) -> None:
        """Complete the wait at this place, or at the one that time ends first."""
        wait = self.job.wait
        assert wait is not None, "only a blocked job has a wait to complete"
        at = place if place is not None else wait.places()[0]
        completed = {"correlation_key": at.correlation_key, "node": at.node, "outcome": outcome, "payload": payload}
        by = {"actor": actor} if actor is not None else {}  # a person who answers
        self.put(JobEvent.WAIT_COMPLETED, {**completed, "signal": signal, **by})

    def end(self, *, tells_parent: bool = True) -> Decision:
        """Finish the decision: end the lease of a job that no longer runs, and signal a child's end to its parent.

        The parent of a child that another job replaces is not told: that job's end is the one that it waits for.
        """
        job = self.job
        if job.state is not JobState.RUNNING and job.lease is not None:
            self.set(lease=None)
        if job.state is not JobState.WAITING and job.wake_at is not None:
            self.set(wake_at=None)
        if job.state in TERMINAL_JOB_STATES and self.decision.events:
            if job.pause:
                self.set(pause=False)
            if job.course.continued_as is None and tells_parent:
                self._tell_the_parent(self.decision.events[-1])
            if job.state is not JobState.COMPLETED:
                self.decision.orphans = f"its parent {job.id} has ended: {job.state}"
        self.decision.grew_only = bool(self.decision.events) and not self._moved
        self.decision.change = EVENTS if self.decision.events else 0
        if self._moved:
            self.decision.change |= _told_of(self.job)
        return self.decision

    def _tell_the_parent(self, last: Event) -> None:
        job = self.job
        if job.parent is not None and job.parent_key is not None:
            ending = {"state": job.state.value, **{key: last.payload.get(key) for key in ("result", "error", "reason")}}
            self.decision.follow = (
                c.SendSignal(
                    job.parent,
                    job.parent_key,
                    ending,
                    f"{job.id}.{job.run}",
                    may_wait=job.state is JobState.COMPLETED,
                ),
            )


def _told_of(job: Job) -> int:
    """Return the change flags for a job that has moved."""
    if job.state is JobState.RUNNING:
        return ASKED if job.cancel is not None or job.pause else 0
    return 0 if job.state in TERMINAL_JOB_STATES else WORK


def with_past(command: c.Submit, created: Decision, now: float) -> Decision:
    """Add a plan or a history to a new job: a claim that never starts user code writes the history (J8)."""
    if command.plan is None and not command.past:
        return created
    writer = StreamWriter(created.job, now)
    if command.plan is not None:
        writer.put(HistoryEvent.PLAN_GENERATED, {"plan": command.plan})
    if command.past:
        writer.put(JobEvent.LEASED, {"purpose": FORK}, attempt=1)
        for kind, payload in command.past:
            writer.put(kind, payload, attempt=1)
        writer.put(JobEvent.REQUEUED, {"reason": FORK}, attempt=1)
    decision = writer.end()
    decision.events[:0], decision.payloads[:0] = created.events, created.payloads
    decision.answer, decision.change = created.answer, created.change
    return decision
