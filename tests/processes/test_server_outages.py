"""The server ends connections, or stops at once and starts again, while worker processes work.

Nothing acknowledged is lost, no tool acts twice, and nobody has to start a worker anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import App, NotInDoubt, StoreUnavailable
from holdfast.machines import TERMINAL_RUN_STATUSES
from support.postgres import Server, fresh_schema, server
from support.scripts import load
from support.stories import play, quick, until

TARGET = Path(__file__).with_name("killed_shop.py")
RESULTS = {"charge": "receipt", "mail": "sent"}

Harm = Callable[["Shop"], Awaitable[None]]


class Shop:
    """Two worker processes, and somebody who starts orders, sends their signals and answers their questions."""

    def __init__(self, url: str, folder: Path) -> None:
        self.app = App("shop", config=quick(url))
        self.app.entries.update(load(TARGET).app.entries)
        self.witness = folder / "witness"
        self.witness.touch()
        self.acknowledged: dict[int, str] = {}  # orders, and their runs
        self.ended: set[int] = set()
        self.asked = 0
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        environment |= {"WITNESS": str(self.witness), "HOLDFAST_URL": url, "HOLDFAST_LEASE_SECONDS": "2"}
        self.workers = [
            subprocess.Popen([sys.executable, "-m", "holdfast", "worker", str(TARGET)], env=environment)
            for _ in range(2)
        ]

    async def is_open(self) -> bool:
        """Whether both workers are there: one that finds no server when it starts says so and ends."""
        return len(await self.app.aworkers()) == len(self.workers)

    async def serve(self, closing: asyncio.Event) -> None:
        """Start order after order until the shop closes; go on until all have ended."""
        checkout = self.app.entries["shop", "checkout"]
        while not closing.is_set() or len(self.ended) < len(self.acknowledged):
            if not closing.is_set() and len(self.acknowledged) - len(self.ended) < 20:
                number = len(self.acknowledged)
                started = await insist(lambda: self.app.astart(checkout.options(key=f"o{number}"), number))  # noqa: B023 - called at once
                self.acknowledged[number] = started.id
            for number, run in list(self.acknowledged.items()):
                if number not in self.ended:
                    await self._attend_to(number, run)

    async def _attend_to(self, number: int, run: str) -> None:
        await insist(lambda: self.app.asignal(run, "shipped", "dhl", id="s"))
        record = await insist(lambda: self.app.aget(run))
        if record.status in TERMINAL_RUN_STATUSES:
            assert record.status == "succeeded", (run, record.error)
            self.ended.add(number)
        for row in await insist(lambda: self.app.store().jobs(state="waiting")):  # type: ignore[arg-type]
            key = str(row.wait.correlation_key) if row.wait is not None else ""
            if key.startswith("holdfast:doubt:"):
                await insist(lambda: self._answer(row.id, key.removeprefix("holdfast:doubt:")))  # noqa: B023 - as above

    async def _answer(self, job: str, node: str) -> None:
        """As somebody would who looked: has the witness a line?"""
        (started, *_) = [event for event in await self.app.store().events(job) if event.payload.get("node") == node]
        tool, order = node.split(":", maxsplit=1)[0], started.payload["args"]["order"]
        acted = f"{tool} {order}" in self.witness.read_text().splitlines()
        self.asked += 1
        with contextlib.suppress(NotInDoubt):  # an answer before this one had counted
            await self.app.aresolve(job, node, **({"done": RESULTS[tool]} if acted else {"not_done": True}))

    async def look(self) -> None:
        """All is well."""
        assert [worker.poll() for worker in self.workers] == [None, None], "they have worked all the time"
        assert await self.app.averify() == {}
        counted = Counter(self.witness.read_text().splitlines())
        orders = range(len(self.acknowledged))
        assert counted == {f"{tool} {order}": 1 for tool in RESULTS for order in orders}

    async def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        await self.app.aclose()


async def insist(work: Callable[[], Awaitable[Any]]) -> Any:
    """Ask again while the store is away; everything that is asked for here may be asked twice."""
    while True:
        try:
            return await work()
        except StoreUnavailable:
            await asyncio.sleep(0.02)


async def ordeal(url: str, folder: Path, harms: list[Harm]) -> Shop:
    """Do harm after harm; before each, something was started and something was ended since the last."""
    shop = Shop(url, folder)
    await until(shop.is_open)
    closing = asyncio.Event()
    serving = asyncio.create_task(shop.serve(closing))
    try:
        for harm in harms:
            begun, ended = len(shop.acknowledged), len(shop.ended)
            while not serving.done() and not (len(shop.acknowledged) > begun and len(shop.ended) > ended):  # noqa: ASYNC110 - see below
                await asyncio.sleep(0.005)  # what is waited for happens in other processes
            await harm(shop)
        closing.set()
        await serving
        await shop.look()
    finally:
        serving.cancel()
        await shop.close()
    return shop


# A worker's connections by what they do: the listener has a session lock, a writer's last word is the end of a
# transaction, a reader's is a question.
KINDS = {
    "listener": "pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)",
    "writer": "(query IN ('BEGIN', 'COMMIT', 'ROLLBACK') OR state LIKE 'idle in transaction%%')",
    "reader": "state = 'idle' AND query LIKE 'SELECT%%' AND query NOT LIKE '%%FOR UPDATE%%'"
    " AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')",
}


@pytest.mark.parametrize("kind", KINDS)
def test_connections_that_are_ended_under_load_lose_nothing(kind: str, tmp_path: Path) -> None:
    name = f"k{fresh_schema()[-12:]}"
    url = f"{server().url}?schema={fresh_schema()}&application_name={name}"
    ended: list[int] = []

    async def harm(shop: Shop) -> None:
        del shop
        sql = (
            "WITH them AS MATERIALIZED (SELECT pid FROM pg_stat_activity WHERE application_name = %s"
            f" AND {KINDS[kind]}) SELECT pid FROM them WHERE pg_terminate_backend(pid)"
        )
        found: list[Any] = []
        async with await psycopg.AsyncConnection.connect(server().url, autocommit=True) as connection:
            while not found:  # they may be about to come back
                found = await (await connection.execute(sql, (name,))).fetchall()
            ended.extend(pid for (pid,) in found)
            going = "SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)"
            while await (await connection.execute(going, (ended,))).fetchall():  # told to end, and about to
                pass

    play(ordeal(url, tmp_path, [harm] * 15), seconds=600)
    assert len(ended) >= 15
    assert len(set(ended)) == len(ended), "each was a new one: they connect again"


@pytest.fixture
def own_server() -> Iterator[Server]:
    made = Server()
    made.start(fsync="on", synchronous_commit="on")
    yield made
    made.remove()


def test_a_server_that_stops_at_once_and_starts_again_twenty_times_loses_nothing(
    own_server: Server, tmp_path: Path
) -> None:
    async def harm(shop: Shop) -> None:
        del shop
        await asyncio.to_thread(own_server.stop, how=signal.SIGQUIT)
        await asyncio.to_thread(own_server.start, fsync="on", synchronous_commit="on")

    shop = play(ordeal(own_server.url, tmp_path, [harm] * 20), seconds=600)
    assert len(shop.ended) >= 20
