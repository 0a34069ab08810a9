"""The jobs of a simulation: programs that are data, what they do to the world outside, and what they must return.

A program is a list of operations, such as ``["act", 7]``. Each operation has one result. `mismatch` compares a result
with what the program means, and shares no code with the engine.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast import (
    App,
    Backoff,
    Config,
    Done,
    NotDone,
    Permanent,
    Plan,
    RunCanceled,
    StepFailed,
    WaitTimeout,
    changed,
    external_key,
    progress,
    random,
    sleep,
    wait_for,
)
from holdfast.authoring.conductor import conductor
from holdfast.authoring.functions import JobFunction
from holdfast.engine.job_attempt import Attempt

Op = list[Any]
PLUGIN = "sim"
BUILDS = ("1", "2")
STEP_TIMEOUT = 2.0
CLEAN_UP_SECONDS = 0.5  # that a cancelled function takes; less than the grace time
TOOLS = ("act", "act_again", "act_checked", "slow_act")  # operations that act on the world


class Act(NamedTuple):
    """One act of a tool on the world."""

    at: float
    tool: str
    key: str
    number: int
    process: int


class World(Protocol):
    """The world outside, as tools see it."""

    acts: list[Act]

    def act(self, tool: str, number: int, key: str) -> str: ...
    def has_acted(self, key: str) -> bool: ...
    def seen(self, what: str) -> int: ...
    def runs(self, job: str, attempt: int, what: str) -> None: ...
    async def at_work(self, seconds: float) -> None: ...


class Here:
    """The simulation under way. There is one at a time, because job functions find it here."""

    world: World


here = Here()


def _steps(app: App) -> list[Any]:
    @app.step
    async def double(n: int) -> int:
        return 2 * n

    @app.step(retries=3, backoff=Backoff(retries=3, first_seconds=0.5))
    async def flaky(n: int, fails: int) -> int:
        if here.world.seen(f"flaky {external_key()}") <= fails:
            raise ValueError("not yet")
        return 2 * n

    @app.step
    async def slow(n: int, seconds: float) -> int:
        await here.world.at_work(seconds)
        return 2 * n

    @app.step(timeout=STEP_TIMEOUT, retries=1, backoff=Backoff(retries=1, first_seconds=0.1))
    async def limited(n: int, seconds: float) -> int:
        await here.world.at_work(seconds)
        return 2 * n

    return [double, flaky, slow, limited]


def _tools(app: App) -> list[Any]:
    @app.tool
    async def act(n: int) -> str:
        return here.world.act("act", n, external_key())

    @app.tool(on_doubt="retry")
    async def act_again(n: int) -> str:
        return here.world.act("act_again", n, external_key())

    async def reconcile(n: int, external_key: str) -> Done | NotDone:
        return Done(f"acted {n}") if here.world.has_acted(external_key) else NotDone()

    @app.tool(reconcile=reconcile)
    async def act_checked(n: int) -> str:
        return here.world.act("act_checked", n, external_key())

    @app.tool
    async def slow_act(n: int, seconds: float) -> str:
        await here.world.at_work(seconds * 0.75)
        said = here.world.act("slow_act", n, external_key())
        await here.world.at_work(seconds * 0.25)
        return said

    return [act, act_again, act_checked, slow_act]


class Code:
    """The code of one build."""

    def __init__(self, build: str, config: Config) -> None:
        self.app = app = App(PLUGIN, config=config, build=build)
        self._is_new = build != BUILDS[0]
        self._calls: dict[str, Any] = {call.name: call for call in [*_steps(app), *_tools(app)]}

        @app.job
        async def program(ops: list[Any]) -> list[Any]:
            await self._new_code()
            return await self._run(ops)

        @app.job(retries=5, backoff=Backoff(retries=5, first_seconds=0.5))
        async def stubborn(ops: list[Any]) -> list[Any]:
            await self._new_code()
            return await self._run(ops)

        @app.job(pin=True)
        async def pinned(ops: list[Any]) -> list[Any]:
            first = self._calls["slow"](1, 0.01) if self._is_new else self._calls["double"](1)
            await first  # two builds that do not fit each other
            return await self._run(ops)

        @app.job
        async def child(ops: list[Any]) -> list[Any]:
            return await self._run(ops)

        @app.job
        async def tick() -> str:
            return str(await self._calls["act"](0))

        self._start_child: Any = child
        app.plan("graph", Plan.from_dict({"name": "graph", "nodes": [{"id": "a", "kind": "sleep", "duration": 0}]}))

    async def _new_code(self) -> None:
        """Make a call that the second build has added, and that runs of the first one must not see."""
        if self._is_new and changed("new"):
            await self._calls["double"](0)

    async def _run(self, ops: Sequence[Op]) -> list[Any]:
        return [await self._one(*op) for op in ops]

    async def _one(self, kind: str, *args: Any) -> Any:
        attempt = conductor.get()
        assert isinstance(attempt, Attempt), "the code of a job runs in an attempt"
        here.world.runs(attempt.job, attempt.attempt, kind)
        if kind not in self._calls:
            return await getattr(self, f"_{kind}")(*args)
        try:
            return await self._calls[kind](*args)
        except StepFailed:
            return "failed"

    async def _wait(self, key: str, timeout: float | None) -> Any:  # noqa: ASYNC109 - kept over restarts
        try:
            return ["got", await wait_for(key, timeout=timeout)]
        except WaitTimeout:
            return "timed out"

    async def _sleep(self, seconds: float) -> str:
        await sleep(seconds)
        return "slept"

    async def _child(self, ops: list[Op]) -> Any:
        try:
            return await self._start_child(ops)
        except (StepFailed, RunCanceled):
            return "failed"

    async def _gather(self, parts: list[list[Op]]) -> list[Any]:
        return list(await asyncio.gather(*map(self._run, parts)))

    async def _race(self, parts: list[list[Op]]) -> Any:
        return await _race([self._run(part) for part in parts])

    async def _value(self) -> Any:
        return ["random", random()]

    async def _report(self, stage: str) -> str:
        progress(0.5, stage=stage)
        return "reported"

    async def _stumble(self, number: int, times: int) -> str:
        """Raise in the job's own code, so that the job is retried."""
        if here.world.seen(f"stumble {number}") <= times:
            raise ValueError("stumbled")
        return "stood"

    async def _raise(self) -> None:
        raise Permanent("on purpose")


