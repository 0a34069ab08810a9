"""A second opinion on what a stream means, written from the specification in another way than the code.

The code reads event by event and remembers. The oracle looks at the whole stream at once and searches it.
Streams here are lists of (name, payload).
"""

from __future__ import annotations

from typing import Any

from support.spec import JOB_CELLS, JOB_EVENTS

Letter = tuple[str, dict[str, Any]]


def state_events(stream: list[Letter]) -> list[str]:
    return [name for name, _ in stream if name in JOB_EVENTS]


def state(stream: list[Letter]) -> str:
    """The table, walked from its start."""
    current: str | None = None
    for name in state_events(stream):
        target = JOB_CELLS[current, name]
        assert target is not None, f"{name} is not legal in {current}"
        current = target
    return current or "queued"


def split_at_retries(stream: list[Letter]) -> list[list[Letter]]:
    """One list per run: a requeue right after a failure, other events aside, begins the next (R4)."""
    parts: list[list[Letter]] = [[]]
    last_state_event = None
    for letter in stream:
        if letter[0] == "job_requeued" and last_state_event == "job_failed":
            parts.append([])
        parts[-1].append(letter)
        if letter[0] in JOB_EVENTS:
            last_state_event = letter[0]
    return parts


def run_path(part: list[Letter]) -> list[str]:
    """R1, R3, R6 for one run: what it must have passed through, given everything that happened in it."""
    names = [name for name, _ in part]
    started = names.index("job_running") if "job_running" in names else None
    asked = names.index("cancel_requested") if "cancel_requested" in names else None
    end = next((letter for letter in part if letter[0] in {"job_completed", "job_failed", "job_cancelled"}), None)
    path = ["queued"]
    if started is not None:
        path.append("running")
        if asked is not None:
            path.append("cancel_requested")
    if end is None:
        return path
    late = end[0] == "job_failed" and end[1].get("reason") == "deadline"
    if end[0] == "job_completed":
        # user code that never started cannot complete, but an administrative claim is bare in a bare stream
        return [*_begin(path), "succeeded"]
    if end[0] == "job_failed":
        path = _begin(path)
        if late and asked is not None:
            return [*path, *([] if path[-1] == "cancel_requested" else ["cancel_requested"]), "canceled"]
        return [*path, "timeout" if late else "failed"]
    if path[-1] == "running":
        path.append("cancel_requested")
    return [*path, "canceled"]


def _begin(path: list[str]) -> list[str]:
    return [*path, "running"] if path == ["queued"] else path
