"""What the code receives is what was recorded, live and replayed: values, their types and order, time and chance."""

from __future__ import annotations

import asyncio
import enum
import random as plain_random
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from holdfast import App, now, random, uuid4, wait_for
from scenarios.parts import acting, describe, echoing
from support.scenarios import Gives, Outside, Signal, scenario


@dataclass
class Money:
    cents: int
    currency: str = "EUR"


class Line(msgspec.Struct):
    sku: str
    money: Money


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def _same(app: App, values: Any) -> Any:
    """A job that writes down what it was handed, live, and must be handed the same when it is replayed."""
    echo = echoing(app)

    @app.job
    async def work() -> Any:
        first = await echo(describe(await values()))
        await wait_for("go")
        second = describe(await values.options(key="again")())
        return [first, first == second]

    return work


@scenario(Gives(["Money Money(cents=5, currency='EUR')", True]), moves=[Signal("go")])
def a_dataclass(app: App, _: Outside) -> Any:
    @app.step
    async def values() -> Money:
        return Money(5)

    return _same(app, values)


@scenario(Gives(["Line Line(sku='A', money=Money(cents=5, currency='USD'))", True]), moves=[Signal("go")])
def a_struct_with_a_dataclass(app: App, _: Outside) -> Any:
    @app.step
    async def values() -> Line:
        return Line("A", Money(5, "USD"))

    return _same(app, values)


@scenario(Gives(["tuple(int 1, str 'a')", True]), moves=[Signal("go")])
def a_tuple_by_its_hint(app: App, _: Outside) -> Any:
    @app.step
    async def values() -> tuple[int, str]:
        return 1, "a"

    return _same(app, values)


@scenario(Gives(["{str 'z': int 1, str 'a': {str 'y': int 2, str 'b': int 3}}", True]), moves=[Signal("go")])
def a_dict_keeps_its_order(app: App, _: Outside) -> Any:
    @app.step
    async def values() -> dict[str, Any]:
        return {"z": 1, "a": {"y": 2, "b": 3}}

    return _same(app, values)


@scenario(
    Gives(["list(datetime datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.timezone.utc))", True]),
    moves=[Signal("go")],
)
def a_list_of_times(app: App, _: Outside) -> Any:
    @app.step
    async def values() -> list[datetime]:
        return [datetime(2026, 1, 2, 3, 4, tzinfo=UTC)]

    return _same(app, values)


@scenario(Gives(["date datetime.date(2026, 1, 2)", True]), moves=[Signal("go")])
def a_date(app: App, _: Outside) -> Any:
    @app.step
    async def values() -> date:
        return date(2026, 1, 2)

    return _same(app, values)


@scenario(Gives(["Decimal Decimal('1.10')", True]), moves=[Signal("go")])
def a_decimal(app: App, _: Outside) -> Any:
    @app.step
    async def values() -> Decimal:
        return Decimal("1.10")

    return _same(app, values)


@scenario(Gives(["Colour <Colour.BLUE: 'blue'>", True]), moves=[Signal("go")])
def an_enum(app: App, _: Outside) -> Any:
    @app.step
    async def values() -> Colour:
        return Colour.BLUE

    return _same(app, values)


@scenario(Gives(["bytes b'\\x00\\xff'", True]), moves=[Signal("go")])
def bytes_by_their_hint(app: App, _: Outside) -> Any:
    @app.step
    async def values() -> bytes:
        return b"\x00\xff"

    return _same(app, values)


@scenario(
    Gives(["list(NoneType None, bool True, float 1.0, int 9007199254740993, str 'é\\u2028')", True]),
    moves=[Signal("go")],
)
def plain_values(app: App, _: Outside) -> Any:
    @app.step
    async def values() -> Any:
        return [None, True, 1.0, 9007199254740993, "é\u2028"]

    return _same(app, values)


