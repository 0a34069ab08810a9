"""The OpenAPI 3.1 document, generated from the route objects and the types that handlers read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.http.problems import ProblemBody
from holdfast.http.request import REPEAT_MAX, TEXT_MAX, Call, Query
from holdfast.http.response import Answer, json
from holdfast.http.route import Many, Operation, Text

__all__ = ["Machine", "Row", "document", "get_openapi"]

_PARAMETERS = {
    "id": {"type": "string", "pattern": r"^[A-Za-z0-9_~:@-][A-Za-z0-9_~:@.-]{0,254}$", "description": "Id of a run."},
    "number": {"type": "integer", "minimum": 1, "maximum": 999_999_999, "description": "Number of an export."},
    "queue": {
        "type": "string",
        "pattern": r"^[A-Za-z0-9_~:@-][A-Za-z0-9_~:@.-]{0,199}$",
        "description": "Name of a queue.",
    },
    "machine": {"type": "string", "enum": ["job", "run", "ready"], "description": "Name of a state machine."},
}
_MESSAGE = {  # one message of a stream; its data is a RunRecord or an Event as JSON
    "type": "object",
    "required": ["event", "id", "data"],
    "properties": {
        "event": {"type": "string", "enum": ["run", "event"]},
        "id": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}


class Row(msgspec.Struct, rename={"source": "from", "target": "to"}):
    """One legal transition. `from` is null for the first event."""

    source: str | None
    event: str
    target: str


class Machine(msgspec.Struct):
    """The table of a state machine, as the engine enforces it."""

    machine: str
    states: list[str]
    events: list[str]
    final: list[str]
    qualifiers: dict[str, str]
    rows: list[Row]


async def get_openapi(call: Call) -> Answer:
    """Return the OpenAPI document, with the mount prefix of this request."""
    from holdfast.http.routes import routes  # noqa: PLC0415 - a cycle: the route table imports this handler

    return json(document(routes(), call.request.scope.get("root_path", "")))


def document(table: Sequence[Operation], root: str = "") -> dict[str, Any]:
    """Return the OpenAPI document of a route table."""
    types = _types(table)
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    known = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in table:
        paths.setdefault(one.path, {})[one.method.lower()] = _described(one, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": "Durable jobs over HTTP."},
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(table: Sequence[Operation]) -> list[Any]:
    found: dict[str, Any] = {repr(ProblemBody): ProblemBody}
    for one in table:
        for kind in [one.takes, *one.gives.values()]:
            inner = kind.item if isinstance(kind, Many) else kind
            if inner is not None and not isinstance(inner, Text):
                found.setdefault(repr(inner), inner)
    return list(found.values())


def _described(one: Operation, known: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {
        "operationId": one.handler.__name__ if one.name != "list_nothing" else f"list_{one.path.rpartition('/')[2]}",
        "summary": one.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": _PARAMETERS[name]}
              for name in one.param_convertors),
            *(_parameter(query) for query in one.query if not query.name.endswith(".")),
        ],
        "responses": {str(status): _response(kind, known) for status, kind in sorted(one.gives.items())},
    }  # fmt: skip
    prefixed = [query.description for query in one.query if query.name.endswith(".")]
    if prefixed:
        said["description"] = " ".join(prefixed)
    if one.takes is not None:
        content = {"application/json": {"schema": known[repr(one.takes)]}}
        said["requestBody"] = {"required": not one.optional, "content": content}
    problem = {
        "description": "The server refused the request.",
        "content": {"application/problem+json": {"schema": known[repr(ProblemBody)]}},
    }
    said["responses"]["default"] = problem
    said["x-scope"] = one.needed.name.lower() if one.needed is not None else "public"
    said["x-bound"] = str(one.bound)
    if one.needed is not None:
        said["security"] = [{"token": []}]
    return said


def _parameter(query: Query) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": query.kind}
    if query.kind == "string":
        schema |= {"enum": list(query.words)} if query.words else {"maxLength": TEXT_MAX, "pattern": query.pattern}
    if query.least is not None:
        schema["minimum"] = query.least
    if query.most is not None:
        schema["maximum"] = query.most
    if query.repeat:
        schema = {"type": "array", "items": schema, "maxItems": REPEAT_MAX}
    return {"name": query.name, "in": "query", "description": query.description, "schema": schema}


def _response(kind: Any, known: dict[str, Any]) -> dict[str, Any]:
    if isinstance(kind, Text):
        schema = _MESSAGE if kind.media_type == "text/event-stream" else {"type": "string"}
        return {"description": "Success; the body is not JSON.", "content": {kind.media_type: {"schema": schema}}}
    schema = known[repr(kind.item if isinstance(kind, Many) else kind)]
    if isinstance(kind, Many):
        schema = {
            "type": "object",
            "required": ["items", "next"],
            "properties": {
                "items": {"type": "array", "items": schema},
                "next": {"type": ["string", "null"], "description": "Cursor of the next page, null on the last."},
            },
        }
    return {"description": "Success.", "content": {"application/json": {"schema": schema}}}
