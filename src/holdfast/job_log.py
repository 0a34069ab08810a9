"""The log lines of workers about jobs: failures, retries, calls in doubt, and jobs taken back from dead workers.

Each line names the run, the job and the reason. The same facts are attributes of the log record, for formatters that
write fields: ``event``, ``run_id``, ``job``, ``reason``. A line about the end of an attempt is written when that end is
durable. The engine only logs. The program, or the command line, decides where the lines go.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.errors import StoreUnavailable
from holdfast.machines import JobEvent, JobState
from holdfast.machines.run_projection import run_name
from holdfast.store import Job, Store

FIELDS = ("event", "run_id", "job", "node", "attempt", "reason")  # attributes of the log records
LINE_MAX = 1000  # characters of a line

_log = logging.getLogger("holdfast.worker")


def job_ended(job: Job, kind: str, payload: Mapping[str, Any], now: float) -> None:
    """Log the end of an attempt if it is a failure: the job has failed, or is retried."""
    reason = _reason(payload)
    if kind == JobEvent.FAILED:
        _write(logging.ERROR, "failed", job, f" failed: {reason}", reason)
    elif kind == JobEvent.REQUEUED and payload.get("reason") == "retry":
        when = _in(payload.get("not_before"), now)
        _write(logging.WARNING, "retry", job, f" failed and is retried {when}: {reason}", reason)


def call_failed(job: Job, node: str, reason: str, retry_at: float | None, now: float) -> None:
    """Log a failed try of a step or tool. Without another try, the code of the job decides what follows."""
    if retry_at is None:
        _write(logging.INFO, "step_failed", job, f": {node} failed: {reason}", reason, node)
    else:
        text = f": {node} failed and is retried {_in(retry_at, now)}: {reason}"
        _write(logging.WARNING, "step_retry", job, text, reason, node)


def call_in_doubt(job: Job, node: str, policy: str) -> None:
    """Log that a tool call is in doubt, and what its policy does about it."""
    answers = {
        "ask": f"answer with `holdfast resolve {run_name(job.id, job.run)} {node}`",
        "retry": "it is called again",
        "fail": "the call fails",
        "reconcile": "its reconcile function decides",
    }
    reason = "it was called, and its end is unknown"
    _write(logging.WARNING, "doubt", job, f": {node} is in doubt: {reason}; {answers[policy]}", reason, node)


async def log_reclaimed(store: Store, jobs: Iterable[str]) -> None:
    """Log the jobs that were taken back from workers whose leases ended, and those given up as poison."""
    try:
        for job in jobs:
            if (row := await store.get(job)) is None:
                continue
            if row.state is JobState.FAILED:
                reason = row.course.error.message if row.course.error is not None else "poison"
                _write(logging.ERROR, "poison", row, f" failed: {reason}", reason)
            else:
                reason = f"the lease of attempt {row.attempt} ended"
                _write(logging.WARNING, "reclaim", row, f" was taken back from its worker: {reason}", reason)
    except StoreUnavailable:  # only the lines are missing
        return


def _write(level: int, event: str, job: Job, text: str, reason: str, node: str | None = None) -> None:
    run, name = run_name(job.id, job.run), f"{job.plugin}.{job.entry}"
    fields = {"event": event, "run_id": run, "job": name, "node": node, "attempt": job.attempt, "reason": reason}
    _log.log(level, "run %s (%s)%s", run, name, _one_line(text), extra=fields)


def _one_line(text: str) -> str:
    """Return a text of job code as one line without control characters. A terminal must not obey what a job says."""
    words = " ".join(text[:LINE_MAX].split())
    return f"{' ' if text.startswith(' ') else ''}{''.join(c if c.isprintable() else ascii(c)[1:-1] for c in words)}"


def _reason(payload: Mapping[str, Any]) -> str:
    error = payload.get("error") or {}
    message = error.get("message") or payload.get("message") or payload.get("reason") or "error"
    return f"{error['code']}: {message}" if error.get("code") and error.get("message") else str(message)


def _in(at: float | None, now: float) -> str:
    return "now" if at is None else f"in {max(0.0, at - now):.1f} s"
