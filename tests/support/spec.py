"""The tables as the specification prints them, typed in by hand: the tests' own source, apart from the code."""

from __future__ import annotations

JOB_STATES = ["queued", "running", "waiting", "parked", "retrying", "completed", "failed", "cancelled"]

JOB_EVENTS = [
    "job_created",
    "job_queued",
    "job_requeued",
    "job_leased",
    "job_running",
    "job_waiting",
    "wait_completed",
    "job_completed",
    "job_failed",
    "job_cancelled",
]

# Seed 000, section 3, column by column as JOB_EVENTS.
_JOB_MATRIX = """
(initial)  queued queued queued  -       -       -       -      -         -      -
queued     -      -      queued  running running -       queued -         -      -
running    -      -      queued  -       -       waiting queued completed failed cancelled
waiting    -      -      -       -       -       -       queued -         -      cancelled
parked     -      -      -       -       -       -       queued -         -      cancelled
retrying   -      -      queued  running running -       queued -         -      -
completed  -      -      -       -       -       -       -      -         -      -
failed     -      -      queued  -       -       -       -      -         -      -
cancelled  -      -      -       -       -       -       -      -         -      -
"""

RUN_STATES = ["queued", "running", "cancel_requested", "succeeded", "failed", "canceled", "timeout"]

RUN_WAYS = {
    "queued": {"running", "canceled"},
    "running": {"succeeded", "failed", "timeout", "cancel_requested"},
    "cancel_requested": {"canceled", "succeeded", "failed"},
    "succeeded": set[str](),
    "failed": set[str](),
    "canceled": set[str](),
    "timeout": set[str](),
}

READY_STATES = ["ready", "busy", "budget_exhausted", "retry_after", "pending"]
READY_FORBIDDEN = {("budget_exhausted", "budget_exhausted"), ("retry_after", "retry_after"), ("pending", "pending")}


def _job_cells() -> dict[tuple[str | None, str], str | None]:
    cells: dict[tuple[str | None, str], str | None] = {}
    for line in _JOB_MATRIX.strip().splitlines():
        name, *targets = line.split()
        for event, target in zip(JOB_EVENTS, targets, strict=True):
            cells[None if name == "(initial)" else name, event] = None if target == "-" else target
    return cells


JOB_CELLS = _job_cells()  # all 90; None where the cell is refused
RUN_CELLS = {(a, b): b in RUN_WAYS[a] for a in RUN_STATES for b in RUN_STATES}  # all 49
READY_CELLS = {(a, b): (a, b) not in READY_FORBIDDEN for a in READY_STATES for b in READY_STATES}  # all 25
