"""Jobs that are created with a plan, or with the history of another job."""

from __future__ import annotations

from typing import Any

from holdfast.errors import HoldfastError, IdempotencyConflict, StaleAttempt
from holdfast.machines import JobState, RunStatus
from holdfast.store.commands import Append, Reclaim, Submit
from holdfast.store.contract.harness import LEASE, Lab, clause, submission

PLAN: dict[str, Any] = {"name": "p", "nodes": [{"id": "a", "kind": "call", "call": "charge"}]}
PAST = (
    ("tool_invocation_started", {"node": "charge:a", "name": "charge", "try": 1, "args": {}}),
    ("tool_invocation_finished", {"node": "charge:a", "name": "charge", "result": 7, "reused": True}),
    ("node_finished", {"node": "charge:a", "result_type": "success"}),
)
WITH_PAST = ["job_created", "plan_generated", "job_leased", *(kind for kind, _ in PAST), "job_requeued"]


@clause
async def a_plan_supplied_with_create_is_recorded_with_it(lab: Lab) -> None:
    await lab.submit(plan=PLAN)
    created, planned = await lab.store.events("a")
    assert (created.type, planned.type, planned.payload) == ("job_created", "plan_generated", {"plan": PLAN})
    assert planned.attempt is None, "no worker holds the job"
    row = await lab.job()
    assert (row.state, row.attempt, row.record().status) == (JobState.QUEUED, 0, RunStatus.QUEUED)
    (claimed,) = await lab.claim()
    assert claimed.job.attempt == 1
    await lab.append(claimed.job, ("job_completed", {"result": 1}))
    assert (await lab.job()).state is JobState.COMPLETED


@clause
async def a_past_is_written_under_a_claim_that_runs_no_code(lab: Lab) -> None:
    await lab.submit(plan=PLAN, past=PAST)
    assert await lab.types() == WITH_PAST
    events = await lab.store.events("a")
    assert [event.attempt for event in events] == [None, None, 1, 1, 1, 1, 1]
    assert (events[2].payload["purpose"], events[-1].payload["reason"]) == ("fork", "fork")
    row = await lab.job()
    assert (row.state, row.lease, row.record().status) == (JobState.QUEUED, None, RunStatus.QUEUED)
    assert row.record().started_at is None, "no code of it has run"


@clause
async def the_worker_that_continues_a_past_has_an_attempt_of_its_own(lab: Lab) -> None:
    await lab.submit(past=PAST, max_attempts=1)
    (claimed,) = await lab.claim()
    assert claimed.job.attempt == 2
    await lab.refused(Append("a", 1, (("job_completed", {"result": 1}),)), StaleAttempt)
    await lab.append(claimed.job, ("job_completed", {"result": 1}))
    assert (await lab.job()).state is JobState.COMPLETED


@clause
async def a_past_counts_for_no_crash(lab: Lab) -> None:
    await lab.submit(past=PAST, max_attempts=2)
    await lab.claim()
    lab.clock.move(LEASE + 1)
    await lab.do(Reclaim())
    assert (await lab.job()).state is JobState.QUEUED, "it was lost once, and may be twice"
    await lab.claim()
    lab.clock.move(LEASE + 1)
    await lab.do(Reclaim())
    assert (await lab.job()).state is JobState.FAILED


@clause
async def a_key_gives_the_job_with_its_past_and_writes_nothing_again(lab: Lab) -> None:
    usual: dict[str, Any] = {"plugin": "shop", "entry": "checkout", "args": {}, "idempotency_key": "k"}
    first = Submit(job="a", plan=PLAN, past=PAST, fingerprint="f", **usual)
    again = Submit(job="b", plan=PLAN, past=PAST, fingerprint="f", **usual)
    answers = await lab.store.commit([first, again])
    assert [(answer.job, answer.existing) for answer in answers] == [("a", False), ("a", True)]
    assert await lab.types() == WITH_PAST
    assert await lab.store.get("b") is None
    await lab.refused(Submit(job="c", plan={**PLAN, "name": "q"}, fingerprint="g", **usual), IdempotencyConflict)


@clause
async def a_past_that_cannot_have_been_is_refused_whole(lab: Lab) -> None:
    for ended in (("job_completed", {"result": 1}), ("job_cancelled", {})):
        wrong = (*PAST, ended)
        await lab.refused(submission("a", past=wrong), HoldfastError)
        assert await lab.store.get("a") is None
    await lab.submit("b")
    assert (await lab.job("b")).state is JobState.QUEUED, "others are not disturbed"
