"""The route table: every route, the scope that it needs, and what a token of a group may do with it.

The server has no other routes, except those of the dashboard (`page`).
"""

from __future__ import annotations

from typing import Any

from holdfast.client.bulk import BulkResult
from holdfast.client.overview.builds import BuildStatus
from holdfast.client.overview.family import Family
from holdfast.client.overview.marked_changes import Changes
from holdfast.client.overview.plan_view import PlanView
from holdfast.client.overview.questions import Question
from holdfast.client.overview.series import Series
from holdfast.client.overview.story import StoryEvent
from holdfast.client.schedules.schedules_interface import Backfill, ScheduleInfo, TickTime
from holdfast.client.views import Creation, Entry, Explanation, Export, Stats
from holdfast.client.worker_status import GateView, WorkerStatus
from holdfast.http import streams
from holdfast.http.handlers import bulk, forks, operations, overview, probes, queues, reads, schedules
from holdfast.http.openapi import Machine, get_openapi
from holdfast.http.route import PUBLIC, Bound, Many, Operation, Text
from holdfast.http.tokens import Scope
from holdfast.machines import Event, RunRecord
from holdfast.store import Evidence, QueueState
from holdfast.store.audit import AuditRow

API = "/api/v1"
READ, SIGNAL, SUBMIT, OPERATE, ADMIN = Scope.READ, Scope.SIGNAL, Scope.SUBMIT, Scope.OPERATE, Scope.ADMIN
OF_RUN, OWN, FREE, NEVER = Bound.RUN, Bound.OWN, Bound.FREE, Bound.NEVER
STREAM = Text("text/event-stream")
CREATION = {
    "plugin_id": "shop",
    "entry_id": "checkout",
    "args": {"sku": "A1", "card": "4242"},
    "idempotency_key": "order-17",
    "deadline": "3d",
    "attributes": {"customer": "ada"},
}


def routes() -> list[Operation]:
    """Return the route table. The router tries routes in order, so the most used ones come first."""
    made = [*_runs(), *_one_run(), *_around(), *_deploys(), *_outside()]
    by_path: dict[str, list[str]] = {}
    for one in made:
        one.allow = by_path.setdefault(one.path, [])
        one.allow.append(one.method)
    return made


def _runs() -> list[Operation]:
    run = f"{API}/runs/{{id}}"
    return [
        Operation(
            "POST", f"{API}/runs", SUBMIT, OWN, operations.create_run, "Create a run and store it durably.",
            {201: RunRecord, 200: RunRecord}, takes=Creation, refuses=(404, 409, 429), example=CREATION,
        ),
        *_many_runs(),
        Operation("GET", run, READ, OF_RUN, reads.get_run, "Return the record of a run.", {200: RunRecord}),
        Operation(
            "GET", f"{API}/runs", READ, OWN, reads.list_runs, "List runs, newest first.", {200: Many(RunRecord)},
            query=reads.RUN_FILTERS,
        ),
        Operation(
            "GET", f"{run}/result", READ, OF_RUN, reads.get_result,
            "Return the result of a run, or of the last run that continues it. The status is 202 until it ends.",
            {200: reads.Result, 202: reads.Result}, query=reads.RESULT, refuses=(429,),
        ),
        Operation(
            "GET", f"{run}/explain", READ, OF_RUN, reads.explain_run, "Explain where a run is, and what will wake it.",
            {200: Explanation},
        ),
        Operation(
            "GET", f"{run}/events", READ, OF_RUN, reads.list_events, "List the events of the run's job, oldest first.",
            {200: Many(Event)}, query=reads.PAGED,
        ),
        Operation(
            "GET", f"{run}/story", READ, OF_RUN, overview.get_story,
            "List what each event of the run's job has changed, oldest first, as JSON merge patches.",
            {200: Many(StoryEvent)}, query=overview.STORY_PAGED,
        ),
        Operation(
            "GET", f"{run}/plan", READ, OF_RUN, overview.get_plan,
            "Return the nodes of the run's plan, with those that extended it.", {200: PlanView},
        ),
        Operation(
            "GET", f"{run}/family", READ, OF_RUN, overview.get_family,
            "Return the parents and children of a run, and the runs that it continues, retries or was forked from.",
            {200: Family},
        ),
        Operation(
            "GET", f"{run}/chain", READ, OF_RUN, overview.list_chain,
            "List the texts that the hashes of the job's events cover, oldest first.",
            {200: Many(overview.SealedEvent)}, query=reads.PAGED,
        ),
        Operation(
            "GET", f"{run}/evidence", READ, OF_RUN, reads.list_evidence, "List results that arrived too late.",
            {200: Many(Evidence)}, query=reads.PAGED,
        ),
        Operation(
            "GET", f"{run}/exports", READ, OF_RUN, reads.list_exports, "List the exports of the run.",
            {200: Many(Export)}, query=reads.PAGED,
        ),
        Operation(
            "GET", f"{run}/exports/{{number}}/content", READ, OF_RUN, reads.get_content,
            "Download the content of an export.",
            {200: Text("application/octet-stream", ("application/json", "text/plain")), 304: None},
        ),
        Operation(
            "GET", f"{run}/stream", READ, OF_RUN, streams.stream_run,
            "Stream the run's record at each change (`run`) and its events (`event`) until the run ends.",
            {200: STREAM, 204: None}, query=streams.RUN_STREAM, refuses=(429,),
        ),
    ]  # fmt: skip


