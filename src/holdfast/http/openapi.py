"""The OpenAPI 3.1 document, generated from the route objects and the types that handlers read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.client.schedules.schedules_interface import ScheduleInfo
from holdfast.http.problems import CODES, TITLES, TYPE, ProblemBody
from holdfast.http.request import REPEAT_MAX, TEXT_MAX, Call, Query
from holdfast.http.response import Answer, json
from holdfast.http.route import Many, Operation, Text
from holdfast.machines import RunRecord
from holdfast.store import QueueState

_PARAMETERS = {
    "id": {"type": "string", "pattern": r"^[A-Za-z0-9_~:@-][A-Za-z0-9_~:@.-]{0,254}$", "description": "Id of a run."},
    "number": {"type": "integer", "minimum": 1, "maximum": 999_999_999, "description": "Number of an export."},
    "queue": {
        "type": "string",
        "pattern": r"^[A-Za-z0-9_~:@-][A-Za-z0-9_~:@.-]{0,199}$",
        "description": "Name of a queue.",
    },
    "schedule": {
        "type": "string",
        "pattern": r"^[A-Za-z0-9_~:@-][A-Za-z0-9_~:@.-]{0,254}$",
        "description": "Name of a schedule, as `app.name`, or its name in the app of the server.",
    },
    "machine": {"type": "string", "enum": ["job", "run", "ready"], "description": "Name of a state machine."},
}
# Where a response names what the next request is about: by the type of the response, the parameter and the place.
_SOURCES: list[tuple[Any, str, str]] = [
    (RunRecord, "id", "/run_id"),
    (Many(RunRecord), "id", "/items/0/run_id"),
    (QueueState, "queue", "/limits/queue"),
    (ScheduleInfo, "schedule", "/id"),
    (Many(ScheduleInfo), "schedule", "/items/0/id"),
    (Many(QueueState), "queue", "/items/0/limits/queue"),
]
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


_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A repeat of the request with the same key is not executed again, for a day at least. It has 1 to"
    " 200 visible ASCII characters, in quotes or not.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,202}$"},
}


def document(table: Sequence[Operation], root: str = "") -> dict[str, Any]:
    """Return the OpenAPI document of a route table."""
    types = _types(table)
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    _translate_patterns(components)
    known = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in table:
        described = paths.setdefault(one.path, {})[one.method.lower()] = _described(one, known)
        for status, kind in one.gives.items():
            links = _links(one, kind, table)
            if links:
                described["responses"][str(status)]["links"] = links
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": "Durable jobs over HTTP."},
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {_name_of(status): _refusal(status, known) for status in CODES},
            "links": {
                f"{_name(other)}_of_{parameter}{place.replace('/', '_')}": {
                    "operationId": _name(other),
                    "parameters": {parameter: f"$response.body#{place}"},
                }
                for _, parameter, place in _SOURCES
                for other in _about(table, parameter)
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _translate_patterns(schema: Any) -> None:
    """Write the patterns of a schema as ECMAScript has them: with `$` where Python has a capital Z."""
    for name, part in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if name == "pattern" and isinstance(part, str):
            schema[name] = part.removesuffix(r"\Z") + "$" if part.endswith(r"\Z") else part
        elif isinstance(part, (dict, list)):
            _translate_patterns(part)


def _types(table: Sequence[Operation]) -> list[Any]:
    found: dict[str, Any] = {repr(ProblemBody): ProblemBody}
    for one in table:
        for kind in [one.takes, *one.gives.values()]:
            inner = kind.item if isinstance(kind, Many) else kind
            if inner is not None and not isinstance(inner, Text):
                found.setdefault(repr(inner), inner)
    return list(found.values())


def _name(one: Operation) -> str:
    return str(one.handler.__name__)


def _about(table: Sequence[Operation], parameter: str) -> list[Operation]:
    """Return the routes whose path has this parameter and no other."""
    return [one for one in table if list(one.param_convertors) == [parameter]]


def _links(one: Operation, kind: Any, table: Sequence[Operation]) -> dict[str, Any]:
    """Return the requests that can follow a response: on the run or queue that it names, and for the next page.

    A route whose path already has the id links to nothing: the request before it has the same links.
    """
    links: dict[str, Any] = {}
    for source, parameter, place in _SOURCES:
        if kind == source and (parameter not in one.param_convertors or _is_new(one)):
            for other in _about(table, parameter):
                name = f"{_name(other)}_of_{parameter}{place.replace('/', '_')}"
                links[_name(other)] = {"$ref": f"#/components/links/{name}"}
    if isinstance(kind, Many) and any(query.name == "cursor" for query in one.query):
        own = {name: f"$request.path.{name}" for name in one.param_convertors}
        links["next_page"] = {"operationId": _name(one), "parameters": {**own, "cursor": "$response.body#/next"}}
    if _name(one) == "list_exports":
        number = {"id": "$request.path.id", "number": "$response.body#/items/0/number"}
        links["get_content"] = {"operationId": "get_content", "parameters": number}
    return links


def _is_new(one: Operation) -> bool:
    """Return whether a route creates the run that it returns."""
    return 201 in one.gives  # noqa: PLR2004 - Created


def _described(one: Operation, known: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _name(one),
        "summary": one.summary,
        "tags": [_tag(one)],
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": _PARAMETERS[name]}
              for name in one.param_convertors),
            *(_parameter(query) for query in one.query if not query.name.endswith(".")),
            *([_KEY] if one.method == "POST" else []),
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
    statuses = {400, 414, 422, 431, 500, *one.refuses}  # every route refuses a parameter that it does not know
    if one.needed is not None:
        statuses |= {401, 403, 421, 503}
    if one.param_convertors:
        statuses.add(404)
    if one.takes is not None:
        statuses |= {408, 413, 415}
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
        content = {kind.media_type: {"schema": schema}, **{other: {"schema": {}} for other in kind.others}}
        return {"description": "Success; the body is no object of this API.", "content": content}
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
