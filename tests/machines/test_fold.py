"""What a strict reading remembers, and which rule each illegal record breaks."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
import pytest

from holdfast.machines import (
    CancelRequest,
    Fold,
    InvalidTransition,
    JobState,
    OpenStep,
    OpenWait,
    Violation,
    WaitPlace,
    check,
    derive,
    fold,
    run_paths,
    runs,
    seal,
)
from holdfast.machines.keys import CHILD_KEY
from support.streams import sealed

Letter = tuple[str, dict[str, Any]]

CREATED: Letter = ("job_created", {"plugin": "shop", "entry": "checkout"})
RUNNING: Letter = ("job_running", {})
WAIT: Letter = (
    "job_waiting",
    {"node": "w", "correlation_key": "k", "wait_type": "signal", "deadline": 9, "park": True},
)
WAITS: Letter = ("job_waiting", {**WAIT[1], "also": [{"node": "v", "correlation_key": "other"}]})


def test_an_empty_stream_is_queued() -> None:
    assert fold([]).state is derive([]) is JobState.QUEUED
    assert check([]) == []
    assert fold([]).length == 0


def test_a_parked_job_waits_and_is_shown_as_parked() -> None:
    snapshot = fold(sealed([CREATED, RUNNING, WAIT]))
    assert snapshot.state is JobState.WAITING
    assert snapshot.wait == OpenWait("w", "k", "signal", 9.0, park=True)
    several = fold(sealed([CREATED, RUNNING, WAITS]))
    assert several.wait is not None
    assert several.wait.places() == (WaitPlace("w", "k"), WaitPlace("v", "other"))
    assert fold(sealed([CREATED, RUNNING, WAITS, ("wait_completed", {"correlation_key": "other"})])).wait is None
    assert (snapshot.parked, snapshot.blocked, snapshot.shown(now=0)) == (True, True, JobState.PARKED)
    woken = fold(sealed([CREATED, RUNNING, WAIT, ("wait_completed", {"correlation_key": "k"})]))
    assert (woken.wait, woken.parked, woken.blocked, woken.shown(now=0)) == (None, False, False, JobState.QUEUED)


def test_a_wait_that_is_not_parked_is_shown_as_waiting() -> None:
    snapshot = fold(["job_created", "job_running", "job_waiting"])
    assert (snapshot.parked, snapshot.wait, snapshot.shown(now=0)) == (False, OpenWait(), JobState.WAITING)


def test_a_requeued_job_is_shown_as_retrying_until_it_is_due() -> None:
    snapshot = fold(sealed([CREATED, RUNNING, ("job_requeued", {"reason": "retry", "not_before": 50})]))
    assert snapshot.state is JobState.QUEUED
    assert snapshot.not_before == 50.0
    assert [snapshot.shown(now) for now in (49.9, 50.0, 51.0)] == ["retrying", "queued", "queued"]
    assert fold(["job_created"]).shown(now=0) is JobState.QUEUED


@pytest.mark.parametrize(("not_before", "kept"), [(10**400, float("inf")), (True, None), ("soon", None), (None, None)])
def test_a_due_time_that_is_no_time_is_not_believed(not_before: object, kept: float | None) -> None:
    reader = Fold()
    for event in sealed([CREATED, RUNNING]):
        reader.take(event)
    reader.take(seal(None, "job_requeued", {"not_before": not_before}, at=1, attempt=1, job="job-1"))
    assert reader.snapshot().not_before == kept


def test_attempts_count_crashes_but_neither_waits_nor_shutdowns() -> None:
    stream = [CREATED, RUNNING, ("job_requeued", {"reason": "lease_expired"})]
    assert fold(sealed(stream)).attempts == 1
    stream += [RUNNING, ("job_requeued", {"reason": "worker_shutdown"})]
    assert fold(sealed(stream)).attempts == 1
    stream += [RUNNING, WAIT, ("wait_completed", {"correlation_key": "k"})]
    assert fold(sealed(stream)).attempts == 1
    stream += [RUNNING, ("job_requeued", {"reason": "retry"})]
    snapshot = fold(sealed(stream))
    assert (snapshot.attempts, snapshot.attempt, snapshot.started) == (2, 4, True)


def test_a_shutdown_named_by_somebody_who_held_nothing_changes_no_count() -> None:
    assert fold(sealed([CREATED, ("job_requeued", {"reason": "worker_shutdown"})])).attempts == 0


def test_an_administrative_claim_takes_a_token_but_is_no_attempt() -> None:
    stream = [CREATED, ("job_leased", {"purpose": "pause"})]
    assert fold(sealed(stream)).purpose == "pause"
    paused = fold(sealed([*stream, ("job_waiting", {"correlation_key": "p", "wait_type": "human", "park": True})]))
    assert (paused.attempt, paused.attempts, paused.started, paused.purpose) == (1, 0, False, None)
    bare = fold(["job_created", "job_leased", "job_waiting"])
    assert (bare.attempt, bare.attempts, bare.started) == (1, 0, False)


def test_an_operators_retry_opens_a_new_run_without_the_old_cancel_and_count() -> None:
    stream = [CREATED, RUNNING, ("cancel_requested", {"reason": "first"}), ("cancel_requested", {"reason": "second"})]
    assert fold(sealed(stream)).cancel == CancelRequest("first", 1003.0)
    stream += [("job_failed", {"reason": "no"}), ("job_requeued", {"actor": "ana", "reason": "again"})]
    snapshot = fold(sealed(stream))
    assert (snapshot.run, snapshot.cancel, snapshot.attempts, snapshot.started) == (2, None, 0, False)
    assert snapshot.attempt == 1  # the fencing token never goes back


def test_steps_are_open_from_their_start_until_their_commit_or_failure() -> None:
    stream = [CREATED, RUNNING, ("node_started", {"node": "a"}), ("tool_invocation_started", {"node": "b"})]
    opened = fold(sealed(stream))
    assert opened.open_steps == {
        "a": OpenStep("a", tool=False, attempt=1, since=1003.0),
        "b": OpenStep("b", tool=True, attempt=1, since=1004.0),
    }
    stream += [("command_committed", {"node": "a"}), ("tool_invocation_finished", {"node": "b"})]
    committed = fold(sealed(stream))
    assert committed.open_steps == {}
    assert committed.committed == {"a", "b"}
    stream += [("node_finished", {"node": "a"}), ("node_finished", {"node": "b", "result_type": "success"})]
    assert fold(sealed(stream)).committed == {"a", "b"}


def test_a_failed_try_is_closed_and_a_new_one_may_commit() -> None:
    failed = {"node": "a", "result_type": "retryable_failure", "reason": "step timeout"}
    stream = [CREATED, RUNNING, ("node_started", {"node": "a"}), ("node_finished", failed)]
    assert fold(sealed(stream)).open_steps == {}
    stream += [("node_started", {"node": "a"}), ("command_committed", {"node": "a"})]
    assert fold(sealed(stream)).committed == {"a"}
    tool = [
        CREATED,
        RUNNING,
        ("tool_invocation_started", {"node": "t"}),
        ("tool_invocation_finished", {**failed, "node": "t"}),
    ]
    assert (fold(sealed(tool)).open_steps, fold(sealed(tool)).committed) == ({}, frozenset())


def test_a_tool_in_doubt_stays_open_over_the_loss_of_its_worker() -> None:
    stream = [
        CREATED,
        RUNNING,
        ("tool_invocation_started", {"node": "t"}),
        ("job_requeued", {"reason": "lease_expired"}),
    ]
    (open_step,) = fold(sealed([*stream, RUNNING])).open_steps.values()
    assert (open_step.tool, open_step.attempt) == (True, 1)


def test_a_snapshot_is_not_changed_by_later_events() -> None:
    reader = Fold()
    events = sealed([CREATED, RUNNING, ("node_started", {"node": "a"}), ("command_committed", {"node": "a"})])
    for event in events[:3]:
        reader.take(event)
    before = reader.snapshot()
    reader.take(events[3])
    assert (set(before.open_steps), before.committed) == ({"a"}, frozenset())


def test_unknown_newer_events_are_kept_and_move_nothing() -> None:
    for position in range(4):
        names = ["job_created", "job_running", "job_completed"]
        names.insert(position, "soul_searched")
        assert check(names) == []
        assert fold(names).state is derive(names) is JobState.COMPLETED
        assert fold(names).length == 4


def test_a_refused_event_changes_nothing() -> None:
    reader = Fold()
    for event in ["job_created", "job_running"]:
        reader.take(event)
    before = reader.snapshot()
    for refused in ["job_running", "job_created", None, 7]:
        with pytest.raises(InvalidTransition):
            reader.take(refused)
        assert reader.snapshot() == before


def test_a_strict_reading_stops_at_the_first_illegal_event_and_names_its_index() -> None:
    with pytest.raises(InvalidTransition) as refused:
        fold(["job_created", "job_running", "job_completed", "job_running", "job_created"])
    error = refused.value
    assert (error.index, error.rule, error.machine, error.current, error.event) == (
        3,
        "J3",
        "Job",
        "completed",
        "job_running",
    )
    assert str(error).startswith("event 3: Job in completed refuses job_running [J3]")


def test_a_check_goes_on_after_the_first_violation() -> None:
    found = check(["job_running", "job_created", "job_running", "job_leased", "job_completed"])
    assert [(violation.index, violation.rule) for violation in found] == [(0, "J3"), (1, "J3"), (3, "J3")]
    assert (found[0].event, found[0].state, found[1].state) == ("job_running", None, "running")
    assert str(found[0]) == (
        "event 0, job_running in (initial), breaks J3: it takes job_created, job_queued, job_requeued"
    )


def test_what_is_no_event_is_named() -> None:
    (found,) = check(["job_created", 5])
    assert found == Violation(1, "J2", "int is not an event: pass records or names", "<int>", JobState.QUEUED)


CLAIM_TO_CANCEL: Letter = ("job_leased", {"purpose": "cancel"})
FAILED_STREAM = [CREATED, RUNNING, ("job_failed", {"reason": "no"})]
STEP = [CREATED, RUNNING, ("node_started", {"node": "a"})]
TOOL = [CREATED, RUNNING, ("tool_invocation_started", {"node": "t"})]
COMMITTED = [*STEP, ("command_committed", {"node": "a"})]
TIMED_OUT = [*STEP, ("node_finished", {"node": "a", "result_type": "retryable_failure", "reason": "step timeout"})]

BROKEN: list[tuple[str, list[Letter], Letter]] = [
    ("J7.1", [CREATED, RUNNING, ("job_completed", {})], ("cancel_requested", {})),
    ("J7.1", [CREATED, RUNNING, ("job_cancelled", {})], ("plan_generated", {})),
    ("J7.1", FAILED_STREAM, ("cancel_requested", {})),
    ("J7.1", FAILED_STREAM, ("job_requeued", {"reason": "again"})),
    ("J7.1", FAILED_STREAM, ("job_requeued", {"actor": "ana"})),
    ("J8", [CREATED], ("job_leased", {})),
    ("J8", [CREATED], ("job_leased", {"purpose": 7})),
    ("J8", [CREATED, CLAIM_TO_CANCEL], ("job_failed", {})),
    ("J8", [CREATED, CLAIM_TO_CANCEL], ("node_started", {"node": "a"})),
    ("J8", [CREATED, ("job_leased", {"purpose": "pause"})], ("job_cancelled", {})),
    ("J8", [CREATED, ("job_leased", {"purpose": "fail"})], ("job_completed", {})),
    ("J12", [CREATED, RUNNING], ("job_waiting", {"wait_type": "signal"})),
    ("J12", [CREATED, RUNNING], ("job_waiting", {"wait_type": "signal", "correlation_key": ""})),
    ("J12", [CREATED, RUNNING], ("job_waiting", {"wait_type": "signal", "correlation_key": 3})),
    ("J12", [CREATED, RUNNING], ("job_waiting", {"correlation_key": "k"})),
    ("J12", [CREATED, RUNNING], ("job_waiting", {"correlation_key": "k", "wait_type": "hope"})),
    ("J12", [CREATED, RUNNING], ("job_waiting", {"correlation_key": "k", "wait_type": ["signal"]})),
    ("J12", [CREATED, RUNNING], ("job_waiting", {"correlation_key": "k", "wait_type": "signal", "also": "l"})),
    ("J12", [CREATED, RUNNING], ("job_waiting", {"correlation_key": "k", "wait_type": "signal", "also": ["l"]})),
    ("J12", [CREATED, RUNNING], ("job_waiting", {"correlation_key": "k", "wait_type": "signal", "also": [{}]})),
    ("J12", [CREATED, RUNNING, WAIT], ("wait_completed", {"correlation_key": "other"})),
    ("J12", [CREATED, RUNNING, WAITS], ("wait_completed", {"correlation_key": "third"})),
    ("J12", [CREATED, RUNNING, WAIT], ("wait_completed", {"outcome": "expired"})),
    ("E1", COMMITTED, ("node_started", {"node": "a"})),
    ("E1", [*TOOL, ("tool_invocation_finished", {"node": "t"})], ("tool_invocation_started", {"node": "t"})),
    ("E2", STEP, ("node_finished", {"node": "a", "result_type": "success"})),
    ("E2", STEP, ("node_finished", {"node": "a"})),
    ("E4", [CREATED, RUNNING], ("tool_invocation_finished", {"node": "t"})),
    ("E4", STEP, ("tool_invocation_finished", {"node": "a"})),
    ("E4", [*TOOL, ("tool_invocation_finished", {"node": "t"})], ("tool_invocation_finished", {"node": "t"})),
    ("E7", COMMITTED, ("command_committed", {"node": "a"})),
    ("E2", TOOL, ("command_committed", {"node": "t"})),
    ("E11", [CREATED, ("plan_generated", {})], ("plan_generated", {})),
    ("J7.1", FAILED_STREAM, ("job_requeued", {"actor": True, "reason": "again"})),
    ("J8", [CREATED], ("job_leased", {"purpose": ""})),
    ("J9", [], ("cancel_requested", {})),
    ("J9", [], ("plan_generated", {})),
    ("E8", [CREATED, RUNNING], ("node_started", {})),
    ("E8", [CREATED, RUNNING], ("tool_invocation_started", {"node": ""})),
    ("E8", STEP, ("command_committed", {"node": 5})),
    ("E8", STEP, ("node_finished", {"result_type": "permanent_failure"})),
    ("L8", TIMED_OUT, ("command_committed", {"node": "a"})),
    ("L8", COMMITTED, ("node_finished", {"node": "a", "result_type": "permanent_failure"})),
]


@pytest.mark.parametrize(("rule", "stream", "last"), BROKEN)
def test_a_record_that_breaks_a_rule_is_found_with_its_number(rule: str, stream: list[Letter], last: Letter) -> None:
    assert check(sealed(stream)) == []
    (violation,) = check(sealed([*stream, last]))
    assert (violation.index, violation.rule) == (len(stream), rule)
    with pytest.raises(InvalidTransition) as refused:
        fold(sealed([*stream, last]))
    assert (refused.value.index, refused.value.rule) == (len(stream), rule)


def test_a_tool_that_timed_out_stays_in_doubt_until_its_own_finish() -> None:
    timed_out = ("node_finished", {"node": "t", "result_type": "retryable_failure", "reason": "step timeout"})
    lost = [*TOOL, timed_out, ("job_requeued", {"reason": "lease_expired"}), RUNNING]
    assert check(sealed(lost)) == []
    assert fold(sealed(lost)).open_steps["t"].tool
    settled = fold(sealed([*lost, ("tool_invocation_finished", {"node": "t", "result": 1})]))
    assert (settled.open_steps, settled.committed) == ({}, frozenset({"t"}))


def test_a_tool_that_is_also_begun_as_a_node_stays_a_tool() -> None:
    stream = [*TOOL, ("node_started", {"node": "t"})]
    assert fold(sealed(stream)).open_steps["t"].tool
    assert check(sealed([*stream, ("tool_invocation_finished", {"node": "t"})])) == []


def test_a_failed_try_does_not_bind_the_next_attempt() -> None:
    assert check(sealed([*TIMED_OUT, ("job_requeued", {}), RUNNING, ("command_committed", {"node": "a"})])) == []


def test_a_torn_administrative_claim_can_be_reclaimed() -> None:
    assert check(sealed([CREATED, CLAIM_TO_CANCEL, ("job_requeued", {"reason": "lease_expired"}), RUNNING])) == []


def test_newer_events_of_an_attempt_that_is_over_are_let_through() -> None:
    events = sealed([CREATED, RUNNING, WAIT])
    late = seal(events[-1], "evidence_kept", {"node": "t"}, at=9, attempt=1)
    assert check([*events, late]) == []
    assert fold([*events, late]).state is JobState.WAITING


@pytest.mark.parametrize("read", [check, derive, fold, runs])
@pytest.mark.parametrize("stream", ["job_completed", b"job_completed", seal(None, "job_created", job="j", at=1)])
def test_one_event_is_not_taken_for_a_stream(read: Callable[[Any], object], stream: object) -> None:
    with pytest.raises(TypeError, match="a stream must be a list of events"):
        read(stream)


class Loud(str, Enum):
    CREATED = "job_created"
    RUNNING = "job_running"


class Unhashable(str):
    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]


def test_names_are_read_by_their_characters_whatever_class_they_are_of() -> None:
    names = [Loud.CREATED, Loud.RUNNING]
    assert run_paths(names) == [["queued", "running"]]
    assert fold(names).state is derive(names) is JobState.RUNNING
    assert seal(None, Loud.CREATED, job=Loud.CREATED, id=Loud.RUNNING, at=1).type == "job_created"
    assert derive([Unhashable("job_running")]) is JobState.RUNNING


@pytest.mark.parametrize("junk", [10**5000, b"x" * 1_000_000, [[]], object()], ids=range(4))
def test_junk_in_a_stream_is_named_by_its_kind_alone(junk: object) -> None:
    (found,) = check(["job_created", junk])
    assert len(str(found)) < 200
    with pytest.raises(InvalidTransition, match="is not an event"):
        fold([junk])


def test_a_purpose_of_a_newer_release_is_let_through() -> None:
    assert check(sealed([CREATED, ("job_leased", {"purpose": "migrate"}), ("job_requeued", {"reason": "moved"})])) == []


def test_a_newer_event_inside_an_administrative_claim_is_let_through() -> None:
    assert check(sealed([CREATED, CLAIM_TO_CANCEL, ("cancel_audited", {}), ("job_cancelled", {})])) == []


def with_attempts(*parts: tuple[str, int | None]) -> list[Violation]:
    events: list[Any] = []
    payloads = {"job_waiting": WAIT[1], "node_started": {"node": "a"}, "job_leased": {"purpose": "fail"}}
    for name, attempt in parts:
        after = events[-1] if events else None
        events.append(seal(after, name, payloads.get(name), at=1, attempt=attempt, job="j"))
    return check(events)


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        ("L1", [("job_created", None), ("job_running", None)]),
        ("L1", [("job_created", None), ("job_running", 2), ("job_requeued", None), ("job_running", 2)]),
        ("L1", [("job_created", None), ("job_running", 2), ("job_requeued", None), ("job_leased", 1)]),
        ("L3", [("job_created", None), ("job_running", 2), ("node_started", 1)]),
        ("L3", [("job_created", None), ("job_running", 2), ("node_started", None)]),
        ("L3", [("job_created", None), ("job_running", 2), ("job_completed", None)]),
        ("L3", [("job_created", None), ("job_running", 2), ("job_cancelled", None)]),
        ("L3", [("job_created", None), ("job_running", 2), ("job_requeued", 3)]),
        ("L3", [("job_created", None), ("job_running", 2), ("job_requeued", 2), ("node_started", 2)]),
        ("L3", [("job_created", 1)]),
    ],
)
def test_only_the_attempt_that_holds_the_job_writes(rule: str, parts: list[tuple[str, int | None]]) -> None:
    assert with_attempts(*parts[:-1]) == []
    assert [(violation.index, violation.rule) for violation in with_attempts(*parts)] == [(len(parts) - 1, rule)]


def test_a_job_that_nobody_holds_is_cancelled_and_requeued_without_an_attempt() -> None:
    parts = [("job_created", None), ("job_running", 7), ("job_waiting", 7), ("job_cancelled", None)]
    assert with_attempts(*parts) == []
    assert with_attempts(("job_created", None), ("job_running", 7), ("job_requeued", None)) == []


@pytest.mark.parametrize("name", ["node_started", "tool_invocation_started", "command_committed", "node_finished"])
def test_a_bare_step_name_moves_nothing(name: str) -> None:
    snapshot = fold(["job_created", "job_running", name])
    assert (snapshot.open_steps, snapshot.committed) == ({}, frozenset())
    assert fold(["job_created", "job_running", "tool_invocation_finished"]).committed == frozenset()


def test_what_is_no_event_at_all_moves_nothing() -> None:
    assert derive(["job_created", 42, None, "job_running"]) is JobState.RUNNING


def test_a_wait_finds_its_places_by_key_and_knows_those_of_children() -> None:
    child = WaitPlace("job.one:a", f"{CHILD_KEY}job.one:a")
    wait = OpenWait("wait:k", "k", "signal", also=(child, WaitPlace("wait:k#2", "k"), WaitPlace("bare", None)))
    assert wait.place("k") == WaitPlace("wait:k", "k"), "of equal keys the first"
    assert wait.place(child.correlation_key) == child
    assert wait.place("other") is None
    assert wait.place("k", "wait:k#2") == WaitPlace("wait:k#2", "k"), "with a node only the place there"
    assert wait.place("k", "wait:k") == WaitPlace("wait:k", "k")
    assert wait.place("k", "wait:k#3") is None
    assert wait.place("other", "wait:k") is None
    assert wait.by_key is wait.by_key, "made once: a wait for thousands of children is asked once for each"
    assert wait.child_keys == {child.correlation_key}
    assert wait.child_keys is wait.child_keys


def test_a_wait_knows_which_of_its_places_a_person_ends() -> None:
    def wait(**payload: Any) -> OpenWait:
        events = sealed([("job_created", {}), ("job_running", {}), ("job_waiting", {"wait_type": "signal", **payload})])
        found = fold(events).wait
        assert found is not None
        return found

    place = {"node": "w", "correlation_key": "ok"}
    program = wait(correlation_key="go", also=[place])
    person = wait(correlation_key="go", wait_type="human")
    both = wait(correlation_key="go", also=[place | {"wait_type": "human"}])
    assert [one.asks_person("go") for one in (program, person, both)] == [False, True, False]
    assert [one.asks_person("ok") for one in (program, person, both)] == [False, False, True]
    assert not person.asks_person("holdfast:pause")
    assert [one.waits_for_person for one in (program, person, both)] == [False, True, True]
    assert wait(correlation_key="holdfast:doubt:pay:1").waits_for_person
    assert wait(correlation_key="go", also=[{"correlation_key": "holdfast:budget"}]).waits_for_person
    assert msgspec.json.decode(msgspec.json.encode(both), type=OpenWait) == both
