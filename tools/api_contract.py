"""The promises of the HTTP API as lines of text, from its OpenAPI document: routes, parameters, fields, types, codes.

`make docs` runs it and writes tests/http/v1_contract.txt. After the first release it only adds lines, so that a removal
stays visible to the test. Before that, it writes what there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.http.openapi import document
from holdfast.http.problems import CODES
from holdfast.http.routes import routes

__all__ = ["FILE", "contract", "is_released", "read"]

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "http" / "v1_contract.txt"
DEPTH = 6  # deeper fields belong to payloads of users


def read() -> set[str]:
    """Return the lines that were promised."""
    return set(FILE.read_text().splitlines())


def contract() -> set[str]:
    """Return what the API offers now, a line for each part. A `needs` line is something that a client must send."""
    made = document(routes())
    lines = {f"code {status} {code}" for status, codes in CODES.items() for code in codes}
    for path, methods in made["paths"].items():
        for method, described in methods.items():
            route = f"{method.upper()} {path}"
            lines.add(route)
            for parameter in described["parameters"]:
                lines |= {f"{route} ?{parameter['name']}: {kind}" for kind in _kinds(parameter["schema"], made)}
                if parameter.get("required") and parameter["in"] == "query":
                    lines.add(f"{route} needs ?{parameter['name']}")
            lines |= {f"{route} {line}" for line in _body(described, made)}
            for status, response in described["responses"].items():
                for kind, content in response.get("content", {}).items():
                    lines.add(f"{route} {status} {kind}")
                    lines |= {f"{route} {status} {line}" for line in _fields(content.get("schema", {}), made, "")}
    return lines


def _body(described: dict[str, Any], made: dict[str, Any]) -> Iterator[str]:
    for content in described.get("requestBody", {}).get("content", {}).values():
        schema = _resolved(content["schema"], made)
        for line in _fields(schema, made, ""):
            name, _, kinds = line.partition(": ")
            yield from (f"body{name}: {kind}" for kind in kinds.split())  # each alone: to accept one more is no break
        yield from (f"needs body.{name}" for name in schema.get("required", ()))


def _resolved(schema: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = made["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _options(schema: dict[str, Any], made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the alternatives of a schema, each without references."""
    schema = _resolved(schema, made)
    options = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return [one for option in options for one in _options(option, made)] if options else [schema]


def _kinds(schema: dict[str, Any], made: dict[str, Any]) -> set[str]:
    kinds: set[str] = set()
    for option in _options(schema, made):
        kind = option.get("type", "enum" if "enum" in option else "any")
        kinds |= set(kind) if isinstance(kind, list) else {str(kind)}
    return kinds


def _fields(schema: dict[str, Any], made: dict[str, Any], place: str, depth: int = 0) -> Iterator[str]:
    if depth > DEPTH:
        return
    for option in _options(schema, made):
        if "items" in option and isinstance(option["items"], dict):
            yield from _fields(option["items"], made, f"{place}[]", depth + 1)
        for name, inner in option.get("properties", {}).items():
            yield f"{place}.{name}: {' '.join(sorted(_kinds(inner, made)))}"
            yield from _fields(inner, made, f"{place}.{name}", depth + 1)


def is_released() -> bool:
    """Return whether a version in the changelog has a date."""
    return re.search(r"^## \[.*\] - \d{4}-", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE) is not None


if __name__ == "__main__":
    before = read() if FILE.exists() else set()
    lines = sorted(contract() | (before if is_released() else set()))
    FILE.write_text("\n".join(lines) + "\n")
    print(f"wrote {FILE.name}: {len(lines)} promises, {len(set(lines) - before)} of them new")
