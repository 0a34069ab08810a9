"""Forms: the type of the answer that a job waits for, as a JSON Schema for people and as a check of what they send.

`wait_for(key, form=Approval)` records the schema of the type with the wait. Clients show it as a form. An answer is
checked twice. Each client checks it against the schema, before it is stored. The job converts it to the type. An answer
that the job cannot use, such as one that was sent before the wait began, makes the job ask again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.authoring.signature import Signature
from holdfast.authoring.type_hints import OF_SECRETS, schema_of
from holdfast.errors import InvalidArguments, InvalidResult

SCHEMA_BYTES_MAX = 64 * 1024  # it is recorded each time the job begins to wait
DEPTH_MAX = 32  # nested values that are checked: what is deeper, the job checks
CHECKS_MAX = 100_000  # parts of an answer that are checked
TEXT_MAX = 60  # characters of a wrong value in a message
MISFIT_MAX = 500  # characters of a message
PATTERN_MAX = 200  # characters of a pattern that is checked here, on texts of at most that many characters


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
    yield from _unmatched(schema.get("pattern"), value, place)


def _unmatched(pattern: Any, value: Any, place: str) -> Iterator[str]:
    """Yield a problem if a short text does not match a short pattern. Others could take very long to match."""
    if not isinstance(pattern, str) or not isinstance(value, str) or max(len(pattern), len(value)) > PATTERN_MAX:
        return
    if re.search(
        r"[)\]}][*+{]|[*+]\S*[*+]", pattern
    ):  # repeats of repeats can take exponential time: the job checks them
        return
    try:
        matches = re.search(pattern, value)
    except re.error:
        return
    if matches is None:
        yield f"{place}: must match {pattern}, got {_shown(value)}"


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
