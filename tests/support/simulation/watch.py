"""The watch of a simulation: it sees every commit, and checks the rules that hold after each one.

It keeps its own table of leases and its own place in the table of the specification, from the commands and answers
alone. So it notices when the store lets through what it should refuse, and when it refuses what it should let through.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import StaleAttempt
from holdfast.machines import TERMINAL_JOB_STATES, TERMINAL_RUN_STATUSES, JobState
from holdfast.store import Job
from holdfast.store import commands as c
from support.simulation.watched_store import WatchedStore
from support.spec import JOB_CELLS, JOB_EVENTS, RUN_WAYS

Violated = Callable[[str, str], None]
LEAVING = {"job_waiting", "job_completed", "job_failed", "job_requeued", "job_cancelled"}
_STATE_EVENTS = frozenset(JOB_EVENTS)


def _reachable() -> dict[str, set[str]]:
    """Return which states of a run one transaction may lead to, from each state."""
    found = {state: {state, *ways} for state, ways in RUN_WAYS.items()}
    for _ in RUN_WAYS:
        found = {state: set().union(*(found[other] for other in ways)) for state, ways in found.items()}
    return found


REACHABLE = _reachable()


class HeldLease(NamedTuple):
    """A lease, as the commands say."""

    worker: str
    attempt: int
    until: float


class Course:
    """How far the watch has read the stream of one job."""

    __slots__ = ("attempt", "failed", "read", "run", "state", "status")

    def __init__(self) -> None:
        self.read = 0
        self.state: str | None = None
        self.attempt = 0
        self.failed = False  # whether the last event is job_failed
        self.run = 1
        self.status = "queued"


class Watch:
    """Checks each commit.

    Args:
        violated: is called with a rule of the specification and what is wrong.
        still_works: returns whether a function of an attempt runs that should have ended.
    """

    def __init__(self, violated: Violated, still_works: Callable[[str, int], bool]) -> None:
        self._violated = violated
        self._still_works = still_works
        self.store: WatchedStore
        self.leases: dict[str, HeldLease] = {}
        self.ended: dict[tuple[str, int], tuple[Any, ...]] = {}  # runs that have ended, as they were then
        self.commits = 0
        self._rows: dict[str, Job] = {}
        self._courses: dict[str, Course] = {}
        self._rates: defaultdict[str, list[float]] = defaultdict(list)  # claims since the limits were last set
        self._checks: dict[type, Callable[[Any, Any, float], None]] = {
            c.Append: self._append,
            c.Progress: self._fenced,
            c.KeepExport: self._fenced,
            c.PutBlob: self._fenced,
            c.Submit: self._submit,
            c.Claim: self._claim,
            c.Renew: self._renew,
            c.ReleaseLeases: self._release,
            c.Reclaim: self._reclaim,
            c.Cancel: self._cancel,
            c.SetLimits: self._set_limits,
        }

    def committed(self, sender: int, batch: Sequence[Any], answers: Sequence[Any], now: float) -> None:
        """Check a commit."""
        del sender
        self.commits += 1
        for command, answer in zip(batch, answers, strict=True):
            check = self._checks.get(type(command))
            if check is not None:
                check(command, answer, now)
        for name, row in self.store.rows().items():
            if self._rows.get(name) is not row:
                self._moved(name, row)
                self._rows[name] = row

    # Leases and fences (section 2)

    def holds(self, job: str, attempt: int, now: float) -> bool:
        """Return whether an attempt may write."""
        lease = self.leases.get(job)
        return lease is not None and lease.attempt == attempt and now < lease.until

    def _fence(self, job: str, attempt: int, answer: Any, now: float) -> None:
        may = self.holds(job, attempt, now)
        if isinstance(answer, StaleAttempt) and may:
            self._violated("L3", f"attempt {attempt} holds {job}, and its write was refused")
        elif not isinstance(answer, Exception) and not may:
            self._violated("L3", f"attempt {attempt} has written to {job}, and the lease is {self.leases.get(job)}")

    def _fenced(self, command: Any, answer: Any, now: float) -> None:
        self._fence(command.job, command.attempt, answer, now)

    def _append(self, command: c.Append, answer: Any, now: float) -> None:
        self._fence(command.job, command.attempt, answer, now)
        if not isinstance(answer, Exception) and any(kind in LEAVING for kind, _ in command.events):
            self.leases.pop(command.job, None)
            if self._still_works(command.job, command.attempt):
                self._violated("L6", f"attempt {command.attempt} of {command.job} ends, and a call of it still runs")

    def _submit(self, command: c.Submit, answer: Any, now: float) -> None:
        if command.parent is not None and command.parent_attempt is not None:
            self._fence(command.parent, command.parent_attempt, answer, now)

    def _renew(self, command: c.Renew, answer: Any, now: float) -> None:
        for job, attempt in command.held:
            lease = self.leases.get(job)
            live = self.holds(job, attempt, now) and lease is not None and lease.worker == command.worker
            if live and job in answer.lost:
                self._violated("L2", f"the live lease of {job} was not renewed")
            elif not live and job not in answer.lost:
                self._violated("L2", f"a renewal revived attempt {attempt} of {job}: {lease}")
            if live:
                self.leases[job] = HeldLease(command.worker, attempt, now + command.lease_seconds)

    def _release(self, command: c.ReleaseLeases, _: Any, now: float) -> None:
        for job, lease in self.leases.items():
            if lease.worker == command.worker:
                self.leases[job] = lease._replace(until=min(now, lease.until))

    def _reclaim(self, _: c.Reclaim, answer: Any, now: float) -> None:
        for job in answer.jobs:
            lease = self.leases.pop(job, None)
            if lease is None or lease.until > now:
                self._violated("L5", f"{job} was reclaimed, and its lease is {lease}")
            row = self.store.rows()[job]
            if row.state is JobState.QUEUED and row.attempts >= row.max_attempts:
                self._violated("J14", f"{job} was claimed {row.attempts} times, and is queued again")

    # Claims and limits

    def _claim(self, command: c.Claim, answer: Any, now: float) -> None:
        if isinstance(answer, Exception):
            return
        rows, taken = self.store.rows(), [claimed.job for claimed in answer.claimed]
        if taken:
            self._check_limits(taken, now)
        for job in taken:
            if job.id in self.leases:
                self._violated("L1", f"{job.id} was claimed, and its lease is {self.leases[job.id]}")
            if job.due_at > now:
                self._violated("L7", f"{job.id} was claimed {job.due_at - now:.3f} s too early")
            if (job.kept_for or "") not in {*command.builds, command.build}:
                self._violated("L7", f"{job.id} is kept for build {job.kept_for}, and {command.build} has claimed it")
            self.leases[job.id] = HeldLease(command.worker, job.attempt, now + command.lease_seconds)
        self._check_order(command, taken, rows, now)

    def _check_order(self, command: c.Claim, taken: Sequence[Job], rows: dict[str, Job], now: float) -> None:
        """Check L7 for queues without limits: no job that was left comes before one that was taken."""
        limits = self.store.queue_limits()
        left = [
            _place(row)
            for row in rows.values()
            if row.state is JobState.QUEUED
            and row.due_at <= now
            and row.queue not in limits
            and (row.plugin, row.entry) in command.entries
            and (row.kept_for or "") in command.builds
        ]
        places = [_place(job) for job in taken if job.queue not in limits]
        if left and len(taken) < command.limit:
            self._violated("L7", f"a claim for {command.limit} took {len(taken)} jobs and left {min(left)}")
        if left and places and max(places) > min(left):
            self._violated("L7", f"a claim took {max(places)} and left {min(left)}")

    def _check_limits(self, taken: Sequence[Job], now: float) -> None:
        limits, rows = self.store.queue_limits(), self.store.rows()
        for queue in sorted({job.queue for job in taken} & limits.keys()):
            limit = limits[queue].limits
            held = [rows[job] for job, lease in self.leases.items() if lease.until > now and rows[job].queue == queue]
            new = [job for job in taken if job.queue == queue]
            if limit.paused:
                self._violated("S7", f"queue {queue} is paused, and {len(new)} jobs were claimed")
            if limit.concurrency is not None and len(held) + len(new) > limit.concurrency:
                self._violated("S8", f"queue {queue} runs {len(held) + len(new)} jobs of {limit.concurrency}")
            for group in {job.group for job in new if job.group} if limit.group_concurrency is not None else ():
                count = sum(job.group == group for job in [*held, *new])
                if limit.group_concurrency is not None and count > limit.group_concurrency:
                    self._violated("S8", f"group {group} of queue {queue} runs {count} of {limit.group_concurrency}")
            if limit.rate is not None and limit.burst is not None:
                self._check_rate(queue, limit.per_second, limit.burst, len(new), now)

    def _check_rate(self, queue: str, per_second: float, burst: int, new: int, now: float) -> None:
        times = self._rates[queue]
        times += [now] * new
        for place, begun in enumerate(times):
            if len(times) - place > burst + per_second * (now - begun) + 0.001:
                self._violated("S8", f"queue {queue} started {len(times) - place} jobs in {now - begun:.3f} s")
                return

    def _set_limits(self, command: c.SetLimits, _: Any, __: float) -> None:
        self._rates.pop(command.limits.queue, None)

    def _cancel(self, command: c.Cancel, answer: Any, _: float) -> None:
        before = self._rows.get(command.job)
        if before is None or isinstance(answer, Exception) or before.course.continued_as is not None:
            return
        held = before.state is JobState.RUNNING or answer.state is JobState.RUNNING
        if not held and answer.state not in TERMINAL_JOB_STATES:
            self._violated("J10", f"{command.job} was cancelled, no worker holds it, and it is {answer.state}")

    # Streams and rows (sections 1 and 4)

    def _moved(self, name: str, row: Job) -> None:
        course = self._courses.get(name)
        if course is None:
            course = self._courses[name] = Course()
        for kind, attempt, text, _ in self.store.stream(name, course.read):
            course.read += 1
            self._event(name, course, kind, attempt, text)
        if row.version != course.read:
            self._violated("J6", f"{name} has {course.read} events, and its row says {row.version}")
        shown = "queued" if course.state is None else course.state
        if row.state.value != shown:
            self._violated("J6", f"the stream of {name} says {shown}, and its row {row.state.value}")
        if row.cancel is not None and row.state in {JobState.QUEUED, JobState.WAITING}:
            self._violated("R6", f"{name} was asked to cancel, no worker holds it, and it is {row.state.value}")
        self._check_lease(name, row)
        self._check_run(name, row, course)

    def _event(self, name: str, course: Course, kind: str, attempt: int | None, text: bytes) -> None:
        if course.state in {"completed", "cancelled"}:
            self._violated("J7.1", f"{kind} follows the end of {name}")
        if course.failed:
            fields = msgspec.json.decode(text) if kind == "job_requeued" else {}
            if not fields.get("actor") or not fields.get("reason"):
                self._violated("J7.1", f"{kind} follows the failure of {name}, without actor and reason")
        course.failed = kind == "job_failed"
        if kind in {"job_running", "job_leased"}:
            if attempt is None or attempt <= course.attempt:
                self._violated("L1", f"{kind} of {name} has attempt {attempt} after {course.attempt}")
            course.attempt = attempt or course.attempt
        elif attempt is not None and attempt != course.attempt:
            self._violated("L3", f"{kind} of {name} was written by attempt {attempt}, and {course.attempt} is current")
        if kind in _STATE_EVENTS:
            target = JOB_CELLS[course.state, kind]
            if target is None:
                self._violated("J3", f"{kind} is not legal for {name}, which is {course.state}")
            course.state = target or course.state

    def _check_lease(self, name: str, row: Job) -> None:
        lease = self.leases.get(name)
        if row.lease is None or lease is None:
            if row.lease is not None or lease is not None:
                self._violated("L6", f"the lease of {name} is {row.lease}, and should be {lease}")
        elif (row.lease.worker, row.lease.until, row.attempt) != (lease.worker, lease.until, lease.attempt):
            self._violated("L2", f"the lease of {name} is {row.lease}, and should be {lease}")
        if (row.state is JobState.RUNNING) != (lease is not None):
            self._violated("L6", f"{name} is {row.state.value}, and its lease is {lease}")

    def _check_run(self, name: str, row: Job, course: Course) -> None:
        status = row.course.status.value
        if row.run != course.run:
            if row.run != course.run + 1:
                self._violated("R4", f"run {row.run} of {name} follows run {course.run}")
            course.run, course.status = row.run, "queued"
        if status not in REACHABLE[course.status]:
            self._violated("R1", f"run {row.run} of {name} went from {course.status} to {status}")
        course.status = status
        if row.course.status in TERMINAL_RUN_STATUSES:
            self.ended.setdefault((name, row.run), final_fields(row.record()))


def final_fields(record: Any) -> tuple[Any, ...]:
    """Return the fields of a run's record that do not change after its end."""
    return record.run_id, record.status.value, record.started_at, record.finished_at, record.error, record.cancel_reason


def _place(job: Job) -> tuple[float, float, str]:
    """Return the place of a job in the order of claims: priority, due time, age."""
    return (-job.priority, job.due_at, job.id)
