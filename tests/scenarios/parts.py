"""Steps and tools that many scenarios share."""

from __future__ import annotations

from typing import Any

from holdfast import App
from support.scenarios import Outside

__all__ = ["acting", "describe", "echoing", "failing", "held", "seats"]


def acting(app: App, outside: Outside, name: str = "act") -> Any:
    """Declare a tool that acts once, and returns ``name(what)``."""

    @app.tool(name=name, reconcile=outside.reconcile)
    async def act(what: Any) -> str:
        return outside.act(name, what)

    return act


def echoing(app: App, name: str = "echo") -> Any:
    """Declare a step that returns its argument."""

    @app.step(name=name)
    async def echo(value: Any) -> Any:
        return value

    return echo


def failing(app: App, name: str = "fail") -> Any:
    """Declare a step that fails for good with the message given."""

    @app.step(name=name)
    async def fail(message: str) -> None:
        raise ValueError(message)

    return fail


def held(app: App, outside: Outside, name: str = "hold") -> Any:
    """Declare a step that ends when the job's code has reached a mark: what ends first does not depend on time."""

    @app.step(name=name)
    async def hold(mark: str) -> str:
        await outside.reached(mark)
        return "held"

    return hold


def seats(app: App, outside: Outside) -> Any:
    """Declare a tool without arguments whose results count up: equal calls with different results."""

    @app.tool(reconcile=outside.reconcile)
    async def seat() -> int:
        return outside.act_numbered("seat")

    return seat


def describe(value: Any) -> str:
    """Say exactly what a value is: its types all the way down, and the order of its keys."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{describe(key)}: {describe(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(describe, value))})"
    return f"{type(value).__name__} {value!r}"
