"""Who owns a job is decided rightly in every order of concurrent sessions, at READ COMMITTED.

A session carries out one command in three steps: it reads ahead, which locks the rows that the command names; it
decides and writes, which is where sweeps lock what they find; it commits. A claim looks for jobs as it reads ahead. All
orders of the steps of two sessions are tried, and of three. A step that has to wait for another session's lock is left
waiting, and goes on when that session has ended. The expected rows are written down, for whichever session locks first;
with a ``~`` for when the other looks while that one has not committed yet, if that makes a difference: a sweep passes
over what is locked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from holdfast.schedules.definition import define
from holdfast.schedules.schedule import JobTemplate
from holdfast.store import (
    Append,
    Cancel,
    Claim,
    Command,
    Expire,
    Limits,
    Reclaim,
    ReleaseLeases,
    Renew,
    Retry,
    SendSignal,
    SetLimits,
    Submit,
)
from holdfast.store.schedule_commands import Advance, CreateSchedule, FireSchedule, PauseSchedule
from support.sessions import STEPS, Lab, orders, said

LEASE = 15.0
REPORT = JobTemplate(plugin="shop", entry="report")
REPORTS = frozenset({("shop", "report")})


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


def claim(worker: str) -> Claim:
    entries = frozenset({("shop", "checkout")})
    return Claim(worker=worker, entries=entries, queues=None, limit=1, lease_seconds=LEASE)


def submit(job: str, **options: Any) -> Submit:
    return Submit(job=job, plugin="shop", entry="checkout", args={}, **options)


def done(attempt: int = 1) -> Append:
    return Append("a", attempt, (("job_completed", {}),))


def wait(deadline: float | None = None) -> Append:
    said = {"node": "n", "correlation_key": "k", "wait_type": "signal", "deadline": deadline, "park": False}
    return Append("a", 1, (("job_waiting", said),))


QUEUED = (submit("a"),)
RUNNING = (submit("a"), claim("w"))
FAILED = (*RUNNING, Append("a", 1, (("job_failed", {"reason": "r"}),)))
SIGNAL, CANCEL, RENEW = SendSignal("a", "k", 1, "s"), Cancel("a", "r"), Renew("w", (("a", 1),), LEASE)
EXPIRING = (*RUNNING, wait(1.0))  # its deadline has passed

CREATED = "a queued 0: created"
HELD = "a running 1 w: created running"
OVERDUE = "a running 1 (w): created running"
REQUEUED = "a queued 1: created running requeued"
COMPLETED = "a completed 1: created running completed"
RESUMED = "a queued 1: created running waiting wait_completed"
LIMITED = {
    "one at a time": (SetLimits(Limits(queue="default", concurrency=1)),),
    "one of a group at a time": (SetLimits(Limits(queue="default", group_concurrency=1)),),
    "one in a while": (SetLimits(Limits(queue="default", rate=1e-6)),),
}
TWO = (submit("a", group="g"), submit("b", group="g"))
LATE = LEASE + 1  # seconds after which a lease is over

Expected = dict[str, tuple[str, list[str]]]  # who locks first → what is answered, and the rows


class Case(NamedTuple):
    """Two commands on one job, and what is right."""

    before: tuple[Command, ...]
    late: float
    commands: tuple[Command, Command]
    expected: Expected


CASES = {
    "claim, claim": Case(QUEUED, 0, (claim("v"), claim("w")), {
        "0": ("a none", ["a running 1 v: created running"]),
        "1": ("none a", [HELD]),
    }),
    "claim, cancel": Case(QUEUED, 0, (claim("w"), CANCEL), {
        "0": ("a running", ["a running 1 w: created running cancel_requested"]),
        "1": ("none cancelled", ["a cancelled 1: created leased cancelled"]),
    }),
    "reclaim, reclaim": Case(RUNNING, LATE, (Reclaim(), Reclaim()), {
        "0": ("a none", [REQUEUED]), "1": ("none a", [REQUEUED]),
    }),
    "reclaim, a late append": Case(RUNNING, LATE, (Reclaim(), done()), {
        "0": ("a StaleAttempt", [REQUEUED]),
        "1": ("a StaleAttempt", [REQUEUED]), "1~": ("none StaleAttempt", [OVERDUE]),
    }),
    "reclaim, an append in time": Case(RUNNING, 0, (Reclaim(), done()), {
        "0": ("none completed", [COMPLETED]), "1": ("none completed", [COMPLETED]),
    }),
    "reclaim, a late renewal": Case(RUNNING, LATE, (Reclaim(), RENEW), {
        "0": ("a lost", [REQUEUED]),
        "1": ("a lost", [REQUEUED]), "1~": ("none lost", [OVERDUE]),
    }),
    "reclaim, cancel": Case(RUNNING, LATE, (Reclaim(), CANCEL), {
        "0": ("a cancelled", ["a cancelled 2: created running requeued leased cancelled"]),
        "1": ("a running", ["a cancelled 2: created running cancel_requested requeued leased cancelled"]),
        "1~": ("none running", ["a running 1 (w): created running cancel_requested"]),
    }),
    "reclaim, claim": Case(RUNNING, LATE, (Reclaim(), claim("v")), {
        "0": ("a a", ["a running 2 v: created running requeued running"]), "0~": ("a none", [REQUEUED]),
        "1": ("a none", [REQUEUED]),
    }),
    "append, append": Case(RUNNING, 0, (done(), done()), {
        "0": ("completed StaleAttempt", [COMPLETED]), "1": ("StaleAttempt completed", [COMPLETED]),
    }),
    "append, cancel": Case(RUNNING, 0, (done(), CANCEL), {
        "0": ("completed completed", [COMPLETED]),
        "1": ("completed running", ["a completed 1: created running cancel_requested completed"]),
    }),
    "bury, append": Case(RUNNING, 0, (ReleaseLeases("w"), done()), {
        "0": ("a StaleAttempt", [OVERDUE]), "1": ("none completed", [COMPLETED]),
    }),
    "bury, renew": Case(RUNNING, 0, (ReleaseLeases("w"), RENEW), {
        "0": ("a lost", [OVERDUE]), "1": ("a kept", [OVERDUE]),
    }),
    "bury, bury": Case(RUNNING, 0, (ReleaseLeases("w"), ReleaseLeases("w")), {
        "0": ("a a", [OVERDUE]), "1": ("a a", [OVERDUE]),
    }),
    "renew, renew": Case(RUNNING, 1, (RENEW, RENEW), {"0": ("kept kept", [HELD]), "1": ("kept kept", [HELD])}),
    "wait, signal": Case(RUNNING, 0, (wait(), SIGNAL), {
        "0": ("waiting delivered", [RESUMED]), "1": ("queued kept", [RESUMED]),
    }),
    "signal, signal": Case((*RUNNING, wait()), 0, (SIGNAL, SIGNAL), {
        "0": ("delivered repeat", [RESUMED]), "1": ("repeat delivered", [RESUMED]),
    }),
    "signal, cancel": Case((*RUNNING, wait()), 0, (SIGNAL, CANCEL), {
        "0": ("delivered cancelled", ["a cancelled 2: created running waiting wait_completed leased cancelled"]),
        "1": ("too_late cancelled", ["a cancelled 1: created running waiting cancelled"]),
    }),
    "expire, signal": Case(EXPIRING, 0, (Expire(), SIGNAL), {
        "0": ("a kept", [RESUMED]), "1": ("none delivered", [RESUMED]),
    }),
    "expire, expire": Case(EXPIRING, 0, (Expire(), Expire()), {
        "0": ("a none", [RESUMED]), "1": ("none a", [RESUMED]),
    }),
    "submit, submit with one key": Case((), 0, (submit("a", idempotency_key="k"), submit("b", idempotency_key="k")), {
        "0": ("made a found a", [CREATED]), "1": ("found b made b", ["b queued 0: created"]),
    }),
    "submit, submit with one name": Case((), 0, (submit("a"), submit("a")), {
        "0": ("made a found a", [CREATED]), "1": ("found a made a", [CREATED]),
    }),
    "submit, submit of something else": Case((), 0, (submit("a", fingerprint="x"), submit("a", fingerprint="y")), {
        "0": ("made a IdempotencyConflict", [CREATED]), "1": ("IdempotencyConflict made a", [CREATED]),
    }),
    "retry, retry": Case(FAILED, 0, (Retry("a", "me", "r"), Retry("a", "you", "r")), {
        "0": ("queued InvalidTransition", ["a queued 1: created running failed requeued"]),
        "1": ("InvalidTransition queued", ["a queued 1: created running failed requeued"]),
    }),
    **{
        f"claim, claim of a queue with {name}": Case((*limited, *TWO), 0, (claim("v"), claim("w")), {
            "0": ("a none", ["a running 1 v: created running", "b queued 0: created"]),
            "1": ("none a", [HELD, "b queued 0: created"]),
        })
        for name, limited in LIMITED.items()
    },
}  # fmt: skip


def locks_at(command: Command, case: Case) -> int:
    """The step in which a command locks: what it names when it reads ahead, what it looks for when it decides.

    A claim that is alone in its batch looks for jobs when it reads ahead, but in queues with limits.
    """
    if isinstance(command, Claim) and not any(isinstance(one, SetLimits) for one in (*case.before, *case.commands)):
        return 0
    return 1 if isinstance(command, (Claim, Reclaim, Expire, ReleaseLeases, Submit)) else 0


def first_of(order: tuple[int, ...], case: Case) -> str:
    """Who locks first; with a ~ if the other looks before that one has committed."""
    places = [[place for place, number in enumerate(order) if number == session] for session in (0, 1)]
    lock = [places[session][locks_at(case.commands[session], case)] for session in (0, 1)]
    first = 0 if lock[0] < lock[1] else 1
    return f"{first}~" if lock[1 - first] < places[first][-1] else str(first)


@pytest.mark.parametrize("name", CASES)
def test_two_sessions_in_every_order(name: str, lab: Lab) -> None:
    case = CASES[name]
    assert lab.sessions[0].isolation == ("read committed",)
    for order in orders(2, 3):
        lab.fresh(*case.before, late=case.late)
        answers = lab.play(order, case.commands)
        first = first_of(order, case)
        expected = case.expected.get(first) or case.expected[first[0]]
        assert (" ".join(answers), lab.rows()) == expected, f"{order}: {first}"


TWO_STEPS = ("read+decide", "commit")


def test_three_claims_of_two_jobs_in_every_order(lab: Lab) -> None:
    for order in orders(3, 2):
        lab.fresh(submit("a"), submit("b"))
        answers = lab.play(order, (claim("w0"), claim("w1"), claim("w2")), TWO_STEPS)
        first, second, third = sorted(range(3), key=order.index)
        assert [answers[first], answers[second], answers[third]] == ["a", "b", "none"], order
        assert lab.rows() == [f"a running 1 w{first}: created running", f"b running 1 w{second}: created running"]


def test_three_claims_of_a_queue_that_runs_two_in_every_order(lab: Lab) -> None:
    """Whoever comes third, and whether or not he waits for the others, takes nothing."""
    for order in orders(3, 2):
        lab.fresh(SetLimits(Limits(queue="default", concurrency=2)), *map(submit, "abc"))
        answers = lab.play(order, (claim("w0"), claim("w1"), claim("w2")), TWO_STEPS)
        assert sorted(answers) == ["a", "b", "none"], order
        assert [row.split()[1] for row in lab.rows()] == ["running", "running", "queued"]


def test_a_claim_counts_what_one_that_it_waited_for_has_let_go(lab: Lab) -> None:
    """The end of a job and a claim: in every order one runs, or none and the next claim has it; never two."""
    limited = SetLimits(Limits(queue="default", concurrency=1))
    for order in orders(2, 3):
        lab.fresh(limited, *RUNNING, submit("b"))
        answers = lab.play(order, (done(), claim("v")))
        running = [row for row in lab.rows() if " running " in row.partition(":")[0]]
        assert (answers[1], len(running)) in {("b", 1), ("none", 0)}, order


def test_three_that_submit_to_a_queue_with_two_places_in_every_order(lab: Lab) -> None:
    """Also where each submits more than one, in another order of queues."""
    depths = [SetLimits(Limits(queue=queue, depth=2)) for queue in ("default", "mail")]
    for order in orders(3, 2):
        lab.fresh(*depths)
        batches = tuple((submit(f"{name}1", queue="mail"), submit(name)) for name in "abc")
        answers = lab.play(order, (batches[0], batches[1][::-1], batches[2]), TWO_STEPS)
        assert answers.count("QueueFull") == 1, order
        assert len(lab.rows()) == 4


def handing_on(job: str, worker: str, lease_seconds: float = LEASE) -> tuple[Command, ...]:
    taking = Claim(worker=worker, entries=claim("").entries, queues=None, limit=5, lease_seconds=lease_seconds)
    return Append(job, 1, (("job_completed", {}),)), taking


def test_two_that_hand_places_on_and_one_that_counts(lab: Lab) -> None:
    """Whoever ends a job takes one in its place, whatever the others do; and there are never more than two."""
    limited = SetLimits(Limits(queue="default", concurrency=2))
    for order in orders(3, 2)[::3]:
        lab.fresh(limited, submit("a"), submit("b"), claim("w"), claim("w"), *map(submit, "cdef"))
        answers = lab.play(order, (handing_on("a", "v"), handing_on("b", "w"), claim("u")), TWO_STEPS)
        assert answers[2] == "none", order
        assert {answers[0], answers[1]} <= set("cdef"), order
        assert Counter(row.split()[1] for row in lab.rows()) == {"completed": 2, "running": 2, "queued": 2}


def test_a_place_is_not_counted_as_free_while_it_is_handed_on_though_its_lease_runs_out(lab: Lab) -> None:
    lab.fresh(SetLimits(Limits(queue="default", concurrency=1)), *RUNNING, submit("b"), submit("c"))
    one, other, _ = lab.sessions
    one.take(handing_on("a", "v", 10 * LEASE))
    one.begin("read")
    lab.settle()
    lab.clock.move(LATE)
    other.take(claim("u"))
    for step in ("read", "decide"):
        other.begin(step)
    lab.settle()
    for step in ("decide", "commit"):
        one.begin(step)
    lab.settle()
    other.begin("commit")
    lab.settle()
    assert [said(session.answer) for session in (one, other)] == ["b", "none"]
    assert [row.split()[1] for row in lab.rows()] == ["completed", "running", "queued"]


def test_a_rate_that_another_claim_is_taking_from_is_not_waited_for(lab: Lab) -> None:
    lab.fresh(SetLimits(Limits(queue="default", rate=10, burst=5)), *map(submit, "abc"))
    one, other, _ = lab.sessions
    for session, worker in ((one, "v"), (other, "w")):
        session.take(claim(worker))
        for step in ("read", "decide"):
            session.begin(step)
        lab.settle()
        assert all(step.done() for step in session.running), "it waits for nobody"
    assert said(other.answer) == "none"
    (held,) = other.answer.held
    assert (held.why, held.until, held.slack) == ("turn", lab.clock.now() + 0.02, 0.4)
    for session in (one, other):
        session.begin("commit")
    lab.settle()
    assert [row.split()[1] for row in lab.rows()] == ["running", "queued", "queued"]


THREE: dict[str, tuple[float, tuple[Command, ...], set[tuple[str, str]]]] = {
    "reclaim, claim, a late append": (
        LATE, (Reclaim(), claim("v"), done()), {
            ("none none StaleAttempt", OVERDUE),
            ("a none StaleAttempt", REQUEUED),
            ("a a StaleAttempt", "a running 2 v: created running requeued running"),
        },
    ),
    "reclaim, reclaim, a late append": (
        LATE, (Reclaim(), Reclaim(), done()), {
            ("none none StaleAttempt", OVERDUE),
            ("a none StaleAttempt", REQUEUED),
            ("none a StaleAttempt", REQUEUED),
        },
    ),
    "bury, reclaim, an append in time": (
        0, (ReleaseLeases("w"), Reclaim(), done()), {
            ("none none completed", COMPLETED),
            ("a none StaleAttempt", OVERDUE),
            ("a a StaleAttempt", REQUEUED),
        },
    ),
    "append, append, cancel": (
        0, (done(), done(), CANCEL), {
            ("completed StaleAttempt completed", COMPLETED),
            ("StaleAttempt completed completed", COMPLETED),
            ("completed StaleAttempt running", "a completed 1: created running cancel_requested completed"),
            ("StaleAttempt completed running", "a completed 1: created running cancel_requested completed"),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", THREE)
def test_three_sessions_in_every_order(name: str, lab: Lab) -> None:
    late, commands, expected = THREE[name]
    seen = set()
    for order in orders(3, 2):
        lab.fresh(*RUNNING, late=late)
        answers = lab.play(order, commands, TWO_STEPS)
        (row,) = lab.rows()
        seen.add((" ".join(answers), row))
        assert seen <= expected, order
    assert seen == expected, "each of these comes about in some order"


def test_a_heartbeat_that_waited_for_a_lock_does_not_revive_its_lease(lab: Lab) -> None:
    """The time that counts is read when the row is locked."""
    lab.fresh(*RUNNING)
    holder, heartbeat = lab.sessions[:2]
    holder.take(CANCEL)
    heartbeat.take(RENEW)
    holder.begin("read")
    lab.settle()
    for step in STEPS:
        heartbeat.begin(step)
    lab.settle()
    assert not heartbeat.running[0].done(), "it waits"
    lab.clock.move(LATE)
    for step in ("decide", "commit"):
        holder.begin(step)
    lab.settle()
    heartbeat.running[-1].result(timeout=60)
    assert said(heartbeat.answer) == "lost"
    assert lab.rows() == ["a running 1 (w): created running cancel_requested"]


@pytest.mark.parametrize("parent", [None, "a"])
def test_a_child_that_ends_and_a_parent_that_is_cancelled_do_not_stand_in_each_others_way_for_ever(
    lab: Lab, parent: str | None
) -> None:
    """Both lock the parent first. If whoever ends the child does not know its parent, one of them goes again."""
    child = submit("b", parent="a", parent_key="k")
    ended = Append("b", 1, (("job_completed", {}),), parent=parent)
    told = "a cancelled 1: created leased cancelled"
    expected = {
        ("completed cancelled", told, "b completed 1: created running completed"),
        ("completed cancelled", told, "b completed 1: created running cancel_requested completed"),
    }
    before = [session.gave_way for session in lab.sessions]
    for order in orders(2, 3):
        lab.fresh(child, claim("w"), submit("a"))
        answers = lab.play(order, (ended, CANCEL))
        assert (" ".join(answers), *lab.rows()) in expected, order
    assert ([session.gave_way for session in lab.sessions] == before) is (parent is not None)


HOURLY = CreateSchedule(
    plugin="shop", name="hourly", definition=define(every="1h", overlap="buffer_one"), template=REPORT
)


# What may have happened when all has ended: the tick fires once, or the other command came before it.
AT_A_TICK: dict[str, tuple[Command, set[str]]] = {
    "advance": (Advance(), {"declared fired"}),
    "pause": (PauseSchedule("shop.hourly"), {"declared fired paused", "declared paused"}),
    "fire": (FireSchedule("shop.hourly"), {"declared fired", "declared fired buffered"}),
}


@pytest.mark.parametrize("name", AT_A_TICK)
def test_a_tick_has_one_outcome_in_every_order_of_two_sessions(lab: Lab, name: str) -> None:
    other, allowed = AT_A_TICK[name]
    seen = set()
    for order in orders(2, len(STEPS)):
        lab.fresh(HOURLY, late=3600)
        lab.play(order, (Advance(), other))
        lab.carry_out(Advance())  # one that has passed over a locked row looks again
        types = lab.types("schedule:shop.hourly")
        assert len(lab.rows()) == types.count("fired")
        seen.add(" ".join(types))
    assert seen == allowed


def test_the_end_of_a_run_and_a_tick_leave_no_tick_waiting(lab: Lab) -> None:
    for order in orders(2, len(STEPS)):
        lab.fresh(HOURLY, late=3600)
        lab.carry_out(Advance())
        (run,) = lab.claimed(Claim(worker="w", entries=REPORTS, queues=None, limit=1, lease_seconds=1e6))
        lab.clock.move(3600)
        end = Append(run, 1, (("job_completed", {"result": 1}),))
        lab.play(order, (end, Advance()))
        lab.carry_out(Advance())
        types = lab.types("schedule:shop.hourly")
        assert types in (["declared", "fired", "fired"], ["declared", "fired", "buffered", "fired"])
        assert len(lab.rows()) == 2