def _many_runs() -> list[Operation]:
    many: dict[int, Any] = {200: BulkResult}
    return [
        Operation(
            "POST", f"{API}/runs/batch", SUBMIT, OWN, bulk.create_runs,
            "Create up to 500 runs. All are checked before the first is created.", {200: bulk.BatchAnswer},
            takes=bulk.NewRuns, refuses=(404,), example={"runs": [CREATION]},
        ),
        Operation(
            "POST", f"{API}/runs/cancel", OPERATE, OWN, bulk.cancel_runs, "Cancel the runs that match a filter.", many,
            takes=bulk.CancelRuns, optional=True, query=bulk.BULK_FILTERS,
            example={"reason": "wrong price list", "dry_run": True},
        ),
        Operation(
            "POST", f"{API}/runs/retry", OPERATE, OWN, bulk.retry_runs, "Retry the failed runs that match a filter.",
            many, takes=bulk.RetryRuns, query=bulk.BULK_FILTERS, example={"reason": "the bank is back"},
        ),
        Operation(
            "POST", f"{API}/runs/signal", SIGNAL, OWN, bulk.signal_runs,
            "Send a signal to the runs that match a filter.", many, takes=bulk.SignalRuns, query=bulk.BULK_FILTERS,
            example={"key": "go", "payload": True, "id": "go-1"},
        ),
        Operation(
            "POST", f"{API}/runs/purge", ADMIN, OWN, bulk.purge_runs,
            "Delete the ended runs that match a filter, permanently.", many, takes=bulk.PurgeRuns, optional=True,
            query=bulk.BULK_FILTERS, example={"dry_run": True},
        ),
    ]  # fmt: skip


def _one_run() -> list[Operation]:
    run = f"{API}/runs/{{id}}"
    record: dict[int, Any] = {200: RunRecord}
    return [
        Operation(
            "POST", f"{run}/cancel", OPERATE, OF_RUN, operations.cancel_run, "Request the cancellation of a run.",
            record, takes=operations.Cancel, optional=True, example={"reason": "ordered twice"},
        ),
        Operation(
            "POST", f"{run}/retry", OPERATE, OF_RUN, operations.retry_run,
            "Reopen a failed job as a new run.", {201: RunRecord},
            takes=operations.Retry, refuses=(409,), example={"reason": "the card works again", "actor": "ana"},
        ),
        Operation(
            "POST", f"{run}/pause", OPERATE, OF_RUN, operations.pause_run, "Pause a run at its next step.", record,
            takes=operations.Pause, optional=True, example={"actor": "ana"},
        ),
        Operation(
            "POST", f"{run}/resume", OPERATE, OF_RUN, operations.resume_run, "Resume a paused run.", record,
            takes=operations.Pause, optional=True, example={"actor": "ana"},
        ),
        Operation(
            "POST", f"{run}/fork", SUBMIT, OF_RUN, forks.fork_run,
            "Start a new run that reuses results of this run.",
            {201: RunRecord}, takes=forks.Fork, refuses=(409, 429), example={"from_step": "charge"},
        ),
        Operation(
            "POST", f"{run}/signal", SIGNAL, OF_RUN, operations.signal_run, "Send a signal to a run.",
            {200: operations.Outcome}, takes=operations.Signal, refuses=(409,),
            example={"key": "approval", "payload": {"approved": True}, "id": "approval-1"},
        ),
        Operation(
            "POST", f"{run}/grant", OPERATE, OF_RUN, operations.grant_run, "Add to the budget of a run.",
            {200: operations.Outcome}, takes=operations.Grant, refuses=(409,), example={"amounts": {"tokens": 50_000}},
        ),
        Operation(
            "POST", f"{run}/resolve", OPERATE, OF_RUN, operations.resolve_run, "Resolve a tool call in doubt.", record,
            takes=operations.Resolve, refuses=(409,),
            example={"step": "charge:1f3a", "answer": "done", "result": "ch_1"},
        ),
        Operation(
            "POST", f"{run}/answer", OPERATE, OF_RUN, operations.answer_run,
            "Say which code goes on with a run whose history does not fit.", record, takes=operations.MisfitAnswer,
            refuses=(409,), example={"answer": "accept"},
        ),
    ]  # fmt: skip


