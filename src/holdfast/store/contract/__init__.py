"""What a store must do, as tests that anyone can run against a backend of their own. Needs no test framework.

`CONTRACT` lists the clauses; each is an async function that takes a `Lab` and asserts. A backend's own test is::

    for clause in CONTRACT:
        clock = ManualClock()
        asyncio.run(clause(Lab(make_store(clock), clock)))

Time is moved by the clock that the store was made with; no clause sleeps. The names say what is promised.
"""

from holdfast.store.contract import (
    chains,
    children,
    claims,
    leases,
    limits,
    operators,
    plans_and_forks,
    reads,
    retention,
    runs,
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
    "leases",
    "limits",
    "operators",
    "plans_and_forks",
    "reads",
    "retention",
    "runs",
    "waits",
]
