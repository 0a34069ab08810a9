"""Writes docs/reference/http.md from the OpenAPI document of the route table."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from holdfast import errors
from holdfast.http.openapi import document
from holdfast.http.problems import CODES, STATUSES, problem_of
from holdfast.http.routes import routes

HEAD = """\
# The HTTP API

<!-- Made by `make docs` from the route table in src/holdfast/http. Do not edit. -->

`holdfast serve shop.py` serves this API. To serve it inside your own application, see
[mounting](../how-to/mounting.md). `GET /openapi.json` describes the same API for programs. Its `links`
say which requests can follow a response.

| | |
|---|---|
| bodies | JSON in UTF-8; times are UTC epoch seconds |
| authentication | `Authorization: Bearer <token>` |
| scopes | read, signal, submit, operate, admin: each includes those before ([security](../explanation/security.md)) |
| lists | `{"items": […], "next": cursor or null}`; pass `cursor` and `limit` (1 to 1000) for the next page |
| errors | `application/problem+json` with `code`, `params`, `detail` and `hint` ([error codes](#error-codes)) |

```sh
curl localhost:4653/api/v1/runs -H 'Content-Type: application/json' \\
     -d '{"plugin_id": "shop", "entry_id": "checkout", "args": {"sku": "A1", "card": "4242"}}'
curl -N localhost:4653/api/v1/runs/$RUN/stream
```

The column *bound* describes tokens that are [bound to a group](../explanation/security.md#tenants). Runs of
other groups return 404.

A stream sends server-sent events. `run` carries the run record. `event` carries an event of the job; a payload over
4 KiB is replaced by `{"truncated": true}`. The server sends a comment every 15 seconds. Reconnect with `Last-Event-ID`,
and no event is missed.

The stream of all runs sends `run` for each run that has changed, also by a new event or a progress report. It checks
four times per second. It follows the newest 1,000 active runs, and the newest 100 of all. If it cannot resume, because
the server was restarted or the client was away for long, it sends `reset`: read the runs again.

A stream ends within a second after its token was revoked.
"""

REPEATS = """\
## Repeats

A client that has lost a response does not know whether the server has executed the request. So send a new
`Idempotency-Key` with each `POST`, 1 to 200 visible ASCII characters. Repeat the request with the same key.
`holdfast.connect` does so by itself.

| request | a repeat with the same key |
|---|---|
| create, fork, verify or purge of everything | returns the same run; the key is the run's `idempotency_key` |
| a batch | returns the same runs; a run without its own key gets that of the request and its place, such as `k#0` |
| every other `POST` | is not executed again; returns the same status and outcome, or the same run as it is now |
| a filter | acts on the page of runs of the first request, and on none of them twice |

- The store keeps the key in the transaction that executes the request. So a crash leaves both or neither.
- The store keeps a key for at least one day. The key of a run stays with the run.
- The same key with another path, query or body returns 422 `idempotency_key_reused`, and nothing is done. Bodies are
  compared byte by byte. For the key of a run, other arguments return 409 `idempotency_conflict`.
- A refused request leaves no key. A repeat is executed.
- Each token has its own keys. The key of a run is unique per job, for all tokens.
- `PUT` and `DELETE` need no key: a repeat changes nothing more.
"""

REFUSALS = """\
## Error codes

| status | codes |
|---|---|
{codes}

The responses 429 and 503 have the header Retry-After. A response 500 has an id that the server also logs.

For an error of `holdfast.errors`, `code` is the class name in snake_case, and `params` has the fields of the error by
name. Programs read these two. `holdfast.connect` builds the same error from them. The text of `detail` may change;
`message` has the same text, for earlier clients. `type` is the code as a URI.

```json
{example}
```

{params}

A refused transition also has `machine`, `current` and `target` outside `params`. A refused plan has `plan` and
`problems`. Codes that are not in this table have no `params`.
"""


# The types of fields, as this page names them.
TYPES = {
    "str": "string",
    "str | None": "string or null",
    "int": "integer",
    "int | None": "integer or null",
    "float": "number",
    "list[str]": "list of string",
}


def http_page() -> str:
    """Write docs/reference/http.md."""
    described = document(routes())
    schemas = described["components"]["schemas"]
    lines = ["## Routes", "", "| route | scope | bound | body | responses | summary |", "|---|---|---|---|---|---|"]
    for path, methods in described["paths"].items():
        for method, one in methods.items():
            lines.append(
                f"| `{method.upper()} {path}` | {one['x-scope']} | {one['x-bound']} | {_takes(one)} | {_gives(one)}"
                f" | {one['summary']} |"
            )
    parts = [HEAD, REPEATS, "\n".join(lines) + "\n", _queries(described), _refusals(), "## Records\n"]
    parts += [_schema(name, schema) for name, schema in sorted(schemas.items())]
    return "\n".join(parts)


def _refusals() -> str:
    """Write the codes, an example as the server sends it, and the params of each error."""
    problem = problem_of(errors.QueueFull("mail", 500, 1.0))
    assert problem is not None
    example = msgspec.json.format(problem.answer().body, indent=2).decode()
    lines = ["| code | params |", "|---|---|"]
    for kind, _, _ in STATUSES:
        for one in kind.__subclasses__() or [kind]:
            fields = inspect.signature(one).parameters.values()
            shown = ", ".join(f"`{field.name}`: {TYPES[str(field.annotation)]}" for field in fields)
            lines.append(f"| `{errors.code_of(one)}` | {shown} |")
    codes = "\n".join(f"| {status} | {', '.join(f'`{code}`' for code in names)} |" for status, names in CODES.items())
    page = REFUSALS.replace("{codes}", codes).replace("{example}", example)
    return page.replace("{params}", "\n".join(lines))


def _takes(one: dict[str, Any]) -> str:
    body = one.get("requestBody")
    if body is None:
        return ""
    return _name(body["content"]["application/json"]["schema"]) + ("" if body["required"] else ", optional")


def _gives(one: dict[str, Any]) -> str:
    said = []
    for status, response in one["responses"].items():
        if "$ref" not in response:
            media, content = next(iter(response.get("content", {"no body": {}}).items()))
            said.append(f"{status} {_name(content['schema']) if media == 'application/json' else media}")
    return ", ".join(said)


def _queries(described: dict[str, Any]) -> str:
    lines = ["## Query parameters", "", "| route | parameter | value |", "|---|---|---|"]
    for path, methods in described["paths"].items():
        for method, one in methods.items():
            for query in one["parameters"]:
                if query["in"] == "query":
                    words = query["schema"].get("items", query["schema"]).get("enum")
                    kind = " or ".join(f"`{word}`" for word in words) if words else _name(query["schema"])
                    lines.append(f"| `{method.upper()} {path}` | `{query['name']}` | {kind}. {query['description']} |")
            if "description" in one:
                lines.append(f"| `{method.upper()} {path}` | `attr.NAME` | {one['description']} |")
    return "\n".join(lines) + "\n"


def _schema(name: str, schema: dict[str, Any]) -> str:
    if "properties" not in schema:
        return f"### {name}\n\n{schema.get('description', '')} One of {', '.join(map(str, schema.get('enum', [])))}.\n"
    first = schema.get("description", "").partition("\n\n")[0]
    lines = [f"### {name}", "", first, "", "| field | type |", "|---|---|"]
    required = set(schema.get("required", []))
    for field, kind in schema["properties"].items():
        lines.append(f"| `{field}` | {_name(kind)}{'' if field in required else ', optional'} |")
    return "\n".join(lines) + "\n"


def _name(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_name(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_name(schema['items'])}" if "items" in schema else "list"
    if schema.get("type") == "object" and "items" in schema.get("properties", {}):
        return f"list of {_name(schema['properties']['items']['items'])}"
    kind = schema.get("type", "any JSON")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
