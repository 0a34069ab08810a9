"""Why is it not running, who holds it, what will wake it and when: one job in plain words."""

from __future__ import annotations

from collections.abc import Container
from datetime import UTC, datetime

from holdfast.machines import JobState
from holdfast.store import Job
from holdfast.store.decide import DOUBT, PAUSE_KEY

__all__ = ["explain"]


def explain(job: Job, now: float, entries: Container[tuple[str, str]] | None = None) -> str:
    """Say where a job is and what it waits for.

    Args:
        job: its row.
        now: the store's time.
        entries: what the asker's app can run, if it has one; None if that is not known.
    """
    said = [_where(job, now)]
    if job.state is JobState.QUEUED and entries is not None and (job.plugin, job.entry) not in entries:
        said.append(f"This app has no job {job.plugin}.{job.entry}: it waits for a worker that has.")
    if job.cancel is not None and job.state is JobState.RUNNING:
        said.append("It was asked to cancel and may still clean up.")
    if job.pause:
        said.append("It will pause at its next step.")
    if job.deadline is not None and job.state in {JobState.QUEUED, JobState.RUNNING, JobState.WAITING}:
        said.append(f"Its deadline is {_time(job.deadline, now)}.")
    return " ".join(said)


def _where(job: Job, now: float) -> str:
    match job.state:
        case JobState.QUEUED if job.due_at > now:
            return f"It is queued and due {_time(job.due_at, now)}; {_attempts(job)}."
        case JobState.QUEUED:
            return f"It is queued in {job.queue!r}, due since {_time(job.due_at, now)}: no worker has taken it yet."
        case JobState.RUNNING if job.lease is not None and job.lease.until <= now:
            return f"Its worker {job.lease.worker} was last heard of too long ago; it will be taken from it."
        case JobState.RUNNING:
            holder = job.lease.worker if job.lease is not None else "nobody"
            return f"It runs: worker {holder} holds it, attempt {job.attempt}."
        case JobState.WAITING:
            return _waits(job, now)
        case JobState.FAILED:
            return "It has failed and is given up; an operator may retry it."
        case state:
            return f"It has ended: {state}."


def _waits(job: Job, now: float) -> str:
    key = job.wait.correlation_key or "" if job.wait is not None else ""
    if key == PAUSE_KEY:
        return "It is paused until somebody resumes it."
    if key.startswith(DOUBT):
        node = key.removeprefix(DOUBT)
        return (
            f"It asks: did {node} act? A worker died in the middle of it. Answer with resolve: done, not_done or fail."
        )
    until = job.wait.deadline if job.wait is not None else None
    if job.wait is not None and job.wait.wait_type == "timer":
        return f"It sleeps until {_time(until or now, now)}."
    if job.wait is not None and job.wait.wait_type == "child":
        return "It waits for a job that it has started."
    return f"It waits for the signal {key!r}" + (
        f", until {_time(until, now)}." if until is not None else ", for ever."
    )


def _attempts(job: Job) -> str:
    return f"{job.attempts} of {job.max_attempts} attempts are used up" if job.attempts else "it was not started yet"


def _time(at: float, now: float) -> str:
    distance = abs(at - now)
    steps = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
    size, unit = next(((size, unit) for size, unit in steps if distance >= size), (1.0, "s"))
    stamp = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{stamp} ({'in ' if at > now else ''}{distance / size:.0f} {unit}{'' if at > now else ' ago'})"
