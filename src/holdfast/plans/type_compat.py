"""Whether the result of one function can be the argument of another, by their type hints, with JSON in between. Pure.

A type that is unknown, or that only its library understands, fits everything. The value itself is still checked when
the node runs.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

from holdfast.plans.graph import INDEX

ANY = inspect.AnyType()

# Types that are text in JSON.
_TEXT = (
    inspect.StrType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
    inspect.BytesType,
    inspect.ByteArrayType,
)
_LISTS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType, inspect.CollectionType)
_FIELDS = (inspect.StructType, inspect.TypedDictType, inspect.DataclassType, inspect.NamedTupleType)


def type_of(hint: Any) -> inspect.Type:
    """Return a hint as a msgspec type; ANY if msgspec does not know it."""
    try:
        info = inspect.type_info(hint)
    except (TypeError, NotImplementedError):
        return ANY
    return info.type if isinstance(info, inspect.Metadata) else info


def part_type(kind: inspect.Type, path: str) -> inspect.Type | None:
    """Return the type of the part at a path; None if there can be no such part."""
    for part in path.split(".") if path else ():
        inner = _part(kind, part)
        if inner is None:
            return None
        kind = inner
    return kind


def item_type(kind: inspect.Type) -> inspect.Type | None:
    """Return the type of a list's items; None if the type cannot be a list."""
    if isinstance(kind, _LISTS):
        return _bare(kind.item_type)
    if isinstance(kind, inspect.UnionType):
        items = [item for item in map(item_type, map(_bare, kind.types)) if item is not None]
        return (items[0] if len(items) == 1 else ANY) if items else None
    return None if _is_certain(kind) and not isinstance(kind, inspect.TupleType) else ANY


Pair = tuple[type, type]


def fits(gives: inspect.Type, takes: inspect.Type, inside: frozenset[Pair] = frozenset()) -> bool:
    """Return whether every value of one type can be a value of the other. True if that is unknown.

    `inside` has the pairs of classes under comparison, so that recursive classes are compared once.
    """
    gives, takes = _bare(gives), _bare(takes)
    if not _is_certain(gives) or not _is_certain(takes):
        return True
    if isinstance(gives, inspect.UnionType):
        return all(fits(member, takes, inside) for member in gives.types)
    if isinstance(takes, inspect.UnionType):
        return any(fits(gives, member, inside) for member in takes.types)
    if isinstance(gives, _LISTS) and isinstance(takes, _LISTS):
        return fits(gives.item_type, takes.item_type, inside)
    if isinstance(gives, inspect.DictType) and isinstance(takes, inspect.DictType):
        return fits(gives.value_type, takes.value_type, inside)
    if isinstance(takes, inspect.DecimalType) and isinstance(gives, (inspect.IntType, inspect.FloatType)):
        return True  # it is written as text, and also read from numbers
    return bool(_names(gives) & _names(takes)) and _fields_fit(gives, takes, inside)


def _fields_fit(gives: inspect.Type, takes: inspect.Type, inside: frozenset[Pair]) -> bool:
    if not isinstance(gives, _FIELDS) or not isinstance(takes, _FIELDS) or gives.cls is takes.cls:
        return True
    if isinstance(gives, inspect.NamedTupleType) or (gives.cls, takes.cls) in inside:
        return True  # lists have no field names; or an outer call compares the pair
    inside |= {(gives.cls, takes.cls)}
    fields = {field.encode_name if hasattr(field, "encode_name") else field.name: field for field in gives.fields}
    for field in takes.fields:
        name = field.encode_name if hasattr(field, "encode_name") else field.name
        if name not in fields:
            if field.required:
                return False
        elif not fits(fields[name].type, field.type, inside):
            return False
    return True


def value_problem(value: Any, hint: Any) -> str | None:
    """Return why a literal cannot have this type; None if it can, or if that is unknown."""
    if not _is_certain(type_of(hint)):
        return None
    try:
        msgspec.convert(value, hint, strict=True, str_keys=True)
    except msgspec.ValidationError as error:
        return str(error)
    except (TypeError, ValueError, NotImplementedError):
        return None
    return None


def type_name(kind: inspect.Type) -> str:
    """Return the name of a type for messages."""
    match kind:
        case inspect.UnionType():
            return " | ".join(dict.fromkeys(map(type_name, kind.types)))
        case inspect.ListType() | inspect.SetType() | inspect.FrozenSetType() | inspect.VarTupleType():
            return f"list[{type_name(kind.item_type)}]"
        case inspect.TupleType():
            return f"tuple[{', '.join(map(type_name, kind.item_types))}]"
        case inspect.DictType():
            return f"dict[{type_name(kind.key_type)}, {type_name(kind.value_type)}]"
        case inspect.LiteralType():
            return " | ".join(map(repr, kind.values))
        case inspect.Metadata():
            return type_name(kind.type)
        case _:
            cls = getattr(kind, "cls", None)
            return cls.__name__ if cls is not None else type(kind).__name__.removesuffix("Type").lower()


def _part(kind: inspect.Type, part: str) -> inspect.Type | None:
    kind = _bare(kind)
    if isinstance(kind, inspect.NamedTupleType):  # a list in JSON
        kind = inspect.TupleType(tuple(field.type for field in kind.fields))
    if isinstance(kind, _FIELDS):
        fields = {getattr(field, "encode_name", field.name): field.type for field in kind.fields}
        return _bare(fields[part]) if part in fields else None
    if isinstance(kind, inspect.DictType):
        return _bare(kind.value_type)
    if isinstance(kind, (*_LISTS, inspect.TupleType)):
        if not INDEX.fullmatch(part):
            return None
        if isinstance(kind, _LISTS):
            return _bare(kind.item_type)
        count, place = len(kind.item_types), int(part)
        return _bare(kind.item_types[place]) if -count <= place < count else None
    return None if _is_certain(kind) and not isinstance(kind, inspect.UnionType) else ANY


def _bare(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def _is_certain(kind: inspect.Type) -> bool:
    return not isinstance(kind, (inspect.AnyType, inspect.CustomType, inspect.RawType, inspect.ExtType))


def _names(kind: inspect.Type) -> set[str]:
    """Return the kinds of JSON value that a type has."""
    match kind:
        case inspect.NoneType():
            return {"null"}
        case inspect.BoolType():
            return {"bool"}
        case inspect.IntType():
            return {"int"}
        case inspect.FloatType():
            return {"float", "int"}
        case inspect.LiteralType():
            return {"null" if value is None else "text" if isinstance(value, str) else "int" for value in kind.values}
        case inspect.EnumType():
            return {"text" if isinstance(value.value, str) else "int" for value in kind.cls}
        case inspect.DictType() | inspect.StructType() | inspect.TypedDictType() | inspect.DataclassType():
            return {"object"}
        case _:
            return {"text"} if isinstance(kind, _TEXT) else {"list"}
