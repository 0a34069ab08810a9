"""Why is it not running, who holds it, what will wake it and when: one job in plain words."""

from __future__ import annotations

from collections.abc import Container, Sequence
from datetime import UTC, datetime

from holdfast.machines import JobState
from holdfast.store import Evidence, Job
from holdfast.store.decide import DOUBT, PAUSE_KEY

__all__ = ["explain"]


def explain(
    job: Job,
    now: float,
    entries: Container[tuple[str, str]] | None = None,
    evidence: Sequence[Evidence] = (),
) -> str:
    """Say where a job is and what it waits for.

    Args:
        job: its row.
        now: the store's time.
        entries: what the asker's app can run, if it has one; None if that is not known.
        evidence: what its calls reported when it was too late.
    """
    said = [_where(job, now), *(_late(one) for one in evidence)]
    if job.state is JobState.QUEUED and job.due_at <= now and entries is None:
        said.append(f"It waits for a worker that has the job {job.plugin}.{job.entry}.")
    if job.state is JobState.QUEUED and entries is not None and (job.plugin, job.entry) not in entries:
        said.append(f"This app has no job {job.plugin}.{job.entry}: it waits for a worker that has.")
    if job.cancel is not None and job.state is JobState.RUNNING:
        said.append("It was asked to cancel and may still clean up.")
    if job.pause:
        said.append("It will pause at its next step.")
    if job.ends_by is not None and job.state in {JobState.QUEUED, JobState.RUNNING, JobState.WAITING}:
        said.append(f"Its deadline is {_time(job.ends_by, now)}.")
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
    wait = job.wait
    assert wait is not None, "a job that waits has a wait"
    places = [place.correlation_key or "" for place in wait.places()]
    if places[0] == PAUSE_KEY:
        return "It is paused until somebody resumes it."
    said = [_question(key) for key in places if key.startswith(DOUBT)]
    signals = [repr(key) for key in places if not key.startswith("holdfast:")]
    until = f", until {_time(wait.deadline, now)}" if wait.deadline is not None else ", for ever"
    if signals:
        said.append(f"It waits for the signal {' or '.join(signals)}{until}.")
    if any(key.startswith("holdfast:child:") for key in places):
        said.append("It waits for a job that it has started.")
    if places[0].startswith(("holdfast:timer:", "holdfast:retry:")):
        said.append(f"It sleeps until {_time(wait.deadline or now, now)}.")
    return " ".join(said)


def _question(key: str) -> str:
    node = key.removeprefix(DOUBT)
    return f"It asks: did {node} act? A worker died in the middle of it. Answer with resolve: done, not_done or fail."


def _late(evidence: Evidence) -> str:
    reported = f"it raised {evidence.error}" if evidence.error is not None else f"its result was {evidence.result!r}"
    return f"Attempt {evidence.attempt} reported of {evidence.node}, after it had lost the job: {reported}."


def _attempts(job: Job) -> str:
    return f"{job.attempts} of {job.max_attempts} attempts are used up" if job.attempts else "it was not started yet"


def _time(at: float, now: float) -> str:
    distance = abs(at - now)
    steps = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
    size, unit = next(((size, unit) for size, unit in steps if distance >= size), (1.0, "s"))
    stamp = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{stamp} ({'in ' if at > now else ''}{distance / size:.0f} {unit}{'' if at > now else ' ago'})"
