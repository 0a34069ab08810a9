"""The store contract: tests for any backend, without a test framework.

`CONTRACT` lists the clauses. Each is an async function that takes a `Lab` and asserts. A backend's own test is::

    for clause in CONTRACT:
        clock = ManualClock()
        asyncio.run(clause(Lab(make_store(clock), clock)))

The clauses move time by the store's clock; none sleeps. Their names state the guarantees.
"""

from holdfast.store.contract import (
    chains,
    children,
    claims,
    deploys,
    leases,
    limits,
    operators,
    plans_and_forks,
    reads,
    request_keys,
    retention,
    runs,
    schedules,
    waits,
)
from holdfast.store.contract.harness import CONTRACT, Clause, Lab

__all__ = [
    "CONTRACT",
    "Clause",
    "Lab",
    "chains",
    "children",
    "claims",
    "deploys",
    "leases",
    "limits",
    "operators",
    "plans_and_forks",
    "reads",
    "request_keys",
    "retention",
    "runs",
    "schedules",
    "waits",
]
