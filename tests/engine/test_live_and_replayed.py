"""What the code receives is what was recorded, from the first time on: values, types, order of keys (SPEC E13)."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest
from hypothesis import Phase
from hypothesis import strategies as st

import holdfast
from holdfast import App, RunHandle, StepFailed, export, progress, wait_for
from holdfast.authoring.signature import Signature
from holdfast.client.maintenance.move_store import move
from holdfast.errors import IdempotencyConflict
from holdfast.server import asgi
from support.exactness import exactly
from support.postgres import fresh_url, server
from support.stories import drain, play, quick
from support.timeless import given, settings
from support.web import serving

MIXED_UP = {"pear": 9, "apple": 1, "nested": [{"z": 1, "a": {"y": 2, "b": 3}}]}


async def signalled(run: RunHandle, app: App, key: str, payload: Any) -> None:
    await run.asignal(key, payload)
    await drain(app)


# The order of keys, wherever a dict goes


def test_a_job_that_waits_decides_by_the_order_of_keys_as_one_that_does_not(app: App) -> None:
    @app.step
    async def ranking() -> dict[str, int]:
        return {"pear": 9, "apple": 1}

    @app.step
    async def shout(names: list[str]) -> str:
        return "!".join(names)

    @app.job
    async def winner(waits: bool) -> list[str]:
        ranked = await ranking()
        if waits:
            await wait_for("go")
        return [next(iter(ranked)), await shout(list(ranked))]

    async def story() -> None:
        straight, waiting = await winner.astart(waits=False), await winner.astart(waits=True)
        await drain(app)
        await signalled(waiting, app, "go", None)
        assert await straight.aresult() == await waiting.aresult() == ["pear", "pear!apple"]
        assert await app.averify() == {}

    play(story())


def test_every_dict_keeps_the_order_of_its_keys_live_and_replayed(app: App) -> None:
    rounds: list[dict[str, Any]] = []

    @app.step
    async def give() -> Any:
        return MIXED_UP

    @app.tool
    async def act(given: dict[str, Any]) -> dict[str, Any]:
        return {"z": given, **given}

    @app.job
    async def child(given: Any) -> Any:
        return {"b": given, "a": 1}

    @app.job
    async def parent(given: dict[str, Any]) -> Any:
        progress(0.5, metrics=MIXED_UP)
        export(MIXED_UP, "mixed up")
        seen: dict[str, Any] = {"argument": given, "step": await give(), "tool": await act(given)}
        seen["child"] = await child(MIXED_UP)
        seen["signal"] = await wait_for("go")
        rounds.append(seen)
        await wait_for("on")
        return MIXED_UP

    attributes = {"tenant": "acme", "area": "north"}

    async def story() -> None:
        run = await parent.options(attributes=attributes, key="k").astart(MIXED_UP)
        await drain(app)
        assert exactly((await run.arecord()).metrics) == exactly(MIXED_UP)
        await signalled(run, app, "go", MIXED_UP)
        await signalled(run, app, "on", None)
        assert len(rounds) == 2
        for seen in rounds:
            assert exactly(seen["argument"]) == exactly(seen["step"]) == exactly(seen["signal"]) == exactly(MIXED_UP)
            assert exactly(seen["tool"]) == exactly({"z": MIXED_UP, **MIXED_UP})
            assert exactly(seen["child"]) == exactly({"b": MIXED_UP, "a": 1})
        assert exactly(await run.aresult()) == exactly(MIXED_UP)
        record = await run.arecord()
        assert list(record.attributes) == ["tenant", "area"]
        (exported,) = await app.aexports(run.id)
        assert exactly(exported.value) == exactly(MIXED_UP)
        content = b"".join([piece async for piece in app.acontent(run.id, 1)])
        assert exactly(json.loads(content)) == exactly(MIXED_UP)
        created, *_ = await app.aevents(run.id)
        assert exactly(created.payload["args"]) == exactly({"given": MIXED_UP})
        turned = dict(reversed(MIXED_UP.items()))
        assert (await parent.options(key="k").astart(turned)).id == run.id, "the order is no part of the identity"
        with pytest.raises(IdempotencyConflict):
            await parent.options(key="k").astart({**MIXED_UP, "pear": 8})
        assert await app.averify() == {}

    play(story())


def test_an_operators_answer_keeps_the_order_of_its_keys(app: App) -> None:
    seen: list[Any] = []

    @app.tool(timeout=0.01)
    async def act() -> Any:
        await asyncio.Event().wait()

    @app.job
    async def work() -> Any:
        seen.append(await act())
        seen.append(await wait_for("go"))
        return seen

    async def story() -> None:
        run = await work.astart()
        await drain(app)
        (asked,) = [event for event in await run.aevents() if event.type == "job_waiting"]
        await app.aresolve(run.id, asked.payload["node"], done=MIXED_UP, actor="ana")
        await drain(app)
        await signalled(run, app, "go", None)
        assert exactly(seen) == exactly([MIXED_UP, MIXED_UP, None])

    play(story())


def answering(url: str) -> tuple[App, Any]:
    app = App("shop", config=quick(url))

    @app.step
    async def ranking() -> Any:
        return MIXED_UP

    @app.job
    async def work(given: Any) -> Any:
        ranked = await ranking()
        return [ranked, given, await wait_for("go")]

    return app, work


def test_a_store_that_moves_keeps_the_order_of_keys(tmp_path: Path) -> None:
    old, new = f"sqlite:///{tmp_path / 'jobs.db'}", fresh_url()
    app, work = answering(old)
    run = work.start(MIXED_UP)
    app.worker().run(until_idle=True)
    app.close()
    move(old, new)
    app, _ = answering(new)
    app.signal(run.id, "go", MIXED_UP)
    app.worker().run(until_idle=True)
    assert exactly(app.outcome(run.id)) == exactly([MIXED_UP] * 3)
    assert app.verify() == {}
    app.close()


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_a_remote_client_gives_and_gets_the_order_of_keys(backend: str, tmp_path: Path) -> None:
    app, _ = answering(fresh_url() if backend == "postgres" else f"sqlite:///{tmp_path / 'jobs.db'}")
    with serving(asgi(app)) as url:
        client = holdfast.connect(url)
        run = client.entry("work").options(attributes={"tenant": "acme", "area": "north"}).start(given=MIXED_UP)
        client.signal(run.id, "go", MIXED_UP)
        app.worker().run(until_idle=True)
        assert exactly(run.result()) == exactly([MIXED_UP] * 3)
        assert list(run.record().attributes) == ["tenant", "area"]
        (committed,) = [event for event in client.events(run.id) if event.type == "command_committed"]
        assert exactly(committed.payload["result"]) == exactly(MIXED_UP)
        client.close()
    app.close()


def test_a_job_started_in_the_callers_transaction_keeps_the_order_of_keys() -> None:
    app, work = answering(fresh_url())
    app.verify()  # opened, and so made
    attributes = {"tenant": "acme", "area": "north"}
    numbers = {"z": -0.0, "e": 1e22, "d": 1.0, "a": 10**30, "t": "\x00é"}
    turned = dict(reversed(numbers.items()))
    with psycopg.connect(server().url) as connection:
        chosen = work.options(attributes=attributes, key="k")
        run = chosen.start(numbers, connection=connection)
        assert chosen.start(turned, connection=connection).id == run.id
        connection.commit()
    assert chosen.start(turned).id == run.id, "the order is no part of the identity"
    (created,) = run.events()
    assert exactly(created.payload["args"]) == exactly({"given": numbers})
    assert list(created.payload["attributes"]) == list(run.record().attributes) == ["tenant", "area"]
    app.signal(run.id, "go", None)
    app.worker().run(until_idle=True)
    assert exactly(run.result()[1]) == exactly(numbers)
    assert app.verify() == {}
    app.close()


# Any value, any hint


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(str):
    __slots__ = ()


class Count(int):
    pass


@dataclasses.dataclass(frozen=True)
class Money:
    currency: str
    cents: int
    note: Any = None


class Order(msgspec.Struct):
    sku: str
    parts: tuple[int, ...] = ()
    more: Any = None


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
ODD = st.one_of(
    st.just("\ud800"), st.floats(), st.binary(max_size=5), st.decimals(), st.uuids(), st.datetimes(), st.dates(),
    st.timedeltas(), st.sampled_from(list(Colour)), st.sampled_from(list(Level)), st.builds(Word, TEXTS),
    st.builds(Count, st.integers()), st.complex_numbers(), st.just(object()), st.just(...), st.just(int),
)  # fmt: skip
HASHABLE = st.none() | st.booleans() | st.integers(-5, 5) | TEXTS | st.sampled_from([*Colour, *Level])


def mixed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(TEXTS, inner, max_size=4),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.sets(HASHABLE, max_size=4),
        st.builds(Money, TEXTS, st.integers(), inner),
        st.builds(Order, TEXTS, st.lists(st.integers(), max_size=3).map(tuple), inner),
    )


PLAIN = st.none() | st.booleans() | NUMBERS | TEXTS
LOOSE = st.recursive(PLAIN, mixed, max_leaves=10)  # what JSON may hold, perhaps in another form
WILD = st.recursive(PLAIN | ODD, mixed, max_leaves=10)
KEPT = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=10
)

HINTS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "loose": (Any, LOOSE),
    "wild": (Any, WILD),
    "list": (list[Any], st.lists(LOOSE, max_size=4)),
    "tuple": (tuple[Any, ...], st.lists(LOOSE, max_size=4).map(tuple)),
    "pair": (tuple[int, str], st.tuples(st.integers(), TEXTS)),
    "dict": (dict[str, Any], st.dictionaries(TEXTS, LOOSE, max_size=4)),
    "numbered": (dict[int, tuple[str, ...]], st.dictionaries(st.integers(), st.lists(TEXTS).map(tuple), max_size=4)),
    "coloured": (dict[Colour, float], st.dictionaries(st.sampled_from(list(Colour)), NUMBERS, max_size=2)),
    "set": (set[str], st.sets(TEXTS, max_size=5)),
    "money": (Money | None, st.none() | st.builds(Money, TEXTS, st.integers(), LOOSE)),
    "order": (list[Order], st.lists(st.builds(Order, TEXTS, st.just((1, 2)), LOOSE), max_size=3)),
    "time": (datetime, st.datetimes(timezones=st.just(UTC)) | st.datetimes()),
    "decimal": (Decimal, st.decimals(allow_nan=False)),
    "uuid": (UUID, st.uuids()),
    "bytes": (bytes | None, st.binary(max_size=8) | st.none()),
    "level": (Level, st.sampled_from(list(Level))),
    "float": (float, NUMBERS),
    "wrong": (dict[str, int], WILD),
}
CASES = st.sampled_from(list(HINTS)).flatmap(lambda name: HINTS[name][1].map(lambda value: (name, value)))


class Witnessed:
    """An app with a step for each hint, which gives or takes a value that is passed by the test, beside the store."""

    def __init__(self, url: str) -> None:
        self.app = App("shop", config=quick(url))
        self.values: list[Any] = []
        self.rounds: list[list[Any]] = []
        self.taken: dict[int, Any] = {}
        self.givers = {name: self._giver(name, hint) for name, (hint, _) in HINTS.items()}
        self.takers = {name: self._taker(name, hint) for name, (hint, _) in HINTS.items()}

        @self.app.job
        async def work(names: list[str]) -> None:
            seen: list[Any] = []
            self.rounds.append(seen)
            for number, name in enumerate(names):
                seen.append(await self._tried(self.givers[name](number)))
                seen.append(await self._tried(self.takers[name](number, self.values[number])))
            seen.append(exactly(await wait_for("first")))
            await wait_for("second")

        self.work = work

    def _giver(self, name: str, hint: Any) -> Any:
        async def give(number: int) -> Any:
            return self.values[number]

        give.__annotations__["return"] = hint
        return self.app.step(name=f"give_{name}")(give)

    def _taker(self, name: str, hint: Any) -> Any:
        async def take(number: int, given: Any) -> None:
            self.taken[number] = exactly(given)

        take.__annotations__["given"] = hint
        return self.app.step(name=f"take_{name}")(take)

    async def _tried(self, call: Any) -> Any:
        try:
            got = await call
        except StepFailed as error:
            return type(error), error.args, error.node, str(error)
        except holdfast.InvalidArguments as error:
            return type(error), str(error)
        told = exactly(got)
        _spoil(got)
        return told

    async def story(self, cases: list[tuple[str, Any]], payload: Any) -> None:
        self.values, self.rounds[:] = [value for _, value in cases], []
        self.taken.clear()
        names = [name for name, _ in cases]
        run: RunHandle = await self.work.astart(names)
        await drain(self.app)
        await signalled(run, self.app, "first", payload)
        await signalled(run, self.app, "second", None)
        await run.aresult()
        live, again, last = self.rounds
        assert live == again[:-1]
        assert again == last
        assert last[-1] == exactly(payload)
        for event in await run.aevents():
            if event.type == "node_started" and event.payload["name"].startswith("take_"):
                self._retried(event.payload)
        assert await self.app.averify() == {}

    def _retried(self, payload: dict[str, Any]) -> None:
        """A try in another process reads the arguments from the store: it sees what the first one saw."""
        signature: Signature = self.takers[payload["name"].removeprefix("take_")].signature
        read = signature.decode(json.loads(msgspec.json.encode(payload["args"])))
        assert exactly(read["given"]) == self.taken[read["number"]]


def _spoil(value: Any) -> None:
    """Change what was got, however deep, as code may: nothing that is recorded changes."""
    if isinstance(value, dict):
        for item in list(value.values()):
            _spoil(item)
        value["spoiled"] = True
    elif isinstance(value, list):
        for item in value:
            _spoil(item)
        value.append("spoiled")
    elif isinstance(value, (Order, Money)):
        _spoil(value.more if isinstance(value, Order) else value.note)


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres"])
def witnessed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witnessed]:
    places = {"memory": lambda: "memory:", "postgres": fresh_url}
    file = tmp_path_factory.mktemp("values") / "jobs.db"
    made = Witnessed(places.get(request.param, lambda: f"sqlite:///{file}")())
    yield made
    made.app.close()


@settings(max_examples=25, deadline=None, phases=[Phase.generate, Phase.shrink])
@given(cases=st.lists(CASES, min_size=1, max_size=12), payload=KEPT)
def test_any_value_is_live_what_it_is_replayed(
    witnessed: Witnessed, cases: list[tuple[str, Any]], payload: Any
) -> None:
    play(witnessed.story(cases, payload))
