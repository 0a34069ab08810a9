"""The route table: everything that can be asked for, the scope that it needs, and what it is to a token of a group.

What is not here does not exist.
"""

from __future__ import annotations

from typing import Any

from holdfast.client.views import Creation, Entry, Explanation, Export, Stats
from holdfast.client.worker_status import GateView, WorkerStatus
from holdfast.http import streams
from holdfast.http.handlers import forks, operations, probes, queues, reads
from holdfast.http.openapi import Machine, get_openapi
from holdfast.http.route import PUBLIC, Bound, Many, Operation, Text
from holdfast.http.tokens import Scope
from holdfast.machines import Event, RunRecord
from holdfast.store import Evidence, QueueState

__all__ = ["routes"]

API = "/api/v1"
READ, SUBMIT, OPERATE, ADMIN = Scope.READ, Scope.SUBMIT, Scope.OPERATE, Scope.ADMIN
OF_RUN, OWN, FREE, NEVER = Bound.RUN, Bound.OWN, Bound.FREE, Bound.NEVER
STREAM = Text("text/event-stream")


def routes() -> list[Operation]:
    """Make the table; the routes that are asked for most come first."""
    made = [*_runs(), *_one_run(), *_around(), *_outside()]
    by_path: dict[str, list[str]] = {}
    for one in made:
        one.allow = by_path.setdefault(one.path, [])
        one.allow.append(one.method)
    return made


def _runs() -> list[Operation]:
    run = f"{API}/runs/{{id}}"
    return [
        Operation(
            "POST", f"{API}/runs", SUBMIT, OWN, operations.create_run, "Create a run, durably.",
            {201: RunRecord, 200: RunRecord}, takes=Creation,
        ),
        Operation("GET", run, READ, OF_RUN, reads.get_run, "A run's record.", {200: RunRecord}),
        Operation(
            "GET", f"{API}/runs", READ, OWN, reads.list_runs, "Runs, newest first.", {200: Many(RunRecord)},
            query=reads.RUN_FILTERS,
        ),
        Operation(
            "GET", f"{run}/result", READ, OF_RUN, reads.get_result,
            "What a run returned, or the run that goes on for it; 202 while it has not ended.",
            {200: reads.Result, 202: reads.Result},
        ),
        Operation(
            "GET", f"{run}/explain", READ, OF_RUN, reads.explain_run, "Where a run is, and what will wake it.",
            {200: Explanation},
        ),
        Operation(
            "GET", f"{run}/events", READ, OF_RUN, reads.list_events, "What happened to the run's job, oldest first.",
            {200: Many(Event)}, query=reads.PAGED,
        ),
        Operation(
            "GET", f"{run}/evidence", READ, OF_RUN, reads.list_evidence, "What calls reported when it was too late.",
            {200: Many(Evidence)},
        ),
        Operation(
            "GET", f"{run}/exports", READ, OF_RUN, reads.list_exports, "What the run has produced.",
            {200: Many(Export)}, query=reads.PAGED,
        ),
        Operation(
            "GET", f"{run}/exports/{{number}}/content", READ, OF_RUN, reads.get_content,
            "One export's bytes, as a file.",
            {200: Text("application/octet-stream")},
        ),
        Operation(
            "GET", f"{run}/stream", READ, OF_RUN, streams.stream_run,
            "The run's record at each change (`run`) and its events (`event`), until it has ended.",
            {200: STREAM}, query=streams.RUN_STREAM,
        ),
    ]  # fmt: skip


def _one_run() -> list[Operation]:
    run = f"{API}/runs/{{id}}"
    record: dict[int, Any] = {200: RunRecord}
    return [
        Operation(
            "POST", f"{run}/cancel", OPERATE, OF_RUN, operations.cancel_run, "Ask a run to cancel.", record,
            takes=operations.Cancel, optional=True,
        ),
        Operation(
            "POST", f"{run}/retry", OPERATE, OF_RUN, operations.retry_run,
            "Reopen a failed job as a new run.", {201: RunRecord},
            takes=operations.Retry,
        ),
        Operation(
            "POST", f"{run}/pause", OPERATE, OF_RUN, operations.pause_run, "Pause a run at its next step.", record,
            takes=operations.Pause, optional=True,
        ),
        Operation(
            "POST", f"{run}/resume", OPERATE, OF_RUN, operations.resume_run, "Let a paused run go on.", record,
            takes=operations.Pause, optional=True,
        ),
        Operation(
            "POST", f"{run}/fork", SUBMIT, OF_RUN, forks.fork_run,
            "Start a new run that reuses what this one has done.",
            {201: RunRecord}, takes=forks.Fork,
        ),
        Operation(
            "POST", f"{run}/signal", SUBMIT, OF_RUN, operations.signal_run, "Send a signal.", {200: operations.Outcome},
            takes=operations.Signal,
        ),
        Operation(
            "POST", f"{run}/grant", OPERATE, OF_RUN, operations.grant_run, "Let a run spend more than its budget.",
            {200: operations.Outcome}, takes=operations.Grant,
        ),
        Operation(
            "POST", f"{run}/resolve", OPERATE, OF_RUN, operations.resolve_run, "Answer for a tool in doubt.", record,
            takes=operations.Resolve,
        ),
    ]  # fmt: skip


