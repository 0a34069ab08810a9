"""A batch of commands in a SQL store leaves nothing behind in memory."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from holdfast.store import Append, Claim, SendSignal, Submit
from holdfast.store.sql.batch import Batch
from support.clocked import opened


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_a_batch_is_freed_when_it_is_committed_and_not_by_the_garbage_collector(backend: str, tmp_path: Path) -> None:
    async def commits() -> int:
        store, _ = opened(backend, tmp_path)
        entries = frozenset({("shop", "checkout")})
        await store.commit([Submit(job="a", plugin="shop", entry="checkout", args={})])
        await store.commit([Claim(worker="w", entries=entries, queues=None, limit=1, lease_seconds=15.0)])
        await store.commit([Append("a", 1, (("node_started", {"node": "x"}),))])
        await store.commit([SendSignal("a", "k", 1, "s1")])
        await store.close()
        return sum(isinstance(thing, Batch) for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(commits()) == 0
    finally:
        gc.enable()
