"""The few moves that tests of the PostgreSQL store itself need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.store import Claim, Submit, WorkerCard
from holdfast.store.postgres.store import PostgresStore
from support.postgres import fresh_schema, server
from support.stories import play

ENTRIES = frozenset({("shop", "checkout")})


def with_store(work: Callable[[PostgresStore], Awaitable[Any]], schema: str | None = None) -> Any:
    """Open a store in a schema of its own, or in this one, do something with it, and close it."""

    async def run() -> Any:
        store = PostgresStore(server().url, schema or fresh_schema())
        try:
            return await work(store)
        finally:
            await store.close()

    return play(run())


def submit(job: str, **options: Any) -> Submit:
    return Submit(job=job, **{"plugin": "shop", "entry": "checkout", "args": {}, **options})


def claim(worker: str = "w") -> Claim:
    return Claim(worker=worker, entries=ENTRIES, queues=None, limit=1, lease_seconds=60)


def card(name: str) -> WorkerCard:
    return WorkerCard(name, "host", 1, 1, None, ("shop.checkout",), 60.0)
