"""Random job programs: branches, races, timeouts, locks, queues, threads, waits; and what their code must see again.

A program writes down everything that its code sees, in order. When an attempt ends, because the job waits or because
its worker was killed, the next attempt must see the same again, up to the last outcome that the stream has. Steps and
tools return their own node, and signals carry a text of their own, so that a line can be found in the stream.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any, cast

from holdfast import App, StepFailed, StoreUnavailable, WaitTimeout, external_key, sleep, uuid4, wait_for
from holdfast.store import Append, Command, Store
from holdfast.store.memory import MemoryStore
from support.scenarios import (
    KINDS,
    START,
    Cancel,
    Canceled,
    DyingStore,
    Move,
    Outside,
    Process,
    Scenario,
    Signal,
    Story,
    run_worker,
)

__all__ = ["CUT", "program", "tried"]

CUT = "cut"  # after an event, in the middle of a commit: the stream has any legal length
DEEP = 60
DECLARATIONS = {"job_created", "job_leased", "job_running", "job_waiting", "node_started", "tool_invocation_started"}

Tree = tuple[Any, ...]
Line = tuple[str, str]  # where in the program, and what was seen


def drawn(rng: random.Random, budget: int, keys: list[str], depth: int = 0) -> Tree:
    """Draw a program of about `budget` leaves; `keys` gets the signals that it waits for."""
    if budget <= 1 or depth > 5:
        return _leaf(rng, keys)
    kind = rng.choice(
        [
            "seq",
            "seq",
            "gather",
            "gather",
            "exceptions",
            "group",
            "first",
            "completed",
            "timeout",
            "cancel",
            "lock",
            "deep",
        ]
    )
    if kind in {"timeout", "cancel", "lock", "deep"}:
        return kind, rng.randrange(3), drawn(rng, budget - 1, keys, depth + 1)
    parts, left = [], budget
    while left > 0:
        share = rng.randrange(1, max(2, left // 2 + 1))
        parts.append(drawn(rng, share, keys, depth + 1))
        left -= share
    return (kind, *parts)


def _leaf(rng: random.Random, keys: list[str]) -> Tree:
    kind = rng.choice(
        [
            "step",
            "step",
            "slow",
            "tool",
            "tool",
            "fail",
            "wait",
            "wait",
            "look",
            "sleep",
            "native",
            "thread",
            "put",
            "get",
            "value",
        ]
    )
    if kind in {"wait", "look"}:
        keys.append(f"k{len(keys)}")
        return kind, keys[-1], rng.choice([None, None, 0.004]) if kind == "wait" else 0
    return kind, rng.randrange(2)  # few arguments: equal calls in branches are the rule


class Code:
    """One attempt's code, and what it sees."""

    def __init__(self, app: App, outside: Outside) -> None:
        self.attempts: list[list[Line]] = []
        self.tokens: set[str] = set()  # what can be found in the stream
        self._outside = outside

        @app.step
        async def step(n: int) -> str:
            del n
            return external_key().split(":", 2)[2]

        @app.step
        async def slow(n: int) -> str:
            await asyncio.sleep(0.001 * n + 0.001)
            return external_key().split(":", 2)[2]

        @app.step
        async def fail(n: int) -> None:
            raise ValueError(str(n))

        @app.tool(reconcile=outside.reconcile)
        async def tool(n: int) -> str:
            outside.act("tool", n)
            return str(outside.remember(external_key().split(":", 2)[2]))

        self._calls: dict[str, Any] = {"step": step, "slow": slow, "fail": fail, "tool": tool}

    def begin(self) -> None:
        self.lines: list[Line] = []
        self.attempts.append(self.lines)
        self._locks = [asyncio.Lock() for _ in range(3)]
        self._holders: list[tuple[int, str]] = []  # locks that are held, and by which branch
        self._queue: asyncio.Queue[str] = asyncio.Queue()

    def saw(self, where: str, what: str) -> None:
        self.lines.append((where, what))
        self._outside.mark(f"line {len(self.lines)}")

    def got(self, where: str, token: Any) -> None:
        self.tokens.add(str(token))
        self.saw(where, str(token))

    async def run(self, tree: Tree, where: str) -> None:
        """Run a part of a program."""
        kind, *parts = tree
        try:
            await getattr(self, f"_{kind}", self._call)(where, kind, parts)
        except asyncio.CancelledError:
            self.saw(where, "cancelled")
            raise
        self.saw(where, "ended")

    # Leaves

    async def _call(self, where: str, kind: str, parts: list[Any]) -> None:
        try:
            self.got(where, await self._calls[kind](parts[0]))
        except StepFailed as failure:
            self.got(where, failure.node)
            if where.count(".") % 2:
                raise  # through whatever is around it

    async def _wait(self, where: str, _: str, parts: list[Any]) -> None:
        try:
            self.got(where, await wait_for(parts[0], timeout=parts[1]))
        except WaitTimeout:
            self.saw(where, "timed out")

    _look = _wait

    async def _sleep(self, where: str, _: str, parts: list[Any]) -> None:
        await sleep(0.002 + 0.002 * parts[0])
        self.saw(where, "slept")

    async def _native(self, where: str, _: str, parts: list[Any]) -> None:
        await asyncio.sleep(0.002 * parts[0])
        self.saw(where, "slept natively")

    async def _thread(self, where: str, _: str, parts: list[Any]) -> None:
        await asyncio.to_thread(time.sleep, 0.001 + 0.001 * parts[0])
        self.saw(where, "threaded")

    async def _put(self, where: str, _: str, parts: list[Any]) -> None:
        await self._queue.put(f"{where} {parts[0]}")

    async def _get(self, where: str, _: str, __: list[Any]) -> None:
        try:
            async with asyncio.timeout(0.004):
                self.saw(where, f"got {await self._queue.get()}")
        except TimeoutError:
            self.saw(where, "got nothing")

    async def _value(self, where: str, _: str, __: list[Any]) -> None:
        self.got(where, uuid4())

    # Branches

    async def _seq(self, where: str, _: str, parts: list[Any]) -> None:
        for number, part in enumerate(parts):
            await self.run(part, f"{where}.{number}")

    def _tasks(self, where: str, parts: list[Any]) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.run(part, f"{where}.{number}")) for number, part in enumerate(parts)]

    async def _gather(self, where: str, _: str, parts: list[Any]) -> None:
        tasks = self._tasks(where, parts)
        try:
            await asyncio.gather(*tasks)
        except StepFailed:
            self.saw(where, "one failed")
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _exceptions(self, where: str, _: str, parts: list[Any]) -> None:
        found = await asyncio.gather(*self._tasks(where, parts), return_exceptions=True)
        self.saw(where, " ".join(type(one).__name__ for one in found))

    async def _group(self, where: str, _: str, parts: list[Any]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for number, part in enumerate(parts):
                    group.create_task(self.run(part, f"{where}.{number}"))
        except* StepFailed as failures:
            self.saw(where, f"{len(failures.exceptions)} failed")

    async def _first(self, where: str, _: str, parts: list[Any]) -> None:
        tasks = self._tasks(where, parts)
        try:
            done, _pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.saw(where, " ".join(str(number) for number, task in enumerate(tasks) if task in done))
        finally:
            found = await _ended(tasks)
        self.saw(where, " ".join(type(one).__name__ for one in found))

    async def _completed(self, where: str, _: str, parts: list[Any]) -> None:
        tasks = self._tasks(where, parts)
        try:
            for ended in asyncio.as_completed(tasks):
                try:
                    await ended
                except StepFailed:
                    self.saw(where, "one failed")
                else:
                    self.saw(where, "one ended")
        finally:
            await _ended(tasks)

    async def _timeout(self, where: str, _: str, parts: list[Any]) -> None:
        limit = asyncio.timeout(0.003 * parts[0] + 0.001)
        try:
            async with limit:
                await self.run(parts[1], f"{where}.0")
        except TimeoutError:
            self.saw(where, "too late")
        except asyncio.CancelledError:
            if not limit.expired():
                raise
            # Before Python 3.13 a TaskGroup whose child fails at its end leaves its parent's task marked as cancelled,
            # and then a timeout around it does not raise TimeoutError.
            self.saw(where, "too late, as a cancellation")

    async def _cancel(self, where: str, _: str, parts: list[Any]) -> None:
        task = asyncio.create_task(self.run(parts[1], f"{where}.0"))
        try:
            for _turn in range(parts[0]):
                await asyncio.sleep(0)
        finally:
            (found,) = await _ended([task])
        self.saw(where, type(found).__name__)

    async def _lock(self, where: str, _: str, parts: list[Any]) -> None:
        # In one order only, and never twice: a program that locks itself out ends as it must, and shows nothing.
        if any(number >= parts[0] and where.startswith(f"{branch}.") for number, branch in self._holders):
            await self.run(parts[1], f"{where}.0")
            return
        async with self._locks[parts[0]]:
            self._holders.append((parts[0], where))
            try:
                await self.run(parts[1], f"{where}.0")
            finally:
                self._holders.remove((parts[0], where))

    async def _deep(self, where: str, _: str, parts: list[Any]) -> None:
        async def deeper(levels: int) -> None:
            await (asyncio.gather(deeper(levels - 1)) if levels else self.run(parts[1], f"{where}.0"))

        await deeper(DEEP if parts[0] else 3)


async def _ended(tasks: list[asyncio.Task[None]]) -> list[Any]:
    """Cancel what is left, and give how each has ended."""
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def program(seed: int, leaves: int = 14) -> Scenario:
    """Make a scenario of a random program, with its signals at random times, and for some a cancel."""
    rng = random.Random(seed)
    keys: list[str] = []
    tree = ("seq", drawn(rng, leaves, keys), _leaf(rng, keys), drawn(rng, leaves // 2, keys))
    signals: list[Move] = [
        Signal(key, f"signal {key}", key, at=rng.choice([None, START, f"line {rng.randrange(1, 30)}"])) for key in keys
    ]
    rng.shuffle(signals)
    signals.sort(key=lambda move: move.at != START)  # those that come early come first
    if rng.random() < 0.1:
        signals.insert(rng.randrange(len(signals) + 1), Cancel("by chance"))

    def build(app: App, outside: Outside) -> Any:
        code = outside.code = Code(app, outside)  # type: ignore[attr-defined]

        @app.job
        async def work() -> None:
            code.begin()
            try:
                await code.run(tree, "p")
            except StepFailed:
                code.saw("p", "failed")

        return work

    return Scenario(
        name=f"program_{seed}", build=build, ends=Canceled(), acts=(), moves=tuple(signals), args=(), others={},
        check=None, deadline=None, in_order=False, crashes=True, refusable=False, doubts=False, stores=("memory",),
    )  # fmt: skip


class CuttingStore(DyingStore):
    """Dies when so many events were appended, in the middle of a commit if need be: every legal prefix is reached."""

    async def commit(self, batch: Sequence[Command]) -> list[Any]:
        if self.killed.is_set():
            raise StoreUnavailable("this process was killed")
        taken: list[Command] = []
        for command in batch:
            if isinstance(command, Append):
                if len(command.events) >= self.left and not command.uses:
                    cut = self.left
                    while cut < len(command.events) and command.events[cut][0] == "node_finished":
                        cut += 1  # it belongs to the event before it (E2)
                    taken.append(Append(command.job, command.attempt, command.events[:cut], (), command.parent))
                    self.left = 0
                    break
                self.left -= len(command.events)
            taken.append(command)
        if self.left > 0:
            return await self._store.commit(taken)
        await self._store.commit(taken)
        self._kill()
        self.killed.set()
        raise StoreUnavailable("this process was killed")


async def _texts(store: Store, job: str) -> set[str]:
    """The texts of all outcomes in a stream."""
    found: set[str] = set()

    def look(value: Any) -> None:
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, dict):
            for part in value.values():
                look(part)
        elif isinstance(value, list):
            for part in value:
                look(part)

    for event in await store.events(job):
        if event.type not in DECLARATIONS:
            look(event.payload)
    return found


async def tried(seed: int, at: int | None = None, kind: str = KINDS[0]) -> bool:
    """Run a program, killed at a commit or cut after an event if one is named; whether it got so far.

    Raises:
        AssertionError: an attempt saw something else than the one before it, a tool acted twice, or the run did not
            end.
    """
    story = Story(program(seed), MemoryStore())
    await story.start()
    died, left, before = False, at, cast(list[Line], [])
    while True:
        process = Process(story, die_at=left, kind=kind, dying=CuttingStore if kind == CUT else DyingStore)
        dead = await run_worker(story, process)
        code: Code = process.outside.code  # type: ignore[attr-defined]
        for lines in code.attempts:
            killed = dead and lines is code.attempts[-1]
            replayed = min(len(lines), len(before)) if killed else len(before)  # a kill may come in the middle of it
            assert lines[:replayed] == before[:replayed], _difference(before, lines)
            seen = len(lines)
            if killed:  # up to the last outcome that the stream has
                kept = code.tokens & await _texts(story.store, story.run)
                seen = max((place + 1 for place, (_, what) in enumerate(lines) if what in kept), default=0)
            before = lines[: max(seen, len(before))]
        if dead:
            died, left = True, None
            continue
        if process.dying is not None:
            left = process.dying.left
        if not await story.next_move() and await story.rests():  # a move at a mark may come when the worker has left
            break
    record = await story.record()
    assert record.finished_at is not None, (await story.client.app.aexplain(story.run)).explanation
    assert record.status in {"succeeded", "canceled"}, f"{record.status}: {record.error}"
    assert not story.world.repeated, f"these acts were repeated: {story.world.repeated}"
    assert died or not story.world.doubtful, f"in doubt: {story.world.doubtful}"
    assert await story.client.app.averify() == {}
    return died


def _difference(before: list[Line], lines: list[Line]) -> str:
    place = next((n for n, pair in enumerate(zip(before, lines, strict=False)) if pair[0] != pair[1]), len(lines))
    return f"line {place} of {len(before)}: first {before[place : place + 3]}, then {lines[place : place + 3]}"
