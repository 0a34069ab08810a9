"""What users see of a job (SPEC section 4), as far as it needs no clock."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import strategies as st

from holdfast.machines import InvalidTransition, RunError, RunProjection, RunRecord, RunStatus, run_paths, runs
from holdfast.machines.fold import Fold
from holdfast.machines.run_projection import RunFields, follow
from support.streams import Author, sealed
from support.timeless import given, settings

Letter = tuple[str, dict[str, Any]]

CREATED: Letter = (
    "job_created",
    {"plugin": "shop", "entry": "checkout", "trace_id": "t-1", "idempotency_key": "order-7"},
)
RUNNING: Letter = ("job_running", {"worker": "w1"})
WAITING: Letter = ("job_waiting", {"correlation_key": "k", "wait_type": "signal"})
WOKEN: Letter = ("wait_completed", {"correlation_key": "k"})
TERMINAL = {"succeeded", "failed", "canceled", "timeout"}


def last(letters: list[Letter]) -> RunRecord:
    return runs(sealed(letters))[-1]


def path(letters: list[Letter]) -> list[RunStatus]:
    return run_paths(sealed(letters))[-1]


def test_an_empty_stream_has_no_run() -> None:
    assert runs([]) == []
    assert runs(["soul_searched"]) == []


def test_a_new_job_is_a_queued_run_that_knows_where_it_comes_from() -> None:
    record = last([CREATED])
    assert record == RunRecord(
        run_id="job-1",
        plugin_id="shop",
        entry_id="checkout",
        status=RunStatus.QUEUED,
        created_at=1001.0,
        updated_at=1001.0,
        task_id="job-1",
        trace_id="t-1",
        idempotency_key="order-7",
        stage="queued",
    )


def test_a_run_runs_from_its_first_start_until_the_end_whatever_its_job_does() -> None:
    stream = [CREATED, RUNNING]
    stages = ["running"]
    for letter, stage in [
        (("job_requeued", {"reason": "lease_expired"}), "requeued"),
        (RUNNING, "running"),
        (("job_requeued", {"not_before": 9.0}), "retrying"),
        (RUNNING, "running"),
        (WAITING, "waiting"),
        (WOKEN, "requeued"),
        (RUNNING, "running"),
        (("job_waiting", {"correlation_key": "holdfast:doubt:pay:1", "wait_type": "human", "park": True}), "in_doubt"),
        (("wait_completed", {"correlation_key": "holdfast:doubt:pay:1"}), "requeued"),
        (RUNNING, "running"),
        (("job_waiting", {"correlation_key": "k", "wait_type": "human", "park": True}), "parked"),
    ]:
        stream.append(letter)
        stages.append(stage)
        record = last(stream)
        assert (record.status, record.stage, record.finished_at) == ("running", stage, None)
        assert record.started_at == 1002.0
        assert record.updated_at == 1000.0 + len(stream)
    assert path(stream) == ["queued", "running"]


def test_a_run_has_the_build_of_its_newest_attempt() -> None:
    requeued: Letter = ("job_requeued", {"reason": "lease_expired"})
    stream = [CREATED, ("job_running", {"worker": "w1", "build": "1.0"}), requeued]
    assert last(stream).build == "1.0"
    stream.append(("job_running", {"worker": "w2", "build": "2.0"}))
    assert last([*stream, ("job_completed", {})]).build == "2.0"
    assert last([*stream, requeued, RUNNING]).build is None, "that of the newest attempt is not known"


def test_success_ends_a_run_with_its_results_and_full_progress() -> None:
    record = last([CREATED, RUNNING, ("job_completed", {"result_refs": ["export-1"]})])
    assert (record.status, record.progress, record.result_refs) == ("succeeded", 1.0, ["export-1"])
    assert (record.finished_at, record.updated_at, record.stage, record.error) == (1003.0, 1003.0, None, None)


def test_failure_ends_a_run_with_its_error() -> None:
    failed = {"reason": "permanent", "code": "CARD", "message": "declined", "details": {"bank": 51}}
    record = last([CREATED, RUNNING, ("job_failed", failed)])
    assert (record.status, record.error) == ("failed", RunError("CARD", "declined", {"bank": 51}))
    assert last([CREATED, RUNNING, ("job_failed", {"reason": "gave up"})]).error == RunError("FAILED", "gave up")
    assert last([CREATED, RUNNING, ("job_failed", {"details": 3})]).error == RunError("FAILED", "the job failed")


def test_a_deadline_ends_a_run_as_timeout() -> None:
    record = last([CREATED, RUNNING, ("job_failed", {"reason": "deadline"})])
    assert (record.status, record.error) == ("timeout", RunError("TIMEOUT", "deadline"))
    assert path([CREATED, RUNNING, ("job_failed", {"reason": "deadline"})])[-2:] == ["running", "timeout"]


@pytest.mark.parametrize(("reason", "end"), [("poison", "failed"), ("deadline", "timeout")])
def test_a_job_that_fails_before_its_first_start_passes_through_running(reason: str, end: str) -> None:
    stream = [CREATED, ("job_leased", {"purpose": "fail"}), ("job_failed", {"reason": reason})]
    assert path(stream) == ["queued", "running", end]
    assert last(stream).started_at is None  # user code was never started, and the record says so


def test_a_queued_run_is_canceled_at_once() -> None:
    claim: Letter = ("job_leased", {"purpose": "cancel"})
    assert last([CREATED, claim]).stage == "queued"
    stream = [CREATED, claim, ("job_cancelled", {"reason": "changed my mind"})]
    record = last(stream)
    assert path(stream) == ["queued", "canceled"]
    assert (record.cancel_requested, record.cancel_reason, record.cancel_requested_at) == (
        True,
        "changed my mind",
        1003.0,
    )
    assert record.error == RunError("CANCELED", "canceled: changed my mind")


def test_a_started_run_is_canceled_through_cancel_requested_even_without_a_request() -> None:
    for stream in ([CREATED, RUNNING], [CREATED, RUNNING, WAITING]):
        assert path([*stream, ("job_cancelled", {})]) == ["queued", "running", "cancel_requested", "canceled"]


@pytest.mark.parametrize(
    ("end", "status"), [("job_completed", "succeeded"), ("job_failed", "failed"), ("job_cancelled", "canceled")]
)
def test_a_run_asked_to_cancel_ends_as_it_ends_and_keeps_the_first_reason(end: str, status: str) -> None:
    asked = [CREATED, RUNNING, ("cancel_requested", {"reason": "first"}), ("cancel_requested", {"reason": "second"})]
    assert last(asked).status == "cancel_requested"
    record = last([*asked, (end, {"reason": "third"})])
    assert path([*asked, (end, {})]) == ["queued", "running", "cancel_requested", status]
    assert (record.cancel_requested, record.cancel_reason, record.cancel_requested_at) == (True, "first", 1003.0)


@pytest.mark.parametrize(
    "end", [("job_failed", {"reason": "deadline"}), ("job_cancelled", {"reason": "late", "deadline": True})]
)
def test_a_deadline_during_cancel_requested_ends_canceled_and_says_so(end: Letter) -> None:
    stream = [CREATED, RUNNING, ("cancel_requested", {"reason": "why"}), end]
    record = last(stream)
    assert path(stream) == ["queued", "running", "cancel_requested", "canceled"]
    assert record.error == RunError("CANCELED", "canceled: why", {"deadline": True})


def test_a_cancel_request_before_the_start_shows_in_the_record_and_takes_effect_at_the_start() -> None:
    asked = [CREATED, ("cancel_requested", {})]
    assert (last(asked).status, last(asked).cancel_requested, last(asked).cancel_reason) == ("queued", True, None)
    assert path([*asked, RUNNING]) == ["queued", "running", "cancel_requested"]


def test_a_run_paused_before_its_first_start_is_queued_and_says_so() -> None:
    pause: list[Letter] = [
        ("job_leased", {"purpose": "pause"}),
        ("job_waiting", {"correlation_key": "p", "wait_type": "human"}),
    ]
    assert (last([CREATED, *pause]).status, last([CREATED, *pause]).stage) == ("queued", "paused")
    resumed = last([CREATED, *pause, ("wait_completed", {"correlation_key": "p"})])
    assert (resumed.status, resumed.stage) == ("queued", "queued")


def test_an_operators_retry_opens_a_new_run_and_leaves_the_old_one_failed_for_ever() -> None:
    stream = [CREATED, RUNNING, ("job_failed", {"reason": "no"})]
    (old,) = runs(sealed(stream))
    stream += [("job_requeued", {"actor": "ana", "reason": "again"})]
    assert runs(sealed(stream))[0] == old
    new = last(stream)
    assert (new.run_id, new.task_id, new.status, new.created_at) == ("job-1.2", "job-1", "queued", 1004.0)
    assert (new.plugin_id, new.entry_id, new.trace_id, new.idempotency_key) == ("shop", "checkout", "t-1", "order-7")
    stream += [RUNNING, ("job_completed", {})]
    assert runs(sealed(stream))[0] == old
    assert [record.status for record in runs(sealed(stream))] == ["failed", "succeeded"]


def test_an_illegal_stream_is_refused_and_projects_nothing_more() -> None:
    projection = RunProjection()
    projection.push("job_created")
    before = list(projection.runs)
    with pytest.raises(InvalidTransition, match="event 1"):
        projection.push("job_completed")
    assert projection.runs == before


def test_newer_events_after_the_end_leave_the_record_alone() -> None:
    stream = [CREATED, RUNNING, ("job_completed", {})]
    assert runs(sealed([*stream, ("soul_searched", {})])) == runs(sealed(stream))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 120))
def test_records_are_terminal_iff_finished_and_immutable_from_then_on(seed: int, length: int) -> None:
    projection = RunProjection()
    ended: dict[str, RunRecord] = {}
    for event in sealed(Author(random.Random(seed)).write(length)):
        projection.push(event)
        for record in projection.runs:
            assert (record.status in TERMINAL) == (record.finished_at is not None)
            assert (record.status == "succeeded") == (record.progress == 1.0)
            assert record.created_at <= record.updated_at
            if record.run_id in ended:
                assert record == ended[record.run_id]
            elif record.status in TERMINAL:
                ended[record.run_id] = record
        assert all(record.status in TERMINAL for record in projection.runs[:-1])
    assert len({record.run_id for record in projection.runs}) == len(projection.runs)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9))
def test_the_projection_made_anew_equals_the_one_that_was_kept(seed: int) -> None:
    events = sealed(Author(random.Random(seed)).write(60))
    kept = RunProjection()
    for number, event in enumerate(events, 1):
        kept.push(event)
        assert kept.runs == runs(events[:number])


def test_a_course_is_followed_without_its_path_and_an_ended_one_never_again() -> None:
    job = Fold()
    course = RunFields()
    for event in sealed([CREATED, RUNNING, ("job_completed", {"result": 1})]):
        job.take(event)
        course = follow(course, job, event.type, event.payload, event.at)
    assert course.status is RunStatus.SUCCEEDED
    assert follow(course, job, "node_started", {}, 9.0) is course
