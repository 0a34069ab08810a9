"""What is wrong with the shape of a plan or node that could not be read: every field of it, each with its place. Pure.

The types are given by whoever reads; here is only how their refusals are told to people, and which word was meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

__all__ = ["fields", "is_small", "json_kind", "node"]

_WORDS: dict[type, str] = {dict: "an object", list: "a list", tuple: "a list", str: "text", type(None): "nothing"}


def json_kind(value: Any) -> str:
    """Name what a value is, for people: a flag as it is written, for YAML makes flags of words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _WORDS.get(type(value), f"{value!r:.40}")


def is_small(data: Any, most: int) -> bool:
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


def node(at: str, data: Any, kinds: Mapping[str, type[msgspec.Struct]]) -> Iterator[str]:
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
        yield from fields(at, given, kinds[kind], f"a {kind}")
        return
    if not isinstance(data.get("id"), str):
        yield f"{at}: it has no id, which is text" if "id" not in data else f"{at}.id: {_no_text(data['id'])}"


def fields(at: str, data: Mapping[Any, Any], kind: type[msgspec.Struct], what: str) -> Iterator[str]:
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
