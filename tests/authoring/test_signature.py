"""Arguments and results are exactly what the store holds, live and replayed, for every value (E13)."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import subprocess
import sys
import types
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest

from holdfast.authoring.plain_values import as_recorded
from holdfast.authoring.signature import EXTENDS, Signature, checked_payload, fingerprint, payload_for_server
from holdfast.errors import InvalidArguments, InvalidResult
from support.as_replayed import as_replayed
from support.exactness import exactly


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not what it is"


class Number(int):
    def __int__(self) -> int:
        return 0


class Fraction(float):
    pass


class Pair(NamedTuple):
    left: int
    right: tuple[int, ...]


@dataclasses.dataclass(frozen=True, order=True)
class Money:
    currency: str
    cents: int


@dataclasses.dataclass
class Bag:
    things: Any


class Order(msgspec.Struct):
    sku: str
    extras: tuple[int, ...] = ()


class Row(TypedDict):
    b: list[Any]
    a: Any


Loose = namedtuple("Loose", "x y")  # noqa: PYI024 - one without hints is the point


def returning(hint: Any) -> Signature:
    def give() -> Any: ...

    give.__annotations__["return"] = hint
    return Signature(give, "give")


def taking(hint: Any) -> Signature:
    def take(given: Any) -> None: ...

    take.__annotations__ = {"given": hint}
    return Signature(take, "take")


def replayed(plain: Any) -> Any:
    """What another process reads back: through the bytes, by another library."""
    return json.loads(msgspec.json.encode(plain))


UNHINTED: list[Any] = [
    ((1, (2, [3, (4,)])), [1, [2, [3, [4]]]]),
    ([("a", 1), ("b", 2)], [["a", 1], ["b", 2]]),
    (Pair(1, (2,)), [1, [2]]),
    (Loose(1, (2,)), [1, [2]]),
    ({"z": 1, "a": {"y": (1,), "b": 2}}, {"z": 1, "a": {"y": [1], "b": 2}}),
    ({2: "b", 10: "a"}, {"2": "b", "10": "a"}),
    ({Level.HIGH: 1, Colour.RED: 2}, {"3": 1, "red": 2}),
    ({1.5: "x", UUID(int=7): "u"}, {"1.5": "x", str(UUID(int=7)): "u"}),
    ({Text("q"): 1}, {"q": 1}),
    (Text("plain"), "plain"),
    (Number(7), 7),
    (Fraction(1.5), 1.5),
    ([Text("a"), Number(1), Fraction(2.0)], ["a", 1, 2.0]),
    (Colour.RED, "red"),
    (Level.HIGH, 3),
    (Money("EUR", 5), {"currency": "EUR", "cents": 5}),
    (Order("A1", (1, 2)), {"sku": "A1", "extras": [1, 2]}),
    (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    (Counter("bba"), {"b": 2, "a": 1}),
    (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
    (date(2026, 1, 2), "2026-01-02"),
    (timedelta(seconds=90), "PT90S"),
    (Decimal("1.10"), "1.10"),
    (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (b"\x00\xff", "AP8="),
    ({3}, [3]),
    (1.0, 1.0),
    (-0.0, -0.0),
    (True, True),
    (1, 1),
    (2**63, 2**63),
    (-(2**64), -(2**64)),
    pytest.param(10**400, 10**400, id="long"),
    ("ä\u2028\x00", "ä\u2028\x00"),
    (None, None),
    ([None, {"n": None}], [None, {"n": None}]),
]


@pytest.mark.parametrize(("value", "expected"), UNHINTED)
def test_a_value_without_a_hint_is_live_what_its_json_is(value: Any, expected: Any) -> None:
    signature = returning(Any)
    plain = signature.encode_outcome(value)
    assert exactly(plain) == exactly(expected)
    assert exactly(plain) == exactly(replayed(plain))
    assert exactly(signature.decode_result(plain)) == exactly(signature.decode_result(replayed(plain)))
    assert exactly(taking(Any).encode((value,), {})) == exactly({"given": expected})
    assert (
        exactly(checked_payload("a signal", value))
        == exactly(payload_for_server("a signal", value))
        == exactly(expected)
    )


HINTED: list[tuple[Any, Any, Any]] = [
    (tuple[int, ...], (1, 2), (1, 2)),
    (list[Any], [(1, (2,))], [[1, [2]]]),
    (list[tuple[int, Any]], [(1, (2,))], [(1, [2])]),
    (dict[int, str], {10: "a", 9: "b"}, {10: "a", 9: "b"}),
    (dict[str, Any], {"b": (1,), "a": 2}, {"b": [1], "a": 2}),
    (dict[Colour, int], {Colour.RED: 1}, {Colour.RED: 1}),
    (set[str], {"b", "a"}, {"a", "b"}),
    (frozenset[int], frozenset({2, 1}), frozenset({1, 2})),
    (Pair, Pair(1, (2,)), Pair(1, (2,))),
    (Money, Money("EUR", 5), Money("EUR", 5)),
    (Order | None, Order("A1", (1,)), Order("A1", (1,))),
    (Row, {"b": [(1,)], "a": (2,)}, {"b": [[1]], "a": [2]}),
    (datetime, datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
    (Decimal, Decimal("1.10"), Decimal("1.10")),
    (UUID, UUID(int=7), UUID(int=7)),
    (bytes, b"\x00", b"\x00"),
    (Level, Level.HIGH, Level.HIGH),
    (float, 1, 1.0),
    (int | str, Number(3), 3),
    (str, Text("plain"), "plain"),
]


@pytest.mark.parametrize(("hint", "value", "expected"), HINTED)
def test_a_value_with_a_hint_is_live_what_the_hint_makes_of_its_json(hint: Any, value: Any, expected: Any) -> None:
    signature, taker = returning(hint), taking(hint)
    plain = signature.encode_outcome(value)
    assert exactly(plain) == exactly(replayed(plain))
    for kept in (plain, replayed(plain)):
        assert exactly(signature.decode_result(kept)) == exactly(expected)
    given = taker.encode((value,), {})
    for kept in (given, replayed(given)):
        assert exactly(taker.typed(kept)) == exactly(taker.decode(kept)) == exactly({"given": expected})


@pytest.mark.parametrize(
    "value",
    [float("nan"), [1.0, float("inf")], {"x": -float("inf")}, "\ud800", {"\udfff": 1}, {None: 1}, {True: 1},
     {(1, 2): 3}, {1: "a", "1": "b"}, 1j, object(), range(3), types.MappingProxyType({}), iter(()),
     msgspec.Raw(b'{"a":1, "a":2}'), msgspec.Raw(b"nul"), msgspec.UNSET, pytest.param(10**5000, id="long")],
)  # fmt: skip
def test_what_json_cannot_hold_exactly_is_refused(value: Any) -> None:
    for wrapped in (value, [value], {"deep": (value,)}):
        with pytest.raises(InvalidResult):
            returning(Any).encode_outcome(wrapped)
        with pytest.raises(InvalidArguments):
            taking(Any).encode((wrapped,), {})
        with pytest.raises(InvalidArguments):
            checked_payload("a signal", wrapped)


SHARING = [Any, dict[str, Any], dict, Row, dict[str, Any] | None, list[Any] | dict[str, Any]]


@pytest.mark.parametrize("hint", SHARING)
def test_code_may_change_what_it_gets_and_nothing_recorded_changes(hint: Any) -> None:
    mine: dict[str, Any] = {"b": [1], "a": {"deep": [2]}}
    signature, taker = returning(hint), taking(hint)
    plain, given = signature.encode_outcome(mine), taker.encode((mine,), {})
    mine["b"].append("mine")
    mine["a"]["deep"].append("mine")
    for _ in range(2):
        for got in (signature.decode_result(plain), taker.typed(given)["given"], taker.decode(given)["given"]):
            assert got == {"b": [1], "a": {"deep": [2]}}
            got["b"].append("theirs")
            got["a"]["deep"].append("theirs")
            got["new"] = 1


def test_a_class_that_changes_what_it_is_made_from_changes_nothing_recorded() -> None:
    @dataclasses.dataclass
    class Greedy:
        things: Any

        def __post_init__(self) -> None:
            self.things.append("more")

    signature = returning(Greedy)
    plain = signature.encode_outcome(Bag([1]))
    assert plain == {"things": [1]}
    assert signature.decode_result(plain).things == signature.decode_result(plain).things == [1, "more"]


def test_a_copy_for_the_code_is_of_the_same_types_and_order() -> None:
    plain = {"b": [1, 1.0, -0.0, True, None, "x", 2**70], "a": {"z": {}, "y": []}}
    assert exactly(as_recorded(plain)) == exactly(plain)


def test_the_mode_of_the_suite_finds_a_value_that_is_not_handed_out_as_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signature = returning(Any)
    with as_replayed(monkeypatch):
        assert exactly(signature.decode_result({"b": [1], "a": 2})) == exactly({"b": [1], "a": 2})
    with pytest.raises(AssertionError, match="not as it is recorded"), as_replayed(monkeypatch):
        assert signature.decode_result([(1, 2)]) == [[1, 2]]


# Arguments are told apart by what they are, not by how a process happens to order them


def test_arguments_are_the_same_whatever_the_order_of_their_keys() -> None:
    one, two = ({"b": {"y": 1, "x": 2}, "a": 3}, {"a": 3, "b": {"x": 2, "y": 1}})
    first, second = (taking(Any).encode((given,), {}) for given in (one, two))
    assert fingerprint(first) == fingerprint(second)
    assert exactly(first) != exactly(second), "but each keeps its own order"


SETS = """
import msgspec
from holdfast.authoring.signature import Signature, fingerprint

