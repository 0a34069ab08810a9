"""Plans as text: JSON and YAML become plain values, or are refused with the place where they end to be some.

A name that is there twice in an object is refused, for one of the two would be dropped without a word; and so are
anchors that unfold into more than a computer holds.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import InvalidPlan

__all__ = ["field_problems", "from_json", "from_yaml", "json_kind", "node_problems"]

VALUES_MAX = 1_000_000  # of one YAML file, with its anchors unfolded
TEXT = "tag:yaml.org,2002:str"
MERGE = "tag:yaml.org,2002:merge"  # `<<`, which may be there as often as one likes
_WORDS: dict[type, str] = {dict: "an object", list: "a list", tuple: "a list", str: "text", type(None): "nothing"}


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
    if not _is_small(data, VALUES_MAX):  # a few lines of anchors can stand for more than a computer holds
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


def json_kind(value: Any) -> str:
    """Name what a value is, for people: a flag as it is written, for YAML makes flags of words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _WORDS.get(type(value), f"{value!r:.40}")


def _is_small(data: Any, most: int) -> bool:
    """Whether there are so many values in it at most, each counted wherever it is referred to."""
    look, seen = [data], 0
    while look:
        value = look.pop()
        seen += 1
        if isinstance(value, (dict, list)):
            look.extend(value.values() if isinstance(value, dict) else value)
        if seen + len(look) > most:
            return False
    return True


def node_problems(at: str, data: Any, kinds: Mapping[str, type[msgspec.Struct]]) -> Iterator[str]:
    """Tell all that keeps a value from being a node of one of these kinds."""
    if not isinstance(data, dict):
        yield f"{at}: a node is an object with an id and a kind, got {json_kind(data)}"
        return
    kind = data.get("kind")
    if "kind" not in data:
        yield f"{at}: it has no kind: {_listed(kinds)}"
    elif not isinstance(kind, str) or kind not in kinds:
        said = repr(kind)[:60] if isinstance(kind, str) else json_kind(kind)
        yield f"{at}.kind: there is no kind {said}: it is {_listed(kinds)}{_near(str(kind), kinds)}"
    else:
        given = {name: value for name, value in data.items() if name != "kind"}
        yield from field_problems(at, given, kinds[kind], f"a {kind}")
        return
    if not isinstance(data.get("id"), str):
        yield f"{at}: it has no id, which is text" if "id" not in data else f"{at}.id: {_no_text(data['id'])}"


def field_problems(at: str, data: Mapping[Any, Any], kind: type[msgspec.Struct], what: str) -> Iterator[str]:
    """Tell of each field that is none of this type, is missing, or cannot be what it is."""
    known = {one.encode_name: one for one in msgspec.structs.fields(kind)}
    for name, value in data.items():
        if name not in known:
            yield f"{at}: {what} has no field {str(name)[:60]!r}{_near(str(name), known)}"
            continue
        try:
            msgspec.convert(value, known[name].type)
        except (msgspec.ValidationError, TypeError) as error:
            if known[name].type is str and not isinstance(value, str):
                yield f"{at}.{name}: {_no_text(value)}"
            else:
                said, _, where = str(error).partition(" - at `$")
                yield f"{at}.{name}{where.rstrip('`')}: {said}"
    for name, one in known.items():
        if one.required and name not in data:
            yield f"{at}: {what} needs {'an' if name[0] in 'aeiou' else 'a'} {name}, and it is not there"


def _no_text(value: Any) -> str:
    hint = ": YAML reads it so, write it in quotes" if isinstance(value, (bool, int, float)) or value is None else ""
    return f"it is text, got {json_kind(value)}{hint}"


def _listed(words: Mapping[str, Any]) -> str:
    *most, last = words
    return f"one of {', '.join(most)} and {last}"


def _near(word: str, known: Mapping[str, Any]) -> str:
    found = difflib.get_close_matches(word[:60], known, 1)
    return f"; {found[0]!r}, perhaps?" if found else ""