def _deploys() -> list[Operation]:
    return [
        Operation(
            "GET", f"{API}/builds", READ, NEVER, reads.list_builds,
            "List the builds of the code, with what still needs each.", {200: Many(BuildStatus)}
        ),
        Operation(
            "POST", f"{API}/builds/move", OPERATE, NEVER, operations.move_build,
            "Move the runs that are kept for a build to another one. This starts a run of `holdfast.move`.",
            {202: RunRecord}, takes=operations.Move, refuses=(404, 409), example={"old": "1.4.1", "new": "1.4.2"},
        ),
        Operation(
            "GET", f"{API}/changes", READ, NEVER, overview.list_changes,
            "List the marked changes of job code, with the runs on each side.", {200: Changes}, query=overview.CHANGES,
        ),
    ]  # fmt: skip


def _around() -> list[Operation]:
    return [
        Operation(
            "GET", f"{API}/stream", READ, OWN, streams.stream_runs, "Stream the changes of all runs.", {200: STREAM},
            refuses=(429,),
        ),
        Operation(
            "GET", f"{API}/counts", READ, OWN, reads.count_runs, "Count the runs that match a filter, by status.",
            {200: reads.RunCounts}, query=reads.COUNT_FILTERS,
        ),
        Operation(
            "GET", f"{API}/inbox", READ, OWN, overview.list_inbox, "List what waits for a person, oldest first.",
            {200: Many(Question)}, query=overview.INBOX,
        ),
        Operation(
            "GET", f"{API}/series", READ, NEVER, overview.get_series,
            "Return the starts, ends, failures and waiting runs of the last minutes, for charts.", {200: Series},
            query=overview.SERIES,
        ),
        Operation(
            "GET", f"{API}/workers", READ, NEVER, reads.list_workers,
            "List the workers and their jobs.", {200: Many(WorkerStatus)}
        ),
        Operation(
            "GET", f"{API}/entries", READ, FREE, reads.list_entries, "List the jobs that can be started.",
            {200: Many(Entry)},
        ),
        Operation(
            "GET", f"{API}/token", READ, FREE, reads.get_token, "Return the name and scope of the client's token.",
            {200: reads.TokenView},
        ),
        Operation("GET", f"{API}/stats", READ, NEVER, reads.get_stats, "Return statistics of the store.", {200: Stats}),
        Operation(
            "GET", f"{API}/machines", READ, FREE, reads.list_machines,
            "List the three state machines.", {200: Many(Machine)}
        ),
        Operation(
            "GET", f"{API}/machines/{{machine}}", READ, FREE, reads.get_machine, "Return a state machine.",
            {200: Machine},
        ),
        Operation(
            "GET", f"{API}/gates", READ, NEVER, reads.list_gates,
            "List the gates of all workers, and the reasons of closed gates.",
            {200: Many(GateView)},
        ),
        Operation(
            "GET", f"{API}/audit", OPERATE, NEVER, reads.list_audit, "List who did what, newest first.",
            {200: Many(AuditRow)}, query=reads.PAGED,
        ),
        *_limits(),
        *_schedules(),
        Operation(
            "POST", f"{API}/verify", OPERATE, OWN, operations.verify,
            "Check histories: rules, hash chain and projections. For all runs, start a run of `holdfast.verify`.",
            {200: operations.Verified, 202: RunRecord}, takes=operations.Verify, optional=True, refuses=(404, 409),
            example={},
        ),
        Operation(
            "POST", f"{API}/purge", ADMIN, OWN, operations.purge,
            "Delete runs that ended long ago, permanently. For more than 1,000, start a run of `holdfast.purge`.",
            {200: operations.Purged, 202: RunRecord}, takes=operations.Purge, refuses=(409,),
            example={"older_than": "30d", "statuses": ["succeeded"]},
        ),
    ]  # fmt: skip


