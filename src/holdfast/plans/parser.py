"""Plans as text: JSON and YAML become plain values, or are refused with the place where they end to be some.

A name that is there twice in an object is refused, for one of the two would be dropped without a word; and so are
anchors that unfold into more than a computer holds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.errors import InvalidPlan
from holdfast.plans import shape_errors

__all__ = ["from_json", "from_yaml"]

VALUES_MAX = 1_000_000  # of one YAML file, with its anchors unfolded
TEXT = "tag:yaml.org,2002:str"
MERGE = "tag:yaml.org,2002:merge"  # `<<`, which may be there as often as one likes


def from_json(text: str | bytes) -> Any:
    """Read JSON; nothing at all is None.

    Raises:
        InvalidPlan: it is no JSON, or has a name twice.
    """
    if not text.strip():
        return None
    try:
        data = msgspec.json.decode(text)
        twice = list(_twice_in_json(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidPlan("plan", [f"it is no JSON: {error}"]) from error
    if twice:
        raise InvalidPlan("plan", twice)
    return data


def from_yaml(text: str | bytes) -> Any:
    """Read YAML, by its safe loader.

    Raises:
        InvalidPlan: PyYAML is not there, or it is no YAML, has a name twice or one that is no text, or unfolds into too
            much.
    """
    try:
        import yaml  # noqa: PLC0415 - an extra, for those who write YAML
    except ImportError as error:
        raise InvalidPlan("plan", ["YAML needs PyYAML: install holdfast[yaml], or write JSON"]) from error
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            wrong = list(_wrong_in_yaml(root))
            data = loader.construct_document(root) if root is not None and not wrong else None
        finally:
            loader.dispose()
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidPlan("plan", [f"it is no YAML: {_in_yaml(error)}"]) from error
    except (ValueError, LookupError, AttributeError) as error:  # PyYAML's own, of scalars that are none of their kind
        said = "a value is not what it looks like or is tagged as, such as a day that is in no calendar"
        raise InvalidPlan("plan", [f"it is no YAML: {said}: {error}"]) from error
    if wrong:
        raise InvalidPlan("plan", wrong)
    if not shape_errors.is_small(data, VALUES_MAX):  # a few lines of anchors can stand for more than a computer holds
        raise InvalidPlan("plan", [f"its anchors unfold into more than {VALUES_MAX:,} values"])
    return data


def _twice_in_json(text: str | bytes) -> Iterator[str]:
    """Tell of each name that an object has more than once, with the path to the object."""
    found: dict[int, tuple[Any, list[str]]] = {}  # by the object's identity, which it keeps while it is kept here

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        one = dict(pairs)
        if len(one) < len(pairs):
            found[id(one)] = one, [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        return one

    look = [("", json.loads(text, object_pairs_hook=made, parse_int=len, parse_float=len))]
    while found and look:
        path, value = look.pop()
        for name in found.get(id(value), (None, []))[1]:
            yield f"{path or 'plan'}: {name[:60]!r} is there twice"
        if isinstance(value, dict):
            look += [(f"{path}.{name}" if path else name, one) for name, one in reversed(value.items())]
        elif isinstance(value, list):
            look += [(f"{path}[{place}]", one) for place, one in reversed(list(enumerate(value)))]


def _wrong_in_yaml(root: Any) -> Iterator[str]:
    """Tell of each name that is no text, or that a mapping has more than once, with its line and column."""
    look, seen = [root], set()
    while look:
        node = look.pop()
        if id(node) in seen or not isinstance(getattr(node, "value", None), list):
            continue
        seen.add(id(node))
        names: set[str] = set()
        inside: list[Any] = []
        for one in node.value:
            key, value = one if isinstance(one, tuple) else (None, one)
            inside += [value] if key is None else [key, value]
            if key is None or key.tag == MERGE or not isinstance(key.value, str):
                continue
            if key.tag != TEXT or key.value in names:
                what = "is there twice" if key.tag == TEXT else "is no text, as names in JSON are: put it in quotes"
                yield f"line {key.start_mark.line + 1}, column {key.start_mark.column + 1}: {key.value[:60]!r} {what}"
            names.add(key.value)
        look += reversed(inside)


def _in_yaml(error: Exception) -> str:
    """Say where YAML ends to be some, and why."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())[:300]
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
