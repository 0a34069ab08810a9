"""JSON Schemas of types, for forms and for clients that start jobs.

msgspec writes them. Three things are added, so that a form can show a type and a server can check a value of it:
the format of dates and times without a time zone, that of decimals of pydantic models, and references that lead to
their definitions wherever a pydantic model is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import inspect

from holdfast.authoring.redaction import holds_secret
from holdfast.authoring.secrets import secret_hint

DEFAULT_MAX = 1000  # bytes of a default that a schema has
OF_SECRETS = "A secret: its value, which is encrypted on arrival and never shown."  # the description in a schema

_REF = "#/$defs/"
_FORMATS: dict[type, str] = {inspect.DateTimeType: "date-time", inspect.TimeType: "time"}
_OBJECTS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
_LISTS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)


def schema_of(hint: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a type's JSON Schema and the definitions it names; an empty schema if it has none."""
    try:
        (schema,), parts = msgspec.json.schema_components([hint], schema_hook=_foreign, ref_template=f"{_REF}{{name}}")
        _Dates(parts).mark(inspect.type_info(hint), schema)
    except TypeError:
        return {}, {}
    for name in list(parts):
        parts[name] = _hoisted(parts[name], parts)
    return _hoisted(schema, parts), parts


def schema_of_fields(
    hints: Mapping[str, Any], defaults: Mapping[str, Any], plain: Callable[[Any], tuple[Any, bytes]]
) -> dict[str, Any]:
    """Return the JSON Schema of an object with these fields. `plain` makes a JSON value of a default, and its text."""
    properties, parts = {}, {}
    for name, hint in hints.items():
        schema, components = schema_of(hint)
        properties[name] = {**schema, **(_default(defaults[name], plain) if name in defaults else {})}
        parts.update(components)
    return {"type": "object", "properties": properties, **({"$defs": parts} if parts else {})}


def _default(value: Any, plain: Callable[[Any], tuple[Any, bytes]]) -> dict[str, Any]:
    """Return the default of a field for its schema, unless it is large, has a secret, or is not JSON."""
    try:
        made, written = plain(value)
    except Exception:  # noqa: BLE001 - an object may raise anything when it is read
        return {}
    return {} if len(written) > DEFAULT_MAX or holds_secret(made) else {"default": made}


def _foreign(hint: Any) -> dict[str, Any]:
    if secret_hint(hint) is not None:
        return {"description": OF_SECRETS, "writeOnly": True}
    if isinstance(hint, type) and issubclass(hint, PurePath):
        return {"type": "string", "format": "path"}
    if hasattr(hint, "model_json_schema"):
        schema: dict[str, Any] = hint.model_json_schema(**_pydantic_options(hint))
        return schema
    raise NotImplementedError


def _pydantic_options(model: Any) -> dict[str, Any]:
    """Return the options of pydantic with which decimals have a format, as msgspec's have."""
    pydantic = sys.modules.get("pydantic.json_schema")
    if pydantic is None or not hasattr(model, "__pydantic_core_schema__"):
        return {}
    generator: Any = pydantic.GenerateJsonSchema

    class WithDecimals(generator):  # type: ignore[misc]  # - of a package that may be missing
        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            return {**super().decimal_schema(schema), "format": "decimal"}

    return {"schema_generator": WithDecimals}


def _hoisted(schema: Any, parts: dict[str, Any]) -> Any:
    """Return a schema whose inner definitions are moved to `parts`, where its references look for them."""
    if isinstance(schema, list):
        return [_hoisted(one, parts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = schema.get("$defs")
    if not isinstance(inner, dict):
        return {name: _hoisted(part, parts) for name, part in schema.items()}
    names = {name: _free_name(name, part, parts) for name, part in inner.items()}
    for name, part in inner.items():
        parts[names[name]] = _renamed(part, names)
    rest = {name: part for name, part in schema.items() if name != "$defs"}
    return _hoisted(_renamed(rest, names), parts)


def _free_name(name: str, part: Any, parts: dict[str, Any]) -> str:
    """Return a name for a definition that no other one has."""
    number, free = 1, name
    while parts.get(free, part) != part:
        number += 1
        free = f"{name}_{number}"
    return free


def _renamed(schema: Any, names: dict[str, str]) -> Any:
    """Return a schema with other names in its references."""
    if isinstance(schema, list):
        return [_renamed(one, names) for one in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {name: _renamed(part, names) for name, part in schema.items()}
    ref = renamed.get("$ref")
    if isinstance(ref, str) and ref.removeprefix(_REF) in names:
        renamed["$ref"] = _REF + names[ref.removeprefix(_REF)]
    return renamed


class _Dates:
    """A walk along a type and its schema, which marks dates and times. msgspec marks only those with a time zone."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self._parts = parts
        self._seen: set[int] = set()

    def mark(self, info: inspect.Type, schema: Any) -> None:
        """Add the missing formats to a schema."""
        while isinstance(info, inspect.Metadata):
            info = info.type
        if isinstance(schema, dict) and "$ref" in schema:
            schema = self._parts.get(schema["$ref"].removeprefix(_REF))
        if not isinstance(schema, dict) or id(info) in self._seen:
            return
        if type(info) in _FORMATS:
            schema.setdefault("format", _FORMATS[type(info)])
            return
        if isinstance(info, _OBJECTS):  # they may contain themselves
            self._seen.add(id(info))
        for inner, part in self._inner(info, schema):
            self.mark(inner, part)

    def _inner(self, info: inspect.Type, schema: dict[str, Any]) -> Iterator[tuple[inspect.Type, Any]]:
        """Yield the types that a type is made of, each with its schema."""
        if isinstance(info, inspect.UnionType):
            options = list(_options(schema))
            for one in info.types:
                fitting = next((option for option in options if _may_be(one, option)), None)
                if fitting is not None:
                    options.remove(fitting)
                    yield one, fitting
        elif isinstance(info, _LISTS):
            yield info.item_type, schema.get("items")
        elif isinstance(info, inspect.DictType):
            yield info.value_type, schema.get("additionalProperties")
        elif isinstance(info, inspect.TupleType):
            yield from zip(info.item_types, schema.get("prefixItems", []), strict=False)
        elif isinstance(info, _OBJECTS) and "prefixItems" in schema:
            tagged = len(schema["prefixItems"]) - len(info.fields)
            yield from ((field.type, schema["prefixItems"][at + tagged]) for at, field in enumerate(info.fields))
        elif isinstance(info, _OBJECTS):
            properties = schema.get("properties", {})
            yield from ((field.type, properties.get(field.encode_name)) for field in info.fields)


def _options(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the choices of a union, also those of a union in it."""
    for option in schema.get("anyOf", ()):
        yield from _options(option) if "anyOf" in option else (option,)


def _may_be(info: inspect.Type, option: dict[str, Any]) -> bool:
    """Return whether a choice of a union may be the schema of a type. A union has no two types that JSON confuses."""
    while isinstance(info, inspect.Metadata):
        info = info.type
    if type(info) in _FORMATS:
        return option.get("type") == "string"
    if isinstance(info, _OBJECTS):
        return "$ref" in option
    if isinstance(info, (*_LISTS, inspect.TupleType)):
        return option.get("type") == "array"
    return isinstance(info, inspect.DictType) and "additionalProperties" in option
