"""Every order of two workers, the reclaimer and a signal over a short job with a tool and a wait (P5, P6).

The workers are small but honest: they claim, look at what is recorded, declare, act, record, and stop when they are
told that they are stale. Between any two commits anything may happen, also that a lease runs out under a worker that
goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import StaleAttempt
from holdfast.machines import Event, JobState, check, run_paths
from holdfast.store import Append, Appended, Claim, Command, Reclaim, Resolve, SendSignal, Submit, rebuilt
from holdfast.store.memory import MemoryStore, _whole
from holdfast.testing import Actor, Outcome, explore

ENTRIES = frozenset({("shop", "pay")})
LEASE = 10.0
ASKS = {"node": "charge", "correlation_key": "holdfast:doubt:charge", "wait_type": "human"}
WAITS = {"node": "shipped", "correlation_key": "shipped", "wait_type": "signal"}


class Scenario:
    """One job that charges and then waits, on the real store."""

    def __init__(self, make_store: Callable[[ManualClock], MemoryStore]) -> None:
        self.clock = ManualClock()
        self.store = make_store(self.clock)
        self.acted: list[str] = []
        self.progress: dict[str, Hashable] = {}
        self.do(Submit(job="a", plugin="shop", entry="pay", args={}, max_attempts=10))

    def actors(self) -> dict[str, Actor]:
        return {
            "ada": self.worker("ada"),
            "bob": self.worker("bob"),
            "reclaimer": self.reclaimer(),
            "signal": self.signal(),
        }

    def do(self, command: Command) -> Any:
        (answer,) = self.store.commit_blocking([command])
        return answer

    def worker(self, name: str) -> Actor:
        for turn in range(2):
            claim = Claim(worker=name, entries=ENTRIES, queues=None, limit=1, lease_seconds=LEASE)
            claimed = self.do(claim)
            self.progress[name] = (turn, tuple(one.job.attempt for one in claimed))
            yield None
            for one in claimed:
                yield from self.attempt(name, one.job.attempt, one.events)

    def attempt(self, name: str, attempt: int, past: list[Event]) -> Actor:
        kinds = [event.type for event in past]
        if "tool_invocation_finished" in kinds:
            shipped = any(event.payload.get("correlation_key") == "shipped" for event in past[-2:])
            self.write(attempt, ("job_completed", {}) if shipped else ("job_waiting", WAITS))
        elif "tool_invocation_started" in kinds:
            self.write(attempt, ("job_waiting", ASKS))  # in doubt: never called blindly
        elif self.write(attempt, ("tool_invocation_started", {"node": "charge"})):
            self.progress[name] = ("declared", attempt)
            yield None
            self.acted.append(name)
            self.progress[name] = ("acted", attempt)
            yield None
            self.write(attempt, ("tool_invocation_finished", {"node": "charge"}), ("job_waiting", WAITS))
        yield None

    def write(self, attempt: int, *events: tuple[str, dict[str, Any]]) -> bool:
        answer = self.do(Append("a", attempt, events))
        assert isinstance(answer, (Appended, StaleAttempt)), answer
        return isinstance(answer, Appended)

    def reclaimer(self) -> Actor:
        self.clock.move(LEASE)
        yield None
        self.do(Reclaim())

    def signal(self) -> Actor:
        self.do(SendSignal("a", "shipped", "dhl", "s1"))
        yield None

    def look(self) -> None:
        row, stream = self.store._jobs["a"], [_whole(*sealed) for sealed in self.store._events["a"]]
        assert check(stream, head=row.head) == []
        assert rebuilt(row, stream) == row
        assert (row.lease is None) == (row.state is not JobState.RUNNING)
        assert len(self.acted) <= 1, f"charged by {self.acted}"
        run_paths(stream)

    def state(self) -> Hashable:
        row = self.store._jobs["a"]
        kinds = tuple((event.type, event.attempt) for event, _ in self.store._events["a"])
        inbox = self.store._inbox("a")
        used = tuple(sorted(inbox._known - {signal.id for signal in inbox.unused()}))
        lease = (row.lease.worker, row.lease.until) if row.lease is not None else None
        return (
            kinds,
            lease,
            used,
            len(inbox._known),
            self.clock.now(),
            tuple(self.acted),
            *self.progress.items(),
        )


def walk(make_store: Callable[[ManualClock], MemoryStore]) -> Outcome:
    current: list[Scenario] = []

    def scenario() -> Mapping[str, Actor]:
        current[:] = [Scenario(make_store)]
        return current[0].actors()

    def look() -> None:
        current[0].look()

    def state() -> Hashable:
        return current[0].state()

    return explore(scenario, look, state=state)


def test_no_order_of_workers_reclaimer_and_signal_charges_twice_or_breaks_a_rule() -> None:
    assert walk(MemoryStore).schedules > 10_000


class Forgetful(MemoryStore):
    """The seeded bug: a claim that does not look whether somebody holds the job."""

    def _claim(self, command: Claim) -> Any:
        for name, job in self._jobs.items():
            if job.state is JobState.RUNNING and job.lease is not None and job.lease.worker != command.worker:
                self._now += LEASE
                decision = self._carry_out(Reclaim())
                self._now -= LEASE
                assert decision.jobs == [name]
        return super()._claim(command)


class Unfenced(MemoryStore):
    """The seeded bug: whoever writes is taken for the newest attempt."""

    def _carry_out(self, command: Command) -> Any:
        if isinstance(command, Append):
            job = self._jobs[command.job]
            if job.state is JobState.RUNNING:
                command = Append(command.job, job.attempt, command.events)
        return super()._carry_out(command)


def test_a_stolen_job_still_charges_once_because_the_declaration_is_seen() -> None:
    """A store that steals jobs under live leases cannot make the tool act twice: the next attempt finds it declared."""
    assert walk(Forgetful).schedules > 10_000


def test_the_walk_notices_a_store_that_does_not_fence() -> None:
    with pytest.raises(AssertionError):
        walk(Unfenced)


def test_the_question_that_an_order_leaves_open_can_be_answered() -> None:
    scenario = Scenario(MemoryStore)
    scenario.do(Claim(worker="ada", entries=ENTRIES, queues=None, limit=1, lease_seconds=LEASE))
    scenario.write(1, ("tool_invocation_started", {"node": "charge"}))
    scenario.clock.move(LEASE)
    scenario.do(Reclaim())
    for _ in scenario.worker("bob"):
        scenario.look()
    assert scenario.do(Resolve("a", "charge", "done", 1)).state is JobState.QUEUED
