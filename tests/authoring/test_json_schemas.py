"""Schemas of types: the check of an answer agrees with the type to which the job converts it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
from decimal import Decimal
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import msgspec
import pydantic
import pytest

from holdfast import InvalidArguments, Secret
from holdfast.authoring.answer_form import Form, misfit
from holdfast.authoring.json_schemas import schema_of
from holdfast.authoring.signature import Signature


class Left(msgspec.Struct, tag=True):
    at: dt.datetime | None = None
    inner: list[Left] = []


class Right(msgspec.Struct, tag=True):
    alarms: tuple[dt.time, ...] = ()


class Pair(NamedTuple):
    begin: dt.datetime
    end: Annotated[dt.datetime, msgspec.Meta(tz=True)] | int


@dataclasses.dataclass
class Terms:
    due: dt.datetime
    day: dt.date
    at: dt.time
    lasts: dt.timedelta
    order: UUID
    price: Decimal
    seal: bytes
    code: Annotated[str, msgspec.Meta(pattern=r"^[A-Z]+-[0-9]+$")]
    parts: list[Left | Right] = dataclasses.field(default_factory=list)
    pair: Pair | None = None
    days: dict[str, dt.datetime] = dataclasses.field(default_factory=dict)
    spans: tuple[dt.datetime, int] | None = None


class Cat(pydantic.BaseModel):
    born: dt.datetime
    weight: Decimal = Decimal(4)
    kitten: Cat | None = None


class Owner(pydantic.BaseModel):
    cat: Cat


FITTING: dict[str, Any] = {
    "due": "2026-05-17T09:30:00", "day": "2026-05-17", "at": "09:30:00", "lasts": "PT1H",
    "order": "7f7c5d2e-9f0b-4d35-8f63-0a5a2e6f5f10", "price": "12.50", "seal": "AAEC", "code": "AB-1",
}  # fmt: skip
WRONG: dict[str, list[Any]] = {
    "due": ["tomorrow", "", "2026-05-17", "2026-13-01T00:00:00Z"],
    "day": ["17.5.2026", "", "2026-02-30", "2026-05-17T09:30:00Z"],
    "at": ["noon", "25:00:00"],
    "lasts": ["an hour", "1:30"],
    "order": ["17", ""],
    "price": ["a lot", "", "1,50", "1.2.3"],
    "seal": ["?"],
    "code": ["ab-1", "AB", ""],
    "parts": [[{"type": "Left", "at": "now"}], [{"type": "Right", "alarms": ["x"]}], [{"type": "Left", "inner": [
        {"type": "Left", "at": "now"}]}]],
    "pair": [["now", 1], ["2026-05-17T09:30:00Z", "now"]],
    "days": [{"first": "monday"}],
    "spans": [["monday", 1]],
}  # fmt: skip


@pytest.mark.parametrize("field", WRONG)
def test_what_the_type_refuses_is_refused_before_it_is_stored(field: str) -> None:
    form = Form(Terms)
    assert misfit(form.schema, FITTING) is None
    form.decode(FITTING)
    for value in WRONG[field]:
        answer = {**FITTING, field: value}
        with pytest.raises(InvalidArguments):
            form.decode(answer)
        problem = misfit(form.schema, answer)
        assert problem is not None, value
        assert problem.startswith(f"answer.{field}"), problem


def test_a_wrong_text_is_named_with_an_example() -> None:
    refused = misfit(Form(Terms).schema, {**FITTING, "due": "tomorrow"})
    assert refused == 'answer.due: must be a date and a time such as 2026-05-17T09:30:00Z, got "tomorrow"'


def test_the_definitions_of_a_pydantic_model_are_found_wherever_it_is_used() -> None:
    class Other(msgspec.Struct):
        owners: list[Owner]

    kitten: dict[str, Any] = {"born": "2026-05-17T09:30:00Z", "weight": "1.5"}
    for hint, wrapped in ((Owner, lambda cat: {"cat": cat}), (Other, lambda cat: {"owners": [{"cat": cat}]})):
        form = Form(hint)
        fits = wrapped({"born": "2026-05-17T09:30:00Z", "weight": 3.5, "kitten": kitten})
        assert misfit(form.schema, fits) is None
        form.decode(fits)
        for wrong in ({"born": "x"}, {"weight": "heavy"}, {"kitten": {"born": "x"}}):
            answer = wrapped({"born": "2026-05-17T09:30:00Z", "kitten": kitten, **wrong})
            with pytest.raises(InvalidArguments):
                form.decode(answer)
            assert misfit(form.schema, answer) is not None, (hint, wrong)


def test_two_definitions_with_one_name_stay_apart() -> None:
    def model(name: str, kind: Any) -> Any:
        inner = pydantic.create_model("Inner", value=(kind, ...))
        return pydantic.create_model(name, inner=(inner, ...))

    pair: Any = tuple
    schema, parts = schema_of(pair[model("First", int), model("Second", str)])
    whole = {**schema, "$defs": parts}
    assert misfit(whole, [{"inner": {"value": 1}}, {"inner": {"value": "x"}}]) is None
    assert misfit(whole, [{"inner": {"value": "x"}}, {"inner": {"value": "x"}}]) is not None
    assert misfit(whole, [{"inner": {"value": 1}}, {"inner": {"value": 1}}]) is not None


def test_the_schema_of_arguments_has_their_defaults_but_no_secret() -> None:
    def job(
        note: str = "hello",
        count: int | None = 5,
        due: dt.date = dt.date(2026, 5, 17),
        key: Secret[str] | None = None,
        big: str = "x" * 10_000,
        odd: Any = inspect,
        **more: int,
    ) -> None: ...

    properties = Signature(job, "job").schema()["properties"]
    assert {name: part["default"] for name, part in properties.items() if "default" in part} == {
        "note": "hello", "count": 5, "due": "2026-05-17"
    }  # fmt: skip