class Held(msgspec.Struct):
    z: set
    a: frozenset

def take(given): ...

held = Held({"p", "q"}, frozenset({"r", "s"}))
given = {"z": {"x", "yy", "zzz", "w"}, "a": [{"b": {"k1", "k2", "k3"}, "a": 1}, held],
         7: {(1, "b"), (1, "a")}}
plain = Signature(take, "take").encode((given,), {})
print(fingerprint(plain), plain)
"""


def test_a_set_among_the_arguments_is_the_same_in_every_process() -> None:
    said = set()
    for seed in ("1", "2", "3", "4"):
        ran = subprocess.run(
            [sys.executable, "-c", SETS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        said.add(ran.stdout)
    assert len(said) == 1
    plain = said.pop().partition(" ")[2].strip()
    assert plain == repr({
        "given": {
            "z": ["w", "x", "yy", "zzz"],
            "a": [{"b": ["k1", "k2", "k3"], "a": 1}, {"z": ["p", "q"], "a": ["r", "s"]}],
            "7": [[1, "a"], [1, "b"]],
        }
    })  # fmt: skip


def test_a_set_that_has_no_order_is_no_argument() -> None:
    with pytest.raises(InvalidArguments, match="a set whose items cannot be sorted: pass a list"):
        taking(Any).encode(({"given": {1, "a"}},), {})
    assert sorted(map(str, returning(Any).encode_outcome({1, "a"}))) == ["1", "a"]
    assert taking(Any).encode(({Money("EUR", 2), Money("EUR", 1)},), {})["given"][0] == {"currency": "EUR", "cents": 1}


# Objects that raise when they are looked at


class Unbound:
    """As a proxy of another library that is bound to nothing."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("working outside of a context")


