"""Plans as text: JSON and YAML become plain values, and errors carry the line and column.

These hazards are refused. A name that occurs twice in an object would silently drop one of its values. YAML anchors
can expand into more values than memory holds, and merge keys into more than time allows. YAML reads 1:30 as 90.

Problems of a plan's shape are also described here, field by field, with their place and the likely intended word.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.authoring.functions import near
from holdfast.errors import InvalidPlan

VALUES_MAX = 1_000_000  # in one YAML file, with its anchors expanded
TEXT = "tag:yaml.org,2002:str"
MERGE = "tag:yaml.org,2002:merge"  # `<<`
NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_WORDS: dict[type, str] = {dict: "an object", list: "a list", tuple: "a list", str: "text", type(None): "nothing"}


def from_json(text: str | bytes) -> Any:
    """Parse JSON. Empty text is None.

    Raises:
        InvalidPlan: the text is not JSON, or an object has a name twice.
    """
    if not text.strip():
        return None
    try:
        data = msgspec.json.decode(text)
        twice = list(_twice_in_json(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidPlan("plan", [f"not valid JSON: {error}"]) from error
    if twice:
        raise InvalidPlan("plan", twice)
    return data


def from_yaml(text: str | bytes) -> Any:
    """Parse YAML with the safe loader.

    Raises:
        InvalidPlan: PyYAML is not installed, the text is not YAML, a name occurs twice or is not text, or the anchors
            expand into too many values.
    """
    try:
        import yaml  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise InvalidPlan("plan", ["YAML needs PyYAML: install holdfast-jobs[yaml], or write JSON"]) from error
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            wrong = list(_wrong_in_yaml(root))
            data = loader.construct_document(root) if root is not None and not wrong else None
        finally:
            loader.dispose()
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidPlan("plan", [f"not valid YAML: {_in_yaml(error)}"]) from error
    except (ValueError, LookupError, AttributeError, ArithmeticError) as error:  # PyYAML: invalid scalars
        reason = "a value does not fit its form or tag, such as a date that does not exist"
        raise InvalidPlan("plan", [f"not valid YAML: {reason}: {error}"]) from error
    if wrong:
        raise InvalidPlan("plan", wrong)
    if not _is_small(data, VALUES_MAX):  # a few lines of anchors can expand beyond memory
        raise InvalidPlan("plan", [f"its anchors unfold into more than {VALUES_MAX:,} values"])
    return data


def _twice_in_json(text: str | bytes) -> Iterator[str]:
    """Yield a problem for each name that an object has more than once, with the path to the object."""
    # By identity. The object is kept as well, so that no other object can get its id.
    repeated: dict[int, tuple[Any, list[str]]] = {}

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            repeated[id(value)] = (
                value,
                [name for name, count in Counter(name for name, _ in pairs).items() if count > 1],
            )
        return value

    look = [("", json.loads(text, object_pairs_hook=build, parse_int=len, parse_float=len))]
    while repeated and look:
        path, value = look.pop()
        for name in repeated.get(id(value), (None, []))[1]:
            yield f"{path or 'plan'}: {name[:60]!r} occurs twice"
        if isinstance(value, dict):
            look += [(f"{path}.{name}" if path else name, item) for name, item in reversed(value.items())]
        elif isinstance(value, list):
            look += [(f"{path}[{place}]", item) for place, item in reversed(list(enumerate(value)))]


def _wrong_in_yaml(root: Any) -> Iterator[str]:
    """Yield a problem for each value or name that could mean something else, with line and column.

    These are names that are not text or that a mapping has twice, merge keys, and sexagesimal numbers.
    """
    look, seen = [root], set()
    while look:
        node = look.pop()
        if id(node) in seen or node is None:
            continue
        seen.add(id(node))
        if not isinstance(node.value, list):
            if node.tag in NUMBERS and ":" in node.value:
                yield f"{_place(node)}: {node.value[:60]!r} is a number to the base 60 in YAML: put it in quotes"
            continue
        names: set[str] = set()
        inside: list[Any] = []
        for item in node.value:
            key, value = item if isinstance(item, tuple) else (None, item)
            inside += [value] if key is None else [key, value]
            if key is None or not isinstance(key.value, str):
                continue
            if key.tag == MERGE:
                yield f"{_place(key)}: merge keys are not supported: write the fields out"
                continue
            if key.tag != TEXT or key.value in names:
                what = "occurs twice" if key.tag == TEXT else "is not text, as names in JSON are: put it in quotes"
                yield f"{_place(key)}: {key.value[:60]!r} {what}"
            names.add(key.value)
        look += reversed(inside)


def _place(node: Any) -> str:
    return f"line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"


def _in_yaml(error: Exception) -> str:
    """Return where the YAML is invalid, and why."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())[:300]
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def json_kind(value: Any) -> str:
    """Return the kind of a value for messages. A flag is shown as written, because YAML turns words into flags."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _WORDS.get(type(value), f"{value!r:.40}")


def _is_small(data: Any, most: int) -> bool:
    """Return whether a value has at most `most` values in it, each counted once per reference."""
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
    """Yield each reason why a value is not a node of one of these kinds."""
    if not isinstance(data, dict):
        yield f"{at}: a node must be an object with an id and a kind, got {json_kind(data)}"
        return
    kind = data.get("kind")
    if "kind" not in data:
        yield f"{at}: kind is missing: {_listed(kinds)}"
    elif not isinstance(kind, str) or kind not in kinds:
        shown = repr(kind)[:60] if isinstance(kind, str) else json_kind(kind)
        yield f"{at}.kind: unknown kind {shown}: use {_listed(kinds)}{near(str(kind), kinds)}"
    else:
        own_fields = {name: value for name, value in data.items() if name != "kind"}
        yield from field_problems(at, own_fields, kinds[kind], f"a {kind}")
        return
    if not isinstance(data.get("id"), str):
        yield f"{at}: id is missing; it must be text" if "id" not in data else f"{at}.id: {_no_text(data['id'])}"


def field_problems(at: str, data: Mapping[Any, Any], kind: type[msgspec.Struct], what: str) -> Iterator[str]:
    """Yield a problem for each field that is unknown, missing or of the wrong type."""
    known = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for name, value in data.items():
        if name not in known:
            yield f"{at}: {what} has no field {str(name)[:60]!r}{near(str(name), known)}"
            continue
        try:
            msgspec.convert(value, known[name].type)
        except (msgspec.ValidationError, TypeError) as error:
            if known[name].type is str and not isinstance(value, str):
                yield f"{at}.{name}: {_no_text(value)}"
            else:
                reason, _, where = str(error).partition(" - at `$")
                yield f"{at}.{name}{where.rstrip('`')}: {reason}"
    for name, field in known.items():
        if field.required and name not in data:
            yield f"{at}: {what} needs {'an' if name[0] in 'aeiou' else 'a'} {name}, which is missing"


def _no_text(value: Any) -> str:
    hint = (
        ": YAML reads it that way; write it in quotes" if isinstance(value, (bool, int, float)) or value is None else ""
    )
    return f"must be text, got {json_kind(value)}{hint}"


def _listed(words: Mapping[str, Any]) -> str:
    *most, last = words
    return f"one of {', '.join(most)} and {last}"