def _around() -> list[Operation]:
    return [
        Operation("GET", f"{API}/stream", READ, OWN, streams.stream_runs, "The changes of all runs.", {200: STREAM}),
        Operation(
            "GET", f"{API}/workers", READ, NEVER, reads.list_workers,
            "Who works, and on what.", {200: Many(WorkerStatus)}
        ),
        Operation(
            "GET", f"{API}/entries", READ, FREE, reads.list_entries, "Jobs that can be started.", {200: Many(Entry)}
        ),
        Operation("GET", f"{API}/stats", READ, NEVER, reads.get_stats, "The store in numbers.", {200: Stats}),
        Operation(
            "GET", f"{API}/machines", READ, FREE, reads.list_machines,
            "The three state machines.", {200: Many(Machine)}
        ),
        Operation(
            "GET", f"{API}/machines/{{machine}}", READ, FREE, reads.get_machine, "One state machine.", {200: Machine}
        ),
        Operation(
            "GET", f"{API}/gates", READ, NEVER, reads.list_gates,
            "The gates of all workers, and what holds them closed.",
            {200: Many(GateView)},
        ),
        Operation(
            "GET", f"{API}/schedules", READ, FREE, reads.list_nothing, "Schedules; none yet.", {200: Many(Any)}
        ),
        *_limits(),
        Operation(
            "POST", f"{API}/verify", OPERATE, OWN, operations.verify,
            "Check histories: rules, hash chain, projections.",
            {200: operations.Verified}, takes=operations.Verify, optional=True,
        ),
        Operation(
            "POST", f"{API}/purge", ADMIN, NEVER, operations.purge, "Remove runs that ended long ago, for good.",
            {200: operations.Purged}, takes=operations.Purge,
        ),
    ]  # fmt: skip


def _limits() -> list[Operation]:
    one = f"{API}/limits/{{queue}}"
    state: dict[int, Any] = {200: QueueState}
    return [
        Operation(
            "GET", f"{API}/limits", READ, NEVER, queues.list_limits, "Queues with limits, and how they stand.",
            {200: Many(QueueState)},
        ),
        Operation(
            "PUT", one, ADMIN, NEVER, queues.put_limits, "Set the limits of a queue, all of them.", state,
            takes=queues.NewLimits,
        ),
        Operation("DELETE", one, ADMIN, NEVER, queues.delete_limits, "Take all limits from a queue.", state),
        Operation(
            "POST", f"{one}/pause", OPERATE, NEVER, queues.pause_queue, "Have nothing more of a queue started.", state,
            takes=operations.Pause, optional=True,
        ),
        Operation(
            "POST", f"{one}/resume", OPERATE, NEVER, queues.resume_queue, "Have a paused queue go on.", state,
            takes=operations.Pause, optional=True,
        ),
    ]  # fmt: skip


def _outside() -> list[Operation]:
    return [
        Operation(
            "GET", "/healthz", PUBLIC, FREE, probes.healthz, "Whether the process answers.", {200: probes.Health}
        ),
        Operation(
            "GET", "/readyz", PUBLIC, FREE, probes.readyz, "Whether more work may be sent here.",
            {200: probes.ReadyAnswer, 503: probes.ReadyAnswer}, query=(probes.GATE,),
        ),
        Operation("GET", "/metrics", READ, NEVER, probes.metrics, "Figures for Prometheus.", {200: Text("text/plain")}),
        Operation("GET", "/openapi.json", READ, FREE, get_openapi, "This API, described.", {200: dict[str, Any]}),
    ]  # fmt: skip