class NoClass:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


class Fatal(BaseException):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Ending:
    def __getattr__(self, name: str) -> Any:
        raise Fatal


class Leaving:
    def __getattr__(self, name: str) -> Any:
        raise SystemExit(3)


class Dumping:
    def model_dump(self, mode: str) -> Any:
        return {"mode": mode, "inside": Unbound()}


class Iterated:
    def __iter__(self) -> Iterator[Any]:
        raise ZeroDivisionError

    def keys(self) -> Any:
        raise ZeroDivisionError


class WildDict(dict[str, Any]):
    def keys(self) -> Any:
        raise RuntimeError("no keys")

    def items(self) -> Any:
        raise RuntimeError("no items")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no iteration")


@dataclasses.dataclass
class Explosive:
    size: int

    def __post_init__(self) -> None:
        if self.size:
            raise RuntimeError("it explodes when it is made")


HOSTILE: list[Callable[[], Any]] = [Unbound, NoClass, Ending, Leaving, Dumping, Iterated]


@pytest.mark.parametrize("make", HOSTILE)
def test_an_object_that_raises_when_it_is_looked_at_is_an_invalid_result(make: Callable[[], Any]) -> None:
    for value in (make(), [make()], {"deep": {"er": make()}}, Bag(make())):
        for hint in (Any, dict[str, Any], Bag):
            with pytest.raises(InvalidResult, match="the result of give cannot be stored"):
                returning(hint).encode_outcome(value)
            with pytest.raises(InvalidResult):
                returning(hint).encode_result(value)
        with pytest.raises(InvalidArguments, match="given cannot be stored as JSON"):
            taking(Any).encode((value,), {})
        with pytest.raises(InvalidArguments):
            checked_payload("a signal", value)


def test_a_dict_that_raises_is_an_invalid_result_or_what_it_holds() -> None:
    with pytest.raises(InvalidResult, match="reading it raised RuntimeError: no keys"):
        returning(Any).encode_outcome(WildDict(a=1))
    assert returning(Any).encode_outcome([WildDict(a=1)]) == [{"a": 1}]


def test_a_class_that_raises_when_it_is_made_is_an_invalid_result() -> None:
    signature = returning(Explosive)
    harmless = Explosive(0)
    harmless.size = 5
    with pytest.raises(InvalidResult, match="reading it raised RuntimeError: it explodes when it is made"):
        signature.encode_outcome(harmless)
    with pytest.raises(InvalidResult):
        signature.decode_result({"size": 5})
    with pytest.raises(InvalidArguments):
        taking(Explosive).decode({"given": {"size": 5}})


def test_only_a_plan_says_that_it_extends_a_plan() -> None:
    with pytest.raises(InvalidResult, match=r"return extend\(plan\)"):
        returning(Any).encode_outcome({EXTENDS: {}})
