"""Sessions of a database that take turns: one command each, step by step, in an order that the test chooses."""

from __future__ import annotations

import itertools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg

from holdfast.store import Appended, Claims, Command, Job, JobIds, Leases, SignalResult, Submitted, rebuilt
from holdfast.store.postgres.connection import back_off
from holdfast.store.postgres.schema import migrate
from holdfast.store.postgres.statements import Statements
from holdfast.store.postgres.store import _CONFLICTS, TRIES
from holdfast.store.postgres.transaction import Transaction
from holdfast.store.sql.columns import JOB_COLUMNS, job_of
from holdfast.store.sql.event_rows import EVENT_READ, events_of
from holdfast.store.sql.run_sql import OF_A_JOB
from support.postgres import ServerClock, fresh_schema, server

STEPS = ("read", "decide", "commit")


class Session:
    """A connection and a thread of its own, in which one command is carried out step by step."""

    def __init__(self, schema: str) -> None:
        self._connection = psycopg.connect(server().url, autocommit=True, prepare_threshold=None)
        self._connection.execute("SET deadlock_timeout = '20ms'")
        self._thread = ThreadPoolExecutor(1)
        self._sql = Statements(schema)
        self.pid = self._connection.info.backend_pid
        self.isolation = self._connection.execute("SHOW transaction_isolation").fetchone()
        self.running: list[Future[None]] = []
        self.gave_way = 0  # how often it had to begin again

    def take(self, command: Command | tuple[Command, ...]) -> None:
        """Have a command to carry out, or a batch; the last answer is the one that counts."""
        self._batch = command if isinstance(command, tuple) else (command,)
        self.answer: Any = None
        self.running = []

    def begin(self, step: str) -> None:
        self.running.append(self._thread.submit(getattr(self, step)))

    def read(self, *, looking_first: bool = False) -> None:
        self._connection.execute("BEGIN")
        self._transaction = Transaction(self._connection, self._sql, looking_first=looking_first)
        self._transaction.prepare(self._batch)

    def decide(self) -> None:
        for attempt in range(TRIES):  # as the store does: again, from the beginning
            try:
                if attempt:
                    self.read(looking_first=True)
                self.answer = [self._transaction._answer(command) for command in self._batch][-1]
                self._transaction.flush()
            except _CONFLICTS:
                self._connection.execute("ROLLBACK")
                self.gave_way += 1
                back_off(attempt)
            else:
                return
        raise AssertionError("others stood in its way all the time")

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()


class Lab:
    """Three sessions on one schema, somebody who prepares and looks, and the time."""

    def __init__(self) -> None:
        schema = fresh_schema()
        self.look = psycopg.connect(server().url, autocommit=True, prepare_threshold=None)
        migrate(self.look, schema)
        self._schema = schema
        self.clock = ServerClock(schema)
        self.clock.take_over()
        self.sessions = [Session(schema) for _ in range(3)]

    def fresh(self, *commands: Command, late: float = 0.0) -> None:
        for table in ("events", "jobs", "workers", "limits", "schedules", "schedule_ends", *OF_A_JOB):
            self.look.execute(f"DELETE FROM {self._schema}.{table}")
        for command in commands:
            self.carry_out(command)
        if late:
            self.clock.move(late)

    def carry_out(self, command: Command) -> Any:
        """Execute a command while no session does anything; return its answer."""
        self.look.execute("BEGIN")
        (answer,) = Transaction(self.look, Statements(self._schema), looking_first=False).carry_out([command])
        self.look.execute("COMMIT")
        assert not isinstance(answer, Exception), answer
        return answer

    def claimed(self, claim: Command) -> list[str]:
        """Execute a claim; return the ids of the jobs."""
        return [one.job.id for one in self.carry_out(claim)]

    def types(self, stream: str) -> list[str]:
        """List the types of the events of a stream."""
        sql = f"SELECT {EVENT_READ} FROM {self._schema}.events WHERE job = %s ORDER BY seq"
        return [event.type for row in self.look.execute(sql, (stream,)).fetchall() for event in events_of(row)]

    def play(
        self,
        order: tuple[int, ...],
        commands: tuple[Command | tuple[Command, ...], ...],
        steps: tuple[str, ...] = STEPS,
    ) -> list[Any]:
        """Carry out the commands with their steps in this order; what was answered."""
        left = [iter(steps) for _ in commands]
        for session, command in zip(self.sessions, commands, strict=False):
            session.take(command)
        for number in order:
            for step in next(left[number]).split("+"):
                self.sessions[number].begin(step)
            self.settle()
        for session in self.sessions[: len(commands)]:
            for one in session.running:
                one.result(timeout=60)
        return [said(session.answer) for session in self.sessions[: len(commands)]]

    def settle(self) -> None:
        """Until every session has done its steps, or waits for another one."""
        for session in self.sessions:
            while not all(step.done() for step in session.running):
                row = self.look.execute("SELECT cardinality(pg_blocking_pids(%s))", (session.pid,)).fetchone()
                if row is not None and row[0]:
                    break

    def rows(self) -> list[str]:
        """Every job, as it will be read tomorrow; what is there must be what its stream makes."""
        found = []
        for row in self.look.execute(f"SELECT {JOB_COLUMNS} FROM {self._schema}.jobs ORDER BY id").fetchall():
            job = job_of(row)
            sql = f"SELECT {EVENT_READ} FROM {self._schema}.events WHERE job = %s ORDER BY seq"
            stream = [event for row in self.look.execute(sql, (job.id,)).fetchall() for event in events_of(row)]
            assert rebuilt(job, stream) == job
            types = " ".join(event.type.removeprefix("job_") for event in stream)
            found.append(f"{job.id} {job.state} {job.attempt}{self._lease(job)}: {types}")
        return found

    def _lease(self, job: Job) -> str:
        if job.lease is None:
            return ""
        return f" {job.lease.worker}" if self.clock.now() < job.lease.until else f" ({job.lease.worker})"

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        self.look.close()


def said(answer: Any) -> str:
    """An answer in a word."""
    match answer:
        case Appended():
            return f"{answer.state}"
        case JobIds():
            return "+".join(answer.jobs) or "none"
        case SignalResult():
            return answer.outcome
        case Leases():
            return "lost" if answer.lost else "kept"
        case Submitted():
            return f"found {answer.job}" if answer.existing else f"made {answer.job}"
        case Job():
            return f"{answer.state}"
        case Claims():
            return "+".join(one.job.id for one in answer) or "none"
        case _:
            return type(answer).__name__


def orders(sessions: int, steps: int) -> list[tuple[int, ...]]:
    return sorted(set(itertools.permutations([number for number in range(sessions) for _ in range(steps)])))
