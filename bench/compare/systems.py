"""The systems that are compared, each with what a reader must know of its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Database = Literal["sqlite", "postgres", "own"]


@dataclass(frozen=True)
class System:
    """One row of the tables."""

    key: str
    name: str
    peer: str  # module in peers/, and requirements/<peer>.txt
    database: Database
    package: str  # the distribution whose version is shown
    jobs: tuple[str, ...] = ()  # jobs of ten steps that it has: steps, tools
    settings: str = ""
    notes: str = ""

    @property
    def ours(self) -> bool:
        """Whether it is Holdfast."""
        return self.peer == "holdfast"


SYSTEMS = (
    System(
        "holdfast-sqlite", "Holdfast, SQLite", "holdfast", "sqlite", "holdfast-jobs", ("steps", "tools"),
        "defaults: WAL with `synchronous=FULL`; workers with the settings of `holdfast worker`; 512 jobs at once in "
        "the drain",
        "full history of every job",
    ),
    System(
        "holdfast-postgres", "Holdfast, PostgreSQL", "holdfast", "postgres", "holdfast-jobs", ("steps", "tools"),
        "defaults; workers with the settings of `holdfast worker`; 512 jobs at once in the drain",
        "full history of every job",
    ),
    System(
        "dbos", "DBOS", "dbos", "postgres", "dbos", ("steps",),
        "async workflows and steps; the queue and results polled every 10 ms instead of every second; "
        "LISTEN/NOTIFY on; 128 workflows at once in the drain",
        "workflows with steps run directly in the worker, without the queue; bulk: one transaction for 5,000 starts",
    ),
    System(
        "absurd", "Absurd", "absurd", "postgres", "absurd-sdk", ("steps",),
        "async client, up to 8 of them, so 8 connections, in a worker process; the plain client for 1 job at a time; "
        "polled every 5 ms instead of 250",
        "bulk: one transaction for 5,000 starts; waiting for a result polls every 50 ms, which has no setting",
    ),
    System(
        "restate", "Restate", "restate", "own", "restate-sdk", ("steps",),
        "one node with its own store, flushed as it is by default; 4 partitions instead of 24; Python service on "
        "Hypercorn; telemetry off",
        "jobs start when they are sent, so ten-step jobs and drains count from the first call; a signal is an "
        "awakeable, its fastest way; its server is a process of its own, which takes part of the machine",
    ),
    System(
        "procrastinate", "Procrastinate", "procrastinate", "postgres", "procrastinate", (),
        "pool of 20 connections, LISTEN/NOTIFY on; 32 jobs at once in the drain",
        "a queue: no steps, results or signals",
    ),
    System(
        "pgqueuer", "pgqueuer", "pgqueuer", "postgres", "pgqueuer", (),
        "asyncpg, uvloop, batches of 100, 200 jobs at once in the drain, all tables logged",
        "a queue: no steps, results or signals; a job that has ended leaves one line in a log table",
    ),
    System(
        "saq", "SAQ", "saq", "postgres", "saq", (),
        "PostgreSQL queue, LISTEN/NOTIFY on; 100 jobs at once in the drain",
        "a queue: no steps or signals; bulk: 20 tasks that start jobs one by one",
    ),
    System(
        "huey", "huey", "huey", "sqlite", "huey", (),
        "SQLite with `fsync`; polled every 5 to 10 ms; 4 threads",
        "a queue: no steps or signals; a task that has ended leaves nothing, and one under way is lost with its worker",
    ),
)  # fmt: skip

BY_KEY = {system.key: system for system in SYSTEMS}
