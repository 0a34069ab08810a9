"""The OpenAPI 3.1 document, generated from the route objects and the types that handlers read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.http.problems import CODES, TITLES, TYPE, ProblemBody
from holdfast.http.request import REPEAT_MAX, TEXT_MAX, Call, Query
from holdfast.http.response import Answer, json
from holdfast.http.route import Many, Operation, Text

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
            "responses": {_name_of(status): _refusal(status, known) for status in CODES},
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
    described: dict[str, Any] = {
        "operationId": one.handler.__name__,
        "summary": one.summary,
        "tags": [_tag(one)],
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": _PARAMETERS[name]}
              for name in one.param_convertors),
            *(_parameter(query) for query in one.query if not query.name.endswith(".")),
        ],
        "responses": {str(status): _response(kind, known) for status, kind in sorted(one.gives.items())},
    }  # fmt: skip
    prefixed = [query.description for query in one.query if query.name.endswith(".")]
    if prefixed:
        described["description"] = " ".join(prefixed)
    if one.takes is not None:
        content: dict[str, Any] = {"schema": known[repr(one.takes)]}
        if one.example is not None:
            content["example"] = one.example
        described["requestBody"] = {"required": not one.optional, "content": {"application/json": content}}
    for status in refusals_of(one):
        described["responses"].setdefault(str(status), {"$ref": f"#/components/responses/{_name_of(status)}"})
    described["x-scope"] = one.needed.name.lower() if one.needed is not None else "public"
    described["x-bound"] = str(one.bound)
    if one.needed is not None:
        described["security"] = [{"token": []}]
    return described


def refusals_of(one: Operation) -> list[int]:
    """Return the statuses of all refusals that a route can send."""
    statuses = {400, 405, 408, 413, 414, 431, 500, 503, *one.refuses}  # a body can be too large on every route
    if one.needed is not None:
        statuses |= {401, 403, 421}
    if one.param_convertors:
        statuses.add(404)
    if one.query:
        statuses.add(422)
    if one.takes is not None:
        statuses |= {415, 422}
    return sorted(statuses)


def _tag(one: Operation) -> str:
    """Return the group of a route in the document: the first noun of its path."""
    return one.path.removeprefix("/api/v1").split("/")[1] if one.path.startswith("/api/v1") else "server"


def _name_of(status: int) -> str:
    return TITLES[status].replace(" ", "").replace("-", "")


def _refusal(status: int, known: dict[str, Any]) -> dict[str, Any]:
    """Return the response of a refusal: the body, the codes of its status, and an example."""
    code = CODES[status][0]
    example = {"title": TITLES[status], "status": status, "code": code, "type": TYPE + code}
    text = code.replace("_", " ")
    return {
        "description": f"{TITLES[status]}: {', '.join(CODES[status])}.",
        "content": {
            "application/problem+json": {
                "schema": {
                    "allOf": [
                        known[repr(ProblemBody)],
                        {"properties": {"code": {"enum": list(CODES[status])}, "status": {"const": status}}},
                    ]
                },
                "example": {**example, "detail": text, "message": text},
            }
        },
    }


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
    if kind is None:
        return {"description": "Success without a body: there is nothing more to send."}
    schema = known[repr(kind.item if isinstance(kind, Many) else kind)]
    if isinstance(kind, Many):
        schema = {
            "type": "object",
            "required": ["items", "next"],
            "properties": {
                "items": {"type": "array", "items": schema},
                "next": {
                    "type": ["string", "null"],
                    "description": "Cursor of the next page. Null on the last page, and for a list without pages.",
                },
            },
        }
    return {"description": "Success.", "content": {"application/json": {"schema": schema}}}
