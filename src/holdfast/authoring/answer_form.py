"""Forms: the type of the answer that a job waits for, as a JSON Schema for people and as a check of what they send.

`wait_for(key, form=Approval)` records the schema of the type with the wait. Clients show it as a form. An answer is
checked twice. Each client checks it against the schema, before it is stored. The job converts it to the type. An answer
that the job cannot use, such as one that was sent before the wait began, makes the job ask again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec

from holdfast.authoring.json_schemas import OF_SECRETS, schema_of
from holdfast.authoring.signature import Signature
from holdfast.errors import InvalidArguments, InvalidResult

SCHEMA_BYTES_MAX = 64 * 1024  # it is recorded each time the job begins to wait
DEPTH_MAX = 32  # nested values that are checked: what is deeper, the job checks
CHECKS_MAX = 100_000  # parts of an answer that are checked
TEXT_MAX = 60  # characters of a wrong value in a message
MISFIT_MAX = 500  # characters of a message
PATTERN_MAX = 200  # characters of a pattern that is checked here
STEPS_MAX = 8  # of a match, at worst, as a power of ten: some tenths of a second


class Form:
    """The type of an answer.

    Attributes:
        schema: its JSON Schema.
    """

    def __init__(self, hint: Any) -> None:
        def answer() -> Any:
            """Stand for a function that returns the answer: its result is converted as that of a step is."""

        answer.__annotations__ = {"return": hint}
        schema, parts = schema_of(hint)
        if not schema or hint is Any:
            raise InvalidArguments(
                "wait_for",
                f"form must be a type with a JSON Schema: a dataclass, struct, TypedDict or model, got {hint!r:.80}",
            )
        self.schema = {**schema, **({"$defs": parts} if parts else {})}
        if OF_SECRETS in str(self.schema):
            raise InvalidArguments("wait_for", "form must not have secrets: an answer is stored as it is")
        size = len(msgspec.json.encode(self.schema))
        if size > SCHEMA_BYTES_MAX:
            raise InvalidArguments(
                "wait_for", f"the schema of form has {size:,} bytes, and may have {SCHEMA_BYTES_MAX:,}"
            )
        self._signature = Signature(answer, "the answer")

    def decode(self, payload: Any) -> Any:
        """Return the payload of a signal, converted to the type.

        Raises:
            InvalidArguments: it does not have the type.
        """
        try:
            return self._signature.decode_result(payload)
        except InvalidResult as error:
            raise InvalidArguments("the answer", error.reason) from error


def form_of(hint: Any) -> Form:
    """Return the form of a type. The same type gives the same object.

    Raises:
        InvalidArguments: the type has no JSON Schema, or one that is too large.
    """
    try:
        return _cached(hint)
    except TypeError:  # a hint that cannot be hashed
        return Form(hint)


@lru_cache(maxsize=256)
def _cached(hint: Any) -> Form:
    return Form(hint)


def misfit(schema: Any, value: Any) -> str | None:
    """Return why a JSON value does not fit a schema, with the place of the first problem, or None.

    It knows the keywords that types produce. It ignores others, so it may accept a value that the job refuses.
    """
    if not isinstance(schema, dict):
        return None
    problem = next(_Check(schema).problems(schema, value, "answer", 0), None)
    return problem[:MISFIT_MAX] if problem is not None else None


_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, (list, tuple)),
    "object": lambda value: isinstance(value, dict),
}
_NAMES = {"null": "null", "boolean": "true or false", "integer": "a whole number", "number": "a number",
          "string": "text", "array": "a list", "object": "an object"}  # fmt: skip
_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", lambda value, bound: value >= bound),
    "maximum": ("at most", lambda value, bound: value <= bound),
    "exclusiveMinimum": ("more than", lambda value, bound: value > bound),
    "exclusiveMaximum": ("less than", lambda value, bound: value < bound),
}
_LENGTHS: dict[str, tuple[type[Any], str, int]] = {
    "minLength": (str, "at least", 1),
    "maxLength": (str, "at most", -1),
    "minItems": (list, "at least", 1),
    "maxItems": (list, "at most", -1),
}


class _Check:
    """One check of a value against a schema. Its work is bounded."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._root = schema
        self._left = CHECKS_MAX

    def problems(self, schema: Any, value: Any, place: str, depth: int) -> Iterator[str]:
        """Yield the problems of a value, each with its place."""
        self._left -= 1
        if self._left < 0 or depth > DEPTH_MAX or not isinstance(schema, dict):
            return
        if isinstance(schema.get("$ref"), str):
            yield from self.problems(self._referred(schema["$ref"]), value, place, depth + 1)
        yield from self._choice(schema, value, place, depth)
        yield from _scalar(schema, value, place)
        if isinstance(value, dict):
            yield from self._object(schema, value, place, depth)
        if isinstance(value, (list, tuple)):
            yield from self._array(schema, value, place, depth)
        for part in _listed(schema.get("allOf")):
            yield from self.problems(part, value, place, depth + 1)

    def _referred(self, ref: str) -> Any:
        found: Any = self._root
        for part in ref.removeprefix("#/").split("/") if ref.startswith("#/") else ("",):
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def _choice(self, schema: dict[str, Any], value: Any, place: str, depth: int) -> Iterator[str]:
        choices = _listed(schema.get("anyOf")) or _listed(schema.get("oneOf"))
        first = [next(self.problems(choice, value, place, depth + 1), None) for choice in choices]
        wrong = [problem for problem in first if problem is not None]
        if choices and len(wrong) == len(first):
            deepest = max(wrong, key=lambda problem: len(problem.partition(":")[0]))
            yield deepest if deepest.partition(":")[0] != place else f"{place}: {_either(wrong)}"

    def _object(self, schema: dict[str, Any], value: dict[str, Any], place: str, depth: int) -> Iterator[str]:
        properties = schema.get("properties")
        known = properties if isinstance(properties, dict) else {}
        for name in _listed(schema.get("required")):
            if name not in value:
                yield f"{place}.{name}: is missing"
        others = schema.get("additionalProperties")
        for name, item in value.items():
            if name in known:
                yield from self.problems(known[name], item, f"{place}.{name}", depth + 1)
            elif others is False:
                yield f"{place}.{name:.60}: is not known; use {', '.join(map(str, list(known)[:20]))}"
            else:
                yield from self.problems(others, item, f"{place}.{name:.60}", depth + 1)

    def _array(self, schema: dict[str, Any], value: Any, place: str, depth: int) -> Iterator[str]:
        first = _listed(schema.get("prefixItems"))
        for index, item in enumerate(value):
            rule = first[index] if index < len(first) else schema.get("items")
            yield from self.problems(rule, item, f"{place}[{index}]", depth + 1)