@scenario(Gives(["list(int 1)", "list(int 1, int 2)", "list(int 1)"]), moves=[Signal("go")])
def a_step_that_changes_its_argument(app: App, _: Outside) -> Any:
    @app.step
    async def appends(items: list[int]) -> str:
        items.append(2)
        return describe(items)

    @app.job
    async def work() -> Any:
        mine = [1]
        before = describe(mine)
        theirs = await appends(mine)
        after = describe(mine)
        await wait_for("go")
        return [before, theirs, after]

    return work


@scenario(Gives([[1, 2], [1]]), moves=[Signal("go")])
def a_result_that_the_job_changes(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def work() -> Any:
        first = await echo([1])
        first.append(2)
        await wait_for("go")
        return [first, await echo.options(key="again")([1])]

    return work


@scenario(Gives([[1], [1, 2]]), moves=[Signal("go")])
def an_argument_that_is_changed_after_the_call(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def work() -> Any:
        items = [1]
        task = asyncio.create_task(echo(items))
        await asyncio.sleep(0)
        items.append(2)
        found = await task
        await wait_for("go")
        return [found, items]

    return work


@scenario(Gives(["list(int 1, str 'x')", "list(int 1, str 'x')"]), moves=[Signal("go")])
def a_result_shares_nothing_with_the_step(app: App, _: Outside) -> Any:
    kept: list[Any] = []

    @app.step
    async def shares() -> Any:
        kept.append([1, "x"])
        return kept[-1]

    @app.job
    async def work() -> Any:
        mine = await shares()
        if kept:
            kept[-1].append("changed later")
        said = describe(mine)
        await wait_for("go")
        return [said, describe(mine)]

    return work


@scenario(Gives("the same"), moves=[Signal("go"), Signal("on")])
def time_and_chance_are_recorded(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def work() -> Any:
        mine = [now(), random(), uuid4(), now(), random(), uuid4()]
        first = await echo(mine)
        await wait_for("go")
        await wait_for("on")
        return "the same" if mine == first and len(set(map(str, mine))) >= 5 else [mine, first]

    return work


@scenario(Gives("the same"), moves=[Signal("b"), Signal("a")])
def chance_in_branches(app: App, _: Outside) -> Any:
    echo = echoing(app)

    async def branch(key: str) -> bool:
        mine = uuid4()
        await wait_for(key)
        more = uuid4()
        return bool([mine, more] == await echo([mine, more]))

    @app.job
    async def work() -> Any:
        return "the same" if all(await asyncio.gather(branch("a"), branch("b"))) else "another"

    return work


@scenario(Gives(["random", True]), moves=[Signal("go")])
def chance_of_a_step_is_recorded(app: App, _: Outside) -> Any:
    @app.step
    async def rolls() -> float:
        return plain_random.random()

    echo = echoing(app)

    @app.job
    async def work() -> Any:
        mine = await rolls()
        first = await echo(mine)
        await wait_for("go")
        return ["random", mine == first]

    return work


@scenario(
    Gives(["Money Money(cents=7, currency='EUR')", "act(7)"]),
    acts=[("act", 7)],
    args=[{"cents": 7}],
    moves=[Signal("go")],
)
def a_dataclass_as_an_argument_of_the_job(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work(money: Money) -> Any:
        said = await act(money.cents)
        await wait_for("go")
        return [describe(money), said]

    return work


@scenario(
    Gives(["{str 'z': list(int 1), str 'a': NoneType None}", True]),
    moves=[Signal("x", {"z": [1], "a": None}), Signal("go")],
)
def a_payload_keeps_its_order(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def work() -> Any:
        payload = await wait_for("x")
        first = await echo(describe(payload))
        await wait_for("go")
        return [first, first == describe(payload)]

    return work


@scenario(Gives(["{str 'z': list(int 1), str 'a': int 2}", True]), moves=[Signal("go")])
def a_childs_result_keeps_its_order(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def child() -> Any:
        return {"z": (1,), "a": 2}

    @app.job
    async def work() -> Any:
        found = await child()
        first = await echo(describe(found))
        await wait_for("go")
        return [first, first == describe(found)]

    return work