async def _race(parts: Sequence[Any]) -> Any:
    """Return the number and the result of the branch that ends first; the others are cancelled."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    first = next(number for number, task in enumerate(tasks) if task in done)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return [first, tasks[first].result()]


CONFIG = Config(
    url="memory:", lease_seconds=6.0, grace_seconds=1.0, shutdown_seconds=2.0, inline_retry_seconds=1.0,
    park_seconds=5.0, payload_bytes_max=100_000,
)  # fmt: skip
_apps: dict[str, App] = {}


def app_of(build: str) -> App:
    """Return the app of a build. It is made once: it holds no state of a simulation."""
    if build not in _apps:
        _apps[build] = Code(build, CONFIG).app
    return _apps[build]


def entries_of(build: str) -> Mapping[tuple[str, str], JobFunction[..., Any]]:
    """Return the jobs of a build."""
    return app_of(build).entries


# What programs mean


def keys_of(ops: Sequence[Op]) -> list[tuple[str, float | None]]:
    """Return the keys that a program waits for, with the timeouts, without those of its children."""
    found: list[tuple[str, float | None]] = []
    for kind, *args in ops:
        if kind == "wait":
            found.append((args[0], args[1]))
        elif kind in {"gather", "race"}:
            found += [key for part in args[0] for key in keys_of(part)]
    return found


def fails(ops: Sequence[Op]) -> bool:
    """Return whether a program raises."""
    return any(kind == "raise" for kind, *_ in ops)


def mismatch(ops: Sequence[Op], results: Any, sent: Mapping[str, Sequence[Any]]) -> str | None:
    """Return in what way the results of a program are wrong; None if they are right.

    Args:
        ops: the program.
        results: what it returned.
        sent: the payloads that were sent to it, by key.
    """
    if not isinstance(results, list) or len(results) != len(ops):
        return f"{results!r} is not one result for each of {ops!r}"
    for op, result in zip(ops, results, strict=True):
        if (problem := _wrong(op, result, sent)) is not None:
            return problem
    return None


def _wrong(op: Op, result: Any, sent: Mapping[str, Sequence[Any]]) -> str | None:
    kind, *args = op
    if kind == "child" and not fails(args[0]):
        return mismatch(args[0], result, sent)
    if kind == "gather":
        wrong = [mismatch(part, each, sent) for part, each in zip(args[0], result, strict=True)]
        return next((problem for problem in wrong if problem is not None), None)
    if kind == "race":
        return mismatch(args[0][result[0]], result[1], sent)
    return None if _is_good(kind, args, result, sent) else f"{op!r} returned {result!r}"


def _is_good(kind: str, args: list[Any], result: Any, sent: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether the result of an operation without parts is right."""
    match kind:
        case "double" | "flaky" | "slow":
            return bool(result == 2 * args[0])
        case "limited":
            # The verdict judges a timeout by the events.
            return bool(result == "failed" or (args[1] < STEP_TIMEOUT and result == 2 * args[0]))
        case "act" | "act_again" | "act_checked" | "slow_act":
            return bool(result == f"acted {args[0]}")
        case "wait":
            came = isinstance(result, list) and result[0] == "got" and result[1] in sent.get(args[0], ())
            return came or (result == "timed out" and args[1] is not None)
        case "value":
            return bool(result[0] == "random" and 0 <= result[1] < 1)
        case _:
            return bool(result == {"sleep": "slept", "child": "failed", "report": "reported", "stumble": "stood"}[kind])


def acts_of(ops: Sequence[Op]) -> Counter[int]:
    """Return the numbers of the tools that a program calls whatever happens, each once."""
    found: Counter[int] = Counter()
    for kind, *args in ops:
        if kind in TOOLS:
            found[args[0]] += 1
        elif kind == "gather":
            for part in args[0]:
                found += acts_of(part)
        elif kind == "child" and not fails(args[0]):
            found += acts_of(args[0])
    return found