def _scalar(schema: dict[str, Any], value: Any, place: str) -> Iterator[str]:
    """Yield the problems of a value by itself."""
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else [kind for kind in _listed(kinds) if isinstance(kind, str)]
    if kinds and not any(_TYPES.get(kind, _anything)(value) for kind in kinds):
        yield f"{place}: must be {' or '.join(_NAMES.get(kind, kind) for kind in kinds)}, got {_shown(value)}"
        return
    allowed = schema.get("enum") if isinstance(schema.get("enum"), list) else None
    if "const" in schema:
        allowed = [schema["const"]]
    if allowed is not None and not any(value == one and type(value) is type(one) for one in allowed):
        yield f"{place}: must be {' or '.join(map(_shown, allowed[:20]))}, got {_shown(value)}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for keyword, (words, holds) in _BOUNDS.items():
            bound = schema.get(keyword)
            if isinstance(bound, (int, float)) and not holds(value, bound):
                yield f"{place}: must be {words} {bound}, got {_shown(value)}"
    for keyword, (kind, words, sign) in _LENGTHS.items():
        bound = schema.get(keyword)
        size = len(value) if isinstance(value, (str, list)) and isinstance(value, kind) else None
        if isinstance(bound, int) and size is not None and sign * size < sign * bound:
            yield f"{place}: must have {words} {bound} {'characters' if kind is str else 'items'}, has {size}"
    if isinstance(value, str):
        yield from _malformed(schema, value, place)
        yield from _unmatched(schema.get("pattern"), value, place)


# What a text of each format must be, and the type that reads it.
_FORMATS: dict[str, tuple[str, type]] = {
    "date-time": ("a date and a time such as 2026-05-17T09:30:00Z", datetime),
    "date": ("a date such as 2026-05-17", date),
    "time": ("a time such as 09:30:00", time),
    "duration": ("a duration such as PT1H30M", timedelta),
    "uuid": ("a UUID", UUID),
    "decimal": ("a decimal number", Decimal),
    "base64": ("bytes in base64", bytes),
}


def _malformed(schema: dict[str, Any], value: str, place: str) -> Iterator[str]:
    """Yield a problem if a text does not have its format."""
    name = "base64" if schema.get("contentEncoding") == "base64" else schema.get("format")
    wish, kind = _FORMATS.get(name, ("", str)) if isinstance(name, str) else ("", str)
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        yield f"{place}: must be {wish}, got {_shown(value)}"


def _unmatched(pattern: Any, value: str, place: str) -> Iterator[str]:
    """Yield a problem if a text does not match a pattern. What could take very long to match, the job checks."""
    if not isinstance(pattern, str) or len(pattern) > PATTERN_MAX or _steps(pattern, len(value)) > STEPS_MAX:
        return
    try:
        matches = re.search(pattern, value)
    except re.error:
        return
    if matches is None:
        yield f"{place}: must match {pattern}, got {_shown(value)}"


_PARTS = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|(?P<exact>\{\d+\})|(?P<repeat>[*+]|\{\d*,\d*\})|\(\??|.", re.DOTALL
)  # fmt: skip


def _steps(pattern: str, length: int) -> float:
    """Return how many steps a match with a text of this length may take, as a power of ten.

    A match tries each end of each repeat, and each choice. So its steps are a power of the length. If repeats or
    choices are repeated, the steps grow exponentially.
    """
    ways = 0 if pattern.startswith("^") else 1  # repeats, and the places where a match may begin
    choices, depth = 0.0, 0
    outer: list[tuple[float, int]] = []  # for each open group: what came before it, and the choices in the group around
    bars, closed = 0, -1.0
    for part in _PARTS.finditer(pattern):
        text, group, closed = part[0], closed, -1.0
        if part["repeat"] or part["exact"]:
            depth += group >= 0 and ways + choices > group
            ways += part["repeat"] is not None
        elif text.startswith("("):
            outer.append((ways + choices, bars))
            bars = 0
        elif text == ")" and outer:
            choices += math.log10(bars + 1)
            closed, bars = outer.pop()
        elif text == "|":
            bars += 1
        elif text == "?":
            choices += math.log10(2)
    choices += math.log10(bars + 1)
    if depth:
        ways, choices = 2, choices + depth * length * (choices + math.log10(2))
    return ways * math.log10(max(length, 2)) + choices


def _either(problems: list[str]) -> str:
    wishes = [problem.partition(": ")[2].removeprefix("must be ").partition(", got ")[0] for problem in problems]
    got = problems[0].rpartition(", got ")[2]
    return f"must be {' or '.join(dict.fromkeys(wishes))}, got {got}"


def _anything(value: Any) -> bool:
    del value
    return True


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
