"""Every cell of the three tables, legal and illegal, against the tables typed in by hand (P1)."""

from __future__ import annotations

import pickle

import pytest

from holdfast.errors import (
    EmptyWakeSet,
    HoldfastError,
    InvalidRunTransition,
    InvalidTransition,
    InvalidWake,
    TransitionRefused,
    WakeOutsidePending,
)
from holdfast.machines import JOB, READY, RUN, JobEvent, JobState, ReadyState, RunStatus, Table, advance
from support import spec


@pytest.mark.parametrize(("cell", "target"), spec.JOB_CELLS.items(), ids=str)
def test_every_job_cell_is_as_the_specification_says(cell: tuple[str | None, str], target: str | None) -> None:
    state, event = cell
    member = None if state is None else JobState(state)
    rows_before = JOB.rows()
    if target is not None:
        assert JOB.advance(state, event) is JobState(target)
        assert JOB.advance(member, JobEvent(event)) is JobState(target)
    else:
        for given in [(state, event), (member, JobEvent(event))]:
            with pytest.raises(InvalidTransition) as refused:
                JOB.advance(*given)
            error = refused.value
            assert (error.machine, error.current, error.state, error.event) == ("Job", state, state, event)
            assert error.target is None
            assert "Job" in str(error)
            assert (state or "(initial)") in str(error)
            assert event in str(error)
    assert JOB.rows() == rows_before


@pytest.mark.parametrize(("cell", "legal"), spec.RUN_CELLS.items(), ids=str)
def test_every_run_cell_is_as_the_specification_says(cell: tuple[str, str], legal: bool) -> None:
    current, target = cell
    rows_before = RUN.rows()
    if legal:
        assert RUN.advance(current, target) is RunStatus(target)
        assert RUN.advance(RunStatus(current), RunStatus(target)) is RunStatus(target)
    else:
        for given in [(current, target), (RunStatus(current), RunStatus(target))]:
            with pytest.raises(InvalidRunTransition) as refused:
                RUN.advance(*given)
            error = refused.value
            assert isinstance(error, RuntimeError)
            assert (error.machine, error.current, error.target) == ("Run", current, target)
            assert all(part in str(error) for part in ("Run", current, target))
    assert RUN.rows() == rows_before


@pytest.mark.parametrize(("cell", "legal"), spec.READY_CELLS.items(), ids=str)
def test_every_ready_cell_is_as_the_specification_says(cell: tuple[str, str], legal: bool) -> None:
    current, target = cell
    rows_before = READY.rows()
    if legal:
        assert READY.advance(current, target) is ReadyState(target)
        assert READY.advance(ReadyState(current), ReadyState(target)) is ReadyState(target)
    else:
        for given in [(current, target), (ReadyState(current), ReadyState(target))]:
            with pytest.raises(InvalidTransition) as refused:
                READY.advance(*given)
            error = refused.value
            assert (error.machine, error.current, error.target) == ("ReadyState", current, target)
            assert all(part in str(error) for part in ("ReadyState", current, target))
    assert READY.rows() == rows_before


def test_the_cells_counted_here_are_all_there_are() -> None:
    assert (len(spec.JOB_CELLS), len(spec.RUN_CELLS), len(spec.READY_CELLS)) == (90, 49, 25)
    assert sum(target is not None for target in spec.JOB_CELLS.values()) == 22 == len(JOB.rows())
    assert sum(spec.RUN_CELLS.values()) == 9 == len(RUN.rows()) - 1  # and the start
    assert sum(spec.READY_CELLS.values()) == 22 == len(READY.rows()) - 1  # and the start


@pytest.mark.parametrize(
    ("table", "begins"), [(JOB, {"job_created", "job_queued", "job_requeued"}), (RUN, {"queued"}), (READY, {"ready"})]
)
def test_a_new_machine_begins_in_one_state_only(table: Table[JobState, JobEvent], begins: set[str]) -> None:
    assert set(table.allowed(None)) == begins
    assert len(set(table.allowed(None).values())) == 1
    for event in table.events:
        if event not in begins:
            with pytest.raises(TransitionRefused):
                table.advance(None, event)


def test_final_states_are_those_that_nothing_leaves() -> None:
    assert JOB.final == {"completed", "cancelled"}
    assert RUN.final == {"succeeded", "failed", "canceled", "timeout"}
    assert READY.final == set()


def test_the_job_rows_of_parked_and_retrying_equal_those_they_qualify() -> None:
    assert dict(JOB.qualifiers) == {"parked": "waiting", "retrying": "queued"}
    assert JOB.allowed("parked") == JOB.allowed("waiting")
    assert JOB.allowed("retrying") == JOB.allowed("queued")
    assert all(row.target not in {"parked", "retrying"} for row in JOB.rows())


def test_where_a_job_event_leads_depends_on_the_event_alone() -> None:
    for event in JOB.events:
        assert len({row.target for row in JOB.rows() if row.event == event}) == 1


@pytest.mark.parametrize("state", ["flying", "", "QUEUED", 7, b"queued", ["queued"], {}, object(), JobEvent.CREATED])
def test_a_name_that_is_no_state_is_refused_and_named(state: object) -> None:
    with pytest.raises(InvalidTransition, match="is not a state of Job"):
        JOB.advance(state, "job_running")  # type: ignore[arg-type]


@pytest.mark.parametrize("event", ["node_started", "", None, 7, b"job_running", [], {}, object(), JobState.RUNNING])
def test_a_name_that_is_no_event_is_refused_and_named(event: object) -> None:
    with pytest.raises(InvalidTransition, match="Job does not take"):
        JOB.advance("queued", event)  # type: ignore[arg-type]


def test_a_refusal_says_what_would_have_been_taken() -> None:
    with pytest.raises(InvalidTransition, match="it takes wait_completed, job_cancelled"):
        JOB.advance("waiting", "job_running")
    with pytest.raises(InvalidTransition, match="it is final"):
        JOB.advance("completed", "job_running")


def test_refusals_keep_their_fields_between_processes() -> None:
    with pytest.raises(TransitionRefused) as refused:
        RUN.advance("queued", "failed")
    copy = pickle.loads(pickle.dumps(refused.value))  # noqa: S301 - our own bytes, to see that errors survive a pool
    assert (type(copy), copy.current, copy.target, str(copy)) == (
        InvalidRunTransition,
        "queued",
        "failed",
        str(refused.value),
    )


def test_every_refusal_of_a_wake_survives_a_pool_too() -> None:
    for error in (EmptyWakeSet(), InvalidWake("moon"), WakeOutsidePending("timer", "ready")):
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - as above
        assert (type(copy), str(copy)) == (type(error), str(error))


def test_refusals_can_be_made_from_two_names_alone() -> None:
    assert str(InvalidRunTransition("queued", "failed")) == "Run in queued refuses failed"
    assert InvalidRunTransition("queued", "failed").target == "failed"
    assert InvalidTransition("queued", "job_completed").event == "job_completed"
    assert issubclass(InvalidTransition, HoldfastError)
    assert issubclass(InvalidRunTransition, RuntimeError)


def test_advance_alone_is_the_job_machines() -> None:
    assert advance(None, "job_created") is JobState.QUEUED