def _limits() -> list[Operation]:
    one = f"{API}/limits/{{queue}}"
    state: dict[int, Any] = {200: QueueState}
    return [
        Operation(
            "GET", f"{API}/limits", READ, NEVER, queues.list_limits, "List the queues with limits, and their state.",
            {200: Many(QueueState)},
        ),
        Operation(
            "GET", one, READ, NEVER, queues.get_limits, "Return the state of a queue, with the ETag of its limits.",
            {200: QueueState, 304: None},
        ),
        Operation(
            "PUT", one, ADMIN, NEVER, queues.put_limits, "Replace all limits of a queue.", state,
            takes=queues.NewLimits, refuses=(412,), example={"concurrency": 10, "rate": 5, "rate_seconds": 1},
        ),
        Operation("DELETE", one, ADMIN, NEVER, queues.delete_limits, "Remove all limits of a queue.", state,
                  refuses=(412,)),
        Operation(
            "POST", f"{one}/pause", OPERATE, NEVER, queues.pause_queue, "Pause a queue: no more of its jobs start.",
            state, takes=operations.Pause, optional=True, example={"actor": "ana"},
        ),
        Operation(
            "POST", f"{one}/resume", OPERATE, NEVER, queues.resume_queue, "Resume a paused queue.", state,
            takes=operations.Pause, optional=True, example={"actor": "ana"},
        ),
    ]  # fmt: skip


def _schedules() -> list[Operation]:
    one = f"{API}/schedules/{{schedule}}"
    info: dict[int, Any] = {200: ScheduleInfo}
    new = {"name": "nightly", "job": "shop.report", "options": {"cron": "30 2 * * *", "tz": "Europe/Berlin"}}
    return [
        Operation(
            "GET", f"{API}/schedules", READ, NEVER, schedules.list_schedules, "List the schedules.",
            {200: Many(ScheduleInfo)}, query=schedules.LISTED,
        ),
        Operation(
            "POST", f"{API}/schedules", ADMIN, NEVER, schedules.create_schedule, "Create a schedule.",
            {201: ScheduleInfo}, takes=schedules.NewSchedule, refuses=(404, 409), example=new,
        ),
        Operation("GET", one, READ, NEVER, schedules.get_schedule, "Return a schedule.", info, query=schedules.ONE),
        Operation(
            "POST", f"{one}/change", ADMIN, NEVER, schedules.change_schedule, "Change the options or the job.", info,
            takes=schedules.ScheduleChange, example={"options": {"every": "2h", "cron": None}},
        ),
        Operation(
            "GET", f"{one}/events", READ, NEVER, schedules.list_schedule_events,
            "List what happened to a schedule and its ticks, newest first.", {200: Many(Event)}, query=schedules.EVENTS,
        ),
        Operation(
            "GET", f"{one}/ticks", READ, NEVER, schedules.list_ticks, "List the next ticks, or those around a day.",
            {200: Many(TickTime)}, query=schedules.AROUND,
        ),
        Operation(
            "GET", f"{one}/explain", READ, NEVER, schedules.explain_schedule,
            "Explain a schedule, or what happened to a tick, in words.", {200: schedules.ScheduleExplanation},
            query=schedules.AT,
        ),
        Operation(
            "POST", f"{one}/pause", OPERATE, NEVER, schedules.pause_schedule, "Pause a schedule.", info,
            takes=schedules.SchedulePauseRequest, optional=True, example={"note": "the disk is full"},
        ),
        Operation(
            "POST", f"{one}/resume", OPERATE, NEVER, schedules.resume_schedule, "Resume a paused schedule.", info,
            takes=operations.Pause, optional=True, example={"actor": "ana"},
        ),
        Operation(
            "POST", f"{one}/fire", OPERATE, NEVER, schedules.fire_schedule, "Start a run of a schedule now.",
            {201: schedules.Fired}, takes=schedules.FireRequest, optional=True, refuses=(429,), example={},
        ),
        Operation(
            "POST", f"{one}/backfill", OPERATE, NEVER, schedules.backfill_schedule,
            "Start a run for each tick of a range of the past.", {200: Backfill}, takes=schedules.BackfillRequest,
            refuses=(429,), example={"start": "2026-11-01", "end": "2026-11-08", "dry_run": True},
        ),
        Operation(
            "DELETE", one, ADMIN, NEVER, schedules.delete_schedule, "Delete a schedule and its history. Its runs stay.",
            info,
        ),
    ]  # fmt: skip


def _outside() -> list[Operation]:
    return [
        Operation(
            "GET", "/healthz", PUBLIC, FREE, probes.healthz, "Return 200 while the process answers.",
            {200: probes.Health},
        ),
        Operation(
            "GET", "/readyz", PUBLIC, FREE, probes.readyz, "Return 200 if the process can take more work, else 503.",
            {200: probes.ReadyAnswer, 503: probes.ReadyAnswer}, query=(probes.GATE,),
        ),
        Operation(
            "GET", "/metrics", READ, NEVER, probes.metrics, "Return metrics for Prometheus.", {200: Text("text/plain")}
        ),
        Operation(
            "GET", "/openapi.json", READ, FREE, get_openapi, "Return the OpenAPI document of this API.",
            {200: dict[str, Any]},
        ),
    ]  # fmt: skip
