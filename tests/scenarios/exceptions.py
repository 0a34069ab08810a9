"""Whatever is raised, wherever: the job fails, and nothing else. Other jobs of the worker go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast import App, wait_for
from scenarios.parts import echoing
from support.scenarios import BACKENDS, START, Fails, Gives, Outside, Signal, Start, scenario


class Odd(BaseException):
    """Neither an error nor one of Python's own signals."""


class Unreadable(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")


def _raises(make: Callable[[], BaseException]) -> None:
    raise make()


RAISED: dict[str, Callable[[], BaseException]] = {
    "keyboard_interrupt": lambda: KeyboardInterrupt("raised by the scenario"),
    "system_exit": lambda: SystemExit("raised by the scenario"),
    "cancelled_error": asyncio.CancelledError,
    "stop_iteration": lambda: StopIteration(1),
    "stop_async_iteration": StopAsyncIteration,
    "generator_exit": GeneratorExit,
    "exception_group": lambda: ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
    "base_exception_group": lambda: BaseExceptionGroup("several", [Odd("a"), KeyError("b")]),
    "custom_base_exception": lambda: Odd("odd"),
    "unreadable_error": Unreadable,
}


def _bystander(app: App) -> None:
    """Another job on the same worker, which waits while the first one fails, and must end as usual."""
    echo = echoing(app)

    @app.job
    async def bystander() -> Any:
        return await echo("unharmed")


def _in_job(app: App, make: Callable[[], BaseException]) -> Any:
    @app.job
    async def work() -> None:
        _raises(make)

    return work


def _in_branch(app: App, make: Callable[[], BaseException]) -> Any:
    echo = echoing(app, "before")

    async def branch() -> None:
        await echo(1)
        _raises(make)

    @app.job
    async def work() -> None:
        await asyncio.gather(branch(), wait_for("never"))

    return work


def _in_step(app: App, make: Callable[[], BaseException]) -> Any:
    @app.step
    async def fails() -> None:
        _raises(make)

    @app.job
    async def work() -> None:
        await fails()

    return work


def _in_tool(app: App, make: Callable[[], BaseException]) -> Any:
    @app.tool(on_doubt="retry")
    async def fails() -> None:
        _raises(make)

    @app.job
    async def work() -> None:
        await fails()

    return work


def _in_plain_step(app: App, make: Callable[[], BaseException]) -> Any:
    @app.step
    def fails() -> None:
        _raises(make)

    @app.job
    async def work() -> None:
        await fails()  # type: ignore[misc]

    return work


def _in_plain_job(app: App, make: Callable[[], BaseException]) -> Any:
    @app.job
    def work() -> None:
        _raises(make)

    return work


PLACES = {
    "job": _in_job,
    "branch": _in_branch,
    "step": _in_step,
    "tool": _in_tool,
    "plain_step": _in_plain_step,
    "plain_job": _in_plain_job,
}


def _register(what: str, place: str) -> None:
    def build(app: App, _: Outside) -> Any:
        _bystander(app)
        return PLACES[place](app, RAISED[what])

    build.__name__ = f"{what}_in_{place}"
    stores = BACKENDS if what == "custom_base_exception" else ("memory",)  # what is raised does not concern the store
    moves, others = [Start("bystander", at=START)], {"bystander": ["succeeded"]}
    scenario(Fails(), moves=moves, others=others, stores=stores)(build)


for _what in RAISED:
    for _place in PLACES:
        _register(_what, _place)


@scenario(Fails("KeyError", "sku"))
def an_error_of_the_job_is_named(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        empty: dict[str, Any] = {}
        return empty["sku"]

    return work


@scenario(Fails("ValueError", "outer"))
def an_error_raised_from_another(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        try:
            _raises(lambda: KeyError("inner"))
        except KeyError as error:
            raise ValueError("outer") from error

    return work


@scenario(Gives(["RuntimeError", "StopIteration"]), moves=[Signal("go")])
def stop_iteration_in_a_coroutine_of_the_job(app: App, _: Outside) -> Any:
    async def stops() -> None:
        raise StopIteration(1)

    @app.job
    async def work() -> Any:
        try:
            await stops()
        except RuntimeError as error:
            said = [type(error).__name__, type(error.__cause__).__name__]
        await wait_for("go")
        return said

    return work


@scenario(Gives("caught"), moves=[Signal("go")])
def a_base_exception_that_the_job_catches(app: App, _: Outside) -> Any:
    async def branch() -> None:
        raise Odd("odd")

    @app.job
    async def work() -> Any:
        try:
            await asyncio.gather(branch())
        except Odd:
            await wait_for("go")
            return "caught"

    return work


@scenario(Fails("SystemExit"))
def exit_in_a_task_that_is_awaited_later(app: App, _: Outside) -> Any:
    echo = echoing(app)

    async def leaves() -> None:
        raise SystemExit("from a task")

    @app.job
    async def work() -> Any:
        task = asyncio.create_task(leaves())
        await echo("meanwhile")
        await task

    return work
